package pace

import (
	"context"
	"sync"
	"time"
)

const (
	// stretchTo is how much longer work takes that is stretched: of each so many parts
	// of the time, one is worked in. While an agent stands still for a call, it is
	// stoppedStretchTo. stretchSlice is how long it is worked at a time.
	stretchTo        = 4
	stoppedStretchTo = 2
	stretchSlice     = 20 * time.Millisecond
	// longestStretch is how much later a checkpoint is taken for that at most, and
	// longestStoppedStretch while an agent stands still for a call: with longestHold that
	// is half of the time for which an agent is ever stopped, see package shim. The other
	// half is for the work.
	longestStretch        = 20 * time.Second
	longestStoppedStretch = 10 * time.Second
)

// Stretch spreads work over more time, as long as more processor time has been used
// than was free: what comes at once for some seconds would slow down the node's other
// pods more than as much that comes evenly. Rest is safe for concurrent use.
type Stretch struct {
	ctx context.Context // ends all rests
	// to is how much longer work is to take after so much rest, 1 or less for as long as
	// it takes. It is asked in rests, too.
	to func(rested time.Duration) int

	mu     sync.Mutex
	last   time.Time // when the work began, or went on
	rested time.Duration
}

// Stretch is for the work of one checkpoint; ctx ends all its rests.
func (p *Pace) Stretch(ctx context.Context) *Stretch { return &Stretch{ctx: ctx, to: p.stretchesTo()} }

// stretchesTo tells how much longer work is to take: checkpoints have used more processor
// time than is free, with what is used from now on, no agent stands still for calls for
// too long, and the pod is not about to end.
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

// Begin is called when work begins. It may come in several parts.
func (s *Stretch) Begin() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.last = time.Now()
}

// Rest is called between any two parts of the work, and waits from time to time. Who
// comes meanwhile waits as well.
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
