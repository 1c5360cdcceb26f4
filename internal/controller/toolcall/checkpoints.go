package toolcall

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/plan"
	"github.com/clew-dev/clew/internal/toolcall"
)

// checkpointsByUse is the cache's index of Checkpoints by what a publish looks for: the UID of their task,
// and their own, their number, or the name of one of their branches; or only the name of one that was pushed
// to the repository.
const checkpointsByUse = "toolcall.checkpoint"

func withUID(taskUID, uid string) string { return taskUID + "/uid/" + uid }

func withNumber(taskUID string, number int64) string {
	return fmt.Sprintf("%s/number/%d", taskUID, number)
}

func withBranch(taskUID, branch string) string { return taskUID + "/branch/" + branch }

func pushedTo(branch string) string { return "/pushed/" + branch }

// usesOf is the index function of checkpointsByUse. The task is that of the status, which nobody else can
// write, while anybody can write labels.
func usesOf(object client.Object) (uses []string) {
	c, ok := object.(*v1alpha1.Checkpoint)
	if !ok || c.Status.TaskUID == "" {
		return nil
	}
	of := c.Status.TaskUID
	uses = []string{withUID(of, string(c.UID)), withNumber(of, c.Status.Number)}
	for _, b := range c.Spec.Branches {
		uses = append(uses, withBranch(of, b.Name))
	}
	for _, b := range c.Status.Branches {
		if use := withBranch(of, b.Name); !slices.Contains(uses, use) {
			uses = append(uses, use)
		}
		if b.Origin != nil && b.Origin.Reason == v1alpha1.ReasonPublished {
			uses = append(uses, pushedTo(b.Name))
		}
	}
	return uses
}

// maxHolders is how many Checkpoints with the branch are read for a publish. Anybody may apply more: one of
// somebody else is enough to refuse it, and of its own, a call frees one after the other.
const maxHolders = 4

// observeLatest reads the number of a task's newest checkpoint, and the objects of its checkpoints that
// matter if one is to be published. A store that was restored from an older copy may know less than the
// status.
func (r *Reconciler) observeLatest(ctx context.Context, request reconcile.Request, o *plan.ObservedCall, name string) error {
	task := o.Named[name]
	if name == toolcall.Self {
		task = o.Task
	}
	if task == nil {
		return nil
	}
	state, err := r.Store.TaskState(ctx, string(task.UID))
	if err != nil && !errors.Is(err, history.ErrNotFound) {
		return fmt.Errorf("ask for the newest checkpoint of the task %s: %w", task.Name, err)
	}
	if state.Latest != nil {
		o.Latest[name] = state.Latest.Number
	}
	if known := task.Status.LatestCheckpoint; known != nil {
		o.Latest[name] = max(o.Latest[name], known.Number)
	}
	if o.Wish.Publish == nil || o.Task.Spec.Publish == nil {
		return nil
	}
	r.waits.add(request, checkpointsOf(task.Namespace, task.Name))
	if o.Call.Noted != "" {
		if err := r.observeHolders(ctx, o); err != nil {
			return err
		}
	}
	return r.observeCheckpoints(ctx, request, o, task, o.Latest[name])
}

// observeCheckpoints reads, of the task's Checkpoints that the cache has, the one that the call has noted,
// that of the newest checkpoint, and those with the branch.
func (r *Reconciler) observeCheckpoints(ctx context.Context, request reconcile.Request, o *plan.ObservedCall, task *v1alpha1.Task, latest int64) error {
	of, names := string(task.UID), []string{}
	noted, _, _ := strings.Cut(o.Call.Noted, " ")
	for _, look := range []struct {
		use  string
		most int
	}{{withUID(of, noted), 1}, {withNumber(of, latest), 1}, {withBranch(of, o.Task.Spec.Publish.Branch), maxHolders}} {
		list := &v1alpha1.CheckpointList{}
		if err := r.Client.List(ctx, list, client.InNamespace(task.Namespace), client.MatchingFields{checkpointsByUse: look.use}, client.UnsafeDisableDeepCopy); err != nil {
			return fmt.Errorf("list the checkpoints of the task %s: %w", task.Name, err)
		}
		// Several may stand for one checkpoint, of which one can be published.
		slices.SortFunc(list.Items, func(a, b v1alpha1.Checkpoint) int {
			return cmp.Or(cmp.Compare(ours(&b), ours(&a)), strings.Compare(a.Name, b.Name))
		})
		for i := range list.Items[:min(len(list.Items), look.most)] {
			if name := list.Items[i].Name; !slices.Contains(names, name) {
				names = append(names, name)
			}
		}
	}
	for _, name := range names {
		c, err := get[v1alpha1.Checkpoint](ctx, r, request, name)
		if err != nil {
			return err
		}
		if c != nil {
			o.Checkpoints = append(o.Checkpoints, trimmed(c))
		}
	}
	return nil
}

// observeHolders reads who else of the supervisor and its children has work at the branch. The cache is
// enough: the answer to a push that fails names them.
func (r *Reconciler) observeHolders(ctx context.Context, o *plan.ObservedCall) error {
	list := &v1alpha1.CheckpointList{}
	if err := r.Client.List(ctx, list, client.InNamespace(o.Task.Namespace), client.MatchingFields{checkpointsByUse: pushedTo(o.Task.Spec.Publish.Branch)}, client.UnsafeDisableDeepCopy); err != nil {
		return fmt.Errorf("list the checkpoints that are published to the branch %s: %w", o.Task.Spec.Publish.Branch, err)
	}
	for i := range list.Items {
		c, task := &list.Items[i], &v1alpha1.Task{}
		err := r.Client.Get(ctx, client.ObjectKey{Namespace: c.Namespace, Name: c.Spec.TaskRef.Name}, task)
		if client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("read the task %s: %w", c.Spec.TaskRef.Name, err)
		}
		if string(task.UID) == c.Status.TaskUID && (task.UID == o.Task.UID || plan.IsChild(o.Task, task)) {
			o.Holders = append(o.Holders, plan.BranchHolder{Task: identityOf(task), Checkpoint: c.Status.Number})
		}
	}
	return nil
}

// ours returns 1 for a Checkpoint that the manager has made, and 0 for any other.
func ours(c *v1alpha1.Checkpoint) int {
	if c.Labels[v1alpha1.LabelManagedBy] == v1alpha1.ManagedBy {
		return 1
	}
	return 0
}

// trimmed returns a Checkpoint without what somebody else may have written at length.
func trimmed(c *v1alpha1.Checkpoint) v1alpha1.Checkpoint {
	managed := ours(c)
	c.Labels, c.Annotations, c.OwnerReferences, c.Finalizers = nil, nil, nil, nil
	if managed == 1 {
		c.Labels = map[string]string{v1alpha1.LabelManagedBy: v1alpha1.ManagedBy}
	}
	return *c
}
