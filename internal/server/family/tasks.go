package family

import (
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/clip"
	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/plan"
	"github.com/clew-dev/clew/internal/reason"
	"github.com/clew-dev/clew/internal/toolcall"
)

// state is how a task stands, as its supervisor thinks of it.
type state string

// The states of a task. In the last three it has stopped.
const (
	running   state = "Running"
	waiting   state = "Waiting"
	resting   state = "Stopped"
	failed    state = "Failed"
	completed state = "Completed"
	// deleted is the state of a task that was waited for.
	deleted state = "Deleted"
)

// states are the states of tasks that exist, in the order in which they are listed.
func states() []state { return []state{running, waiting, resting, failed, completed} }

// stateOf returns how a task stands.
func stateOf(t *v1alpha1.Task) state {
	switch v := plan.FamilyViewOf(t); {
	case v.Status == "True":
		return completed
	case v.Status == "False":
		return failed
	case v.Reason != "" && reason.Find(v.Reason).Standing == reason.Resting:
		return resting
	case v.Working:
		return running
	}
	return waiting
}

// stopped reports whether a task neither works nor is about to.
func (s state) stopped() bool { return s != running && s != waiting }

// maxNamed is how many tasks a sentence names.
const maxNamed = 20

// tasks are those of a supervisor, oldest first.
type tasks struct {
	supervisor string
	all        []*v1alpha1.Task
	byName     map[string]*v1alpha1.Task
}

// tasksOf returns the tasks of a supervisor, given in their order.
func tasksOf(supervisor string, all []*v1alpha1.Task) tasks {
	of := tasks{supervisor: supervisor, all: all, byName: make(map[string]*v1alpha1.Task, len(all))}
	for _, t := range all {
		of.byName[t.Name] = t
	}
	return of
}

// named returns the task that an agent names: by the name of its Task, or by that without the name of
// the supervisor, which task_create puts before it.
func (of tasks) named(name string) *v1alpha1.Task {
	for _, object := range toolcall.ObjectNames(of.supervisor, name) {
		if t := of.byName[object]; t != nil {
			return t
		}
	}
	return nil
}

// find is named, with a refusal if there is no such task.
func (of tasks) find(name string) (*v1alpha1.Task, error) {
	if t := of.named(name); t != nil {
		return t, nil
	}
	if len(of.all) == 0 {
		return nil, refuse("You have no task %q: you have none yet. task_create makes one.", clip.Marked(name, 100))
	}
	return nil, refuse("You have no task %q. Your tasks are %s.", clip.Marked(name, 100), of.names(of.all))
}

// begun is find for a task whose work is to be read. A task that waits to become the supervisor's is no
// task of its own yet.
func (of tasks) begun(name string) (*v1alpha1.Task, error) {
	t, err := of.find(name)
	if err == nil && t.Status.Parent == nil {
		err = refuse("The task %s has not begun: %s", of.nameOf(t), sentence(t))
	}
	return t, err
}

// nameOf returns the shortest name by which named finds a task.
func (of tasks) nameOf(t *v1alpha1.Task) string {
	return toolcall.ShortName(of.supervisor, t.Name, func(object string) bool { return of.byName[object] != nil })
}

// names lists tasks in a sentence.
func (of tasks) names(some []*v1alpha1.Task) string {
	var names []string
	for _, t := range some[:min(len(some), maxNamed)] {
		names = append(names, of.nameOf(t))
	}
	text := strings.Join(names, ", ")
	if more := len(some) - len(names); more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}

// counts says how many tasks are in each state, such as "2 running, 1 completed".
func (of tasks) counts() string {
	n := map[state]int{}
	for _, t := range of.all {
		n[stateOf(t)]++
	}
	var parts []string
	for _, s := range states() {
		if n[s] > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", n[s], strings.ToLower(string(s))))
		}
	}
	return strings.Join(parts, ", ")
}

// sorted returns tasks by their state, and the oldest first among equals.
func sorted(some []*v1alpha1.Task) []*v1alpha1.Task {
	some = slices.Clone(some)
	slices.SortStableFunc(some, func(a, b *v1alpha1.Task) int {
		return slices.Index(states(), stateOf(a)) - slices.Index(states(), stateOf(b))
	})
	return some
}

// maxSentence bounds what the condition of a task says, in bytes.
const maxSentence = 300

// sentence is what the condition of a task says.
func sentence(t *v1alpha1.Task) string {
	c := meta.FindStatusCondition(t.Status.Conditions, v1alpha1.TaskSucceeded)
	if c == nil {
		return "it has yet to start"
	}
	return clip.Marked(strings.Join(strings.Fields(c.Message), " "), maxSentence)
}

// reasonOf is the reason of the condition of a task; "" if it has none yet.
func reasonOf(t *v1alpha1.Task) string {
	if c := meta.FindStatusCondition(t.Status.Conditions, v1alpha1.TaskSucceeded); c != nil {
		return c.Reason
	}
	return ""
}

// item is a task for programs.
type item struct {
	// Task is the name by which tools find it, and Name that of the object.
	Task    string `json:"task"`
	Name    string `json:"name,omitempty"`
	State   state  `json:"state"`
	Reason  string `json:"reason,omitempty"`
	Message string `json:"message,omitempty"`
	Phase   string `json:"phase,omitempty"`
	// Checkpoint is the number of the newest one; the files and lines are what that one changed.
	Checkpoint   int64 `json:"checkpoint,omitempty"`
	FilesChanged int32 `json:"filesChanged,omitempty"`
	LinesAdded   int64 `json:"linesAdded,omitempty"`
	LinesRemoved int64 `json:"linesRemoved,omitempty"`
	Messages     int64 `json:"messages,omitempty"`
	InputTokens  int64 `json:"inputTokens,omitempty"`
	OutputTokens int64 `json:"outputTokens,omitempty"`
	CostMicroUSD int64 `json:"costMicroUSD,omitempty"`
	// WaitsFor are tasks that must have ended before it starts.
	WaitsFor []string `json:"waitsFor,omitempty"`
}

// itemOf describes a task. size is what is recorded of its newest checkpoint, if anything is.
func (of tasks) itemOf(t *v1alpha1.Task, size history.CheckpointSize) item {
	s := t.Status
	i := item{
		Task: of.nameOf(t), Name: t.Name, State: stateOf(t), Reason: reasonOf(t), Message: sentence(t),
		Checkpoint: size.Number, FilesChanged: size.FilesChanged, LinesAdded: size.LinesAdded, LinesRemoved: size.LinesRemoved,
		Messages: s.MessageCount, InputTokens: s.InputTokens, OutputTokens: s.OutputTokens, CostMicroUSD: s.CostMicroUSD,
	}
	if i.Checkpoint == 0 && s.LatestCheckpoint != nil {
		i.Checkpoint = s.LatestCheckpoint.Number
	}
	if s.Contract != nil {
		i.Phase = s.Contract.Phase
	}
	if i.State != waiting {
		return i
	}
	for _, d := range s.Dependencies {
		if d.MetTime != nil || len(i.WaitsFor) == maxNamed {
			continue
		}
		name := d.Name
		if other := of.named(d.Name); other != nil {
			name = of.nameOf(other)
		}
		i.WaitsFor = append(i.WaitsFor, name)
	}
	return i
}

// line says how a task stands.
func (i item) line() string {
	text := i.Task + ": " + string(i.State)
	if i.Reason != "" && i.Reason != string(i.State) {
		text += " (" + i.Reason + ")"
	}
	if i.State != completed && i.Message != "" {
		text += ": " + i.Message
	}
	return text
}

// details says what a task has done, in a line of its own; "" for nothing.
func (i item) details() string {
	var parts []string
	add := func(given bool, format string, args ...any) {
		if given {
			parts = append(parts, fmt.Sprintf(format, args...))
		}
	}
	add(i.Phase != "", "phase %s", i.Phase)
	add(i.Checkpoint > 0, "checkpoint %d", i.Checkpoint)
	if i.FilesChanged > 0 {
		parts[len(parts)-1] += fmt.Sprintf(" (%s changed since the one before, +%d -%d lines)", counted(int64(i.FilesChanged), "file"), i.LinesAdded, i.LinesRemoved)
	}
	add(i.Messages > 0, "%s", counted(i.Messages, "message"))
	add(i.InputTokens+i.OutputTokens > 0, "%d input and %d output tokens", i.InputTokens, i.OutputTokens)
	add(i.CostMicroUSD > 0, "%.2f USD", float64(i.CostMicroUSD)/1e6)
	add(len(i.WaitsFor) > 0, "waits for %s", strings.Join(i.WaitsFor, ", "))
	if len(parts) == 0 {
		return ""
	}
	return "\n  " + strings.Join(parts, "; ")
}
