package socket

import (
	"context"
	"sync"
	"time"
)

// unstoppedEvery is the shortest time between two log lines about an agent that does not
// stop.
const unstoppedEvery = time.Minute

// Stop is one stop of the agent, shared by all risky calls that are seen while it is in
// force, since one stop protects all of them.
type Stop struct {
	s      *Server
	freeze *Freeze
	frozen chan struct{} // closed when freeze is set
	calls  int           // number of calls that share it; guarded by s.sharing
}

// active reports whether the agent is being stopped, or is stopped and nothing has ended
// that.
func (p *Stop) active() bool {
	select {
	case <-p.frozen:
		return p.freeze.active()
	default:
		return true
	}
}

// Unbroken reports whether the whole agent was stopped and has not run since.
func (p *Stop) Unbroken() bool { return p.freeze.unbroken() }

// End ends one call's share of the stop. The agent continues after the last one.
func (p *Stop) End() {
	p.s.sharing.Lock()
	p.calls--
	last := p.calls == 0
	if last && p.s.shared == p {
		p.s.shared = nil
	}
	p.s.sharing.Unlock()
	if last {
		p.freeze.Thaw()
	}
}

// Stop stops the agent for a call, unless it is already stopped for another one. The
// caller must call End.
func (s *Server) Stop(ctx context.Context) *Stop {
	for {
		p, first := s.share()
		if first {
			p.freeze = s.Freeze(ctx)
			close(p.frozen)
		}
		<-p.frozen // closed when ctx ends, too
		if first || p.freeze.active() {
			return p
		}
		// The shim has reconnected meanwhile, and has continued the agent.
		p.End()
	}
}

// share returns the current stop of the agent or, with first set, a new one that the
// caller has to freeze.
func (s *Server) share() (p *Stop, first bool) {
	s.sharing.Lock()
	defer s.sharing.Unlock()
	if s.shared == nil || !s.shared.active() {
		s.shared, first = &Stop{s: s, frozen: make(chan struct{})}, true
	}
	s.shared.calls++
	return s.shared, first
}

// Stopped reports whether the agent is stopped for risky calls.
func (s *Server) Stopped() bool {
	s.sharing.Lock()
	defer s.sharing.Unlock()
	return s.shared != nil && s.shared.active()
}

// throttle limits how often something is done.
type throttle struct {
	every time.Duration

	mu      sync.Mutex
	last    time.Time
	skipped int
}

// do calls f with the number of calls skipped since the last one, unless that was less
// than every ago.
func (o *throttle) do(f func(skipped int)) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.last.IsZero() && time.Since(o.last) < o.every {
		o.skipped++
		return
	}
	f(o.skipped)
	o.last, o.skipped = time.Now(), 0
}
