package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"

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
	contract string
	output   *enumFlag
	yes      bool
	wait     waitFlags
	dryRun   dryRunFlag
}

func (p *plugin) deleteCommand() *cobra.Command {
	o := &remove{plugin: p}
	cmd := &cobra.Command{
		Use:        "delete TASK | --contract CONTRACT",
		Aliases:    []string{"rm"},
		SuggestFor: []string{"remove", "destroy"},
		Short:      "Delete a task or a contract, after showing what goes with it and what stays",
		Long: `Delete a Task object, after showing what becomes of everything that belongs to it: its
children, its agent, its volume, the objects of its checkpoints, and what was forked from
it. Tasks that name a supervisor's contract without being its children stay, and are
named. The history stays as well, so that a Task of the same name with adopt: Latest
continues it; "kubectl clew task delete-history" deletes that.

With --contract, every task of the contract is deleted, its supervisors first, so that no
agent makes new ones meanwhile. If the command is interrupted, run it again: it goes on
with those that are left.

It is the same deletion as that of "kubectl delete", which shows nothing beforehand.`,
		Example: `  # Show what would go, and what would stay
  kubectl clew delete fix-login --dry-run

  # Delete the task in a script
  kubectl clew delete fix-login --yes

  # Show what would go with all tasks of a contract, and delete them
  kubectl clew delete --contract port-to-go --dry-run
  kubectl clew delete --contract port-to-go`,
		Args:              atMost("TASK"),
		ValidArgsFunction: p.completeTask,
		RunE: func(cmd *cobra.Command, args []string) error {
			name := strings.Join(args, "")
			if err := taskOrContract(cmd, name, o.contract); err != nil {
				return err
			}
			return o.run(cmd.Context(), name)
		},
	}
	cmd.Flags().StringVar(&o.contract, "contract", "", "Delete all tasks of this contract.")
	o.output = formatFlag(cmd, "text", "json", "yaml")
	cmd.Flags().BoolVarP(&o.yes, "yes", "y", false, "Do not ask for confirmation.")
	o.wait.add(cmd, "the task is gone")
	o.dryRun.add(cmd)
	return cmd
}

// taskOrContract requires either the name of a task or --contract.
func taskOrContract(cmd *cobra.Command, task, contract string) error {
	if (task == "") == (contract == "") {
		return fmt.Errorf("name either a task, or a contract with --contract CONTRACT; usage: %s", cmd.UseLine())
	}
	return nil
}

func (o *remove) run(ctx context.Context, name string) error {
	s, err := o.connect()
	if err != nil {
		return err
	}
	what, tasks, err := o.find(ctx, s, name)
	if err != nil {
		return err
	}
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
		if err := o.confirm(what.question()); err != nil {
			return err
		}
	}
	if err := o.sendAll(ctx, s, tasks); err != nil {
		return err
	}
	if err := o.checkNewer(ctx, s); err != nil {
		return err
	}
	if o.output.value != "text" {
		return o.printRaw(o.output.value, what)
	}
	fmt.Fprintf(o.Out, "%s %s%s\n", what.subject(), o.outcome(), o.dryRun.suffix())
	return nil
}

// find returns the tasks to delete, in that order, and what becomes of what belongs to them.
func (o *remove) find(ctx context.Context, s *session, name string) (*deletion, []*v1alpha1.Task, error) {
	var task *v1alpha1.Task
	var err error
	if name != "" {
		if task, err = s.task(ctx, name); err != nil {
			return nil, nil, err
		}
	}
	found, err := s.belongings(ctx)
	if err != nil {
		return nil, nil, err
	}
	if task != nil {
		return found.deletionOf(task), []*v1alpha1.Task{task}, nil
	}
	members := membersOf(found.tasks, o.contract)
	if len(members) == 0 {
		return nil, nil, noSuchContract(s.namespace, o.contract)
	}
	what, tasks := found.deletionOfContract(o.contract, members)
	return what, tasks, nil
}

// outcome says what the command has done.
func (o *remove) outcome() string {
	if o.wait.wait && o.dryRun.changes() {
		return "deleted"
	}
	return "deletion requested"
}

// sendAll deletes the tasks that were shown, and waits until they are gone. Of a contract, one that is gone
// already went with its parent.
func (o *remove) sendAll(ctx context.Context, s *session, tasks []*v1alpha1.Task) error {
	for i, task := range tasks {
		err := o.send(ctx, s, task)
		switch {
		case err != nil && o.contract != "":
			return fmt.Errorf("the deletion stopped at task %s, after %d of %d: %w; run the command again to go on", task.Name, i, len(tasks), err)
		case err != nil:
			return err
		}
	}
	if !o.wait.wait || !o.dryRun.changes() {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, o.wait.timeout)
	defer cancel()
	for _, task := range tasks {
		if err := s.awaitGone(ctx, o.wait, task); err != nil {
			return err
		}
	}
	return nil
}

// send deletes the task that was shown, and no later one of its name.
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
	case apierrors.IsNotFound(err) && !isMissingResource(err) && o.contract != "":
		return nil
	case apierrors.IsConflict(err):
		return fmt.Errorf("task %s was replaced by another one of its name meanwhile, and is left as it is: run the command again", task.Name)
	}
	return s.explain(err, "task", task.Name)
}

// checkNewer fails if the contract has tasks that were made since it was shown: nobody has agreed to their
// deletion.
func (o *remove) checkNewer(ctx context.Context, s *session) error {
	if o.contract == "" || !o.wait.wait || !o.dryRun.changes() {
		return nil
	}
	list := &v1alpha1.TaskList{}
	if err := s.client.List(ctx, list, client.InNamespace(s.namespace)); err != nil {
		return s.explain(err, "task", "")
	}
	if left := membersOf(list.Items, o.contract); len(left) > 0 {
		return fmt.Errorf("what was shown is deleted, and the contract %s has got new tasks meanwhile: %s; run the command again to delete those", o.contract, listed(namesOf(left)))
	}
	return nil
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
