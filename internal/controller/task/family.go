package task

import (
	"context"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/plan"
)

// Indexes of the cache: Tasks by the name of their contract, its supervisors, and Tasks by the name of
// the parent in their spec, and by the UID of the one in their status.
const (
	tasksByContract       = "contract"
	supervisorsByContract = "supervisorOfContract"
	tasksByParentName     = "parentName"
	tasksByParent         = "parent"
)

// indexFamilies adds the indexes of contracts and parents.
func indexFamilies(indexer client.FieldIndexer) error {
	for name, of := range map[string]func(*v1alpha1.Task) string{
		tasksByContract: plan.ContractName,
		supervisorsByContract: func(t *v1alpha1.Task) string {
			if t.Spec.Role != v1alpha1.RoleSupervisor {
				return ""
			}
			return plan.ContractName(t)
		},
		tasksByParentName: func(t *v1alpha1.Task) string { return ptr.Deref(t.Spec.ParentRef, v1alpha1.NameReference{}).Name },
		tasksByParent:     func(t *v1alpha1.Task) string { return ptr.Deref(t.Status.Parent, v1alpha1.ParentStatus{}).UID },
	} {
		if err := indexer.IndexField(context.Background(), &v1alpha1.Task{}, name, func(object client.Object) []string {
			if t, ok := object.(*v1alpha1.Task); ok && of(t) != "" {
				return []string{of(t)}
			}
			return nil
		}); err != nil {
			return err
		}
	}
	return nil
}

// indexed lists the Tasks of a namespace by an index, as the cache has them: one that it does not have
// yet follows with its event. They are only read.
func (r *Reconciler) indexed(ctx context.Context, namespace, index, value string) ([]v1alpha1.Task, error) {
	list := &v1alpha1.TaskList{}
	err := r.Client.List(ctx, list, client.InNamespace(namespace), client.MatchingFields{index: value}, client.UnsafeDisableDeepCopy)
	if err != nil {
		return nil, fmt.Errorf("list the tasks by %s %s: %w", index, value, err)
	}
	return list.Items, nil
}

// observeFamily reads the task's children, its parent, its contract, and what its agent has asked for that,
// as far as it has yet to be decided.
func (r *Reconciler) observeFamily(ctx context.Context, task *v1alpha1.Task, o *plan.Observed) (err error) {
	if task.Spec.Role == v1alpha1.RoleSupervisor {
		if o.Children, err = r.indexed(ctx, task.Namespace, tasksByParent, string(task.UID)); err != nil {
			return err
		}
		if r.PhaseCalls != nil {
			o.PhaseCall = r.PhaseCalls.Of(task.UID)
		}
	}
	if err := r.observeParent(ctx, task, o); err != nil {
		return err
	}
	return r.observeContract(ctx, task, o)
}

// observeParent reads the parent that a task has yet to find, or that may have been made again.
func (r *Reconciler) observeParent(ctx context.Context, task *v1alpha1.Task, o *plan.Observed) (err error) {
	if task.Spec.ParentRef == nil {
		return nil
	}
	parent, err := read[v1alpha1.Task](ctx, r.Client, task.Namespace, task.Spec.ParentRef.Name)
	if err != nil || parent == nil {
		return err
	}
	o.Parent.Task = parent
	if task.Status.Parent != nil {
		return nil
	}
	if o.Parent.Circle, err = r.circle(ctx, task, parent); err != nil {
		return err
	}
	_, o.Parent.Room, err = r.parentPlaces(ctx, task, parent)
	return err
}

// circle follows the parents of a task, and returns their names if they lead back to it; nil if they do
// not. It follows no more than could be a chain of children.
func (r *Reconciler) circle(ctx context.Context, task, parent *v1alpha1.Task) ([]string, error) {
	names := []string{task.Name}
	for up := parent; up != nil && len(names) <= v1alpha1.MaxContractTasks; {
		switch {
		case up.Name == task.Name:
			return names, nil
		case slices.Contains(names, up.Name) || up.Spec.ParentRef == nil || up.Status.Parent != nil:
			return nil, nil
		}
		names = append(names, up.Name)
		var err error
		if up, err = read[v1alpha1.Task](ctx, r.Client, task.Namespace, up.Spec.ParentRef.Name); err != nil {
			return nil, err
		}
	}
	return nil, nil
}

// parentPlaces returns the children of a parent, and whether a task is or could be one of them.
func (r *Reconciler) parentPlaces(ctx context.Context, task, parent *v1alpha1.Task) (occupants, bool, error) {
	named, err := r.indexed(ctx, task.Namespace, tasksByParentName, parent.Name)
	if err != nil {
		return occupants{}, false, err
	}
	children := occupantsOf(named, func(t *v1alpha1.Task) bool {
		return t.Status.Parent != nil && t.Status.Parent.UID == string(parent.UID)
	})
	return children, r.rooms.has(parentRoom(task.Namespace, parent.UID), task.UID, children, plan.MaximumOf(parent)), nil
}

// observeContract reads who leads the contract that a task belongs to, and whether that has room.
func (r *Reconciler) observeContract(ctx context.Context, task *v1alpha1.Task, o *plan.Observed) error {
	name := plan.ContractName(task)
	if name == "" && o.Parent.Task != nil {
		name = plan.ContractName(o.Parent.Task)
	}
	joined := task.Status.Contract != nil
	if name == "" || joined && task.Spec.Role != v1alpha1.RoleSupervisor {
		return nil
	}
	supervisors, err := r.indexed(ctx, task.Namespace, supervisorsByContract, name)
	if err != nil {
		return err
	}
	for i := range supervisors {
		if other := &supervisors[i]; other.UID != task.UID && plan.LeadsBefore(other, task) {
			o.Contract.Leader = other
		}
	}
	if joined {
		return nil
	}
	_, o.Contract.Room, err = r.contractPlaces(ctx, task, name)
	return err
}

// contractPlaces returns the members of a contract, and whether a task is or could be one of them.
func (r *Reconciler) contractPlaces(ctx context.Context, task *v1alpha1.Task, name string) (occupants, bool, error) {
	named, err := r.indexed(ctx, task.Namespace, tasksByContract, name)
	if err != nil {
		return occupants{}, false, err
	}
	members := occupantsOf(named, func(t *v1alpha1.Task) bool { return t.Status.Contract != nil })
	return members, r.rooms.has(room{contractRoom, task.Namespace, name}, task.UID, members, v1alpha1.MaxContractTasks), nil
}

// takePlaces takes the places that a plan's status shows for the first time. It returns an error if
// another task got one of them meanwhile.
func (r *Reconciler) takePlaces(ctx context.Context, task *v1alpha1.Task, next *v1alpha1.TaskStatus) error {
	if p := next.Parent; p != nil && task.Status.Parent == nil {
		parent, err := read[v1alpha1.Task](ctx, r.Client, task.Namespace, p.Name)
		if err != nil || parent == nil {
			return err
		}
		children, _, err := r.parentPlaces(ctx, task, parent)
		if err != nil {
			return err
		}
		if err := r.rooms.give(parentRoom(task.Namespace, parent.UID), task.UID, children, plan.MaximumOf(parent), next.HistorySequence); err != nil {
			return err
		}
	}
	c := next.Contract
	if c == nil {
		return nil
	}
	if task.Status.Contract == nil {
		members, _, err := r.contractPlaces(ctx, task, c.Name)
		if err != nil {
			return err
		}
		if err := r.rooms.give(room{contractRoom, task.Namespace, c.Name}, task.UID, members, v1alpha1.MaxContractTasks, next.HistorySequence); err != nil {
			return err
		}
	}
	if c.LeadingSince == nil || plan.Leads(task) {
		return nil
	}
	supervisors, err := r.indexed(ctx, task.Namespace, supervisorsByContract, c.Name)
	if err != nil {
		return err
	}
	leaders := occupantsOf(supervisors, plan.Leads)
	return r.rooms.give(room{leadRoom, task.Namespace, c.Name}, task.UID, leaders, 1, next.HistorySequence)
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
