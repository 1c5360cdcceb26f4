package toolcall

import (
	"context"
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/plan"
	"github.com/clew-dev/clew/internal/toolcall"
)

// observe reads what a decision about a call depends on, from the API server: the cache may lack what the
// same agent has just made, and has no managed fields. It reads by name, never a list: tenants may make any
// number of objects, each as large as the API server takes one. A change of what is read wakes the call.
func (r *Reconciler) observe(ctx context.Context, request reconcile.Request, call history.ToolCall, wish plan.Wish) (o plan.ObservedCall, err error) {
	o = plan.ObservedCall{
		Call: call, Wish: wish, Stamped: r.Stamped,
		Named: map[string]*v1alpha1.Task{}, Taken: map[string]*v1alpha1.Task{}, Latest: map[string]int64{},
	}
	task, err := get[v1alpha1.Task](ctx, r, request, call.Task.Name)
	if err != nil || task == nil || string(task.UID) != call.Task.UID {
		return o, err
	}
	o.Task = task
	if o.Behind, err = r.behind(ctx, task); err != nil || o.Behind {
		return o, err
	}
	switch {
	case wish.Create != nil:
		err = r.observeCreate(ctx, request, &o)
	case wish.Fork != nil:
		err = r.observeFork(ctx, request, &o)
	default:
		_, err = r.observeNamed(ctx, request, &o)
	}
	if err != nil {
		return o, err
	}
	for _, name := range wish.Sources() {
		if err := r.observeLatest(ctx, request, &o, name); err != nil {
			return o, err
		}
	}
	return o, nil
}

// behind reports whether the history store lacks what a supervisor's status knows of.
func (r *Reconciler) behind(ctx context.Context, task *v1alpha1.Task) (bool, error) {
	state, err := r.Store.TaskState(ctx, string(task.UID))
	if err != nil && !errors.Is(err, history.ErrNotFound) {
		return false, fmt.Errorf("read what the history store knows of the task %s: %w", task.Name, err)
	}
	return plan.Lags(&task.Status, state), nil
}

// observeCreate reads what a new child depends on. A call that is refused anyway costs little.
func (r *Reconciler) observeCreate(ctx context.Context, request reconcile.Request, o *plan.ObservedCall) error {
	if err := r.observeTaken(ctx, request, o); err != nil || o.Taken[toolcall.ObjectName(o.Task.Name, o.Wish.Create.Name)] != nil {
		return err
	}
	if all, err := r.observeNamed(ctx, request, o); err != nil || !all {
		return err
	}
	return r.count(ctx, request, o, 1)
}

// observeFork reads what a new Fork depends on, or only the one that has its name.
func (r *Reconciler) observeFork(ctx context.Context, request reconcile.Request, o *plan.ObservedCall) error {
	all, err := r.observeNamed(ctx, request, o)
	if err != nil {
		return err
	}
	if names := toolcall.ObjectNames(o.Task.Name, o.Wish.Fork.Name); len(names) > 0 {
		if o.Fork, err = get[v1alpha1.Fork](ctx, r, request, toolcall.ObjectName(o.Task.Name, o.Wish.Fork.Name)); err != nil || o.Fork != nil {
			return err
		}
	}
	if !all {
		return nil
	}
	if err := r.observeTaken(ctx, request, o); err != nil {
		return err
	}
	return r.count(ctx, request, o, len(o.Wish.Fork.Variants))
}

// observeNamed reads the children that the call names, up to the first one that does not exist, and reports
// whether all do. Those that a new child waits for or starts from may be many, and each as large as the API
// server takes one: no more is kept of them than who they are.
func (r *Reconciler) observeNamed(ctx context.Context, request reconcile.Request, o *plan.ObservedCall) (all bool, err error) {
	for _, name := range o.Wish.Names() {
		task, err := r.child(ctx, request, o.Task, name)
		if err != nil || task == nil {
			return false, err
		}
		if o.Wish.Create != nil {
			task = identityOf(task)
		}
		o.Named[name] = task
	}
	return true, nil
}

// observeTaken reads what has the names of the Tasks that the call wants to make. One of the name of a new
// child may be that child; of others no more is kept than who they are.
func (r *Reconciler) observeTaken(ctx context.Context, request reconcile.Request, o *plan.ObservedCall) error {
	for _, name := range o.NewNames() {
		task, err := get[v1alpha1.Task](ctx, r, request, name)
		if err != nil {
			return err
		}
		if task != nil && o.Wish.Create == nil {
			task = identityOf(task)
		}
		o.Taken[name] = task
	}
	return nil
}

// identityOf returns who a task is: its name and UID, whose child it is, on which repository it works, and
// how far its checkpoints are.
func identityOf(task *v1alpha1.Task) *v1alpha1.Task {
	return &v1alpha1.Task{
		ObjectMeta: metav1.ObjectMeta{Namespace: task.Namespace, Name: task.Name, UID: task.UID, DeletionTimestamp: task.DeletionTimestamp},
		Spec:       v1alpha1.TaskSpec{Repository: task.Spec.Repository, ParentRef: task.Spec.ParentRef},
		Status:     v1alpha1.TaskStatus{Parent: task.Status.Parent, LatestCheckpoint: task.Status.LatestCheckpoint},
	}
}

// count counts the supervisor's children, to which so many are to be added, and the tasks of its contract.
func (r *Reconciler) count(ctx context.Context, request reconcile.Request, o *plan.ObservedCall, more int) (err error) {
	if o.Children, err = r.countChildren(ctx, request, o.Task, plan.MaximumOf(o.Task)-more); err != nil {
		return err
	}
	o.Members, err = r.countMembers(ctx, o.Task)
	return err
}

// countChildren counts the children of a supervisor: those that the cache has, and, if they are no more than
// most, those that its calls have made and that the cache does not show yet.
func (r *Reconciler) countChildren(ctx context.Context, request reconcile.Request, lead *v1alpha1.Task, most int) (int, error) {
	children, known := 0, sets.Set[types.UID]{}
	cached := &v1alpha1.TaskList{}
	if err := r.Client.List(ctx, cached, client.InNamespace(lead.Namespace), client.MatchingFields{tasksByParentRef: lead.Name}, client.UnsafeDisableDeepCopy); err != nil {
		return 0, fmt.Errorf("list the children of the task %s: %w", lead.Name, err)
	}
	for i := range cached.Items {
		known.Insert(cached.Items[i].UID)
		if plan.IsChild(lead, &cached.Items[i]) {
			children++
		}
	}
	if children > most {
		return children, nil
	}
	for name, mayCome := range r.made.of(lead.UID) {
		task, err := get[v1alpha1.Task](ctx, r, request, name)
		switch {
		case err != nil:
			return 0, err
		case task == nil && mayCome: // its call is not done yet
		case task == nil, known.Has(task.UID), !plan.IsChild(lead, task):
			r.made.drop(lead.UID, name)
		default:
			children++
		}
	}
	return children, nil
}

// countMembers counts the tasks of the supervisor's contract, as the cache has them.
func (r *Reconciler) countMembers(ctx context.Context, lead *v1alpha1.Task) (int, error) {
	name := plan.ContractName(lead)
	if name == "" {
		return 0, nil
	}
	list := &v1alpha1.TaskList{}
	if err := r.Client.List(ctx, list, client.InNamespace(lead.Namespace), client.MatchingFields{membersOfContract: name}, client.UnsafeDisableDeepCopy); err != nil {
		return 0, fmt.Errorf("list the tasks of the contract %s: %w", name, err)
	}
	return len(list.Items), nil
}

// child returns the child that a supervisor's agent means by a name; nil if it has none.
func (r *Reconciler) child(ctx context.Context, request reconcile.Request, lead *v1alpha1.Task, name string) (*v1alpha1.Task, error) {
	for _, object := range toolcall.ObjectNames(lead.Name, name) {
		task, err := get[v1alpha1.Task](ctx, r, request, object)
		if err != nil {
			return nil, err
		}
		if task != nil && plan.IsChild(lead, task) {
			return task, nil
		}
	}
	return nil, nil
}

// pointer is the constraint of a pointer to T that is an API object.
type pointer[T any] interface {
	*T
	client.Object
}

// get reads an object of the request's namespace, of which each change wakes the call from then on; nil if
// it does not exist.
func get[T any, P pointer[T]](ctx context.Context, r *Reconciler, request reconcile.Request, name string) (*T, error) {
	object := P(new(T))
	key := client.ObjectKey{Namespace: request.Namespace, Name: name}
	r.waits.add(request, keyOf(object, key))
	err := r.Live.Get(ctx, key, object)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", name, err)
	}
	return (*T)(object), nil
}
