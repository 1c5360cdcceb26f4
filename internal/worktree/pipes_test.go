package worktree

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// pipe makes a named pipe, and its folder, with the given permission bits.
func (f *fixture) pipe(path string, perm uint32) {
	f.t.Helper()
	must(f.t, os.MkdirAll(filepath.Dir(path), 0o755))
	must(f.t, syscall.Mkfifo(path, perm))
	must(f.t, os.Chmod(path, os.FileMode(perm)))
}

// fillPipes adds named pipes, and those that disturb replaces by another kind of file.
func (f *fixture) fillPipes() {
	f.t.Helper()
	w := func(name string) string { return filepath.Join(f.work, name) }
	f.pipe(w("fifo"), 0o644)
	f.pipe(w("pipes/only/m600"), 0o600)
	f.pipe(w("pipes/mode"), 0o666)
	f.pipe(w("pipes/gone"), 0o640)
	for _, kind := range []string{"file", "dir", "link"} {
		f.pipe(w("kind/pipe-to-"+kind), 0o644)
	}
	f.pipe(filepath.Join(f.home, ".agent/pipe"), 0o622)
}

// disturbPipes changes, removes and adds named pipes. The entries of kind are gone.
func (f *fixture) disturbPipes() {
	f.t.Helper()
	w := func(name string) string { return filepath.Join(f.work, name) }
	must(f.t, os.RemoveAll(w("pipes/only")))
	must(f.t, os.Chmod(w("pipes/mode"), 0o600))
	must(f.t, os.Remove(w("pipes/gone")))
	f.pipe(w("pipes/later"), 0o644)
	f.write("kind/pipe-to-file", "x")
	f.write("kind/pipe-to-dir/deep/er", "x")
	must(f.t, os.Symlink("pipe-to-file", w("kind/pipe-to-link")))
	f.pipe(w("kind/file-to-pipe"), 0o600)
	f.pipe(w("kind/dir-to-pipe"), 0o644)
	f.pipe(w("kind/link-to-pipe"), 0o644)
	must(f.t, os.Remove(filepath.Join(f.home, ".agent/pipe")))
}

// withoutPipes returns the target of a checkpoint as daemons wrote it that did not record
// named pipes.
func (f *fixture) withoutPipes(c Checkpoint) Target {
	f.t.Helper()
	git := f.config().GitDir
	old := strings.TrimSpace(gitIn(f.t, git, "show", c.State+":"+stateEntries))
	start := strings.Index(old, `"pipes": {`)
	end := start + strings.Index(old[start:], "}")
	if start < 0 || end < start {
		f.t.Fatalf("%s lists no pipes: %s", stateEntries, old)
	}
	before := strings.TrimRight(strings.TrimSpace(old[:start]), ",")
	file := filepath.Join(f.t.TempDir(), "entries.json")
	writeFile(f.t, file, before+old[end+1:], 0o644)
	blob := strings.TrimSpace(gitIn(f.t, git, "hash-object", "-w", file))
	listed := gitIn(f.t, git, "ls-tree", c.State)
	var tree strings.Builder
	for line := range strings.Lines(listed) {
		if strings.HasSuffix(line, "\t"+stateEntries+"\n") {
			line = "100644 blob " + blob + "\t" + stateEntries + "\n"
		}
		tree.WriteString(line)
	}
	cmd := gitCommand(git, "mktree")
	cmd.Stdin = strings.NewReader(tree.String())
	id, err := cmd.Output()
	must(f.t, err)
	parent := strings.TrimSpace(gitIn(f.t, git, "rev-parse", c.State+"^"))
	state := gitIn(f.t, git, "commit-tree", "-m", "old", "-p", parent, strings.TrimSpace(string(id)))
	return Target{Code: c.Code, State: strings.TrimSpace(state)}
}

// TestWhatAKilledRestoreLeavesOfPipes: a restore may be killed between any two changes.
func TestWhatAKilledRestoreLeavesOfPipes(t *testing.T) {
	f := cloned(t, "")
	at := filepath.Join(f.work, "folder/at")
	f.pipe(at, 0o640)
	must(t, os.Chmod(filepath.Dir(at), 0o555))
	pipe, want := f.checkpoint(), listing(t, f.work)
	for what, left := range map[string]func(){
		"before the folder is made":         func() { must(t, os.Remove(filepath.Dir(at))) },
		"before the pipe is made":           func() {},
		"before its permission bits":        func() { f.pipe(at, 0o600) },
		"before a file is removed":          func() { writeFile(t, at, "file", 0o600) },
		"before a link is removed":          func() { must(t, os.Symlink("elsewhere", at)) },
		"before a folder is emptied":        func() { writeFile(t, filepath.Join(at, "a/b"), "file", 0o600) },
		"before the folder gets its bits":   func() { f.pipe(at, 0o640) },
		"before another pipe is removed":    func() { f.pipe(filepath.Join(f.work, "folder/other"), 0o640) },
		"before a folder of pipes is empty": func() { f.pipe(filepath.Join(at, "other/pipe"), 0o640) },
	} {
		t.Run(what, func(t *testing.T) {
			must(t, os.Chmod(filepath.Dir(at), 0o755))
			must(t, os.RemoveAll(at))
			left()
			res := f.restore(pipe, ScopeBoth)
			sameListing(t, "worktree", want, listing(t, f.work))
			wantEqual(t, "kept", nil, res.Kept)
			drift, err := f.repo.Drift(t.Context(), pipe.target())
			must(t, err)
			if !drift.Same() {
				t.Errorf("the restored worktree differs: %+v", drift)
			}
			if again := f.restore(pipe, ScopeBoth); again.Written+again.Removed > 0 {
				t.Errorf("the same restore again changes something: %+v", again)
			}
		})
	}
}

// TestPipesAreMadeAgainOnANewVolume, those of nested repositories too.
func TestPipesAreMadeAgainOnANewVolume(t *testing.T) {
	f := cloned(t, "")
	f.fillPipes()
	f.write("nested/.git/HEAD", "ref: refs/heads/main\n")
	f.pipe(filepath.Join(f.work, "nested/.git/pipe"), 0o600)
	f.pipe(filepath.Join(f.work, "odd/new\nline \xff"), 0o600)
	f.pipe(filepath.Join(f.work, "odd/.git"), 0o644)
	must(t, os.Chmod(filepath.Join(f.work, "pipes/only"), 0o500))
	want, wantHome := listing(t, f.work), listing(t, f.home)
	c := f.checkpoint()
	must(t, f.repo.Verify(t.Context(), c.target()))
	g := newFixture(t)
	store := Remote{URL: "file://" + f.config().GitDir}
	must(t, g.repo.Fetch(t.Context(), store, c.CodeRef, c.StateRef))
	g.restore(c, ScopeBoth)
	sameListing(t, "worktree", want, listing(t, g.work))
	sameListing(t, "home", wantHome, listing(t, g.home))
}

// TestAChangedPipeIsDrift, though no file differs.
func TestAChangedPipeIsDrift(t *testing.T) {
	f := cloned(t, "")
	at := filepath.Join(f.work, "pipe")
	f.pipe(at, 0o644)
	c := f.checkpoint()
	for what, change := range map[string]func(){
		"other bits":   func() { must(t, os.Chmod(at, 0o600)) },
		"gone":         func() { must(t, os.Remove(at)) },
		"another pipe": func() { f.pipe(at+"2", 0o644) },
	} {
		change()
		drift, err := f.repo.Drift(t.Context(), c.target())
		must(t, err)
		if !drift.Clean() || !drift.StateChanged {
			t.Errorf("%s: the drift is %+v, want a changed state and no file", what, drift)
		}
		f.restore(c, ScopeBoth)
	}
}

// TestAClearedSessionHasNoPipes: what the agent's next session opens there must not block.
func TestAClearedSessionHasNoPipes(t *testing.T) {
	f := cloned(t, "")
	f.fillPipes()
	_, err := f.repo.ClearSession(t.Context())
	must(t, err)
	if _, err := os.Lstat(filepath.Join(f.home, ".agent/pipe")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the pipe in the home is there: %v", err)
	}
	if _, err := os.Lstat(filepath.Join(f.work, "fifo")); err != nil {
		t.Errorf("the pipe in the worktree is gone: %v", err)
	}
}

// TestACheckpointThatDoesNotRecordPipes leaves those alone that it finds.
func TestACheckpointThatDoesNotRecordPipes(t *testing.T) {
	f := cloned(t, "")
	f.write("file", "file")
	f.write("other", "other")
	one := f.checkpoint()
	old := f.withoutPipes(one)
	at := filepath.Join(f.work, "pipe")
	f.pipe(at, 0o640)
	must(t, os.Remove(filepath.Join(f.work, "file")))
	f.pipe(filepath.Join(f.work, "file"), 0o644)
	f.write("other", "changed")
	two, want := f.checkpoint(), listing(t, f.work)

	res, err := f.repo.Restore(t.Context(), RestoreRequest{Target: old})
	must(t, err)
	wantEqual(t, "conflicts", []string{"file"}, res.Conflicts)
	wantEqual(t, "kept", []Skipped{{Path: "file", Reason: SkipFifo}, {Path: "pipe", Reason: SkipFifo}}, res.Kept)
	got := listing(t, f.work)
	wantEqual(t, "the pipe", want["pipe"], got["pipe"])
	wantEqual(t, "the other file", listingOf(t, one, f, "other"), got["other"])

	// A path cannot name them, and nor can they be replaced by what it selects.
	f.restore(two, ScopeBoth)
	for path, reason := range map[string]Reason{"pipe": PathNotFound, "file": PathBlocked} {
		wantReason(t, f.repo.CheckPaths(t.Context(), RestoreRequest{Target: old, Paths: []string{path}}), reason)
		must(t, f.repo.CheckPaths(t.Context(), RestoreRequest{Target: one.target(), Paths: []string{path}}))
	}
	// Onto such a checkpoint, pipes of a target that has them are made.
	must(t, os.Remove(at))
	_, err = f.repo.Restore(t.Context(), RestoreRequest{Target: two.target(), Onto: old, Paths: []string{"pipe"}})
	must(t, err)
	wantEqual(t, "the pipe that was gone", want["pipe"], listing(t, f.work)["pipe"])
}

// listingOf returns a file of a checkpoint as listing describes it.
func listingOf(t *testing.T, c Checkpoint, f *fixture, path string) string {
	t.Helper()
	g := newFixture(t)
	must(t, g.repo.Fetch(t.Context(), Remote{URL: "file://" + f.config().GitDir}, c.CodeRef, c.StateRef))
	g.restore(c, ScopeBoth)
	return listing(t, g.work)[path]
}

// TestOtherFilesOfNoCheckpointStay: sockets are no more than listed.
func TestOtherFilesOfNoCheckpointStay(t *testing.T) {
	f := cloned(t, "")
	f.pipe(filepath.Join(f.work, "at"), 0o644)
	one := f.checkpoint()
	must(t, os.Remove(filepath.Join(f.work, "at")))
	fd, err := syscall.Socket(syscall.AF_UNIX, syscall.SOCK_STREAM, 0)
	must(t, err)
	defer syscall.Close(fd)
	// The whole path may be longer than an address.
	must(t, syscall.Bind(fd, &syscall.SockaddrUnix{Name: shortPath(t, filepath.Join(f.work, "at"))}))
	want := listing(t, f.work)
	res := f.restore(one, ScopeBoth)
	wantEqual(t, "conflicts", []string{"at"}, res.Conflicts)
	wantEqual(t, "kept", []Skipped{{Path: "at", Reason: SkipSocket}}, res.Kept)
	sameListing(t, "worktree", want, listing(t, f.work))
}

// shortPath returns another path of a file whose folder exists.
func shortPath(t *testing.T, path string) string {
	t.Helper()
	dir, err := os.Open(filepath.Dir(path))
	must(t, err)
	t.Cleanup(func() { dir.Close() })
	return filepath.Join(fmt.Sprintf("/proc/self/fd/%d", dir.Fd()), filepath.Base(path))
}

// TestPipesOfARepositoryDoNotHang: a restore makes pipes where git and Clew read files.
func TestPipesOfARepositoryDoNotHang(t *testing.T) {
	f := cloned(t, makeOrigin(t, 5))
	for _, name := range []string{".git/HEAD", ".git/index", ".git/packed-refs", ".git/refs/heads/main", ".git/objects/pack/pack-x.pack", ".gitignore", ".gitmodules"} {
		path := filepath.Join(f.work, name)
		must(t, os.RemoveAll(path))
		f.pipe(path, 0o644)
	}
	want := listing(t, f.work)
	c, g := f.checkpoint(), newFixture(t)
	must(t, g.repo.Fetch(t.Context(), Remote{URL: "file://" + f.config().GitDir}, c.CodeRef, c.StateRef))
	done := make(chan error, 1)
	go func() {
		_, err := g.repo.Restore(t.Context(), RestoreRequest{Target: c.target()})
		if err == nil {
			_, err = g.repo.Drift(t.Context(), c.target())
		}
		if err == nil {
			_, err = g.repo.Checkpoint(t.Context(), CheckpointRequest{TaskUID: "uid-1", Number: 2, Parent: c.Code, Message: "m"})
		}
		if err == nil {
			_, err = g.repo.Maintain(t.Context())
		}
		done <- err
	}()
	select {
	case err := <-done:
		must(t, err)
	case <-time.After(20 * time.Second):
		t.Fatal("a restore hangs on a named pipe")
	}
	sameListing(t, "worktree", want, listing(t, g.work))
	_, err := g.repo.Preserve(t.Context(), PreserveRequest{Mode: PreserveBranch, Name: "kept", From: c.target(), Message: "m"})
	must(t, err)
}

// TestPipesAreMadeBeneathNoLink restores pipes into folders that are links to the outside.
func TestPipesAreMadeBeneathNoLink(t *testing.T) {
	f := cloned(t, "")
	f.pipe(filepath.Join(f.work, "a/b/pipe"), 0o640)
	f.pipe(filepath.Join(f.work, "pipe"), 0o640)
	f.pipe(filepath.Join(f.home, ".agent/pipe"), 0o640)
	c, want, wantHome := f.checkpoint(), listing(t, f.work), listing(t, f.home)
	outside := filepath.Join(f.base, "outside")
	writeFile(t, filepath.Join(outside, "b/file"), "outside", 0o600)
	writeFile(t, filepath.Join(outside, "pipe"), "outside", 0o600)
	before := listing(t, outside)
	for from, to := range map[string]string{"work/a": outside, "work/pipe": outside + "/pipe", "home/.agent": outside} {
		must(t, os.RemoveAll(filepath.Join(f.base, from)))
		must(t, os.Symlink(to, filepath.Join(f.base, from)))
	}
	f.restore(c, ScopeBoth)
	sameListing(t, "worktree", want, listing(t, f.work))
	sameListing(t, "home", wantHome, listing(t, f.home))
	sameListing(t, "outside", before, listing(t, outside))
}
