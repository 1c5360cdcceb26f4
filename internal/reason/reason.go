// Package reason is the one table of the reasons of conditions, operations and the
// timeline: where each occurs, what it means, what a person does about it, and what
// the components of Clew conclude from it.
//
// It promises that every reason declared in api/v1alpha1 is in the table exactly once; a
// test enforces that. The pages of the kinds in api/docs are generated from it.
package reason

import (
	"slices"
	"sync"

	"github.com/clew-dev/clew/api/v1alpha1"
)

// Place is where a reason occurs: a kind and one of its conditions, or a field of a status.
type Place struct {
	// Kind is the kind of the object.
	Kind string
	// Condition is the type of a condition, or the name of a field of the status.
	Condition string
}

// Places that are not conditions.
const (
	// Operation is the status of a resume or a rewind.
	Operation = "status.resume, status.rewind"
	// Timeline is an Event, an entry of status.history, or an event of the history.
	Timeline = "Events and timeline"
)

// Standing is what a reason means for a task's condition Succeeded, if its attempts or a limit have
// ended the task for it. While a task waits, the condition is Unknown, whatever the reason is.
type Standing int

const (
	// Failed: the condition is False. The task has ended, and a person must act.
	Failed Standing = iota
	// Active: the condition is Unknown. The task works, or waits for something that may happen
	// without a person's help.
	Active
	// Resting: the condition is Unknown. No pod runs or is about to, and the task waits for
	// a person to decide.
	Resting
	// Done: the condition is True.
	Done
)

// Reason is a row of the table.
type Reason struct {
	// Name is the reason's value in the API.
	Name string
	// On are the places where it occurs.
	On []Place
	// Standing is used only for reasons of a task's condition Succeeded.
	Standing Standing
	// Watched: what other Tasks do ends it, and wakes the task.
	Watched bool
	// DaemonProblem: the daemon of a running attempt reports it, and continues by itself when
	// it is solved.
	DaemonProblem bool
	// NoCheckpoints: while the task has this reason, its daemon takes no checkpoints.
	NoCheckpoints bool
	// AboutCheckpoint: the timeline lists it under checkpoints.
	AboutCheckpoint bool
	// Meaning is a sentence for people.
	Meaning string
	// Todo is what a person does about it; empty if nothing.
	Todo string
	// TodoWhenPublishing takes its place for a task's condition Published, if it is not empty.
	TodoWhenPublishing string
}

// TodoAt returns what a person does about the reason at a place; empty if nothing.
func (r Reason) TodoAt(place Place) string {
	if r.TodoWhenPublishing != "" && slices.Contains(published(), place) {
		return r.TodoWhenPublishing
	}
	return r.Todo
}

// All returns the table, in the order in which it is printed.
func All() []Reason {
	return slices.Concat(ofTasks(), ofStarts(), ofWaiting(), ofDaemons(), ofHistory(), ofOperations(), ofPublishing(), ofOthers(), ofTimeline(), ofTools())
}

// Find returns the row of a reason. A reason that is not in the table, such as one that
// another version declares, has a row with only its name: its standing is Failed, and it is
// no daemon's problem.
func Find(name string) Reason {
	if r, ok := byName()[name]; ok {
		return r
	}
	return Reason{Name: name}
}

// byName returns the table by name. It is built once, since every reconciliation uses it.
var byName = sync.OnceValue(func() map[string]Reason {
	rows := map[string]Reason{}
	for _, r := range All() {
		rows[r.Name] = r
	}
	return rows
})

// At returns the rows of a kind's condition, in the table's order.
func At(kind, condition string) []Reason {
	return slices.DeleteFunc(All(), func(r Reason) bool { return !slices.Contains(r.On, Place{kind, condition}) })
}

// succeeded is the place of the reasons of a task's condition Succeeded.
func succeeded() []Place { return []Place{{"Task", v1alpha1.TaskSucceeded}} }

// preparing are the places of reasons why a workspace cannot be prepared: an operation that
// needs it, or a checkout, fails for them as well.
func preparing() []Place {
	return slices.Concat([]Place{{"Task", v1alpha1.TaskSucceeded}, {"Task", v1alpha1.TaskWorkspaceReady}}, operation(), agentCheckout())
}

// source are the places of reasons why a task cannot start from another one.
func source() []Place { return append(succeeded(), fork()...) }

// fork is the place of the reasons of a Fork.
func fork() []Place { return []Place{{"Fork", v1alpha1.ForkComplete}} }

// operation is the place of the reasons of resumes and rewinds.
func operation() []Place { return []Place{{"Task", Operation}} }

// AgentCheckout is the outcome of a request to check out a Checkpoint's branch in the agent's
// repository.
const AgentCheckout = "status.branches[].agent.checkout"

// agentCheckout is the place of the reasons of checkouts.
func agentCheckout() []Place { return []Place{{"Checkpoint", AgentCheckout}} }

// OriginBranch is the status of a Checkpoint's branch at the repository.
const OriginBranch = "status.branches[].origin"

// published are the places of the reasons of publishing.
func published() []Place {
	return []Place{{"Task", v1alpha1.TaskPublished}, {"Checkpoint", OriginBranch}}
}

// timeline is the place of the reasons of Events and of the timeline.
func timeline() []Place { return []Place{{"Task", Timeline}} }
