package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/clip"
	"github.com/clew-dev/clew/internal/daemon/gatewayclient"
	"github.com/clew-dev/clew/internal/daemon/journal"
	"github.com/clew-dev/clew/internal/refname"
	"github.com/clew-dev/clew/internal/worktree"
)

// With a checkpoint goes the commit that the agent's own HEAD was, under a ref of its own, so
// that it can be published and rewound to. A commit that cannot be stored, or that the
// gitstore refuses, never holds back its checkpoint: it is left out, and an event says why.

// storeTimeout bounds how long the pushes wait for one of the agent's commits to be stored. Its
// history is the agent's to make as large as it likes.
const storeTimeout = time.Minute

// maxProblem bounds, in bytes, what an event says of a commit.
const maxProblem = 768

// maxHeads bounds how many of the agent's commits are remembered.
const maxHeads = 10_000

// heads is what this process knows of the agent's commits, by id.
type heads map[string]head

type head struct {
	pushed  bool
	problem string // why it is not stored; "" if it is
	told    bool   // an event has said so
}

// set remembers what is known of a commit.
func (h *heads) set(commit string, known head) {
	if *h == nil || len(*h) >= maxHeads {
		*h = heads{}
	}
	(*h)[commit] = known
}

// storeHeads stores the agent's commits of some checkpoints, and returns those that are to be
// pushed with them.
func (t *Taker) storeHeads(ctx context.Context, points []journal.Point) ([]string, error) {
	var push []string
	for _, p := range points {
		if p.Head == "" || slices.Contains(push, p.Head) {
			continue
		}
		known, ok := t.heads[p.Head]
		if !ok {
			var err error
			if known, err = t.storeHead(ctx, p); err != nil {
				return nil, err
			}
			t.heads.set(p.Head, known)
		}
		if known.problem == "" && !known.pushed {
			push = append(push, p.Head)
		}
	}
	return push, nil
}

// storeHead stores the agent's commit of one checkpoint. It returns an error only if ctx is
// done.
func (t *Taker) storeHead(ctx context.Context, p journal.Point) (head, error) {
	storing, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	err := t.Repo.StoreHead(storing, worktree.HeadRequest{TaskUID: t.TaskUID, Commit: p.Head, State: p.State})
	switch {
	case ctx.Err() != nil:
		return head{}, ctx.Err()
	case errors.Is(err, context.DeadlineExceeded):
		return t.leaveOut(p.Head, "the agent's commit "+p.Head+" takes more than a minute to read: it, or what it is built on, is too large"), nil
	case err != nil:
		return t.leaveOut(p.Head, err.Error()), nil
	}
	return head{}, nil
}

// leaveOut returns what is remembered of a commit that is not stored.
func (t *Taker) leaveOut(commit, problem string) head {
	t.Log.Info("the agent's own commit is not stored", "commit", commit, "why", problem)
	return head{problem: problem}
}

// tellOfHeads records an event for each of the agent's commits that did not go with its
// checkpoint.
func (t *Taker) tellOfHeads(points []journal.Point) error {
	for _, p := range points {
		known, ok := t.heads[p.Head]
		if !ok || known.problem == "" || known.told {
			continue
		}
		why := clip.Bytes(known.problem, maxProblem)
		err := t.Event(v1alpha1.EventHeadNotStored, fmt.Sprintf("the agent's own commit at checkpoint %d cannot be published, nor rewound to once the volume is lost: %s", p.Number, why),
			map[string]string{"checkpoint": strconv.FormatInt(p.Number, 10), "commit": p.Head, "message": why})
		if err != nil {
			return err
		}
		known.told = true
		t.heads.set(p.Head, known)
	}
	return nil
}

// dropHeads leaves out those of the agent's commits because of which a push can never succeed,
// and reports whether there was one. A refusal may be about one only if it was pushed alone, or
// with one checkpoint.
func (t *Taker) dropHeads(ctx context.Context, remote worktree.Remote, commits []string, alone bool, err error) bool {
	var refused *RefusedError
	switch {
	case len(commits) == 0 || ctx.Err() != nil || errors.Is(err, gatewayclient.ErrFenced):
		return false
	case errors.As(err, &refused):
		if refused.Retryable || !alone {
			return false
		}
		t.heads.set(commits[0], t.leaveOut(commits[0], fmt.Sprintf("the gitstore refuses the agent's commit %s: %s", commits[0], refused.Message)))
		return true
	}
	dropped := false
	for _, id := range commits {
		if damage := t.sendable(ctx, remote, id); worktree.ReasonOf(damage) == worktree.CheckpointCorrupted {
			t.heads.set(id, t.leaveOut(id, damage.Error()))
			dropped = true
		}
	}
	return dropped
}

// lostHeads returns the agent's commits that the volume has and the gitstore has not.
func (t *Taker) lostHeads(here, there map[string]string) []string {
	var lacking []string
	for ref := range here {
		id, ok := strings.CutPrefix(ref, refname.Heads(t.TaskUID))
		if ok && there[ref] == "" && t.heads[id].problem == "" {
			t.heads.set(id, head{})
			lacking = append(lacking, id)
		}
	}
	slices.Sort(lacking)
	return lacking
}

// pushHeads pushes commits of the agent that the gitstore has lost. One that it refuses is
// left out.
func (t *Taker) pushHeads(ctx context.Context, commits []string) error {
	for _, id := range commits {
		if known := t.heads[id]; known.pushed || known.problem != "" {
			continue
		}
		remote, err := t.Remote()
		if err != nil {
			return err
		}
		if err := t.pushRefs(ctx, remote, nil, []string{id}); err != nil && !t.dropHeads(ctx, remote, []string{id}, true, err) {
			return err
		}
	}
	return nil
}
