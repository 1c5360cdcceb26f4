package worktree

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"
)

// The benchmarks measure, on a worktree of 10,000 files of which 0, 10 or 500
// change each time, a durable checkpoint, a restore and a diff. Beside the time
// each reports its median and how that compares with the median of git status,
// with its untracked cache, on the same tree in the same run.

const benchFiles = 10_000

// benchTree is a clone of a repository of 10,000 files.
func benchTree(b *testing.B) *fixture {
	b.Helper()
	f := cloned(b, makeOrigin(b, benchFiles))
	f.git("config", "core.untrackedCache", "true")
	f.git("update-index", "--untracked-cache")
	f.checkpoint()
	f.git("status")
	f.checkpoint()
	return f
}

// change writes n files, other content each time.
func (f *fixture) change(n, round int) {
	for i := range n {
		f.write(fileName((i*benchFiles/n+round)%benchFiles), fmt.Sprintf("changed in round %d\n%d\n", round, i))
	}
}

// statusFloor is the median time of git status on the tree as it stands.
func statusFloor(b *testing.B, dir string) time.Duration {
	b.Helper()
	var times []time.Duration
	for range 15 {
		cmd := exec.Command("git", "status", "--porcelain")
		cmd.Dir = dir
		cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + dir}
		begin := time.Now()
		must(b, cmd.Run())
		times = append(times, time.Since(begin))
	}
	return median(times)
}

func median(times []time.Duration) time.Duration {
	slices.Sort(times)
	return times[len(times)/2]
}

// report adds median and ratio to a benchmark's line.
func report(b *testing.B, times []time.Duration, floor time.Duration) {
	p50 := median(times)
	b.ReportMetric(float64(p50.Microseconds())/1000, "p50-ms")
	b.ReportMetric(float64(floor.Microseconds())/1000, "git-status-ms")
	b.ReportMetric(float64(p50)/float64(floor), "x-git-status")
}

func eachChangeCount(b *testing.B, f *fixture, run func(b *testing.B, n int)) {
	for _, n := range []int{0, 10, 500} {
		b.Run(fmt.Sprintf("changed=%d", n), func(b *testing.B) { run(b, n) })
	}
}

func BenchmarkCheckpoint(b *testing.B) {
	f := benchTree(b)
	round := 0
	eachChangeCount(b, f, func(b *testing.B, n int) {
		var times []time.Duration
		for b.Loop() {
			b.StopTimer()
			round++
			f.change(n, round)
			if _, err := f.repo.Maintain(context.Background()); err != nil {
				b.Fatal(err)
			}
			b.StartTimer()
			begin := time.Now()
			f.checkpoint()
			times = append(times, time.Since(begin))
		}
		report(b, times, statusFloor(b, f.work))
	})
}

func BenchmarkRestore(b *testing.B) {
	f := benchTree(b)
	round := 0
	eachChangeCount(b, f, func(b *testing.B, n int) {
		var times []time.Duration
		one := f.last
		round++
		f.change(n, round)
		two := f.checkpoint()
		for i := 0; b.Loop(); i++ {
			to := one
			if i%2 == 1 {
				to = two
			}
			begin := time.Now()
			f.restore(to, ScopeBoth)
			times = append(times, time.Since(begin))
		}
		f.restore(two, ScopeBoth)
		report(b, times, statusFloor(b, f.work))
	})
}

func BenchmarkDiff(b *testing.B) {
	f := benchTree(b)
	round := 0
	eachChangeCount(b, f, func(b *testing.B, n int) {
		one := f.last
		round++
		f.change(n, round)
		two := f.checkpoint()
		var times []time.Duration
		for b.Loop() {
			begin := time.Now()
			d, err := f.repo.Diff(context.Background(), one.Code, two.Code)
			if err != nil || d.FilesChanged != n {
				b.Fatal(err, d.FilesChanged)
			}
			times = append(times, time.Since(begin))
		}
		report(b, times, statusFloor(b, f.work))
	})
}

// BenchmarkClone measures how long a worktree of 10,000 files takes to lay out.
func BenchmarkClone(b *testing.B) {
	origin := makeOrigin(b, benchFiles)
	for b.Loop() {
		cloned(b, origin)
	}
	_ = filepath.Join
}
