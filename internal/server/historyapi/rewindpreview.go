package historyapi

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	historyv1alpha1 "github.com/clew-dev/clew/api/history/v1alpha1"
	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/daemonapi"
	"github.com/clew-dev/clew/internal/gitstoreapi"
	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/plan"
	"github.com/clew-dev/clew/internal/rewindtarget"
)

// Objects reads Tasks and Checkpoints in the cluster, without a cache. Each is nil if there is
// none of that name.
type Objects interface {
	Task(ctx context.Context, namespace, name string) (*v1alpha1.Task, error)
	CheckpointObject(ctx context.Context, namespace, name string) (*v1alpha1.Checkpoint, error)
}

// rewindPreview returns what a rewind of a task would do. Parameters: those of spec.rewind,
// see rewindOf; undoLast, for the undo of the newest rewind; and limit, the number of files.
func (a *api) rewindPreview(w http.ResponseWriter, c *call) error {
	q, err := rewindOf(c.URL.Query())
	if err != nil {
		return err
	}
	if err := a.mayReadConversation(c); err != nil {
		return err
	}
	p := &preview{api: a, call: c, limit: q.limit}
	if err := a.inReadSlot(c, func() error { return p.decide(q) }); err != nil {
		return err
	}
	answer := p.answer()
	err = a.inReadSlot(c, func() (err error) {
		if answer.Conversation, err = p.conversation(); err == nil {
			answer.Stops, err = p.stops()
		}
		return err
	})
	if err != nil {
		return err
	}
	of, err := p.compared()
	if err != nil {
		return err
	}
	return a.withAnswerSlot(func(w http.ResponseWriter, _ *call) error {
		if answer.Files, err = p.files(of); err != nil {
			return err
		}
		if f := answer.Files; f != nil {
			if left := f.Totals.Files - int64(len(f.Items)); left > 0 {
				answer.RemainingItemCount = &left
			}
		}
		writeJSON(w, http.StatusOK, answer)
		return nil
	})(w, c)
}

// mayReadConversation checks the permission that a preview needs beside that for differences.
func (a *api) mayReadConversation(c *call) error {
	access := c.access
	access.Subresource = "conversation"
	allowed, reason, err := a.Authorizer.Authorize(c.Context(), c.caller, access)
	switch {
	case err != nil:
		return fmt.Errorf("%w: check the permissions of %s: %w", errAuthorizer, c.caller.GetName(), err)
	case !allowed:
		return forbidden(c.caller, access, reason)
	}
	return nil
}

// preview is a preview in the making.
type preview struct {
	*api
	*call
	limit int
	// observed is what the manager would decide on, and decided what it would decide.
	observed plan.Observed
	decided  plan.RewindPreview
}

// decide finds out what the manager would make of the rewind.
func (p *preview) decide(q rewindParameters) error {
	ctx, access := p.Context(), p.access
	task, err := p.Objects.Task(ctx, access.Namespace, access.Name)
	if err != nil {
		return err
	}
	if task == nil {
		return noMoment(access, "there is no Task %q in this namespace: only a task that exists can be rewound; fork a moment of it instead", access.Name)
	}
	task.Spec.Rewind = &q.rewind
	p.observed = plan.Observed{Task: task, Limits: plan.DefaultLimits()}
	state, err := p.Archive.TaskState(ctx, string(task.UID))
	if err != nil && !errors.Is(err, history.ErrNotFound) {
		return err
	}
	p.observed.History = plan.History{Known: true, State: state}
	if q.last {
		if q.rewind.To.UndoOf, err = p.lastRewind(task); err != nil {
			return err
		}
	}
	if err := p.observeTarget(&q.rewind); err != nil {
		return err
	}
	p.decided = plan.PreviewRewind(p.observed, p.now())
	switch d := p.decided; {
	case d.Refusal != nil:
		return refusedRewind(d.Refusal)
	case d.Waits != nil:
		return unavailable(d.Waits.Message)
	}
	return nil
}

// lastRewind returns the id of the newest rewind that was carried out, one that a resume began
// with among them. The status has it before the history does.
func (p *preview) lastRewind(task *v1alpha1.Task) (string, error) {
	if id := daemonapi.LastRewind(&task.Status); id != "" {
		return id, nil
	}
	last, err := p.Archive.Rewind(p.Context(), history.Key{Namespace: task.Namespace, UID: string(task.UID)}, "")
	if errors.Is(err, history.ErrNotFound) {
		return "", refusedRewind(&plan.Blocker{Reason: v1alpha1.ReasonInvalidOperation, Message: "there is nothing to undo: no rewind of task " + task.Name + " was carried out"})
	}
	return last.ID, err
}

// observeTarget reads what is known of the rewind's target.
func (p *preview) observeTarget(r *v1alpha1.Rewind) (err error) {
	if to := r.To.CheckpointRef; to != nil {
		p.observed.RewindTarget, err = p.Objects.CheckpointObject(p.Context(), p.access.Namespace, to.Name)
		return err
	}
	return rewindtarget.Observe(p.Context(), p.Archive, r, &p.observed)
}

// refusedRewind is the answer that a rewind would be refused, with the sentence that the
// Task's status would have.
func refusedRewind(b *plan.Blocker) error {
	err := apierrors.NewBadRequest(b.Message)
	err.ErrStatus.Details = &metav1.StatusDetails{Causes: []metav1.StatusCause{{Type: metav1.CauseType(b.Reason), Message: b.Message, Field: "spec.rewind"}}}
	return err
}

// answer returns what the decision says.
func (p *preview) answer() historyv1alpha1.RewindPreview {
	task, s, op := p.observed.Task, p.decided.Accepted, p.decided.Operation
	answer := historyv1alpha1.RewindPreview{
		TypeMeta: typeMeta("RewindPreview"), Task: task.Name, TaskUID: string(task.UID),
		Scope: string(op.Scope), Paths: s.Paths, UndoOf: s.UndoOf,
		To:    historyv1alpha1.RewindPoint{Checkpoint: s.ToCheckpoint, Commit: s.ToCommit, Message: s.Message},
		Keeps: historyv1alpha1.KeptState{Preserve: string(op.Preserve), Branch: op.Branch},
	}
	if f := p.decided.Fails; f != nil {
		answer.Fails = &historyv1alpha1.ExpectedFailure{Reason: f.Reason, Message: f.Message}
	}
	if op.Scope == v1alpha1.RewindConversation {
		answer.Keeps = historyv1alpha1.KeptState{Preserve: string(v1alpha1.PreserveDiscard)}
	}
	return answer
}

// files compares the present with what the rewind leads to; nil if it leaves the files alone.
func (p *preview) files(of *moments) (*historyv1alpha1.RewoundFiles, error) {
	if of == nil {
		return nil, nil
	}
	task, op := of.task, p.decided.Operation
	q := gitstoreapi.DiffQuery{From: of.from.point(task), To: of.to.point(task), FromCommit: of.from.commit, ToCommit: of.to.commit,
		Restored: true, Limit: p.limit}
	if op.Files != nil {
		q.Paths = op.Files.Paths
	}
	found, err := p.Code.Diff(p.Context(), task.Namespace, task.UID, q)
	if err != nil {
		return nil, p.filesError(err, *of)
	}
	files := &historyv1alpha1.RewoundFiles{From: momentOf(of.from, found.FromCommit), Totals: historyv1alpha1.DiffTotals(found.Totals),
		UnmatchedPaths: found.Unmatched, BlockedPaths: found.Blocked, Items: make([]historyv1alpha1.FileDiff, 0, len(found.Files))}
	for _, f := range found.Files {
		files.Items = append(files.Items, fileDiffOf(f))
	}
	return files, nil
}

// compared returns the moments whose files the rewind changes and restores; nil if it changes
// none. It brings those of a running agent to the gitstore.
func (p *preview) compared() (*moments, error) {
	if p.decided.Operation.Scope == v1alpha1.RewindConversation {
		return nil, nil
	}
	task := p.taskOf()
	of := &moments{task: task}
	err := p.inReadSlot(p.call, func() (err error) {
		if of.from, err = p.present(task); err == nil {
			of.to, err = p.target(task)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return of, p.publish(p.call, &of.from)
}

// filesError converts an error of the gitstore. That the task does not know a commit is said
// as prepare would say it.
func (p *preview) filesError(err error, of moments) error {
	var refusal *gitstoreapi.Refusal
	if commit := p.observed.Task.Spec.Rewind.To.Commit; commit != "" && errors.As(err, &refusal) &&
		(refusal.Reason == gitstoreapi.NotFound || refusal.Reason == gitstoreapi.BadRequest) {
		return refusedRewind(&plan.Blocker{Reason: v1alpha1.ReasonCommitNotFound, Message: daemonapi.UnknownCommit(commit)})
	}
	return p.diffError(p.call, err, of)
}

// taskOf returns the task as the history names it.
func (p *preview) taskOf() history.Task {
	task := p.observed.Task
	return history.Task{Namespace: task.Namespace, Name: task.Name, UID: string(task.UID)}
}

// present returns the moment from which the rewind starts: of drift that is kept first, the files
// as they were found.
func (p *preview) present(task history.Task) (moment, error) {
	if drift := undecidedDrift(p.observed.Task); drift != nil && p.observed.Task.Spec.Rewind.OnDrift == v1alpha1.OnDriftPreserve {
		return moment{task: task, drifted: drift.Checkpoint, commit: drift.Commit}, nil
	}
	if c := meta.FindStatusCondition(p.observed.Task.Status.Conditions, v1alpha1.TaskSucceeded); c != nil && (c.Reason == v1alpha1.ReasonRunning ||
		c.Reason == v1alpha1.ReasonWaitingForApproval && plan.FamilyViewOf(p.observed.Task).Working) {
		state := p.observed.History.State
		return moment{task: task, live: &present{branch: state.Position.Branch, totals: state.Totals}}, nil
	}
	return p.latest(p.call, task)
}

// target returns the moment whose files the rewind restores.
func (p *preview) target(task history.Task) (moment, error) {
	s := p.decided.Accepted
	if s.ToCheckpoint == 0 {
		return moment{task: task, commit: s.ToCommit}, nil
	}
	c, err := p.checkpoint()
	if err != nil {
		return moment{}, err
	}
	m := momentAt(task, c)
	return m, stored(p.access, m)
}

// checkpoint returns the record of the checkpoint to which the rewind leads.
func (p *preview) checkpoint() (*history.Checkpoint, error) {
	number := p.decided.Accepted.ToCheckpoint
	if c := p.observed.RewindRecord.Found; c != nil && c.Number == number {
		return c, nil
	}
	c, err := p.Archive.Checkpoint(p.Context(), p.taskOf().Key(), number)
	if errors.Is(err, history.ErrNotFound) {
		return nil, unavailable("checkpoint " + strconv.FormatInt(number, 10) + " is not in the history store yet; try again")
	}
	return &c, err
}

// stops returns the work that the rewind would stop.
func (p *preview) stops() (*historyv1alpha1.StoppedWork, error) {
	if !p.decided.Stops {
		return nil, nil
	}
	attempts := p.observed.Task.Status.Attempts
	work := &historyv1alpha1.StoppedWork{Attempt: attempts[len(attempts)-1].Number}
	open := map[string]bool{}
	for _, id := range p.observed.History.State.OpenToolCalls {
		open[id] = true
	}
	if len(open) == 0 {
		return work, nil
	}
	page, err := p.entries(history.ConversationQuery{Last: recentMessages, Limit: recentMessages})
	if err != nil {
		return nil, err
	}
	for _, e := range page {
		if c := entryOf(e).ToolCall; c != nil && open[c.ID] && len(work.ToolCalls) < maxStoppedCalls {
			work.ToolCalls = append(work.ToolCalls, *c)
		}
	}
	return work, nil
}

// The last messages among which tool calls without a result are looked for, and how many of
// them are given.
const recentMessages, maxStoppedCalls = 50, 10

// entries reads messages of the task.
func (p *preview) entries(q history.ConversationQuery) ([]history.Entry, error) {
	q.Namespace, q.Name, q.UID = p.access.Namespace, p.access.Name, string(p.observed.Task.UID)
	q.Limit = cmp.Or(q.Limit, 1)
	page, err := p.Store.TaskConversation(p.Context(), q)
	return page.Entries, err
}
