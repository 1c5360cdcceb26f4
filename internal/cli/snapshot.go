package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/clip"
)

func (p *plugin) snapshotCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "snapshot",
		Aliases: []string{"snapshots"},
		Short:   "Note and list positions of conversations",
		Long: `Note and list positions of conversations: ConversationSnapshots, which give a
message a name, with the sums up to it and a digest that shows whether the
conversation still is what it was. They are pointers: nothing is copied.`,
	}
	return group(cmd, p.snapshotCreateCommand(), p.snapshotListCommand())
}

type snapshotCreate struct {
	*plugin
	name, checkpoint string
	at               int64
	wait             waitFlags
	dryRun           dryRunFlag
	print            *genericclioptions.PrintFlags
}

func (p *plugin) snapshotCreateCommand() *cobra.Command {
	o := &snapshotCreate{plugin: p}
	cmd := &cobra.Command{
		Use:   "create TASK",
		Short: "Note a position of a task's conversation",
		Example: `  # Where it stands now
  kubectl clew snapshot create fix-login --name before-review

  # At an earlier message, or where a checkpoint was taken
  kubectl clew snapshot create fix-login --at 12
  kubectl clew snapshot create fix-login --checkpoint 3`,
		Args:              exactly("TASK"),
		ValidArgsFunction: p.completeTask,
		RunE:              func(cmd *cobra.Command, args []string) error { return o.run(cmd.Context(), args[0]) },
	}
	cmd.Flags().StringVar(&o.name, "name", "", "Name of the ConversationSnapshot. One is made up when left out.")
	cmd.Flags().Int64Var(&o.at, "at", 0, "Position of the message, as \"task history\" shows it; the newest when left out.")
	cmd.Flags().StringVar(&o.checkpoint, "checkpoint", "", "Name or number of a checkpoint, whose position is taken.")
	_ = cmd.RegisterFlagCompletionFunc("checkpoint", p.completeCheckpointOf)
	_ = cmd.RegisterFlagCompletionFunc("name", cobra.NoFileCompletions)
	o.wait.add(cmd, "the position is noted")
	o.dryRun.add(cmd)
	o.print = p.printFlags(cmd)
	return cmd
}

func (o *snapshotCreate) run(ctx context.Context, taskName string) error {
	if o.at < 0 {
		return fmt.Errorf("--at is %d; it must be the position of a message, from 1", o.at)
	}
	if o.at > 0 && o.checkpoint != "" {
		return errors.New("--at and --checkpoint both name a position; leave one of them out")
	}
	s, err := o.connect()
	if err != nil {
		return err
	}
	snapshot, err := o.object(ctx, s, taskName)
	if err != nil {
		return err
	}
	name := snapshot.Name
	if err := s.client.Create(ctx, snapshot, o.dryRun.createOptions()...); err != nil {
		return s.explain(err, "conversationsnapshot", name)
	}
	if o.wait.wait && !o.dryRun.server {
		snapshot, err = await(ctx, s, o.wait, "conversationsnapshot", &v1alpha1.ConversationSnapshotList{}, snapshot, judgeSnapshot)
		if err != nil {
			return err
		}
	}
	if done, err := o.printed(o.print, snapshot); done {
		return err
	}
	outcome := "created"
	if at := snapshot.Status.Conversation; at != nil {
		outcome = fmt.Sprintf("created: message %d of %s, digest %s", at.Position, taskName, clip.Runes(snapshot.Status.Digest, 13))
	}
	fmt.Fprintf(o.Out, "conversationsnapshot.clew.dev/%s %s%s\n", name, outcome, o.dryRun.suffix())
	return nil
}

func (o *snapshotCreate) object(ctx context.Context, s *session, taskName string) (*v1alpha1.ConversationSnapshot, error) {
	task, err := s.task(ctx, taskName)
	if err != nil {
		return nil, err
	}
	snapshot := &v1alpha1.ConversationSnapshot{
		ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: o.name},
		Spec:       v1alpha1.ConversationSnapshotSpec{TaskRef: v1alpha1.NameReference{Name: task.Name}},
	}
	if o.at > 0 {
		snapshot.Spec.Position = &o.at
	}
	if o.checkpoint != "" {
		list, err := s.checkpoints(ctx, taskName)
		if err != nil {
			return nil, err
		}
		checkpoint, err := find(list, task, o.checkpoint)
		if err != nil {
			return nil, err
		}
		snapshot.Spec.CheckpointRef = &v1alpha1.NameReference{Name: checkpoint.Name}
	}
	if o.name == "" {
		id, err := o.newID()
		if err != nil {
			return nil, err
		}
		snapshot.Name = task.Name + "-" + strings.TrimPrefix(id, "cli-")
	}
	return snapshot, nil
}

// judgeSnapshot is done when the position is noted.
func judgeSnapshot(c *v1alpha1.ConversationSnapshot) verdict {
	ready := apimeta.FindStatusCondition(c.Status.Conditions, v1alpha1.SnapshotReady)
	switch {
	case ready == nil:
		return verdict{state: "asked for the snapshot"}
	case ready.Status == metav1.ConditionTrue:
		return verdict{done: true, state: "noted"}
	}
	switch ready.Reason {
	case v1alpha1.ReasonHistoryUnavailable, v1alpha1.ReasonCheckpointNotReady, v1alpha1.ReasonNoConversation:
		return verdict{state: cmp.Or(ready.Message, ready.Reason)}
	}
	return verdict{err: fmt.Errorf("the snapshot was not noted: %s (%s)", plain(ready.Message), ready.Reason)}
}

func (p *plugin) snapshotListCommand() *cobra.Command {
	var flags *genericclioptions.PrintFlags
	var noHeaders bool
	cmd := &cobra.Command{
		Use:     "list [TASK]",
		Aliases: []string{"ls"},
		Short:   "List the snapshots of a task's conversation, or of all in the namespace",
		Long: `List the snapshots of a task's conversation, or of all in the namespace: those
that people made, and the newest that were noted by themselves.`,
		Example: `  # Of one task, oldest first
  kubectl clew snapshot list fix-login

  # Whether all are intact
  kubectl clew snapshot list -o json | jq '.items[].status.conditions[] | select(.type == "Intact").status'`,
		Args:              atMost("TASK"),
		ValidArgsFunction: p.completeTask,
		RunE: func(cmd *cobra.Command, args []string) error {
			task := ""
			if len(args) > 0 {
				task = args[0]
			}
			return p.snapshotList(cmd.Context(), task, flags, noHeaders)
		},
	}
	cmd.Flags().BoolVar(&noHeaders, "no-headers", false, "Leave the table's header out.")
	flags = p.printFlags(cmd)
	return cmd
}

func (p *plugin) snapshotList(ctx context.Context, task string, flags *genericclioptions.PrintFlags, noHeaders bool) error {
	s, err := p.connect()
	if err != nil {
		return err
	}
	list := &v1alpha1.ConversationSnapshotList{}
	if err := s.client.List(ctx, list, client.InNamespace(s.namespace)); err != nil {
		return s.explain(err, "conversationsnapshot", "")
	}
	if task != "" {
		list.Items = slices.DeleteFunc(list.Items, func(c v1alpha1.ConversationSnapshot) bool { return c.Spec.TaskRef.Name != task })
		if len(list.Items) == 0 {
			if _, err := s.task(ctx, task); err != nil {
				return err
			}
		}
	}
	slices.SortStableFunc(list.Items, func(a, b v1alpha1.ConversationSnapshot) int {
		return cmp.Or(cmp.Compare(a.Spec.TaskRef.Name, b.Spec.TaskRef.Name), cmp.Compare(a.Status.MessageCount, b.Status.MessageCount), cmp.Compare(a.Name, b.Name))
	})
	if done, err := p.printed(flags, list); done {
		return err
	}
	if len(list.Items) == 0 {
		fmt.Fprintf(p.ErrOut, "No snapshots in namespace %s yet.\n", s.namespace)
		return nil
	}
	return p.snapshotTable(list.Items, task == "", noHeaders)
}

func (p *plugin) snapshotTable(snapshots []v1alpha1.ConversationSnapshot, withTask, noHeaders bool) error {
	header := []string{"NAME", "POSITION", "TRIGGER", "INTACT", "TOKENS", "COST", "CHECKPOINT", "AGE", "DIGEST"}
	if withTask {
		header = append([]string{"TASK"}, header...)
	}
	if noHeaders {
		header = nil
	}
	rows := make([][]string, 0, len(snapshots))
	for _, c := range snapshots {
		position := "-"
		if at := c.Status.Conversation; at != nil {
			position = strconv.FormatInt(at.Position, 10)
		}
		noted := c.Status.Time
		if noted == nil {
			noted = &c.CreationTimestamp
		}
		row := []string{
			c.Name, position, cmp.Or(string(c.Status.Trigger), "-"), snapshotIntact(c.Status.Conditions),
			count(c.Status.InputTokens + c.Status.OutputTokens), dollars(c.Status.CostMicroUSD), numberOrDash(c.Status.Checkpoint),
			p.age(noted), cmp.Or(clip.Runes(c.Status.Digest, 13), "-"),
		}
		if withTask {
			row = append([]string{c.Spec.TaskRef.Name}, row...)
		}
		rows = append(rows, row)
	}
	return table(p.Out, header, rows)
}

// snapshotIntact tells whether the messages give the digest, or why there is none.
func snapshotIntact(conditions []metav1.Condition) string {
	if apimeta.IsStatusConditionFalse(conditions, v1alpha1.SnapshotReady) {
		return conditionText(conditions, v1alpha1.SnapshotReady)
	}
	return conditionText(conditions, v1alpha1.SnapshotIntact)
}
