package prepare_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/clew-dev/clew/internal/daemon/daemontest"
	"github.com/clew-dev/clew/internal/daemon/prepare"
	"github.com/clew-dev/clew/internal/daemonapi"
)

// TestTheMoveOfARewindIsSentAgain: the history store goes back to before a rewind
// that was complete.
func TestTheMoveOfARewindIsSentAgain(t *testing.T) {
	t.Parallel()
	w := three(t)
	var before int64
	w.Server.Look(w.UID, func(k *daemontest.Task) { before = k.Last() })
	w.Prepare(2, rewindTo(1, "Both", "Discard"))
	w.Server.RollBack(w.UID, before)
	expect(t, "conversation of the older copy", w.Lines(), callsOfThree)
	w.Prepare(3, nil)
	expect(t, "a.txt", w.Read("a.txt"), "a\n")
	expect(t, "conversation", w.Lines(), callsOfThree[:3])
}

// TestALossBeyondTheMarginIsAGap: it is counted, and the task goes on.
func TestALossBeyondTheMarginIsAGap(t *testing.T) {
	t.Parallel()
	w := three(t)
	var had int64
	w.Server.Look(w.UID, func(k *daemontest.Task) { had = k.Last() })
	w.LoseVolume() // the new volume's spool begins behind what the server has
	w.Prepare(2, nil)
	w.Server.RollBack(w.UID, had-5)
	tree := w.Tree()
	w.Prepare(3, nil)
	w.Server.Look(w.UID, func(k *daemontest.Task) {
		if k.Lost != 5 || !slices.Contains(k.Lines(), "system gap of 5") {
			t.Errorf("%d records are told to be lost: %v", k.Lost, k.Lines())
		}
	})
	expect(t, "tree", w.Tree(), tree)
}

// TestDurableCheckpointsThatTheGitstoreLost are pushed again from the volume; what
// is nowhere any more is told to be lost.
func TestDurableCheckpointsThatTheGitstoreLost(t *testing.T) {
	t.Parallel()
	w := three(t)
	forget := func(dir, number string) {
		for _, kind := range []string{"code", "state"} {
			w.Git.Run(t, dir, "update-ref", "-d", "refs/clew/"+w.UID+"/"+kind+"/"+number)
		}
	}
	store, volume := filepath.Join(w.Git.Dir, "store.git"), filepath.Join(w.Root, "clew", "git")
	forget(store, "1")
	forget(store, "2")
	forget(volume, "1")
	cfg := w.PrepareConfig(2, nil)
	cfg.Pod.PrepareOnly = true
	expect(t, "reason", prepare.Run(t.Context(), cfg).Reason, "Prepared")
	refs := w.Git.Refs(t, "store")
	if !slices.Contains(refs, "refs/clew/"+w.UID+"/code/2") || !slices.Contains(refs, "refs/clew/"+w.UID+"/state/2") {
		t.Errorf("checkpoint 2 is not in the gitstore again: %v", refs)
	}
	if checkpoint(w, 1).GetDurable() || !checkpoint(w, 2).GetDurable() {
		t.Errorf("durable: checkpoint 1 %v, checkpoint 2 %v", checkpoint(w, 1).GetDurable(), checkpoint(w, 2).GetDurable())
	}
}

// TestAJournalThatCannotBeRead: what the volume holds is kept, the newest durable
// checkpoint is restored, and the task goes on.
func TestAJournalThatCannotBeRead(t *testing.T) {
	t.Parallel()
	w := three(t)
	w.Write("mine", "in no checkpoint\n")
	if err := os.WriteFile(filepath.Join(w.Root, "clew", "journal.json"), []byte("{damaged"), 0o600); err != nil {
		t.Fatal(err)
	}
	w.Prepare(2, nil)
	expect(t, "a file that was in no checkpoint", w.Read("mine"), "")
	kept := ""
	w.Server.Look(w.UID, func(k *daemontest.Task) {
		for _, c := range k.Checkpoints {
			if c.GetTrigger() == "Drift" {
				kept = w.Git.Run(t, filepath.Join(w.Root, "clew", "git"), "show", c.GetCommit()+":mine")
			}
		}
	})
	expect(t, "what was kept of it", strings.TrimSpace(kept), "in no checkpoint")
	if next := latest(w).GetNumber(); next < 5 {
		t.Errorf("checkpoint number %d is given twice", next)
	}
	w.Prepare(3, &daemonapi.Operation{Kind: daemonapi.OperationResume, ID: "r", Prompt: "More."})
}
