// Package task is the controller of Tasks: it observes, lets package plan
// decide, applies the plan, writes the status once, and then emits Events.
//
// It promises that an unchanged Task causes no write; that nothing is started,
// stopped or written on the basis of the cache alone (a plan made from the cache
// is made again from live reads before it is applied); and that every transition
// reaches the history store exactly once, whatever is down in the meantime.
package task

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	logf "sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/budget"
	"github.com/clew-dev/clew/internal/controller/places"
	"github.com/clew-dev/clew/internal/controller/relations"
	"github.com/clew-dev/clew/internal/controller/requeue"
	"github.com/clew-dev/clew/internal/controller/startpoint"
	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/history/codeadoption"
	"github.com/clew-dev/clew/internal/plan"
	"github.com/clew-dev/clew/internal/resources"
	"github.com/clew-dev/clew/internal/rewindtarget"
)

// Store is the part of the history store that this controller needs. Its errors wrap
// those of package history.
type Store interface {
	rewindtarget.Store
	// TaskState returns what the store knows about a task.
	TaskState(ctx context.Context, taskUID string) (history.TaskState, error)
	// Spending returns what a task has spent, and what all of a contract and of its namespace have.
	Spending(ctx context.Context, task history.Task, contract string) (history.Spending, error)
	// SetBudgets stores what a task and its contract may spend, so that daemons are told.
	SetBudgets(ctx context.Context, task history.Task, set history.SetBudgets) error
	// RecallSpending counts what a task has spent by its records through a sequence, some of which the
	// store has lost.
	RecallSpending(ctx context.Context, task history.Task, spent budget.Amounts, through int64) error
	// RecallContractSpending counts what all tasks of the contract of a task have spent, at least, as it was
	// known at a time.
	RecallContractSpending(ctx context.Context, task history.Task, contract string, spent budget.Amounts, since time.Time) error
	// CheckpointsAfter lists the task's checkpoints after a number, in order.
	CheckpointsAfter(ctx context.Context, taskUID string, after int64, limit int) ([]history.Checkpoint, error)
	// CheckpointsBefore lists the checkpoints before a number, or the newest if that is 0, in
	// descending order.
	CheckpointsBefore(ctx context.Context, task history.Key, before int64, limit int) ([]history.Checkpoint, error)
	// TasksNamed returns the tasks of a name that have a history, newest first.
	TasksNamed(ctx context.Context, namespace, name string) ([]history.NamedTask, error)
	// GoneTask returns the newest task of a name, and the state that it has left.
	GoneTask(ctx context.Context, namespace, name string) (history.GoneTask, error)
	// EarlierNamespace reports whether an earlier namespace of that name has left a history of a
	// task, which is not this one's.
	EarlierNamespace(ctx context.Context, namespace, name string) (bool, error)
	// Adoption returns what a task has adopted, or could adopt.
	Adoption(ctx context.Context, task history.Task) (history.Adoption, error)
	// Adopt gives the history of a former task to one that has none. It may be repeated.
	Adopt(ctx context.Context, task history.Task, former string) error
	// ContinuedBy returns the UID of the task that continues the history of a former one; empty if
	// none does.
	ContinuedBy(ctx context.Context, former history.Key) (string, error)
	codeadoption.Store
	// TaskConversation returns part of a task's conversation.
	TaskConversation(ctx context.Context, query history.ConversationQuery) (history.EntryPage, error)
	// Operations returns those of the keys under which a completed operation is recorded.
	Operations(ctx context.Context, task history.Key, keys []string) ([]string, error)
	// Publication returns what a task has pushed to a ref of its repository last; an error that
	// wraps history.ErrNotFound if that is nothing.
	Publication(ctx context.Context, task history.Key, ref string) (history.Publication, error)
	// RequestVerification has one checkpoint of a task verified soon, and the gitstore asked for all
	// others. What was verified before since does not count. It may be repeated.
	RequestVerification(ctx context.Context, task history.Key, number int64, since time.Time) error
	// UnpushedCheckpoints returns checkpoints of a task that only its volume may have, and
	// DamagedObjects those that only its volume may heal.
	UnpushedCheckpoints(ctx context.Context, taskUID string) ([]int64, error)
	DamagedObjects(ctx context.Context, taskUID string) ([]int64, error)
	// RecordEvents records transitions. Those that are recorded already have no effect.
	RecordEvents(ctx context.Context, events []history.Event) error
	// KeepSpec replaces the kept spec of a task.
	KeepSpec(ctx context.Context, task history.Key, kept history.KeptSpec) error
	// KeptSpec returns the kept spec of a task, from which it is forked when it is gone.
	KeptSpec(ctx context.Context, task history.Key) (history.KeptSpec, error)
	// ForkedTasks returns the tasks that have a history and were made for a Fork of a name, newest
	// first.
	ForkedTasks(ctx context.Context, namespace, fork string) ([]history.ForkedTask, error)
	// RecordedTransitions returns the number up to which all transitions are recorded.
	RecordedTransitions(ctx context.Context, namespace, taskUID string) (int64, error)
	// SnapshotsAfter lists the automatic snapshots of the conversation after a number, in
	// order.
	SnapshotsAfter(ctx context.Context, taskUID string, after int64, limit int) ([]history.Snapshot, error)
}

// Notifications delivers changes in the history store. An empty notification means that
// any task may have changed.
type Notifications interface {
	// Subscribe registers a function that is called for each notification.
	Subscribe(f func(history.Notification))
}

// PhaseCalls are the calls by which the agents of supervisors move their contracts. They are a source of
// requests for the tasks whose agents have called.
type PhaseCalls interface {
	source.Source
	// Of returns the oldest call of a task that has no answer yet; nil for none.
	Of(task types.UID) *plan.PhaseCall
}

// Reconciler is the controller of Tasks. Every field but Places, PhaseCalls and Metrics is required.
type Reconciler struct {
	// Client reads from the cache and writes.
	Client client.Client
	// Live reads from the API server.
	Live client.Reader
	// Store is the history store.
	Store Store
	// Code is the gitstore.
	Code codeadoption.Code
	// Events emits Kubernetes Events.
	Events events.EventRecorder
	// Pods are the options of every pod.
	Pods resources.Options
	// Limits are the pauses, timeouts and intervals of decisions.
	Limits plan.Limits
	// Stamped is true when an admission policy writes requesters into applied objects.
	Stamped bool
	// Clock is the source of the time.
	Clock clock.PassiveClock
	// NamespaceBudgets are what the tasks of namespaces may spend.
	NamespaceBudgets budget.ByNamespace
	// Places are those of the tasks that may run at once; nil for any number.
	Places *places.Places
	// PhaseCalls are the calls of the tool phase_set; nil for none.
	PhaseCalls PhaseCalls
	// Metrics are the controller's metrics; nil for none.
	Metrics *Metrics

	memory    memory
	relations relations.Account
}

// Reconcile observes one Task, and applies what package plan decides for it.
func (r *Reconciler) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	after, err := r.reconcile(ctx, request)
	if err != nil {
		return requeue.Result(logf.FromContext(ctx), err)
	}
	return ctrl.Result{RequeueAfter: after}, nil
}

func (r *Reconciler) reconcile(ctx context.Context, request ctrl.Request) (time.Duration, error) {
	task := &v1alpha1.Task{}
	if err := r.Client.Get(ctx, request.NamespacedName, task); err != nil {
		r.memory.forget(request.NamespacedName)
		return 0, err
	}
	m := r.memory.of(task)
	defer m.Unlock()
	if err := r.keepMetadata(ctx, task); err != nil {
		return 0, err
	}
	r.record(ctx, task, m)
	r.keepBudgets(ctx, task, m)

	observed, err := r.observe(ctx, task, m, r.cached())
	if err != nil {
		return 0, err
	}
	p := r.decide(ctx, &observed, m)
	live := p.Acts() || p.InspectResults || r.relations.Owes(task)
	if live {
		if p, task, err = r.decideLive(ctx, task, m); err != nil {
			return 0, err
		}
		if p.Acts() {
			// The places of one that fails stay kept for it, and are settled when it is tried again: an API
			// server that refuses every write would have them go round, as fast as it refuses.
			if err := r.apply(ctx, task, p, m); err != nil {
				return 0, err
			}
		}
	}
	r.settlePlaces(task, p, live)
	if p.StartPod == nil && !p.CreateClaim {
		m.blocker = nil
	}
	return next(p, observed, m), nil
}

// next returns when to reconcile again if nothing happens: at once, if something was refused that
// the decision did not know of, or was not refused any more.
func next(p plan.Plan, observed plan.Observed, m *known) time.Duration {
	after := p.RequeueAfter
	if m.growthAnswered {
		m.growthAnswered = false
		return time.Millisecond
	}
	if was := observed.Blocker; (was == nil) != (m.blocker == nil) || was != nil && was.Reason != m.blocker.Reason {
		return time.Millisecond
	}
	unanswered := p.Inspect != 0 || p.InspectClass != "" || p.InspectResults // what the decision depends on could not be found out
	waits := m.blocker != nil || m.recordProblem != "" || !observed.History.Known || unanswered
	if waits && (after == 0 || after > requeue.AfterOutage) {
		after = requeue.AfterOutage
	}
	return after
}

// decideLive decides again, from live reads of the API server.
func (r *Reconciler) decideLive(ctx context.Context, cached *v1alpha1.Task, m *known) (plan.Plan, *v1alpha1.Task, error) {
	task := &v1alpha1.Task{}
	if err := r.Live.Get(ctx, client.ObjectKeyFromObject(cached), task); err != nil {
		return plan.Plan{}, cached, err
	}
	if task.UID != cached.UID {
		return plan.Plan{}, cached, nil // another Task of the same name; its own event will follow
	}
	observed, err := r.observe(ctx, task, m, r.live())
	if err != nil {
		return plan.Plan{}, task, err
	}
	p := r.decide(ctx, &observed, m)
	if p.NeedsPlace {
		observed.Queue = r.Places.Ask(task)
		p = plan.Decide(observed, r.Clock.Now())
	}
	if p.InspectResults {
		observed.Results = r.results(ctx, observed.Children)
		p = plan.Decide(observed, r.Clock.Now())
	}
	if p.StartPublisher != nil {
		observed.Publication = r.checked(ctx, task, observed.Publication, p.StartPublisher.Checkpoint)
		p = plan.Decide(observed, r.Clock.Now())
	}
	p, err = r.takePlaces(ctx, task, &observed, p)
	return p, task, err
}

// observe gathers what a decision depends on. Pods are read before the history store:
// an agent's exit must only be seen after its last checkpoint was recorded. The target of
// a rewind is resolved last: a store that is complete by then may have lacked, a moment
// earlier, what the task's pod has sent it again.
func (r *Reconciler) observe(ctx context.Context, task *v1alpha1.Task, m *known, v view) (plan.Observed, error) {
	o := plan.Observed{
		Task: task, NewID: rand.Text(), Limits: r.Limits, Blocker: m.blocker, MadePodUID: m.podOf(task), ReservedAttempt: m.reserved,
		Stamped: r.Stamped, Recorded: m.recorded, RecordProblem: m.recordProblem, LastWrite: m.lastWrite,
		PublisherRefused: m.publisherRefused, ReservedPublisher: m.publisher, Queue: r.Places.Look(task),
	}
	var err error
	if o.Pods, err = v.pods(ctx, task); err != nil {
		return o, fmt.Errorf("list the pods of the task: %w", err)
	}
	o.Pods, o.Publishers = partition(o.Pods)
	if o.Claim, err = read[corev1.PersistentVolumeClaim](ctx, v.reader, task.Namespace, resources.ClaimOf(task)); err != nil {
		return o, err
	}
	if err := r.observeNodes(ctx, task, v.reader, &o); err != nil {
		return o, err
	}
	if err := r.observeFormerClaims(ctx, task, v.reader, &o); err != nil {
		return o, err
	}
	o.GrowthRefused = m.growthRefused.of(task, o.Claim)
	if o.Started, err = r.started(ctx, task); err != nil {
		return o, err
	}
	if err := r.observeFamily(ctx, task, v.reader, &o); err != nil {
		return o, err
	}
	t := v.template(task, m)
	o.TemplateProblem, o.PodDigest = t.problem, t.digest
	if o.Shared, err = r.observeBudgets(ctx, task, o.Parent.Task); err != nil {
		return o, err
	}
	o.Adoption = r.adoption(ctx, task)
	o.Publication = r.publication(ctx, task)
	o.History = r.history(ctx, task)
	if o.History.Known {
		r.recordLost(ctx, task, m)
		o.History.Deleted = m.historyDeleted
		m.attempts = plan.Attempts{Known: true, Highest: max(m.attempts.Highest, o.History.State.Attempt)}
	}
	o.Attempts = m.attempts
	if err := r.observeDependencies(ctx, task, v.reader, &o); err != nil {
		return o, err
	}
	if err := r.observeSource(ctx, task, &o); err != nil {
		return o, err
	}
	if err := r.observeResume(ctx, task, &o); err != nil {
		return o, err
	}
	return o, r.observeRewind(ctx, task, &o)
}

// observeResume reads the checkpoint that a new resume continues from.
func (r *Reconciler) observeResume(ctx context.Context, task *v1alpha1.Task, o *plan.Observed) (err error) {
	resume := plan.NewResume(task)
	switch {
	case resume == nil:
	case resume.CheckpointRef != nil:
		o.ResumeTarget, err = read[v1alpha1.Checkpoint](ctx, r.Live, task.Namespace, resume.CheckpointRef.Name)
	case plan.ResumeCheckpoint(task, resume) > 0:
		key := history.Key{Namespace: task.Namespace, UID: string(task.UID)}
		var unread error
		if o.ResumeRecord, unread = rewindtarget.Checkpoint(ctx, r.Store, key, plan.ResumeCheckpoint(task, resume)); unread != nil {
			// The task is reconciled all the same; the resume waits.
			logf.FromContext(ctx).Info("could not resolve the resume's checkpoint", "error", unread.Error())
		}
	}
	return err
}

// observeRewind resolves the target of a new rewind, and reads what one has done that only the history knows to
// be complete.
func (r *Reconciler) observeRewind(ctx context.Context, task *v1alpha1.Task, o *plan.Observed) (err error) {
	if err := rewindtarget.ObserveDone(ctx, r.Store, o); err != nil {
		// The task is reconciled all the same; it waits before it adds the attempt of that rewind.
		logf.FromContext(ctx).Info("could not read what a rewind has done", "error", err.Error())
	}
	rewind := plan.NewRewind(task)
	if rewind == nil {
		return nil
	}
	if to := rewind.To.CheckpointRef; to != nil {
		o.RewindTarget, err = read[v1alpha1.Checkpoint](ctx, r.Live, task.Namespace, to.Name)
		return err
	}
	if err := rewindtarget.Observe(ctx, r.Store, rewind, o); err != nil {
		// The task is reconciled all the same; the rewind waits.
		logf.FromContext(ctx).Info("could not resolve the rewind's target", "error", err.Error())
	}
	return nil
}

// observeSource reads what startFrom names, until it is resolved.
func (r *Reconciler) observeSource(ctx context.Context, task *v1alpha1.Task, o *plan.Observed) (err error) {
	if from := plan.UnresolvedSource(task); from != nil && !plan.AwaitsTasks(*o) {
		o.Source, err = startpoint.Find(ctx, r.Live, r.Store, task.Namespace, from)
	}
	return err
}

// history asks the history store about the task. A store that was restored from a copy of before the
// task adopted a history has that under a former UID, and is told again whose it is.
func (r *Reconciler) history(ctx context.Context, task *v1alpha1.Task) plan.History {
	state, err := r.Store.TaskState(ctx, string(task.UID))
	if formers := task.Status.Adoption.FormerUIDs(); errors.Is(err, history.ErrNotFound) && len(formers) > 0 {
		if err = r.adopt(ctx, task, formers...); err == nil {
			state, err = r.Store.TaskState(ctx, string(task.UID))
		}
	}
	continuedBy := ""
	if errors.Is(err, history.ErrNotFound) {
		continuedBy, err = r.Store.ContinuedBy(ctx, history.Key{Namespace: task.Namespace, UID: string(task.UID)})
	}
	switch {
	case err == nil:
		return plan.History{Known: true, ContinuedBy: continuedBy, State: state}
	default:
		logf.FromContext(ctx).V(1).Info("could not ask the history store", "error", err.Error())
		return plan.History{}
	}
}

// keepMetadata adds the finalizer, which keeps the object until its history is recorded, and the labels
// of its contract and parent.
func (r *Reconciler) keepMetadata(ctx context.Context, task *v1alpha1.Task) error {
	if task.DeletionTimestamp != nil {
		return nil
	}
	added, labelled := controllerutil.AddFinalizer(task, v1alpha1.TaskFinalizer), setFamilyLabels(task)
	if !added && !labelled {
		return nil
	}
	// The cache has neither all finalizers nor all labels.
	live, err := read[v1alpha1.Task](ctx, r.Live, task.Namespace, task.Name)
	if err != nil || live == nil || live.UID != task.UID || live.DeletionTimestamp != nil {
		return err
	}
	base := live.DeepCopy()
	controllerutil.AddFinalizer(live, v1alpha1.TaskFinalizer)
	setFamilyLabels(live)
	*task = *live
	if err := r.Client.Patch(ctx, task, client.MergeFromWithOptions(base, client.MergeFromWithOptimisticLock{})); err != nil {
		return fmt.Errorf("add the finalizer and the labels: %w", err)
	}
	return nil
}
