package historyapi

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"unicode/utf8"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	historyv1alpha1 "github.com/clew-dev/clew/api/history/v1alpha1"
	"github.com/clew-dev/clew/internal/gitstoreapi"
	"github.com/clew-dev/clew/internal/history"
)

// Differ compares the code of checkpoints. Its refusals are *gitstoreapi.Refusal.
type Differ interface {
	Diff(ctx context.Context, namespace, uid string, q gitstoreapi.DiffQuery) (gitstoreapi.Diff, error)
}

// Names of moments that are not numbers of checkpoints.
const (
	momentPrevious = "previous"
	momentLatest   = "latest"
	momentBase     = "base"
)

// subresourceDiff is what a caller must be allowed to get of tasks.
const subresourceDiff = "diff"

// maxDiffFiles is the maximum number of files of a page, and defaultDiffFiles the default.
const maxDiffFiles, defaultDiffFiles = 1000, 300

// diff returns a page of the difference between two moments of a task. Parameters: from (base,
// by default) and to (latest), each the number of a checkpoint, base (what the task started
// from), latest, previous (the checkpoint before to), or the name of another task, a colon and
// one of these; path (several), ignored (include ignored files), format (hunks, patch or none), limit,
// continue, uid.
func (a *api) diff(w http.ResponseWriter, c *call) error {
	q, err := diffQueryOf(c.URL.Query())
	if err != nil {
		return err
	}
	var of moments
	err = a.inReadSlot(c, func() error {
		of, err = a.moments(c, q)
		return err
	})
	if err != nil {
		return err
	}
	found, err := a.Differ.Diff(c.Context(), c.access.Namespace, of.task.UID, gitstoreapi.DiffQuery{
		From: of.from.point(of.task), To: of.to.point(of.task), Paths: q.paths, Ignored: q.ignored, After: int(q.at.After), Limit: q.limit,
		Format: q.format, FromCommit: q.at.From, ToCommit: q.at.To,
	})
	if err != nil {
		return diffError(err, of)
	}
	answer, err := diffOf(found, of)
	if err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, answer)
	return nil
}

// diffParameters are the checked parameters of a request.
type diffParameters struct {
	uid, from, to string
	paths         []string
	ignored       bool
	format        gitstoreapi.DiffFormat
	limit         int
	at            cursor
}

func diffQueryOf(values url.Values) (q diffParameters, err error) {
	q = diffParameters{uid: values.Get("uid"), from: values.Get("from"), to: values.Get("to"), paths: values["path"]}
	if q.limit, err = numberOf(values, "limit", defaultDiffFiles); err != nil {
		return q, err
	}
	q.limit = min(q.limit, maxDiffFiles)
	if q.ignored, err = flagOf(values, "ignored"); err != nil {
		return q, err
	}
	switch format := values.Get("format"); format {
	case "", string(gitstoreapi.DiffHunks):
		q.format = gitstoreapi.DiffHunks
	case string(gitstoreapi.DiffPatch):
		q.format = gitstoreapi.DiffPatch
	case "none":
	default:
		return q, badRequest("there is no format %q; the formats are hunks, patch and none", format)
	}
	if token := values.Get("continue"); token != "" {
		if q.at, err = decodeCursor(token, kindDiff); err == nil {
			q.uid, q.from, q.to = q.at.UID, q.at.FromMoment, q.at.ToMoment
		}
	}
	return q, err
}

// moment is a resolved moment of a task.
type moment struct {
	task history.Task
	// checkpoint is nil for the commit that the task started from.
	checkpoint *history.Checkpoint
	// totals are sums over the conversation up to the moment.
	totals history.Totals
}

// moments are both moments of a request about a task. They may be of other tasks.
type moments struct {
	task     history.Task
	from, to moment
}

// point returns the gitstore's name of a moment, as seen from the given task.
func (m moment) point(about history.Task) string {
	point := gitstoreapi.PointBase
	if m.checkpoint != nil {
		point = gitstoreapi.PointCheckpoint + strconv.FormatInt(m.checkpoint.Number, 10)
	}
	if m.task.UID != about.UID {
		return gitstoreapi.PointOf(m.task.UID, point)
	}
	return point
}

// String names the moment in messages.
func (m moment) String() string {
	if m.checkpoint == nil {
		return "the base of task " + m.task.Name
	}
	return fmt.Sprintf("checkpoint %d of task %s", m.checkpoint.Number, m.task.Name)
}

// moments resolves both moments of a request.
func (a *api) moments(c *call, q diffParameters) (of moments, err error) {
	found, err := a.find(c.Context(), c.access.Namespace, c.access.Name, q.uid)
	if err != nil {
		return of, err
	}
	of.task = found.Task
	if of.to, err = a.moment(c, of.task, cmp.Or(q.to, momentLatest), nil); err != nil {
		return of, err
	}
	if q.from == momentPrevious {
		of.from, err = a.moment(c, of.to.task, momentPrevious, of.to.checkpoint)
	} else {
		of.from, err = a.moment(c, of.task, cmp.Or(q.from, momentBase), nil)
	}
	return of, err
}

// moment resolves a moment. For the previous checkpoint, before is the one it precedes, the
// task's latest if nil.
func (a *api) moment(c *call, task history.Task, text string, before *history.Checkpoint) (moment, error) {
	if name, rest, other := strings.Cut(text, ":"); other {
		task, err := a.otherTask(c, name)
		if err != nil {
			return moment{}, err
		}
		return a.moment(c, task, cmp.Or(rest, momentLatest), nil)
	}
	switch text {
	case momentBase:
		return moment{task: task}, nil
	case momentLatest:
		return a.newest(c.Context(), task, 0)
	case momentPrevious:
		if before == nil {
			latest, err := a.newest(c.Context(), task, 0)
			if err != nil {
				return moment{}, err
			}
			before = latest.checkpoint
		}
		m, err := a.newest(c.Context(), task, before.Number)
		if errors.Is(err, errNoMoment) {
			return moment{task: task}, nil // the first checkpoint follows the base
		}
		return m, err
	}
	number, err := strconv.ParseInt(text, 10, 32)
	if err != nil || number < 1 {
		return moment{}, badRequest("%q is no moment of a task: name the number of a checkpoint, base, previous or latest, or another task and one of these, such as other-task:3", text)
	}
	found, err := a.Archive.Checkpoint(c.Context(), task.Key(), number)
	if errors.Is(err, history.ErrNotFound) {
		return moment{}, noMoment("task %s has no checkpoint %d", task.Name, number)
	}
	return moment{task, &found, found.Totals}, err
}

// newest returns the newest checkpoint with a number below before, or of all if that is 0.
func (a *api) newest(ctx context.Context, task history.Task, before int64) (moment, error) {
	found, err := a.Archive.CheckpointsBefore(ctx, task.Key(), before, 1)
	if err != nil {
		return moment{}, err
	}
	if len(found) == 0 {
		return moment{}, noMoment("task %s has no checkpoint yet", task.Name)
	}
	return moment{task, &found[0], found[0].Totals}, nil
}

// otherTask finds another task whose code the caller may compare as well.
func (a *api) otherTask(c *call, name string) (history.Task, error) {
	access := c.access
	access.Name = name
	allowed, reason, err := a.Authorizer.Authorize(c.Context(), c.caller, access)
	if err != nil {
		return history.Task{}, fmt.Errorf("%w: check the permissions of %s: %w", errAuthorizer, c.caller.GetName(), err)
	}
	if !allowed {
		return history.Task{}, forbidden(c.caller, access, reason)
	}
	found, err := a.find(c.Context(), access.Namespace, name, "")
	if errors.Is(err, history.ErrNotFound) {
		return history.Task{}, noMoment("there is no task %s in the history of this namespace", name)
	}
	return found.Task, err
}

// errNoMoment marks the answer that a task has no such checkpoint.
var errNoMoment = errors.New("no such checkpoint")

// missingMoment is a Status that errNoMoment matches.
type missingMoment struct{ *apierrors.StatusError }

// Is reports whether target is errNoMoment.
func (missingMoment) Is(target error) bool { return target == errNoMoment }

func noMoment(format string, args ...any) error {
	err := apierrors.NewNotFound(resourceOf(Access{Resource: "tasks", Subresource: subresourceDiff}), "")
	err.ErrStatus.Message = fmt.Sprintf(format, args...)
	return missingMoment{err}
}

// diffError converts a refusal of the gitstore.
func diffError(err error, of moments) error {
	var refusal *gitstoreapi.Refusal
	if !errors.As(err, &refusal) {
		return unavailable("the gitstore cannot be reached; try again")
	}
	switch refusal.Reason {
	case gitstoreapi.NotFound:
		return noMoment("%s cannot be compared with %s: the gitstore does not have both, in one repository; their conditions Durable say more", of.from, of.to)
	case gitstoreapi.Moved:
		return apierrors.NewResourceExpired(refusal.Message)
	case gitstoreapi.BadRequest:
		return badRequest("%s", refusal.Message)
	case gitstoreapi.Damaged:
		err := apierrors.NewInternalError(errors.New(refusal.Message))
		err.ErrStatus.Message = fmt.Sprintf("%s cannot be compared with %s: %s", of.from, of.to, refusal.Message)
		return err
	}
	return unavailable(refusal.Message)
}

// diffOf converts a page.
func diffOf(found gitstoreapi.Diff, of moments) (historyv1alpha1.Diff, error) {
	answer := historyv1alpha1.Diff{
		TypeMeta: typeMeta("Diff"), From: pointOf(of.from, found.FromCommit), To: pointOf(of.to, found.ToCommit),
		Totals: historyv1alpha1.DiffTotals(found.Totals), Items: make([]historyv1alpha1.FileDiff, 0, len(found.Files)),
		Conversation: conversationDiff(of.from, of.to),
	}
	for _, f := range found.Files {
		answer.Items = append(answer.Items, fileDiffOf(f))
	}
	if found.Next == 0 {
		return answer, nil
	}
	remaining := found.Totals.Files - int64(found.Next)
	answer.RemainingItemCount = &remaining
	// The moments are named by their numbers: the latest may be another one by then.
	var err error
	answer.Continue, err = cursor{
		Kind: kindDiff, UID: of.task.UID, After: int64(found.Next), FromMoment: of.from.name(of.task), ToMoment: of.to.name(of.task),
		From: found.FromCommit, To: found.ToCommit,
	}.encode()
	return answer, err
}

// name returns the moment as a parameter of a request about a task.
func (m moment) name(about history.Task) string {
	name := momentBase
	if m.checkpoint != nil {
		name = strconv.FormatInt(m.checkpoint.Number, 10)
	}
	if m.task.UID != about.UID {
		name = m.task.Name + ":" + name
	}
	return name
}

func pointOf(m moment, commit string) historyv1alpha1.DiffPoint {
	p := historyv1alpha1.DiffPoint{Task: m.task.Name, TaskUID: m.task.UID, Kind: "Base", Commit: commit}
	if c := m.checkpoint; c != nil {
		taken := metav1.NewMicroTime(c.Time)
		p.Kind, p.Checkpoint, p.Time, p.Position = "Checkpoint", c.Number, &taken, c.Position.Position
	}
	return p
}

// conversationDiff returns what was said and used between two moments of one task; nil for
// two tasks.
func conversationDiff(from, to moment) *historyv1alpha1.ConversationDiff {
	if from.task.UID != to.task.UID {
		return nil
	}
	return &historyv1alpha1.ConversationDiff{
		FromPosition: from.totals.Messages, ToPosition: to.totals.Messages,
		Messages:     to.totals.Messages - from.totals.Messages,
		ToolCalls:    to.totals.ToolCalls - from.totals.ToolCalls,
		InputTokens:  to.totals.InputTokens - from.totals.InputTokens,
		OutputTokens: to.totals.OutputTokens - from.totals.OutputTokens,
		CostMicroUSD: to.totals.CostMicroUSD - from.totals.CostMicroUSD,
	}
}

func fileDiffOf(f gitstoreapi.DiffFile) historyv1alpha1.FileDiff {
	file := historyv1alpha1.FileDiff{
		Path: f.Path, OldPath: f.OldPath, Action: string(f.Action), OldMode: f.OldMode, NewMode: f.NewMode,
		OldBytes: f.OldBytes, NewBytes: f.NewBytes, Binary: f.Binary, LinesAdded: f.LinesAdded, LinesRemoved: f.LinesRemoved, CutBytes: f.Cut,
	}
	if utf8.Valid(f.Patch) {
		file.Patch = string(f.Patch)
	} else {
		file.PatchBytes = f.Patch
	}
	for _, h := range f.Hunks {
		file.Hunks = append(file.Hunks, historyv1alpha1.Hunk(h))
	}
	return file
}
