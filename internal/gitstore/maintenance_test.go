package gitstore

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/go-logr/logr"
)

func TestMaintenanceMergesPacksAndRefsAndLosesNothing(t *testing.T) {
	server := newTestServer(t, Limits{})
	maintainer := NewMaintainer(server.handler, time.Hour, 5, logr.Discard())
	repo := server.store.repository("team", repository)
	task := server.client(taskToken("fix", 1))
	var commits []string
	for number := 1; number <= 8; number++ {
		commits = append(commits, task.commit("a", strings.Repeat("x", number)))
		task.push("HEAD:" + codeRef("fix", number))
	}
	if packs, err := countPacks(repo); err != nil || packs != 8 {
		t.Fatalf("%d packs, %v; want one for each push", packs, err)
	}
	if pushed := maintainer.takeQueued(); len(pushed) != 1 {
		t.Fatalf("%d repositories are queued after the pushes, want 1: %v", len(pushed), pushed)
	}
	maintainer.maintain(t.Context(), repo)
	if packs, err := countPacks(repo); err != nil || packs > 5 {
		t.Errorf("%d packs are left, %v; want 5 at most", packs, err)
	}
	if refs, err := countLooseRefs(repo, 100); err != nil || refs != 0 {
		t.Errorf("%d loose refs are left, %v; want none", refs, err)
	}
	for i, commit := range commits {
		if got := server.remoteRef(codeRef("fix", i+1)); got != commit {
			t.Errorf("%s is %q, want %s", codeRef("fix", i+1), got, commit)
		}
	}
	fsck(t, repo.Path)
	// Pushes and fetches still work.
	task.commit("a", "after")
	task.push("HEAD:" + codeRef("fix", 9))
	fresh := server.client(readerToken)
	fresh.git("fetch", "--quiet", fresh.url, "refs/clew/*:refs/clew/*")
}

func TestMaintenanceDuringPushes(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds: make test runs it")
	}
	server := newTestServer(t, Limits{})
	maintainer := NewMaintainer(server.handler, time.Hour, 1, logr.Discard())
	repo := server.store.repository("team", repository)
	task := server.client(taskToken("fix", 1))
	task.commit("a", "0")
	task.push("HEAD:" + codeRef("fix", 1))
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			if err := server.store.compact(ctx, repo); err != nil && ctx.Err() == nil {
				t.Errorf("maintenance: %v", err)
			}
			once, stop := context.WithTimeout(ctx, lockPoll)
			maintainer.reap(once, repo)
			stop()
		}
	}()
	for number := 2; number <= 15; number++ {
		task.commit("a", strings.Repeat("y", number))
		task.push("HEAD:"+codeRef("fix", number), "+HEAD:refs/heads/clew/fix/latest")
	}
	cancel()
	<-done
	fsck(t, repo.Path)
}

func TestStartRemovesWhatKilledProcessesLeft(t *testing.T) {
	server := newTestServer(t, Limits{})
	repo := server.store.repository("team", repository)
	task := server.client(taskToken("fix", 1))
	commit := task.commit("a", "one")
	task.push(commit + ":" + codeRef("fix", 1))
	stale := []string{
		"objects/tmp_objdir-incoming-Ab12/pack/tmp_pack_x", "objects/pack/tmp_pack_x", "objects/pack/tmp_idx_x",
		"objects/pack/.tmp-12-pack-ab.pack", "objects/pack/pack-ab.keep", "objects/pack/pack-ab.pack", "objects/ab/tmp_obj_x",
		"packed-refs.lock", "packed-refs.new", "config.lock", "refs/clew/uid-fix/code/2.lock", "objects/info/commit-graphs/commit-graph-chain.lock",
	}
	for _, name := range stale {
		path := filepath.Join(repo.Path, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte("x"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	unfinished := filepath.Join(server.store.namespace("team"), ".tmp-123")
	if err := os.MkdirAll(unfinished, 0o755); err != nil {
		t.Fatal(err)
	}
	old := time.Now().Add(-2 * abandonedAfter)
	if err := os.Chtimes(unfinished, old, old); err != nil {
		t.Fatal(err)
	}

	// Not while an orphan of the killed process still uses the repository.
	orphan, err := repo.use(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	short, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if _, err := repo.reap(short); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("reap during use by a running process returned %v, want DeadlineExceeded", err)
	}
	if err := orphan.Close(); err != nil {
		t.Fatal(err)
	}
	if err := NewMaintainer(server.handler, time.Hour, 0, logr.Discard()).Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, path := range append(stale, "../.tmp-123") {
		if _, err := os.Lstat(filepath.Join(repo.Path, path)); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s is still there (%v)", path, err)
		}
	}
	task.push(commit + ":" + codeRef("fix", 2))
	fsck(t, repo.Path)
	free, err := openLocked(t.Context(), repo.useLock(), syscall.LOCK_EX)
	if err != nil {
		t.Fatal(err)
	}
	if err := free.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestOpenRefusesAHookThatDoesNotRun(t *testing.T) {
	for name, hook := range map[string][]string{
		"relative":   {"gitstore", "hook"},
		"missing":    {"/nonexistent/gitstore"},
		"other":      {"/bin/true"},
		"none given": nil,
	} {
		if _, err := Open(t.Context(), t.TempDir(), 0, hook); err == nil || !strings.Contains(err.Error(), "hook") {
			t.Errorf("%s: Open returned %v, want an error about the hook", name, err)
		}
	}
}
