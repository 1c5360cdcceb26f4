package worktree

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"testing"
	"time"
)

// The benchmarks measure a durable checkpoint, a restore and a diff on a worktree
// of 10,000 files, of which 0, 10 or 500 change each time. In addition to the time,
// each reports its median and the ratio to the median of git status, with its
// untracked cache, on the same tree in the same run.

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

// change writes n files, with different content in each round.
func (f *fixture) change(n, round int) {
	for i := range n {
		f.write(fileName((i*benchFiles/n+round)%benchFiles), fmt.Sprintf("changed in round %d\n%d\n", round, i))
	}
}

// timings are the measured times and those of git status. The two are measured
// alternately, so that both run under the same load.
type timings struct {
	dir         string
	own, status []time.Duration
}

// measure times git status, then run.
func (m *timings) measure(b *testing.B, run func()) {
	b.Helper()
	b.StopTimer()
	cmd := exec.Command("git", "status", "--porcelain")
	cmd.Dir = m.dir
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + m.dir}
	begin := time.Now()
	must(b, cmd.Run())
	m.status = append(m.status, time.Since(begin))
	b.StartTimer()
	begin = time.Now()
	run()
	m.own = append(m.own, time.Since(begin))
}

func median(times []time.Duration) time.Duration {
	slices.Sort(times)
	return times[len(times)/2]
}

// report adds the medians and their ratio to the benchmark's results.
func (m *timings) report(b *testing.B) {
	own, status := median(m.own), median(m.status)
	b.ReportMetric(float64(own.Microseconds())/1000, "p50-ms")
	b.ReportMetric(float64(status.Microseconds())/1000, "git-status-ms")
	b.ReportMetric(float64(own)/float64(status), "x-git-status")
}

func eachChangeCount(b *testing.B, f *fixture, run func(b *testing.B, m *timings, n int)) {
	for _, n := range []int{0, 10, 500} {
		b.Run(fmt.Sprintf("changed=%d", n), func(b *testing.B) {
			m := &timings{dir: f.work}
			run(b, m, n)
			m.report(b)
		})
	}
}

func BenchmarkCheckpoint(b *testing.B) {
	f := benchTree(b)
	round := 0
	eachChangeCount(b, f, func(b *testing.B, m *timings, n int) {
		for b.Loop() {
			b.StopTimer()
			round++
			f.change(n, round)
			if _, err := f.repo.Maintain(context.Background()); err != nil {
				b.Fatal(err)
			}
			m.measure(b, func() { f.checkpoint() })
		}
	})
}

func BenchmarkRestore(b *testing.B) {
	f := benchTree(b)
	round := 0
	eachChangeCount(b, f, func(b *testing.B, m *timings, n int) {
		one := f.last
		round++
		f.change(n, round)
		two := f.checkpoint()
		for i := 0; b.Loop(); i++ {
			to := one
			if i%2 == 1 {
				to = two
			}
			m.measure(b, func() { f.restore(to, ScopeBoth) })
		}
		f.restore(two, ScopeBoth)
	})
}

// BenchmarkClone measures a clone with 10,000 files.
func BenchmarkClone(b *testing.B) {
	origin := makeOrigin(b, benchFiles)
	gitIn(b, origin, "repack", "-a", "-d", "-q")
	for b.Loop() {
		cloned(b, origin)
	}
}

// freezeFiles is the number of files of a large project, including its dependencies.
const freezeFiles = 60_000

// BenchmarkFreeze measures how long an agent is stopped for the first checkpoint of
// a worktree of 60,000 untracked files, of which 20 changed while the rest was
// stored in advance. ahead-ms is the time that storing took, with the agent running.
func BenchmarkFreeze(b *testing.B) {
	m := &timings{}
	var ahead []time.Duration
	for b.Loop() {
		b.StopTimer()
		f := cloned(b, makeOrigin(b, 10))
		m.dir = f.work
		for i := range freezeFiles {
			f.write("deps/"+fileName(i), fmt.Sprintf("file %d\n%s", i, "some line of text\n"))
		}
		begin := time.Now()
		f.warm()
		ahead = append(ahead, time.Since(begin))
		for i := range 20 {
			f.write("deps/"+fileName(i*freezeFiles/20), "changed\n")
		}
		m.measure(b, func() {
			if _, err := f.brief(); err != nil {
				b.Fatal(err)
			}
		})
		b.StopTimer()
		must(b, os.RemoveAll(f.work))
		b.StartTimer()
	}
	m.report(b)
	b.ReportMetric(float64(median(ahead).Microseconds())/1000, "ahead-ms")
	b.ReportMetric(freezeFiles, "files")
}
