package plan

import (
	"slices"
	"strings"
	"testing"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/daemonapi"
)

// rewindPaths requests a rewind of paths to checkpoint 3 by its number.
func (s *scene) rewindPaths(scope v1alpha1.RewindScope, paths ...string) *scene {
	s.o.RewindRecord = recorded()
	return s.rewindTo("back", scope, toNumber(3)).change(func(t *v1alpha1.Task) { t.Spec.Rewind.Paths = paths })
}

func TestARewindOfPaths(t *testing.T) {
	for message, paths := range map[string][]string{
		`the path "src" was rewound to checkpoint 3; checkpoint 9 holds the state before the rewind`:                   {"src"},
		`the path "a/**/*.go" and 2 more were rewound to checkpoint 3; checkpoint 9 holds the state before the rewind`: {"a/**/*.go", "b", "c"},
	} {
		s := running(t)
		s.rewindPaths(v1alpha1.RewindCode, paths...).step()
		s.wantOperation(s.status().Rewind, "back", v1alpha1.OperationInProgress, "")
		s.podGone()
		s.wantPod(Pod{Attempt: 2, Operation: &daemonapi.Operation{
			Kind: daemonapi.OperationRewind, ID: "back", OnDrift: "Fail", CheckpointPosition: 6,
			Scope: "Code", Preserve: "Branch", Branch: "clew/before-back",
			Files: &daemonapi.RewindFiles{Checkpoint: 3, Commit: "c3", Paths: paths},
		}})
		s.prepared(daemonapi.PrepareResult{Operation: "back", FromCheckpoint: 9, ToCheckpoint: 3})
		s.wantOperation(s.status().Rewind, "back", v1alpha1.OperationCompleted, "")
		s.wantMessage(s.status().Rewind.Message, message)
	}
}

func TestARewindOfPathsThatCannotBeUsedIsRefused(t *testing.T) {
	for name, c := range map[string]struct {
		scope           v1alpha1.RewindScope
		path            string
		reason, message string
	}{
		"not only files":                 {v1alpha1.RewindBoth, "src", v1alpha1.ReasonInvalidOperation, "rewind.paths selects files: set rewind.scope to Code"},
		"not a pattern":                  {v1alpha1.RewindCode, "src/[a", v1alpha1.ReasonPathNotFound, "is not a valid pattern"},
		"leaves":                         {v1alpha1.RewindCode, "../x", v1alpha1.ReasonPathNotFound, "leaves the worktree"},
		"more bytes than the API counts": {v1alpha1.RewindCode, strings.Repeat("€", 1000), v1alpha1.ReasonPathNotFound, "is longer than 1024 bytes"},
	} {
		t.Run(name, func(t *testing.T) {
			s := running(t)
			s.rewindPaths(c.scope, c.path).step()
			s.wantOperation(s.status().Rewind, "back", v1alpha1.OperationRefused, c.reason)
			s.wantMessage(s.status().Rewind.Message, c.message)
			s.wantState(v1alpha1.ReasonRunning)
		})
	}
}

func TestARewindToACommit(t *testing.T) {
	id := strings.Repeat("0123456789", 4)
	for message, paths := range map[string][]string{
		"the files were rewound to commit 012345678901; checkpoint 9 holds the state before the rewind":     nil,
		`the path "src" was rewound to commit 012345678901; checkpoint 9 holds the state before the rewind`: {"src"},
	} {
		s := running(t)
		s.rewindPaths(v1alpha1.RewindCode, paths...).change(func(t *v1alpha1.Task) { t.Spec.Rewind.To = v1alpha1.RewindTarget{Commit: id} })
		s.o.RewindRecord = RewindRecord{} // it needs no store
		s.step()
		s.wantOperation(s.status().Rewind, "back", v1alpha1.OperationInProgress, "")
		s.podGone()
		s.wantPod(Pod{Attempt: 2, Operation: &daemonapi.Operation{
			Kind: daemonapi.OperationRewind, ID: "back", OnDrift: "Fail", Scope: "Code", Preserve: "Branch", Branch: "clew/before-back",
			Files: &daemonapi.RewindFiles{Commit: id, Paths: paths},
		}})
		s.prepared(daemonapi.PrepareResult{Operation: "back", FromCheckpoint: 9})
		s.wantOperation(s.status().Rewind, "back", v1alpha1.OperationCompleted, "")
		s.wantMessage(s.status().Rewind.Message, message)
	}
	s := running(t)
	s.rewindTo("back", v1alpha1.RewindBoth, v1alpha1.RewindTarget{Commit: id}).step()
	s.wantOperation(s.status().Rewind, "back", v1alpha1.OperationRefused, v1alpha1.ReasonInvalidOperation)
	s.wantMessage(s.status().Rewind.Message, "a commit holds only files: set rewind.scope to Code")
}

func TestAnUndoOfARewindOfPathsRestoresThesePaths(t *testing.T) {
	for message, paths := range map[string][]string{
		`the path "src" and 1 more were rewound to checkpoint 9`: {"src", "*.go"},
		"the files were rewound to checkpoint 9":                 {"**"},
	} {
		s := running(t)
		s.o.RewindUndone, s.o.RewindRecord = done("back", v1alpha1.RewindCode), nine()
		s.o.RewindUndone.Found.Rewound.Paths = paths
		s.rewindTo("undo", v1alpha1.RewindBoth, undoOf("back")).step()
		s.wantOperation(s.status().Rewind, "undo", v1alpha1.OperationInProgress, "")
		if got := s.status().Rewind.Paths; !slices.Equal(got, paths) {
			t.Errorf("status.rewind.paths are %q, want %q", got, paths)
		}
		s.podGone()
		s.wantPod(Pod{Attempt: 2, Operation: &daemonapi.Operation{
			Kind: daemonapi.OperationRewind, ID: "undo", OnDrift: "Fail", CheckpointPosition: 20, Scope: "Code", Preserve: "Branch", Branch: "clew/before-undo",
			Files: &daemonapi.RewindFiles{Checkpoint: 9, Commit: "c9", Paths: paths},
		}})
		s.prepared(daemonapi.PrepareResult{Operation: "undo", FromCheckpoint: 12, ToCheckpoint: 9})
		s.wantMessage(s.status().Rewind.Message, message, "this undoes the rewind back")
	}
}

// What a daemon recorded about its rewind is checked like what a user writes.
func TestAnUndoOfARewindOfPathsThatNobodyCouldRequestIsRefused(t *testing.T) {
	for name, c := range map[string]struct {
		scope   v1alpha1.RewindScope
		path    string
		reason  string
		message string
	}{
		"another scope": {v1alpha1.RewindBoth, "src", v1alpha1.ReasonInvalidOperation, "what is recorded of the rewind back cannot be rewound again: rewind to checkpoint 9"},
		"outside":       {v1alpha1.RewindCode, "../src", v1alpha1.ReasonPathNotFound, "what is recorded of the rewind back cannot be rewound again"},
	} {
		t.Run(name, func(t *testing.T) {
			s := running(t)
			s.o.RewindUndone, s.o.RewindRecord = done("back", c.scope), nine()
			s.o.RewindUndone.Found.Rewound.Paths = []string{c.path}
			s.rewindTo("undo", v1alpha1.RewindBoth, undoOf("back")).step()
			s.wantOperation(s.status().Rewind, "undo", v1alpha1.OperationRefused, c.reason)
			s.wantMessage(s.status().Rewind.Message, c.message)
			s.wantState(v1alpha1.ReasonRunning)
		})
	}
}
