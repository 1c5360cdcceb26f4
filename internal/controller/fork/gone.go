package fork

import (
	"context"
	"errors"

	"k8s.io/apimachinery/pkg/types"
	logf "sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/keptspec"
	"github.com/clew-dev/clew/internal/plan"
)

// repository returns the repository of a source that exists.
func repository(source *v1alpha1.Task) *v1alpha1.Repository {
	if source == nil {
		return nil
	}
	return source.Spec.Repository
}

// gone returns a source that is gone, as its history has it: a name, a UID, its last spec, and its place
// in its contract and below its parent.
func (r *Reconciler) gone(ctx context.Context, f *v1alpha1.Fork, uid string) (*v1alpha1.Task, *plan.Blocker) {
	kept, err := r.Store.KeptSpec(ctx, history.Key{Namespace: f.Namespace, UID: uid})
	if err != nil && !errors.Is(err, history.ErrNotFound) {
		logf.FromContext(ctx).Info("could not read the spec of the task to fork", "source", f.Spec.SourceRef.Name, "error", err.Error())
		return nil, plan.SpecUnknown(&f.Spec)
	}
	if blocker := plan.ForkGone(&f.Spec, kept); blocker != nil {
		return nil, blocker
	}
	task := &v1alpha1.Task{}
	task.Namespace, task.Name, task.UID = f.Namespace, f.Spec.SourceRef.Name, types.UID(uid)
	spec, err := keptspec.Read(kept)
	if err != nil {
		logf.FromContext(ctx).Error(err, "could not read the spec of the task to fork", "source", f.Spec.SourceRef.Name)
		return nil, plan.ForkGone(&f.Spec, history.KeptSpec{})
	}
	task.Spec = *spec
	if m := kept.Membership; m.ParentUID != "" && spec.ParentRef != nil {
		task.Status.Parent = &v1alpha1.ParentStatus{Name: spec.ParentRef.Name, UID: m.ParentUID}
	}
	if m := kept.Membership; m.Contract != "" {
		task.Status.Contract = &v1alpha1.ContractStatus{Name: m.Contract, Phase: m.Phase}
	}
	return task, nil
}
