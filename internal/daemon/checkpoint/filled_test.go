package checkpoint

import (
	"testing"
	"time"

	"github.com/clew-dev/clew/internal/daemon/journal"
	daemonv1 "github.com/clew-dev/clew/internal/daemonapi/v1"
	"github.com/clew-dev/clew/internal/testing/filled"
	"github.com/clew-dev/clew/internal/worktree"
)

// TestARecordSaysAllThatIsKnownOfACheckpoint: every field of the protocol is set when the
// checkpoint is taken, new fields included.
func TestARecordSaysAllThatIsKnownOfACheckpoint(t *testing.T) {
	var taken worktree.Checkpoint
	var session daemonv1.AgentSession
	filled.In(&taken)
	filled.InMessage(&session)
	state := &journal.State{Base: "base"}
	if err := state.SetAgentSession(&session); err != nil {
		t.Fatal(err)
	}
	req := Request{Trigger: "Manual", Message: "m", Name: "n", UID: "u", RiskyTool: &daemonv1.RiskyTool{Name: "rm", CallId: "c", Before: true}}
	record := (&Taker{Attempt: 1}).record(req, taken, state, time.Now())
	// The consistency is set when all files are read, durability by a record of its own,
	// the position by the history, and after_sequence in the checkpoint's annotations only.
	if empty := filled.EmptyIn(record, "durable", "position", "consistency", "frozen_milliseconds", "after_sequence"); empty != nil {
		t.Errorf("fields that are not set: %v", empty)
	}
}
