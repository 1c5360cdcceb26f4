package prepare_test

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/daemon/daemontest"
	"github.com/clew-dev/clew/internal/daemonapi"
	daemonv1 "github.com/clew-dev/clew/internal/daemonapi/v1"
	"github.com/clew-dev/clew/internal/refname"
)

// pathsTo rewinds paths to a checkpoint.
func pathsTo(n int64, preserve string, paths ...string) *daemonapi.Operation {
	op := rewindTo(0, "Code", preserve)
	op.ID = fmt.Sprintf("paths-%d-%s", n, preserve)
	op.Files = &daemonapi.RewindFiles{Checkpoint: n, Paths: paths}
	return op
}

// staged is three, with work of the agent in its index.
func staged(t *testing.T) *daemontest.World {
	t.Helper()
	w := three(t)
	w.Git.Run(t, w.Path(""), "add", "one.txt")
	return w
}

// withChange is the tree of a world with one file replaced by that of another tree.
func withChange(now, then map[string]string, paths ...string) map[string]string {
	out := map[string]string{}
	for p, v := range now {
		if !slices.Contains(paths, p) {
			out[p] = v
		}
	}
	for _, p := range paths {
		if v, ok := then[p]; ok {
			out[p] = v
		}
	}
	return out
}

func TestARewindOfPathsLeavesTheRestAlone(t *testing.T) {
	t.Parallel()
	arranged := staged(t)
	first := arranged.Copy(t)
	first.Prepare(2, rewindTo(1, "Code", "Discard"))
	then := first.Tree()
	for _, preserve := range []string{"Branch", "Stash", "Discard"} {
		t.Run(preserve, func(t *testing.T) {
			t.Parallel()
			w := arranged.Copy(t)
			before, status := w.Tree(), gitStatus(t, w)
			op := pathsTo(1, preserve, "a.txt", "three/", "d*")
			r := w.Prepare(2, op)
			want := daemonapi.PrepareResult{Reason: "Prepared", OperationKind: "Rewind", Operation: op.ID, FromCheckpoint: 5, ToCheckpoint: 1, Preserved: r.Preserved}
			expect(t, "result", r, want)
			expect(t, "tree", w.Tree(), withChange(before, then, "a.txt", "three/ignored", "dir/b.txt"))
			expect(t, "conversation", w.Lines(), callsOfThree)
			expect(t, "home", readHome(w), "3")
			expect(t, "index", w.Git.Run(t, w.Path(""), "ls-files", "one.txt"), "one.txt")
			mark := latest(w)
			expectCheckpoint(t, mark, &daemonv1.CheckpointRecord{Number: 6, Trigger: "Rewound", Durable: true})
			expect(t, "its message", mark.GetMessage(), `Rewound "a.txt" and 2 more to checkpoint 1`)
			expect(t, "what it continues", mark.GetParent(), checkpointRecord(w, 5).GetCommit())
			expectPreserved(t, w, op, r.Preserved)
			// Repeated, it does nothing; undone, everything is as before.
			after := w.Tree()
			expect(t, "result", w.Prepare(3, op), want)
			expect(t, "tree", w.Tree(), after)
			w.Prepare(4, rewindTo(5, "Code", "Discard"))
			expect(t, "tree", w.Tree(), before)
			expect(t, "git status", gitStatus(t, w), status)
		})
	}
}

// expectPreserved expects the state before a rewind in the agent's repository.
func expectPreserved(t *testing.T, w *daemontest.World, op *daemonapi.Operation, name string) {
	t.Helper()
	ref := map[v1alpha1.PreserveMode]string{v1alpha1.PreserveBranch: "refs/heads/clew/before-" + op.ID, v1alpha1.PreserveStash: "refs/stash"}[op.Preserve]
	if expect(t, "preserved", strings.TrimPrefix(ref, "refs/heads/"), name); ref != "" {
		expect(t, "a.txt there", w.Git.Run(t, w.Path(""), "show", ref+":a.txt"), "changed by 2")
	}
}

func TestARewindOfPathsThatCannotSucceedChangesNothing(t *testing.T) {
	t.Parallel()
	w := staged(t)
	before, status := w.Tree(), gitStatus(t, w)
	for n, c := range []struct {
		op     *daemonapi.Operation
		reason string
		text   string
	}{
		{pathsTo(1, "Discard", "a.txt", "no/such"), "PathNotFound", `the path "no/such" selects nothing`},
		{pathsTo(1, "Discard", "../a.txt"), "PathNotFound", "leaves the worktree"},
		{pathsTo(9, "Discard", "a.txt"), "CheckpointNotFound", "checkpoint 9"},
		{&daemonapi.Operation{Kind: "Rewind", Scope: "Both", Preserve: "Discard", Files: &daemonapi.RewindFiles{Checkpoint: 1, Paths: []string{"a.txt"}}}, "InvalidOperation", "must have the scope Code"},
	} {
		c.op.ID = fmt.Sprintf("bad-%d", n)
		r := w.Prepare(int64(2+n), c.op)
		expectFailed(t, r, c.op.ID, c.reason)
		if !strings.Contains(r.Failed.Message, c.text) {
			t.Errorf("the message is %q, want %q", r.Failed.Message, c.text)
		}
		expect(t, "tree", w.Tree(), before)
		expect(t, "git status", gitStatus(t, w), status)
	}
}

// commitTo rewinds the files to a commit.
func commitTo(id, preserve string) *daemonapi.Operation {
	op := rewindTo(0, "Code", preserve)
	op.ID, op.Files = "commit-"+preserve, &daemonapi.RewindFiles{Commit: id}
	return op
}

// firstCommit is the one that a world's origin has.
func firstCommit(t *testing.T, w *daemontest.World) string {
	t.Helper()
	return w.Git.Run(t, w.Path(""), "rev-parse", "HEAD")
}

func TestARewindToACommitOfTheOrigin(t *testing.T) {
	t.Parallel()
	arranged := staged(t)
	first := arranged.Copy(t)
	first.Prepare(2, rewindTo(1, "Code", "Discard"))
	then := withChange(first.Tree(), nil, "one.txt")
	for _, preserve := range []string{"Branch", "Stash", "Discard"} {
		t.Run(preserve, func(t *testing.T) {
			t.Parallel()
			w := arranged.Copy(t)
			before, head := conditionOf(t, w), firstCommit(t, w)
			op := commitTo(head, preserve)
			r := w.Prepare(2, op)
			want := daemonapi.PrepareResult{Reason: "Prepared", OperationKind: "Rewind", Operation: op.ID, FromCheckpoint: 5, Preserved: r.Preserved}
			expect(t, "result", r, want)
			expect(t, "what is ignored", w.Read("three/ignored"), "3\n")
			expect(t, "tree", w.Tree(), withChange(before.tree, then, "a.txt", "dir", "dir/b.txt", "one.txt"))
			expect(t, "HEAD", firstCommit(t, w), head)
			expect(t, "index", w.Git.Run(t, w.Path(""), "ls-files", "one.txt"), "one.txt")
			expect(t, "conversation", w.Lines(), callsOfThree)
			expect(t, "home", readHome(w), "3")
			expectPreserved(t, w, op, r.Preserved)
			mark := latest(w)
			expectCheckpoint(t, mark, &daemonv1.CheckpointRecord{Number: 6, Trigger: "Rewound", Durable: true})
			expect(t, "its message", mark.GetMessage(), "Rewound to commit "+head[:12])
			after := conditionOf(t, w)
			expect(t, "result", w.Prepare(3, op), want)
			expectCondition(t, "repeated", w, after)
			// An undo restores files, too, and leaves the agent's repository alone.
			rewound := ends(t, w, op.ID)
			undo := pathsTo(rewound.GetFromCheckpoint(), "Discard", rewound.GetPaths()...)
			undo.ID = "undo"
			w.Prepare(4, undo)
			expect(t, "tree", w.Tree(), before.tree)
			if preserve == "Discard" {
				expectCondition(t, "undone", w, before)
			}
		})
	}
}

func TestARewindToTheCommitOfACheckpoint(t *testing.T) {
	t.Parallel()
	w := staged(t)
	first := w.Copy(t)
	first.Prepare(2, rewindTo(1, "Code", "Discard"))
	head := firstCommit(t, w)
	r := w.Prepare(2, commitTo(checkpointRecord(w, 1).GetCommit(), "Discard"))
	expect(t, "failure", r.Failed, nil)
	expect(t, "tree", w.Tree(), first.Tree()) // ignored files are in a checkpoint, too
	expect(t, "HEAD", firstCommit(t, w), head)
	expect(t, "index", w.Git.Run(t, w.Path(""), "ls-files", "one.txt"), "one.txt")
}

func TestARewindToACommitAfterTheLossOfTheVolume(t *testing.T) {
	t.Parallel()
	w := staged(t)
	id := checkpointRecord(w, 2).GetCommit()
	undisturbed := w.Copy(t)
	undisturbed.Prepare(2, nil)
	undisturbed.Prepare(3, commitTo(id, "Discard"))
	w.Prepare(2, nil)
	w.LoseVolume()
	r := w.Prepare(3, commitTo(id, "Discard"))
	expect(t, "failure", r.Failed, nil)
	expect(t, "tree", w.Tree(), undisturbed.Tree())
}

// A commit that is not the task's own is refused, even if its repository has it: the gitstore
// serves several tasks from one, and what is in an agent's repository is the agent's word.
func TestARewindToACommitThatTheTaskDoesNotKnowChangesNothing(t *testing.T) {
	t.Parallel()
	w := staged(t)
	store := filepath.Join(w.Git.Dir, "store.git")
	foreign := w.Git.Run(t, "", "--git-dir", store, "commit-tree", "-m", "of another task", checkpointRecord(w, 1).GetCommit()+"^{tree}")
	w.Git.Run(t, "", "--git-dir", store, "update-ref", refname.Code("uid-2", 1), foreign)
	agents := w.Git.Run(t, w.Path(""), "commit-tree", "-m", "of the agent", "HEAD^{tree}")
	state := w.Git.Run(t, "", "--git-dir", store, "rev-parse", refname.State(w.UID, 1))
	tree := w.Git.Run(t, w.Path(""), "rev-parse", "HEAD^{tree}")
	before := conditionOf(t, w)
	n := 0
	for name, id := range map[string]string{"nowhere": strings.Repeat("a", 40), "another task's": foreign, "the agent's": agents, "a state": state, "a tree": tree} {
		n++
		op := commitTo(id, "Discard")
		op.ID = fmt.Sprintf("bad-%d", n)
		r := w.Prepare(int64(1+n), op)
		t.Log(name)
		expectFailed(t, r, op.ID, "CommitNotFound")
		if !strings.Contains(r.Failed.Message, "this task knows no commit "+id) {
			t.Errorf("the message is %q", r.Failed.Message)
		}
		expectCondition(t, name, w, before)
	}
	op := commitTo("HEAD", "Discard")
	expectFailed(t, w.Prepare(9, op), op.ID, "CommitNotFound")
}
