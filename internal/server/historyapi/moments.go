package historyapi

import (
	"cmp"
	"errors"
	"fmt"
	"strconv"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	historyv1alpha1 "github.com/clew-dev/clew/api/history/v1alpha1"
	"github.com/clew-dev/clew/internal/gitstoreapi"
	"github.com/clew-dev/clew/internal/history"
)

// moment is a resolved moment of a task.
type moment struct {
	task history.Task
	// checkpoint is nil for the task's base. With parent set, the moment is the commit that
	// the checkpoint was made on.
	checkpoint *history.Checkpoint
	parent     bool
	// live is set for the present of a running task.
	live *present
	// drifted is set for the drifted files of a task: the checkpoint that they were left at.
	// With checkpoint set, the conversation is where that one has it.
	drifted int64
	// commit is the one that was recorded; empty if none was.
	commit string
}

// present is where the conversation of a running task is.
type present struct {
	branch string
	totals history.Totals
}

// moments are both moments of a request about a task. They may be of other tasks.
type moments struct {
	task     history.Task
	from, to moment
	// base is the commit that the task started from; empty if it began with nothing.
	base string
	// shared is the last position that both have in common, if they are on different branches
	// or of different tasks; nil if they are not, or if it was not looked for.
	shared *int64
}

func (m moment) kind() string {
	switch {
	case m.live != nil:
		return historyv1alpha1.MomentLive
	case m.drifted != 0:
		return historyv1alpha1.MomentDrift
	case m.checkpoint == nil:
		return historyv1alpha1.MomentBase
	case m.parent:
		return historyv1alpha1.MomentCommit
	}
	return historyv1alpha1.MomentCheckpoint
}

// point returns the gitstore's name of a moment, as seen from the given task.
func (m moment) point(about history.Task) string {
	point := gitstoreapi.PointBase
	switch {
	case m.live != nil, m.drifted != 0:
		point = gitstoreapi.PointLive
	case m.kind() == historyv1alpha1.MomentCheckpoint:
		point = gitstoreapi.PointCheckpoint + strconv.FormatInt(m.checkpoint.Number, 10)
	case m.commit != "":
		point = gitstoreapi.PointCommit + m.commit
	}
	if m.task.UID != about.UID {
		return gitstoreapi.PointOf(m.task.UID, point)
	}
	return point
}

// word returns a moment as a parameter of a request about a task.
func (m moment) word(about history.Task) string {
	word := historyv1alpha1.WordBase
	switch m.kind() {
	case historyv1alpha1.MomentLive:
		word = historyv1alpha1.WordLive
	case historyv1alpha1.MomentDrift:
		word = historyv1alpha1.WordDrift
	case historyv1alpha1.MomentCommit:
		word = parentPrefix + strconv.FormatInt(m.checkpoint.Number, 10)
	case historyv1alpha1.MomentCheckpoint:
		word = strconv.FormatInt(m.checkpoint.Number, 10)
	}
	if m.task.UID != about.UID {
		word = m.task.Name + ":" + word
	}
	return word
}

// momentAt returns the moment of a checkpoint.
func momentAt(task history.Task, c *history.Checkpoint) moment {
	return moment{task: task, checkpoint: c, commit: c.Commit}
}

// parentPrefix precedes, in continue tokens, the number of a checkpoint whose parent is meant.
const parentPrefix = "^"

// String names the moment in messages.
func (m moment) String() string {
	switch m.kind() {
	case historyv1alpha1.MomentLive:
		return "the present files of task " + m.task.Name
	case historyv1alpha1.MomentDrift:
		return "the drifted files of task " + m.task.Name
	case historyv1alpha1.MomentBase:
		return "the base of task " + m.task.Name
	case historyv1alpha1.MomentCommit:
		return fmt.Sprintf("the state before checkpoint %d of task %s", m.checkpoint.Number, m.task.Name)
	}
	return fmt.Sprintf("checkpoint %d of task %s", m.checkpoint.Number, m.task.Name)
}

func (m moment) branch() string {
	if m.live != nil {
		return m.live.branch
	}
	if m.checkpoint == nil {
		return ""
	}
	return m.checkpoint.Position.Branch
}

// place is where in the conversation the moment is.
func (m moment) place() place {
	return place{m.task, history.Position{Branch: m.branch(), Position: m.totals().Messages}}
}

func (m moment) totals() history.Totals {
	if m.live != nil {
		return m.live.totals
	}
	if m.checkpoint == nil {
		return history.Totals{}
	}
	return m.checkpoint.Totals
}

// moments resolves both moments of a request.
func (a *api) moments(c *call, q diffParameters) (of moments, err error) {
	found, err := a.find(c.Context(), c.access.Namespace, c.access.Name, q.uid)
	if err != nil {
		return of, err
	}
	of.task = found.Task
	base, err := a.base(c, of.task)
	if err != nil {
		return of, err
	}
	of.base = base.commit
	if of.to, err = a.moment(c, found, q.at.To); err != nil {
		return of, err
	}
	switch {
	case q.at.From != historyv1alpha1.WordPrevious:
		of.from, err = a.moment(c, found, q.at.From)
	case of.to.live != nil:
		of.from, err = a.latest(c, of.to.task)
	case of.to.drifted != 0:
		of.from, err = a.moment(c, history.TaskSummary{Task: of.to.task}, strconv.FormatInt(of.to.drifted, 10))
	case of.to.checkpoint == nil:
		err = badRequest("there is nothing before %s", of.to)
	default:
		of.from, err = a.before(c, of.to)
	}
	return of, err
}

// moment resolves a moment: base, latest (the newest checkpoint that the gitstore has), live,
// drift, or the number of a checkpoint; of another task, after its name and a colon.
func (a *api) moment(c *call, found history.TaskSummary, text string) (moment, error) {
	task := found.Task
	if name, rest, other := strings.Cut(text, ":"); other {
		if strings.Contains(rest, ":") {
			return moment{}, noSuchWord(text)
		}
		other, err := a.otherTask(c, name)
		if err != nil {
			return moment{}, err
		}
		return a.moment(c, other, cmp.Or(rest, historyv1alpha1.WordLatest))
	}
	switch text {
	case historyv1alpha1.WordBase:
		return a.base(c, task)
	case historyv1alpha1.WordLatest:
		return a.latest(c, task)
	case historyv1alpha1.WordLive:
		return a.live(c, found)
	case historyv1alpha1.WordDrift:
		return a.drift(c, task)
	}
	number, parent := strings.CutPrefix(text, parentPrefix)
	n, err := strconv.ParseInt(number, 10, 32)
	if err != nil || n < 1 {
		return moment{}, noSuchWord(text)
	}
	point, err := a.Archive.Checkpoint(c.Context(), task.Key(), n)
	switch {
	case errors.Is(err, history.ErrNotFound):
		return moment{}, a.noCheckpoint(c, task, n)
	case err != nil:
		return moment{}, err
	case parent:
		return moment{task: task, checkpoint: &point, parent: true, commit: point.Parent}, nil
	}
	m := momentAt(task, &point)
	return m, stored(c.access, m)
}

func noSuchWord(text string) error {
	return badRequest("%q is no moment of a task: name the number of a checkpoint, base, latest, live or drift, or another task and one of these, such as other-task:3; only FROM may be previous", text)
}

// stored returns why the gitstore does not have a checkpoint; nil if it has.
func stored(access Access, m moment) error {
	switch c := m.checkpoint; {
	case c.Durable:
		return nil
	case c.Lost:
		return noMoment(access, "%s is lost: %s", m, c.Refused)
	case c.Refused != "":
		return noMoment(access, "%s is only on the task's volume, since the gitstore refuses it: %s", m, c.Refused)
	}
	return unavailable(fmt.Sprintf("%s is being pushed to the gitstore; try again", m))
}

// base returns what a task started from, as its checkpoints say.
func (a *api) base(c *call, task history.Task) (moment, error) {
	found, err := a.Archive.CheckpointsBefore(c.Context(), task.Key(), 0, 1)
	if err != nil {
		return moment{}, err
	}
	if len(found) == 0 {
		return moment{}, noMoment(c.access, "task %s has no checkpoint yet", task.Name)
	}
	return moment{task: task, commit: found[0].Base}, nil
}

// maxNotStored is how many newest checkpoints may be missing from the gitstore.
const maxNotStored = 50

// latest returns the newest checkpoint that the gitstore has.
func (a *api) latest(c *call, task history.Task) (moment, error) {
	found, err := a.Archive.CheckpointsBefore(c.Context(), task.Key(), 0, maxNotStored)
	if err != nil {
		return moment{}, err
	}
	if len(found) == 0 {
		return moment{}, noMoment(c.access, "task %s has no checkpoint yet", task.Name)
	}
	for i := range found {
		if found[i].Durable {
			return momentAt(task, &found[i]), nil
		}
	}
	return moment{}, stored(c.access, momentAt(task, &found[0]))
}

// before returns what a checkpoint was made on: the checkpoint before it, usually; after a
// rewind, its target; for the first one of a fork, that of the source.
func (a *api) before(c *call, m moment) (moment, error) {
	if m.checkpoint.Parent == m.checkpoint.Base {
		return moment{task: m.task, commit: m.checkpoint.Base}, nil
	}
	found, err := a.Archive.CheckpointsBefore(c.Context(), m.task.Key(), m.checkpoint.Number, 1)
	if err == nil && len(found) == 1 && found[0].Commit == m.checkpoint.Parent && found[0].Durable {
		return momentAt(m.task, &found[0]), nil
	}
	return moment{task: m.task, checkpoint: m.checkpoint, parent: true, commit: m.checkpoint.Parent}, err
}

// otherTask finds another task whose code the caller may compare as well.
func (a *api) otherTask(c *call, name string) (history.TaskSummary, error) {
	access := c.access
	access.Name = name
	allowed, reason, err := a.Authorizer.Authorize(c.Context(), c.caller, access)
	if err != nil {
		return history.TaskSummary{}, fmt.Errorf("%w: check the permissions of %s: %w", errAuthorizer, c.caller.GetName(), err)
	}
	if !allowed {
		return history.TaskSummary{}, forbidden(c.caller, access, reason)
	}
	found, err := a.find(c.Context(), access.Namespace, name, "")
	if errors.Is(err, history.ErrNotFound) {
		return history.TaskSummary{}, noMoment(access, "there is no task %q in the history of namespace %s", name, access.Namespace)
	}
	return found, err
}

// noCheckpoint is the answer if a task has no checkpoint of a number: it says which it has.
func (a *api) noCheckpoint(c *call, task history.Task, number int64) error {
	newest, err := a.Archive.CheckpointsBefore(c.Context(), task.Key(), 0, 1)
	switch {
	case err != nil:
		return err
	case len(newest) == 0:
		return noMoment(c.access, "task %s has no checkpoint %d: it has none yet; take one with `kubectl clew checkpoint create %[1]s -n %[3]s`", task.Name, number, task.Namespace)
	}
	return noMoment(c.access, "task %s has no checkpoint %d: its newest is %d; list them with `kubectl clew checkpoint list %[1]s -n %[4]s`", task.Name, number, newest[0].Number, task.Namespace)
}

// noMoment is the answer that a task has no such moment.
func noMoment(access Access, format string, args ...any) error {
	err := apierrors.NewNotFound(resourceOf(access), access.Name)
	err.ErrStatus.Message = fmt.Sprintf(format, args...)
	return err
}
