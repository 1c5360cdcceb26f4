package checkpoint

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/clew-dev/clew/internal/daemon/gatewayclient"
	"github.com/clew-dev/clew/internal/daemon/journal"
	"github.com/clew-dev/clew/internal/refname"
	"github.com/clew-dev/clew/internal/worktree"
)

// maxPushed is the maximum number of checkpoints in one push. After a long outage of the
// gitstore thousands may be pending: each slice that arrives is durable, and the refs of
// all would not fit on a command line.
const maxPushed = 100

// Push pushes every checkpoint that the gitstore lacks, oldest first, and records each as
// durable. A checkpoint that is refused permanently does not hold back those after it, and
// is tried again at the next call. One that is damaged on the volume is given up.
//
// branches are pushed with them, or by themselves if that is refused for good. They are given up
// only if the gitstore then still refuses them for good, and hold back no checkpoint.
func (t *Taker) Push(ctx context.Context, branches ...worktree.RefUpdate) error {
	t.pushing.Lock()
	defer t.pushing.Unlock()
	t.branches, t.apart = branches, false
	err := t.pushPending(ctx)
	if err == nil || isFinal(err) {
		if failed := t.pushBranches(ctx); failed != nil {
			err = failed
		}
	}
	if err != nil {
		t.compared = time.Time{}
	}
	return err
}

// isFinal reports whether an error is a refusal that trying again does not change.
func isFinal(err error) bool {
	var refused *RefusedError
	return errors.As(err, &refused) && !refused.Retryable
}

// pushBranches pushes the branches that no checkpoint took along.
func (t *Taker) pushBranches(ctx context.Context) error {
	if len(t.branches) == 0 {
		return nil
	}
	remote, err := t.Remote()
	if err != nil {
		return err
	}
	err = GitError(t.Repo.Push(ctx, remote, t.branches...))
	if isFinal(err) {
		t.Log.Error(err, "the gitstore refuses a branch; it is in the agent's repository", "branch", t.branches[0].Name)
		return nil
	}
	return err
}

func (t *Taker) pushPending(ctx context.Context) error {
	state := t.Journal.State()
	if len(state.Pending) == 0 {
		return nil
	}
	if t.mustCompare(&state) {
		if err := t.compare(ctx); err != nil {
			return err
		}
		state = t.Journal.State()
	}
	all := &RefusedError{}
	for slice := range slices.Chunk(state.Pending, maxPushed) {
		if err := t.pushSlice(ctx, slice, all); err != nil {
			return err
		}
	}
	if err := t.pushHeads(ctx, t.lacking); err != nil {
		return err
	}
	t.lacking = nil
	if all.Err == nil {
		return nil
	}
	return all
}

// pushSlice pushes some checkpoints. If that is refused permanently it pushes each by
// itself, and adds those that are refused to all.
func (t *Taker) pushSlice(ctx context.Context, points []journal.Point, all *RefusedError) error {
	err := t.push(ctx, points)
	var refused *RefusedError
	if !errors.As(err, &refused) || refused.Retryable {
		return err
	}
	for _, p := range points {
		if len(points) > 1 {
			refused, err = nil, t.push(ctx, []journal.Point{p})
		}
		if errors.As(err, &refused) && refused.Reason == string(worktree.CheckpointCorrupted) {
			err = t.giveUp(p, refused)
		} else if errors.As(err, &refused) {
			all.add(p.Number, refused)
			err = nil
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// push pushes some checkpoints, and the agent's own commits with them.
func (t *Taker) push(ctx context.Context, points []journal.Point) error {
	remote, err := t.Remote()
	if err != nil {
		return err
	}
	heads, err := t.storeHeads(ctx, points)
	if err != nil {
		return err
	}
	if err = t.pushRefs(ctx, remote, points, heads); err != nil {
		if len(t.branches) > 0 && !t.apart && isFinal(err) {
			t.apart = true
			return t.push(ctx, points)
		}
		if t.dropHeads(ctx, remote, heads, len(points) == 1, err) {
			return t.pushWithout(ctx, heads, points)
		}
		var refused *RefusedError
		if ctx.Err() == nil && !errors.As(err, &refused) && !errors.Is(err, gatewayclient.ErrFenced) {
			if lost := t.damaged(ctx, remote, points); lost != nil {
				return lost
			}
		}
		return err
	}
	return t.pushed(points)
}

// pushWithout is push once commits of the agent were left out. If the checkpoints are refused
// nevertheless, the commits were not to blame.
func (t *Taker) pushWithout(ctx context.Context, heads []string, points []journal.Point) error {
	err := t.push(ctx, points)
	var refused *RefusedError
	if errors.As(err, &refused) && !refused.Retryable {
		for _, id := range heads {
			delete(t.heads, id)
		}
	}
	return err
}

// pushRefs pushes the refs of some checkpoints and of some of the agent's commits.
func (t *Taker) pushRefs(ctx context.Context, remote worktree.Remote, points []journal.Point, heads []string) error {
	var updates []worktree.RefUpdate
	for _, p := range points {
		updates = append(updates,
			worktree.RefUpdate{Source: p.Code, Name: refname.Code(t.TaskUID, p.Number)},
			worktree.RefUpdate{Source: p.State, Name: refname.State(t.TaskUID, p.Number)})
	}
	for _, id := range heads {
		updates = append(updates, worktree.RefUpdate{Source: id, Name: refname.Head(t.TaskUID, id)})
	}
	together := len(points) > 0 && !t.apart
	if together {
		updates = append(updates, t.branches...)
	}
	if err := GitError(t.Repo.Push(ctx, remote, updates...)); err != nil {
		return err
	}
	if together {
		t.branches = nil
	}
	for _, id := range heads {
		t.heads.set(id, head{pushed: true})
	}
	return nil
}

// pushed records that the gitstore has some checkpoints.
func (t *Taker) pushed(points []journal.Point) error {
	// The server keeps what a checkpoint's first record says of it, so the full record must
	// precede that of RecordDurable.
	if err := t.Recover(); err != nil {
		return err
	}
	if err := t.tellOfHeads(points); err != nil {
		return err
	}
	done := map[int64]bool{}
	for _, p := range points {
		done[p.Number] = true
		if err := t.RecordDurable(p); err != nil {
			return err
		}
	}
	t.Log.Info("pushed checkpoints", "through", points[len(points)-1].Number)
	return t.Journal.Update(func(s *journal.State) error {
		left := s.Pending[:0]
		for _, p := range s.Pending {
			if !done[p.Number] {
				left = append(left, p)
			}
		}
		s.Pending = left
		return nil
	})
}
