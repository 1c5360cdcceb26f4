// Package rewindmatrix lists every combination of what a rewind can be told and of the states
// of a task, and says which of them are legal. It follows the documentation, not the code, so
// that tests can hold the two against each other.
package rewindmatrix

import (
	"fmt"
	"strings"

	"github.com/clew-dev/clew/api/v1alpha1"
)

// Target is a kind of target.
type Target string

// The targets.
const (
	Checkpoint Target = "checkpoint"
	Commit     Target = "commit"
	Time       Target = "time"
	Message    Target = "message"
	Undo       Target = "undo"
)

// State is what a task is in when its rewind is requested.
type State string

// The states.
const (
	Running   State = "running"
	Suspended State = "suspended"
	Failed    State = "failed"
	Completed State = "completed"
)

// Cell is one combination. An undo has the scope and the paths of the rewind that it undoes.
type Cell struct {
	Target   Target
	Scope    v1alpha1.RewindScope
	Preserve v1alpha1.PreserveMode
	Paths    bool // whether paths select the files, or the rewind is of all
	State    State
}

// The values of each dimension.
func targets() []Target { return []Target{Checkpoint, Commit, Time, Message, Undo} }

func states() []State { return []State{Running, Suspended, Failed, Completed} }

func scopes() []v1alpha1.RewindScope {
	return []v1alpha1.RewindScope{v1alpha1.RewindCode, v1alpha1.RewindConversation, v1alpha1.RewindBoth}
}

func preserves() []v1alpha1.PreserveMode {
	return []v1alpha1.PreserveMode{v1alpha1.PreserveBranch, v1alpha1.PreserveStash, v1alpha1.PreserveDiscard}
}

// All returns the cells.
func All() []Cell {
	var cells []Cell
	for _, state := range states() {
		for _, target := range targets() {
			for _, scope := range scopes() {
				for _, paths := range []bool{false, true} {
					for _, preserve := range preserves() {
						cells = append(cells, Cell{target, scope, preserve, paths, state})
					}
				}
			}
		}
	}
	return cells
}

// Groups returns the cells by state, target and scope.
func Groups() [][]Cell {
	var groups [][]Cell
	for _, c := range All() {
		if n := len(groups); n == 0 || groups[n-1][0].Group() != c.Group() {
			groups = append(groups, nil)
		}
		groups[len(groups)-1] = append(groups[len(groups)-1], c)
	}
	return groups
}

// Group names the state, the target and the scope of the cell.
func (c Cell) Group() string {
	return fmt.Sprintf("%s: %s, %s", c.State, c.Target, c.Scope)
}

// Legal reports whether there is such a rewind: paths and commits are about files only.
func (c Cell) Legal() bool {
	return c.Scope == v1alpha1.RewindCode || !c.Paths && c.Target != Commit
}

// Refusals returns the sentences with which the API server refuses a request with all these
// fields; none if it accepts it. That of an undo leaves scope and paths out.
func (c Cell) Refusals() []string {
	var sentences []string
	if c.Target == Commit && c.Scope != v1alpha1.RewindCode {
		sentences = append(sentences, "a commit holds only files: set rewind.scope to Code")
	}
	if c.Target == Undo && c.Scope != v1alpha1.RewindBoth {
		sentences = append(sentences, "an undo rewinds what the rewind that it undoes has rewound: leave scope out")
	}
	if c.Target == Undo && c.Paths {
		sentences = append(sentences, "an undo rewinds what the rewind that it undoes has rewound: leave paths out")
	}
	if c.Paths && c.Scope != v1alpha1.RewindCode {
		sentences = append(sentences, "paths selects files: set rewind.scope to Code, or leave paths out")
	}
	return sentences
}

// Files reports whether the rewind leaves the agent's repository, with its HEAD and index, as
// it is.
func (c Cell) Files() bool { return c.Paths || c.Target == Commit }

// String names the cell, such as "running: checkpoint, Code, Branch, paths".
func (c Cell) String() string {
	extent := "whole"
	if c.Paths {
		extent = "paths"
	}
	return fmt.Sprintf("%s, %s, %s", c.Group(), c.Preserve, extent)
}

// ID returns an id for the rewind of the cell.
func (c Cell) ID() string {
	return strings.ToLower(strings.NewReplacer(":", "", ",", "", " ", "-").Replace(c.String()))
}
