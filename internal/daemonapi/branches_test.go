package daemonapi_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/clew-dev/clew/internal/daemonapi"
)

// TestBranchResultsFitIntoATerminationMessage: 64 of them leave half of it, and are read back.
func TestBranchResultsFitIntoATerminationMessage(t *testing.T) {
	result := daemonapi.PrepareResult{}
	for range 64 {
		result.Branches = append(result.Branches, daemonapi.BranchResult{Outcome: daemonapi.OutcomeMade, Commit: strings.Repeat("0123456789", 4)})
	}
	result.Branches[1] = daemonapi.BranchResult{Outcome: daemonapi.OutcomeNotFetched}
	text, err := json.Marshal(result)
	if err != nil || len(text) > 2048+16 {
		t.Fatalf("the result has %d bytes (%v)", len(text), err)
	}
	var got daemonapi.PrepareResult
	if err := json.Unmarshal(text, &got); err != nil {
		t.Fatal(err)
	}
	for i, b := range got.Branches {
		if b != result.Branches[i] {
			t.Errorf("branch %d is read as %+v, want %+v", i, b, result.Branches[i])
		}
	}
}

// TestAnOutcomeOfANewerDaemonIsTriedAgain, and one that is no outcome is an error.
func TestAnOutcomeOfANewerDaemonIsTriedAgain(t *testing.T) {
	var got []daemonapi.BranchResult
	if err := json.Unmarshal([]byte(`["z", "", "~"]`), &got); err != nil {
		t.Fatal(err)
	}
	for _, b := range got {
		if b.Outcome != daemonapi.OutcomeNotFetched {
			t.Errorf("it is read as %+v", b)
		}
	}
	if err := json.Unmarshal([]byte(`["0-not base64-"]`), &got); err == nil {
		t.Error("nonsense is read")
	}
	if text, err := (daemonapi.BranchResult{Outcome: "Unheard"}).MarshalText(); err == nil {
		t.Errorf("an unknown outcome is written as %s", text)
	}
}
