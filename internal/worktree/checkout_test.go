package worktree

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestCheckOut(t *testing.T) {
	ctx := context.Background()
	f, c, commit := checkpointed(t)
	b := AgentBranch{Name: "try", Commit: commit}
	_, err := f.repo.FindCheckout(b)
	wantReason(t, err, RepositoryUnsuited)
	must(t, f.makeBranch("try", commit))
	f.git("add", "loose")
	f.git("rm", "-q", "--cached", "committed")
	before := listing(t, f.work)

	must(t, f.repo.CheckOut(ctx, b, c.Code))
	wantEqual(t, "HEAD", "refs/heads/try\n", f.git("symbolic-ref", "HEAD"))
	wantEqual(t, "its commit", commit+"\n", f.git("rev-parse", "HEAD"))
	wantEqual(t, "status", "!! an.log\n", f.git("status", "--porcelain", "--ignored"))
	wantEqual(t, "the tree of the index", f.git("rev-parse", "HEAD^{tree}"), f.git("write-tree"))
	f.git("fsck", "--full", "--strict")
	there, err := f.repo.FindCheckout(b)
	must(t, err)
	wantEqual(t, "there", true, there)
	for path, was := range listing(t, f.work) {
		if path != ".git/HEAD" && path != ".git/index" && before[path] != was {
			t.Errorf("%s has changed from %q to %q", path, before[path], was)
		}
	}

	f.write("more", "more\n")
	f.git("add", "more")
	f.git("commit", "-q", "-m", "goes on")
	wantEqual(t, "the branch", f.git("rev-parse", "HEAD"), f.git("rev-parse", "try"))
	wantEqual(t, "its parent", commit+"\n", f.git("rev-parse", "try^"))
}

// TestIgnoredFilesDoNotLeaveByACheckout: neither does the agent push them with its branches, nor
// Clew with what it publishes.
func TestIgnoredFilesDoNotLeaveByACheckout(t *testing.T) {
	ctx := context.Background()
	f, c, commit := checkpointed(t)
	must(t, f.makeBranch("try", commit))
	must(t, f.repo.CheckOut(ctx, AgentBranch{Name: "try", Commit: commit}, c.Code))
	f.write("loose", "changed\n")
	next := f.checkpoint()
	must(t, f.repo.StoreHead(ctx, HeadRequest{TaskUID: "uid-1", Commit: commit, State: next.State}))
	for name, list := range map[string]string{
		"what Clew publishes":       gitIn(t, f.base, "-C", filepath.Join(f.base, "git"), "rev-list", "--objects", f.published(next)),
		"what the agent may push":   f.git("rev-list", "--objects", "--all"),
		"what is published at once": gitIn(t, f.base, "-C", filepath.Join(f.base, "git"), "rev-list", "--objects", commit),
	} {
		if !strings.Contains(list, "loose") || strings.Contains(list, "an.log") {
			t.Errorf("%s has an ignored file, or lacks another:\n%s", name, list)
		}
	}
}

// TestCheckOutHidesNoChange: of a file that the checkpoint leaves out, the branch has what the
// agent had committed, and git shows what it has changed.
func TestCheckOutHidesNoChange(t *testing.T) {
	f := cloned(t, makeOrigin(t, 2)) // MaxFileBytes is 1 MiB
	f.write("large", "small\n")
	f.git("add", "-A")
	f.git("commit", "-q", "-m", "small")
	head := strings.TrimSpace(f.git("rev-parse", "HEAD"))
	f.write("large", strings.Repeat("x", 2<<20))
	f.write("loose", "loose\n")
	c := f.checkpoint()
	must(t, f.repo.StoreHead(context.Background(), HeadRequest{TaskUID: "uid-1", Commit: head, State: c.State}))
	commit := f.published(c)
	must(t, f.makeBranch("try", commit))
	must(t, f.repo.CheckOut(context.Background(), AgentBranch{Name: "try", Commit: commit}, c.Code))
	wantEqual(t, "status", " M large\n", f.git("status", "--porcelain"))
}

// TestCheckOutNeedsNoRefresh: git trusts the index, which has the attributes of the files.
func TestCheckOutNeedsNoRefresh(t *testing.T) {
	f, _, commit := checkpointed(t)
	must(t, f.makeBranch("try", commit))
	must(t, f.repo.CheckOut(context.Background(), AgentBranch{Name: "try", Commit: commit}, commit))
	// Unlike git status, it does not compare contents.
	wantEqual(t, "what git would read again", "", f.git("diff-files"))
}

func TestCheckOutOfASubmodule(t *testing.T) {
	origin := makeOrigin(t, 1)
	gitIn(t, origin, "update-index", "--add", "--cacheinfo", "160000,"+strings.TrimSpace(gitIn(t, origin, "rev-parse", "HEAD"))+",sub")
	gitIn(t, origin, "commit", "-q", "-m", "a submodule")
	f := cloned(t, origin)
	head := strings.TrimSpace(f.git("rev-parse", "HEAD"))
	c := f.checkpoint()
	must(t, f.repo.StoreHead(context.Background(), HeadRequest{TaskUID: "uid-1", Commit: head, State: c.State}))
	must(t, f.makeBranch("try", head))
	f.git("checkout", "-q", "--detach")
	must(t, f.repo.CheckOut(context.Background(), AgentBranch{Name: "try", Commit: head}, c.Code))
	wantEqual(t, "status", "", f.git("status", "--porcelain"))
	wantEqual(t, "the tree of the index", f.git("rev-parse", "HEAD^{tree}"), f.git("write-tree"))
}

// TestUnfinishedWorkIsNotBrokenOff: git itself refuses to leave a branch then.
func TestUnfinishedWorkIsNotBrokenOff(t *testing.T) {
	f, _, commit := checkpointed(t)
	b := AgentBranch{Name: "try", Commit: commit}
	must(t, f.makeBranch("try", commit))
	f.git("branch", "other", "HEAD~1")
	if out, err := gitTry(f.work, "cherry-pick", "--no-commit", "other"); err != nil {
		t.Logf("cherry-pick: %s", out)
	}
	f.write(".git/MERGE_HEAD", f.git("rev-parse", "other"))
	files := listing(t, f.work)
	wantReason(t, f.repo.CheckOut(context.Background(), b, commit), UnfinishedWork)
	sameListing(t, "after the refusal", files, listing(t, f.work))
}

// TestALockedIndexIsReplaced: the agent does not run, so that its locks are left over.
func TestALockedIndexIsReplaced(t *testing.T) {
	f, _, commit := checkpointed(t)
	must(t, f.makeBranch("try", commit))
	f.write(".git/index.lock", "")
	must(t, os.Remove(filepath.Join(f.work, ".git/index")))
	must(t, os.Symlink("../committed", filepath.Join(f.work, ".git/index")))
	must(t, f.repo.CheckOut(context.Background(), AgentBranch{Name: "try", Commit: commit}, commit))
	_, err := f.repo.ClearLocks(context.Background())
	must(t, err)
	wantEqual(t, "status", "", f.git("status", "--porcelain"))
	content, err := os.ReadFile(filepath.Join(f.work, "committed"))
	must(t, err)
	wantEqual(t, "what the index was a link to", "committed\n", string(content))
}

// TestAFolderInPlaceOfAFileOfGit is refused before anything is written.
func TestAFolderInPlaceOfAFileOfGit(t *testing.T) {
	f, _, commit := checkpointed(t)
	must(t, f.makeBranch("try", commit))
	must(t, os.Remove(filepath.Join(f.work, ".git/index")))
	must(t, os.Mkdir(filepath.Join(f.work, ".git/index"), 0o755))
	files := listing(t, f.work)
	wantReason(t, f.repo.CheckOut(context.Background(), AgentBranch{Name: "try", Commit: commit}, commit), RepositoryUnsuited)
	sameListing(t, "after the refusal", files, listing(t, f.work))
}

// TestRestoreHeadUndoesACheckOut: and leaves alone what else was changed since.
func TestRestoreHeadUndoesACheckOut(t *testing.T) {
	ctx := context.Background()
	for name, prepare := range map[string]func(f *fixture){
		"with an index": func(f *fixture) { f.git("add", "loose") },
		"without one":   func(f *fixture) { must(t, os.Remove(filepath.Join(f.work, ".git/index"))) },
		"detached":      func(f *fixture) { f.git("checkout", "-q", "--detach") },
	} {
		t.Run(name, func(t *testing.T) {
			f, _, commit := checkpointed(t)
			must(t, f.makeBranch("try", commit))
			prepare(f)
			c, before := f.checkpoint(), listing(t, f.work)
			must(t, f.repo.CheckOut(ctx, AgentBranch{Name: "try", Commit: commit}, c.Code))
			for range 2 {
				must(t, f.repo.RestoreHead(ctx, Target{Code: c.Code, State: c.State}))
				sameListing(t, "taken back", before, listing(t, f.work))
			}
			f.write("loose", "by hand\n")
			f.write(".git/refs/heads/by-hand", commit+"\n")
			must(t, f.repo.CheckOut(ctx, AgentBranch{Name: "try", Commit: commit}, c.Code))
			must(t, f.repo.RestoreHead(ctx, Target{Code: c.Code, State: c.State}))
			content, err := os.ReadFile(filepath.Join(f.work, "loose"))
			must(t, err)
			wantEqual(t, "a file that was changed", "by hand\n", string(content))
			wantEqual(t, "a branch that was made", commit+"\n", f.git("rev-parse", "by-hand"))
		})
	}
}

// TestRestoreHeadNeedsTheAgentsRepository: of a checkpoint without one, nothing is
// changed.
func TestRestoreHeadNeedsTheAgentsRepository(t *testing.T) {
	f, c, _ := checkpointed(t)
	files := listing(t, f.work)
	wantReason(t, f.repo.RestoreHead(context.Background(), Target{Code: c.Code}), CheckpointNotFound)
	sameListing(t, "after the refusal", files, listing(t, f.work))
}
