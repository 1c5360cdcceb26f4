package historyapi

import (
	"cmp"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"unicode/utf8"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	historyv1alpha1 "github.com/clew-dev/clew/api/history/v1alpha1"
	"github.com/clew-dev/clew/internal/gitstoreapi"
)

// subresourceDiff is what a caller must be allowed to get of tasks.
const subresourceDiff = "diff"

// diff returns a page of the difference between two moments of a task. Parameters: from (base,
// by default) and to (latest), see moment; path (several), ignored (include ignored files),
// format (hunks, patch or none), limit, uid, and continue, which stands for all of them but
// format and limit.
func (a *api) diff(w http.ResponseWriter, c *call) error {
	q, err := diffQueryOf(c.URL.Query())
	if err != nil {
		return err
	}
	var of moments
	err = a.inReadSlot(c, func() error {
		if of, err = a.moments(c, q); err != nil || q.after > 0 {
			return err
		}
		return a.findShared(c.Context(), &of)
	})
	if err != nil {
		return err
	}
	if q.at.Commits == [2]string{} { // later pages compare the same files
		if err := a.publish(c, &of.from, &of.to); err != nil {
			return err
		}
	}
	return a.withAnswerSlot(func(w http.ResponseWriter, c *call) error { return a.compare(w, c, q, of) })(w, c)
}

// compare answers a request for a page of the difference between two moments.
func (a *api) compare(w http.ResponseWriter, c *call, q diffParameters, of moments) error {
	from, to := of.from.point(of.task), of.to.point(of.task)
	found, err := a.Code.Diff(c.Context(), c.access.Namespace, of.task.UID, gitstoreapi.DiffQuery{
		From: from, To: to, FromCommit: cmp.Or(q.at.Commits[0], of.from.commit), ToCommit: cmp.Or(q.at.Commits[1], of.to.commit),
		Base: of.base, Paths: q.at.Paths, Ignored: q.at.Ignored, After: q.after, Listing: q.at.Listing, Limit: q.limit, Format: q.format,
	})
	if err != nil {
		return a.diffError(c, err, of)
	}
	answer, err := diffOf(found, of, q)
	if err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, answer)
	return nil
}

// diffParameters are the checked parameters of a request.
type diffParameters struct {
	uid string
	// at is what the pages have in common; after is the number of files on those before.
	at     diffCursor
	after  int
	format gitstoreapi.DiffFormat
	limit  int
}

func diffQueryOf(values url.Values) (q diffParameters, err error) {
	if q.limit, err = numberOf(values, "limit", gitstoreapi.DefaultDiffFiles); err != nil {
		return q, err
	}
	q.limit = min(q.limit, gitstoreapi.MaxDiffFiles)
	switch format := gitstoreapi.DiffFormat(cmp.Or(values.Get("format"), string(gitstoreapi.DiffHunks))); format {
	case gitstoreapi.DiffHunks, gitstoreapi.DiffPatch:
		q.format = format
	case "none":
	default:
		return q, badRequest("there is no format %q; the formats are hunks, patch and none", format)
	}
	if token := values.Get("continue"); token != "" {
		from, err := decodeCursor(token, kindDiff)
		if err != nil {
			return q, err
		}
		q.uid, q.after, q.at = from.UID, int(from.After), *from.Diff
		return q, nil
	}
	q.uid = values.Get("uid")
	q.at = diffCursor{
		From: cmp.Or(values.Get("from"), historyv1alpha1.WordBase), To: cmp.Or(values.Get("to"), historyv1alpha1.WordLatest), Paths: values["path"],
	}
	q.at.Ignored, err = flagOf(values, "ignored")
	return q, err
}

// diffError converts an error of the gitstore.
func (a *api) diffError(c *call, err error, of moments) error {
	var refusal *gitstoreapi.Refusal
	if !errors.As(err, &refusal) {
		a.Log.Error(err, "the gitstore cannot be asked for a difference", "namespace", c.access.Namespace, "task", of.task.Name)
		return unavailable("the gitstore cannot be reached; try again")
	}
	switch refusal.Reason {
	case gitstoreapi.NotFound:
		return noMoment(c.access, "%s cannot be compared with %s: the gitstore does not have both in one repository", of.from, of.to)
	case gitstoreapi.Moved:
		return apierrors.NewResourceExpired(refusal.Message)
	case gitstoreapi.BadRequest:
		return badRequest("%s", refusal.Message)
	case gitstoreapi.Damaged:
		return a.damagedMoments(c, of)
	case gitstoreapi.Ambiguous, gitstoreapi.Forbidden: // Forbidden is what older gitstores say
		status := apierrors.NewInternalError(err)
		status.ErrStatus.Message = fmt.Sprintf("%s cannot be compared with %s: %s", of.from, of.to, refusal.Message)
		return status
	}
	return unavailable(refusal.Message)
}

// diffOf converts a page.
func diffOf(found gitstoreapi.Diff, of moments, q diffParameters) (historyv1alpha1.Diff, error) {
	answer := historyv1alpha1.Diff{
		TypeMeta: typeMeta("Diff"), From: momentOf(of.from, found.FromCommit), To: momentOf(of.to, found.ToCommit),
		Totals: historyv1alpha1.DiffTotals(found.Totals), Items: make([]historyv1alpha1.FileDiff, 0, len(found.Files)),
		Conversation: conversationDiff(of),
	}
	for _, f := range found.Files {
		answer.Items = append(answer.Items, fileDiffOf(f))
	}
	if found.Next == 0 {
		return answer, nil
	}
	remaining := found.Totals.Files - int64(found.Next)
	answer.RemainingItemCount = &remaining
	at := q.at
	// The latest and the previous checkpoint may be others by then.
	at.From, at.To, at.Listing = of.from.word(of.task), of.to.word(of.task), found.Listing
	at.Commits = [2]string{found.FromCommit, found.ToCommit}
	var err error
	answer.Continue, err = cursor{Kind: kindDiff, UID: of.task.UID, After: int64(found.Next), Diff: &at}.encode()
	return answer, err
}

func momentOf(m moment, commit string) historyv1alpha1.DiffMoment {
	answer := historyv1alpha1.DiffMoment{Task: m.task.Name, TaskUID: m.task.UID, Type: m.kind(), Commit: commit}
	if m.live != nil {
		now := metav1.NowMicro()
		answer.Time, answer.Branch, answer.Position = &now, m.live.branch, m.live.totals.Messages
	}
	if c := m.checkpoint; c != nil {
		taken := metav1.NewMicroTime(c.Time)
		answer.Checkpoint, answer.Time, answer.Branch, answer.Position = c.Number, &taken, c.Position.Branch, c.Position.Position
	}
	return answer
}

// conversationDiff returns what was said and used between two moments; nil if it is not known
// where in a conversation they are.
func conversationDiff(of moments) *historyv1alpha1.ConversationDiff {
	if !of.positionsKnown() || !of.oneBranch() && of.shared == nil {
		return nil
	}
	before, after := of.from.totals(), of.to.totals()
	shared := min(before.Messages, after.Messages)
	if of.shared != nil {
		shared = *of.shared
	}
	return &historyv1alpha1.ConversationDiff{
		FromPosition: before.Messages, ToPosition: after.Messages, SharedPosition: shared,
		Messages:     after.Messages - before.Messages,
		ToolCalls:    after.ToolCalls - before.ToolCalls,
		InputTokens:  after.InputTokens - before.InputTokens,
		OutputTokens: after.OutputTokens - before.OutputTokens,
		CostMicroUSD: after.CostMicroUSD - before.CostMicroUSD,
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
