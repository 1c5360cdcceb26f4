package prepare

import (
	"context"
	"slices"
	"time"

	"github.com/clew-dev/clew/internal/daemon/journal"
	"github.com/clew-dev/clew/internal/daemonapi"
)

// A container that is killed while it makes branches, since its memory does not suffice for a
// checkpoint's files, cannot tell which checkpoint's. So the next start makes the branches of one
// checkpoint after the other, and the start after that gives the checkpoint up at which it was
// killed again: no branch keeps the agent from starting for good.

// maxBranchTime bounds the time that branches keep the agent from starting.
const maxBranchTime = time.Minute

// makeLacking makes branches, given by their numbers among the pod's, but for those of checkpoints
// that are given up. A start that is told to stop is no try.
func (p *preparer) makeLacking(ctx context.Context, numbers []int) error {
	if len(numbers) == 0 {
		return nil
	}
	making, cancel := context.WithTimeout(ctx, maxBranchTime)
	defer cancel()
	groups, again, err := p.beginBranches(numbers)
	if err != nil {
		return err
	}
	for _, group := range groups {
		if again {
			alone := p.cfg.Pod.Branches[group[0]].Checkpoint
			if err := p.updateTries(func(t *journal.BranchTries) { t.Alone = alone }); err != nil {
				return err
			}
		}
		p.makeTogether(making, group)
	}
	return p.updateTries(func(t *journal.BranchTries) { t.Begun, t.Alone = false, 0 })
}

// beginBranches journals that branches are being made, and returns those that are, grouped by what is
// made together: those of one checkpoint if the last start was killed.
func (p *preparer) beginBranches(numbers []int) (groups [][]int, again bool, err error) {
	var before journal.BranchTries
	if t := p.journal.State().BranchTries; t != nil {
		before = *t
	}
	givenUp := before.GivenUp
	if before.Alone != 0 {
		givenUp = append(slices.Clone(givenUp), before.Alone)
	}
	for _, i := range numbers {
		b := p.cfg.Pod.Branches[i]
		sameCheckpoint := func(group []int) bool {
			return !before.Begun || p.cfg.Pod.Branches[group[0]].Checkpoint == b.Checkpoint
		}
		if slices.Contains(givenUp, b.Checkpoint) {
			p.log.Info("the agent starts without a branch, in whose making containers were killed", "branch", b.Name, "checkpoint", b.Checkpoint)
			p.result.Branches[i].Outcome = daemonapi.OutcomeGivenUp
		} else if at := slices.IndexFunc(groups, sameCheckpoint); at >= 0 {
			groups[at] = append(groups[at], i)
		} else {
			groups = append(groups, []int{i})
		}
	}
	return groups, before.Begun, p.updateTries(func(t *journal.BranchTries) {
		*t = journal.BranchTries{Begun: len(groups) > 0, GivenUp: givenUp}
	})
}

// updateTries changes what the journal says of the making of branches.
func (p *preparer) updateTries(change func(*journal.BranchTries)) error {
	return p.journal.Update(func(s *journal.State) error {
		next := journal.BranchTries{}
		if s.BranchTries != nil {
			next = *s.BranchTries
		}
		change(&next)
		s.BranchTries = &next
		return nil
	})
}
