package prepare

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/clew-dev/clew/internal/daemon/journal"
	"github.com/clew-dev/clew/internal/daemonapi"
	"github.com/clew-dev/clew/internal/testing/filled"
)

// TestARewindIsKeptAsItWasAskedFor: the next pod can finish it from the journal alone.
func TestARewindIsKeptAsItWasAskedFor(t *testing.T) {
	var op daemonapi.Operation
	filled.In(&op)
	begun := newRewind(&op, journal.RewindBegun)
	// These fields are set while the rewind runs.
	if empty := filled.Empty(begun, "Target.State", "Target.Tree", "Target.Head", "Target.Ran",
		"From.Number", "From.Code", "From.State", "From.Tree", "From.Head", "From.Ran", "Preserved", "MovedTo", "Failure", "Restored"); empty != nil {
		t.Errorf("not kept: %v", empty)
	}
	encoded, err := json.Marshal(journal.State{Rewind: begun})
	if err != nil {
		t.Fatal(err)
	}
	var read journal.State
	if err := json.Unmarshal(encoded, &read); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(begun, read.Rewind); d != "" {
		t.Errorf("read again, it is another: %s", d)
	}
}

// TestResultCarriesEveryField: every field of the journal's outcome is in prepare's
// result.
func TestResultCarriesEveryField(t *testing.T) {
	var done journal.Done
	filled.In(&done)
	failed := *done.Failure
	done.Failure = nil
	var p preparer
	p.reportDone(daemonapi.OperationRewind, "back", done)
	want := daemonapi.PrepareResult{OperationKind: daemonapi.OperationRewind, Operation: "back",
		FromCheckpoint: done.From, ToCheckpoint: done.To, Preserved: done.Preserved, ToPosition: done.Position}
	if d := cmp.Diff(want, p.result); d != "" {
		t.Errorf("of one that is complete: %s", d)
	}
	p = preparer{}
	p.reportDone(daemonapi.OperationRewind, "back", journal.Done{Failure: &failed})
	want = daemonapi.PrepareResult{Operation: daemonapi.OperationKey(daemonapi.OperationRewind, "back"),
		Failed: &daemonapi.OperationFailure{Kind: daemonapi.OperationRewind, ID: "back", Reason: failed.Reason, Message: failed.Message}}
	if d := cmp.Diff(want, p.result); d != "" {
		t.Errorf("of one that failed: %s", d)
	}

	var result daemonapi.PrepareResult
	filled.In(&result)
	for i := range result.Branches { // these are abbreviated, which not every text can be
		result.Branches[i] = daemonapi.BranchResult{Outcome: daemonapi.OutcomePresent, Commit: "c0ffee"}
	}
	encoded, err := Encode(result)
	if err != nil {
		t.Fatal(err)
	}
	var read daemonapi.PrepareResult
	if err := json.Unmarshal(encoded, &read); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(result, read); d != "" {
		t.Errorf("what prepare leaves is read as another: %s", d)
	}
}
