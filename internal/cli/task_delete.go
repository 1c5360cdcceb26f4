package cli

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net/url"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	historyv1 "github.com/clew-dev/clew/api/history/v1alpha1"
	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/clip"
)

type taskDelete struct {
	*plugin
	output *enumFlag
	uid    string
	yes    bool
	dryRun dryRunFlag
}

func (p *plugin) taskDeleteHistoryCommand() *cobra.Command {
	o := &taskDelete{plugin: p}
	cmd := &cobra.Command{
		Use:        "delete-history TASK",
		SuggestFor: []string{"delete", "remove", "rm"},
		Short:      "Delete all that is stored of a task that is gone, for good",
		Long: `Delete all that is stored of a task, for good: its conversation, checkpoints,
snapshots and events, and its code in the gitstore. The Task object must be gone.
What other tasks share stays: forks keep what they began with. There is no way
back, but for an export that was made before.

If it stops half-way, because the gitstore does not answer say, the same command
again finishes it.`,
		Example: `  # Keep a copy, then delete the task, and its history
  kubectl clew task export fix-login -f fix-login.jsonl
  kubectl delete tasks.clew.dev fix-login
  kubectl clew task delete-history fix-login

  # See what it would delete
  kubectl clew task delete-history fix-login --dry-run=server

  # An earlier task of the name, in a script
  kubectl clew task delete-history fix-login --uid 7e0d0a52-6f4e-4b0e-9d83-1f0c5f3f2a10 --yes`,
		Args:              exactly("TASK"),
		ValidArgsFunction: p.completeHistory,
		RunE:              func(cmd *cobra.Command, args []string) error { return o.run(cmd.Context(), args[0]) },
	}
	o.output = formatFlag(cmd, "text", "json", "yaml")
	cmd.Flags().StringVar(&o.uid, "uid", "", "UID of an earlier task of the name; the newest when left out.")
	cmd.Flags().BoolVarP(&o.yes, "yes", "y", false, "Do not ask.")
	_ = cmd.RegisterFlagCompletionFunc("uid", cobra.NoFileCompletions)
	o.dryRun.add(cmd)
	return cmd
}

func (o *taskDelete) run(ctx context.Context, name string) error {
	s, err := o.connect()
	if err != nil {
		return err
	}
	params := url.Values{}
	if o.uid != "" {
		params.Set("uid", o.uid)
	}
	found := &historyv1.TaskHistory{}
	if err := s.historyGet(ctx, []string{"taskhistories", name}, params, found); err != nil {
		return err
	}
	if err := s.mustBeGone(ctx, found); err != nil {
		return err
	}
	if err := o.preview(o.ErrOut, found); err != nil {
		return err
	}
	if !o.dryRun.server && !o.yes {
		if err := o.confirm("Delete it for good?"); err != nil {
			return err
		}
	}
	// The one that was shown, whatever has come meanwhile.
	params.Set("uid", string(found.UID))
	if o.dryRun.server {
		params.Set("dryRun", metav1.DryRunAll)
	}
	deleted := &historyv1.HistoryDeletion{}
	if err := o.send(ctx, s, name, params, deleted); err != nil {
		return err
	}
	if o.output.value != "text" {
		return o.printRaw(o.output.value, deleted)
	}
	fmt.Fprintf(o.Out, "history of task %s %s%s\n", name, deletionOutcome(deleted), o.dryRun.suffix())
	return nil
}

func (o *taskDelete) send(ctx context.Context, s *session, name string, params url.Values, deleted *historyv1.HistoryDeletion) error {
	request, err := s.historyRequest("DELETE", []string{"taskhistories", name}, params)
	if err != nil {
		return err
	}
	defer o.whenSlow("deleting; large repositories take a while")()
	result := request.Do(ctx)
	if err := result.Error(); apierrors.IsTimeout(err) || apierrors.IsServerTimeout(err) {
		return fmt.Errorf("the deletion takes longer than the cluster lets a request wait; it goes on, and the same command again tells whether it is done")
	}
	return s.answer(result, deleted)
}

// mustBeGone refuses what the server would refuse too, before anybody is asked.
func (s *session) mustBeGone(ctx context.Context, found *historyv1.TaskHistory) error {
	task := &v1alpha1.Task{}
	// Where the caller may not see it, the server does.
	seen := s.client.Get(ctx, client.ObjectKey{Namespace: s.namespace, Name: found.Name}, task) == nil
	switch {
	case !seen || task.UID != found.UID:
		return nil
	case task.DeletionTimestamp != nil:
		return fmt.Errorf("task %s is being deleted; wait until it is gone: `kubectl wait --for=delete tasks.clew.dev/%s -n %s`", found.Name, found.Name, s.namespace)
	}
	return fmt.Errorf("task %s is still there, and its history is deleted after it: delete it first, with `kubectl delete tasks.clew.dev %s -n %s`", found.Name, found.Name, s.namespace)
}

// preview tells what is going to be deleted.
func (o *taskDelete) preview(w io.Writer, t *historyv1.TaskHistory) error {
	style := styleFor(w)
	updated := metav1.NewTime(t.Updated.Time)
	rows := [][]string{
		{"  UID", oneLine(string(t.UID))},
		{"  began", fmt.Sprintf("%s ago, last seen %s ago, %s", o.age(&t.CreationTimestamp), o.age(&updated), cmp.Or(oneLine(t.State), "state unknown"))},
		{"  asked", cmp.Or(clip.Runes(oneLine(t.Preview), 70), "-")},
		{"  deletes", fmt.Sprintf("its conversation of %s, %s with their code, all events", plural(t.Messages, "message"), plural(t.Checkpoints, "checkpoint"))},
		{"  keeps", "what other tasks share: the beginning of a fork, and messages that another task has too"},
	}
	fmt.Fprintln(w, style.bold("Deletion of the history of task "+oneLine(t.Name))+", "+style.red("for good"))
	return table(w, nil, rows)
}

// deletionOutcome says in a few words what was deleted. A message is stored once
// for all tasks of a namespace that have it, so that those that go are not as many as
// the conversation had.
func deletionOutcome(d *historyv1.HistoryDeletion) string {
	if d.DryRun {
		return fmt.Sprintf("would be deleted: its conversation of %s, and %s", plural(d.Messages, "message"), plural(d.Checkpoints, "checkpoint"))
	}
	text := fmt.Sprintf("deleted: its conversation, with %s that no other task has, %s, %s",
		plural(d.Messages, "message"), plural(d.Checkpoints, "checkpoint"), plural(d.Events, "event"))
	if d.Refs > 0 {
		text += fmt.Sprintf("; %s of code in the gitstore, which takes %s less", plural(int64(d.Refs), "ref"), humanBytes(d.Bytes))
	}
	if d.Pending {
		text += "; some texts were in use, and go within minutes"
	}
	return text
}
