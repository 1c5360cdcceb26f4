package pace

import (
	"context"
	"sync"
	"time"
)

const (
	// stretchTo is the factor by which stretched work takes longer, and stoppedStretchTo
	// the factor while an agent is stopped for a call.
	stretchTo        = 4
	stoppedStretchTo = 2
	// stretchSlice is how long work runs between two rests.
	stretchSlice = 20 * time.Millisecond
	// longestStretch bounds the total rest for one checkpoint, and longestStoppedStretch
	// the part of it while an agent is stopped for a call: with longestHold the latter is
	// half of the time for which an agent is ever stopped, see package shim. The other half
	// is for the work.
	longestStretch        = 20 * time.Second
	longestStoppedStretch = 10 * time.Second
)

// Stretch spreads work over more time while more processor time has been used than was
// free: a few seconds of full load slow down the node's other pods more than the same work
// spread evenly. Rest is safe for concurrent use.
type Stretch struct {
	ctx context.Context // ends all rests
	// to returns the factor by which the work should take longer, given the total rest so
	// far; 1 or less means no rest. It is called again during rests.
	to func(rested time.Duration) int

	mu     sync.Mutex
	last   time.Time // when the work began or resumed
	rested time.Duration
}

// Stretch returns a Stretch for the work of one checkpoint; ctx ends all its rests.
func (p *Pace) Stretch(ctx context.Context) *Stretch { return &Stretch{ctx: ctx, to: p.stretchesTo()} }

// stretchesTo returns the function to of a Stretch. Work is stretched if checkpoints,
// including the work from now on, have used more processor time than is free, unless an
// agent has been stopped for calls for too long or the pod is about to end.
func (p *Pace) stretchesTo() func(rested time.Duration) int {
	before := p.cfg.ProcessorTime()
	return func(rested time.Duration) int {
		stopped := p.cfg.Agent.Stopped()
		switch {
		case p.cfg.Agent.Ending(), stopped && rested >= longestStoppedStretch, p.cfg.ProcessorTime()-before <= p.freeAt(time.Now()):
			return 1
		case stopped:
			return stoppedStretchTo
		}
		return stretchTo
	}
}

// Begin is called when the work begins, and for each further part of it.
func (s *Stretch) Begin() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.last = time.Now()
}

// Rest is called at intervals during the work, and waits if a rest is due. Concurrent
// callers wait with it.
func (s *Stretch) Rest() {
	s.mu.Lock()
	defer s.mu.Unlock()
	worked := time.Since(s.last)
	if worked < stretchSlice {
		return
	}
	for done := time.Duration(0); s.ctx.Err() == nil; done += stretchSlice {
		left := min(worked*time.Duration(s.to(s.rested)-1)-done, longestStretch-s.rested, stretchSlice)
		if left <= 0 {
			break
		}
		s.rested += left
		select {
		case <-s.ctx.Done():
		case <-time.After(left):
		}
	}
	s.last = time.Now()
}
