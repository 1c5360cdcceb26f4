package socket

import (
	"context"
	"sync"
	"time"
)

// unstoppedEvery is how often it is logged at most that an agent does not stop.
const unstoppedEvery = time.Minute

// Stop is one stop of the agent, which all risky calls share that are seen while it
// lasts: one stop is as good for them as one for each.
type Stop struct {
	s      *Server
	freeze *Freeze
	made   chan struct{} // closed when freeze is there
	calls  int           // that share it; under s.sharing
}

// lasts reports whether the agent is being stopped, or still is as it was.
func (h *Stop) lasts() bool {
	select {
	case <-h.made:
		return h.freeze.lasts()
	default:
		return true
	}
}

// Stands reports whether the agent has stood still from when it was stopped.
func (h *Stop) Stands() bool { return h.freeze.stands() }

// End ends a call's share in the stop: the agent goes on when the last one has.
func (h *Stop) End() {
	h.s.sharing.Lock()
	h.calls--
	last := h.calls == 0
	if last && h.s.shared == h {
		h.s.shared = nil
	}
	h.s.sharing.Unlock()
	if last {
		h.freeze.Thaw()
	}
}

// Stop stops the agent for a call, at once, unless it is stopped for another one.
// The call has to End its share.
func (s *Server) Stop(ctx context.Context) *Stop {
	for {
		h, first := s.share()
		if first {
			h.freeze = s.Freeze(ctx)
			close(h.made)
		}
		<-h.made // it ends with ctx, too
		if first || h.freeze.lasts() {
			return h
		}
		// The shim has connected anew meanwhile, and knows of no stop.
		h.End()
	}
}

// share makes a call share the stop of the agent; if there is none, its own is to be made.
func (s *Server) share() (h *Stop, first bool) {
	s.sharing.Lock()
	defer s.sharing.Unlock()
	if s.shared == nil || !s.shared.lasts() {
		s.shared, first = &Stop{s: s, made: make(chan struct{})}, true
	}
	s.shared.calls++
	return s.shared, first
}

// Stopped reports whether the agent stands still for calls.
func (s *Server) Stopped() bool {
	s.sharing.Lock()
	defer s.sharing.Unlock()
	return s.shared != nil && s.shared.lasts()
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
