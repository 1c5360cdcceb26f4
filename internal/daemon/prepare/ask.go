package prepare

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/clew-dev/clew/internal/daemon/checkpoint"
	"github.com/clew-dev/clew/internal/daemon/gatewayclient"
)

// fenceTimeout bounds asking the gitstore which attempt it has seen.
const fenceTimeout = 10 * time.Second

// checkFence asks the gitstore whether it has seen a newer attempt that neither the server
// nor the volume knows of: the first push would then end the agent. The volume may have
// been full when that attempt was to be journalled there. If the gitstore cannot be reached
// the agent starts anyway, as it does whenever the gitstore is down.
func (p *preparer) checkFence(ctx context.Context) error {
	remote, err := p.cfg.Remote()
	if err != nil {
		return err
	}
	asking, cancel := context.WithTimeout(ctx, fenceTimeout)
	defer cancel()
	if err := wrapPlace(placeGitstore, p.repo.CheckPush(asking, remote)); errors.Is(err, gatewayclient.ErrFenced) {
		return err
	}
	p.askGitstore(ctx)
	return nil // any other obstacle is reported by the push itself
}

// asked is what the gitstore is asked, and given, beside the other steps.
type asked struct {
	cancel  context.CancelFunc
	healed  sync.WaitGroup
	listed  chan struct{}
	listing checkpoint.Listing
	err     error
}

// askGitstore begins to ask the gitstore what it has of the task, and to bring it what it
// lacks. An older attempt can no longer change the answer.
func (p *preparer) askGitstore(ctx context.Context) {
	if p.cfg.Pod.Attempt == 1 && p.journal.State().LastNumber == 0 {
		return // there is nothing yet
	}
	ctx, cancel := context.WithCancel(ctx)
	a := &asked{cancel: cancel, listed: make(chan struct{})}
	p.asked = a
	go func() {
		defer close(a.listed)
		a.listing, a.err = p.taker.List(ctx)
	}()
	a.healed.Go(func() { p.taker.Heal(ctx) })
}

// listing returns what the gitstore has of the task.
func (p *preparer) listing(ctx context.Context) (checkpoint.Listing, error) {
	if p.asked == nil {
		return p.taker.List(ctx)
	}
	<-p.asked.listed
	return p.asked.listing, p.asked.err
}

// awaitHealed waits until the gitstore has been brought what it lacked.
func (p *preparer) awaitHealed() {
	if p.asked != nil {
		p.asked.healed.Wait()
	}
}

// stopAsking ends what askGitstore began, since the volume is about to be closed.
func (p *preparer) stopAsking() {
	if p.asked == nil {
		return
	}
	p.asked.cancel()
	<-p.asked.listed
	p.asked.healed.Wait()
}
