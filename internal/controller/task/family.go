package task

import (
	"context"
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/plan"
)

// tasksByParent is the cache's index of Tasks by the UID of the parent in their status.
const tasksByParent = "parent"

// parentUID is the index function of tasksByParent.
func parentUID(object client.Object) []string {
	task, ok := object.(*v1alpha1.Task)
	if !ok || task.Status.Parent == nil {
		return nil
	}
	return []string{task.Status.Parent.UID}
}

// supervisorsByContract is the cache's index of supervisors by the name of their contract.
const supervisorsByContract = "supervisorOfContract"

// supervisedContract is the index function of supervisorsByContract.
func supervisedContract(object client.Object) []string {
	task, ok := object.(*v1alpha1.Task)
	if !ok || task.Spec.Role != v1alpha1.RoleSupervisor || plan.ContractName(task) == "" {
		return nil
	}
	return []string{plan.ContractName(task)}
}

// observeFamily reads the task's children, its parent, its contract, and what its agent has asked for that,
// as far as it has yet to be decided.
func (r *Reconciler) observeFamily(ctx context.Context, task *v1alpha1.Task, reader client.Reader, o *plan.Observed) (err error) {
	if task.Spec.Role == v1alpha1.RoleSupervisor {
		if task.DeletionTimestamp != nil {
			o.Joining = r.relations.Close(task) // before the children are listed
		}
		if o.Children, err = r.children(ctx, task); err != nil {
			return err
		}
		if r.PhaseCalls != nil {
			o.PhaseCall = r.PhaseCalls.Of(task.UID)
		}
		o.PhaseStart = nil
		if name := plan.PhaseStartName(task, o.PhaseCall); name != "" {
			if o.PhaseStart, err = read[v1alpha1.Checkpoint](ctx, reader, task.Namespace, name); err != nil {
				return err
			}
		}
	}
	if err := r.observeParent(ctx, task, reader, o); err != nil {
		return err
	}
	return r.observeContract(ctx, task, o)
}

// children lists the children of a task, as the cache has them: one that it does not have yet follows with
// its event. They are only read.
func (r *Reconciler) children(ctx context.Context, task *v1alpha1.Task) ([]v1alpha1.Task, error) {
	return r.indexed(ctx, task.Namespace, tasksByParent, string(task.UID))
}

// indexed lists the Tasks of a namespace by an index, to be read only.
func (r *Reconciler) indexed(ctx context.Context, namespace, index, value string) ([]v1alpha1.Task, error) {
	list := &v1alpha1.TaskList{}
	err := r.Client.List(ctx, list, client.InNamespace(namespace), client.MatchingFields{index: value}, client.UnsafeDisableDeepCopy)
	if err != nil {
		return nil, fmt.Errorf("list the tasks by %s %s: %w", index, value, err)
	}
	return list.Items, nil
}

// observeParent reads the parent that a task has yet to find, or that may have been made again.
func (r *Reconciler) observeParent(ctx context.Context, task *v1alpha1.Task, reader client.Reader, o *plan.Observed) (err error) {
	o.Parent = plan.Parent{}
	if task.Spec.ParentRef == nil {
		return nil
	}
	parent, err := read[v1alpha1.Task](ctx, reader, task.Namespace, task.Spec.ParentRef.Name)
	if err != nil || parent == nil {
		return err
	}
	o.Parent.Task = parent
	if task.Status.Parent == nil {
		o.Parent.Circle = r.relations.ParentCircle(task)
		o.Parent.Room = r.relations.RoomBelow(task, parent.UID)
	}
	return nil
}

// observeContract reads who leads the contract that a task belongs to, and whether that has room.
func (r *Reconciler) observeContract(ctx context.Context, task *v1alpha1.Task, o *plan.Observed) error {
	o.Contract = plan.Contract{}
	name := plan.ContractName(task)
	if name == "" && o.Parent.Task != nil {
		name = plan.ContractName(o.Parent.Task)
	}
	joined := task.Status.Contract != nil
	if name == "" || joined && task.Spec.Role != v1alpha1.RoleSupervisor {
		return nil
	}
	for _, leader := range r.relations.Leaders(task, name) {
		other, err := read[v1alpha1.Task](ctx, r.Client, task.Namespace, leader.Name)
		if err != nil {
			return err
		}
		if other != nil && other.UID == leader.UID && (leader.Reserved || plan.LeadsBefore(other, task)) {
			o.Contract.Leader = other
		}
	}
	o.Contract.Room = joined || r.relations.RoomIn(task, name)
	return nil
}

// looks is how often a decision is made again because others were given the places that it counts on.
const looks = 3

// errTaken is returned while the account of relations is behind what a decision depends on.
var errTaken = errors.New("places of the family that were free a moment ago are taken: decide again")

// takePlaces keeps the places that a plan's status shows for the first time, and decides again if another
// task has got one of them meanwhile.
func (r *Reconciler) takePlaces(ctx context.Context, task *v1alpha1.Task, o *plan.Observed, p plan.Plan) (plan.Plan, error) {
	for range looks {
		if r.relations.Take(task, &p.Status) {
			return p, nil
		}
		if err := r.observeFamily(ctx, task, r.Live, o); err != nil {
			return p, err
		}
		p = plan.Decide(*o, r.Clock.Now())
	}
	return p, errTaken
}

// settlePlaces gives back the places that a task has been given and does not use, and those that it has
// asked for. live is false if that was decided on what the cache has.
func (r *Reconciler) settlePlaces(task *v1alpha1.Task, p plan.Plan, live bool) {
	r.settlePlace(task, p)
	r.relations.Settle(task, live)
}

// deleteChildren deletes the children of a task that is being deleted, with their own.
func (r *Reconciler) deleteChildren(ctx context.Context, task *v1alpha1.Task, children []plan.ObjectRef) error {
	for _, ref := range children {
		child := &v1alpha1.Task{}
		child.Namespace, child.Name = task.Namespace, ref.Name
		uid := types.UID(ref.UID)
		meant := client.Preconditions{UID: &uid}
		if ref.Version != "" {
			meant.ResourceVersion = &ref.Version
		}
		if err := client.IgnoreNotFound(r.Client.Delete(ctx, child, meant)); err != nil {
			return fmt.Errorf("delete the child %s: %w", ref.Name, err)
		}
	}
	return nil
}
