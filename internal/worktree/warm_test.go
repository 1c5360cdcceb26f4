package worktree

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/clew-dev/clew/internal/gitstoreapi"
)

// brief takes the next checkpoint as a brief one, which fails if there is too much to read.
func (f *fixture) brief() (Checkpoint, error) {
	f.t.Helper()
	c, err := f.repo.Checkpoint(context.Background(), CheckpointRequest{
		TaskUID: "uid-1", Number: f.n + 1, Parent: f.last.Code, Message: "Brief\n", Brief: true,
	})
	if err == nil {
		f.n++
		f.last = c
	}
	return c, err
}

func (f *fixture) warm() {
	f.t.Helper()
	_, err := f.repo.Warm(context.Background(), f.last.Code, func() {})
	must(f.t, err)
}

func TestABriefCheckpointRefusesToReadTooMuch(t *testing.T) {
	f := cloned(t, makeOrigin(t, 10))
	f.checkpoint()
	for i := range briefLimit.files + 1 {
		f.write(fmt.Sprintf("new/%d", i), fmt.Sprintf("one\ntwo %d\n", i))
	}
	f.write(fileName(3), "changed\n")
	_, err := f.brief()
	wantReason(t, err, TooMuchChanged)
	f.warm()
	c, err := f.brief()
	must(t, err)
	// Its counts are those of a checkpoint that read everything itself.
	type counts struct{ files, added, removed int64 }
	want := counts{int64(briefLimit.files) + 2, int64(2*briefLimit.files + 2 + 1), 21}
	if got := (counts{int64(c.FilesChanged), c.LinesAdded, c.LinesRemoved}); got != want {
		t.Errorf("the counts are %+v, want %+v", got, want)
	}
	must(t, f.repo.Verify(context.Background(), c.target()))
	for i := range 33 {
		f.write(fmt.Sprintf("big/%d", i), strings.Repeat("x", int(briefLimit.bytes)/32))
	}
	_, err = f.brief()
	wantReason(t, err, TooMuchChanged)
}

func TestTheFirstBriefCheckpointNeedsWarm(t *testing.T) {
	f := newFixture(t)
	if !f.repo.Cold() {
		t.Error("a new repository is not cold")
	}
	origin := makeOrigin(t, 10)
	f = cloned(t, origin)
	must(t, os.Remove(f.repo.own("stat-cache")))
	f.repo.cache = snapshot{}
	_, err := f.brief()
	wantReason(t, err, TooMuchChanged)
	f.warm()
	if f.repo.Cold() {
		t.Error("the repository is still cold after Warm")
	}
	if _, err = f.brief(); err != nil {
		t.Error(err)
	}
}

// TestChangesAfterWarmAreInTheCheckpoint: a checkpoint has the files as they are when
// it is taken, whatever was stored before.
func TestChangesAfterWarmAreInTheCheckpoint(t *testing.T) {
	f := cloned(t, makeOrigin(t, 60))
	f.fillOddly()
	f.write("same-size", "aaaa\n")
	f.write("gone", "gone\n")
	f.write("was-file", "file\n")
	f.write("was-folder/a", "a\n")
	f.warm()
	f.write("same-size", "bbbb\n")
	must(t, os.Remove(filepath.Join(f.work, "gone")))
	must(t, os.Remove(filepath.Join(f.work, "was-file")))
	f.write("was-file/now/a/folder", "x\n")
	must(t, os.RemoveAll(filepath.Join(f.work, "was-folder")))
	f.write("was-folder", "x\n")
	must(t, os.Chmod(filepath.Join(f.work, fileName(1)), 0o755))
	f.write("fresh", "fresh\n")
	f.git("add", "fresh")
	f.git("commit", "-q", "-m", "the agent's own")
	f.git("status")
	want := listing(t, f.work)
	c, err := f.brief()
	must(t, err)
	must(t, f.repo.Verify(context.Background(), c.target()))
	plain := f.coldCheckpoint(c.Parent)
	wantEqual(t, "tree after Warm", plain.Tree, c.Tree)
	wantEqual(t, "changed files after Warm", plain.Files, c.Files)
	wantEqual(t, "number of changed files after Warm", plain.FilesChanged, c.FilesChanged)
	wantEqual(t, "added lines after Warm", plain.LinesAdded, c.LinesAdded)
	f.write("same-size", "cccc\n")
	must(t, os.RemoveAll(filepath.Join(f.work, "was-file")))
	f.checkpoint()
	f.restore(c, ScopeBoth)
	sameListing(t, "worktree", want, listing(t, f.work))
}

// coldCheckpoint takes the next checkpoint without the stat cache.
func (f *fixture) coldCheckpoint(parent string) Checkpoint {
	f.t.Helper()
	f.repo.cache, f.repo.base = snapshot{}, baseline{}
	f.last.Code = parent
	return f.checkpoint()
}

// TestFilesThatChangeDuringWarm: an agent writes continuously while its files are
// stored, and is stopped only during the checkpoint.
func TestFilesThatChangeDuringWarm(t *testing.T) {
	f := cloned(t, makeOrigin(t, 200))
	f.checkpoint()
	for round := range 5 {
		stop := make(chan struct{})
		var agent sync.WaitGroup
		agent.Go(func() {
			for i := 0; ; i++ {
				select {
				case <-stop:
					return
				default:
				}
				name := filepath.Join(f.work, fileName(i%200))
				switch i % 7 {
				case 5:
					_ = os.Remove(name)
				case 6:
					_ = os.WriteFile(filepath.Join(f.work, fmt.Sprintf("new-%d", i%50)), []byte(fmt.Sprint(round, i)), 0o644)
				default:
					_ = os.WriteFile(name, []byte(fmt.Sprintf("%08d", i)), 0o644)
				}
			}
		})
		f.warm()
		f.warm()
		close(stop)
		agent.Wait()
		want := listing(t, f.work)
		c, err := f.brief()
		must(t, err)
		must(t, f.repo.Verify(context.Background(), c.target()))
		f.write("later", fmt.Sprint(round))
		f.checkpoint()
		f.restore(c, ScopeBoth)
		sameListing(t, "worktree", want, listing(t, f.work))
		f.last = c
	}
}

// TestWarmSurvivesARestart: the next process continues with what Warm stored, or as if
// nothing had been stored.
func TestWarmSurvivesARestart(t *testing.T) {
	f := cloned(t, makeOrigin(t, 20))
	f.checkpoint()
	for i := range 300 {
		f.write(fmt.Sprintf("new/%d", i), fmt.Sprint(i))
	}
	f.warm()
	f.reopen()
	f.write("new/7", "seven")
	want := listing(t, f.work)
	c, err := f.brief()
	must(t, err)
	if c.FilesChanged != 300 {
		t.Errorf("the checkpoint has %d changed files, want 300", c.FilesChanged)
	}
	f.write("new/8", "eight")
	f.checkpoint()
	f.restore(c, ScopeBoth)
	sameListing(t, "worktree", want, listing(t, f.work))
}

func TestWarmCallsThrottleBetweenFilesAndWithinLargeOnes(t *testing.T) {
	f := cloned(t, makeOrigin(t, 10))
	f.checkpoint()
	var calls atomic.Int64
	warm := func() int64 {
		before := calls.Load()
		_, err := f.repo.Warm(context.Background(), f.last.Code, func() { calls.Add(1) })
		must(t, err)
		f.checkpoint()
		return calls.Load() - before
	}
	for i := range 100 {
		f.write(fmt.Sprintf("new/%d", i), fmt.Sprint("new ", i))
	}
	if n := warm(); n < 200 {
		t.Errorf("throttle was called %d times while 100 files were read and stored, want at least 200", n)
	}
	f.write(".git/large", strings.Repeat("x", 16<<20))
	if n := warm(); n < 32 {
		t.Errorf("throttle was called %d times while 16 MiB were read and stored, want at least 32", n)
	}
	f.write(".git/large", strings.Repeat("y", 16<<20))
	before := calls.Load()
	f.checkpoint()
	if n := calls.Load() - before; n != 0 {
		t.Errorf("throttle was called %d times during a checkpoint, for which the agent is stopped", n)
	}
}

// Who compares the files of the present learns which folders are nested repositories.
func TestWarmListsNestedRepositories(t *testing.T) {
	f := cloned(t, makeOrigin(t, 2))
	for _, folder := range []string{"tools/100%", "tools/100%/inner", "line\nbreak"} {
		f.write(folder+"/file", "n")
		f.write(folder+"/.git/HEAD", "ref: refs/heads/main\n")
	}
	commit, err := f.repo.Warm(context.Background(), "", func() {})
	must(t, err)
	want := []string{"line\nbreak", "tools/100%", "tools/100%/inner"}
	if got := gitstoreapi.NestedIn(gitIn(t, f.config().GitDir, "log", "-1", "--format=%B", commit)); !slices.Equal(got, want) {
		t.Errorf("the commit lists %q, want %q", got, want)
	}
	f.checkpoint()
	var got []string
	for name := range strings.SplitSeq(gitIn(t, f.config().GitDir, "ls-tree", "-r", "-z", "--name-only", f.last.State+":nested"), "\x00") {
		if folder, ok := gitstoreapi.NestedFolder(name); ok {
			got = append(got, folder)
		}
	}
	if slices.Sort(got); !slices.Equal(got, want) {
		t.Errorf("the state commit has %q, want %q", got, want)
	}
}
