package worktree

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// published returns the commit by which a checkpoint is published, as prepare asks for it.
func (f *fixture) published(c Checkpoint) string {
	f.t.Helper()
	made, err := f.repo.PublishCommit(context.Background(), PublishRequest{Target: c.target(), Uncommitted: true, Message: "Checkpoint\n", AuthorName: "Clew", AuthorEmail: "noreply@clew.dev"})
	must(f.t, err)
	return made.Commit
}

// checkpointed returns a worktree that the agent has committed to, a checkpoint of it with what is
// not committed, an ignored file among it, and the commit by which the checkpoint is published.
func checkpointed(t *testing.T) (*fixture, Checkpoint, string) {
	t.Helper()
	f := cloned(t, makeOrigin(t, 5))
	f.write("committed", "committed\n")
	f.write(".gitignore", "*.log\n")
	f.git("add", ".")
	f.git("commit", "-q", "-m", "work")
	head := strings.TrimSpace(f.git("rev-parse", "HEAD"))
	f.write("loose", "loose\n")
	f.write("an.log", "ignored\n")
	f.write("deep/run.sh", "#!/bin/sh\n")
	must(t, os.Chmod(filepath.Join(f.work, "deep/run.sh"), 0o755))
	must(t, os.Symlink("committed", filepath.Join(f.work, "link")))
	c := f.checkpoint()
	must(t, f.repo.StoreHead(context.Background(), HeadRequest{TaskUID: "uid-1", Commit: head, State: c.State}))
	return f, c, f.published(c)
}

// makeBranch makes a branch in the agent's repository as prepare does.
func (f *fixture) makeBranch(name, commit string) error {
	b := []AgentBranch{{Name: name, Commit: commit}}
	if found := f.repo.FindAgentBranches(context.Background(), b)[0]; found.Err != nil || found.There {
		return found.Err
	}
	if err := f.repo.StoreForAgent(context.Background(), []string{commit}); err != nil {
		return err
	}
	return f.repo.MakeAgentBranches(context.Background(), b)[0]
}

func TestABranchOfACheckpointIsMadeInTheAgentsRepository(t *testing.T) {
	f, _, commit := checkpointed(t)
	status, head := f.git("status", "--porcelain"), f.git("rev-parse", "HEAD")
	must(t, f.makeBranch("try/one", commit))
	wantEqual(t, "the branch", commit+"\n", f.git("rev-parse", "refs/heads/try/one"))
	wantEqual(t, "its parent", head, f.git("rev-parse", "try/one^"))
	wantEqual(t, "what it adds", "deep/run.sh\nlink\nloose\n", f.git("diff", "--name-only", "HEAD", "try/one"))
	wantEqual(t, "HEAD", head, f.git("rev-parse", "HEAD"))
	wantEqual(t, "status", status, f.git("status", "--porcelain"))
	f.git("fsck", "--full", "--strict")

	files := listing(t, f.work)
	must(t, f.makeBranch("try/one", commit))
	sameListing(t, "made again", files, listing(t, f.work))
}

// TestABranchHasAllObjects: also those that the agent's repository has lost since, whether they
// are the agent's own or the origin's.
func TestABranchHasAllObjects(t *testing.T) {
	f, _, commit := checkpointed(t)
	first := strings.TrimSpace(f.git("rev-list", "--max-parents=0", "HEAD"))
	f.git("checkout", "-q", "--orphan", "anew")
	f.git("commit", "-q", "-m", "anew")
	f.git("symbolic-ref", "-d", "refs/remotes/origin/HEAD")
	for name := range strings.FieldsSeq(f.git("for-each-ref", "--format=%(refname)")) {
		if name != "refs/heads/anew" {
			f.git("update-ref", "-d", name)
		}
	}
	f.git("reflog", "expire", "--expire=now", "--all")
	f.git("repack", "-q", "-a", "-d")
	f.git("prune", "--expire=now")
	if out, err := gitTry(f.work, "cat-file", "-e", first); err == nil {
		t.Fatalf("the origin's commit is still there: %s", out)
	}
	must(t, f.makeBranch("try", commit))
	f.git("fsck", "--full", "--strict")
	if !strings.Contains(f.git("rev-list", "try"), first) {
		t.Error("the branch does not lead to the origin's first commit")
	}
}

// TestABranchOfTheAgentStays: whatever the agent has of that name, and however it keeps it.
func TestABranchOfTheAgentStays(t *testing.T) {
	for name, test := range map[string]struct {
		prepare func(f *fixture)
		reason  Reason
	}{
		"elsewhere":         {func(f *fixture) { f.git("branch", "try") }, BranchMoved},
		"packed":            {func(f *fixture) { f.git("branch", "try"); f.git("pack-refs", "--all") }, BranchMoved},
		"below it":          {func(f *fixture) { f.git("branch", "try/deeper") }, ReferenceExists},
		"packed below it":   {func(f *fixture) { f.git("branch", "try/deeper"); f.git("pack-refs", "--all") }, ReferenceExists},
		"unborn":            {func(f *fixture) { f.git("symbolic-ref", "HEAD", "refs/heads/try") }, BranchMoved},
		"unborn, by a link": {func(f *fixture) { f.unbornByLink("try") }, BranchMoved},
		"symbolic":          {func(f *fixture) { f.git("symbolic-ref", "refs/heads/try", "refs/heads/nowhere") }, BranchMoved},
		"symbolic, by HEAD": {func(f *fixture) {
			f.git("symbolic-ref", "refs/heads/via", "refs/heads/try")
			f.git("symbolic-ref", "HEAD", "refs/heads/via")
		}, BranchMoved},
		"no id": {func(f *fixture) { f.write(".git/refs/heads/try", "nonsense\n") }, BranchMoved},
		"a link": {func(f *fixture) {
			must(f.t, os.Symlink("trunk", filepath.Join(f.work, ".git/refs/heads/try")))
		}, BranchMoved},
	} {
		t.Run(name, func(t *testing.T) {
			f, _, commit := checkpointed(t)
			test.prepare(f)
			files := listing(t, f.work)
			wantReason(t, f.makeBranch("try", commit), test.reason)
			wantReason(t, f.repo.MakeAgentBranches(context.Background(), []AgentBranch{{Name: "try", Commit: commit}})[0], test.reason)
			sameListing(t, "after the refusal", files, listing(t, f.work))
		})
	}
	f, _, commit := checkpointed(t)
	f.git("branch", "a")
	wantReason(t, f.makeBranch("a/b", commit), ReferenceExists)
	wantReason(t, f.makeBranch("origin/trunk", commit), ReferenceExists)
	wantReason(t, f.makeBranch("origin", commit), ReferenceExists)
	wantReason(t, f.makeBranch("v1", commit), ReferenceExists)
	wantReason(t, f.makeBranch("HEAD", commit), InvalidReference)
	wantReason(t, f.makeBranch("../x", commit), InvalidReference)
}

// TestPackedRefsAreReadOnce: the agent determines their size, and so the time that each reading
// takes. What they say gets into no message unless git could have written it.
func TestPackedRefsAreReadOnce(t *testing.T) {
	f, _, commit := checkpointed(t)
	line := strings.Repeat("1", 40) + " refs/heads/deep/"
	f.write(".git/packed-refs", line+strings.Repeat("\xff", 1<<20)+"\n"+line+"\xff\n"+strings.Repeat(line+"x\n", 500_000))
	var branches []AgentBranch
	for i := range 100 {
		branches = append(branches, AgentBranch{Name: fmt.Sprintf("a/a/a/a/a/a/a/a/%d", i), Commit: commit})
	}
	branches = append(branches, AgentBranch{Name: "deep", Commit: commit})
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second) // reading it 1,000 times takes minutes
	defer cancel()
	for i, found := range f.repo.FindAgentBranches(ctx, branches) {
		if b := branches[i]; b.Name != "deep" {
			must(t, found.Err)
		} else if wantReason(t, found.Err, ReferenceExists); !strings.HasSuffix(found.Err.Error(), "beside refs/heads/deep/x") {
			t.Errorf("the error has %d bytes", len(found.Err.Error()))
		}
	}
}

// unbornByLink makes HEAD a symbolic link, as git once did.
func (f *fixture) unbornByLink(branch string) {
	f.t.Helper()
	head := filepath.Join(f.work, ".git/HEAD")
	must(f.t, os.Remove(head))
	must(f.t, os.Symlink("refs/heads/"+branch, head))
}

// hostileRepositories are what an agent may have made of its repository.
func hostileRepositories(outside string) map[string]func(f *fixture) {
	replace := func(f *fixture, name string, with func(path string) error) {
		path := filepath.Join(f.work, name)
		must(f.t, os.Rename(path, filepath.Join(f.base, "moved-"+filepath.Base(name))))
		must(f.t, with(path))
	}
	link := func(name string) func(*fixture) {
		return func(f *fixture) {
			replace(f, name, func(path string) error { return os.Symlink(outside, path) })
		}
	}
	return map[string]func(f *fixture){
		"no repository": func(f *fixture) { must(f.t, os.RemoveAll(filepath.Join(f.work, ".git"))) },
		"a file .git": func(f *fixture) {
			replace(f, ".git", func(path string) error { return os.WriteFile(path, []byte("gitdir: "+outside+"\n"), 0o644) })
		},
		"a link .git":        link(".git"),
		"a link refs":        link(".git/refs"),
		"a link refs/heads":  link(".git/refs/heads"),
		"a link objects":     link(".git/objects"),
		"a link object/pack": link(".git/objects/pack"),
		"a link packed-refs": link(".git/packed-refs"),
		"a link on the way": func(f *fixture) {
			must(f.t, os.Symlink(outside, filepath.Join(f.work, ".git/refs/heads/try")))
		},
		"a commondir": func(f *fixture) { f.write(".git/commondir", outside+"\n") },
		"reftable": func(f *fixture) {
			replace(f, ".git/refs", func(path string) error { return os.Mkdir(path, 0o755) })
			f.write(".git/refs/heads", "this repository uses the reftable format\n")
			f.write(".git/HEAD", "ref: refs/heads/.invalid\n")
			f.write(".git/reftable/tables.list", "")
		},
		"SHA-256": func(f *fixture) {
			must(f.t, os.RemoveAll(filepath.Join(f.work, ".git")))
			f.git("init", "-q", "--object-format=sha256")
		},
	}
}

// TestAHostileRepositoryIsLeftAlone: nothing is written outside, nor anything that is there.
func TestAHostileRepositoryIsLeftAlone(t *testing.T) {
	for name := range hostileRepositories("") {
		t.Run(name, func(t *testing.T) {
			outside := t.TempDir()
			f, _, commit := checkpointed(t)
			hostileRepositories(outside)[name](f)
			err := f.makeBranch("try/one", commit)
			if reason := ReasonOf(err); reason != RepositoryUnsuited && reason != BranchMoved && reason != ReferenceExists {
				t.Errorf("the error is %v, want %s", err, RepositoryUnsuited)
			}
			if there, err := f.repo.FindCheckout(AgentBranch{Name: "try/one", Commit: commit}); there || err == nil {
				t.Error("the branch can be checked out")
			}
			entries, err := os.ReadDir(outside)
			must(t, err)
			if len(entries) > 0 {
				t.Errorf("something was written outside: %v", entries)
			}
		})
	}
}

// TestNoProgramOfTheAgentIsRun: its configuration and hooks name some.
func TestNoProgramOfTheAgentIsRun(t *testing.T) {
	f, _, commit := checkpointed(t)
	ran := filepath.Join(f.base, "ran")
	script := "#!/bin/sh\ntouch " + ran + "\n"
	for _, hook := range []string{"reference-transaction", "post-checkout", "post-index-change", "pre-commit"} {
		writeFile(t, filepath.Join(f.work, ".git/hooks", hook), script, 0o755)
	}
	writeFile(t, filepath.Join(f.work, ".git/monitor"), script, 0o755)
	for name, value := range map[string]string{"core.fsmonitor": ".git/monitor", "core.hooksPath": ".git/hooks", "filter.x.clean": ".git/monitor"} {
		f.git("config", name, value)
	}
	f.write(".git/info/attributes", "* filter=x\n")
	must(t, f.makeBranch("try", commit))
	must(t, f.repo.CheckOut(context.Background(), AgentBranch{Name: "try", Commit: commit}, commit))
	if _, err := os.Stat(ran); err == nil {
		t.Error("a program of the agent has run")
	}
}
