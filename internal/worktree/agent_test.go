package worktree

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// repositoryStates are states of the agent's repository that exist outside of commits.
var repositoryStates = []struct {
	name string
	make func(f *fixture)
}{
	{"clean", func(f *fixture) {}},
	{"staged, changed and untracked", func(f *fixture) {
		f.write("second.txt", "staged\n")
		f.git("add", "second.txt")
		f.write("second.txt", "changed again\n")
		f.write("untracked", "u\n")
		f.write("new", "n\n")
		f.git("add", "-N", "new")
		f.git("rm", "-q", "--cached", "run.sh")
	}},
	{"merge in progress", func(f *fixture) {
		f.git("checkout", "-q", "-b", "ours")
		f.write("second.txt", "ours\n")
		f.git("commit", "-q", "-a", "-m", "ours")
		f.git("checkout", "-q", "-b", "theirs", "HEAD~1")
		f.write("second.txt", "theirs\n")
		f.git("commit", "-q", "-a", "-m", "theirs")
		if out, err := gitTry(f.work, "merge", "ours"); err == nil {
			f.t.Fatalf("the merge succeeded, but should conflict: %s", out)
		}
	}},
	{"rebase in progress", func(f *fixture) {
		f.git("checkout", "-q", "-b", "ours2", "trunk")
		f.write("run.sh", "ours\n")
		f.git("commit", "-q", "-a", "-m", "ours")
		f.git("checkout", "-q", "-b", "theirs2", "HEAD~1")
		f.write("run.sh", "theirs\n")
		f.git("commit", "-q", "-a", "-m", "theirs")
		if out, err := gitTry(f.work, "rebase", "ours2"); err == nil {
			f.t.Fatalf("the rebase succeeded, but should conflict: %s", out)
		}
	}},
	{"detached", func(f *fixture) { f.git("checkout", "-q", "--detach", "v1") }},
	{"stashed", func(f *fixture) {
		f.write("second.txt", "to be stashed\n")
		f.git("stash", "-q")
	}},
	{"repacked", func(f *fixture) {
		f.write("second.txt", "before gc\n")
		f.git("commit", "-q", "-a", "-m", "before gc")
		f.git("gc", "-q", "--prune=now")
	}},
	{"worktree and tags", func(f *fixture) {
		f.git("tag", "-a", "mine", "-m", "mine")
		f.git("branch", "objects/x")
		f.git("pack-refs", "--all")
	}},
	{"orphan", func(f *fixture) { f.git("checkout", "-q", "--orphan", "lonely") }},
}

// TestRepositoryStateIsRestored takes a checkpoint of the agent's repository in each of
// the states, and checks that git reports the same after a restore.
func TestRepositoryStateIsRestored(t *testing.T) {
	type point struct {
		c            Checkpoint
		want         map[string]string
		status, refs string
	}
	f := cloned(t, makeOrigin(t, 20))
	var points []point
	agents := map[string]AgentGit{}
	for _, s := range repositoryStates {
		gitTry(f.work, "merge", "--abort")
		gitTry(f.work, "rebase", "--abort")
		f.git("checkout", "-q", "-f", "trunk")
		f.git("clean", "-q", "-f", "-d")
		s.make(f)
		status := f.git("status", "--porcelain=v2", "--branch") // refreshes the index
		p := point{f.checkpoint(), listing(t, f.work), status, f.git("for-each-ref") + f.git("status")}
		points, agents[s.name] = append(points, p), p.c.Agent
	}
	for round := range 2 {
		for i := range points {
			i = (i*5 + round) % len(points)
			p, name := points[i], repositoryStates[i].name
			f.restore(p.c, ScopeCode)
			sameListing(t, name, p.want, listing(t, f.work))
			if got := f.git("status", "--porcelain=v2", "--branch"); got != p.status {
				t.Errorf("%s: git status prints\n%s\nwant\n%s", name, got, p.status)
			}
			if got := f.git("for-each-ref") + f.git("status"); got != p.refs {
				t.Errorf("%s: git for-each-ref and git status print\n%s\nwant\n%s", name, got, p.refs)
			}
			f.git("fsck", "--full")
		}
	}
	wantAgents(t, agents, strings.TrimSpace(f.git("rev-parse", "v1^{commit}")))
}

// wantAgents checks HEAD, branch and dirty files in the checkpoints of the repository
// states; v1 is the commit of the tag.
func wantAgents(t *testing.T, agents map[string]AgentGit, v1 string) {
	t.Helper()
	detached, orphan := agents["detached"], agents["orphan"]
	wantEqual(t, "HEAD and branch if detached", [2]string{v1, ""}, [2]string{detached.Head, detached.Branch})
	wantEqual(t, "HEAD and branch of an orphan", [2]string{"", "lonely"}, [2]string{orphan.Head, orphan.Branch})
	dirty := agents["staged, changed and untracked"].Dirty
	for _, want := range []DirtyFile{{"run.sh", "Untracked"}, {"second.txt", "Modified"}, {"untracked", "Untracked"}} {
		if !slices.Contains(dirty, want) {
			t.Errorf("the dirty files are %v and should include %v", dirty, want)
		}
	}
	wantEqual(t, "dirty files in a merge", []DirtyFile{{"second.txt", "Conflicted"}}, agents["merge in progress"].Dirty)
	wantEqual(t, "dirty files in a clean worktree", 0, agents["clean"].DirtyCount)
}

func TestLostRepository(t *testing.T) {
	f := cloned(t, makeOrigin(t, 20))
	f.write("mine", "mine\n")
	f.git("add", "mine")
	f.git("commit", "-q", "-m", "mine")
	one, want := f.checkpoint(), listing(t, f.work)
	must(t, os.RemoveAll(filepath.Join(f.work, ".git")))
	two, wantTwo := f.checkpoint(), listing(t, f.work)
	f.restore(one, ScopeCode)
	sameListing(t, "worktree", want, listing(t, f.work))
	f.git("fsck", "--full")
	if got := f.git("status", "--porcelain"); got != "" {
		t.Errorf("git status prints %q, want nothing", got)
	}
	f.restore(two, ScopeCode)
	sameListing(t, "without a repository", wantTwo, listing(t, f.work))
	f.restore(one, ScopeCode)
	// A damaged pack of the origin is recreated.
	packs, _ := filepath.Glob(filepath.Join(f.work, ".git/objects/pack/*.pack"))
	for _, p := range packs {
		must(t, os.Chmod(p, 0o644))
		must(t, os.WriteFile(p, []byte("damaged"), 0o644))
	}
	f.restore(one, ScopeCode)
	f.git("fsck", "--full")
}

func TestPreserve(t *testing.T) {
	ctx := context.Background()
	f := cloned(t, makeOrigin(t, 20))
	one := f.checkpoint()
	f.write("mine", "mine\n")
	f.git("add", "mine")
	f.git("commit", "-q", "-m", "mine")
	head := strings.TrimSpace(f.git("rev-parse", "HEAD"))
	f.write("second.txt", "not committed\n")
	f.write("untracked", "untracked\n")
	two := f.checkpoint()
	f.restore(one, ScopeBoth)

	branch := PreserveRequest{Mode: PreserveBranch, Name: "before/rewind", From: two.target(), Message: "Kept before a rewind"}
	stash := PreserveRequest{Mode: PreserveStash, Name: "op-1", From: two.target(), Message: "kept before a rewind"}
	for range 2 {
		p, err := f.repo.Preserve(ctx, branch)
		must(t, err)
		got := strings.Fields(f.git("rev-parse", "before/rewind", "before/rewind^", "before/rewind^{tree}"))
		wantEqual(t, "commit, parent and tree of the branch", []string{p.Commit, head, two.Tree}, got)
		_, err = f.repo.Preserve(ctx, stash)
		must(t, err)
		wantEqual(t, "git stash list", "stash@{0}: On trunk: kept before a rewind\n", f.git("stash", "list"))
	}
	if got := f.git("show", "before/rewind:untracked"); got != "untracked\n" {
		t.Errorf("in the branch the file has the content %q", got)
	}
	stash.Message = "another"
	_, err := f.repo.Preserve(ctx, stash)
	must(t, err)
	if got := f.git("stash", "list"); strings.Count(got, "\n") != 2 {
		t.Errorf("git stash list prints %q, want two entries", got)
	}
	f.git("fsck", "--full")
	f.git("stash", "pop", "-q")
	if got, _ := os.ReadFile(filepath.Join(f.work, "untracked")); string(got) != "untracked\n" {
		t.Errorf("after git stash pop the file has the content %q", got)
	}
	f.git("checkout", "-q", "-f", "before/rewind")

	for _, name := range []string{"-x", "a..b", "", "a b", "x.lock", "/a", "a/", "@{1}", "HEAD"} {
		_, err := f.repo.Preserve(ctx, PreserveRequest{Mode: PreserveBranch, Name: name, From: two.target()})
		wantReason(t, err, InvalidReference)
	}
	f.git("pack-refs", "--all")
	for _, name := range []string{"trunk", "before", "trunk/2", "before/rewind/2"} {
		wantReason(t, f.repo.CheckBranch(name), ReferenceExists)
		_, err := f.repo.Preserve(ctx, PreserveRequest{Mode: PreserveBranch, Name: name, From: two.target()})
		wantReason(t, err, ReferenceExists)
	}
	for _, name := range []string{"tru", "trunk2", "before-2", "after/rewind"} {
		if err := f.repo.CheckBranch(name); err != nil {
			t.Errorf("the branch name %q is refused: %v", name, err)
		}
	}
}

func TestPreserveInAnEmptyRepository(t *testing.T) {
	ctx := context.Background()
	f := cloned(t, "")
	one := f.checkpoint()
	f.write("file", "content\n")
	two := f.checkpoint()
	f.restore(one, ScopeBoth)
	for _, mode := range []PreserveMode{PreserveStash, PreserveBranch} {
		_, err := f.repo.Preserve(ctx, PreserveRequest{Mode: mode, Name: "kept", From: two.target(), Message: "m"})
		must(t, err)
	}
	f.git("fsck", "--full")
	if got := f.git("show", "kept:file") + f.git("show", "stash@{0}:file"); got != "content\ncontent\n" {
		t.Errorf("branch and stash have the content %q", got)
	}
}

func TestKeptFilesThatConflictWithTheTarget(t *testing.T) {
	f := cloned(t, "")
	big := strings.Repeat("x", 1<<20+1)
	f.write("a/file", "small\n")
	f.write("b", "small\n")
	f.write("c", "small\n")
	one := f.checkpoint()
	must(t, os.RemoveAll(filepath.Join(f.work, "a")))
	must(t, os.Remove(filepath.Join(f.work, "b")))
	f.write("a", big)
	f.write("b/deep/big", big)
	f.write("b/deep/small", "gone\n")
	f.write("c", big)
	f.write("d/big", big)
	res := f.restore(one, ScopeBoth)
	var wantKept []Skipped
	for _, name := range []string{"a", "b/deep/big", "c", "d/big"} {
		wantKept = append(wantKept, Skipped{Path: name, Reason: SkipTooLarge, Bytes: int64(len(big))})
		if st, err := os.Stat(filepath.Join(f.work, name)); err != nil || st.Size() != int64(len(big)) {
			t.Errorf("%s was not left alone: %v %v", name, st, err)
		}
	}
	wantEqual(t, "kept files", wantKept, res.Kept)
	wantEqual(t, "conflicts", []string{"a", "b", "c"}, res.Conflicts)
	if _, err := os.Stat(filepath.Join(f.work, "b/deep/small")); err == nil {
		t.Error("b/deep/small still exists")
	}
}

func TestDrift(t *testing.T) {
	ctx := context.Background()
	f := cloned(t, makeOrigin(t, 20))
	c := f.checkpoint()
	head := strings.TrimSpace(f.git("rev-parse", "HEAD"))
	same := Drift{ExpectedHead: head, Head: head, ExpectedBranch: "trunk", Branch: "trunk"}
	for range 2 {
		d, err := f.repo.Drift(ctx, c.target())
		must(t, err)
		wantEqual(t, "drift of an unchanged worktree", same, d)
		if !d.Same() {
			t.Errorf("an unchanged worktree is not the same: %+v", d)
		}
		f.reopen()
	}
	for name, change := range map[string]func(){
		"a tag":         func() { f.git("tag", "new") },
		"permissions":   func() { must(t, os.Chmod(filepath.Join(f.work, "second.txt"), 0o600)) },
		"a folder":      func() { must(t, os.Mkdir(filepath.Join(f.work, "empty"), 0o755)) },
		"session state": func() { writeFile(t, filepath.Join(f.home, ".agent/x"), "x", 0o644) },
	} {
		change()
		d, err := f.repo.Drift(ctx, c.target())
		must(t, err)
		want := same
		want.StateChanged = true
		wantEqual(t, "drift after a change of "+name, want, d)
		if d.Same() {
			t.Errorf("after a change of %s the worktree is still the same: %+v", name, d)
		}
		f.restore(c, ScopeBoth)
		if d, err := f.repo.Drift(ctx, c.target()); err != nil || !d.Same() {
			t.Errorf("after a restore the drift is %+v, %v", d, err)
		}
	}
	f.write("second.txt", "edited\n")
	must(t, os.Remove(filepath.Join(f.work, "run.sh")))
	f.write("new", "new\n")
	f.git("checkout", "-q", "-b", "moved")
	d, err := f.repo.Drift(ctx, c.target())
	must(t, err)
	want := Drift{
		Files: []FileChange{{Path: "new", Action: Added, Mode: "100644"}, {Path: "run.sh", Action: Deleted, Mode: "100755"}, {Path: "second.txt", Action: Modified, Mode: "100644"}},
		Count: 3, ExpectedHead: head, Head: head, ExpectedBranch: "trunk", Branch: "moved", StateChanged: true,
	}
	wantEqual(t, "drift", want, d)
	if !d.HeadChanged() {
		t.Error("another branch is checked out, but HeadChanged is false")
	}
	two := f.checkpoint()
	if two.FilesChanged != 3 {
		t.Errorf("the checkpoint has the changes %+v, want 3", two.Files)
	}
}

func TestScopes(t *testing.T) {
	f := cloned(t, "")
	session := filepath.Join(f.home, ".agent/session")
	f.write("file", "1")
	writeFile(t, session, "1", 0o644)
	one := f.checkpoint()
	f.write("file", "2")
	writeFile(t, session, "2", 0o644)
	f.checkpoint()
	read := func() string {
		a, _ := os.ReadFile(filepath.Join(f.work, "file"))
		b, _ := os.ReadFile(session)
		return string(a) + string(b)
	}
	f.restore(one, ScopeConversation)
	if got := read(); got != "21" {
		t.Errorf("after a restore of Conversation, file and session are %s, want 21", got)
	}
	f.write("file", "2")
	writeFile(t, session, "2", 0o644)
	f.restore(one, ScopeCode)
	if got := read(); got != "12" {
		t.Errorf("after a restore of Code, file and session are %s, want 12", got)
	}
	f.checkpoint()
	f.write("file", "3")
	if _, err := f.repo.Restore(context.Background(), RestoreRequest{Target: Target{Code: one.Code}}); err != nil {
		t.Error(err)
	}
	if got := read(); got != "12" {
		t.Errorf("after a restore of the code commit alone, file and session are %s, want 12", got)
	}
	f.git("status")
}

func TestClearLocks(t *testing.T) {
	f := cloned(t, makeOrigin(t, 3))
	for _, name := range []string{".git/index.lock", ".git/refs/heads/trunk.lock", "sub/.git/index.lock", "yarn.lock", "sub/composer.lock"} {
		f.write(name, "x")
	}
	removed, err := f.repo.ClearLocks(context.Background())
	must(t, err)
	wantEqual(t, "removed locks", []string{".git/index.lock", ".git/refs/heads/trunk.lock", "sub/.git/index.lock"}, removed)
	f.git("add", "yarn.lock", "sub/composer.lock")
}

// TestLargeFiles has files that neither a checkpoint nor a restore keeps in memory.
func TestLargeFiles(t *testing.T) {
	f := cloned(t, "")
	f.repo.cfg.MaxFileBytes = 64 << 20
	f.write("five", strings.Repeat("5", 5<<20))
	f.write("nine", strings.Repeat("9", 9<<20))
	f.write("twenty", strings.Repeat("20", 10<<20))
	one, want := f.checkpoint(), listing(t, f.work)
	f.write("five", "5")
	f.write("twenty", strings.Repeat("02", 10<<20))
	must(t, os.Remove(filepath.Join(f.work, "nine")))
	f.checkpoint()
	f.restore(one, ScopeBoth)
	sameListing(t, "worktree", want, listing(t, f.work))
	must(t, f.repo.Verify(context.Background(), one.target()))
}

func TestUnreadableAndTooDeep(t *testing.T) {
	f := cloned(t, "")
	f.write("file", "x")
	f.write("closed/inside", "x")
	f.write("shut", "x")
	must(t, os.Chmod(filepath.Join(f.work, "shut"), 0))
	must(t, os.Chmod(filepath.Join(f.work, "closed"), 0))
	t.Cleanup(func() { os.Chmod(filepath.Join(f.work, "closed"), 0o755) })
	root, err := os.OpenRoot(f.work)
	must(t, err)
	for range 30 {
		name := strings.Repeat("d", 200)
		must(t, root.Mkdir(name, 0o755))
		next, err := root.OpenRoot(name)
		must(t, err)
		root.Close()
		root = next
	}
	root.Close()
	c := f.checkpoint()
	var got []SkipReason
	for _, s := range c.Skipped {
		got = append(got, s.Reason)
	}
	want := []SkipReason{SkipUnreadable, SkipTooDeep, SkipUnreadable}
	if os.Getuid() == 0 { // root can read everything
		want = []SkipReason{SkipTooDeep}
	}
	wantEqual(t, "reasons of skipped files", want, got)
	f.write("file", "y")
	f.write("more/file", "y")
	f.restore(c, ScopeBoth)
	if st, err := os.Stat(filepath.Join(f.work, "closed")); err != nil || st.Mode().Perm() != 0 {
		t.Errorf("the folder closed has other permission bits: %v, %v", st, err)
	}
	if again := f.checkpoint(); again.Tree != c.Tree {
		t.Errorf("the next checkpoint has the tree %s, want %s", again.Tree, c.Tree)
	}
}
