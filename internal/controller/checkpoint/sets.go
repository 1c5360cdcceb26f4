package checkpoint

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/controller/lookup"
	"github.com/clew-dev/clew/internal/controller/requeue"
	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/plan"
	"github.com/clew-dev/clew/internal/resources"
)

// A Checkpoint with the scope Contract names a set. Its status has the members before any of them is asked
// for a checkpoint, and says that all are taken before any agent may continue: the server reads it from
// there. The objects of the children are made from it, and again if one is missing.

// followSet brings a set that has not ended a step further.
func (r *Reconciler) followSet(ctx context.Context, c *v1alpha1.Checkpoint) (time.Duration, error) {
	o, own, err := r.observeSet(ctx, c)
	if err != nil {
		return 0, err
	}
	if o.Task != nil && c.Status.Set == nil {
		if row, err := r.recall(ctx, c, o.Task); err != nil || row != nil {
			return 0, cmp.Or(err, r.recalled(ctx, c, o.Task, row))
		}
	}
	decided := plan.DecideSet(o, time.Now())
	if decided.Set != nil && c.Status.Set == nil {
		other, err := r.begin(ctx, c)
		if err != nil {
			return 0, err
		}
		if other != "" {
			decided = plan.AwaitSet(other)
		}
	}
	if decided.Set == nil {
		r.begun.end(c) // it may have begun, and not been written
		return decided.RequeueAfter, r.wait(ctx, c, decided.Ready.Status, decided.Ready.Reason, decided.Ready.Message)
	}
	if decided.Set.State.Ended() {
		r.begun.end(c)
		if err := r.recordSet(ctx, c, decided); err != nil {
			return 0, err
		}
	}
	updated, err := r.writeSet(ctx, c, decided, own)
	if err != nil {
		if c.Status.Set == nil && (apierrors.IsNotFound(err) || requeue.Refused(err)) {
			r.begun.end(c) // its deletion may have been seen before it began
		}
		return 0, err
	}
	if decided.Set.State != v1alpha1.SetTaking {
		return decided.RequeueAfter, nil
	}
	refused, err := r.makeMembers(ctx, updated, decided.Set)
	if len(refused) > 0 {
		decided = plan.RefusedSet(decided.Set, refused, time.Now())
		_, err = r.writeSet(ctx, updated, decided, nil)
	}
	return decided.RequeueAfter, err
}

// begin notes that a set begins, unless another one of the supervisor has begun, which the cache may not show
// yet: it returns the name of that one then. What was noted is believed for as long as its object is there.
func (r *Reconciler) begin(ctx context.Context, c *v1alpha1.Checkpoint) (other string, err error) {
	noted, ok := r.begun.begins(c)
	if ok {
		return "", nil
	}
	is := &metav1.PartialObjectMetadata{}
	is.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind("Checkpoint"))
	err = r.Live.Get(ctx, client.ObjectKey{Namespace: c.Namespace, Name: noted.name}, is)
	if client.IgnoreNotFound(err) != nil {
		return "", fmt.Errorf("read the set %s, after which the set %s begins: %w", noted.name, c.Name, err)
	}
	if err == nil && is.UID == noted.uid {
		return noted.name, nil
	}
	r.begun.drop(supervisor(c), noted.uid)
	if noted, ok = r.begun.begins(c); !ok {
		return noted.name, nil
	}
	return "", nil
}

// writeSet writes the state of a set and, once, the contents of the supervisor's own checkpoint. It returns the
// object as it is then.
func (r *Reconciler) writeSet(ctx context.Context, c *v1alpha1.Checkpoint, decided plan.SetPlan, own *history.Checkpoint) (*v1alpha1.Checkpoint, error) {
	updated := c.DeepCopy()
	updated.Status.ObservedGeneration, updated.Status.Set = c.Generation, decided.Set
	ready := decided.Ready
	ready.ObservedGeneration = c.Generation
	meta.SetStatusCondition(&updated.Status.Conditions, ready)
	if c.Status.Number == 0 && own != nil {
		fill(&updated.Status, *own, c.Generation, "", "")
		setIntact(&updated.Status, own.Integrity, c.Generation)
		if err := r.recordRequester(ctx, updated, *own, false); err != nil {
			return nil, err
		}
	}
	err := r.write(ctx, c, updated, func() error {
		return r.Client.Status().Patch(ctx, updated, client.MergeFromWithOptions(c, client.MergeFromWithOptimisticLock{}))
	})
	if err != nil || !decided.Set.State.Ended() || c.Status.Set != nil && c.Status.Set.State.Ended() {
		return updated, err
	}
	r.forget(c)
	kind := corev1.EventTypeNormal
	if decided.Set.State == v1alpha1.SetApart {
		kind = corev1.EventTypeWarning
	}
	r.Events.Eventf(updated, nil, kind, ready.Reason, "TakeCheckpoint", "%s", ready.Message)
	return updated, nil
}

// recalled has a set stand for the checkpoint of the supervisor that was taken for the last one of its name.
func (r *Reconciler) recalled(ctx context.Context, c *v1alpha1.Checkpoint, task *v1alpha1.Task, row *history.Checkpoint) error {
	if row == nil {
		return nil
	}
	_, err := r.writeSet(ctx, c, plan.RecalledSet(task, c.Name, row.Number), row)
	return err
}

// completeSet fills the status of a set that has ended with the supervisor's own checkpoint, once the history
// has it. If none was taken, the set stays without one: it stands for no other moment.
func (r *Reconciler) completeSet(ctx context.Context, cached *v1alpha1.Checkpoint) (time.Duration, error) {
	c := &v1alpha1.Checkpoint{}
	if err := r.Live.Get(ctx, client.ObjectKeyFromObject(cached), c); err != nil {
		return 0, client.IgnoreNotFound(err)
	}
	if c.ResourceVersion != cached.ResourceVersion || c.Status.Set == nil || len(c.Status.Set.Members) == 0 {
		return 0, nil // the event that updates the cache enqueues it again
	}
	decided, own := plan.SetPlan{Set: c.Status.Set, Ready: plan.SetReady(c.Status.Set)}, (*history.Checkpoint)(nil)
	if m := c.Status.Set.Members[0]; m.Number != 0 {
		var err error
		if own, err = r.ownOf(ctx, c, m); err != nil {
			return 0, err
		}
		if own == nil {
			decided.RequeueAfter = retryAfter
		}
	}
	_, err := r.writeSet(ctx, c, decided, own)
	return decided.RequeueAfter, err
}

// recordSet records in the supervisor's timeline how a set ended. It is done before that is written, and
// again if that fails; the history keeps it once.
func (r *Reconciler) recordSet(ctx context.Context, c *v1alpha1.Checkpoint, decided plan.SetPlan) error {
	if len(decided.Set.Members) == 0 {
		return nil
	}
	supervisor := decided.Set.Members[0]
	requester, err := r.requester(ctx, c)
	if err != nil {
		return err
	}
	err = r.Store.RecordEvents(ctx, []history.Event{{
		ID:   "checkpoint-set/" + string(c.UID),
		Task: history.Task{Namespace: c.Namespace, Name: supervisor.Task, UID: supervisor.UID},
		Time: time.Now(), Type: history.EventTypeCheckpoint, Reason: decided.Ready.Reason, Actor: cmp.Or(requester, plan.Unknown),
		Message: fmt.Sprintf("set %s: %s", c.Name, decided.Ready.Message), Checkpoint: supervisor.Number,
	}})
	if err != nil && !errors.Is(err, history.ErrNotFound) {
		return fmt.Errorf("record how the set %s ended: %w", c.Name, err)
	}
	return nil
}

// observeSet reads what is known of a set, and the supervisor's own checkpoint; nil while it has none.
func (r *Reconciler) observeSet(ctx context.Context, c *v1alpha1.Checkpoint) (o plan.ObservedSet, own *history.Checkpoint, err error) {
	o = plan.ObservedSet{Checkpoint: c, Members: map[string]plan.ObservedMember{}}
	if c.Status.Set == nil {
		o.Task, err = readTask(ctx, r.Client, c.Namespace, c.Spec.TaskRef.Name)
		if err == nil && o.Task != nil && o.Task.Spec.Role == v1alpha1.RoleSupervisor {
			o.Children, o.Others, err = r.familyOf(ctx, c, o.Task)
		}
		return o, nil, err
	}
	for i, m := range c.Status.Set.Members {
		is, err := r.observeMember(ctx, c, m)
		if err != nil {
			return o, nil, err
		}
		if i == 0 {
			if own, err = r.ownOf(ctx, c, m); err != nil {
				return o, nil, err
			}
			if own != nil && m.State == v1alpha1.MemberPending {
				is.Taken = own.Number
			}
		}
		o.Members[m.UID] = is
	}
	return o, own, nil
}

// observeMember reads what a step of a set that has begun depends on of one of its members: nothing of those
// that stay as they are.
func (r *Reconciler) observeMember(ctx context.Context, c *v1alpha1.Checkpoint, m v1alpha1.CheckpointSetMember) (is plan.ObservedMember, err error) {
	is.Taken = m.Number
	releasing := c.Status.Set.State == v1alpha1.SetReleasing && m.HoldEnd == ""
	switch {
	case m.State == v1alpha1.MemberPending:
		is.Task, err = readTask(ctx, r.Client, c.Namespace, m.Task)
		if err == nil && m.Checkpoint != c.Name { // the supervisor's own is looked for in its history
			is.Taken, err = r.takenFor(ctx, c, m)
		}
	case releasing && m.State == v1alpha1.MemberAtRest:
		is.Task, err = readTask(ctx, r.Live, c.Namespace, m.Task)
		if err == nil {
			_, is.Begun, err = r.historyOf(ctx, m.UID)
		}
	case releasing && m.State == v1alpha1.MemberTaken:
		is.Holds, _, err = r.historyOf(ctx, m.UID)
	}
	is.Task = memberOf(is.Task)
	return is, err
}

// ownOf returns the supervisor's checkpoint in a set: the one that was taken for it, or its last one if it
// is at rest; nil while there is none, or if the status has it.
func (r *Reconciler) ownOf(ctx context.Context, c *v1alpha1.Checkpoint, m v1alpha1.CheckpointSetMember) (*history.Checkpoint, error) {
	switch {
	case c.Status.Number != 0:
		return nil, nil
	case m.Number != 0:
		row, err := r.Store.Checkpoint(ctx, history.Key{Namespace: c.Namespace, UID: m.UID}, m.Number)
		if errors.Is(err, history.ErrNotFound) {
			return nil, nil
		}
		return &row, err
	}
	return r.search(ctx, c, m.UID)
}

// takenFor returns the number of the checkpoint that was taken of a child for a set; 0 while none was.
func (r *Reconciler) takenFor(ctx context.Context, c *v1alpha1.Checkpoint, m v1alpha1.CheckpointSetMember) (int64, error) {
	object := &v1alpha1.Checkpoint{}
	err := r.Client.Get(ctx, client.ObjectKey{Namespace: c.Namespace, Name: m.Checkpoint}, object)
	if err != nil {
		return 0, client.IgnoreNotFound(err)
	}
	if ready := meta.FindStatusCondition(object.Status.Conditions, v1alpha1.CheckpointReady); !isPartOf(object, c) || ready == nil || ready.Reason != v1alpha1.ReasonTaken {
		return 0, nil
	}
	return object.Status.Number, nil
}

// historyOf returns how holds of a task's agent ended, and the number of its newest attempt.
func (r *Reconciler) historyOf(ctx context.Context, taskUID string) (holds []history.HoldEnd, attempt int64, err error) {
	state, err := r.Store.TaskState(ctx, taskUID)
	if errors.Is(err, history.ErrNotFound) {
		return nil, 0, nil
	}
	return state.Holds, state.Attempt, err
}

// memberOf returns of a member what a set depends on. A Task that is read from the API server may be large,
// and a set has many.
func memberOf(task *v1alpha1.Task) *v1alpha1.Task {
	if task == nil {
		return nil
	}
	is := &v1alpha1.Task{ObjectMeta: metav1.ObjectMeta{Name: task.Name, UID: task.UID}}
	if n := len(task.Status.Attempts); n > 0 {
		last := task.Status.Attempts[n-1]
		is.Status.Attempts = []v1alpha1.Attempt{{Number: last.Number, Outcome: last.Outcome}}
	}
	if latest := task.Status.LatestCheckpoint; latest != nil {
		is.Status.LatestCheckpoint = &v1alpha1.CheckpointSummary{Name: latest.Name, Number: latest.Number}
	}
	return is
}

// familyOf lists the children of a supervisor, and its other sets that have begun, as the cache has them.
func (r *Reconciler) familyOf(ctx context.Context, c *v1alpha1.Checkpoint, task *v1alpha1.Task) (children []v1alpha1.Task, others []v1alpha1.Checkpoint, err error) {
	list := &v1alpha1.TaskList{}
	if err := r.Client.List(ctx, list, client.InNamespace(task.Namespace), client.MatchingFields{childrenOf: string(task.UID)}, client.UnsafeDisableDeepCopy); err != nil {
		return nil, nil, fmt.Errorf("list the children of task %s: %w", task.Name, err)
	}
	sets, err := r.list(ctx, task.Namespace, client.MatchingFields{setsOf: task.Name})
	for i := range sets {
		if sets[i].UID != c.UID {
			others = append(others, sets[i])
		}
	}
	return list.Items, others, err
}

// makeMembers requests the checkpoints of the children that have none yet, once: a deleted object is
// made again, and one that the cache does not show yet is not. It returns which were refused, and why, by the
// UID of the task.
func (r *Reconciler) makeMembers(ctx context.Context, c *v1alpha1.Checkpoint, set *v1alpha1.CheckpointSet) (refused map[string]string, err error) {
	refused = map[string]string{}
	var failed []error
	for _, m := range set.Children() {
		if m.State != v1alpha1.MemberPending {
			continue
		}
		switch err := r.makeMember(ctx, c, m); {
		case requeue.Refused(err):
			refused[m.UID] = err.Error()
		case err != nil:
			failed = append(failed, fmt.Errorf("request the checkpoint of task %s for the set %s: %w", m.Task, c.Name, err))
		}
	}
	return refused, errors.Join(failed...)
}

// makeMember requests the checkpoint of a child, unless it is requested.
func (r *Reconciler) makeMember(ctx context.Context, c *v1alpha1.Checkpoint, m v1alpha1.CheckpointSetMember) error {
	err := r.Client.Get(ctx, client.ObjectKey{Namespace: c.Namespace, Name: m.Checkpoint}, &v1alpha1.Checkpoint{})
	if !apierrors.IsNotFound(err) || r.begun.hasMade(c, m.Checkpoint) {
		return client.IgnoreNotFound(err)
	}
	task := &v1alpha1.Task{ObjectMeta: metav1.ObjectMeta{Namespace: c.Namespace, Name: m.Task, UID: types.UID(m.UID)}}
	err = r.Client.Create(ctx, resources.NewSetMember(task, m.Checkpoint, c))
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return err
	}
	r.begun.noteMade(c, m.Checkpoint)
	return nil
}

// isUntaken reports whether no checkpoint is taken for a Checkpoint any more: its set has ended without.
func isUntaken(c *v1alpha1.Checkpoint) bool {
	ready := meta.FindStatusCondition(c.Status.Conditions, v1alpha1.CheckpointReady)
	if c.Status.Number != 0 || ready == nil {
		return false
	}
	return (c.Spec.PartOf != nil || c.Status.Set != nil && c.Status.Set.State.Ended()) && ready.Reason == v1alpha1.ReasonNotTakenTogether
}

// isPartOf reports whether a Checkpoint was requested for a set.
func isPartOf(c, set *v1alpha1.Checkpoint) bool {
	return c.Spec.PartOf != nil && c.Spec.PartOf.UID == string(set.UID)
}

// endedSet is what becomes of a Checkpoint that is part of a set that has ended.
type endedSet struct {
	// why says why none is taken for it.
	why string
	// number is that of the last checkpoint of a task that was at rest in the set; 0 for any other.
	number int64
}

// endedWithout returns what becomes of a Checkpoint whose set has ended before it was taken; nil if it may be
// taken, or is part of none.
func (r *Reconciler) endedWithout(ctx context.Context, c *v1alpha1.Checkpoint) (*endedSet, error) {
	part := c.Spec.PartOf
	if part == nil {
		return nil, nil
	}
	set, key := &v1alpha1.Checkpoint{}, client.ObjectKey{Namespace: c.Namespace, Name: part.Name}
	err := r.Client.Get(ctx, key, set)
	if s := set.Status.Set; err == nil && s != nil && s.State.Ended() { // the cache does not have its members
		err = r.Live.Get(ctx, key, set)
	}
	if client.IgnoreNotFound(err) != nil {
		return nil, err
	}
	const whatToDo = "for another set, apply a Checkpoint with scope Contract; delete this object"
	if string(set.UID) != part.UID { // it has none if it was not found
		return &endedSet{why: fmt.Sprintf("the Checkpoint %s, which names its set, was deleted: %s", part.Name, whatToDo)}, nil
	}
	if s := set.Status.Set; s == nil || s.State == v1alpha1.SetTaking {
		return nil, nil
	}
	for _, m := range set.Status.Set.Children() {
		if m.Checkpoint == c.Name && m.State == v1alpha1.MemberAtRest {
			return &endedSet{number: m.Number}, nil
		}
	}
	return &endedSet{why: fmt.Sprintf("the set %s has ended without it: %s", part.Name, whatToDo)}, nil
}

// takeRested has a Checkpoint stand for the one at which its task was at rest in the set.
func (r *Reconciler) takeRested(ctx context.Context, c *v1alpha1.Checkpoint, task *v1alpha1.Task, number int64) (time.Duration, error) {
	row, err := r.Store.Checkpoint(ctx, history.Key{Namespace: task.Namespace, UID: string(task.UID)}, number)
	if errors.Is(err, history.ErrNotFound) {
		return retryAfter, nil
	}
	if err != nil {
		return 0, err
	}
	return r.take(ctx, c, row, taking{reason: v1alpha1.ReasonTaskStopped, message: fmt.Sprintf(
		"the task had come to rest before its checkpoint was taken for the set, with its last checkpoint, number %d", number)})
}

// related finds the Checkpoints that a change of one may affect: that which names its set, or those that are
// part of the set that it names and wait, and once that has ended the supervisor's sets that wait for it.
func (r *Reconciler) related(ctx context.Context, object client.Object) (requests []reconcile.Request) {
	c, ok := object.(*v1alpha1.Checkpoint)
	if !ok {
		return nil
	}
	if part := c.Spec.PartOf; part != nil {
		return []reconcile.Request{{NamespacedName: client.ObjectKey{Namespace: c.Namespace, Name: part.Name}}}
	}
	if c.Status.Set == nil {
		return nil
	}
	if c.Status.Set.State.Ended() {
		requests = append(requests, lookup.Request(ofHistory, c.Namespace, c.Spec.TaskRef.Name))
	}
	for _, m := range c.Status.Set.Children() {
		if m.Number == 0 && m.Checkpoint != "" {
			requests = append(requests, reconcile.Request{NamespacedName: client.ObjectKey{Namespace: c.Namespace, Name: m.Checkpoint}})
		}
	}
	return requests
}

// readTask reads a Task; nil if it does not exist.
func readTask(ctx context.Context, reader client.Reader, namespace, name string) (*v1alpha1.Task, error) {
	task := &v1alpha1.Task{}
	if err := reader.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, task); err != nil {
		return nil, client.IgnoreNotFound(err)
	}
	return task, nil
}
