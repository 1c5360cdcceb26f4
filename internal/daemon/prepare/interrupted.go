package prepare

import (
	"context"
	"fmt"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/daemon/journal"
	"github.com/clew-dev/clew/internal/daemonapi"
	"github.com/clew-dev/clew/internal/worktree"
)

// A rewind or checkout that was interrupted goes on with the checkpoint that was taken before it,
// to which its undo leads. While no pod ran, somebody may have changed the volume: that is in no
// checkpoint, and must not be lost. Until files become a mixture, it can be told apart, and is
// treated as any other drift is.

// checkInterrupted checks for drift since the journalled operation was interrupted.
func (p *preparer) checkInterrupted(ctx context.Context) error {
	state := p.journal.State()
	switch r, c := state.Rewind, state.Checkout; {
	case p.known.laidOut:
		return nil
	case r != nil && (r.Stage == journal.RewindBegun || r.Stage == journal.RewindSaved):
		return p.checkInterruptedRewind(ctx, r)
	case c != nil && c.Stage != journal.CheckoutMarked:
		return p.checkInterruptedCheckout(ctx, c)
	}
	return nil
}

// checkInterruptedRewind checks for drift before an interrupted rewind goes on. The rewind ends
// with the drift that it may not change, as it would not have begun with it.
func (p *preparer) checkInterruptedRewind(ctx context.Context, r *journal.Rewind) error {
	if r.From.Number != 0 {
		drift, err := p.driftSince(ctx, r.From)
		if err != nil || drift.Same() {
			return err
		}
		err = p.journal.Update(func(s *journal.State) error {
			s.Clean = &r.From
			if p.untouched(r) { // else it may have to return there, since the conversation has moved
				s.Rewind.Stage, s.Rewind.From = journal.RewindBegun, journal.Point{}
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	err := p.checkDrift(ctx, onDriftOf(p.undone(), r.OnDrift))
	if !isDrift(err) || !p.untouched(r) {
		return err
	}
	if err := p.journal.Update(func(s *journal.State) error { s.Rewind = nil; return nil }); err != nil {
		return err
	}
	return err
}

// checkInterruptedCheckout checks for drift before an interrupted checkout goes on. The checkout
// ends with the drift that it may not touch; it is requested again, and begins anew.
func (p *preparer) checkInterruptedCheckout(ctx context.Context, c *journal.Checkout) error {
	if c.From.Number != 0 {
		drift, err := p.driftSince(ctx, c.From)
		if err != nil || drift.Same() || drift.Clean() && mayHaveMoved(c, drift) {
			return err
		}
		if mayHaveMoved(c, drift) {
			if err := p.restoreHead(ctx, c); err != nil {
				return err
			}
		}
		err = p.journal.Update(func(s *journal.State) error {
			s.Clean, s.Checkout.Stage, s.Checkout.From = &c.From, journal.CheckoutBegun, journal.Point{}
			return nil
		})
		if err != nil {
			return err
		}
	}
	err := p.checkDrift(ctx, onDriftOf(p.undone(), ""))
	if !isDrift(err) {
		return err
	}
	if err := p.journal.Update(func(s *journal.State) error { s.Checkout = nil; return nil }); err != nil {
		return err
	}
	return err
}

// mayHaveMoved reports whether HEAD and index, as they are, may be the work of a checkout that was
// interrupted.
func mayHaveMoved(c *journal.Checkout, drift worktree.Drift) bool {
	return c.Tries > 0 && (!drift.HeadChanged() || drift.Branch == c.Branch && drift.Head == c.Commit)
}

// driftSince compares the worktree with the checkpoint that was taken before an operation.
func (p *preparer) driftSince(ctx context.Context, from journal.Point) (worktree.Drift, error) {
	drift, err := p.drift(ctx, from)
	if err != nil {
		return drift, fmt.Errorf("compare the worktree with checkpoint %d, taken before the operation that was interrupted: %w", from.Number, err)
	}
	return drift, nil
}

// isDrift reports whether an error is that files have drifted.
func isDrift(err error) bool { return err != nil && judge(err).reason == v1alpha1.ReasonDriftDetected }

// undone returns the pod's operation; nil if there is none, or it was carried out before.
func (p *preparer) undone() *daemonapi.Operation {
	op := p.cfg.Pod.Operation
	if op == nil {
		return nil
	}
	state := p.journal.State()
	if _, done := state.Operation(op.Kind, op.ID); done || p.completed(op) {
		return nil
	}
	return op
}
