package prepare

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/daemon/checkpoint"
	"github.com/clew-dev/clew/internal/daemon/gatewayclient"
	"github.com/clew-dev/clew/internal/daemon/journal"
	"github.com/clew-dev/clew/internal/daemon/ship"
	"github.com/clew-dev/clew/internal/daemon/spool"
	"github.com/clew-dev/clew/internal/refname"
	"github.com/clew-dev/clew/internal/worktree"
)

// Before anything is done, the volume, the server and the gitstore compare what
// they have. Each of them may have gone back in time: a volume by a snapshot of
// its storage or by damage, the stores by a failover or an older backup.
//
//   - A server that is behind is sent again what the spool still has; the shipper
//     does that by itself, and tells of a gap where the spool has less.
//   - A spool that is behind goes on where the server's records end, or those that the
//     manager has seen there: what nobody has any more is a gap. If the volume is
//     laid out it is an older copy, or somebody else wrote: what it holds is kept as a
//     checkpoint, and the newest one is restored.
//   - A checkpoint that counts as durable and that the gitstore has lost is pushed
//     again, or told to be lost; see lookAfterDurable.

// align makes spool and numbers go on where the server's records end.
func (p *preparer) align(ctx context.Context) error {
	bytes, last := p.spool.Damaged(), p.spool.Last()
	if p.spool.Unsure() {
		last = max(last, p.begun.GetLastSequence())
	}
	// Before anything else is appended, or passed over: was a resume's prompt?
	if err := p.settleResume(last); err != nil {
		return err
	}
	if p.spool.Unsure() {
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
	if err := p.goOn(state); err != nil {
		return err
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
	case state.JournalLost && !p.holdsWorkspace():
		return p.leaveNothing(ctx)
	case state.JournalLost:
		return p.leaveVolume(ctx, "Found on a volume whose journal could not be read", "the daemon's journal of the volume could not be read")
	case state.Outdated != "" && laidOut:
		return p.leaveVolume(ctx, "Found on a volume that was older than the history", state.Outdated)
	case state.Outdated != "":
		return p.journal.Update(func(s *journal.State) error { s.Outdate("", false); return nil })
	}
	return nil
}

// seen is the newest record of the task that anybody knows the server to have had.
func (p *preparer) seen() int64 { return max(p.begun.GetLastSequence(), p.cfg.Pod.RecordSequence) }

// goOn makes the next record come after the last one that anybody has seen. What lies
// between it and what there still is the shipper tells as a gap.
func (p *preparer) goOn(state journal.State) error {
	if state.Outdated != "" && !state.OlderCopy || p.spool.Last() == 0 {
		return p.spool.Reset(p.seen(), p.begun.GetLastSequence())
	}
	if err := p.spool.SkipTo(p.seen()); err != nil || !state.OlderCopy {
		return err
	}
	return p.spool.Append(&spool.Mark{}) // the calls that were under way then have ended since
}

// compareVolume notes in the journal that the volume's records are not those that the
// server has, or end before those that it once had: making the two agree takes the
// evidence away, and this prepare may be killed before what the volume holds is kept.
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
			s.Outdate(parted.Error(), false)
		} else if s.Outdated == "" {
			s.Outdate(fmt.Sprintf("its records end with %d, and the server once had them through %d", last, seen), true)
		}
		return nil
	})
}

// agreeOnNumbers makes the numbers of checkpoints go on after the highest one that
// anybody knows.
func (p *preparer) agreeOnNumbers(ctx context.Context, state journal.State) error {
	number := max(state.LastNumber, p.begun.GetLatestCheckpoint().GetNumber(), p.cfg.Pod.HighestCheckpoint)
	// A volume that lost its journal does not know which numbers are used up.
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

// fenceWait is how long the gitstore may take to say which attempt it has seen.
const fenceWait = 10 * time.Second

// checkFence asks the gitstore whether it has seen a newer attempt, which neither
// the server nor the volume knows of: it would end the agent at the first push. The
// volume may have been full when it was to be noted there. Where the gitstore cannot
// be asked the agent works on, as it does whenever the gitstore is away.
func (p *preparer) checkFence(ctx context.Context) error {
	remote, err := p.cfg.Remote()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, fenceWait)
	defer cancel()
	if err := of(placeGitstore, p.repo.CheckPush(ctx, remote)); errors.Is(err, gatewayclient.ErrFenced) {
		return err
	}
	return nil // whatever else keeps a push from the gitstore is told by the push
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
	return p.taker.Event(v1alpha1.ReasonVolumeOutdated, "what the volume holds is kept as a checkpoint, and the workspace is restored: "+why, nil)
}

// holdsWorkspace says whether what is in the worktree was once laid out whole. A
// journal that cannot be read does not say so.
func (p *preparer) holdsWorkspace() bool {
	_, ok := p.repo.Origin()
	return ok && !p.missing
}

// leaveNothing is for a volume whose journal could not be read, and which holds
// no workspace, or only a part of one: it is laid out anew.
func (p *preparer) leaveNothing(ctx context.Context) error {
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
	return p.taker.Event(v1alpha1.ReasonVolumeOutdated, "the workspace is laid out anew: the daemon's journal of the volume could not be read, and the volume holds no workspace", nil)
}

// findPending has those checkpoints of the volume pushed that the gitstore does
// not have, where the journal that knew of them could not be read.
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
	return p.taker.PushAgain(waiting)
}

// lookAfterDurable compares the checkpoints that count as durable with what the
// gitstore has: what it lost is pushed again from the volume, and what is nowhere
// any more is told to be lost. What was told to be lost, and is there again, is
// durable. While the gitstore cannot be asked nothing is known. No checkpoint gets
// a number that the gitstore has.
func (p *preparer) lookAfterDurable(ctx context.Context) error {
	durable, lost, err := p.cfg.Server.PushedCheckpoints(ctx)
	if err != nil || len(durable)+len(lost) == 0 && p.journal.State().LastNumber == 0 && p.cfg.Pod.Attempt == 1 {
		p.logUnknown(err)
		return nil
	}
	there, err := p.taker.InGitstore(ctx)
	if err != nil {
		p.logUnknown(err)
		return nil
	}
	onVolume, err := p.taker.OnVolume(ctx)
	if err != nil {
		return err
	}
	if err := p.taker.Reserve(ctx, checkpoint.Highest(there)); err != nil {
		return err
	}
	var again []journal.Point
	given := p.journal.State()
	for _, n := range durable {
		point, kept := onVolume[n]
		switch _, ok := there[n]; {
		case ok:
		case kept:
			again = append(again, point)
		default:
			message := fmt.Sprintf("checkpoint %d is lost: the gitstore does not have it any more, nor does the task's volume; was the gitstore put back to an older copy?", n)
			if err := p.taker.Event(v1alpha1.ReasonCheckpointLost, message, map[string]string{"checkpoint": strconv.FormatInt(n, 10), "message": message}); err != nil {
				return err
			}
		}
	}
	for _, n := range lost {
		if point, ok := there[n]; ok {
			if err := p.taker.TellDurable(point); err != nil {
				return err
			}
		} else if point, kept := onVolume[n]; kept && !given.IsLost(n) {
			again = append(again, point)
		}
	}
	if err := p.tellUnknown(ctx, there, slices.Concat(durable, lost)); err != nil {
		return err
	}
	return p.taker.PushAgain(again)
}

// maxFetched is how many checkpoints are asked of the gitstore at once.
const maxFetched = 100

// tellUnknown tells of checkpoints that the gitstore has and the history has lost:
// a volume tells of those that were taken on it, and others are not there any more.
func (p *preparer) tellUnknown(ctx context.Context, there map[int64]journal.Point, known []int64) error {
	var unknown []int64
	for n := range there {
		if !slices.Contains(known, n) {
			unknown = append(unknown, n)
		}
	}
	slices.Sort(unknown)
	for some := range slices.Chunk(unknown, maxFetched) {
		p.log.Info("the gitstore has checkpoints that the history does not know: they are told again", "first", some[0], "count", len(some))
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
			if meta, err = p.repo.ReadMeta(ctx, there[n].State); err == nil {
				err = p.taker.TellAgain(there[n], meta)
			}
		}
		if errors.Is(err, spool.ErrBroken) {
			return err
		}
		p.logUnknown(err)
	}
	return nil
}

func (p *preparer) logUnknown(err error) {
	if err != nil {
		p.log.Info("it is not known whether the durable checkpoints are still there", "error", err.Error())
	}
}
