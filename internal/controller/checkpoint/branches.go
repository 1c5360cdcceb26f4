package checkpoint

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	logf "sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/controller/fairqueue"
	"github.com/clew-dev/clew/internal/controller/lookup"
	"github.com/clew-dev/clew/internal/controller/requeue"
	"github.com/clew-dev/clew/internal/gitstoreapi"
	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/plan"
	"github.com/clew-dev/clew/internal/resources"
)

// Gitstore makes and removes branches; see gitstoreapi.Client.
type Gitstore interface {
	MakeBranch(ctx context.Context, namespace, uid string, q gitstoreapi.BranchQuery) (gitstoreapi.Branch, error)
	RemoveBranch(ctx context.Context, namespace, uid, task, name, commit string) error
}

// BranchStore is the part of the history store that the controller of branches needs.
type BranchStore interface {
	// RecordEvents records events. Those that are recorded already have no effect.
	RecordEvents(ctx context.Context, events []history.Event) error
	// Checkpoint returns a checkpoint with what is known of its integrity.
	Checkpoint(ctx context.Context, task history.Key, number int64) (history.Checkpoint, error)
}

// Branches makes the branches that Checkpoints name, and removes those that they no longer
// name. The gitstore does both, whether or not a pod of the task runs. A branch that is to be
// pushed to the task's repository gets a pod of its own, one of the task at a time.
type Branches struct {
	// Client reads from the cache and writes.
	Client client.Client
	// Live reads from the API server.
	Live client.Reader
	// Gitstore has the branches.
	Gitstore Gitstore
	// Store is the history store.
	Store BranchStore
	// Events emits Kubernetes Events.
	Events events.EventRecorder
	// Pods are the options of every pod.
	Pods resources.Options
	// Limits are the pauses of decisions.
	Limits plan.Limits
	// Stamped is true when an admission policy writes requesters into applied objects.
	Stamped bool
	// Clock is the source of the time.
	Clock clock.PassiveClock
	// MakeAgain is how often the gitstore is asked for all branches again, since it may have been
	// restored from an older copy. It is an hour if 0.
	MakeAgain time.Duration

	mu sync.Mutex
	// asked is when it was last asked for those of a Checkpoint.
	asked map[types.NamespacedName]time.Time
	// reserved is the name of a Checkpoint's pod that the status names and that this process has
	// certainly not created.
	reserved map[types.NamespacedName]string
}

// The controller's permissions.
//
// +kubebuilder:rbac:groups=clew.dev,resources=checkpoints,verbs=get;list;watch
// +kubebuilder:rbac:groups=clew.dev,resources=checkpoints/status,verbs=get;update;patch
// +kubebuilder:rbac:groups=clew.dev,resources=tasks,verbs=get;list;watch
// +kubebuilder:rbac:groups="",resources=pods,verbs=get;list;watch;create;delete
// +kubebuilder:rbac:groups="",resources=serviceaccounts,verbs=get;create
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch;update

// SetupWithManager adds the controller to the manager.
func (r *Branches) SetupWithManager(mgr ctrl.Manager, workers int) error {
	lookups := lookup.New(map[string]lookup.Find{toPush: r.waiting, withBranches: r.withBranches, checkingOut: r.checkingOut})
	return ctrl.NewControllerManagedBy(mgr).
		Named("checkpoint-branches").
		For(&v1alpha1.Checkpoint{}).
		Owns(&corev1.Pod{}).
		Watches(&corev1.Pod{}, lookup.Handler(toPush, labelledUID), builder.WithPredicates(publisherEnds())).
		Watches(&v1alpha1.Task{}, lookup.Handler(withBranches, uidOf), builder.WithPredicates(agentStarted())).
		Watches(&v1alpha1.Checkpoint{}, lookup.Handler(checkingOut, takenOf), builder.WithPredicates(asksForCheckout())).
		// One of each namespace at a time: no two pods push branches of the same task, and a
		// namespace whose requests take long makes no other one wait.
		WithOptions(controller.Options{MaxConcurrentReconciles: workers, NewQueue: lookups.Queue(fairqueue.Serial())}).
		Complete(lookups.Serve(r))
}

// Reconcile brings the branches of one Checkpoint up to date.
func (r *Branches) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	c := &v1alpha1.Checkpoint{}
	if err := r.Client.Get(ctx, request.NamespacedName, c); err != nil {
		r.forget(request.NamespacedName)
		return requeue.Result(logf.FromContext(ctx), err)
	}
	idle, after, err := r.idle(ctx, c)
	if err != nil {
		return requeue.Result(logf.FromContext(ctx), err)
	}
	again := r.makeAgain(c)
	if idle && again != 0 {
		return ctrl.Result{RequeueAfter: sooner(after, again)}, nil
	}
	// The cache may lag behind what was made, and lacks the agent's HEAD.
	if err := r.Live.Get(ctx, request.NamespacedName, c); err != nil {
		return requeue.Result(logf.FromContext(ctx), err)
	}
	after, err = r.reconcile(ctx, c, again == 0)
	if err != nil {
		return requeue.Result(logf.FromContext(ctx), err)
	}
	return ctrl.Result{RequeueAfter: sooner(after, r.makeAgain(c))}, nil
}

// sooner returns the shorter of two pauses. One that is not positive is none.
func sooner(a, b time.Duration) time.Duration {
	if a <= 0 || b > 0 && b < a {
		return max(0, b)
	}
	return a
}

// makeAgain returns after which time the gitstore has to be asked for the Checkpoint's branches
// again; 0 if that is now, and less if it has none. After a start of this process, the first
// requests are spread over the whole interval.
func (r *Branches) makeAgain(c *v1alpha1.Checkpoint) time.Duration {
	if c.DeletionTimestamp != nil || !isDurable(c) || !slices.ContainsFunc(c.Status.Branches, isMade) {
		r.forget(client.ObjectKeyFromObject(c))
		return -1
	}
	every, now := cmp.Or(r.MakeAgain, time.Hour), r.Clock.Now()
	last, known := r.lastAsked(c)
	if !known {
		sum := fnv.New32a()
		_, _ = sum.Write([]byte(c.UID))
		last = now.Add(-time.Duration(sum.Sum32()%1000) * every / 1000)
		r.note(c, last)
	}
	return max(0, last.Add(every).Sub(now))
}

// note notes when the gitstore was asked for the Checkpoint's branches.
func (r *Branches) note(c *v1alpha1.Checkpoint, at time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.asked == nil {
		r.asked = map[types.NamespacedName]time.Time{}
	}
	r.asked[client.ObjectKeyFromObject(c)] = at
}

// lastAsked returns when the gitstore was last asked for the Checkpoint's branches.
func (r *Branches) lastAsked(c *v1alpha1.Checkpoint) (at time.Time, known bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	at, known = r.asked[client.ObjectKeyFromObject(c)]
	return at, known
}

// forget forgets a Checkpoint that has no branches.
func (r *Branches) forget(c types.NamespacedName) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.asked, c)
	delete(r.reserved, c)
}

// reserve notes that this process is about to create a pod of the Checkpoint; "" if it may have.
func (r *Branches) reserve(c *v1alpha1.Checkpoint, pod string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.reserved == nil {
		r.reserved = map[types.NamespacedName]string{}
	}
	r.reserved[client.ObjectKeyFromObject(c)] = pod
}

// reservedOf returns the name of the Checkpoint's pod that is reserved; "" for none.
func (r *Branches) reservedOf(c *v1alpha1.Checkpoint) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.reserved[client.ObjectKeyFromObject(c)]
}

// isMade reports whether the gitstore has had the branch.
func isMade(s v1alpha1.CheckpointBranchStatus) bool { return s.State == v1alpha1.BranchMade }

// idle reports whether there is nothing to do for the Checkpoint, as far as the cache tells, and
// when to look again; 0 for never.
func (r *Branches) idle(ctx context.Context, c *v1alpha1.Checkpoint) (bool, time.Duration, error) {
	if c.DeletionTimestamp != nil || len(c.Spec.Branches)+len(c.Status.Branches) == 0 {
		return true, 0, nil
	}
	if isDurable(c) && len(missing(c))+len(surplus(c)) > 0 {
		return false, 0, nil
	}
	observed, err := r.observe(ctx, r.Client, 0, c, c)
	if err != nil {
		return false, 0, err
	}
	p := plan.DecideBranches(observed, r.Clock.Now())
	return !p.Changes(c), p.RequeueAfter, nil
}

// isDurable reports whether the gitstore has the checkpoint.
func isDurable(c *v1alpha1.Checkpoint) bool {
	return meta.IsStatusConditionTrue(c.Status.Conditions, v1alpha1.CheckpointDurable)
}

// reconcile makes and removes branches, makes those again that should be there if it is told
// to, and follows those that are pushed.
func (r *Branches) reconcile(ctx context.Context, c *v1alpha1.Checkpoint, again bool) (time.Duration, error) {
	old := c.DeepCopy()
	var failed error
	if isDurable(c) {
		failed = r.remove(ctx, c)
		names := missing(c)
		if again {
			names = nil
			for _, b := range c.Spec.Branches {
				names = append(names, b.Name)
			}
			r.note(c, r.Clock.Now())
		}
		failed = errors.Join(failed, r.make(ctx, c, names))
	}
	after, err := r.push(ctx, old, c, branchEvents(old, c))
	return after, errors.Join(failed, err)
}

// missing returns the names of the branches that have to be made.
func missing(c *v1alpha1.Checkpoint) (names []string) {
	for _, b := range c.Spec.Branches {
		known := slices.ContainsFunc(c.Status.Branches, func(s v1alpha1.CheckpointBranchStatus) bool {
			return s.Name == b.Name && (s.State == v1alpha1.BranchMade || s.ObservedGeneration == c.Generation)
		})
		if !known {
			names = append(names, b.Name)
		}
	}
	return names
}

// surplus returns the branches that the spec no longer names.
func surplus(c *v1alpha1.Checkpoint) (branches []v1alpha1.CheckpointBranchStatus) {
	for _, s := range c.Status.Branches {
		if !slices.ContainsFunc(c.Spec.Branches, func(b v1alpha1.CheckpointBranch) bool { return b.Name == s.Name }) {
			branches = append(branches, s)
		}
	}
	return branches
}

// remove removes the branches that are surplus.
func (r *Branches) remove(ctx context.Context, c *v1alpha1.Checkpoint) error {
	for _, b := range surplus(c) {
		if b.Commit != "" {
			err := r.Gitstore.RemoveBranch(ctx, c.Namespace, c.Status.TaskUID, c.Spec.TaskRef.Name, b.Name, b.Commit)
			refusal := (*gitstoreapi.Refusal)(nil)
			gone := errors.As(err, &refusal) && (refusal.Reason == gitstoreapi.NotFound || isFinal(refusal))
			if err != nil && !gone {
				return fmt.Errorf("remove the branch %s of Checkpoint %s: %w", b.Name, c.Name, err)
			}
		}
		c.Status.Branches = slices.DeleteFunc(c.Status.Branches, func(s v1alpha1.CheckpointBranchStatus) bool { return s.Name == b.Name })
	}
	return nil
}

// make makes branches. What is known of one that the gitstore has stays if another commit has
// its name by now.
func (r *Branches) make(ctx context.Context, c *v1alpha1.Checkpoint, names []string) (failed error) {
	query := gitstoreapi.BranchQuery{Task: c.Spec.TaskRef.Name, Checkpoint: c.Status.Number, Base: c.Status.Base}
	if c.Status.Git != nil {
		query.Head = c.Status.Git.Head
	}
	for _, name := range names {
		query.Name = name
		status, err := r.ask(ctx, c, query)
		if err != nil {
			failed = errors.Join(failed, fmt.Errorf("make the branch %s of Checkpoint %s: %w", name, c.Name, err))
		}
		if status == nil { // so it would be with the others
			break
		}
		i := slices.IndexFunc(c.Status.Branches, func(s v1alpha1.CheckpointBranchStatus) bool { return s.Name == name })
		switch {
		case i < 0:
			c.Status.Branches = append(c.Status.Branches, *status)
		case status.ObservedGeneration > 0 && isMade(c.Status.Branches[i]): // another commit has the name
		default:
			status.Origin, status.Agent = c.Status.Branches[i].Origin, c.Status.Branches[i].Agent
			c.Status.Branches[i] = *status
		}
	}
	slices.SortFunc(c.Status.Branches, func(a, b v1alpha1.CheckpointBranchStatus) int { return cmp.Compare(a.Name, b.Name) })
	return failed
}

// ask asks the gitstore for a branch. It returns the branch's status, nil if there was no answer,
// and an error if the branch should be asked for again.
func (r *Branches) ask(ctx context.Context, c *v1alpha1.Checkpoint, query gitstoreapi.BranchQuery) (*v1alpha1.CheckpointBranchStatus, error) {
	made, err := r.Gitstore.MakeBranch(ctx, c.Namespace, c.Status.TaskUID, query)
	if err == nil {
		return &v1alpha1.CheckpointBranchStatus{Name: query.Name, State: v1alpha1.BranchMade, Ref: made.Ref, Commit: made.Commit}, nil
	}
	refusal := (*gitstoreapi.Refusal)(nil)
	if !errors.As(err, &refusal) || refusal.Retryable() {
		return nil, err
	}
	status := &v1alpha1.CheckpointBranchStatus{Name: query.Name, State: v1alpha1.BranchRefused, Message: resources.PlainText(refusal.Message, maxRefusal)}
	if !isFinal(refusal) {
		return status, err
	}
	status.ObservedGeneration = c.Generation
	return status, nil
}

// isFinal reports whether only another name helps. The others are tried again: a gitstore that
// was restored from an older copy gets its checkpoints back, and one of an earlier version is
// upgraded.
func isFinal(refusal *gitstoreapi.Refusal) bool {
	return slices.Contains([]gitstoreapi.Reason{gitstoreapi.RefExists, gitstoreapi.RefNotAllowed, gitstoreapi.BadRequest}, refusal.Reason)
}
