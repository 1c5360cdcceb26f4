package prepare_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/onsi/gomega"

	"github.com/clew-dev/clew/internal/daemon/agentstate"
	"github.com/clew-dev/clew/internal/daemon/daemontest"
	"github.com/clew-dev/clew/internal/daemon/journal"
	"github.com/clew-dev/clew/internal/daemon/prepare"
	"github.com/clew-dev/clew/internal/daemon/spool"
	"github.com/clew-dev/clew/internal/daemonapi"
)

// The manager passes on which records of the task the history store has had.

// preparedAfter prepares an attempt after the manager has seen records through seen.
func preparedAfter(w *daemontest.World, attempt, seen int64) daemonapi.PrepareResult {
	w.T.Helper()
	cfg := w.PrepareConfig(attempt, nil)
	cfg.Pod.RecordSequence = seen
	return prepare.Run(w.T.Context(), cfg)
}

func lastOf(w *daemontest.World) (last int64) {
	w.Server.Inspect(w.UID, func(k *daemontest.Task) { last = k.Last() })
	return last
}

// TestThePromptIsSaidOnceWhateverIsLost: the store went back, the volume is lost, and is
// lost again when the pod that finds that out is killed, at any step.
func TestThePromptIsSaidOnceWhateverIsLost(t *testing.T) {
	if testing.Short() {
		t.Skip("tries every combination of losses: make test runs it")
	}
	t.Parallel()
	for _, test := range []struct{ stored, seen int64 }{{0, 1}, {0, 100}, {5, 100}} {
		for _, again := range []bool{false, true} {
			t.Run(fmt.Sprintf("stored %d, seen %d, lost again %v", test.stored, test.seen, again), func(t *testing.T) {
				t.Parallel()
				for kill, killed := 1, true; killed; kill += stride(3) {
					w := three(t)
					seen := min(test.seen, lastOf(w))
					w.Server.RollBack(w.UID, test.stored)
					w.LoseVolume()
					cfg := w.PrepareConfig(2, nil)
					cfg.Pod.RecordSequence = seen
					c := &crashing{at: kill}
					_, killed = c.run(t.Context(), cfg, c)
					if again && killed {
						w.LoseVolume()
					}
					expect(t, fmt.Sprintf("killed at %d", kill), preparedAfter(w, 3, seen).Reason, "Prepared")
					w.Server.Inspect(w.UID, func(k *daemontest.Task) {
						expect(t, fmt.Sprintf("prompts after a kill at %d", kill), strings.Count(strings.Join(k.Lines(), "\n"), "user Do it."), 1)
						expect(t, fmt.Sprintf("lost records after a kill at %d", kill), k.Lost, seen-test.stored)
					})
				}
			})
		}
	}
}

// TestWhatTheServerLacksIsPutAside: the store failed over to a copy, and back again; the
// volume has the records of the time in between.
func TestWhatTheServerLacksIsPutAside(t *testing.T) {
	t.Parallel()
	w := three(t)
	had := lastOf(w)
	var first daemontest.Task
	w.Server.Inspect(w.UID, func(k *daemontest.Task) { first = *k })
	w.Server.RollBack(w.UID, 5)
	w.LoseVolume()
	expect(t, "the second attempt", preparedAfter(w, 2, had-3).Reason, "Prepared")
	attempt(w, 2, func(a *daemontest.Shim) { step(w, a, "9", "nine.txt", "9\n") })
	seen := lastOf(w)
	w.Server.Inspect(w.UID, func(k *daemontest.Task) {
		at := k.Attempt
		*k = first
		k.Attempt = at
	})
	expect(t, "the third attempt", preparedAfter(w, 3, seen).Reason, "Prepared")
	g := gomega.NewWithT(t)
	aside, err := filepath.Glob(filepath.Join(w.Root, "clew", "spool", "aside-*"))
	g.Expect(err).NotTo(gomega.HaveOccurred())
	g.Expect(aside).NotTo(gomega.BeEmpty(), "nobody else has the records of the second attempt")
	w.Server.Inspect(w.UID, func(k *daemontest.Task) { expect(t, "lost records", k.Lost, seen-had) })
}

// TestAVolumeThatWentBackWithTheStoreIsLeft: no record of the store shows that it is an
// older copy, but the manager has seen later ones.
func TestAVolumeThatWentBackWithTheStoreIsLeft(t *testing.T) {
	t.Parallel()
	for _, stored := range []bool{true, false} {
		t.Run(fmt.Sprintf("with what the volume has: %v", stored), func(t *testing.T) {
			t.Parallel()
			g := gomega.NewWithT(t)
			w := daemontest.NewWorld(t, files)
			w.Policy.EveryToolCalls = 1
			w.Prepare(1, nil)
			older, then := filepath.Join(t.TempDir(), "older"), lastOf(w)
			g.Expect(os.CopyFS(older, os.DirFS(w.Root))).To(gomega.Succeed())
			attempt(w, 1, func(a *daemontest.Shim) {
				step(w, a, "1", "one.txt", "1\n")
				step(w, a, "2", "two.txt", "2\n")
			})
			seen, newest := lastOf(w), w.Tree()
			w.Root = older
			underWay(w)
			if w.Write("left.txt", "found there\n"); !stored {
				then = 0
			}
			w.Server.RollBack(w.UID, then)
			for n := range int64(2) { // the second finds nothing to do
				expect(t, "reason", preparedAfter(w, 2+n, seen).Reason, "Prepared")
			}
			g.Expect(w.Tree()).To(gomega.Equal(newest))
			kept := 0
			w.Server.Inspect(w.UID, func(k *daemontest.Task) {
				for _, r := range k.Records {
					if r.GetCheckpoint().GetMessage() == "Found on a volume that was older than the history" {
						kept++
					}
				}
				said := strings.Join(k.Lines(), "\n")
				expect(t, "prompts", strings.Count(said, "user Do it."), 1)
				expect(t, "calls that were under way in the older copy", strings.Count(said, "ended long since"), 0)
				expect(t, "lost records", k.Lost, seen-1)
			})
			expect(t, "checkpoints of what the volume held", kept, 1)
		})
	}
}

// underWay gives the volume a call that has begun and not ended.
func underWay(w *daemontest.World) {
	w.T.Helper()
	g := gomega.NewWithT(w.T)
	s, err := spool.Open(filepath.Join(w.Root, "clew", "spool"))
	g.Expect(err).NotTo(gomega.HaveOccurred())
	defer s.Close()
	state := agentstate.State{Begun: []agentstate.Call{{Key: "k", ID: "ended long since", Name: "Bash", Input: "{}"}}}
	g.Expect(s.Append(&spool.Mark{Session: "session-1", State: state.Encode()})).To(gomega.Succeed())
}

// TestAResumesPromptThatWasDamagedAndLostIsSaidAgain: its sequence is skipped, since the
// manager has seen it in the history store.
func TestAResumesPromptThatWasDamagedAndLostIsSaidAgain(t *testing.T) {
	t.Parallel()
	g := gomega.NewWithT(t)
	w := three(t)
	last := lastOf(w)
	op := resumeWith("r1", "And now?")
	j, err := journal.Open(filepath.Join(w.Root, "clew", "journal.json"), nil)
	g.Expect(err).NotTo(gomega.HaveOccurred())
	g.Expect(j.Update(func(s *journal.State) error {
		s.Resume = &journal.Resume{ID: daemonapi.OperationKey(op.Kind, op.ID), Sequence: last + 1}
		return nil
	})).To(gomega.Succeed())
	g.Expect(os.WriteFile(filepath.Join(w.Root, "clew", "spool", "end-lost"), nil, 0o600)).To(gomega.Succeed())
	cfg := w.PrepareConfig(2, op)
	cfg.Pod.RecordSequence = last + 1
	expect(t, "reason", prepare.Run(t.Context(), cfg).Reason, "Prepared")
	expect(t, "times that it is said", strings.Count(strings.Join(w.Lines(), "\n"), "user And now?"), 1)
}
