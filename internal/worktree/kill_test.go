package worktree

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// The kill tests run the package in a separate process and kill it with SIGKILL at
// random times. CLEW_SOAK=1 runs the long form.

func TestMain(m *testing.M) {
	if job := os.Getenv("CLEW_WORKTREE_JOB"); job != "" {
		if err := runJob(job); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// job is the task of the other process.
type job struct {
	Config  Config
	Restore *RestoreRequest
	Take    *CheckpointRequest // repeatedly, with increasing numbers, until killed
	Clone   *CloneRequest
}

func runJob(text string) error {
	var j job
	if err := json.Unmarshal([]byte(text), &j); err != nil {
		return err
	}
	ctx := context.Background()
	r, err := Open(ctx, j.Config)
	if err != nil {
		return err
	}
	r.local = true
	fmt.Println("ready")
	switch {
	case j.Restore != nil:
		_, err = r.Restore(ctx, *j.Restore)
	case j.Clone != nil:
		_, err = r.Clone(ctx, *j.Clone)
	case j.Take != nil:
		for req := *j.Take; err == nil; req.Number++ {
			name := filepath.Join(j.Config.Worktree, fileName(int(req.Number%50)))
			if err = os.WriteFile(name, []byte(fmt.Sprintf("checkpoint %d\n", req.Number)), 0o644); err != nil {
				break
			}
			var c Checkpoint
			if c, err = r.Checkpoint(ctx, req); err == nil {
				fmt.Printf("%d %s %s\n", req.Number, c.Code, c.State) // the acknowledgement
				req.Parent = c.Code
			}
			if req.Number%7 == 0 && err == nil {
				_, err = r.Maintain(ctx)
			}
		}
	}
	if err != nil {
		return err
	}
	fmt.Println("done")
	return nil
}

// doneWatch records the output of a job, and when the job printed that it is done.
type doneWatch struct {
	strings.Builder
	at time.Time
}

func (d *doneWatch) Write(p []byte) (int, error) {
	if strings.Contains(string(p), "done") {
		d.at = time.Now()
	}
	return d.Builder.Write(p)
}

// runAndKill runs a job, kills it after a delay, and returns its output and, if it
// completed, how long it took.
func runAndKill(t *testing.T, j job, delay time.Duration) (out string, took time.Duration) {
	t.Helper()
	text, err := json.Marshal(j)
	must(t, err)
	exe, err := os.Executable()
	must(t, err)
	cmd := exec.Command(exe)
	cmd.Env = append(os.Environ(), "CLEW_WORKTREE_JOB="+string(text))
	var errs strings.Builder
	var watch doneWatch
	cmd.Stdout, cmd.Stderr = &watch, &errs
	begin := time.Now()
	must(t, cmd.Start())
	timer := time.AfterFunc(delay, func() { _ = cmd.Process.Signal(syscall.SIGKILL) })
	err = cmd.Wait()
	timer.Stop()
	if status, _ := cmd.ProcessState.Sys().(syscall.WaitStatus); err != nil && !status.Signaled() {
		t.Fatalf("the job failed before it was killed: %v\n%s", err, errs.String())
	}
	return watch.String(), watch.at.Sub(begin)
}

func soak() bool { return os.Getenv("CLEW_SOAK") != "" }

func TestKilledRestoreEndsExact(t *testing.T) {
	if testing.Short() {
		t.Skip("kills many processes: make test runs it")
	}
	rounds, changed := 10, 300
	if soak() {
		rounds, changed = 40, 2000
	}
	f := cloned(t, makeOrigin(t, changed+200))
	f.fillOddly()
	f.git("status")
	one, wantOne, homeOne := f.checkpoint(), listing(t, f.work), listing(t, f.home)
	statusOne := f.git("status", "--porcelain=v2", "--branch")
	f.disturb()
	for i := range changed {
		f.write(fileName(i), fmt.Sprintf("changed %d\n", i))
	}
	f.git("status")
	two, wantTwo, homeTwo := f.checkpoint(), listing(t, f.work), listing(t, f.home)
	statusTwo := f.git("status", "--porcelain=v2", "--branch")
	must(t, f.repo.Close())

	// The duration of a complete restore bounds the delays before a kill.
	whole := func(to Checkpoint) time.Duration {
		out, took := runAndKill(t, job{Config: f.config(), Restore: &RestoreRequest{Target: to.target()}}, time.Minute)
		if !strings.Contains(out, "done") {
			t.Fatal("a restore takes more than a minute")
		}
		return took
	}
	// A restore that completes before it is killed shows that the machine is faster now.
	took := (whole(one) + whole(two)) / 2
	killed := 0
	for i := range rounds {
		to, want, home, status := one, wantOne, homeOne, statusOne
		if i%2 == 1 {
			to, want, home, status = two, wantTwo, homeTwo, statusTwo
		}
		for kills := 1 + rand.IntN(2); kills > 0; {
			out, ended := runAndKill(t, job{Config: f.config(), Restore: &RestoreRequest{Target: to.target()}}, time.Duration(rand.Int64N(int64(took))))
			if strings.Contains(out, "done") {
				took = min(took, ended)
				continue
			}
			kills--
			killed++
		}
		whole(to)
		sameListing(t, fmt.Sprintf("round %d worktree", i), want, listing(t, f.work))
		sameListing(t, fmt.Sprintf("round %d home", i), home, listing(t, f.home))
		if got := f.git("status", "--porcelain=v2", "--branch"); got != status {
			t.Fatalf("round %d: git status prints\n%s\nwant\n%s", i, got, status)
		}
		// git status has refreshed the index; restore it.
		whole(to)
	}
	t.Logf("%d restores killed, a complete one takes %v", killed, took)
	f.git("fsck", "--full")
}

func TestKilledCheckpointsLoseNothing(t *testing.T) {
	if testing.Short() {
		t.Skip("kills many processes: make test runs it")
	}
	rounds := 8
	if soak() {
		rounds = 60
	}
	f := cloned(t, makeOrigin(t, 200))
	f.checkpoint()
	must(t, f.repo.Close())
	type taken struct{ number, code, state string }
	var all []taken
	next, parent := int64(1), f.last.Code
	for round := 0; round < rounds || len(all) < rounds; round++ {
		cfg := f.config()
		cfg.MaxPacks = 5
		take := &CheckpointRequest{TaskUID: "uid-2", Number: next, Parent: parent, Message: "killed\n"}
		out, _ := runAndKill(t, job{Config: cfg, Take: take}, time.Duration(50+rand.IntN(400))*time.Millisecond)
		for line := range strings.Lines(out) {
			if fields := strings.Fields(line); strings.HasSuffix(line, "\n") && len(fields) == 3 {
				all = append(all, taken{fields[0], fields[1], fields[2]})
				parent = fields[1]
				next++
			}
		}
	}
	f.open()
	ctx := context.Background()
	refs, err := f.repo.Refs(ctx, "refs/clew/uid-2/")
	must(t, err)
	for _, c := range all {
		if refs["refs/clew/uid-2/code/"+c.number] != c.code || refs["refs/clew/uid-2/state/"+c.number] != c.state {
			t.Fatalf("checkpoint %s was acknowledged, but its refs are %v", c.number, refs)
		}
		must(t, f.repo.Verify(ctx, Target{Code: c.code, State: c.state}))
	}
	for _, c := range []taken{all[0], all[len(all)/2], all[len(all)-1]} {
		_, err := f.repo.Restore(ctx, RestoreRequest{Target: Target{Code: c.code, State: c.state}})
		must(t, err)
		var n int
		fmt.Sscan(c.number, &n)
		got, err := os.ReadFile(filepath.Join(f.work, fileName(n%50)))
		must(t, err)
		if string(got) != fmt.Sprintf("checkpoint %d\n", n) {
			t.Errorf("checkpoint %d restored the content %q", n, got)
		}
	}
	left, _ := filepath.Glob(filepath.Join(f.config().GitDir, "objects/pack/tmp_*"))
	if len(left) > 0 {
		t.Errorf("Open left temporary files of killed processes: %v", left)
	}
	t.Logf("%d checkpoints acknowledged in %d killed processes", len(all), rounds)
}

func TestKilledCloneStartsOver(t *testing.T) {
	origin := makeOrigin(t, 300)
	req := CloneRequest{URL: "file://" + origin}
	want := listing(t, cloned(t, origin).work)
	delete(want, ".git/index") // contains times
	delete(want, ".git/logs/HEAD")
	delete(want, ".git/logs/refs/heads/trunk")
	for range 6 {
		f := newFixture(t)
		must(t, f.repo.Close())
		for range 2 {
			runAndKill(t, job{Config: f.config(), Clone: &req}, time.Duration(rand.IntN(150))*time.Millisecond)
		}
		f.open()
		_, err := f.repo.Clone(context.Background(), req)
		must(t, err)
		if got := f.git("status", "--porcelain"); got != "" {
			t.Errorf("git status prints %q, want nothing", got)
		}
		got := listing(t, f.work)
		delete(got, ".git/index")
		delete(got, ".git/logs/HEAD")
		delete(got, ".git/logs/refs/heads/trunk")
		for _, m := range []map[string]string{want, got} {
			delete(m, ".git/config") // contains the URL of the origin
		}
		sameListing(t, "clone", want, got)
		f.git("fsck", "--full")
	}
}
