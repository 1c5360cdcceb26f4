package sidecar

import (
	"errors"
	"strings"
	"testing"

	"github.com/clew-dev/clew/internal/worktree"
)

// TestAWaitingPodReportsWhetherTheGitstoreOrThePodIsAtFault: nobody should search for a
// fault of the gitstore if the task's own pod is short of memory.
func TestAWaitingPodReportsWhetherTheGitstoreOrThePodIsAtFault(t *testing.T) {
	if testing.Short() {
		t.Skip("waits for seconds: make test runs it")
	}
	for reason, err := range map[string]error{
		"GitStoreUnreachable": errors.New("connection refused"),
		"CheckpointFailed":    &worktree.Error{Reason: worktree.MemoryExceeded, Message: "git needs more memory"},
	} {
		t.Run(reason, func(t *testing.T) {
			p := &problems{ending: true}
			p.pushed(err)
			is := p.current()
			if is.GetReason() != reason || !strings.HasSuffix(is.GetMessage(), "which are safe on the task's volume: "+err.Error()) {
				t.Errorf("the problem is %v, want %s about %q", is, reason, err)
			}
		})
	}
}
