package sidecar_test

import (
	"slices"
	"testing"

	"github.com/clew-dev/clew/internal/daemon/daemontest"
	"github.com/clew-dev/clew/internal/daemon/prepare"
)

// TestTheNumberThatTheGitstoreFencedByIsReported: no other store has it, since the manager
// and the history store were restored to older copies. The end of the agent is not reported
// as its own failure.
func TestTheNumberThatTheGitstoreFencedByIsReported(t *testing.T) {
	w := daemontest.NewWorld(t, nil)
	w.Policy.EveryToolCalls = 1
	w.Prepare(1, nil)
	d := w.Start(1)
	a := w.Dial("s")
	w.Git.Fence(7)
	a.Call("1")
	a.UntilStopped()
	a.Close() // its agent has ended
	d.End()
	w.Server.Inspect(w.UID, func(k *daemontest.Task) {
		if !slices.Contains(k.Reported, "Fenced") {
			t.Errorf("the problems reported are %q, want Fenced among them", k.Reported)
		}
	})
	r := prepare.Run(t.Context(), w.PrepareConfig(2, nil))
	if r.Reason != "Fenced" || r.NewestAttempt != 7 {
		t.Fatalf("prepare returned %+v, want Fenced by attempt 7", r)
	}
	w.Prepare(8, nil)
	if c := latest(w); c.GetNumber() != 1 {
		t.Errorf("the newest checkpoint is %v, want the fenced attempt's checkpoint 1", c)
	}
}
