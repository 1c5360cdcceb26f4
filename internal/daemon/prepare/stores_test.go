package prepare_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/clew-dev/clew/internal/daemon/checkpoint"
	"github.com/clew-dev/clew/internal/daemon/daemontest"
	"github.com/clew-dev/clew/internal/daemon/prepare"
	"github.com/clew-dev/clew/internal/daemon/volume"
	"github.com/clew-dev/clew/internal/daemonapi"
	"github.com/clew-dev/clew/internal/refname"
	"github.com/clew-dev/clew/internal/worktree"
)

// TestTheMoveOfARewindIsSentAgain: the history store goes back to before a complete rewind.
func TestTheMoveOfARewindIsSentAgain(t *testing.T) {
	t.Parallel()
	w := three(t)
	var before int64
	w.Server.Inspect(w.UID, func(k *daemontest.Task) { before = k.Last() })
	w.Prepare(2, rewindTo(1, "Both", "Discard"))
	w.Server.RollBack(w.UID, before)
	expect(t, "conversation of the older copy", w.Lines(), callsOfThree)
	w.Prepare(3, nil)
	expect(t, "a.txt", w.Read("a.txt"), "a\n")
	expect(t, "conversation", w.Lines(), callsOfThree[:3])
}

// TestALossBeyondTheMarginIsAGap: it is counted, and the task continues.
func TestALossBeyondTheMarginIsAGap(t *testing.T) {
	t.Parallel()
	w := three(t)
	var had int64
	w.Server.Inspect(w.UID, func(k *daemontest.Task) { had = k.Last() })
	w.LoseVolume() // the new volume's spool begins behind what the server has
	w.Prepare(2, nil)
	w.Server.RollBack(w.UID, 3)
	tree := w.Tree()
	w.Prepare(3, nil)
	w.Server.Inspect(w.UID, func(k *daemontest.Task) {
		if n := had - 3; k.Lost != n || !slices.Contains(k.Lines(), fmt.Sprint("system gap of ", n)) {
			t.Errorf("%d records are told to be lost: %v", k.Lost, k.Lines())
		}
	})
	expect(t, "tree", w.Tree(), tree)
}

// TestDurableCheckpointsThatTheGitstoreLost are pushed again from the volume; those that
// exist nowhere are recorded as lost.
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
	if checkpointRecord(w, 1).GetDurable() || !checkpointRecord(w, 2).GetDurable() {
		t.Errorf("durable: checkpoint 1 %v, checkpoint 2 %v", checkpointRecord(w, 1).GetDurable(), checkpointRecord(w, 2).GetDurable())
	}
}

// TestATaskThatCompletesLeavesNoHoleInTheGitstore: the gitstore was restored from an older
// copy while the agent worked, and was reachable at every push.
func TestATaskThatCompletesLeavesNoHoleInTheGitstore(t *testing.T) {
	t.Parallel()
	w := daemontest.NewWorld(t, files)
	w.Policy.EveryToolCalls = 1
	w.Prepare(1, nil)
	attempt(w, 1, func(a *daemontest.Shim) {
		for n := int64(1); n < 3; n++ {
			step(w, a, fmt.Sprint(n), "a.txt", fmt.Sprintf("changed by %d\n", n))
			w.Server.Until(t, "the checkpoint is durable", w.UID, func(k *daemontest.Task) bool { return k.Checkpoints[n].GetDurable() })
		}
		for _, ref := range []string{refname.Code(w.UID, 1), refname.State(w.UID, 1)} {
			w.Git.Run(t, filepath.Join(w.Git.Dir, "store.git"), "update-ref", "-d", ref)
		}
	})
	refs := w.Git.Refs(t, "store")
	for _, n := range known(w) {
		if !slices.Contains(refs, refname.Code(w.UID, n)) || !slices.Contains(refs, refname.State(w.UID, n)) {
			t.Errorf("the task has completed, and the gitstore lacks checkpoint %d of %v", n, known(w))
		}
	}
}

// TestAJournalThatCannotBeRead: the volume's contents are kept, the newest durable
// checkpoint is restored, and the task continues.
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
	w.Server.Inspect(w.UID, func(k *daemontest.Task) {
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

// noCheckpoint is a repository in which no checkpoint can be taken: the volume is full, or
// the pod is killed just then.
type noCheckpoint struct{ prepare.Repo }

func (noCheckpoint) Checkpoint(context.Context, worktree.CheckpointRequest) (worktree.Checkpoint, error) {
	return worktree.Checkpoint{}, errors.New("killed")
}

func TestAnOlderVolumeIsKnownAsOneAfterAKill(t *testing.T) {
	t.Parallel()
	w := daemontest.NewWorld(t, files)
	w.Policy.EveryToolCalls = 1
	w.Prepare(1, nil)
	old := w.CopyVolume()
	attempt(w, 1, func(a *daemontest.Shim) { step(w, a, "1", "one", "1") })
	newest := w.Tree()
	w.Root = old.Root
	cfg := w.PrepareConfig(2, nil)
	cfg.Wrap(func(r prepare.Repo) prepare.Repo { return noCheckpoint{r} })
	if r := prepare.Run(t.Context(), cfg); r.Reason == "Prepared" {
		t.Fatalf("prepare ended well although what the volume held was not kept: %+v", r)
	}
	w.Prepare(3, nil)
	expect(t, "tree", w.Tree(), newest)
}

// TestALostCheckpointThatIsThereAgain: the gitstore was compared while another, empty
// volume was mounted there.
func TestALostCheckpointThatIsThereAgain(t *testing.T) {
	t.Parallel()
	w := three(t)
	store, away := filepath.Join(w.Git.Dir, "store.git"), filepath.Join(t.TempDir(), "away")
	if err := os.Rename(store, away); err != nil {
		t.Fatal(err)
	}
	for _, kind := range []string{"code", "state"} {
		w.Git.Run(t, filepath.Join(w.Root, "clew", "git"), "update-ref", "-d", "refs/clew/"+w.UID+"/"+kind+"/1")
	}
	w.Git.New(t, "store")
	w.Prepare(2, nil)
	if checkpointRecord(w, 1).GetDurable() {
		t.Error("checkpoint 1 is durable and nobody has it")
	}
	if err := errors.Join(os.RemoveAll(store), os.Rename(away, store)); err != nil {
		t.Fatal(err)
	}
	w.Prepare(3, nil)
	if !checkpointRecord(w, 1).GetDurable() {
		t.Error("checkpoint 1 is in the gitstore and counts as lost")
	}
}

func TestWhatWaitedForTheGitstoreIsFoundWithoutAJournal(t *testing.T) {
	t.Parallel()
	w := daemontest.NewWorld(t, files)
	w.Policy.EveryToolCalls = 1
	w.Prepare(1, nil)
	w.Start(1)
	a := w.Dial("session-1")
	step(w, a, "1", "one.txt", "1\n")
	w.Server.Until(t, "checkpoint 1 is durable", w.UID, func(k *daemontest.Task) bool { return k.Checkpoints[1].GetDurable() })
	w.Git.SetDown(true)
	step(w, a, "2", "two.txt", "2\n")
	w.Server.Until(t, "checkpoint 2 is known", w.UID, func(k *daemontest.Task) bool { return k.Checkpoints[2] != nil })
	killed := w.CopyVolume()
	w.Git.SetDown(false)
	if err := os.WriteFile(filepath.Join(killed.Root, "clew", "journal.json"), []byte("{damaged"), 0o600); err != nil {
		t.Fatal(err)
	}
	cfg := killed.PrepareConfig(2, nil)
	cfg.Pod.PrepareOnly = true // it pushes all that waits
	expect(t, "reason", prepare.Run(t.Context(), cfg).Reason, "Prepared")
	if !checkpointRecord(w, 2).GetDurable() {
		t.Errorf("checkpoint 2 is on the volume and nobody pushes it; the gitstore has %v", w.Git.Refs(t, "store"))
	}
}

// cutOff is a repository whose clone is interrupted.
type cutOff struct{ prepare.Repo }

func (cutOff) Clone(context.Context, worktree.CloneRequest) (worktree.Origin, error) {
	return worktree.Origin{}, errors.New("the power is cut")
}

func TestAVolumeWithoutJournalAndWorkspaceIsLaidOutAnew(t *testing.T) {
	t.Parallel()
	for name, damage := range map[string]func(w *daemontest.World){
		"the clone was cut off": func(w *daemontest.World) {
			cfg := w.PrepareConfig(1, nil)
			cfg.Wrap(func(r prepare.Repo) prepare.Repo { return cutOff{r} })
			prepare.Run(t.Context(), cfg)
		},
		"the worktree is gone": func(w *daemontest.World) {
			w.Prepare(1, nil)
			if err := os.RemoveAll(filepath.Join(w.Root, "worktree")); err != nil {
				t.Error(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := daemontest.NewWorld(t, files)
			damage(w)
			if err := os.WriteFile(filepath.Join(w.Root, "clew", "journal.json"), []byte("{damaged"), 0o600); err != nil {
				t.Fatal(err)
			}
			w.Prepare(2, nil)
			expect(t, "a.txt", w.Read("a.txt"), files["a.txt"])
		})
	}
}

// TestANumberBelongsToOneCheckpointForEver: neither the history store nor the volume still
// knows a checkpoint that has an object.
func TestANumberBelongsToOneCheckpointForEver(t *testing.T) {
	t.Parallel()
	w := daemontest.NewWorld(t, files)
	cfg := w.PrepareConfig(1, nil)
	cfg.Pod.HighestCheckpoint = 7
	expect(t, "reason", prepare.Run(t.Context(), cfg).Reason, "Prepared")
	attempt(w, 1, func(a *daemontest.Shim) {})
	if number := latest(w).GetNumber(); number != 8 {
		t.Errorf("the next checkpoint got number %d", number)
	}
}

// killedTaking takes a checkpoint that is not pushed, and is killed during the next one,
// when its refs are on the volume and it is not in the journal.
func killedTaking(w *daemontest.World, attempt int64) (cut int64) {
	t := w.T
	t.Helper()
	v, err := volume.Open(t.Context(), w.Paths(), w.Pod(attempt, nil), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer v.Close()
	taker := &checkpoint.Taker{Repo: v.Repo, Journal: v.Journal, Spool: v.Spool, TaskUID: w.UID, Attempt: attempt, Log: w.Log()}
	w.Write("waits", "for the gitstore\n")
	waits, err := taker.Take(t.Context(), checkpoint.Request{Trigger: "ToolCalls"})
	if err != nil {
		t.Fatal(err)
	}
	cut = waits.Number + 1
	w.Write("cut", "by a kill\n")
	req := worktree.CheckpointRequest{TaskUID: w.UID, Number: cut, Parent: waits.Code, Time: time.Now(), Message: "cut"}
	if _, err := v.Repo.Checkpoint(t.Context(), req); err != nil {
		t.Fatal(err)
	}
	return cut
}

// TestTheNumberOfACheckpointThatAKillCutIsFree: another tree gets it, and is pushed.
func TestTheNumberOfACheckpointThatAKillCutIsFree(t *testing.T) {
	t.Parallel()
	w := three(t)
	w.Prepare(2, nil)
	number := killedTaking(w, 2)
	w.Start(2)
	a := w.Dial("s2")
	w.Server.Until(t, "the checkpoint that waited is durable", w.UID, func(k *daemontest.Task) bool { return k.Checkpoints[number-1].GetDurable() })
	step(w, a, "4", "next", "4\n")
	w.Server.Until(t, "the next checkpoint is durable", w.UID, func(k *daemontest.Task) bool { return k.Checkpoints[number].GetDurable() })
	stored := w.Git.Run(t, filepath.Join(w.Git.Dir, "store.git"), "rev-parse", refname.Code(w.UID, number))
	expect(t, "the gitstore's commit", strings.TrimSpace(stored), checkpointRecord(w, number).GetCommit())
}

// TestACheckpointThatAKillCutIsNoneWhenItsNumberIsPassedOver: there is an object for a
// later one, which the volume and the history have lost.
func TestACheckpointThatAKillCutIsNoneWhenItsNumberIsPassedOver(t *testing.T) {
	t.Parallel()
	w := three(t)
	w.Prepare(2, nil)
	number := killedTaking(w, 2)
	cfg := w.PrepareConfig(3, &daemonapi.Operation{Kind: daemonapi.OperationResume, ID: "on", OnDrift: "Preserve"})
	cfg.Pod.HighestCheckpoint = number + 1
	expect(t, "reason", prepare.Run(t.Context(), cfg).Reason, "Prepared")
	attempt(w, 3, func(a *daemontest.Shim) { step(w, a, "4", "next", "4\n") })
	if numbers := known(w); slices.Contains(numbers, number) || !slices.Contains(numbers, number+2) {
		t.Errorf("the checkpoints are %d, and %d was cut", numbers, number)
	}
	if strings.Contains(w.Git.Run(t, filepath.Join(w.Git.Dir, "store.git"), "for-each-ref"), refname.Code(w.UID, number)) {
		t.Error("the gitstore has what was cut")
	}
}

// TestANumberThatOnlyTheGitstoreHasIsNotGivenAgain: the volume and the history both went
// back to an older copy.
func TestANumberThatOnlyTheGitstoreHasIsNotGivenAgain(t *testing.T) {
	t.Parallel()
	for name, before := range map[string]int64{"before any checkpoint": 1, "after some": 2} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := daemontest.NewWorld(t, files)
			w.Policy.EveryToolCalls = 1
			work := func(n int64) {
				attempt(w, n, func(a *daemontest.Shim) { step(w, a, fmt.Sprint(n), "a.txt", fmt.Sprintf("changed by %d\n", n)) })
			}
			w.Prepare(1, nil)
			for n := int64(1); n < before; n++ {
				work(n)
				w.Prepare(n+1, nil)
			}
			old, had := w.CopyVolume(), int64(0)
			w.Server.Inspect(w.UID, func(k *daemontest.Task) { had = k.Last() })
			work(before)
			inGitstore := latest(w).GetNumber()
			w.Server.RollBack(w.UID, had)
			w.Root = old.Root
			w.Prepare(before+1, nil)
			work(before + 1)
			last := latest(w)
			if last.GetNumber() <= inGitstore || !last.GetDurable() {
				t.Errorf("the gitstore had checkpoints up to %d, and the last one is %v", inGitstore, last)
			}
			expect(t, "trigger of the last checkpoint", last.GetTrigger(), "Completion")
			for _, n := range known(w) {
				stored := w.Git.Run(t, filepath.Join(w.Git.Dir, "store.git"), "rev-parse", refname.Code(w.UID, n))
				expect(t, fmt.Sprintf("the gitstore's commit of checkpoint %d", n), strings.TrimSpace(stored), checkpointRecord(w, n).GetCommit())
			}
		})
	}
}

// TestRecordsThatNobodyHasAreCounted: the store went back, the volume is lost, and the
// manager has seen the records. A failing prepare, or another lost volume, changes nothing
// about it.
func TestRecordsThatNobodyHasAreCounted(t *testing.T) {
	if testing.Short() {
		t.Skip("waits for seconds: make test runs it")
	}
	t.Parallel()
	for name, test := range map[string]struct {
		stored int64
		fails  bool
	}{
		"the newest":                       {stored: 5},
		"the newest, and a prepare failed": {stored: 5, fails: true},
		"all":                              {stored: 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := three(t)
			var had int64
			w.Server.Inspect(w.UID, func(k *daemontest.Task) { had = k.Last() })
			w.Server.RollBack(w.UID, test.stored)
			w.LoseVolume()
			next := int64(2)
			prepared := func() daemonapi.PrepareResult {
				cfg := w.PrepareConfig(next, nil)
				cfg.Pod.RecordSequence = had
				next++
				return prepare.Run(t.Context(), cfg)
			}
			if test.fails {
				w.Git.SetDown(true)
				if r := prepared(); r.Reason == "Prepared" {
					t.Fatal("it is prepared without a gitstore")
				}
				w.Git.SetDown(false)
				w.LoseVolume()
			}
			r := prepared()
			expect(t, "reason", r.Reason, "Prepared")
			w.Server.Inspect(w.UID, func(k *daemontest.Task) {
				expect(t, "lost records", k.Lost, had-test.stored)
				expect(t, "prompts", strings.Count(strings.Join(k.Lines(), "\n"), "user Do it."), 1)
				for _, r := range k.Records {
					lost := r.GetSequence() > test.stored && r.GetSequence() <= had
					if lost && r.GetGap() == nil {
						t.Errorf("sequence %d is used twice: %v", r.GetSequence(), r)
					}
				}
			})
		})
	}
}
