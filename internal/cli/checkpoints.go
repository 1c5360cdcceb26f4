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

	historyv1 "github.com/clew-dev/clew/api/history/v1alpha1"
	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/resources"
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

// compareCheckpoints orders checkpoints by task and number, with those not yet taken last. Of several
// objects for one checkpoint, that with the name that Clew gives comes first.
func compareCheckpoints(a, b v1alpha1.Checkpoint) int {
	number := func(c v1alpha1.Checkpoint) int64 {
		if c.Status.Number == 0 {
			return 1 << 62
		}
		return c.Status.Number
	}
	renamed := func(c v1alpha1.Checkpoint) int {
		if c.Name == resources.CheckpointName(c.Spec.TaskRef.Name, c.Status.Number) {
			return 0
		}
		return 1
	}
	return cmp.Or(
		cmp.Compare(a.Spec.TaskRef.Name, b.Spec.TaskRef.Name),
		cmp.Compare(number(a), number(b)),
		cmp.Compare(renamed(a), renamed(b)),
		a.CreationTimestamp.Compare(b.CreationTimestamp.Time),
		cmp.Compare(a.Name, b.Name),
	)
}

// findCheckpoint finds a task's checkpoint by its number, the word latest, or the name of its object. Of
// a text that may be several of these, the name counts last: otherwise, whoever may create Checkpoints
// would decide what a number means.
func findCheckpoint(list *v1alpha1.CheckpointList, task *v1alpha1.Task, wanted string) (*v1alpha1.Checkpoint, error) {
	number, ok := numberOf(list, task, wanted)
	switch {
	case ok && number == 0 && wanted == historyv1.WordLatest:
		return nil, fmt.Errorf("task %s has no checkpoint yet: take one with `kubectl clew checkpoint create %s -n %s`", task.Name, task.Name, task.Namespace)
	case ok:
		return findNumber(list, task, number)
	}
	i := slices.IndexFunc(list.Items, func(c v1alpha1.Checkpoint) bool { return c.Name == wanted })
	if i >= 0 && !isMomentWord(wanted) {
		return usable(&list.Items[i], task)
	}
	return nil, &noName{fmt.Sprintf("task %s has no checkpoint %q%s; list its checkpoints with `kubectl clew checkpoint list %s -n %s`", task.Name, wanted, namesake(list, task, wanted), task.Name, task.Namespace)}
}

// numberOf returns the number of the checkpoint that a number or the word latest names. ok is false for
// any other text.
func numberOf(list *v1alpha1.CheckpointList, task *v1alpha1.Task, wanted string) (number int64, ok bool) {
	if wanted == historyv1.WordLatest {
		return latestNumber(list, task), true
	}
	number, err := strconv.ParseInt(strings.TrimPrefix(wanted, "#"), 10, 64)
	return number, err == nil
}

// latestNumber returns the number of a task's latest checkpoint: of that which its status names, or, if
// that does not say yet, of the newest that has an object; 0 if there is none.
func latestNumber(list *v1alpha1.CheckpointList, task *v1alpha1.Task) int64 {
	if c := task.Status.LatestCheckpoint; c != nil && c.Number > 0 {
		return c.Number
	}
	var number int64
	for _, c := range list.Items {
		if c.Status.TaskUID == string(task.UID) {
			number = max(number, c.Status.Number)
		}
	}
	return number
}

// isMomentWord reports whether a text is a word for a moment of a task, which not every command takes.
func isMomentWord(text string) bool {
	return slices.Contains([]string{historyv1.WordBase, historyv1.WordPrevious, historyv1.WordLatest, historyv1.WordLive, historyv1.WordDrift}, text)
}

// namesItself reports whether an object can be named by its name, which is then neither a number nor a
// word that means something else.
func namesItself(name string) bool {
	_, err := strconv.ParseInt(name, 10, 64)
	return name != "" && err != nil && !isMomentWord(name)
}

// findNumber finds the object of a task's checkpoint by its number. An object of an earlier task of the
// name may have the same one.
func findNumber(list *v1alpha1.CheckpointList, task *v1alpha1.Task, number int64) (*v1alpha1.Checkpoint, error) {
	missing := missingNumber(list, task, number)
	for i := range list.Items {
		c := &list.Items[i]
		if number < 1 || c.Status.Number != number {
			continue
		}
		found, err := usable(c, task)
		if uid := c.Status.TaskUID; uid == "" || uid == string(task.UID) {
			return found, err
		}
		missing.message = err.Error()
	}
	return nil, missing
}

// namesake says which of the task's checkpoints has an object with a number or a word as its name; ""
// for none.
func namesake(list *v1alpha1.CheckpointList, task *v1alpha1.Task, wanted string) string {
	i := slices.IndexFunc(list.Items, func(c v1alpha1.Checkpoint) bool {
		return c.Name == wanted && c.Status.Number > 0 && c.Status.TaskUID == string(task.UID)
	})
	if i < 0 {
		return ""
	}
	return fmt.Sprintf(" (the Checkpoint named %s is its checkpoint %d: name that by the number)", wanted, list.Items[i].Status.Number)
}

// missingNumber returns the error for a number of which the list has no object.
func missingNumber(list *v1alpha1.CheckpointList, task *v1alpha1.Task, number int64) *noObject {
	text := strconv.FormatInt(number, 10)
	return &noObject{number, fmt.Sprintf("task %s has no checkpoint number %s%s; %s", task.Name, text, namesake(list, task, text), availableNumbers(list, task))}
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

// latest finds a task's latest checkpoint.
func (s *session) latest(ctx context.Context, task *v1alpha1.Task, list *v1alpha1.CheckpointList) (*v1alpha1.Checkpoint, error) {
	return s.anyCheckpoint(ctx, list, task, historyv1.WordLatest)
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

// availableNumbers describes which checkpoint numbers a task has, for an error. Those without an
// object count.
func availableNumbers(list *v1alpha1.CheckpointList, task *v1alpha1.Task) string {
	var last int64
	if latest := task.Status.LatestCheckpoint; latest != nil {
		last = latest.Number
	}
	for _, c := range list.Items {
		last = max(last, c.Status.Number)
	}
	if last == 0 {
		return fmt.Sprintf("it has no checkpoints yet: take one with `kubectl clew checkpoint create %s -n %s`", task.Name, task.Namespace)
	}
	return fmt.Sprintf("its newest is %d: list them with `kubectl clew checkpoint list %s --all -n %s`", last, task.Name, task.Namespace)
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
