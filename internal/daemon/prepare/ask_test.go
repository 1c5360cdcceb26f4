package prepare_test

import (
	"context"
	"sync"
	"testing"

	"github.com/clew-dev/clew/internal/daemon/daemontest"
	"github.com/clew-dev/clew/internal/daemon/prepare"
	"github.com/clew-dev/clew/internal/daemonapi"
	daemonv1 "github.com/clew-dev/clew/internal/daemonapi/v1"
	"github.com/clew-dev/clew/internal/worktree"
)

// counting counts what a user waits for: requests to the two stores, and passes over all files
// or all objects.
type counting struct {
	prepare.Repo
	prepare.Server
	mu    sync.Mutex
	calls map[string]int
}

func (c *counting) count(what string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.calls[what]++
}

func (c *counting) CheckPush(ctx context.Context, m worktree.Remote) error {
	c.count("CheckPush")
	return c.Repo.CheckPush(ctx, m)
}

func (c *counting) RemoteRefs(ctx context.Context, m worktree.Remote, prefix string) (map[string]string, error) {
	c.count("RemoteRefs")
	return c.Repo.RemoteRefs(ctx, m, prefix)
}

func (c *counting) Push(ctx context.Context, m worktree.Remote, u ...worktree.RefUpdate) error {
	c.count("Push")
	return c.Repo.Push(ctx, m, u...)
}

func (c *counting) Heal(ctx context.Context, m worktree.Remote) (int, error) {
	c.count("Heal")
	return c.Repo.Heal(ctx, m)
}

func (c *counting) Verify(ctx context.Context, t worktree.Target) error {
	c.count("Verify")
	return c.Repo.Verify(ctx, t)
}

func (c *counting) Drift(ctx context.Context, t worktree.Target) (worktree.Drift, error) {
	c.count("Drift")
	return c.Repo.Drift(ctx, t)
}

func (c *counting) Begin(ctx context.Context) (*daemonv1.BeginResponse, error) {
	c.count("Begin")
	return c.Server.Begin(ctx)
}

// prepareCounting runs prepare and returns how often it did what a user waits for.
func prepareCounting(t *testing.T, w *daemontest.World, attempt int64, op *daemonapi.Operation) map[string]int {
	t.Helper()
	cfg := w.PrepareConfig(attempt, op)
	c := &counting{Server: cfg.Server, calls: map[string]int{}}
	cfg.Server = c
	cfg.Wrap(func(r prepare.Repo) prepare.Repo { c.Repo = r; return c })
	if r := prepare.Run(t.Context(), cfg); r.Reason != "Prepared" {
		t.Fatalf("the workspace is not prepared: %+v", r)
	}
	return c.calls
}

// TestWhatAUserWaitsForIsDoneOnce: the stores are asked once for what nobody else can change,
// files are compared once, and the checkpoint and the branch of a rewind are pushed at once.
// What the server knows is asked for only after something was sent.
func TestWhatAUserWaitsForIsDoneOnce(t *testing.T) {
	t.Parallel()
	w := three(t)

	expect(t, "a start", prepareCounting(t, w, 2, nil),
		map[string]int{"Begin": 2, "CheckPush": 1, "RemoteRefs": 1, "Heal": 1, "Drift": 1})
	expect(t, "a rewind", prepareCounting(t, w, 3, rewindTo(1, "Both", "Branch")),
		map[string]int{"Begin": 5, "CheckPush": 1, "RemoteRefs": 1, "Heal": 1, "Drift": 1, "Verify": 1, "Push": 1})

	fork := w.Fork("uid-fork", daemonapi.Source{TaskUID: w.UID, TaskName: "t", Checkpoint: 1, IncludeConversation: true, Branch: "other"})
	expect(t, "a fork", prepareCounting(t, fork, 1, nil), map[string]int{"Begin": 2, "CheckPush": 1})
}
