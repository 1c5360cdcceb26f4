package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clew-dev/clew/api/v1alpha1"
)

// checkpoints lists the checkpoints of one task, or of all tasks of the namespace if
// task is empty. They are sorted by task and number, with those not yet taken last.
func (s *session) checkpoints(ctx context.Context, task string) (*v1alpha1.CheckpointList, error) {
	list := &v1alpha1.CheckpointList{}
	if err := s.client.List(ctx, list, client.InNamespace(s.namespace)); err != nil {
		return nil, s.explain(err, "checkpoint", "")
	}
	if task != "" {
		list.Items = slices.DeleteFunc(list.Items, func(c v1alpha1.Checkpoint) bool { return c.Spec.TaskRef.Name != task })
	}
	slices.SortStableFunc(list.Items, compareCheckpoints)
	return list, nil
}

// compareCheckpoints orders checkpoints by task and number, with those not yet taken
// last.
func compareCheckpoints(a, b v1alpha1.Checkpoint) int {
	number := func(c v1alpha1.Checkpoint) int64 {
		if c.Status.Number == 0 {
			return 1 << 62
		}
		return c.Status.Number
	}
	return cmp.Or(
		cmp.Compare(a.Spec.TaskRef.Name, b.Spec.TaskRef.Name),
		cmp.Compare(number(a), number(b)),
		a.CreationTimestamp.Compare(b.CreationTimestamp.Time),
		cmp.Compare(a.Name, b.Name),
	)
}

// findCheckpoint finds a task's checkpoint by its name or number. A name wins over a
// number.
func findCheckpoint(list *v1alpha1.CheckpointList, task *v1alpha1.Task, wanted string) (*v1alpha1.Checkpoint, error) {
	for i := range list.Items {
		if list.Items[i].Name == wanted {
			return usable(&list.Items[i], task)
		}
	}
	number, err := strconv.ParseInt(strings.TrimPrefix(wanted, "#"), 10, 64)
	if err != nil {
		return nil, &noName{fmt.Sprintf("task %s has no checkpoint %q; list its checkpoints with `kubectl clew checkpoint list %s -n %s`", task.Name, wanted, task.Name, task.Namespace)}
	}
	for i := range list.Items {
		if list.Items[i].Status.Number == number {
			return usable(&list.Items[i], task)
		}
	}
	return nil, missingNumber(list, task, number)
}

// missingNumber returns the error for a number of which the list has no object.
func missingNumber(list *v1alpha1.CheckpointList, task *v1alpha1.Task, number int64) *noObject {
	return &noObject{number, fmt.Sprintf("task %s has no checkpoint number %d; %s", task.Name, number, availableNumbers(list, task))}
}

// noObject is the error for a number of which there is no Checkpoint object.
type noObject struct {
	number  int64
	message string
}

// Error implements error.
func (e *noObject) Error() string { return e.message }

// noName is the error for a text that is neither the name nor the number of a checkpoint.
type noName struct{ message string }

// Error implements error.
func (e *noName) Error() string { return e.message }

// alsoTakes adds to the error for a flag's text that names no checkpoint what else the flag takes.
func alsoTakes(err error, flag, words string) error {
	var unknown *noName
	if errors.As(err, &unknown) {
		return fmt.Errorf("%w; %s also takes %s", err, flag, words)
	}
	return err
}

// latest finds a task's latest checkpoint: the one that its status names, or, if that does not say
// yet, the newest that has an object.
func (s *session) latest(ctx context.Context, task *v1alpha1.Task, list *v1alpha1.CheckpointList) (*v1alpha1.Checkpoint, error) {
	var number int64
	for _, c := range list.Items {
		if c.Status.TaskUID == string(task.UID) {
			number = max(number, c.Status.Number)
		}
	}
	if c := task.Status.LatestCheckpoint; c != nil && c.Number > 0 {
		number = c.Number
	}
	if number == 0 {
		return nil, fmt.Errorf("task %s has no checkpoint yet: take one with `kubectl clew checkpoint create %s -n %s`", task.Name, task.Name, task.Namespace)
	}
	return s.anyCheckpoint(ctx, list, task, fmt.Sprintf("#%d", number)) // # cannot begin a name
}

// anyCheckpoint finds a task's checkpoint by its name or number, also if it has no object any
// more: then it is without name, as the history has it.
func (s *session) anyCheckpoint(ctx context.Context, list *v1alpha1.CheckpointList, task *v1alpha1.Task, wanted string) (*v1alpha1.Checkpoint, error) {
	found, recorded, err := s.lookUp(ctx, list, task, wanted)
	if found != nil || err != nil {
		return found, err
	}
	return objectOf(task, recorded), nil
}

// availableNumbers describes which checkpoint numbers a task has, for an error.
func availableNumbers(list *v1alpha1.CheckpointList, task *v1alpha1.Task) string {
	var first, last int64
	for _, c := range list.Items {
		if n := c.Status.Number; n > 0 {
			if first == 0 {
				first = n
			}
			last = n
		}
	}
	if last == 0 {
		return fmt.Sprintf("it has no checkpoints yet: take one with `kubectl clew checkpoint create %s -n %s`", task.Name, task.Namespace)
	}
	return fmt.Sprintf("the numbers run from %d to %d: list them with `kubectl clew checkpoint list %s -n %s`", first, last, task.Name, task.Namespace)
}

// usable returns the checkpoint, or an error if a task cannot be rewound to it.
func usable(c *v1alpha1.Checkpoint, task *v1alpha1.Task) (*v1alpha1.Checkpoint, error) {
	if uid := c.Status.TaskUID; uid != "" && uid != string(task.UID) {
		return nil, fmt.Errorf("checkpoint %s belongs to an earlier task named %s, which was deleted; choose another checkpoint", c.Name, task.Name)
	}
	if apimeta.IsStatusConditionFalse(c.Status.Conditions, v1alpha1.CheckpointIntact) {
		return nil, fmt.Errorf("the stored objects of checkpoint %s are damaged; choose another checkpoint", c.Name)
	}
	if c.Status.Number == 0 {
		return nil, fmt.Errorf("checkpoint %s has not been taken yet; wait for it with `kubectl wait --for=condition=Ready checkpoints.clew.dev/%s -n %s`", c.Name, c.Name, c.Namespace)
	}
	return c, nil
}

// conditionText formats a condition for a table: yes if it is true, else its reason.
func conditionText(conditions []metav1.Condition, kind string) string {
	c := apimeta.FindStatusCondition(conditions, kind)
	switch {
	case c == nil:
		return "-"
	case c.Status == metav1.ConditionTrue:
		return "yes"
	case c.Reason != "":
		return c.Reason
	}
	return string(c.Status)
}

// changes formats the number of changed files, and of added and removed lines, as in "+20 -4".
func changes(stats *v1alpha1.CodeStats) (files, lines string) {
	if stats == nil {
		return "-", "-"
	}
	return strconv.FormatInt(int64(stats.FilesChanged), 10), fmt.Sprintf("+%d -%d", stats.LinesAdded, stats.LinesRemoved)
}
