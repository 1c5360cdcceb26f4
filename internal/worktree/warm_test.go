package worktree

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
)

// brief takes the next checkpoint, unless there is too much to read.
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
	must(f.t, f.repo.Warm(context.Background(), f.last.Code, func() {}))
}

func TestABriefCheckpointRefusesWhatIsNotReadInAMoment(t *testing.T) {
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
	// What it tells is the same as of one that read everything by itself.
	if c.FilesChanged != briefLimit.files+2 || c.LinesAdded != int64(2*briefLimit.files+2+1) || c.LinesRemoved != 21 {
		t.Errorf("%d files, +%d -%d", c.FilesChanged, c.LinesAdded, c.LinesRemoved)
	}
	must(t, f.repo.Verify(context.Background(), c.target()))
	for i := range 33 {
		f.write(fmt.Sprintf("big/%d", i), strings.Repeat("x", int(briefLimit.bytes)/32))
	}
	_, err = f.brief()
	wantReason(t, err, TooMuchChanged)
}

func TestAFirstBriefCheckpointIsWarmedUp(t *testing.T) {
	f := newFixture(t)
	if !f.repo.Cold() {
		t.Error("nothing is known yet")
	}
	origin := makeOrigin(t, 10)
	f = cloned(t, origin)
	must(t, os.Remove(f.repo.own("stat-cache")))
	f.repo.cache = snapshot{}
	_, err := f.brief()
	wantReason(t, err, TooMuchChanged)
	f.warm()
	if f.repo.Cold() {
		t.Error("all is known")
	}
	if _, err = f.brief(); err != nil {
		t.Error(err)
	}
}

// TestWhatChangesAfterWarmingIsInTheCheckpoint: a checkpoint is of the files as
// they are when it is taken, whatever was stored before.
func TestWhatChangesAfterWarmingIsInTheCheckpoint(t *testing.T) {
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
	plain := f.checkpointFrom(c.Parent)
	if plain.Tree != c.Tree || plain.FilesChanged != c.FilesChanged || plain.LinesAdded != c.LinesAdded {
		t.Errorf("warmed %+v, plain %+v", c, plain)
	}
	f.write("same-size", "cccc\n")
	must(t, os.RemoveAll(filepath.Join(f.work, "was-file")))
	f.checkpoint()
	f.restore(c, ScopeBoth)
	sameListing(t, "worktree", want, listing(t, f.work))
}

// checkpointFrom takes the next checkpoint without what was stored before.
func (f *fixture) checkpointFrom(parent string) Checkpoint {
	f.t.Helper()
	f.repo.cache, f.repo.base = snapshot{}, baseline{}
	f.last.Code = parent
	return f.checkpoint()
}

// TestFilesThatChangeWhileWarming: an agent writes all the time while its files
// are stored, and is stopped for the checkpoint alone.
func TestFilesThatChangeWhileWarming(t *testing.T) {
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

// TestWhatWasStoredAheadSurvivesAKill: the next process goes on as if nothing
// had been stored ahead, or with it.
func TestWhatWasStoredAheadSurvivesAKill(t *testing.T) {
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
		t.Errorf("%d files changed", c.FilesChanged)
	}
	f.write("new/8", "eight")
	f.checkpoint()
	f.restore(c, ScopeBoth)
	sameListing(t, "worktree", want, listing(t, f.work))
}

func TestWarmRestsBetweenFilesAndWithinLargeOnes(t *testing.T) {
	f := cloned(t, makeOrigin(t, 10))
	f.checkpoint()
	var rests atomic.Int64
	rested := func() int64 {
		before := rests.Load()
		must(t, f.repo.Warm(context.Background(), f.last.Code, func() { rests.Add(1) }))
		f.checkpoint()
		return rests.Load() - before
	}
	for i := range 100 {
		f.write(fmt.Sprintf("new/%d", i), fmt.Sprint("new ", i))
	}
	if n := rested(); n < 200 {
		t.Errorf("%d rests while 100 files were read and stored", n)
	}
	f.write(".git/large", strings.Repeat("x", 16<<20))
	if n := rested(); n < 32 {
		t.Errorf("%d rests while 16 MiB were read and stored", n)
	}
	f.write(".git/large", strings.Repeat("y", 16<<20))
	before := rests.Load()
	f.checkpoint()
	if n := rests.Load() - before; n != 0 {
		t.Errorf("%d rests during a checkpoint, for which the agent is stopped", n)
	}
}
