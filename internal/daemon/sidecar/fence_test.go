package sidecar_test

import (
	"slices"
	"testing"

	"github.com/clew-dev/clew/internal/daemon/daemontest"
	"github.com/clew-dev/clew/internal/daemon/prepare"
)

// TestTheNumberThatTheGitstoreFencedByIsTold: nobody else knows of it, since the
// manager and the history store were put back to older copies. The end of the agent
// is told to be none of its own.
func TestTheNumberThatTheGitstoreFencedByIsTold(t *testing.T) {
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
	w.Server.Look(w.UID, func(k *daemontest.Task) {
		if !slices.Contains(k.Told, "Fenced") {
			t.Errorf("the server was told of %q", k.Told)
		}
	})
	r := prepare.Run(t.Context(), w.PrepareConfig(2, nil))
	if r.Reason != "Fenced" || r.NewestAttempt != 7 {
		t.Fatalf("%+v", r)
	}
	w.Prepare(8, nil)
	if c := latest(w); c.GetNumber() != 1 {
		t.Errorf("the checkpoint of the attempt that was fenced off is %v", c)
	}
}
