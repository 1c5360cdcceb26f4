package cli

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/plan"
	"github.com/clew-dev/clew/internal/queue"
)

// queueList holds the flags of `queue`.
type queueList struct {
	*plugin
	all, noHeaders bool
}

func (p *plugin) queueCommand() *cobra.Command {
	o := &queueList{plugin: p}
	cmd := &cobra.Command{
		Use:   "queue",
		Short: "List the tasks that wait for a place, in the order in which they start",
		Long: `List the tasks that wait for a place, because only so many may run at once in the cluster
or in the namespace, or because as many children of their supervisor run as its
children.atOnce says. LIMIT says which of these limits holds each, and how many it lets run:
the one that the task met first, as its condition Succeeded has it. How many tasks
run is printed below them.

They are in the order in which those of a namespace start: by spec.priority, and among
equals by age. Tasks of another namespace may start before these: a free place goes to the
namespace that has the fewest. A namespace that is at its own limit holds no other one
back. The limits of the cluster and of each namespace are an administrator's, values of
Clew's chart: tasks.maximum and tasks.maximumPerNamespace.`,
		Example: `  # The tasks of the namespace that wait, and for what
  kubectl clew queue

  # Those of all namespaces
  kubectl clew queue --all-namespaces`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context()) },
	}
	cmd.Flags().BoolVarP(&o.all, "all-namespaces", "A", false, "List the tasks of all namespaces.")
	cmd.Flags().BoolVar(&o.noHeaders, "no-headers", false, "Do not print column headers.")
	return cmd
}

func (o *queueList) run(ctx context.Context) error {
	s, err := o.connect()
	if err != nil {
		return err
	}
	list, namespace := &v1alpha1.TaskList{}, s.namespace
	if o.all {
		namespace = ""
	}
	if err := s.client.List(ctx, list, client.InNamespace(namespace)); err != nil {
		return s.explain(err, "task", "")
	}
	running := 0
	for i := range list.Items {
		if plan.HoldsPlace(&list.Items[i]) {
			running++
		}
	}
	waiting := slices.DeleteFunc(list.Items, func(t v1alpha1.Task) bool { return !waitsForPlace(&t) })
	switch {
	case len(waiting) == 0 && o.all:
		fmt.Fprintln(o.ErrOut, "No task waits for a place.")
		return nil
	case len(waiting) == 0:
		fmt.Fprintf(o.ErrOut, "No task of namespace %s waits for a place.\n", s.namespace)
		return nil
	}
	slices.SortFunc(waiting, func(a, b v1alpha1.Task) int {
		return cmp.Or(strings.Compare(a.Namespace, b.Namespace), queue.Compare(queue.Of(&a), queue.Of(&b)))
	})
	if err := o.table(waiting); err != nil {
		return err
	}
	where := " of namespace " + s.namespace
	if o.all {
		where = ""
	}
	fmt.Fprintf(o.ErrOut, "%s%s %s, or %s about to.\n", plural(int64(running), "task"), where, verb(int64(running), "runs", "run"), verb(int64(running), "is", "are"))
	return nil
}

// table prints the tasks that wait, which are in their order.
func (o *queueList) table(waiting []v1alpha1.Task) error {
	header := []string{"POSITION", "NAME", "PRIORITY", "AGE", "LIMIT"}
	if o.all {
		header = slices.Insert(header, 1, "NAMESPACE")
	}
	var rows [][]string
	position := map[string]int{}
	for _, t := range waiting {
		position[t.Namespace]++
		row := []string{strconv.Itoa(position[t.Namespace]), oneLine(t.Name), strconv.Itoa(int(t.Spec.Priority)), o.age(&t.CreationTimestamp), cmp.Or(oneLine(plan.LimitThatHolds(&t)), "-")}
		if o.all {
			row = slices.Insert(row, 1, oneLine(t.Namespace))
		}
		rows = append(rows, row)
	}
	if o.noHeaders {
		header = nil
	}
	return table(o.Out, header, rows)
}

// waitsForPlace reports whether a task waits for a place: one whose pod waits for a scheduling gate
// has one.
func waitsForPlace(t *v1alpha1.Task) bool {
	c := apimeta.FindStatusCondition(t.Status.Conditions, v1alpha1.TaskSucceeded)
	n := len(t.Status.Attempts)
	return c != nil && c.Reason == v1alpha1.ReasonQueued && (n == 0 || t.Status.Attempts[n-1].Outcome != "")
}
