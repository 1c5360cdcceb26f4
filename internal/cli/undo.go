package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/daemonapi"
	"github.com/clew-dev/clew/internal/plan"
)

// undoField is the field of spec.rewind.to that names the rewind to undo.
const undoField = "undoOf"

func (p *plugin) undoCommand() *cobra.Command {
	o := &rewind{plugin: p}
	cmd := &cobra.Command{
		Use:   "undo TASK",
		Short: "Undo the last rewind of a task",
		Long: `Undo the last rewind of a task: what it rewound becomes what it was before, the
files, the conversation or both, and only its paths if it had any. A resume with
--from-checkpoint or --clean counts as a rewind, and so does an undo: a second undo takes
the first one back. A task that was completed before the rewind does not
become completed again: it waits for "kubectl clew resume". Children that were rewound
together with a supervisor undo their rewinds as well, unless another request has rewound or
resumed them since, or --children keep is set; one that was completed before is so again.

Before it asks, it shows which files would change and which messages would go. What
happened since the rewind is kept as a checkpoint, and by default also as a branch in the
agent's repository.`,
		Example: `  # Show what the undo would do, and ask for confirmation
  kubectl clew undo fix-login

  # Only show what it would do
  kubectl clew undo fix-login --dry-run=client

  # The rewind was right after all
  kubectl clew undo fix-login --yes

  # Only the supervisor, of those that were rewound to a set of checkpoints
  kubectl clew undo port --children keep`,
		Args:              exactly("TASK"),
		ValidArgsFunction: p.completeTask,
		RunE: func(cmd *cobra.Command, args []string) error {
			return o.undo(cmd.Context(), args[0], cmd.Flags().Changed("children"))
		},
	}
	o.children = enum(cmd, "children", string(v1alpha1.ChildrenRewind), "What becomes of the children that a supervisor's rewind took along. With Rewind, each undoes its own rewind as well.",
		string(v1alpha1.ChildrenKeep), string(v1alpha1.ChildrenRewind))
	o.addCommonFlags(cmd, "the rewind is undone")
	return cmd
}

// undo undoes the last rewind of the named task. chosen says that --children was given.
func (o *rewind) undo(ctx context.Context, name string, chosen bool) error {
	if err := o.checkBranch(); err != nil {
		return err
	}
	s, err := o.connect()
	if err != nil {
		return err
	}
	task, err := s.task(ctx, name)
	if err != nil {
		return err
	}
	if err := checkRewindable(task); err != nil {
		return err
	}
	id, err := o.newID()
	if err != nil {
		return err
	}
	target := &rewindTarget{field: undoField}
	if last := daemonapi.LastRewind(&task.Status); last != "" {
		target.value = last
	} else if daemonapi.NeverRewound(&task.Status) {
		return fmt.Errorf("there is nothing to undo: task %s was never rewound", name)
	}
	effect, err := o.undoEffect(ctx, s, task, target, id)
	if err != nil {
		return err
	}
	if err := o.keepOthers(task, target, chosen); err != nil {
		return err
	}
	w := o.previewOf(&o.dryRun, o.print)
	if err := o.previewUndo(w, task, target, id, effect); err != nil {
		return err
	}
	if err := o.previewChildren(ctx, s, w, task, target, id); err != nil {
		return err
	}
	if err := cmp.Or(o.driftFails(task), effect.fails(!o.dryRun.changes())); err != nil {
		return err
	}
	if o.dryRun.changes() && !o.yes {
		if err := o.confirm("Undo?"); err != nil {
			return err
		}
	}
	return o.request(ctx, s, task, target, id)
}

// keepOthers leaves the children as they are if the rewind that is undone is not the last one that took any
// along, unless the user has chosen otherwise.
func (o *rewind) keepOthers(task *v1alpha1.Task, target *rewindTarget, chosen bool) error {
	if plan.UndoesSet(task.Status.SetRewind, fmt.Sprint(target.value)) {
		return nil
	}
	if chosen && o.takesChildren() {
		return fmt.Errorf("%s of task %s is not its last one that took children along, so none can be taken back with it: leave --children out, and take each child back by itself, with kubectl clew undo", rewindName(target.value), task.Name)
	}
	o.children.value = string(v1alpha1.ChildrenKeep)
	return nil
}

// rewindName describes a rewind, which a resume may have begun with, by its id.
func rewindName(id any) string {
	if resume, ok := strings.CutPrefix(fmt.Sprint(id), daemonapi.ResumeRewindPrefix); ok {
		return "the rewind by resume " + resume
	}
	return fmt.Sprintf("rewind %v", id)
}

// undoEffect asks what the undo would do. The answer names the rewind that is undone, if the
// task's status does not.
func (o *rewind) undoEffect(ctx context.Context, s *session, task *v1alpha1.Task, target *rewindTarget, id string) (rewindEffect, error) {
	params := o.params(target, id)
	if target.value == nil {
		params.Del(undoField)
		params.Set("undoLast", "true")
	}
	effect, err := s.effectOf(ctx, task, params)
	switch {
	case err != nil:
		return effect, err
	case effect.RewindPreview != nil:
		target.value = effect.UndoOf
	case target.value == nil:
		return effect, errors.New("the history has to say which rewind was the last one, and cannot: " + effect.unknown)
	}
	return effect, nil
}

// previewUndo prints what the undo will do.
func (o *rewind) previewUndo(w io.Writer, task *v1alpha1.Task, target *rewindTarget, id string, effect rewindEffect) error {
	style := styleFor(w)
	var rows [][]string
	if effect.RewindPreview != nil {
		rows = append(rows,
			[]string{"  to", fmt.Sprintf("checkpoint %d, from before that rewind", effect.To.Checkpoint)},
			[]string{"  rewinds", rewinds(v1alpha1.RewindScope(effect.Scope), effect.Paths)})
	} else {
		rows = append(rows, []string{"  to", "what was before that rewind"})
	}
	rows = append(rows, effect.conversation()...)
	rows = append(rows, driftRow("rewind", task, v1alpha1.OnDrift(o.onDrift.value))...)
	rows = append(rows, []string{"  preserves", o.preserved(task, id, effect)})
	if effect.RewindPreview != nil {
		rows = append(rows, branchesGo(v1alpha1.RewindScope(effect.Scope), effect.Paths)...)
	}
	rows = append(rows, []string{"  the agent", o.afterwards(task)})
	rows = append(rows, effect.stopped()...)
	fmt.Fprintln(w, style.bold(fmt.Sprintf("Undo of %s of task %s", rewindName(target.value), task.Name)))
	if err := table(w, nil, append(rows, effect.changes(style)...)); err != nil {
		return err
	}
	return effect.printFiles(w, style)
}
