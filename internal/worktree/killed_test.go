package worktree

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/onsi/gomega"
)

// interruptedGit returns a git whose n-th process, counted from 1, writes half of its output
// and then runs end, a line of shell. ended reports whether that process has got there.
func interruptedGit(t *testing.T, n int, end string) (git string, ended func() bool) {
	t.Helper()
	folder := t.TempDir()
	script := fmt.Sprintf(`#!/bin/sh
count=%[1]s/count; echo x >> $count
[ "$(wc -l < $count)" = %[2]d ] || exec git "$@"
case "$*" in
*fast-import*) ;; # it responds while it reads
*) git "$@" > %[1]s/output; head -c $(($(wc -c < %[1]s/output) / 2)) %[1]s/output ;;
esac
touch %[1]s/ended
%[3]s
`, folder, n, end)
	git = filepath.Join(folder, "git")
	// Written by another process: if this one had the file open for writing, a child that
	// another test starts at that moment would inherit it, and the file could not be executed.
	write := exec.Command("/bin/sh", "-c", `cat > "$0" && chmod +x "$0"`, git)
	write.Stdin = strings.NewReader(script)
	if err := write.Run(); err != nil {
		t.Fatal(err)
	}
	return git, func() bool {
		_, err := os.Stat(filepath.Join(folder, "ended"))
		return err == nil
	}
}

// TestAnInterruptedGitDoesNotCondemnACheckpoint: git is killed when memory is short or the
// pod is deleted. If the checkpoint counted as damaged because of that, it would be given up
// for good.
func TestAnInterruptedGitDoesNotCondemnACheckpoint(t *testing.T) {
	if testing.Short() {
		t.Skip("kills git many times: make test runs it")
	}
	t.Parallel()
	f := cloned(t, "")
	f.write("a", "one\n")
	f.write("b/c", strings.Repeat("two\n", 1000))
	first := f.checkpoint()
	f.write("a", "changed\n")
	second := f.checkpoint()
	target := first.target()
	for name, do := range map[string]func(context.Context, *Repo) error{
		"Restore": func(ctx context.Context, r *Repo) error {
			_, err := r.Restore(ctx, RestoreRequest{Target: target, Scope: ScopeBoth})
			return err
		},
		"Verify":        func(ctx context.Context, r *Repo) error { return r.Verify(ctx, target) },
		"ReadMeta":      func(ctx context.Context, r *Repo) error { _, err := r.ReadMeta(ctx, first.State); return err },
		"Drift":         func(ctx context.Context, r *Repo) error { _, err := r.Drift(ctx, target); return err },
		"CheckSendable": func(ctx context.Context, r *Repo) error { return r.CheckSendable(ctx, []string{second.Code}, nil) },
	} {
		eachInterruption(t, name, func(ctx context.Context, git string) error {
			f.repo.cfg.Git = git
			return do(ctx, f.repo)
		})
	}
}

// TestAnInterruptedGitDoesNotCondemnAnOrigin: nor does the clone omit anything.
func TestAnInterruptedGitDoesNotCondemnAnOrigin(t *testing.T) {
	if testing.Short() {
		t.Skip("kills git many times: make test runs it")
	}
	t.Parallel()
	origin := t.TempDir()
	gitIn(t, origin, "init", "-q", "-b", "main")
	gitIn(t, origin, "commit", "-q", "--allow-empty", "-m", "first")
	gitIn(t, origin, "tag", "-m", "annotated", "v1")
	gitIn(t, origin, "commit", "-q", "--allow-empty", "-m", "second")
	head := strings.TrimSpace(gitIn(t, origin, "rev-parse", "HEAD"))
	for name, ref := range map[string]string{"default branch": "", "branch": "main", "commit": head} {
		eachInterruption(t, "Clone "+name, func(ctx context.Context, git string) error {
			f := newFixture(t)
			f.repo.cfg.Git = git
			_, err := f.repo.Clone(ctx, CloneRequest{URL: "file://" + origin, Ref: ref})
			if err == nil && strings.TrimSpace(gitIn(t, f.work, "tag", "--list", "--format=%(objecttype)")) != "tag" {
				t.Error("the clone lacks the tag")
			}
			return err
		})
	}
}

// eachInterruption runs do repeatedly and interrupts its first git process, then its second
// and so on, until do starts no further one.
func eachInterruption(t *testing.T, name string, do func(ctx context.Context, git string) error) {
	t.Helper()
	for end, line := range map[string]string{
		"killed": "kill -KILL $$", "cancelled": "exec sleep 60", "not started": "exit 127",
		"out of memory":                     "echo 'fatal: Out of memory, malloc failed' >&2; exit 128",
		"out of memory, then another error": "echo 'error: Out of memory, malloc failed (tried to allocate 9 bytes)' >&2; echo 'fatal: unable to read 12' >&2; exit 128",
		"its child is killed":               "echo 'error: index-pack died of signal 9' >&2; echo 'fatal: fetch-pack: invalid index-pack output' >&2; exit 128",
	} {
		t.Run(name+" "+end, func(t *testing.T) {
			g := gomega.NewWithT(t)
			for n := 1; ; n++ {
				git, ended := interruptedGit(t, n, line)
				ctx, cancel := context.WithCancel(t.Context())
				var watch sync.WaitGroup
				if end == "cancelled" {
					watch.Go(func() { cancelWhen(ctx, cancel, ended) })
				}
				err := do(ctx, git)
				cancel()
				watch.Wait()
				if !ended() {
					g.Expect(err).NotTo(gomega.HaveOccurred())
					g.Expect(n).To(gomega.BeNumerically(">", 1))
					return
				}
				g.Expect(ReasonOf(err)).NotTo(gomega.BeElementOf(CheckpointCorrupted, CheckpointNotFound, RefNotFound, RepositoryNotFound), "process %d of git: %v", n, err)
			}
		})
	}
}

// cancelWhen cancels ctx once a condition on the file system holds.
func cancelWhen(ctx context.Context, cancel func(), condition func() bool) {
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for !condition() {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
	cancel()
}
