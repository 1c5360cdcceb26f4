package checkpoint

import (
	"testing"
	"time"

	"github.com/clew-dev/clew/internal/daemon/journal"
	daemonv1 "github.com/clew-dev/clew/internal/daemonapi/v1"
	"github.com/clew-dev/clew/internal/testing/filled"
	"github.com/clew-dev/clew/internal/worktree"
)

// TestARecordSaysAllThatIsKnownOfACheckpoint: a field that is new in the protocol is
// filled where the checkpoint is taken.
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
	// How the agent stood is said when all files are read, what is durable by a record of
	// its own, and the position by the history. What is told again comes elsewhere.
	if empty := filled.EmptyIn(record, "durable", "position", "consistency", "frozen_milliseconds", "after_sequence"); empty != nil {
		t.Errorf("not told: %v", empty)
	}
}
