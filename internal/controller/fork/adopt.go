package fork

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	logf "sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/plan"
)

// formers are the newest former tasks that have the variants' names.
type formers struct {
	// same were made for a Fork that had this one's name and asked for the same, by their names.
	same map[string]history.ForkedTask
	// newest is the newest of these; nil for none.
	newest *history.ForkedTask
	// other is what the last Fork of this name asked for, if that was something else.
	other string
}

// findFormers looks for the tasks that the last Fork of this name had made.
func (r *Reconciler) findFormers(ctx context.Context, f *v1alpha1.Fork) (*formers, *plan.Blocker) {
	tasks, err := r.Store.ForkedTasks(ctx, f.Namespace, f.Name)
	if err != nil {
		return nil, r.formerUnknown(ctx, f, err)
	}
	from, found, seen := plan.ForkFrom(&f.Spec), &formers{same: map[string]history.ForkedTask{}}, map[string]bool{}
	for _, task := range tasks {
		if !slices.ContainsFunc(f.Spec.Variants, func(v v1alpha1.ForkVariant) bool { return v.Name == task.Name }) || seen[task.Name] {
			continue
		}
		seen[task.Name] = true
		if !plan.SameFork(f.Name, from, task.Start) {
			found.other = cmp.Or(found.other, task.Start.From)
			continue
		}
		found.same[task.Name] = task
		if found.newest == nil {
			found.newest = &task
		}
	}
	return found, nil
}

// adoption returns what a Fork with adopt: Latest continues, and the moment from which the last Fork
// of this name had made its tasks; nil if it is to be resolved anew.
func (r *Reconciler) adoption(ctx context.Context, f *v1alpha1.Fork) (*v1alpha1.ForkAdoptionStatus, *v1alpha1.SourceStatus, *plan.Blocker) {
	// In this order, since a grant may be carried out in between; see the same question of a Task.
	var elsewhere string
	for _, v := range f.Spec.Variants {
		left, err := r.Store.EarlierNamespace(ctx, f.Namespace, v.Name)
		if err != nil {
			return nil, nil, r.formerUnknown(ctx, f, err)
		}
		if left {
			elsewhere = v.Name
		}
	}
	found, blocker := r.findFormers(ctx, f)
	if blocker != nil {
		return nil, nil, blocker
	}
	if found.newest != nil {
		at := found.newest.Start
		return adopted(f, found), &v1alpha1.SourceStatus{TaskUID: at.TaskUID, Checkpoint: at.Checkpoint, Commit: at.Commit, Position: at.Position}, nil
	}
	if elsewhere != "" {
		return nil, nil, &plan.Blocker{Reason: v1alpha1.ReasonHistoryNotGranted, Message: fmt.Sprintf(
			"a history of a task named %s is kept, but it belongs to an earlier namespace of this one's name: the Fork goes on when an administrator has granted it (historyGrants in the values of Clew's chart); to start anew, apply the Fork with adopt: Never", elsewhere)}
	}
	return adopted(f, found), nil, nil
}

// adopted says what a Fork continues, or why nothing.
func adopted(f *v1alpha1.Fork, found *formers) *v1alpha1.ForkAdoptionStatus {
	a := &v1alpha1.ForkAdoptionStatus{}
	for _, v := range f.Spec.Variants {
		if former, ok := found.same[v.Name]; ok {
			a.Tasks = append(a.Tasks, v1alpha1.AdoptedTask{Name: former.Name, FormerUID: former.UID, OperatingMode: knownMode(v1alpha1.OperatingMode(former.OperatingMode))})
		}
	}
	switch {
	case len(a.Tasks) > 0:
		a.Message = fmt.Sprintf("the last Fork named %s had made %d of the tasks, from checkpoint %d: they are continued, and others start from there", f.Name, len(a.Tasks), found.newest.Start.Checkpoint)
	case found.other != "":
		a.Message = fmt.Sprintf("the last Fork named %s had forked %s, and this one asks for %s: all tasks start anew", f.Name, found.other, plan.ForkFrom(&f.Spec))
	default:
		a.Message = fmt.Sprintf("no history of a task is kept in this namespace that an earlier Fork named %s had made under one of the variants' names: all tasks start anew", f.Name)
	}
	return a
}

// adopt has a variant's task continue the one that the last Fork of this name had made, if any, as the
// Fork decided when it resolved its source. One that was suspended does not run again because it is
// made again.
func adopt(f *v1alpha1.Fork, task *v1alpha1.Task) {
	if f.Status.Adoption == nil {
		return
	}
	task.Spec.Adopt = v1alpha1.AdoptLatest
	for _, former := range f.Status.Adoption.Tasks {
		if former.Name == task.Name {
			task.Spec.OperatingMode = knownMode(former.OperatingMode) // an older manager did not write it
		}
	}
}

// knownMode returns the operating mode of a former task. One whose mode is not known is suspended,
// since what runs costs.
func knownMode(mode v1alpha1.OperatingMode) v1alpha1.OperatingMode {
	return cmp.Or(mode, v1alpha1.OperatingModeSuspended)
}

// madeByFormer reports whether a Task that exists was made by an earlier Fork of this name that asked
// for the same, or continues one that was.
func (r *Reconciler) madeByFormer(ctx context.Context, f *v1alpha1.Fork, found *v1alpha1.Task) (bool, *plan.Blocker) {
	if by := plan.ForkOf(found); by != nil {
		return plan.SameFork(f.Name, plan.ForkFrom(&f.Spec), history.Start{Fork: by.Name, From: by.From}), nil
	}
	formers, blocker := r.findFormers(ctx, f)
	if blocker != nil {
		return false, blocker
	}
	return formers.same[found.Name].UID == string(found.UID), nil
}

// formerUnknown is what a Fork waits for whose predecessor cannot be looked up.
func (r *Reconciler) formerUnknown(ctx context.Context, f *v1alpha1.Fork, err error) *plan.Blocker {
	logf.FromContext(ctx).Info("could not find out what the Fork adopts", "error", err.Error())
	return &plan.Blocker{Reason: v1alpha1.ReasonHistoryUnavailable, Message: fmt.Sprintf(
		"the history store cannot be reached, which knows whether an earlier Fork %q has made tasks: the Fork goes on when it can", f.Name)}
}
