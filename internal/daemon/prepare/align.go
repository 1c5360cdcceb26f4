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
	"github.com/clew-dev/clew/internal/daemon/spool"
	"github.com/clew-dev/clew/internal/refname"
	"github.com/clew-dev/clew/internal/worktree"
)

// Before anything else, the volume, the server and the gitstore compare what they have.
// Each of them may have gone back in time: a volume through a snapshot of its storage or
// through damage, the stores through a failover or a restored backup.
//
//   - A server that is behind is sent again what the spool still has. The shipper does that
//     by itself, and reports a gap for what the spool no longer has.
//   - A spool that is behind continues after the last record that the server has, or that
//     the manager has seen there; records lost everywhere become a gap. If the volume is
//     laid out, it is an older copy or somebody else has written: its contents are kept as
//     a checkpoint, and the newest checkpoint is restored.
//   - A checkpoint that counts as durable but is missing from the gitstore is pushed again,
//     or recorded as lost; see checkDurable.

// align makes the spool and the checkpoint numbers continue after everything that the
// server has.
func (p *preparer) align(ctx context.Context) error {
	bytes, last := p.spool.DamagedBytes(), p.spool.Last()
	if p.spool.EndUncertain() {
		last = max(last, p.begun.GetLastSequence())
	}
	// This must come before anything is appended or skipped: it finds out whether a
	// resume's prompt was recorded.
	if err := p.concludeResume(last); err != nil {
		return err
	}
	if p.spool.EndUncertain() {
		if err := p.spool.SkipTo(p.seen()); err != nil {
			return err
		}
	}
	if err := p.compareVolume(); err != nil {
		return err
	}
	state := p.journal.State()
	if err := p.agreeOnNumbers(ctx, state); err != nil {
		return err
	}
	if err := p.continueSpool(state); err != nil {
		return err
	}
	if err := p.taker.Recover(); err != nil {
		return err
	}
	p.shipper = ship.New(p.cfg.Server, p.spool, p.log)
	if bytes > 0 {
		err := p.taker.Event(v1alpha1.ReasonSpoolDamaged, fmt.Sprintf("%d bytes of the daemon's records on the volume were unreadable, and were set aside there", bytes), nil)
		if err != nil {
			return err
		}
	}
	switch laidOut := state.Layout != nil && state.Layout.Stage == journal.LayoutReady; {
	case state.JournalLost && !p.holdsWorkspace():
		return p.startEmpty(ctx)
	case state.JournalLost:
		return p.replaceContents(ctx, "Found on a volume whose journal could not be read", "the daemon's journal on the volume could not be read")
	case state.Outdated != "" && laidOut:
		return p.replaceContents(ctx, "Found on a volume that was older than the history", state.Outdated)
	case state.Outdated != "":
		return p.journal.Update(func(s *journal.State) error { s.MarkOutdated("", false); return nil })
	}
	return nil
}

// seen is the newest record of the task that the server is known to have had.
func (p *preparer) seen() int64 { return max(p.begun.GetLastSequence(), p.cfg.Pod.RecordSequence) }

// continueSpool makes the next record follow the newest one that anybody has seen. The
// shipper reports the records in between as a gap.
func (p *preparer) continueSpool(state journal.State) error {
	if state.Outdated != "" && !state.OlderCopy || p.spool.Last() == 0 {
		return p.spool.Reset(p.seen(), p.begun.GetLastSequence())
	}
	if err := p.spool.SkipTo(p.seen()); err != nil || !state.OlderCopy {
		return err
	}
	return p.spool.Append(&spool.Mark{}) // calls that were open in the older copy have ended since
}

// compareVolume journals that the volume's records are not the server's, or end before
// those that the server once had. It does so first because making the two agree removes the
// evidence, and this prepare may be killed before the volume's contents are kept.
func (p *preparer) compareVolume() error {
	parted := ship.Compare(p.begun, p.spool)
	foreign := errors.Is(parted, ship.ErrForeign)
	if parted != nil && !foreign {
		return parted
	}
	last, seen := p.spool.Last(), p.seen()
	if !foreign && (last == 0 || last >= seen) {
		return nil
	}
	return p.journal.Update(func(s *journal.State) error {
		if foreign {
			s.MarkOutdated(parted.Error(), false)
		} else if s.Outdated == "" {
			s.MarkOutdated(fmt.Sprintf("its records end with %d, and the server once had them through %d", last, seen), true)
		}
		return nil
	})
}

// agreeOnNumbers makes checkpoint numbers continue after the highest one known anywhere.
func (p *preparer) agreeOnNumbers(ctx context.Context, state journal.State) error {
	number := max(state.LastNumber, p.begun.GetLatestCheckpoint().GetNumber(), p.cfg.Pod.HighestCheckpoint)
	// A volume that lost its journal does not know which numbers are in use.
	if state.Outdated != "" || state.JournalLost || (state.Layout == nil && (p.cfg.Pod.Attempt > 1 || p.begun.GetLastSequence() > 0)) {
		inGitstore, err := p.remoteCheckpoints(ctx)
		if err != nil {
			return err
		}
		onVolume := map[int64]journal.Point{}
		if !state.KnowsNumbers() {
			if onVolume, err = p.taker.RefsOnVolume(ctx); err != nil {
				return err
			}
		}
		number = max(number, checkpoint.Highest(inGitstore), checkpoint.Highest(onVolume))
	}
	return p.taker.Reserve(ctx, number)
}

// replaceContents handles a volume whose state is not the task's newest, or is unknown. Its
// contents are kept as a checkpoint; then the newest durable checkpoint is restored or, if
// there is none, the one just taken.
func (p *preparer) replaceContents(ctx context.Context, message, why string) error {
	p.log.Info("the volume is outdated: restoring the newest checkpoint", "reason", why)
	durable, err := p.remoteCheckpoints(ctx)
	if err != nil {
		return err
	}
	if err := p.findPending(ctx, durable); err != nil {
		return err
	}
	_, err = p.taker.Take(ctx, checkpoint.Request{Trigger: triggerDrift, Message: message,
		Also: func(s *journal.State, _ journal.Point) { s.LeaveVolume() }})
	if err != nil {
		return err
	}
	if len(durable) == 0 {
		if err := p.push(ctx); err != nil {
			return err
		}
	}
	return p.taker.Event(v1alpha1.ReasonVolumeOutdated, "the contents of the volume are kept as a checkpoint, and the workspace is restored: "+why, nil)
}

// holdsWorkspace reports whether the worktree was once laid out completely. A journal that
// cannot be read does not say so, but the repository's origin does.
func (p *preparer) holdsWorkspace() bool {
	_, ok := p.repo.Origin()
	return ok && !p.folderMissing
}

// startEmpty handles a volume whose journal could not be read and which holds no workspace,
// or only part of one: it is laid out from the beginning.
func (p *preparer) startEmpty(ctx context.Context) error {
	durable, err := p.remoteCheckpoints(ctx)
	if err != nil {
		return err
	}
	if err := p.findPending(ctx, durable); err != nil {
		return err
	}
	if err := p.journal.Update(func(s *journal.State) error { s.LeaveVolume(); return nil }); err != nil {
		return err
	}
	if err := makeFolder(p.cfg.Paths.Worktree, 0o755); err != nil {
		return err
	}
	return p.taker.Event(v1alpha1.ReasonVolumeOutdated, "the workspace is set up from scratch: the daemon's journal on the volume could not be read, and the volume holds no workspace", nil)
}

// findPending queues those checkpoints of the volume for pushing that the gitstore does not
// have, if the journal that listed them could not be read.
func (p *preparer) findPending(ctx context.Context, inGitstore map[int64]journal.Point) error {
	if !p.journal.State().JournalLost {
		return nil
	}
	onVolume, err := p.taker.OnVolume(ctx)
	if err != nil {
		return err
	}
	var waiting []journal.Point
	for n, point := range onVolume {
		if _, ok := inGitstore[n]; !ok {
			waiting = append(waiting, point)
		}
	}
	return p.taker.QueuePush(waiting)
}

// checkDurable compares the checkpoints that count as durable with those in the gitstore.
// What the gitstore lost is pushed again from the volume, and what exists nowhere is
// recorded as lost; a lost checkpoint that the gitstore has again is recorded as durable.
// If the gitstore cannot be asked, nothing is concluded. Numbers that the gitstore has are
// never given again.
func (p *preparer) checkDurable(ctx context.Context) error {
	durable, lost, err := p.cfg.Server.PushedCheckpoints(ctx)
	if err != nil || len(durable)+len(lost) == 0 && p.journal.State().LastNumber == 0 && p.cfg.Pod.Attempt == 1 {
		p.logUnchecked(err)
		return nil
	}
	there, err := p.listing(ctx)
	if err != nil {
		p.logUnchecked(err)
		return nil
	}
	stored, err := p.taker.Compare(ctx, there)
	if err != nil {
		return err
	}
	onVolume, err := p.taker.OnVolume(ctx)
	if err != nil {
		return err
	}
	for _, n := range durable {
		_, there := stored[n]
		if _, here := onVolume[n]; !there && !here {
			message := fmt.Sprintf("checkpoint %d is lost: the gitstore does not have it any more, nor does the task's volume; was the gitstore restored from an older copy?", n)
			if err := p.taker.Event(v1alpha1.ReasonCheckpointLost, message, map[string]string{"checkpoint": strconv.FormatInt(n, 10), "message": message}); err != nil {
				return err
			}
		}
	}
	for _, n := range lost {
		if point, ok := stored[n]; ok {
			if err := p.taker.RecordDurable(point); err != nil {
				return err
			}
		}
	}
	return p.recordUnknown(ctx, stored, slices.Concat(durable, lost))
}

// maxFetched is how many checkpoints are fetched from the gitstore at once.
const maxFetched = 100

// recordUnknown records checkpoints that the gitstore has and the history has lost. The
// volumes on which they were taken record theirs; those volumes may no longer exist.
func (p *preparer) recordUnknown(ctx context.Context, stored map[int64]journal.Point, known []int64) error {
	var unknown []int64
	for n := range stored {
		if !slices.Contains(known, n) {
			unknown = append(unknown, n)
		}
	}
	slices.Sort(unknown)
	for some := range slices.Chunk(unknown, maxFetched) {
		p.log.Info("the gitstore has checkpoints that the history does not know: recording them again", "first", some[0], "count", len(some))
		var refs []string
		for _, n := range some {
			refs = append(refs, refname.State(p.cfg.Pod.TaskUID, n))
		}
		remote, err := p.cfg.Remote()
		if err == nil {
			err = p.repo.Fetch(ctx, remote, refs...)
		}
		for _, n := range some {
			if err != nil {
				break
			}
			var meta worktree.Meta
			if meta, err = p.repo.ReadMeta(ctx, stored[n].State); err == nil {
				err = p.taker.RecordAgain(stored[n], meta)
			}
		}
		if errors.Is(err, spool.ErrBroken) {
			return err
		}
		p.logUnchecked(err)
	}
	return nil
}

func (p *preparer) logUnchecked(err error) {
	if err != nil {
		p.log.Info("could not check whether the durable checkpoints are still in the gitstore", "error", err.Error())
	}
}
