package prepare

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/daemon/checkpoint"
	"github.com/clew-dev/clew/internal/daemon/journal"
	"github.com/clew-dev/clew/internal/daemon/ship"
	"github.com/clew-dev/clew/internal/worktree"
)

// Before anything is done, the volume, the server and the gitstore compare what
// they have. Each of them may have gone back in time: a volume by a snapshot of
// its storage or by damage, the stores by a failover or an older backup.
//
//   - A server that is behind is sent again what the spool still has; the shipper
//     does that by itself, and tells of a gap where the spool has less.
//   - A spool that is behind goes on where the server's records end. If the volume
//     is laid out it is an older copy, or somebody else wrote: what it holds is kept
//     as a checkpoint, and the newest one is restored.
//   - A checkpoint that counts as durable and that the gitstore has lost is pushed
//     again, or told to be lost; see lookAfterDurable.

// align makes spool and numbers go on where the server's records end.
func (p *preparer) align(ctx context.Context) error {
	state := p.journal.State()
	stored, bytes := p.begun.GetLastSequence(), p.spool.Damaged()
	if p.spool.Unsure() {
		if err := p.spool.SkipTo(stored); err != nil {
			return err
		}
	}
	parted := ship.Compare(p.begun, p.spool)
	foreign := errors.Is(parted, ship.ErrForeign)
	if parted != nil && !foreign {
		return parted
	}
	if err := p.agreeOnNumbers(ctx, state, foreign); err != nil {
		return err
	}
	// Before anything else is appended: was a resume's prompt?
	if err := p.settleResume(); err != nil {
		return err
	}
	if foreign {
		if err := p.spool.Reset(stored); err != nil {
			return err
		}
	}
	if err := p.taker.Recover(); err != nil {
		return err
	}
	p.shipper = ship.New(p.cfg.Server, p.spool, p.log)
	if bytes > 0 {
		err := p.taker.Event(v1alpha1.ReasonSpoolDamaged, fmt.Sprintf("%d bytes of the daemon's records on the volume were unreadable, and are put aside there", bytes), nil)
		if err != nil {
			return err
		}
	}
	switch laidOut := state.Layout != nil && state.Layout.Stage == journal.LayoutReady; {
	case state.JournalLost:
		return p.leaveVolume(ctx, "Found on a volume whose journal could not be read", "the daemon's journal of the volume could not be read")
	case foreign && laidOut:
		return p.leaveVolume(ctx, "Found on a volume that was older than the history", parted.Error())
	}
	return nil
}

// agreeOnNumbers makes the numbers of checkpoints go on after the highest one that
// anybody knows.
func (p *preparer) agreeOnNumbers(ctx context.Context, state journal.State, foreign bool) error {
	number := max(state.LastNumber, p.begun.GetLatestCheckpoint().GetNumber())
	// A volume that lost its journal does not know which numbers are used up.
	if foreign || (state.Layout == nil && (p.cfg.Pod.Attempt > 1 || p.begun.GetLastSequence() > 0)) {
		inGitstore, err := p.remoteCheckpoints(ctx)
		if err != nil {
			return err
		}
		onVolume, err := p.localCheckpoints(ctx)
		if err != nil {
			return err
		}
		for _, points := range []map[int64]journal.Point{inGitstore, onVolume} {
			for n := range points {
				number = max(number, n)
			}
		}
	}
	return p.journal.Update(func(s *journal.State) error { s.LastNumber = number; return nil })
}

// leaveVolume is for a volume whose state is not the task's newest, or not known.
// What it holds is kept as a checkpoint, then the newest state is restored: the
// newest durable one or, if there is none, what was just kept.
func (p *preparer) leaveVolume(ctx context.Context, message, why string) error {
	p.log.Info("the volume cannot be gone on with: the newest checkpoint is restored", "reason", why)
	durable, err := p.remoteCheckpoints(ctx)
	if err != nil {
		return err
	}
	_, err = p.taker.Take(ctx, checkpoint.Request{Trigger: triggerDrift, Message: message,
		Also: func(s *journal.State, _ journal.Point) {
			s.Layout, s.Clean, s.Rewind, s.JournalLost = nil, nil, nil, false
		}})
	if err != nil {
		return err
	}
	if len(durable) == 0 {
		if err := p.push(ctx); err != nil {
			return err
		}
	}
	return p.taker.Event(v1alpha1.ReasonVolumeOutdated, "what the volume holds is kept as a checkpoint, and the workspace is restored: "+why, nil)
}

// lookAfterDurable compares the checkpoints that count as durable with what the
// gitstore has: what it lost is pushed again from the volume, and what is nowhere
// any more is told to be lost. While the gitstore cannot be asked nothing is known.
func (p *preparer) lookAfterDurable(ctx context.Context) error {
	durable, err := p.cfg.Server.DurableCheckpoints(ctx)
	if err != nil || len(durable) == 0 {
		p.logUnknown(err)
		return nil
	}
	there, err := p.askGitstore(ctx)
	if err != nil {
		p.logUnknown(err)
		return nil
	}
	onVolume, err := p.localCheckpoints(ctx)
	if err != nil {
		return err
	}
	var again []journal.Point
	for _, n := range durable {
		point, kept := onVolume[n]
		switch _, ok := there[n]; {
		case ok:
		case kept:
			again = append(again, point)
		default:
			message := fmt.Sprintf("checkpoint %d is lost: the gitstore does not have it any more, nor does the task's volume; was the gitstore put back to an older copy?", n)
			if err := p.taker.Event(eventCheckpointLost, message, map[string]string{"checkpoint": strconv.FormatInt(n, 10), "message": message}); err != nil {
				return err
			}
		}
	}
	if len(again) == 0 {
		return nil
	}
	p.log.Info("the gitstore has lost checkpoints that the volume has: they are pushed again", "count", len(again))
	return p.journal.Update(func(s *journal.State) error {
		for _, point := range again {
			if !slices.ContainsFunc(s.Pending, func(q journal.Point) bool { return q.Number == point.Number }) {
				s.Pending = append(s.Pending, point)
			}
		}
		slices.SortFunc(s.Pending, func(a, b journal.Point) int { return int(a.Number - b.Number) })
		return nil
	})
}

// eventCheckpointLost is the reason by which the server notes a checkpoint as lost.
const eventCheckpointLost = "CheckpointLost"

func (p *preparer) logUnknown(err error) {
	if err != nil {
		p.log.Info("it is not known whether the durable checkpoints are still there", "reason", err.Error())
	}
}

// askGitstore is remoteCheckpoints without waiting for the gitstore.
func (p *preparer) askGitstore(ctx context.Context) (map[int64]journal.Point, error) {
	prefix := "refs/clew/" + p.cfg.Pod.TaskUID + "/"
	remote, err := p.cfg.Remote()
	if err != nil {
		return nil, err
	}
	refs, err := p.repo.RemoteRefs(ctx, remote, prefix)
	if worktree.ReasonOf(err) == worktree.RepositoryNotFound {
		return nil, nil
	}
	return wholeCheckpoints(refs, prefix), err
}

// localCheckpoints lists this task's checkpoints that the volume has.
func (p *preparer) localCheckpoints(ctx context.Context) (map[int64]journal.Point, error) {
	prefix := "refs/clew/" + p.cfg.Pod.TaskUID + "/"
	refs, err := p.repo.Refs(ctx, prefix)
	return wholeCheckpoints(refs, prefix), err
}
