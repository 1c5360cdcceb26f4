package fork

import (
	"context"
	"fmt"
	"slices"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clew-dev/clew/api/v1alpha1"
)

// withParent returns the source as new tasks inherit from it, and the end of a sentence about its parent,
// if they do not have that one: it is gone, or goes, and no other task of its name takes its place.
func (r *Reconciler) withParent(ctx context.Context, source *v1alpha1.Task) (*v1alpha1.Task, string, error) {
	if source.Spec.ParentRef == nil {
		return source, "", nil
	}
	parent := &v1alpha1.Task{}
	err := r.Live.Get(ctx, client.ObjectKey{Namespace: source.Namespace, Name: source.Spec.ParentRef.Name}, parent)
	if client.IgnoreNotFound(err) != nil {
		return nil, "", fmt.Errorf("read the parent of task %s: %w", source.Name, err)
	}
	if err == nil && isParent(parent, source) {
		return inPhaseOf(parent, source), "", nil
	}
	orphan := withoutParent(source)
	alone := fmt.Sprintf("; the parent %s of task %s is gone, so the new tasks are nobody's children", source.Spec.ParentRef.Name, source.Name)
	if c := orphan.Spec.Contract; c != nil {
		alone += ", and belong to the contract " + c.Name
	}
	return orphan, alone, nil
}

// inPhaseOf returns the source as a child that is made now: a child carries the phase in which it was made,
// and not that of the one whose work it continues.
func inPhaseOf(parent, source *v1alpha1.Task) *v1alpha1.Task {
	c := source.Spec.Contract
	if c == nil || c.Phase == "" || parent.Status.Contract == nil || source.Spec.Role == v1alpha1.RoleSupervisor {
		return source // which finds the phase when it starts
	}
	source = source.DeepCopy()
	source.Spec.Contract.Phase = parent.Status.Contract.Phase
	return source
}

// isParent reports whether a task is, or continues, the parent that the source has found, and stays.
func isParent(parent, source *v1alpha1.Task) bool {
	found := source.Status.Parent
	return found != nil && parent.DeletionTimestamp == nil &&
		(found.UID == string(parent.UID) || slices.Contains(parent.Status.Adoption.FormerUIDs(), found.UID))
}

// withoutParent returns a copy of a child that names the contract itself which it has by its parent.
func withoutParent(child *v1alpha1.Task) *v1alpha1.Task {
	orphan := child.DeepCopy()
	orphan.Spec.ParentRef = nil
	if c := child.Status.Contract; orphan.Spec.Contract == nil && c != nil {
		orphan.Spec.Contract = &v1alpha1.Contract{Name: c.Name}
	}
	return orphan
}
