package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clew-dev/clew/api/v1alpha1"
)

// tree holds the flags of `tree`.
type tree struct {
	*plugin
	contract string
	output   *enumFlag
	watch    bool
}

// treeView is what is drawn: the trees, and how their contract stands if one was named.
type treeView struct {
	roots    []*taskNode
	contract *contractView
}

func (p *plugin) treeCommand() *cobra.Command {
	o := &tree{plugin: p}
	cmd := &cobra.Command{
		Use:     "tree [TASK | FORK]",
		Short:   "Draw tasks, their children, and the tasks that start from them",
		Aliases: []string{"forks"},
		Long: `Draw the tasks of the namespace, each above its children and those that start from it: at
which checkpoint and message they branch off, for which Fork, in which phase of their
contract they were made, and what became of them. A child that starts from another
task is drawn below that one.

With TASK, only that task and those below it, directly or not. With FORK, only the
source of that Fork and its tasks; write fork/NAME if a task has that name. With
--contract, only the tasks of that contract, and how it stands: its phase, who leads it,
its budget, and which of its tasks wait, and why.

With --watch, it is drawn again when a task changes, at most once a second, until all tasks
that it has have completed or failed, or until Ctrl-C. Where standard output is no terminal,
a line is printed for each task that changes.

BUDGET is how much is spent of the limits that a task has, of each budget the one of which
most is; -o wide prints all of them with figures. A contract's is that of its supervisor.
A source whose object is deleted is drawn as well, with what the history says of it.`,
		Example: `  # The whole namespace
  kubectl clew tree

  # One task and what started from it
  kubectl clew tree fix-login

  # A contract: its phase, its supervisor with the workers, and why those wait that do
  kubectl clew tree --contract port-to-go

  # The same as it changes, until all of its tasks have ended
  kubectl clew tree --contract port-to-go --watch

  # What is spent of budgets, in figures
  kubectl clew tree -o wide

  # The tasks of one Fork
  kubectl clew tree fork/approaches`,
		Args:              atMost("TASK"),
		ValidArgsFunction: p.completeTask,
		RunE: func(cmd *cobra.Command, args []string) error {
			return o.run(cmd.Context(), strings.Join(args, ""))
		},
	}
	cmd.Flags().StringVar(&o.contract, "contract", "", "Only the tasks of this contract.")
	cmd.Flags().BoolVarP(&o.watch, "watch", "w", false, "Draw the tree again when a task changes, until all tasks of it have ended.")
	o.output = formatFlag(cmd, "table", "wide", "json", "yaml")
	return cmd
}

func (o *tree) run(ctx context.Context, name string) error {
	if name != "" && o.contract != "" {
		return errors.New("name either a task or a contract: with --contract, all tasks of that are drawn")
	}
	raw := o.output.value == "json" || o.output.value == "yaml"
	if raw && o.watch {
		return fmt.Errorf("--watch draws a table: leave out -o %s, or watch the objects with `kubectl get tasks.clew.dev --watch -o %s`", o.output.value, o.output.value)
	}
	s, err := o.connect()
	if err != nil {
		return err
	}
	if o.watch {
		return o.follow(ctx, s, name)
	}
	tasks, forks := &v1alpha1.TaskList{}, &v1alpha1.ForkList{}
	for kind, list := range map[string]client.ObjectList{"task": tasks, "fork": forks} {
		if err := s.client.List(ctx, list, client.InNamespace(s.namespace)); err != nil {
			return s.explain(err, kind, "")
		}
	}
	view, err := o.view(ctx, s, name, tasks.Items, forks.Items)
	switch {
	case err != nil:
		return err
	case raw:
		return o.printRaw(o.output.value, taskTree{Namespace: s.namespace, Contract: view.contract, Tasks: view.roots})
	case len(view.roots) == 0:
		o.none(s)
		return nil
	}
	return o.print(o.Out, view)
}

// none says that there is nothing to draw.
func (o *tree) none(s *session) {
	fmt.Fprintf(o.ErrOut, "There are no tasks in namespace %s.\n", s.namespace)
}

// view returns what is to be drawn of the namespace's tasks and Forks.
func (o *tree) view(ctx context.Context, s *session, name string, tasks []v1alpha1.Task, forks []v1alpha1.Fork) (v treeView, err error) {
	all := newLineage(tasks, forks)
	v.roots = all.roots()
	if o.contract != "" {
		v.contract = viewOfContract(tasks, o.contract)
		if v.roots, err = all.ofContract(s.namespace, o.contract); err != nil {
			return v, err
		}
	}
	if name != "" {
		if v.roots, err = all.selected(s.namespace, name); err != nil {
			return v, s.orDeleted(ctx, name, err)
		}
	}
	s.completeDeleted(ctx, v.roots)
	return v, nil
}

// print draws the trees, between what there is to say of their contract.
func (o *tree) print(w io.Writer, v treeView) error {
	if v.contract != nil {
		v.contract.head(o, w)
	}
	if err := o.draw(w, v.roots); err != nil || v.contract == nil {
		return err
	}
	return v.contract.foot(o, w)
}

// completeDeleted adds what the history knows of sources whose objects are gone. Without the
// history they are drawn by name.
func (s *session) completeDeleted(ctx context.Context, roots []*taskNode) {
	for _, node := range roots {
		if node.Exists || node.UID == "" {
			continue
		}
		list, err := s.taskHistories(ctx, url.Values{"name": {node.Name}}, pageSize)
		if err != nil {
			return
		}
		for _, t := range list.Items {
			if string(t.UID) == node.UID {
				node.State, node.Checkpoints, node.Messages = stateOfGone(t.State), t.Checkpoints, t.Messages
				node.InputTokens, node.OutputTokens, node.CostMicroUSD = t.InputTokens, t.OutputTokens, t.CostMicroUSD
				node.Created = &t.CreationTimestamp
			}
		}
	}
}

// draw prints the trees as one table.
func (o *tree) draw(w io.Writer, roots []*taskNode) error {
	var rows [][]string
	for _, root := range roots {
		rows = append(rows, o.rows(root, "", "")...)
	}
	header := []string{"TASK", "PHASE", "STARTS FROM", "STATE", "CHECKPOINTS", "MESSAGES", "TOKENS", "COST", "BUDGET", "AGE"}
	header, rows = withoutEmpty(header, rows, "PHASE", "BUDGET") // there are no contracts, or no budgets
	return table(w, header, rows)
}

// rows returns the row of a task and those below it. first is drawn before its own name, and
// rest before the names below.
func (o *tree) rows(node *taskNode, first, rest string) [][]string {
	rows := [][]string{{
		first + oneLine(node.Name), cmp.Or(oneLine(node.Phase), "-"), cmp.Or(node.startsFrom(), "-"), oneLine(node.State), strconv.FormatInt(node.Checkpoints, 10),
		strconv.FormatInt(node.Messages, 10), count(node.InputTokens + node.OutputTokens), dollars(node.CostMicroUSD),
		budgetCell(node.Budgets, o.output.value == "wide"), o.age(node.Created),
	}}
	for i, below := range node.Tasks {
		if i == len(node.Tasks)-1 {
			rows = append(rows, o.rows(below, rest+"└─ ", rest+"   ")...)
		} else {
			rows = append(rows, o.rows(below, rest+"├─ ", rest+"│  ")...)
		}
	}
	return rows
}

// startsFrom says where a task branches off; "" for one that starts by itself.
func (n *taskNode) startsFrom() string {
	var parts []string
	if n.Checkpoint > 0 {
		parts = append(parts, fmt.Sprintf("checkpoint %d", n.Checkpoint))
	}
	if n.Position > 0 {
		parts = append(parts, fmt.Sprintf("message %d", n.Position))
	}
	if n.Fork != "" {
		parts = append(parts, "fork "+oneLine(n.Fork))
	}
	return strings.Join(parts, ", ")
}
