package prepare_test

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/clew-dev/clew/internal/daemon/daemontest"
	"github.com/clew-dev/clew/internal/daemon/journal"
	"github.com/clew-dev/clew/internal/daemon/prepare"
	"github.com/clew-dev/clew/internal/daemonapi"
	daemonv1 "github.com/clew-dev/clew/internal/daemonapi/v1"
	"github.com/clew-dev/clew/internal/worktree"
)

// expectFailed expects a prepared workspace and a failed rewind.
func expectFailed(t *testing.T, r daemonapi.PrepareResult, id, reason string) {
	t.Helper()
	if r.Failed == nil {
		t.Fatalf("no operation failed, want %s: %+v", reason, r)
	}
	expect(t, "failure", *r.Failed, daemonapi.OperationFailure{Kind: "Rewind", ID: id, Reason: reason, Message: r.Failed.Message})
	expect(t, "operation", r.Operation, "Rewind/"+id)
	if r.Failed.Message == "" {
		t.Error("the failure has no message")
	}
}

// expectAsBefore expects a task to be as before a failed rewind, and a corrected rewind to
// work.
func expectAsBefore(t *testing.T, w *daemontest.World, tree map[string]string, status string) {
	t.Helper()
	expect(t, "tree", w.Tree(), tree)
	expect(t, "git status", gitStatus(t, w), status)
	expect(t, "home", readHome(w), "3")
	expect(t, "conversation", w.Lines(), callsOfThree)
	if r := state(t, w).Rewind; r != nil {
		t.Fatalf("the journal still has the rewind: %+v", r)
	}
	corrected := rewindTo(2, "Both", "Discard")
	corrected.ID = "corrected"
	r := w.Prepare(9, corrected)
	expect(t, "operation", r.Operation, "corrected")
	expect(t, "target", r.ToCheckpoint, 2)
	expect(t, "conversation", w.Lines(), callsOfThree[:5])
	expect(t, "home", readHome(w), "2")
}

func TestARewindWhoseBranchCannotBeMadeTouchesNothing(t *testing.T) {
	t.Parallel()
	arranged := three(t)
	for name, tt := range map[string]struct{ id, branch, arrange, reason string }{
		"the branch exists":                  {"r", "main", "", "BranchExists"},
		"it is beneath a branch":             {"r", "main/before", "", "BranchExists"},
		"the agent has a branch clew":        {"r", "", "clew", "BranchExists"},
		"an id with two dots":                {"v1..v2", "", "", "InvalidBranch"},
		"an id that ends like a lock":        {"fix.lock", "", "", "InvalidBranch"},
		"a name that the API takes no more":  {"r", "x.lock/y", "", "InvalidBranch"},
		"a name that is an option in itself": {"r", "-x", "", "InvalidBranch"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := arranged.Copy(t)
			if tt.arrange != "" {
				w.Git.Run(t, w.Path(""), "branch", tt.arrange)
			}
			tree, status := w.Tree(), gitStatus(t, w)
			op := rewindTo(2, "Both", "Branch")
			op.ID, op.Branch = tt.id, tt.branch
			for n := int64(2); n < 4; n++ { // the second pod tells the same
				expectFailed(t, w.Prepare(n, op), op.ID, tt.reason)
			}
			expectAsBefore(t, w, tree, status)
		})
	}
}

// failing is a repository and a server of which one call fails permanently.
type failing struct {
	crashing
	what string
}

func (f *failing) Preserve(ctx context.Context, r worktree.PreserveRequest) (worktree.Preserved, error) {
	if f.what == "preserve" {
		return worktree.Preserved{}, &worktree.Error{Reason: worktree.ReferenceExists, Message: "a branch is in the way"}
	}
	return f.crashing.Preserve(ctx, r)
}

func (f *failing) Restore(ctx context.Context, r worktree.RestoreRequest) (worktree.RestoreResult, error) {
	res, err := f.crashing.Restore(ctx, r)
	if one, _ := f.Refs(ctx, "refs/clew/"); f.what == "restore" && r.Target.Code == one["refs/clew/uid-1/code/1"] {
		return res, &worktree.Error{Reason: worktree.CheckpointCorrupted, Message: "a file cannot be read"}
	}
	return res, err
}

// Append makes a move lead to a checkpoint that the server does not know.
func (f *failing) Append(ctx context.Context, records []*daemonv1.Record) (int64, error) {
	records = slices.Clone(records)
	for i, r := range records {
		if f.what == "move" && r.GetMove().GetOperationId() == "Rewind/r" {
			records[i] = proto.CloneOf(r)
			records[i].GetMove().Checkpoint, records[i].GetMove().AfterSequence = 999, 0
		}
	}
	return f.crashing.Append(ctx, records)
}

func (f *failing) Checkpoint(ctx context.Context, r worktree.CheckpointRequest) (worktree.Checkpoint, error) {
	if f.what == "checkpoint" && r.Number == 5 {
		return worktree.Checkpoint{}, &worktree.Error{Reason: worktree.TooManyFiles, Message: "too many files"}
	}
	return f.crashing.Checkpoint(ctx, r)
}

// run runs prepare with the failing call, until it is killed at a step.
func (f *failing) run(t *testing.T, w *daemontest.World, n int64, op *daemonapi.Operation) (r daemonapi.PrepareResult, killed bool) {
	t.Helper()
	return f.crashing.run(t.Context(), w.PrepareConfig(n, op), f)
}

// A rewind that fails permanently after it has begun is undone exactly, however often
// prepare is killed meanwhile.
func TestARewindThatFailsForGoodIsUndoneAndMayBeKilledAtEveryStep(t *testing.T) {
	if testing.Short() {
		t.Skip("kills at every step: make test runs it")
	}
	t.Parallel()
	arranged := three(t)
	tree, status := arranged.Tree(), gitStatus(t, arranged)
	for what, reason := range map[string]string{"restore": "CheckpointCorrupted", "preserve": "BranchExists",
		"move": "CheckpointNotFound", "checkpoint": "PrepareFailed"} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			op := rewindTo(1, "Both", "Branch")
			op.ID = "r"
			undisturbed := arranged.Copy(t)
			r, _ := (&failing{what: what}).run(t, undisturbed, 2, op)
			expectFailed(t, r, "r", reason)
			expectFailed(t, undisturbed.Prepare(3, op), "r", reason) // nothing happens, and it is told again
			expectAsBefore(t, undisturbed, tree, status)
			for at := 1; ; at += stride(4) {
				w := arranged.Copy(t)
				f := &failing{what: what, crashing: crashing{at: at}}
				if _, killed := f.run(t, w, 2, op); !killed {
					t.Logf("%d steps", at-1)
					return
				}
				r, _ := (&failing{what: what}).run(t, w, 3, op)
				where := f.log[len(f.log)-1]
				expect(t, "the reason after a kill "+where, r.Reason, "Prepared")
				if r.Failed == nil {
					t.Fatalf("killed %s: the rewind did not fail: %+v", where, r)
				}
				expect(t, "the failure after a kill "+where, r.Failed.Reason, reason)
				expectAsBefore(t, w, tree, status)
			}
		})
	}
}

// A volume is lost after the conversation has moved: the rewind is begun again on the new
// volume, fails there, and the conversation is moved back, too.
func TestARewindThatFailsOnANewVolumeTakesTheConversationBack(t *testing.T) {
	t.Parallel()
	w := three(t)
	tree, status := w.Tree(), gitStatus(t, w)
	op := rewindTo(1, "Both", "Branch")
	op.ID = "r"
	if _, done := prepareCrashing(t, w, 2, op, &crashing{when: "after move Rewind/r"}); done {
		t.Fatal("it was not killed")
	}
	w.LoseVolume()
	r, _ := (&failing{what: "restore"}).run(t, w, 3, op)
	expectFailed(t, r, "r", "CheckpointCorrupted")
	lost := w.Copy(t)
	expectAsBefore(t, w, tree, status)
	// And on the next volume, if this one is lost as well, it is not tried again.
	lost.LoseVolume()
	expectFailed(t, lost.Prepare(4, op), "r", "RewindUndone")
	expectAsBefore(t, lost, tree, status)
}

// hook makes the gitstore refuse pushes of the given refs.
func hook(t *testing.T, w *daemontest.World, refs, words string) {
	t.Helper()
	script := "#!/bin/sh\nif grep -q '" + refs + "'; then echo 'clew: " + words + "' >&2; exit 1; fi\n"
	if err := os.WriteFile(filepath.Join(w.Git.Dir, "store.git", "hooks", "pre-receive"), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
}

func TestACheckpointThatIsRefusedForGoodStandsInNoRewindsWay(t *testing.T) {
	t.Parallel()
	w := daemontest.NewWorld(t, files)
	w.Policy.EveryToolCalls = 1
	w.Prepare(1, nil)
	hook(t, w, "/code/2$", "PushTooLarge: too large")
	attempt(w, 1, func(a *daemontest.Shim) {
		step(w, a, "1", "one.txt", "1\n")
		step(w, a, "2", "large", "2\n")
		step(w, a, "3", "three", "3\n")
	})
	tree, status := w.Tree(), gitStatus(t, w)
	op := rewindTo(2, "Both", "Discard")
	expectFailed(t, w.Prepare(2, op), op.ID, "GitStoreRefused") // it would not survive the loss of the volume
	w.Prepare(3, nil)
	undone := w.Copy(t)
	expect(t, "tree", undone.Tree(), tree)
	expect(t, "git status", gitStatus(t, undone), status)
	if r := w.Prepare(4, rewindTo(1, "Both", "Discard")); r.ToCheckpoint != 1 {
		t.Fatalf("the target is %v, want 1: %+v", r.ToCheckpoint, r)
	}
	expect(t, "conversation", w.Lines(), callsOfThree[:3])
	hook(t, w, "nothing", "")
}

// The gitstore is full: the current state cannot be made durable, so nothing is changed.
func TestRewindWhileTheQuotaIsFullFailsAndTheTaskContinues(t *testing.T) {
	t.Parallel()
	w := three(t)
	w.Write("unsaved", "work\n")
	home(w, "unsaved")
	wait := w.RetryFor
	w.RetryFor = time.Second / 2 // enough for what the daemon before it leaves behind
	hook(t, w, "refs/clew", "QuotaExceeded: the namespace has used its quota")
	tree, op := w.Tree(), rewindTo(1, "Both", "Discard")
	op.OnDrift = "Preserve"
	expectFailed(t, w.Prepare(2, op), op.ID, "GitStoreRefused")
	expect(t, "tree", w.Tree(), tree)
	expect(t, "conversation", w.Lines(), callsOfThree)
	w.Prepare(3, nil)
	hook(t, w, "nothing", "")
	w.RetryFor = wait
	again := rewindTo(1, "Both", "Discard")
	again.ID = "again"
	if r := w.Prepare(4, again); r.ToCheckpoint != 1 || r.Failed != nil {
		t.Fatalf("the rewind to checkpoint 1 failed: %+v", r)
	}
}

// The worktree's folder is missing, and the first prepare that finds that out fails early.
func TestAWorktreeThatIsGoneIsNeverTakenForAnEmptyOne(t *testing.T) {
	t.Parallel()
	for name, interrupt := range map[string]func(t *testing.T, w *daemontest.World){
		"the server is down": func(t *testing.T, w *daemontest.World) {
			w.Server.SetDown(true)
			defer w.Server.SetDown(false)
			cfg := w.PrepareConfig(2, nil)
			cfg.RetryFor = time.Second / 2
			if r := prepare.Run(t.Context(), cfg); r.Reason != "ServerUnreachable" {
				t.Fatalf("the reason is %v, want ServerUnreachable: %+v", r.Reason, r)
			}
		},
		"it is killed": func(t *testing.T, w *daemontest.World) {
			if _, done := prepareCrashing(t, w, 2, nil, &crashing{when: "before restore"}); done {
				t.Fatal("it was not killed")
			}
		},
		"nothing happens": func(*testing.T, *daemontest.World) {},
	} {
		t.Run(name, func(t *testing.T) {
			w := three(t)
			tree := w.Tree()
			if err := os.RemoveAll(filepath.Join(w.Root, "worktree")); err != nil {
				t.Fatal(err)
			}
			interrupt(t, w)
			if r := w.Prepare(2, nil); !r.Restored {
				t.Fatalf("the result does not say that the workspace was restored: %+v", r)
			}
			expect(t, "tree", w.Tree(), tree)
		})
	}
}

func TestAWorktreeThatIsGoneBeforeAnyCheckpointIsClonedAgain(t *testing.T) {
	t.Parallel()
	w := daemontest.NewWorld(t, files)
	w.Prepare(1, nil)
	tree, status := w.Tree(), gitStatus(t, w)
	if err := os.RemoveAll(filepath.Join(w.Root, "worktree")); err != nil {
		t.Fatal(err)
	}
	w.Prepare(2, nil)
	expect(t, "tree", w.Tree(), tree)
	expect(t, "git status", gitStatus(t, w), status)
}

// A rewind in progress when the folder was lost comes to the same end.
func TestAWorktreeThatGoesInMidRewind(t *testing.T) {
	if testing.Short() {
		t.Skip("removes the worktree at every step: make test runs it")
	}
	t.Parallel()
	for _, scope := range []string{"Both", "Conversation"} {
		for _, when := range []string{"after checkpoint", "after push", "before restore", "before move Rewind/r", "before move Rewind/r/done"} {
			t.Run(scope+" "+when, func(t *testing.T) {
				w := three(t)
				before := w.Tree()
				home(w, "changed") // so that a checkpoint is taken first
				op := rewindTo(1, scope, "Discard")
				op.ID = "r"
				if _, done := prepareCrashing(t, w, 2, op, &crashing{when: when}); done {
					t.Fatal("it was not killed")
				}
				if when == "after push" {
					journalStage(t, w, journal.RewindSaved) // killed while the target is fetched
				}
				if err := os.RemoveAll(filepath.Join(w.Root, "worktree")); err != nil {
					t.Fatal(err)
				}
				r := w.Prepare(3, op)
				if scope == "Both" {
					expect(t, "a.txt", w.Read("a.txt"), "a\n")
					expect(t, "conversation", w.Lines(), callsOfThree[:3])
					return
				}
				expect(t, "tree", w.Tree(), before)
				if r.Failed != nil {
					expect(t, "conversation after the rewind was undone", w.Lines(), callsOfThree)
				} else if got := w.Lines(); !slices.Equal(got, callsOfThree) && !slices.Equal(got, callsOfThree[:3]) {
					t.Fatalf("the conversation is neither the one before nor that after the rewind: %q", got)
				}
			})
		}
	}
}

// journalStage writes the next stage of the rewind to the journal of a volume at rest.
func journalStage(t *testing.T, w *daemontest.World, stage string) {
	t.Helper()
	j, err := journal.Open(filepath.Join(w.Root, "clew", "journal.json"), nil)
	if err == nil {
		err = j.Update(func(s *journal.State) error { s.Rewind.Stage = stage; return nil })
	}
	if err != nil {
		t.Fatal(err)
	}
}
