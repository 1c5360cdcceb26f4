package cli

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clew-dev/clew/api/v1alpha1"
)

// remove holds the flags of `delete`.
type remove struct {
	*plugin
	output *enumFlag
	yes    bool
	wait   waitFlags
	dryRun dryRunFlag
}

func (p *plugin) deleteCommand() *cobra.Command {
	o := &remove{plugin: p}
	cmd := &cobra.Command{
		Use:        "delete TASK",
		Aliases:    []string{"rm"},
		SuggestFor: []string{"remove", "destroy"},
		Short:      "Delete a task, after showing what goes with it and what stays",
		Long: `Delete a Task object, after showing what becomes of everything that belongs to it: its
children, its agent, its volume, the objects of its checkpoints, and what was forked from
it. Tasks that name a supervisor's contract without being its children stay. The history
stays as well, so that a Task of the same name with adopt: Latest continues it; "kubectl
clew task delete-history" deletes that.

It is the same deletion as that of "kubectl delete", which shows nothing beforehand.`,
		Example: `  # Show what would go, and what would stay
  kubectl clew delete fix-login --dry-run

  # Delete the task in a script
  kubectl clew delete fix-login --yes`,
		Args:              exactly("TASK"),
		ValidArgsFunction: p.completeTask,
		RunE:              func(cmd *cobra.Command, args []string) error { return o.run(cmd.Context(), args[0]) },
	}
	o.output = formatFlag(cmd, "text", "json", "yaml")
	cmd.Flags().BoolVarP(&o.yes, "yes", "y", false, "Do not ask for confirmation.")
	o.wait.add(cmd, "the task is gone")
	o.dryRun.add(cmd)
	return cmd
}

func (o *remove) run(ctx context.Context, name string) error {
	s, err := o.connect()
	if err != nil {
		return err
	}
	task, err := s.task(ctx, name)
	if err != nil {
		return err
	}
	found, err := s.belongings(ctx)
	if err != nil {
		return err
	}
	what := found.deletionOf(task)
	if o.output.value == "text" {
		w := o.ErrOut
		if !o.dryRun.changes() {
			w = o.Out
		}
		if err := what.print(w); err != nil {
			return err
		}
	}
	if o.dryRun.changes() && !o.yes {
		if err := o.confirm("Delete it?"); err != nil {
			return err
		}
	}
	if err := o.send(ctx, s, task); err != nil {
		return err
	}
	if o.output.value != "text" {
		return o.printRaw(o.output.value, what)
	}
	fmt.Fprintf(o.Out, "task.clew.dev/%s %s%s\n", name, o.outcome(), o.dryRun.suffix())
	return nil
}

// outcome says what the command has done.
func (o *remove) outcome() string {
	if o.wait.wait && o.dryRun.changes() {
		return "deleted"
	}
	return "deletion requested"
}

// send deletes the task that was shown, and no later one of its name, and waits until it is gone.
func (o *remove) send(ctx context.Context, s *session, task *v1alpha1.Task) error {
	if o.dryRun.client {
		return nil
	}
	options := []client.DeleteOption{client.Preconditions{UID: &task.UID}}
	if o.dryRun.server {
		options = append(options, client.DryRunAll)
	}
	err := s.client.Delete(ctx, task, options...)
	switch {
	case apierrors.IsConflict(err):
		return fmt.Errorf("task %s was replaced by another one of its name meanwhile, and is left as it is: run the command again", task.Name)
	case err != nil:
		return s.explain(err, "task", task.Name)
	case !o.wait.wait || !o.dryRun.changes():
		return nil
	}
	return s.awaitGone(ctx, o.wait, task)
}

// awaitGone waits until a Task is gone, and shows what its deletion waits for.
func (s *session) awaitGone(ctx context.Context, f waitFlags, task *v1alpha1.Task) error {
	ctx, cancel := context.WithTimeout(ctx, f.timeout)
	defer cancel()
	progress := newProgress(s.ErrOut)
	defer progress.stop()
	state := ""
	gone := func(now any) bool {
		seen, ok := now.(*v1alpha1.Task)
		if !ok || seen.UID != task.UID {
			return true
		}
		state = taskState(seen)
		progress.update(state)
		return false
	}
	_, err := watchtools.UntilWithSync(ctx, s.watcher(&v1alpha1.TaskList{}, task.Name), &v1alpha1.Task{},
		func(store cache.Store) (bool, error) {
			now, exists, err := store.Get(task)
			return err == nil && (!exists || gone(now)), err
		},
		func(event watch.Event) (bool, error) { return event.Type == watch.Deleted || gone(event.Object), nil })
	if wait.Interrupted(err) || errors.Is(err, watchtools.ErrWatchClosed) {
		return s.givenUp(f, "task", task.Name, verdict{state: state}, errors.Is(context.Cause(ctx), context.Canceled))
	}
	return err
}

// belongings are the objects of a namespace that a deletion may concern.
type belongings struct {
	tasks       []v1alpha1.Task
	checkpoints []v1alpha1.Checkpoint
	snapshots   []v1alpha1.ConversationSnapshot
	forks       []v1alpha1.Fork
}

// belongings reads them.
func (s *session) belongings(ctx context.Context) (belongings, error) {
	tasks, checkpoints := &v1alpha1.TaskList{}, &v1alpha1.CheckpointList{}
	snapshots, forks := &v1alpha1.ConversationSnapshotList{}, &v1alpha1.ForkList{}
	for kind, list := range map[string]client.ObjectList{"task": tasks, "checkpoint": checkpoints, "conversationsnapshot": snapshots, "fork": forks} {
		if err := s.client.List(ctx, list, client.InNamespace(s.namespace)); err != nil {
			return belongings{}, s.explain(err, kind, "")
		}
	}
	return belongings{tasks.Items, checkpoints.Items, snapshots.Items, forks.Items}, nil
}

// ownedBy reports whether an object goes when the owner with the UID does.
func ownedBy(object metav1.Object, uid types.UID) bool {
	for _, owner := range object.GetOwnerReferences() {
		if owner.UID == uid {
			return true
		}
	}
	return false
}
