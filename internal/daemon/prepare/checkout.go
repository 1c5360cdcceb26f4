package prepare

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/daemon/checkpoint"
	"github.com/clew-dev/clew/internal/daemon/gatewayclient"
	"github.com/clew-dev/clew/internal/daemon/journal"
	"github.com/clew-dev/clew/internal/daemonapi"
	daemonv1 "github.com/clew-dev/clew/internal/daemonapi/v1"
	"github.com/clew-dev/clew/internal/refname"
	"github.com/clew-dev/clew/internal/worktree"
)

// A checkout brings the agent's HEAD and index to a branch of a checkpoint, and changes no file: it
// is refused unless the worktree is what the checkpoint holds. Like a rewind, it is journalled,
// carried out once, and has a checkpoint before it and one after it; the gitstore has both when it
// is reported. Unlike a rewind, nobody waits for it: what only another try can help is left to the
// next start of a pod.

// maxCheckoutWait bounds the time for which a checkout keeps the agent from starting while the
// gitstore does not answer.
const maxCheckoutWait = time.Minute

// maxCheckoutTries is how many starts of a pod may try to move HEAD before the agent starts without.
const maxCheckoutTries = 2

// maxCheckoutMessage, in bytes, leaves room for the rest of the result.
const maxCheckoutMessage = 512

// checkOut carries out the pod's checkout, unless an earlier pod has.
func (p *preparer) checkOut(ctx context.Context) error {
	c := p.cfg.Pod.Checkout
	if c == nil || p.cfg.Pod.PrepareOnly || p.checkoutDone(c) || p.became(c.Branch) == daemonapi.OutcomeNotFetched || p.journal.State().Checkout != nil {
		return nil
	}
	next := &journal.Checkout{ID: c.ID, Stage: journal.CheckoutBegun, Branch: daemonapi.AgentBranchName(c.Name), Target: journal.Point{Number: c.Checkpoint}}
	if p.became(c.Branch) == daemonapi.OutcomeGivenUp {
		return p.failCheckout(next, &failure{reason: v1alpha1.ReasonInvalidState, permanent: true, message: fmt.Sprintf(
			"branches of checkpoint %d are not made in the agent's repository any more, since Clew's container was killed while it made them", c.Checkpoint)})
	}
	checking, cancel := context.WithTimeout(ctx, maxCheckoutWait)
	defer cancel()
	there, err := p.checkCheckout(checking, next)
	switch {
	case err != nil && judge(err).permanent:
		return p.failCheckout(next, err)
	case err != nil:
		return p.postpone(ctx, err, startsWithout)
	case there:
		return p.keepCheckedOut(ctx, next)
	}
	if err := p.journal.Update(func(s *journal.State) error { s.Checkout = next; return nil }); err != nil {
		return err
	}
	return p.finishCheckout(ctx)
}

// checkoutDone reports whether a checkout was carried out or refused before, and if so copies its
// outcome into the result.
func (p *preparer) checkoutDone(c *daemonapi.Checkout) bool {
	key := daemonapi.OperationKey(daemonapi.OperationCheckout, c.ID)
	done := p.journal.State().Done
	if i := slices.IndexFunc(done, func(d journal.Done) bool { return d.ID == key }); i >= 0 {
		p.reportCheckout(c.ID, done[i])
		return true
	}
	if !p.completedAtServer(key) {
		return false
	}
	p.reportCheckout(c.ID, journal.Done{}) // the numbers were lost with the volume
	return true
}

// became returns what became of one of the pod's branches; "" if that is unknown.
func (p *preparer) became(b daemonapi.Branch) daemonapi.BranchOutcome {
	i := slices.Index(p.cfg.Pod.Branches, b)
	if i < 0 || i >= len(p.result.Branches) {
		return ""
	}
	return p.result.Branches[i].Outcome
}

// checkCheckout checks beforehand what would make the checkout fail later. It reports whether HEAD
// is on the branch already.
func (p *preparer) checkCheckout(ctx context.Context, c *journal.Checkout) (there bool, err error) {
	if c.Commit, err = p.publishedAs(ctx, c.Target.Number); err != nil {
		return false, err
	}
	if there, err = p.repo.FindCheckout(branchOf(c)); err != nil || there {
		return there, err
	}
	uid := p.cfg.Pod.TaskUID
	if c.Target, err = p.fetchRefs(ctx, placeGitstore, uid, c.Target.Number, c.Target.Code, refname.Code(uid, c.Target.Number)); err != nil {
		return false, err
	}
	return false, p.sameFiles(ctx, c)
}

// sameFiles returns an error unless the worktree has exactly the files of the checkpoint.
func (p *preparer) sameFiles(ctx context.Context, c *journal.Checkout) error {
	drift, err := p.repo.Drift(ctx, worktree.Target{Code: c.Target.Code})
	if err != nil || drift.Clean() {
		return err
	}
	files := "files differ"
	if drift.Count == 1 {
		files = "file differs"
	}
	return &failure{reason: v1alpha1.ReasonWorktreeDiffers, permanent: true, message: fmt.Sprintf(
		"the worktree is not what checkpoint %d holds, and a checkout changes no file: rewind to it first, then ask for the checkout with a new id (%d %s, for example %q)",
		c.Target.Number, drift.Count, files, drift.Files[0].Path)}
}

// finishCheckout runs the journalled checkout from its current stage to the end.
func (p *preparer) finishCheckout(ctx context.Context) error {
	steps := map[string]func(context.Context, *journal.Checkout) error{
		journal.CheckoutBegun: p.saveBeforeCheckout,
		journal.CheckoutSaved: p.tryToMoveHead,
	}
	for {
		c := p.journal.State().Checkout
		switch {
		case c == nil:
			return nil
		case c.Stage == journal.CheckoutMarked:
			return p.endCheckout(ctx, c)
		}
		do, ok := steps[c.Stage]
		if !ok {
			return fmt.Errorf("the journal has a checkout at the unknown stage %q", c.Stage)
		}
		p.log.Info("checking out a branch", "id", c.ID, "stage", c.Stage, "branch", c.Branch, "checkpoint", c.Target.Number)
		err := p.timed(ctx, step{"checkout: " + c.Stage, func(ctx context.Context) error { return do(ctx, c) }})
		if err != nil {
			if err := p.giveUpCheckout(ctx, c, fmt.Errorf("check out the branch %s: %w", c.Branch, err)); err != nil {
				return err
			}
		}
	}
}

// giveUpCheckout ends a checkout that cannot succeed, with HEAD and index as they were before. As
// long as nothing was changed, one that may succeed later is left to the next pod.
func (p *preparer) giveUpCheckout(ctx context.Context, c *journal.Checkout, err error) error {
	var refused *checkpoint.RefusedError
	hopeless := judge(err).permanent || errors.As(err, &refused) && !refused.Retryable
	switch {
	case c.Stage == journal.CheckoutBegun && hopeless:
		return p.failCheckout(c, err)
	case c.Stage == journal.CheckoutBegun:
		return p.dropCheckout(ctx, err)
	case !hopeless:
		return err
	}
	p.log.Error(err, "the checkout failed, and is taken back", "id", c.ID)
	if restoring := p.restoreHead(ctx, c); restoring != nil {
		return fmt.Errorf("take back the checkout, which failed (%s): %w", err.Error(), restoring)
	}
	return p.failCheckout(c, err)
}

// dropCheckout leaves a checkout that changed nothing to the next start of a pod, where it begins
// anew.
func (p *preparer) dropCheckout(ctx context.Context, why error) error {
	if err := p.postpone(ctx, why, startsWithout); err != nil {
		return err
	}
	return p.journal.Update(func(s *journal.State) error { s.Checkout = nil; return nil })
}

// restoreHead brings HEAD and index, which are all that a checkout changes, back to what they were
// before it.
func (p *preparer) restoreHead(ctx context.Context, c *journal.Checkout) error {
	p.known.drift = nil
	if err := p.retry(ctx, func() error { return p.repo.RestoreHead(ctx, target(c.From)) }); err != nil {
		return fmt.Errorf("restore HEAD and index of checkpoint %d: %w", c.From.Number, err)
	}
	return nil
}

// What is logged of a checkout that is left to the next start of a pod.
const (
	startsWithout    = "the agent starts without the branch checked out; the next pod tries again"
	startsUnreported = "the branch is checked out, and the gitstore lacks the checkpoint that says so; a later pod reports it"
)

// postpone leaves a checkout to the next start of a pod, unless the agent must not start in this one.
func (p *preparer) postpone(ctx context.Context, err error, what string) error {
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case errors.Is(err, gatewayclient.ErrFenced):
		return err
	}
	p.log.Error(err, what)
	return nil
}

// saveBeforeCheckout makes sure that the current state is in a checkpoint that the gitstore has.
func (p *preparer) saveBeforeCheckout(ctx context.Context, c *journal.Checkout) error {
	ctx, cancel := context.WithTimeout(ctx, maxCheckoutWait)
	defer cancel()
	from, err := p.currentCheckpoint(ctx, c.From)
	if err != nil {
		return err
	}
	if from == nil {
		point, err := p.taker.Take(ctx, checkpoint.Request{Trigger: triggerPreCheckout, Message: "Before the checkout of the branch " + c.Branch,
			Also: func(s *journal.State, point journal.Point) { s.Checkout.From = point }})
		if err != nil {
			return err
		}
		from = &point
	}
	if err := p.requirePushed(ctx, from.Number); err != nil {
		return err
	}
	return p.journal.Update(func(s *journal.State) error {
		s.Checkout.Stage, s.Checkout.From = journal.CheckoutSaved, *from
		return nil
	})
}

// tryToMoveHead is moveHead, until it has not come to its end too often, whatever the cause: a
// container that is killed, since its memory does not suffice for all files, cannot tell.
func (p *preparer) tryToMoveHead(ctx context.Context, c *journal.Checkout) error {
	if c.Tries >= maxCheckoutTries {
		return &failure{permanent: true, message: fmt.Sprintf(
			"it did not come to its end in %d starts, and was taken back; the files may be too many for the memory of Clew's containers: ask for it with a new id once the cause is removed", c.Tries)}
	}
	if err := p.journal.Update(func(s *journal.State) error { s.Checkout.Tries++; return nil }); err != nil {
		return err
	}
	return p.moveHead(ctx, c)
}

// moveHead brings HEAD and index to the branch, and takes the checkpoint CheckedOut.
func (p *preparer) moveHead(ctx context.Context, c *journal.Checkout) error {
	there, err := p.repo.FindCheckout(branchOf(c))
	if err == nil && !there {
		// After a crash, somebody may have changed the volume.
		err = p.sameFiles(ctx, c)
	}
	if err == nil && !there {
		// No ref of the repository leads to the commit.
		err = p.makeAgain(ctx, c)
	}
	if err == nil && !there {
		p.known.drift = nil
		err = p.repo.CheckOut(ctx, branchOf(c), c.Target.Code)
	}
	if err != nil {
		return err
	}
	_, err = p.taker.Take(ctx, checkpoint.Request{Trigger: triggerCheckedOut, Message: fmt.Sprintf("Checked out the branch %s of checkpoint %d", c.Branch, c.Target.Number),
		Also: func(s *journal.State, point journal.Point) {
			s.Checkout.Stage, s.Checkout.To = journal.CheckoutMarked, point.Number
			s.Clean = &point
		}})
	return err
}

// makeAgain makes the commit of the branch again.
func (p *preparer) makeAgain(ctx context.Context, c *journal.Checkout) error {
	commit, err := p.publishedAs(ctx, c.Target.Number)
	if err == nil && commit != c.Commit {
		err = &failure{reason: v1alpha1.ReasonInvalidState, permanent: true, message: fmt.Sprintf(
			"checkpoint %d is published as the commit %s, and no longer as %s, at which the branch is: use another branch", c.Target.Number, commit, c.Commit)}
	}
	return err
}

// keepCheckedOut journals a checkout of the branch that HEAD is on already, and makes sure that a
// checkpoint says so.
func (p *preparer) keepCheckedOut(ctx context.Context, c *journal.Checkout) error {
	mark := func(s *journal.State, at journal.Point) {
		marked := *c
		marked.Stage, marked.To = journal.CheckoutMarked, at.Number
		s.Checkout, s.Clean = &marked, &at
	}
	at, err := p.currentCheckpoint(ctx, journal.Point{})
	switch {
	case err != nil:
	case at != nil:
		err = p.journal.Update(func(s *journal.State) error { mark(s, *at); return nil })
	default:
		_, err = p.taker.Take(ctx, checkpoint.Request{Trigger: triggerCheckedOut, Message: fmt.Sprintf("On the branch %s of checkpoint %d", c.Branch, c.Target.Number), Also: mark})
	}
	if err != nil {
		return p.giveUpCheckout(ctx, c, fmt.Errorf("check out the branch %s: %w", c.Branch, err))
	}
	return p.finishCheckout(ctx)
}

// endCheckout ends a checkout that was carried out, once the gitstore has a checkpoint of it: what
// is reported must outlive the volume. The agent does not wait for that.
func (p *preparer) endCheckout(ctx context.Context, c *journal.Checkout) error {
	pushing, cancel := context.WithTimeout(ctx, maxCheckoutWait)
	defer cancel()
	err := p.requireCheckedOut(pushing, c)
	clean := p.journal.State().Clean
	untouched := clean != nil && clean.Number == c.To // no agent has run since
	switch {
	case err == nil:
		return p.reportCheckedOut(ctx, c)
	case !refusedForGood(err) || !untouched:
		return p.postpone(ctx, err, startsUnreported)
	case c.From.Number == 0: // HEAD was there before
		return p.dropCheckout(ctx, err)
	}
	p.log.Error(err, "the checkout would not outlive the volume, and is taken back", "id", c.ID)
	if err := p.restoreHead(ctx, c); err != nil {
		return err
	}
	return p.failCheckout(c, fmt.Errorf("check out the branch %s: %w", c.Branch, err))
}

// requireCheckedOut makes sure that the gitstore has a checkpoint which says that the branch is
// checked out, or was.
func (p *preparer) requireCheckedOut(ctx context.Context, c *journal.Checkout) error {
	err := p.requirePushed(ctx, c.To)
	latest := p.journal.State().Latest
	if refusedForGood(err) && latest != nil && latest.Number > c.To && !p.taker.MissingInGitstore(latest.Number) {
		return nil // it was taken since
	}
	return err
}

// refusedForGood reports whether an error is that the gitstore will never have a checkpoint.
func refusedForGood(err error) bool {
	return err != nil && judge(err) == verdict{reason: v1alpha1.ReasonGitStoreRefused, permanent: true}
}

// reportCheckedOut has the server remember a checkout, and ends it.
func (p *preparer) reportCheckedOut(ctx context.Context, c *journal.Checkout) error {
	key := daemonapi.OperationKey(daemonapi.OperationCheckout, c.ID)
	if _, err := p.move(ctx, &daemonv1.Move{OperationId: key, Reason: daemonapi.NoteCheckout, KeepPosition: true}); err != nil {
		return err
	}
	done := journal.Done{ID: key}
	if c.From.Number != 0 {
		done.From, done.To = c.From.Number, c.To
	}
	return p.concludeCheckout(c, done)
}

// failCheckout ends a checkout that failed and left everything unchanged.
func (p *preparer) failCheckout(c *journal.Checkout, err error) error {
	f := failureOf(err)
	switch worktree.ReasonOf(err) {
	case worktree.UnfinishedWork:
		f.Reason = v1alpha1.ReasonUnfinishedWork
	case worktree.RepositoryUnsuited:
		f.Reason = v1alpha1.ReasonRepositoryUnsuited
	}
	p.log.Info("the branch was not checked out", "id", c.ID, "branch", c.Branch, "reason", f.Reason, "message", f.Message)
	return p.concludeCheckout(c, journal.Done{ID: daemonapi.OperationKey(daemonapi.OperationCheckout, c.ID), Failure: &f})
}

// concludeCheckout journals and reports the outcome of a checkout.
func (p *preparer) concludeCheckout(c *journal.Checkout, done journal.Done) error {
	err := p.journal.Update(func(s *journal.State) error {
		s.Checkout = nil
		if done.Failure != nil && c.Stage == journal.CheckoutMarked {
			s.Clean = &c.From // it was taken back
		}
		s.Complete(done)
		return nil
	})
	if asked := p.cfg.Pod.Checkout; err == nil && asked != nil && asked.ID == c.ID {
		p.reportCheckout(c.ID, done)
	}
	return err
}

// reportCheckout adds the outcome of a checkout to the result.
func (p *preparer) reportCheckout(id string, done journal.Done) {
	p.result.Checkout = &daemonapi.CheckoutResult{ID: id, FromCheckpoint: done.From, ToCheckpoint: done.To}
	if f := done.Failure; f != nil {
		p.result.Checkout.Reason, p.result.Checkout.Message = f.Reason, truncate(f.Message, maxCheckoutMessage)
	}
}

// branchOf returns the branch of a checkout.
func branchOf(c *journal.Checkout) worktree.AgentBranch {
	return worktree.AgentBranch{Name: c.Branch, Commit: c.Commit}
}
