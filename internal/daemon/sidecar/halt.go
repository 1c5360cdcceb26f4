package sidecar

import (
	"context"
	"sync"
	"time"
)

// unstoppedEvery is how often it is logged at most that an agent does not stop.
const unstoppedEvery = time.Minute

// halt is one stop of the agent, which all risky calls share that are seen while it
// lasts: one stop is as good for them as one for each.
type halt struct {
	freeze *freeze
	made   chan struct{} // closed when freeze is there
	calls  int           // that share it; under guard.mu
}

// halts reports whether the agent is being stopped, or still is as it was.
func (h *halt) halts() bool {
	select {
	case <-h.made:
		return h.freeze.lasts()
	default:
		return true
	}
}

// halt stops the agent for a call, unless it is stopped for another one. The agent
// goes on when the last of them has parted from it.
func (d *daemon) halt(ctx context.Context) *halt {
	for {
		h, first := d.guard.join()
		if first {
			h.freeze = d.socket.freeze(ctx)
			close(h.made)
		}
		<-h.made // it ends with ctx, too
		if first || h.freeze.lasts() {
			return h
		}
		// The shim has connected anew meanwhile, and knows of no stop.
		d.guard.part(h)
	}
}

// join makes a call share the stop of the agent; if there is none, its own is to be made.
func (g *guard) join() (h *halt, first bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.halted == nil || !g.halted.halts() {
		g.halted, first = &halt{made: make(chan struct{})}, true
	}
	g.halted.calls++
	return g.halted, first
}

// halting reports whether the agent stands still for calls.
func (g *guard) halting() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.halted != nil && g.halted.halts()
}

// part ends a call's share in a stop.
func (g *guard) part(h *halt) {
	g.mu.Lock()
	h.calls--
	last := h.calls == 0
	if last && g.halted == h {
		g.halted = nil
	}
	g.mu.Unlock()
	if last {
		h.freeze.thaw()
	}
}

// occasionally tells something that happens often at most so often.
type occasionally struct {
	every time.Duration

	mu     sync.Mutex
	told   time.Time
	untold int
}

// tell calls f unless it was called a short while ago, with how often it was not since.
func (o *occasionally) tell(f func(untold int)) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.told.IsZero() && time.Since(o.told) < o.every {
		o.untold++
		return
	}
	f(o.untold)
	o.told, o.untold = time.Now(), 0
}
