package fork

import (
	"context"
	"errors"
	"fmt"
	"slices"

	logf "sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/keptspec"
	"github.com/clew-dev/clew/internal/plan"
)

// formerPoint returns the moment from which the last Fork of this name had made its tasks; nil if
// none had made a task that has a variant's name.
func (r *Reconciler) formerPoint(ctx context.Context, f *v1alpha1.Fork) (*v1alpha1.SourceStatus, *plan.Blocker) {
	variant := func(name string) bool {
		return slices.ContainsFunc(f.Spec.Variants, func(v v1alpha1.ForkVariant) bool { return v.Name == name })
	}
	// In this order, since a grant may be carried out in between; see the same question of a Task.
	var elsewhere string
	for _, v := range f.Spec.Variants {
		left, err := r.Store.EarlierNamespace(ctx, f.Namespace, v.Name)
		if err != nil {
			return nil, r.formerUnknown(ctx, f, err)
		}
		if left {
			elsewhere = v.Name
		}
	}
	formers, err := r.Store.ForkedTasks(ctx, f.Namespace, f.Name)
	if err != nil {
		return nil, r.formerUnknown(ctx, f, err)
	}
	for _, former := range formers {
		if at := former.Start; variant(former.Name) {
			return &v1alpha1.SourceStatus{TaskUID: at.TaskUID, Checkpoint: at.Checkpoint, Commit: at.Commit, Position: at.Position}, nil
		}
	}
	if elsewhere != "" {
		return nil, &plan.Blocker{Reason: v1alpha1.ReasonHistoryNotGranted, Message: fmt.Sprintf(
			"a history of a task named %s is kept, but it belongs to an earlier namespace of this one's name: the Fork goes on when an administrator has granted it (historyGrants in the values of Clew's chart); to start anew, apply the Fork with adopt: Never", elsewhere)}
	}
	return nil, nil
}

// formerModes returns the operating modes of the tasks that the last Fork of this name had made, as
// their specs were kept: one that was suspended does not run again because it is made again.
func (r *Reconciler) formerModes(ctx context.Context, f *v1alpha1.Fork) (map[string]v1alpha1.OperatingMode, *plan.Blocker) {
	if f.Spec.Adopt != v1alpha1.AdoptLatest {
		return nil, nil
	}
	formers, err := r.Store.ForkedTasks(ctx, f.Namespace, f.Name)
	if err != nil {
		return nil, r.formerUnknown(ctx, f, err)
	}
	modes := map[string]v1alpha1.OperatingMode{}
	for _, former := range formers {
		if _, newer := modes[former.Name]; newer {
			continue
		}
		kept, err := r.Store.KeptSpec(ctx, history.Key{Namespace: f.Namespace, UID: former.UID})
		if err != nil && !errors.Is(err, history.ErrNotFound) {
			return nil, r.formerUnknown(ctx, f, err)
		}
		spec, err := keptspec.Read(kept)
		if err != nil { // it was too large to be kept
			spec = &v1alpha1.TaskSpec{}
		}
		modes[former.Name] = spec.OperatingMode
	}
	return modes, nil
}

// madeByFormer reports whether a Task that exists was made by an earlier Fork of this name, or
// continues one that was.
func (r *Reconciler) madeByFormer(ctx context.Context, f *v1alpha1.Fork, found *v1alpha1.Task) (bool, *plan.Blocker) {
	if by := plan.ForkOf(found); by != nil {
		return by.Name == f.Name, nil
	}
	formers, err := r.Store.ForkedTasks(ctx, f.Namespace, f.Name)
	if err != nil {
		return false, r.formerUnknown(ctx, f, err)
	}
	return slices.ContainsFunc(formers, func(t history.ForkedTask) bool { return t.UID == string(found.UID) }), nil
}

// formerUnknown is what a Fork waits for whose predecessor cannot be looked up.
func (r *Reconciler) formerUnknown(ctx context.Context, f *v1alpha1.Fork, err error) *plan.Blocker {
	logf.FromContext(ctx).Info("could not find out what the Fork adopts", "error", err.Error())
	return &plan.Blocker{Reason: v1alpha1.ReasonHistoryUnavailable, Message: fmt.Sprintf(
		"the history store cannot be reached, which knows whether an earlier Fork %q has made tasks: the Fork goes on when it can", f.Name)}
}
