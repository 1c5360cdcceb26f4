package prepare_test

import (
	"context"
	"os"
	"testing"

	"github.com/clew-dev/clew/internal/daemon/daemontest"
	"github.com/clew-dev/clew/internal/daemon/prepare"
	"github.com/clew-dev/clew/internal/daemonapi"
	daemonv1 "github.com/clew-dev/clew/internal/daemonapi/v1"
	"github.com/clew-dev/clew/internal/worktree"
)

// crash is the value with which the wrapped repository and server panic.
type crash struct{}

// crashing counts prepare's calls of repository and server, and panics before or after the
// chosen one.
type crashing struct {
	prepare.Repo
	prepare.Server
	at, step int
	when     string // stops at the step with this name instead
	log      []string
	// fine counts what only reads, too; each is called at every step.
	fine bool
	each func()
}

func (c *crashing) tick(what string) {
	c.log = append(c.log, what)
	if c.each != nil {
		c.each()
	}
	if c.step++; c.step == c.at || what == c.when {
		panic(crash{})
	}
}

// look is tick for what only reads.
func (c *crashing) look(what string) {
	if c.fine {
		c.tick(what)
	}
}

func (c *crashing) Verify(ctx context.Context, t worktree.Target) error {
	c.look("verify")
	return c.Repo.Verify(ctx, t)
}

func (c *crashing) CheckPaths(ctx context.Context, r worktree.RestoreRequest) error {
	c.look("check paths")
	return c.Repo.CheckPaths(ctx, r)
}

func (c *crashing) Drift(ctx context.Context, t worktree.Target) (worktree.Drift, error) {
	c.look("drift")
	return c.Repo.Drift(ctx, t)
}

func (c *crashing) Checkpoint(ctx context.Context, r worktree.CheckpointRequest) (worktree.Checkpoint, error) {
	c.tick("before checkpoint")
	defer c.tick("after checkpoint")
	return c.Repo.Checkpoint(ctx, r)
}

func (c *crashing) Push(ctx context.Context, m worktree.Remote, u ...worktree.RefUpdate) error {
	c.tick("before push")
	defer c.tick("after push")
	return c.Repo.Push(ctx, m, u...)
}

func (c *crashing) Restore(ctx context.Context, r worktree.RestoreRequest) (worktree.RestoreResult, error) {
	c.tick("before restore")
	defer c.tick("after restore")
	return c.Repo.Restore(ctx, r)
}

func (c *crashing) ClearSession(ctx context.Context) (worktree.RestoreResult, error) {
	c.tick("before clearing")
	defer c.tick("after clearing")
	return c.Repo.ClearSession(ctx)
}

func (c *crashing) Clone(ctx context.Context, r worktree.CloneRequest) (worktree.Origin, error) {
	c.tick("before clone")
	defer c.tick("after clone")
	return c.Repo.Clone(ctx, r)
}

func (c *crashing) Fetch(ctx context.Context, m worktree.Remote, refs ...string) error {
	c.tick("before fetch")
	defer c.tick("after fetch")
	return c.Repo.Fetch(ctx, m, refs...)
}

func (c *crashing) Preserve(ctx context.Context, r worktree.PreserveRequest) (worktree.Preserved, error) {
	c.tick("before preserve")
	defer c.tick("after preserve")
	return c.Repo.Preserve(ctx, r)
}

func (c *crashing) StartBranch(ctx context.Context, name string, numbered bool) (string, error) {
	c.tick("before branch")
	defer c.tick("after branch")
	return c.Repo.StartBranch(ctx, name, numbered)
}

func (c *crashing) Begin(ctx context.Context) (*daemonv1.BeginResponse, error) {
	c.tick("begin")
	return c.Server.Begin(ctx)
}

func (c *crashing) Append(ctx context.Context, r []*daemonv1.Record) (int64, error) {
	c.tick("before append")
	defer c.tick("after append")
	for _, record := range r {
		if id := record.GetMove().GetOperationId(); id != "" {
			c.tick("before move " + id)
			defer c.tick("after move " + id)
		}
	}
	return c.Server.Append(ctx, r)
}

func (c *crashing) Conversation(ctx context.Context, each func(*daemonv1.ConversationEntry) error) error {
	c.tick("conversation")
	return c.Server.Conversation(ctx, each)
}

// snapshot is a repository and a server that replace those of prepare.
type snapshot interface {
	prepare.Repo
	prepare.Server
}

// run runs prepare until it panics; killed reports whether it did. outer is the wrapper
// that prepare uses, which ends up here.
func (c *crashing) run(ctx context.Context, cfg prepare.Config, outer snapshot) (r daemonapi.PrepareResult, killed bool) {
	c.Server = cfg.Server
	cfg.Server = outer
	cfg.Wrap(func(r prepare.Repo) prepare.Repo { c.Repo = r; return outer })
	defer func() {
		if e := recover(); e != nil {
			if _, ok := e.(crash); !ok {
				panic(e)
			}
			killed = true
		}
	}()
	return prepare.Run(ctx, cfg), false
}

// prepareCrashing runs prepare until c kills it, and returns where; done reports that
// prepare reached its end.
func prepareCrashing(t *testing.T, w *daemontest.World, n int64, op *daemonapi.Operation, c *crashing) (where string, done bool) {
	t.Helper()
	if _, killed := c.run(t.Context(), w.PrepareConfig(n, op), c); killed {
		return c.log[len(c.log)-1], false
	}
	return "", true
}

// stride is the number of steps between two kills: ordinary, or 1 with CLEW_SOAK=1.
func stride(ordinary int) int {
	if os.Getenv("CLEW_SOAK") == "1" {
		return 1
	}
	return ordinary
}
