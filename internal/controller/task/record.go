package task

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	logf "sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/clip"
	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/keptspec"
	"github.com/clew-dev/clew/internal/plan"
)

// maxNote is the length of an Event's note, in bytes.
const maxNote = 1000

// record copies the entries of status.history that the history store may lack to it. Their
// ids are deterministic, so that it may be repeated.
func (r *Reconciler) record(ctx context.Context, task *v1alpha1.Task, m *known) {
	if task.Status.HistorySequence < m.recorded {
		// The status was restored from an older copy, and assigns the numbers again. (Or the
		// cache lags behind: then some entries are recorded once more, without effect.)
		m.recorded = task.Status.RecordedSequence
	}
	if m.recordProblem != "" {
		// The store that comes back after an outage may be an older copy.
		if err := r.restore(ctx, task, m); err != nil {
			logf.FromContext(ctx).V(1).Info("could not compare transitions", "error", err.Error())
			return
		}
		m.keptGeneration = 0
	}
	entries := plan.Unrecorded(&task.Status, m.recorded)
	// Before the transitions: a task whose deletion is recorded has its spec kept.
	if err := r.keepSpec(ctx, task, m); err != nil {
		logf.FromContext(ctx).V(1).Info("could not keep the spec", "error", err.Error())
		if len(entries) > 0 {
			r.recordFailed(m)
		}
		return
	}
	if len(entries) == 0 {
		m.recorded = max(m.recorded, task.Status.RecordedSequence)
		return
	}
	if err := r.recordEntries(ctx, task, entries, m); err != nil {
		logf.FromContext(ctx).V(1).Info("could not record transitions", "error", err.Error())
	}
}

// keepSpec keeps the spec of the task with its history, and where it started, unless this process has
// kept them and the store cannot be an older copy. A task that has never been started has no work to
// fork, and Tasks that are only created and deleted must not fill the store.
func (r *Reconciler) keepSpec(ctx context.Context, task *v1alpha1.Task, m *known) error {
	copies := r.memory.copies.Load()
	member := membershipOf(task)
	if m.keptGeneration == task.Generation && m.keptIn == copies && m.keptMembership == member || len(task.Status.Attempts) == 0 {
		return nil
	}
	// The cache has only a part of the spec.
	task, err := read[v1alpha1.Task](ctx, r.Live, task.Namespace, task.Name)
	if err != nil || task == nil || task.UID != m.uid {
		return err
	}
	kept, err := keptspec.Of(&task.Spec)
	if err != nil {
		return err
	}
	member = membershipOf(task)
	kept.Membership = member
	kept.OperatingMode = string(cmp.Or(task.Spec.OperatingMode, v1alpha1.OperatingModeRunning))
	if source := task.Status.Source; source != nil {
		kept.Start = history.Start{TaskUID: source.TaskUID, Checkpoint: source.Checkpoint, Commit: source.Commit, Position: source.Position}
		if fork := plan.ForkOf(task); fork != nil {
			kept.Start.Fork, kept.Start.From = fork.Name, fork.From
		}
	}
	if err := r.Store.KeepSpec(ctx, history.Key{Namespace: task.Namespace, UID: string(task.UID)}, kept); err != nil {
		return err
	}
	m.keptGeneration, m.keptIn, m.keptMembership = task.Generation, copies, member
	return nil
}

// membershipOf returns the task's place in its contract and below its parent, for the history.
func membershipOf(task *v1alpha1.Task) history.Membership {
	member := history.Membership{Contract: plan.ContractName(task), Role: string(task.Spec.Role)}
	if c := task.Status.Contract; c != nil {
		member.Phase = c.Phase
	}
	if p := task.Status.Parent; p != nil {
		member.ParentUID = p.UID
	}
	return member
}

// recordFailed remembers that the history store could not record transitions.
func (r *Reconciler) recordFailed(m *known) {
	// The error may differ from try to try; the condition must not change with it.
	m.recordProblem = "the history store cannot be reached: transitions are kept in status.history until it can"
	r.Metrics.recordFailed()
}

// compareEvery is the minimum interval between two checks that the history store still has
// the recorded transitions.
const compareEvery = time.Minute

// recordLost checks from time to time whether the history store has lost transitions, and
// records them again.
func (r *Reconciler) recordLost(ctx context.Context, task *v1alpha1.Task, m *known) {
	now := r.Clock.Now()
	if now.Sub(m.lastCompared) < compareEvery {
		return
	}
	if r.restore(ctx, task, m) == nil { // otherwise the next check tries again
		m.lastCompared = now
	}
}

// restore records again what status.history still has of the transitions that the history
// store has lost because it was restored from an older copy.
func (r *Reconciler) restore(ctx context.Context, task *v1alpha1.Task, m *known) error {
	has, err := r.Store.RecordedTransitions(ctx, task.Namespace, string(task.UID))
	if err != nil {
		return err
	}
	m.historyDeleted = has == math.MaxInt64
	before := max(m.recorded, task.Status.RecordedSequence)
	if has >= before {
		return nil
	}
	entries := slices.DeleteFunc(slices.Clone(task.Status.History), func(e v1alpha1.HistoryEntry) bool { return e.Sequence <= has })
	logf.FromContext(ctx).Info("the history store has lost transitions; recording again those that the status still has",
		"recorded", before, "has", has, "again", len(entries))
	if len(entries) == 0 {
		return nil
	}
	return r.recordEntries(ctx, task, entries, m)
}

// recordEntries records the entries, and remembers whether that succeeded.
func (r *Reconciler) recordEntries(ctx context.Context, task *v1alpha1.Task, entries []v1alpha1.HistoryEntry, m *known) error {
	events := make([]history.Event, 0, len(entries))
	for _, e := range entries {
		events = append(events, historyEvent(task, e))
	}
	if err := r.Store.RecordEvents(ctx, events); err != nil {
		r.recordFailed(m)
		return err
	}
	m.recordProblem = ""
	m.recorded = max(m.recorded, entries[len(entries)-1].Sequence)
	return nil
}

// historyEvent returns the entry as an event of the history store.
func historyEvent(task *v1alpha1.Task, e v1alpha1.HistoryEntry) history.Event {
	kind := history.EventTypeTask
	switch e.Reason {
	case v1alpha1.EventTaskRewound:
		kind = history.EventTypeRewind
	case v1alpha1.EventTaskForked, v1alpha1.EventTaskBranched:
		kind = history.EventTypeFork
	}
	var published *history.Publication
	if p := e.Publication; p != nil {
		published = &history.Publication{Ref: p.Ref, Commit: p.Commit, Onto: p.Onto, Number: p.Number}
	}
	return history.Event{
		ID: history.EventID(string(task.UID), e.Sequence), Transition: e.Sequence, Oldest: oldest(&task.Status, e),
		Task: history.Task{Namespace: task.Namespace, Name: task.Name, UID: string(task.UID)},
		Time: e.Time.Time, Type: kind, Reason: e.Reason, Actor: e.Actor,
		Message: e.Message, Attempt: e.Attempt, Checkpoint: e.Checkpoint, Publication: published, State: plan.StateAfter(&task.Status, e),
		Contract: plan.ContractName(task), ActiveSeconds: task.Status.ActiveSeconds,
	}
}

// oldest reports whether the status has no entry before this one.
func oldest(s *v1alpha1.TaskStatus, e v1alpha1.HistoryEntry) bool {
	return len(s.History) > 0 && s.History[0].Sequence == e.Sequence
}

// emitEvents emits an Event for each transition that was written. Events are for people:
// nothing depends on them.
func (r *Reconciler) emitEvents(task *v1alpha1.Task, entries []v1alpha1.HistoryEntry) {
	for _, e := range entries {
		kind := corev1.EventTypeNormal
		switch e.Reason {
		case v1alpha1.EventTaskFailed, v1alpha1.EventPodLost, v1alpha1.EventNodeUnreachable, v1alpha1.EventNodeLost, v1alpha1.EventVolumeLost,
			v1alpha1.EventOperationRefused, v1alpha1.EventOperationFailed, v1alpha1.EventDriftDetected, v1alpha1.EventTaskHindered, v1alpha1.EventHistoryGap, v1alpha1.ReasonGrowthRefused,
			v1alpha1.EventBudgetNearlySpent, v1alpha1.EventBudgetExceeded,
			v1alpha1.EventApprovalRequested, v1alpha1.EventDecisionIgnored:
			kind = corev1.EventTypeWarning
		}
		// The sequence number distinguishes transitions that would otherwise be aggregated.
		r.Events.Eventf(task, attemptPod(task, e), kind, e.Reason, fmt.Sprintf("Transition%d", e.Sequence), "%s", eventNote(e))
		r.Metrics.transition(e.Reason)
	}
}

// attemptPod returns a reference to the pod of the entry's attempt; nil for none.
func attemptPod(task *v1alpha1.Task, e v1alpha1.HistoryEntry) runtime.Object {
	for _, a := range task.Status.Attempts {
		if a.Number == e.Attempt && a.PodName != "" {
			return &corev1.ObjectReference{APIVersion: "v1", Kind: "Pod", Namespace: task.Namespace, Name: a.PodName}
		}
	}
	return nil
}

// eventNote returns the entry's message, with its requester if that is known.
func eventNote(e v1alpha1.HistoryEntry) string {
	by := ""
	if e.Actor != "" && e.Actor != plan.Clew && e.Actor != plan.Unknown {
		by = ", " + part(e.Reason) + " by " + clip.Bytes(e.Actor, maxNote/4)
	}
	return clip.Bytes(e.Message, maxNote-len(by)) + by
}

// part is what the actor of a transition has done about it.
func part(reason string) string {
	if reason == v1alpha1.EventToolApproved || reason == v1alpha1.EventToolDenied {
		return "answered"
	}
	return "requested"
}
