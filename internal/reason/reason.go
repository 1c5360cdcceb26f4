// Package reason is the one table of the reasons that conditions, operations and the
// timeline carry: where each occurs, what it means, what a person does about it, and what
// the parts of Clew conclude from it.
//
// It promises that every reason that api/v1alpha1 declares is in the table, once; a test
// holds it to that. The pages of the kinds in api/docs are generated from it.
package reason

import (
	"slices"
	"sync"

	"github.com/clew-dev/clew/api/v1alpha1"
)

// Place is where a reason occurs: a kind and one of its conditions, or a field of a status.
type Place struct {
	Kind string
	// Condition is the type of a condition, or the name of a field of the status.
	Condition string
}

// Places that are no conditions.
const (
	// Operation is the status of a resume or a rewind.
	Operation = "status.resume, status.rewind"
	// Timeline is an Event, an entry of status.history, or an event of the history.
	Timeline = "Events and timeline"
)

// Standing is what a reason says of a task's condition Succeeded.
type Standing int

const (
	// Failed: the condition is False. The task has ended, and a person must act.
	Failed Standing = iota
	// Active: the condition is Unknown. The task works, or waits for something that may
	// come without anybody's help.
	Active
	// Resting: the condition is Unknown. No pod runs or is about to, and the task waits for
	// a person to decide.
	Resting
	// Done: the condition is True.
	Done
)

// Reason is a row of the table.
type Reason struct {
	Name string
	On   []Place
	// Standing has a meaning only for reasons of a task's condition Succeeded.
	Standing Standing
	// DaemonProblem: the daemon of a running attempt reports it, and goes on by itself
	// when it is solved.
	DaemonProblem bool
	// NoCheckpoints: while the task stands there, its daemon takes no checkpoints.
	NoCheckpoints bool
	// AboutCheckpoint: the timeline files it under checkpoints.
	AboutCheckpoint bool
	// Meaning is a sentence for people.
	Meaning string
	// Todo is what a person does; empty where there is nothing to do.
	Todo string
}

// All returns the table, in the order in which it is printed.
func All() []Reason {
	return slices.Concat(ofTasks(), ofDaemons(), ofHistory(), ofOperations(), ofOthers(), ofTimeline())
}

// Find returns the row of a reason. A reason that is not in the table, such as one that
// another version declares, has a row with nothing but its name: it has failed, and is
// nobody's problem.
func Find(name string) Reason {
	if r, ok := byName()[name]; ok {
		return r
	}
	return Reason{Name: name}
}

// byName is the table by names. It is made once, since each reconcile asks for some.
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

func succeeded() []Place { return []Place{{"Task", v1alpha1.TaskSucceeded}} }

// preparing are the places of what keeps a workspace from being prepared: an operation
// that needs one fails with it as well.
func preparing() []Place {
	return append([]Place{{"Task", v1alpha1.TaskSucceeded}, {"Task", v1alpha1.TaskWorkspaceReady}}, operation()...)
}

// source are the places of what keeps a task from beginning where another one stood.
func source() []Place { return append(succeeded(), fork()...) }

func fork() []Place { return []Place{{"Fork", v1alpha1.ForkComplete}} }

func operation() []Place { return []Place{{"Task", Operation}} }

func timeline() []Place { return []Place{{"Task", Timeline}} }
