package prepare_test

import (
	"strconv"
	"strings"
	"testing"

	"github.com/clew-dev/clew/internal/daemon/daemontest"
	"github.com/clew-dev/clew/internal/daemon/wire"
)

// A checkpoint that is pending may be damaged on the volume. It is given up, with its
// reason, and the next one starts a new history.
func TestADamagedCheckpointThatWaitsHoldsBackNeitherLaterOnesNorTheAgentsEnd(t *testing.T) {
	t.Parallel()
	w := daemontest.NewWorld(t, files)
	w.Policy.EveryToolCalls = 1
	w.Prepare(1, nil)
	d := w.Start(1)
	a := w.Dial("s")
	w.Git.SetDown(true)
	step(w, a, "1", "one.txt", "1\n")
	w.Server.Until(t, "the server knows it", w.UID, func(k *daemontest.Task) bool { return k.Latest() != nil })
	damage(t, w, checkpointRecord(w, 1).GetTree())
	step(w, a, "2", "one.txt", "")
	w.Git.SetDown(false)
	step(w, a, "3", "three", "3\n")
	a.Send(wire.TypeExit, wire.Exit{Code: 0})
	a.Next(wire.TypeRelease)
	d.End()

	last := latest(w)
	if !last.GetDurable() || last.GetTrigger() != "Completion" {
		t.Fatalf("the last checkpoint is %v", last)
	}
	refused := map[string]string{}
	w.Server.Inspect(w.UID, func(k *daemontest.Task) {
		for _, r := range k.Records {
			if e := r.GetEvent(); e.GetReason() == "CheckpointRefused" {
				refused[e.GetDetails()["checkpoint"]] = e.GetDetails()["message"]
			}
		}
	})
	if !strings.Contains(refused["1"], "damaged on the volume") {
		t.Fatalf("given up: %v", refused)
	}
	w.Server.Inspect(w.UID, func(k *daemontest.Task) {
		for n, c := range k.Checkpoints {
			if _, given := refused[strconv.FormatInt(n, 10)]; c.GetDurable() == given {
				t.Errorf("checkpoint %d: durable %v, given up %v", n, c.GetDurable(), given)
			}
		}
	})
	// Everything is restored to a new volume, and a rewind to a lost checkpoint is refused.
	tree := w.Tree()
	w.LoseVolume()
	w.Prepare(2, nil)
	expect(t, "tree", w.Tree(), tree)
	op := rewindTo(1, "Both", "Discard")
	expectFailed(t, w.Prepare(3, op), op.ID, "CheckpointNotFound")
	expect(t, "tree", w.Tree(), tree)
}
