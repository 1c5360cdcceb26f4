package gateway

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"

	daemonv1 "github.com/clew-dev/clew/internal/daemonapi/v1"
	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/testing/filled"
)

// TestEveryFieldOfARecordArrives checks that a new field of the protocol is not forgotten
// on its way to the history.
func TestEveryFieldOfARecordArrives(t *testing.T) {
	for name, c := range map[string]struct {
		record *daemonv1.Record
		body   func(history.Record) any
		// without lists the fields that the daemon does not set.
		without []string
	}{
		"a message":          {&daemonv1.Record{Body: &daemonv1.Record_Message{Message: &daemonv1.Message{}}}, func(r history.Record) any { return r.Message }, nil},
		"a usage":            {&daemonv1.Record{Body: &daemonv1.Record_Usage{Usage: &daemonv1.Usage{}}}, func(r history.Record) any { return r.Usage }, nil},
		"an event":           {&daemonv1.Record{Body: &daemonv1.Record_Event{Event: &daemonv1.Event{}}}, func(r history.Record) any { return r.Event }, nil},
		"an agent end":       {&daemonv1.Record{Body: &daemonv1.Record_AgentEnd{AgentEnd: &daemonv1.AgentEnd{}}}, func(r history.Record) any { return r.AgentEnd }, []string{"Attempt"}},
		"a piece":            {&daemonv1.Record{Body: &daemonv1.Record_Piece{Piece: &daemonv1.Piece{}}}, func(r history.Record) any { return r.Piece }, nil},
		"a move":             {&daemonv1.Record{Body: &daemonv1.Record_Move{Move: &daemonv1.Move{}}}, func(r history.Record) any { return r.Move }, nil},
		"that all is stored": {&daemonv1.Record{Body: &daemonv1.Record_Stored{Stored: &daemonv1.Stored{}}}, func(r history.Record) any { return r.Stored }, nil},
		"a request":          {&daemonv1.Record{Body: &daemonv1.Record_ToolRequest{ToolRequest: &daemonv1.ToolRequest{}}}, func(r history.Record) any { return r.Request }, []string{"Attempt"}},
		"its end":            {&daemonv1.Record{Body: &daemonv1.Record_ToolRequestEnd{ToolRequestEnd: &daemonv1.ToolRequestEnd{}}}, func(r history.Record) any { return &struct{ ID string }{r.RequestEnd} }, nil},
		"a gap":              {&daemonv1.Record{Body: &daemonv1.Record_Gap{Gap: &daemonv1.Gap{}}}, func(r history.Record) any { return r.Gap }, nil},
		"a checkpoint": {&daemonv1.Record{Body: &daemonv1.Record_Checkpoint{Checkpoint: &daemonv1.CheckpointRecord{}}}, func(r history.Record) any { return r.Checkpoint },
			// The attempt is the record's; the history determines the others.
			[]string{"TaskUID", "Attempt", "Refused", "Lost", "Position.Branch", "Position.Position", "Position.ToolCalls",
				"Totals.Messages", "Totals.ToolCalls", "Totals.InputTokens", "Totals.OutputTokens", "Totals.CostMicroUSD", "Digest",
				"Integrity.Verified", "Integrity.Damage", "Integrity.Found", "Integrity.IntactBefore", "Integrity.MessagesOnly",
				"Integrity.Requests.Pending", "Integrity.Requests.Answered", "Integrity.Requests.Age"}},
	} {
		t.Run(name, func(t *testing.T) {
			filled.InMessage(c.record)
			got := recordOf(c.record)
			for field, missing := range map[string]bool{"sequence": got.Sequence == 0, "id": got.ID == 0, "time": got.Time.IsZero(), "attempt": got.Attempt == 0} {
				if missing {
					t.Errorf("the record's %s did not arrive", field)
				}
			}
			if empty := filled.Empty(c.body(got), c.without...); empty != nil {
				t.Errorf("did not arrive: %v", empty)
			}
		})
	}
}

// TestEveryFieldOfAMessageComesBack checks that a message is returned as it was sent.
func TestEveryFieldOfAMessageComesBack(t *testing.T) {
	sent := &daemonv1.Message{}
	filled.InMessage(sent)
	back := entryMessage(history.Entry{Message: messageOf(sent)}).GetMessage()
	if d := cmp.Diff(sent, back, protocmp.Transform()); d != "" {
		t.Errorf("message (-sent +returned):\n%s", d)
	}
}

// TestEveryFieldOfACheckpointComesBack checks that a pod gets everything that the history
// has about its task's latest checkpoint.
func TestEveryFieldOfACheckpointComesBack(t *testing.T) {
	var has history.Checkpoint
	filled.In(&has)
	message := checkpointMessage(has)
	// The checkpoint's place among records is of no use to the next pod, and the counters
	// of an agent's session are in the checkpoint's own state commit.
	if empty := filled.EmptyIn(message, "after_sequence", "session.counted"); empty != nil {
		t.Errorf("a pod does not get: %v", empty)
	}
	back := checkpointOf(message)
	want := has
	want.TaskUID, want.Attempt, want.Refused, want.Lost, want.AfterSequence = "", 0, "", false, 0
	want.Position, want.Totals, want.Digest, want.Integrity = history.Position{}, history.Totals{}, "", history.Integrity{}
	if d := cmp.Diff(want, back); d != "" {
		t.Errorf("checkpoint (-want +got):\n%s", d)
	}
}
