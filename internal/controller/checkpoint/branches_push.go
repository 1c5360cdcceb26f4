package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/controller/pages"
	"github.com/clew-dev/clew/internal/controller/podaccount"
	"github.com/clew-dev/clew/internal/controller/requeue"
	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/plan"
	"github.com/clew-dev/clew/internal/resources"
)

// others are the pods that push branches of the other Checkpoints of a task.
type others struct {
	// busy reports whether there are any; freeAt is when they all count as lost, zero if that
	// is not known.
	busy   bool
	freeAt time.Time
}

// add adds a pod.
func (o *others) add(pod *corev1.Pod, now time.Time) {
	if hasEnded(pod) || plan.PublisherIsLost(pod, now) {
		return
	}
	at := plan.PublisherLostAt(pod)
	switch {
	case !o.busy:
		o.freeAt = at
	case at.IsZero() || o.freeAt.IsZero():
		o.freeAt = time.Time{}
	case at.After(o.freeAt):
		o.freeAt = at
	}
	o.busy = true
}

// hasEnded reports whether every container of the pod has ended.
func hasEnded(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
}

// publishers returns the pods that push branches of the Checkpoint, and what is known of those
// that push branches of other Checkpoints of its task. The reader lists so many at a time; 0 for all.
func publishers(ctx context.Context, reader client.Reader, page int64, c *v1alpha1.Checkpoint, now time.Time) (own []corev1.Pod, rest others, err error) {
	if c.Status.TaskUID == "" {
		return nil, rest, nil
	}
	err = pages.Each(ctx, reader, page, func(list *corev1.PodList) {
		for i := range list.Items {
			pod := &list.Items[i]
			owner := metav1.GetControllerOf(pod)
			switch {
			case owner == nil || owner.Kind != "Checkpoint":
			case owner.UID == c.UID:
				own = append(own, *pod)
			default:
				rest.add(pod, now)
			}
		}
	}, client.InNamespace(c.Namespace), client.HasLabels{v1alpha1.LabelPublication}, client.MatchingLabels{v1alpha1.LabelTaskUID: c.Status.TaskUID})
	if err != nil {
		return nil, rest, fmt.Errorf("list the pods that push branches: %w", err)
	}
	return own, rest, nil
}

// publisherEnds selects the changes after which a pod no longer keeps others from pushing, or
// after which it is known when it will be lost.
func publisherEnds() predicate.Predicate {
	publishes := func(o client.Object) bool { return o.GetLabels()[v1alpha1.LabelPublication] != "" }
	ends := func(o client.Object) bool {
		pod, ok := o.(*corev1.Pod)
		return ok && (pod.DeletionTimestamp != nil || hasEnded(pod))
	}
	return predicate.Funcs{
		CreateFunc: func(event.CreateEvent) bool { return false },
		UpdateFunc: func(e event.UpdateEvent) bool {
			return publishes(e.ObjectNew) && ends(e.ObjectNew) && !ends(e.ObjectOld)
		},
		DeleteFunc:  func(e event.DeleteEvent) bool { return publishes(e.Object) },
		GenericFunc: func(event.GenericEvent) bool { return false },
	}
}

// labelledUID returns the UID of a pod's task.
func labelledUID(pod client.Object) string { return pod.GetLabels()[v1alpha1.LabelTaskUID] }

// waiting finds the Checkpoints of a task that have branches to push.
func (r *Branches) waiting(ctx context.Context, namespace, taskUID string) ([]reconcile.Request, error) {
	return r.requests(ctx, namespace, taskUID, plan.PushesBranches)
}

// observe gathers what a decision about the pushes of branches depends on. The reader lists so many pods at
// a time; 0 for all.
func (r *Branches) observe(ctx context.Context, reader client.Reader, page int64, old, c *v1alpha1.Checkpoint) (plan.ObservedBranches, error) {
	observed := plan.ObservedBranches{Checkpoint: c, Limits: r.Limits, Reserved: r.reservedOf(c)}
	var err error
	if len(c.Spec.Branches) > 0 || plan.PushesBranches(old) {
		if observed.Task, err = namedTask(ctx, reader, c); err != nil {
			return observed, err
		}
	}
	if plan.ChecksOut(c) {
		if observed.Checkouts, err = r.checkouts(ctx, c); err != nil {
			return observed, err
		}
	}
	own, rest, err := publishers(ctx, reader, page, c, r.Clock.Now())
	observed.Publishers, observed.Busy, observed.FreeAt = own, rest.busy, rest.freeAt
	return observed, err
}

// push brings the branches to the task's repository, and writes the status if it differs from
// the old one. The pod that the status names is created after that. happened is what the gitstore
// has done before.
func (r *Branches) push(ctx context.Context, old, c *v1alpha1.Checkpoint, happened []plan.BranchEvent) (time.Duration, error) {
	observed, err := r.observe(ctx, r.Live, pages.Size, old, c)
	if err != nil {
		return 0, err
	}
	return r.apply(ctx, old, observed, happened)
}

// apply decides and carries out the plan.
func (r *Branches) apply(ctx context.Context, old *v1alpha1.Checkpoint, observed plan.ObservedBranches, happened []plan.BranchEvent) (time.Duration, error) {
	p, c := plan.DecideBranches(observed, r.Clock.Now()), observed.Checkpoint
	if p.Start != nil {
		var err error
		if observed.Damage, err = r.damage(ctx, c); err != nil {
			return 0, err
		}
		p = plan.DecideBranches(observed, r.Clock.Now())
	}
	c.Status.Branches, c.Status.BranchPushes = p.Branches, p.Pushes
	happened = append(happened, p.Events...)
	if err := r.record(ctx, c, happened); err != nil {
		return 0, err
	}
	if !equality.Semantic.DeepEqual(old.Status, c.Status) {
		patch := client.MergeFromWithOptions(old, client.MergeFromWithOptimisticLock{})
		if err := r.Client.Status().Patch(ctx, c, patch); err != nil {
			return 0, fmt.Errorf("write the branches of Checkpoint %s: %w", c.Name, err)
		}
	}
	if p.Start != nil {
		r.reserve(c, resources.BranchPublisherName(c, p.Start.Branch.Name, p.Start.Number))
	}
	r.tell(c, happened)
	for _, ref := range p.StopPods {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: c.Namespace, Name: ref.Name}}
		err := r.Client.Delete(ctx, pod, client.Preconditions{UID: ptr.To(types.UID(ref.UID))})
		if client.IgnoreNotFound(err) != nil {
			return 0, fmt.Errorf("delete pod %s: %w", ref.Name, err)
		}
	}
	if p.Start == nil {
		return p.RequeueAfter, nil
	}
	refusal, err := r.start(ctx, observed.Task, c, *p.Start)
	if err != nil || refusal == "" {
		return p.RequeueAfter, err
	}
	observed.Publishers, observed.Refused = nil, refusal
	return r.apply(ctx, c.DeepCopy(), observed, nil)
}

// damage asks the history store what is wrong with the objects of a checkpoint; nil if nothing is known
// to be. Its messages are not pushed.
func (r *Branches) damage(ctx context.Context, c *v1alpha1.Checkpoint) (*history.Integrity, error) {
	if !meta.IsStatusConditionFalse(c.Status.Conditions, v1alpha1.CheckpointIntact) {
		return nil, nil
	}
	found, err := r.Store.Checkpoint(ctx, history.Key{Namespace: c.Namespace, UID: c.Status.TaskUID}, c.Status.Number)
	if err != nil && !errors.Is(err, history.ErrNotFound) {
		return nil, fmt.Errorf("ask whether Checkpoint %s is damaged: %w", c.Name, err)
	}
	if found.Integrity.Damage == "" || found.Integrity.MessagesOnly {
		return nil, nil
	}
	return &found.Integrity, nil
}

// namedTask returns the task that the Checkpoint names; nil if there is none.
func namedTask(ctx context.Context, reader client.Reader, c *v1alpha1.Checkpoint) (*v1alpha1.Task, error) {
	task := &v1alpha1.Task{}
	err := reader.Get(ctx, client.ObjectKey{Namespace: c.Namespace, Name: c.Spec.TaskRef.Name}, task)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the Task %s: %w", c.Spec.TaskRef.Name, err)
	}
	return task, nil
}

// parentsWay returns how the branches of a child are published whose spec does not say: as its parent's
// says; nil if that does not either.
func (r *Branches) parentsWay(ctx context.Context, task *v1alpha1.Task) (*v1alpha1.Publish, error) {
	p := task.Status.Parent
	if p == nil || task.Spec.Publish != nil {
		return nil, nil
	}
	parent := &v1alpha1.Task{}
	err := r.Live.Get(ctx, client.ObjectKey{Namespace: task.Namespace, Name: p.Name}, parent)
	if err != nil && !apierrors.IsNotFound(err) {
		return nil, fmt.Errorf("read the parent %s: %w", p.Name, err)
	}
	if string(parent.UID) != p.UID {
		return nil, nil
	}
	return parent.Spec.Publish, nil
}

// start creates the pod that the status names. It returns why the API server refused it.
func (r *Branches) start(ctx context.Context, task *v1alpha1.Task, c *v1alpha1.Checkpoint, want plan.BranchPublisher) (refusal string, err error) {
	if err := podaccount.Ensure(ctx, r.Live, r.Client, c.Namespace); err != nil {
		return "", err
	}
	otherwise, err := r.parentsWay(ctx, task)
	if err != nil {
		return "", err
	}
	pod, err := resources.NewPublisher(resources.PublisherRequest{
		Task: task, Otherwise: otherwise, Branch: &resources.BranchRequest{Checkpoint: c, Branch: want.Branch},
		Number: want.Number, Checkpoint: want.Checkpoint, Replaces: want.Replaces, Onto: want.Onto, Earlier: want.Earlier,
		Tries: want.Tries, Announced: want.Announced, Unreported: want.Unreported,
	}, r.Pods)
	if err != nil {
		return "", err
	}
	err = r.Client.Create(ctx, pod)
	if err == nil || apierrors.IsAlreadyExists(err) || requeue.Unanswered(err) {
		r.reserve(c, "") // if it is not seen next time, it may have existed for a moment
	}
	if requeue.Refused(err) {
		return "the pod that publishes was refused: " + err.Error(), nil
	}
	if err != nil {
		return "", fmt.Errorf("create pod %s: %w", pod.Name, err)
	}
	return "", nil
}

// record adds what happened to the task's timeline. It may be repeated.
func (r *Branches) record(ctx context.Context, c *v1alpha1.Checkpoint, what []plan.BranchEvent) error {
	list := make([]history.Event, 0, len(what))
	for _, e := range what {
		list = append(list, history.Event{
			ID:   history.BranchEventID(c.Status.TaskUID, string(c.UID), e.Branch, e.Key, e.Reason),
			Task: history.Task{Namespace: c.Namespace, Name: c.Spec.TaskRef.Name, UID: c.Status.TaskUID},
			Time: r.Clock.Now(), Type: history.EventTypeCheckpoint, Reason: e.Reason,
			Actor: plan.BranchRequester(c, e.Branch, r.Stamped), Message: e.Message, Attempt: c.Status.Attempt, Checkpoint: c.Status.Number,
		})
	}
	if len(list) == 0 {
		return nil
	}
	if err := r.Store.RecordEvents(ctx, list); err != nil {
		return fmt.Errorf("record what became of the branches of Checkpoint %s: %w", c.Name, err)
	}
	return nil
}

// branchEvents returns what the gitstore has done, as the difference of two statuses says.
func branchEvents(old, c *v1alpha1.Checkpoint) (list []plan.BranchEvent) {
	find := func(all []v1alpha1.CheckpointBranchStatus, name string) (s v1alpha1.CheckpointBranchStatus) {
		if i := slices.IndexFunc(all, func(s v1alpha1.CheckpointBranchStatus) bool { return s.Name == name }); i >= 0 {
			s = all[i]
		}
		return s
	}
	add := func(name, reason, message, key string) {
		key = fmt.Sprintf("%d/%s", c.Generation, key)
		list = append(list, plan.BranchEvent{Branch: name, Reason: reason, Message: message, Key: key})
	}
	for _, s := range c.Status.Branches {
		switch was := find(old.Status.Branches, s.Name); {
		case isMade(s) && (!isMade(was) || was.Commit != s.Commit):
			add(s.Name, v1alpha1.EventBranchMade, fmt.Sprintf("checkpoint %d is the branch %s of the gitstore, as %s", c.Status.Number, s.Ref, s.Commit), s.Commit)
		case s.State == v1alpha1.BranchRefused && was.Message != s.Message:
			add(s.Name, v1alpha1.EventBranchRefused, fmt.Sprintf("the gitstore refuses the branch %s of checkpoint %d: %s", s.Name, c.Status.Number, s.Message), s.Message)
		}
	}
	for _, was := range old.Status.Branches {
		if isMade(was) && find(c.Status.Branches, was.Name).Name == "" {
			add(was.Name, v1alpha1.EventBranchRemoved, fmt.Sprintf("the branch %s of checkpoint %d was taken out of its branches", was.Name, c.Status.Number), was.Commit)
		}
	}
	return list
}

// tell emits Events.
func (r *Branches) tell(c *v1alpha1.Checkpoint, what []plan.BranchEvent) {
	for _, e := range what {
		kind := corev1.EventTypeNormal
		if slices.Contains([]string{v1alpha1.EventBranchNotPublished, v1alpha1.EventBranchRefused, v1alpha1.EventAgentBranchNotMade, v1alpha1.EventBranchNotCheckedOut}, e.Reason) {
			kind = corev1.EventTypeWarning
		}
		// The action distinguishes Events that would otherwise be aggregated.
		sum := fnv.New32a()
		_, _ = sum.Write([]byte(e.Branch + "/" + e.Key))
		r.Events.Eventf(c, nil, kind, e.Reason, fmt.Sprintf("Branch-%08x", sum.Sum32()), "%s", e.Message)
	}
}
