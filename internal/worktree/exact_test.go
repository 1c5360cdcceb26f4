package worktree

import (
	"context"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// fillOddly fills worktree and home with everything that is hard to restore.
func (f *fixture) fillOddly() {
	f.t.Helper()
	f.fillContents()
	f.fillNames()
	f.fillRepositories()
	f.write("big.bin", strings.Repeat("b", 1<<20+1)) // what no checkpoint holds
	f.fillPipes()
	// Session state.
	writeFile(f.t, filepath.Join(f.home, ".agent/session.jsonl"), "{}\n", 0o600)
	writeFile(f.t, filepath.Join(f.home, ".agent/credentials.json"), "secret", 0o600)
	writeFile(f.t, filepath.Join(f.home, ".agent/a/.git/config"), "data\n", 0o644)
	writeFile(f.t, filepath.Join(f.home, ".other/sessions/1"), "one", 0o644)
	writeFile(f.t, filepath.Join(f.home, ".other/private"), "private", 0o644)
}

// fillContents adds files that git would convert or ignore, permission bits, links and
// empty folders.
func (f *fixture) fillContents() {
	f.t.Helper()
	w := func(name string) string { return filepath.Join(f.work, name) }
	f.write("binary.bin", "\x00\x01\xff\xfe"+strings.Repeat("\x00", 5000))
	f.write(".gitattributes", "*.txt text eol=lf\n*.crlf text eol=crlf\n*.f filter=evil\n*.u working-tree-encoding=UTF-16\n")
	f.write("crlf.txt", "one\r\ntwo\r\n")
	f.write("lf.crlf", "one\ntwo\n")
	f.write("x.f", "unfiltered\n")
	f.write("x.u", "not utf-16\n")
	f.write(".gitignore", "ignored/\n*.log\n")
	f.write("ignored/deep/file", "ignored")
	f.write("a.log", "log")
	f.write("empty-file", "")
	for perm, name := range map[os.FileMode]string{0o600: "m600", 0o755: "m755", 0o700: "m700", 0o400: "m400", 0o444: "m444", 0o664: "m664", 0o555: "m555"} {
		writeFile(f.t, w("modes/"+name), name, perm)
	}
	writeFile(f.t, w("modcache/mod/file.go"), "package mod\n", 0o444)
	must(f.t, os.Chmod(w("modcache/mod"), 0o555))
	must(f.t, os.Symlink("/etc/passwd", w("link-out")))
	must(f.t, os.Symlink("nowhere/at/all", w("link-dangling")))
	must(f.t, os.Symlink("modes/m600", w("link-in")))
	must(f.t, os.Symlink("..", w("link-up")))
	must(f.t, os.Symlink("modes", w("link-dir")))
	must(f.t, os.MkdirAll(w("empty/inner/innermost"), 0o755))
	must(f.t, os.MkdirAll(w("private-empty"), 0o700))
	must(f.t, os.Chmod(w("private-empty"), 0o700))
}

// fillNames adds odd names, and names that disturb will use for another kind of file.
func (f *fixture) fillNames() {
	f.t.Helper()
	w := func(name string) string { return filepath.Join(f.work, name) }
	for _, name := range []string{"with space", "new\nline", "tab\there", "quote\"d", "back\\slash", "non-utf8-\xff\xfe", "-dash", "--upload-pack=x", "ünïcödé", "%2e676974", ":colon", "star*", "git~2", ".gitfoo"} {
		f.write("odd/"+name, "odd "+name)
	}
	f.write("odd/dir with\nnewline \xff/file", "x")
	f.write("odd/.GIT/config", "[core]\n\tfsmonitor = touch /tmp/never\n")
	f.write("odd/git~1", "dos name of .git")
	must(f.t, os.Symlink("elsewhere", w("odd/.gitmodules")))
	f.write("kind/file-to-dir", "file")
	f.write("kind/dir-to-file/a/b", "b")
	f.write("kind/dir-to-link/a", "a")
	must(f.t, os.Symlink("dir-to-link", w("kind/link-to-dir")))
	f.write("kind/file-to-link", "file")
	f.write("kind/file-to-pipe", "file")
	f.write("kind/dir-to-pipe/a/b", "b")
	must(f.t, os.Symlink("file-to-pipe", w("kind/link-to-pipe")))
	must(f.t, os.Symlink("file-to-link", w("kind/link-to-file")))
}

// fillRepositories adds nested repositories and a submodule.
func (f *fixture) fillRepositories() {
	f.t.Helper()
	w := func(name string) string { return filepath.Join(f.work, name) }
	// A nested repository with a commit, and an empty one.
	f.write("nested/repo/inside.txt", "inside\n")
	gitIn(f.t, w("nested/repo"), "init", "-q")
	gitIn(f.t, w("nested/repo"), "add", "-A")
	gitIn(f.t, w("nested/repo"), "commit", "-q", "-m", "nested")
	f.write("nested/repo/untracked.txt", "untracked\n")
	must(f.t, os.MkdirAll(w("nested/empty"), 0o755))
	gitIn(f.t, w("nested/empty"), "init", "-q")
	f.write("nested/file/.git", "gitdir: ../repo/.git\n")
	must(f.t, os.MkdirAll(w("nested/link"), 0o755))
	must(f.t, os.Symlink("../repo/.git", w("nested/link/.git")))
	// A submodule.
	sub := filepath.Join(f.base, "sub")
	if _, err := os.Stat(sub); err != nil {
		writeFile(f.t, filepath.Join(sub, "sub.txt"), "sub\n", 0o644)
		gitIn(f.t, sub, "init", "-q", "-b", "main")
		gitIn(f.t, sub, "add", "-A")
		gitIn(f.t, sub, "commit", "-q", "-m", "sub")
	}
	f.git("-c", "protocol.file.allow=always", "submodule", "--quiet", "add", "file://"+sub, "modules/sub")
}

// disturb changes everything that fillOddly created.
func (f *fixture) disturb() {
	f.t.Helper()
	w := func(name string) string { return filepath.Join(f.work, name) }
	f.write("binary.bin", "text now")
	f.write("crlf.txt", "one\ntwo\n")
	must(f.t, os.Remove(w(".gitattributes")))
	must(f.t, os.RemoveAll(w("ignored")))
	must(f.t, os.RemoveAll(w("odd")))
	must(f.t, os.Chmod(w("modcache/mod"), 0o755))
	f.write("modcache/mod/more.go", "package mod\n")
	must(f.t, os.Chmod(w("modcache/mod"), 0o500))
	for _, name := range []string{"m600", "m755", "m444"} {
		must(f.t, os.Chmod(w("modes/"+name), 0o640))
	}
	must(f.t, os.Chmod(w("modes"), 0o700))
	must(f.t, os.Remove(w("link-out")))
	f.write("link-out", "a file now")
	must(f.t, os.Remove(w("link-dir")))
	must(f.t, os.MkdirAll(w("link-dir/sub"), 0o755))
	must(f.t, os.RemoveAll(w("empty")))
	f.write("private-empty/no-longer", "x")
	must(f.t, os.RemoveAll(w("nested")))
	f.write("nested/other/.git/HEAD", "ref: refs/heads/main\n")
	f.git("submodule", "--quiet", "deinit", "-f", "modules/sub")
	for _, name := range []string{
		"file-to-dir", "dir-to-file", "dir-to-link", "link-to-dir", "file-to-link", "link-to-file",
		"pipe-to-file", "pipe-to-dir", "pipe-to-link", "file-to-pipe", "dir-to-pipe", "link-to-pipe",
	} {
		must(f.t, os.RemoveAll(w("kind/"+name)))
	}
	f.write("kind/file-to-dir/deep/er", "x")
	f.write("kind/dir-to-file", "x")
	must(f.t, os.Symlink("/etc", w("kind/dir-to-link")))
	f.write("kind/link-to-dir/x", "x")
	must(f.t, os.Symlink("/etc/passwd", w("kind/file-to-link")))
	f.write("kind/link-to-file", "x")
	f.disturbPipes()
	f.write("added/later/file", "later")
	f.git("checkout", "-q", "-b", "later")
	f.git("add", "added")
	f.git("commit", "-q", "-m", "later")
	writeFile(f.t, filepath.Join(f.home, ".agent/session.jsonl"), "{}\n{}\n", 0o644)
	writeFile(f.t, filepath.Join(f.home, ".agent/new"), "new", 0o644)
	writeFile(f.t, filepath.Join(f.home, ".other/sessions/2"), "two", 0o644)
	must(f.t, os.RemoveAll(filepath.Join(f.home, ".agent/a")))
}

func TestCheckpointIsExact(t *testing.T) {
	f := cloned(t, makeOrigin(t, 30))
	f.fillOddly()
	// git status refreshes the index, which is part of the state.
	wantStatus, wantNested := f.git("status", "--porcelain=v2", "--branch"), gitIn(t, filepath.Join(f.work, "nested/repo"), "log", "--oneline")
	wantWork, wantHome := listing(t, f.work), listing(t, f.home)
	one := f.checkpoint()
	sameListing(t, "after a checkpoint", wantWork, listing(t, f.work))
	skipped := map[string]SkipReason{}
	for _, s := range one.Skipped {
		skipped[s.Path] = s.Reason
	}
	wantEqual(t, "skipped files", map[string]SkipReason{
		"big.bin": SkipTooLarge, "fifo": SkipFifo, "pipes/only/m600": SkipFifo, "pipes/mode": SkipFifo, "pipes/gone": SkipFifo,
		"kind/pipe-to-file": SkipFifo, "kind/pipe-to-dir": SkipFifo, "kind/pipe-to-link": SkipFifo,
		filepath.Join(f.home, ".agent/pipe"): SkipFifo,
	}, skipped)
	f.disturb()
	wantLater, wantLaterHome := listing(t, f.work), listing(t, f.home)
	two := f.checkpoint()

	res := f.restore(one, ScopeBoth)
	wantEqual(t, "tree after the restore", one.Tree, res.Tree)
	wantEqual(t, "conflicts", nil, res.Conflicts)
	sameListing(t, "worktree", wantWork, listing(t, f.work))
	sameListing(t, "home", wantHome, listing(t, f.home))
	wantEqual(t, "git status", wantStatus, f.git("status", "--porcelain=v2", "--branch"))
	wantEqual(t, "git log of the nested repository", wantNested, gitIn(t, filepath.Join(f.work, "nested/repo"), "log", "--oneline"))
	f.git("fsck", "--full")

	// Undo the restore.
	f.restore(two, ScopeBoth)
	sameListing(t, "worktree again", wantLater, listing(t, f.work))
	sameListing(t, "home again", wantLaterHome, listing(t, f.home))
	f.git("fsck", "--full")
}

func TestLostVolume(t *testing.T) {
	f := cloned(t, makeOrigin(t, 30))
	f.fillOddly()
	f.write("committed.txt", "by the agent\n")
	f.git("add", "committed.txt")
	f.git("commit", "-q", "-m", "agent's own commit")
	f.git("checkout", "-q", "-b", "feature")
	f.write("staged.txt", "staged\n")
	f.git("add", "staged.txt")
	f.git("status")
	wantStatus, wantLog := f.git("status", "--porcelain=v2", "--branch"), f.git("log", "--oneline", "--all", "--decorate")
	want, wantHome := listing(t, f.work), listing(t, f.home)
	c := f.checkpoint()
	wantEqual(t, "branch of the agent's repository", "feature", c.Agent.Branch)
	wantEqual(t, "HEAD of the agent's repository", strings.TrimSpace(f.git("rev-parse", "HEAD")), c.Agent.Head)
	store := filepath.Join(f.base, "store.git")
	gitIn(t, f.base, "init", "-q", "--bare", store)
	remote := Remote{URL: "file://" + store}
	ctx := context.Background()
	must(t, f.repo.Push(ctx, remote, RefUpdate{Source: c.CodeRef, Name: c.CodeRef}, RefUpdate{Source: c.StateRef, Name: c.StateRef}))

	g := newFixture(t)
	must(t, g.repo.Fetch(ctx, remote, c.CodeRef, c.StateRef))
	g.restore(c, ScopeBoth)
	delete(want, "big.bin")
	delete(wantHome, ".agent/credentials.json")
	delete(wantHome, ".other/private")
	sameListing(t, "worktree", want, listing(t, g.work))
	sameListing(t, "home", wantHome, listing(t, g.home))
	wantStatus = strings.Replace(wantStatus, "? big.bin\n", "", 1) // lost with the volume
	// The first git command after the restore must succeed with the restored index.
	wantEqual(t, "git status", wantStatus, g.git("status", "--porcelain=v2", "--branch"))
	wantEqual(t, "git log", wantLog, g.git("log", "--oneline", "--all", "--decorate"))
	g.git("fsck", "--full")
	g.git("show", "v1")
	if o, ok := g.repo.Origin(); !ok || o.Branch != "trunk" {
		t.Errorf("the origin is %+v", o)
	}
	// The next checkpoint continues there.
	g.n, g.last = c.Number, c
	g.write("more.txt", "more\n")
	d := g.checkpoint()
	wantEqual(t, "changed files", []FileChange{{Path: "more.txt", Action: Added, Mode: "100644", Added: 1}}, d.Files)
	wantEqual(t, "added lines", 1, d.LinesAdded)
}

// TestOldModes starts from a tree with a mode that git no longer writes, which a
// difference relative to that tree would keep.
func TestOldModes(t *testing.T) {
	origin := makeOrigin(t, 3)
	blob := strings.TrimSpace(gitIn(t, origin, "rev-parse", "HEAD:second.txt"))
	raw, err := hex.DecodeString(blob)
	must(t, err)
	cmd := gitCommand(origin, "hash-object", "-t", "tree", "-w", "--literally", "--stdin")
	cmd.Stdin = strings.NewReader("100664 group.txt\x00" + string(raw) + "100644 plain.txt\x00" + string(raw))
	tree, err := cmd.Output()
	must(t, err)
	commit := strings.TrimSpace(gitIn(t, origin, "commit-tree", "-m", "old", strings.TrimSpace(string(tree))))
	gitIn(t, origin, "branch", "-f", "side/branch", commit)
	f := newFixture(t)
	o, err := f.repo.Clone(context.Background(), CloneRequest{URL: "file://" + origin, Ref: "side/branch"})
	must(t, err)
	f.write("new", "new\n")
	want := listing(t, f.work)
	c := f.checkpointOn(o.Base)
	if c.FilesChanged != 1 {
		t.Errorf("the changed files are %+v, want one", c.Files)
	}
	f.write("plain.txt", "changed\n")
	f.checkpoint()
	f.restore(c, ScopeBoth)
	sameListing(t, "worktree", want, listing(t, f.work))
	if _, err := f.repo.Restore(context.Background(), RestoreRequest{Target: Target{Code: o.Base}}); err != nil {
		t.Error(err)
	}
}

// TestSubmoduleNotCheckedOut clones a repository with a submodule, which becomes an
// empty folder: it stays a submodule in the tree until it has content.
func TestSubmoduleNotCheckedOut(t *testing.T) {
	origin := makeOrigin(t, 3)
	gitIn(t, origin, "-c", "protocol.file.allow=always", "submodule", "--quiet", "add", "file://"+makeOrigin(t, 2), "libs/sub")
	gitIn(t, origin, "commit", "-q", "-m", "submodule")
	f := cloned(t, origin)
	tree := strings.TrimSpace(f.git("rev-parse", "HEAD^{tree}"))
	one := f.checkpoint()
	wantEqual(t, "tree", tree, one.Tree)
	wantEqual(t, "changed files", nil, one.Files)
	wantEqual(t, "dirty files", nil, one.Agent.Dirty)
	f.write("other", "x\n")
	if two := f.checkpoint(); two.FilesChanged != 1 {
		t.Errorf("the changed files are %+v, want one", two.Files)
	}
	f.git("-c", "protocol.file.allow=always", "submodule", "--quiet", "update", "--init")
	f.git("status")
	three, want := f.checkpoint(), listing(t, f.work)
	if three.FilesChanged != 5 { // the submodule and its four files
		t.Errorf("the changed files are %+v, want 5", three.Files)
	}
	f.restore(one, ScopeBoth)
	if out := f.git("status", "--porcelain") + f.git("submodule", "status"); !strings.HasPrefix(out, "-") {
		t.Errorf("git prints %q, want a clean status and a submodule that is not initialised", out)
	}
	f.restore(three, ScopeBoth)
	sameListing(t, "worktree", want, listing(t, f.work))
}

// TestADamagedBaselineIsNotTrusted damages the baseline of the quick path.
func TestADamagedBaselineIsNotTrusted(t *testing.T) {
	f := cloned(t, makeOrigin(t, 10))
	f.checkpoint()
	f.write("x", "x\n")
	f.repo.base.stateTree = oid{1, 2, 3}
	c, want := f.checkpoint(), listing(t, f.work)
	f.write("y", "y\n")
	f.checkpoint()
	f.restore(c, ScopeBoth)
	sameListing(t, "worktree", want, listing(t, f.work))
	must(t, f.repo.Verify(context.Background(), c.target()))
}

// TestTenThousandFiles takes and restores checkpoints of a large worktree.
func TestTenThousandFiles(t *testing.T) {
	if testing.Short() {
		t.Skip("writes ten thousand files: make test runs it")
	}
	f := cloned(t, "")
	for i := range 10_000 {
		f.write(fileName(i), fmt.Sprintf("file %d\n", i))
	}
	one, want := f.checkpoint(), listing(t, f.work)
	for i := range 2_000 {
		if name := filepath.Join(f.work, fileName(i*5)); i%2 == 0 {
			must(t, os.Remove(name))
		} else {
			must(t, os.WriteFile(name, []byte("changed\n"), 0o644))
		}
	}
	must(t, os.RemoveAll(filepath.Join(f.work, "pkg/m007")))
	two, wantTwo := f.checkpoint(), listing(t, f.work)
	if two.FilesChanged != 2_080 {
		t.Errorf("the checkpoint has %d changed files, want 2,080", two.FilesChanged)
	}
	f.restore(one, ScopeBoth)
	sameListing(t, "worktree", want, listing(t, f.work))
	f.restore(two, ScopeBoth)
	sameListing(t, "worktree", wantTwo, listing(t, f.work))
}
