package prepare_test

import (
	"testing"

	"github.com/clew-dev/clew/internal/daemon/daemontest"
	"github.com/clew-dev/clew/internal/daemon/prepare"
	"github.com/clew-dev/clew/internal/daemonapi"
	daemonv1 "github.com/clew-dev/clew/internal/daemonapi/v1"
)

// lastStored returns the attempt that has reported last that everything is stored; 0 for none.
func lastStored(w *daemontest.World) (attempt int64) {
	w.Server.Inspect(w.UID, func(k *daemontest.Task) {
		for _, r := range k.Records {
			if _, is := r.GetBody().(*daemonv1.Record_Stored); is {
				attempt = r.GetAttempt()
			}
		}
	})
	return attempt
}

// onlyPrepared runs a pod that only carries out an operation.
func onlyPrepared(w *daemontest.World, attempt int64, op *daemonapi.Operation) daemonapi.PrepareResult {
	cfg := w.PrepareConfig(attempt, op)
	cfg.Pod.PrepareOnly = true
	return prepare.Run(w.T.Context(), cfg)
}

// A volume can be given back after a rewind, whether that was carried out or refused.
func TestAPodThatOnlyRewindsSaysThatEverythingIsStored(t *testing.T) {
	t.Parallel()
	arranged := three(t)
	for name, op := range map[string]*daemonapi.Operation{
		"a rewind":                   rewindTo(2, "Both", "Discard"),
		"a rewind that is refused":   pathsTo(2, "Discard", "no/such/path"),
		"a rewind that is done, too": nil,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := arranged.Copy(t)
			expect(t, "the agent's own report", lastStored(w), 1)
			r := onlyPrepared(w, 2, op)
			expect(t, "reason", r.Reason, "Prepared")
			expect(t, "the report", lastStored(w), 2)
		})
	}
}

// Its agent was killed with the daemon, and no checkpoint has what it has left.
func TestAVolumeThatNoCheckpointHasIsNotSaidToBeStored(t *testing.T) {
	t.Parallel()
	w := three(t)
	w.Prepare(2, nil)
	d := w.Start(2)
	a := w.Dial("session-2")
	w.Write("left.txt", "by an agent that is killed\n")
	a.Recorded()
	left := w.Copy(t)
	a.Close()
	d.End()
	expect(t, "reason", onlyPrepared(left, 3, nil).Reason, "Prepared")
	if lastStored(left) == 3 {
		t.Error("everything is said to be stored")
	}
}

// A pod whose agent starts has a sidecar that says so in the end.
func TestAPodWithAnAgentSaysNothingBeforeItsEnd(t *testing.T) {
	t.Parallel()
	w := three(t)
	w.Prepare(2, nil)
	expect(t, "the last report", lastStored(w), 1)
}
