package cli

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net/url"
	"strings"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	historyv1 "github.com/clew-dev/clew/api/history/v1alpha1"
	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/clip"
)

// taskDelete holds the flags of `task delete-history`.
type taskDelete struct {
	*plugin
	output   *enumFlag
	uid      string
	contract string
	yes      bool
	dryRun   dryRunFlag
}

func (p *plugin) taskDeleteHistoryCommand() *cobra.Command {
	o := &taskDelete{plugin: p}
	cmd := &cobra.Command{
		Use:        "delete-history TASK | --contract CONTRACT",
		SuggestFor: []string{"delete", "remove", "rm"},
		Short:      "Permanently delete the history of a deleted task or contract",
		Long: `Permanently delete everything that is stored for a task: its conversation,
checkpoints, snapshots and events, and its code in the gitstore. The Task object
must be deleted first. Data shared with other tasks stays: forks keep what they
started with. This cannot be undone; only an export made before keeps a copy.

With --contract, that is done for each task that the contract had, of whatever UID. A new
contract of its name begins with nothing spent only after that.

If the deletion stops half-way, for example because the gitstore is unavailable,
run the same command again to finish it.`,
		Example: `  # Export a copy, then delete the task and its history
  kubectl clew task export fix-login -f fix-login.jsonl
  kubectl delete tasks.clew.dev fix-login
  kubectl clew task delete-history fix-login

  # Show what would be deleted
  kubectl clew task delete-history fix-login --dry-run=server

  # Delete a contract, and then the histories of all tasks that it had
  kubectl clew delete --contract port-to-go
  kubectl clew task delete-history --contract port-to-go

  # Delete the history of an earlier task with this name, in a script
  kubectl clew task delete-history fix-login --uid 7e0d0a52-6f4e-4b0e-9d83-1f0c5f3f2a10 --yes`,
		Args:              atMost("TASK"),
		ValidArgsFunction: p.completeHistory,
		RunE: func(cmd *cobra.Command, args []string) error {
			name := strings.Join(args, "")
			err := cmp.Or(
				taskOrContract(cmd, name, o.contract),
				notBoth(cmd, "contract", "uid", "the one is about all tasks that a contract had, the other about one"),
			)
			if err != nil {
				return err
			}
			return o.run(cmd.Context(), name)
		},
	}
	cmd.Flags().StringVar(&o.contract, "contract", "", "Delete the histories of all tasks that this contract had.")
	o.output = formatFlag(cmd, "text", "json", "yaml")
	cmd.Flags().StringVar(&o.uid, "uid", "", "UID of the task, if several had this name. Defaults to the newest.")
	cmd.Flags().BoolVarP(&o.yes, "yes", "y", false, "Do not ask for confirmation.")
	_ = cmd.RegisterFlagCompletionFunc("uid", cobra.NoFileCompletions)
	o.dryRun.add(cmd)
	return cmd
}

func (o *taskDelete) run(ctx context.Context, name string) error {
	s, err := o.connect()
	if err != nil {
		return err
	}
	if o.contract != "" {
		return o.runContract(ctx, s)
	}
	params := url.Values{}
	if o.uid != "" {
		params.Set("uid", o.uid)
	}
	found := &historyv1.TaskHistory{}
	if err := s.historyGet(ctx, []string{"taskhistories", name}, params, found); err != nil {
		return err
	}
	if err := s.checkTaskDeleted(ctx, found); err != nil {
		return err
	}
	if err := o.preview(o.ErrOut, found); err != nil {
		return err
	}
	if o.dryRun.changes() && !o.yes {
		if err := o.confirm("Delete it permanently?"); err != nil {
			return err
		}
	}
	deleted, err := o.deleteOne(ctx, s, found)
	if err != nil {
		return err
	}
	if o.output.value != "text" {
		return o.printRaw(o.output.value, deleted)
	}
	o.printOne(found, deleted)
	return nil
}

// deleteOne deletes exactly the history that was shown, even if there is a newer task of its name by now.
func (o *taskDelete) deleteOne(ctx context.Context, s *session, found *historyv1.TaskHistory) (*historyv1.HistoryDeletion, error) {
	deleted := &historyv1.HistoryDeletion{DryRun: true, Messages: found.Messages, Checkpoints: found.Checkpoints}
	withType(&deleted.TypeMeta, "HistoryDeletion")
	if o.dryRun.client {
		return deleted, nil
	}
	params := url.Values{"uid": {string(found.UID)}}
	if o.dryRun.server {
		params.Set("dryRun", metav1.DryRunAll)
	}
	deleted = &historyv1.HistoryDeletion{}
	return deleted, o.send(ctx, s, found.Name, params, deleted)
}

// printOne says what was deleted.
func (o *taskDelete) printOne(found *historyv1.TaskHistory, deleted *historyv1.HistoryDeletion) {
	fmt.Fprintf(o.Out, "history of task %s %s%s\n", oneLine(found.Name), deletionOutcome(deleted), o.dryRun.suffix())
}

// send sends the deletion, or its dry run, and decodes what was deleted.
func (o *taskDelete) send(ctx context.Context, s *session, name string, params url.Values, deleted *historyv1.HistoryDeletion) error {
	request, err := s.historyRequest("DELETE", []string{"taskhistories", name}, params)
	if err != nil {
		return err
	}
	defer o.progressIfSlow("deleting; large repositories take a while")()
	result := request.Do(ctx)
	if err := result.Error(); apierrors.IsTimeout(err) || apierrors.IsServerTimeout(err) {
		return fmt.Errorf("the deletion takes longer than the cluster's request timeout; it continues, and the same command reports whether it is done")
	}
	return s.answer(result, deleted)
}

// checkTaskDeleted fails if the Task object still exists. The server checks this too;
// here it is checked before the user is asked to confirm.
func (s *session) checkTaskDeleted(ctx context.Context, found *historyv1.TaskHistory) error {
	task := &v1alpha1.Task{}
	// If the user may not read the Task, this is left to the server.
	seen := s.client.Get(ctx, client.ObjectKey{Namespace: s.namespace, Name: found.Name}, task) == nil
	switch {
	case !seen || task.UID != found.UID:
		return nil
	case task.DeletionTimestamp != nil:
		return fmt.Errorf("task %s is still being deleted; wait for it with `kubectl wait --for=delete tasks.clew.dev/%s -n %s`", found.Name, found.Name, s.namespace)
	}
	return fmt.Errorf("task %s still exists; delete it before its history, with `kubectl delete tasks.clew.dev %s -n %s`", found.Name, found.Name, s.namespace)
}

// preview prints what will be deleted.
func (o *taskDelete) preview(w io.Writer, t *historyv1.TaskHistory) error {
	style := styleFor(w)
	updated := metav1.NewTime(t.Updated.Time)
	rows := [][]string{
		{"  UID", oneLine(string(t.UID))},
		{"  started", fmt.Sprintf("%s ago, last seen %s ago, %s", o.age(&t.CreationTimestamp), o.age(&updated), cmp.Or(oneLine(t.State), "state unknown"))},
		{"  prompt", cmp.Or(clip.Runes(oneLine(t.Preview), 70), "-")},
		{"  deletes", fmt.Sprintf("the conversation of %s, %s with their code, and all events", plural(t.Messages, "message"), plural(t.Checkpoints, "checkpoint"))},
		{"  keeps", "what it shares with other tasks: the beginning of forks, and identical messages"},
	}
	fmt.Fprintln(w, style.red("Permanent")+style.bold(" deletion of the history of task "+oneLine(t.Name)))
	return table(w, nil, rows)
}

// deletionOutcome summarizes what was deleted. A message is stored once for all tasks
// of a namespace that have it, so fewer messages may be deleted than the conversation
// had.
func deletionOutcome(d *historyv1.HistoryDeletion) string {
	if d.DryRun {
		return fmt.Sprintf("would be deleted: the conversation of %s, and %s", plural(d.Messages, "message"), plural(d.Checkpoints, "checkpoint"))
	}
	text := fmt.Sprintf("deleted: the conversation, with %s that no other task shares, %s, %s",
		plural(d.Messages, "message"), plural(d.Checkpoints, "checkpoint"), plural(d.Events, "event"))
	if d.Refs > 0 {
		text += fmt.Sprintf("; %s of code in the gitstore, freeing %s", plural(int64(d.Refs), "ref"), humanBytes(d.Bytes))
	}
	if d.Pending {
		text += "; some texts were in use and will be deleted within minutes"
	}
	return text
}
