package cli

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net/url"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	historyv1 "github.com/clew-dev/clew/api/history/v1alpha1"
	"github.com/clew-dev/clew/api/v1alpha1"
)

// contractDeletion is what a deletion of the histories of a contract prints as JSON.
type contractDeletion struct {
	Contract string                      `json:"contract"`
	Items    []historyv1.HistoryDeletion `json:"items"`
}

// runContract deletes the histories of all tasks that a contract had.
func (o *taskDelete) runContract(ctx context.Context, s *session) error {
	found, err := s.contractHistories(ctx, o.contract)
	if err != nil {
		return err
	}
	if err := s.checkContractDeleted(ctx, o.contract, found); err != nil {
		return err
	}
	if err := o.previewContract(o.ErrOut, found); err != nil {
		return err
	}
	if o.dryRun.changes() && !o.yes {
		if err := o.confirm("Delete them permanently?"); err != nil {
			return err
		}
	}
	all := contractDeletion{Contract: o.contract}
	for i := range found {
		deleted, err := o.deleteOne(ctx, s, &found[i])
		if err != nil {
			return fmt.Errorf("the deletion stopped at the history of task %s, after %d of %d: %w; run the command again to go on", found[i].Name, i, len(found), err)
		}
		deleted.Name, deleted.UID = found[i].Name, found[i].UID
		all.Items = append(all.Items, *deleted)
		if o.output.value == "text" {
			o.printOne(&found[i], deleted)
		}
	}
	if o.output.value != "text" {
		return o.printRaw(o.output.value, all)
	}
	return nil
}

// contractHistories returns the histories of the tasks that a contract had, by name. They are those of which its
// timeline has the transitions.
func (s *session) contractHistories(ctx context.Context, contract string) ([]historyv1.TaskHistory, error) {
	of := &timeline{plugin: s.plugin, contract: contract, types: []string{"task"}}
	params, err := of.params()
	if err != nil {
		return nil, err
	}
	events, err := of.read(ctx, s, "", params, of.limit)
	if err != nil {
		return nil, err
	}
	names := map[string]string{}
	for _, e := range events.Items {
		names[e.TaskUID] = e.Task
	}
	if len(names) == 0 {
		return nil, fmt.Errorf("the history of namespace %s has no task of the contract %s; `kubectl clew task list -n %s` prints the tasks that it has", s.namespace, contract, s.namespace)
	}
	var found []historyv1.TaskHistory
	for uid, name := range names {
		one := historyv1.TaskHistory{}
		if err := s.historyGet(ctx, []string{"taskhistories", name}, url.Values{"uid": {uid}}, &one); err != nil {
			return nil, fmt.Errorf("task %s: %w", name, err)
		}
		found = append(found, one)
	}
	slices.SortFunc(found, func(a, b historyv1.TaskHistory) int {
		return cmp.Or(cmp.Compare(a.Name, b.Name), a.CreationTimestamp.Compare(b.CreationTimestamp.Time))
	})
	return found, nil
}

// checkContractDeleted fails if a task of the contract still exists. The server checks this for each one too;
// here it is checked before the user is asked to confirm.
func (s *session) checkContractDeleted(ctx context.Context, contract string, found []historyv1.TaskHistory) error {
	list := &v1alpha1.TaskList{}
	switch err := s.client.List(ctx, list, client.InNamespace(s.namespace)); {
	case apierrors.IsForbidden(err): // the server looks for somebody who may not list them
		return nil
	case err != nil:
		return fmt.Errorf("list the tasks of the contract %s: %w", contract, err)
	}
	uids := map[types.UID]bool{}
	for _, t := range found {
		uids[t.UID] = true
	}
	left := slices.DeleteFunc(list.Items, func(t v1alpha1.Task) bool { return !uids[t.UID] })
	if len(left) == 0 {
		return nil
	}
	return fmt.Errorf("of the contract %s these tasks still exist: %s; delete them before the history, with `kubectl clew delete --contract %s -n %s`",
		contract, listed(namesOf(left)), contract, s.namespace)
}

// previewContract prints what will be deleted.
func (o *taskDelete) previewContract(w io.Writer, found []historyv1.TaskHistory) error {
	style := styleFor(w)
	fmt.Fprintf(w, "%s%s\n", style.red("Permanent"), style.bold(fmt.Sprintf(" deletion of the histories of %s of the contract %s", plural(int64(len(found)), "task"), oneLine(o.contract))))
	var messages, checkpoints int64
	rows := make([][]string, 0, len(found))
	for _, t := range found {
		messages, checkpoints = messages+t.Messages, checkpoints+t.Checkpoints
		rows = append(rows, []string{"  " + oneLine(t.Name), oneLine(string(t.UID)), plural(t.Messages, "message"), plural(t.Checkpoints, "checkpoint")})
	}
	if err := table(w, nil, rows); err != nil {
		return err
	}
	return table(w, nil, [][]string{
		{"  deletes", fmt.Sprintf("the conversations of %s, %s with their code, and all events", plural(messages, "message"), plural(checkpoints, "checkpoint"))},
		{"  keeps", "what they share with other tasks: the beginning of forks, and identical messages"},
	})
}
