package prepare_test

import (
	"path/filepath"
	"slices"
	"testing"

	"github.com/clew-dev/clew/internal/daemon/daemontest"
	"github.com/clew-dev/clew/internal/daemon/journal"
	"github.com/clew-dev/clew/internal/daemon/prepare"
	"github.com/clew-dev/clew/internal/daemonapi"
)

func resumeWith(id, prompt string) *daemonapi.Operation {
	return &daemonapi.Operation{Kind: daemonapi.OperationResume, ID: id, Prompt: prompt}
}

// Users choose the ids of rewinds and resumes independently of each other.
func TestARewindWithTheIDOfAnEarlierResumeIsCarriedOut(t *testing.T) {
	t.Parallel()
	for name, lose := range map[string]bool{"on its volume": false, "after the volume was lost": true} {
		t.Run(name, func(t *testing.T) {
			w := three(t)
			w.Prepare(2, resumeWith("1", "More."))
			if lose {
				w.LoseVolume()
			}
			op := rewindTo(1, "Both", "Discard")
			op.ID = "1"
			r := w.Prepare(3, op)
			expect(t, "the operation", r.OperationKind+"/"+r.Operation, "Rewind/1")
			expect(t, "a.txt", w.Read("a.txt"), "a\n")
			expect(t, "conversation", w.Lines(), callsOfThree[:3])
		})
	}
}

func TestAResumeWithTheIDOfAnEarlierRewindIsCarriedOut(t *testing.T) {
	t.Parallel()
	for name, lose := range map[string]bool{"on its volume": false, "after the volume was lost": true} {
		t.Run(name, func(t *testing.T) {
			w := three(t)
			op := rewindTo(1, "Both", "Discard")
			op.ID = "1"
			w.Prepare(2, op)
			if lose {
				w.LoseVolume()
			}
			for n := int64(3); n < 5; n++ { // the second one repeats nothing
				r := w.Prepare(n, resumeWith("1", "More."))
				expect(t, "the operation", r.OperationKind+"/"+r.Operation, "Resume/1")
				expect(t, "conversation", w.Lines(), append(slices.Clone(callsOfThree[:3]), "user More."))
			}
		})
	}
}

// What became of the volume is for people: the work is restored in the same way.
func TestAWorkspaceOnANewVolumeSaysWhatBecameOfTheFormerOne(t *testing.T) {
	t.Parallel()
	for said, released := range map[string]bool{"the volume was lost": false, "the volume was released": true} {
		t.Run(said, func(t *testing.T) {
			w := three(t)
			files, lines := w.Tree(), w.Lines()
			w.LoseVolume()
			config := w.PrepareConfig(2, nil)
			config.Pod.VolumeReleased = released
			r := prepare.Run(t.Context(), config)
			expect(t, "the result", daemonapi.PrepareResult{Reason: "Prepared", Restored: true}, r)
			expect(t, "the files", w.Tree(), files)
			expect(t, "the conversation", w.Lines(), lines)
			var moves []string
			w.Server.Inspect(w.UID, func(k *daemontest.Task) {
				for _, r := range k.Records {
					if m := r.GetMove(); m != nil {
						moves = append(moves, m.GetReason())
					}
				}
			})
			expect(t, "the moves of the conversation", moves, []string{said})
		})
	}
}

// An unfinished rewind in the journal is not the outcome of a resume.
func TestAResumeIsNotTakenForARewindUnderWay(t *testing.T) {
	t.Parallel()
	w := three(t)
	op := rewindTo(1, "Both", "Discard")
	op.ID = "1"
	if _, done := prepareCrashing(t, w, 2, op, &crashing{when: "before restore"}); done {
		t.Fatal("it was not killed")
	}
	r := w.Prepare(3, resumeWith("1", "More."))
	expect(t, "the result", daemonapi.PrepareResult{Reason: "Prepared", OperationKind: "Resume", Operation: "1"}, r)
	expect(t, "conversation", w.Lines(), append(slices.Clone(callsOfThree[:3]), "user More."))
}

// Old journals identify operations by their bare ids.
func TestOperationsOfAnOldJournalAreNotRepeated(t *testing.T) {
	t.Parallel()
	w := three(t)
	remember(t, w, journal.Done{ID: "a/recorded"}, journal.Done{ID: "b"}, journal.Done{ID: "c", From: 4, To: 1, Position: 3})
	before := w.Tree()
	w.Prepare(2, resumeWith("a", "Recorded before.")) // killed after its prompt was recorded
	w.Prepare(3, resumeWith("b", "Done before."))
	op := rewindTo(1, "Both", "Discard")
	op.ID = "c"
	expect(t, "the result", w.Prepare(4, op), daemonapi.PrepareResult{Reason: "Prepared", OperationKind: "Rewind", Operation: "c",
		FromCheckpoint: 4, ToCheckpoint: 1, ToPosition: 3})
	expect(t, "tree", w.Tree(), before)
	expect(t, "conversation", w.Lines(), callsOfThree)
	w.Prepare(5, resumeWith("c", "More."))
	expect(t, "conversation", w.Lines(), append(slices.Clone(callsOfThree), "user More."))
}

// remember writes completed operations to the journal of a volume at rest.
func remember(t *testing.T, w *daemontest.World, done ...journal.Done) {
	t.Helper()
	j, err := journal.Open(filepath.Join(w.Root, "clew", "journal.json"), nil)
	if err == nil {
		err = j.Update(func(s *journal.State) error { s.Done = append(s.Done, done...); return nil })
	}
	if err != nil {
		t.Fatal(err)
	}
}
