package checkpoint

import (
	"context"

	"github.com/clew-dev/clew/internal/refname"
	"github.com/clew-dev/clew/internal/worktree"
)

// StoreLive stores the worktree's files as they are while the agent works, and returns the
// commit that holds them. It calls rest again and again, and continues when rest returns.
// Nothing else is taken or recorded.
func (t *Taker) StoreLive(ctx context.Context, rest func()) (commit string, err error) {
	t.taking.Lock()
	defer t.taking.Unlock()
	return t.Repo.Warm(ctx, t.Journal.State().Parent, rest)
}

// PushLive pushes a commit of StoreLive to the gitstore, in place of the one before. It
// waits for no push of a checkpoint: whoever asked is waiting.
func (t *Taker) PushLive(ctx context.Context, commit string) error {
	remote, err := t.Remote()
	if err != nil {
		return err
	}
	return GitError(t.Repo.Push(ctx, remote, worktree.RefUpdate{Source: commit, Name: refname.Live(t.TaskUID), Force: true}))
}
