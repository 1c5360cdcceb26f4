// Package paces keeps each of any number of callers to the same pace: so many a second in
// the long run, and a burst for whoever was idle.
package paces

import (
	"sync"
	"time"

	"golang.org/x/time/rate"
	"k8s.io/apimachinery/pkg/util/cache"
)

// kept is how many paces are remembered: those of the callers that came last.
const kept = 16384

// Paces holds the paces of callers, by their names. It is safe for concurrent use. Make
// one with New.
type Paces struct {
	perSecond rate.Limit
	burst     int
	// remembered is how long a caller's pace is, after they asked.
	remembered time.Duration

	mu       sync.Mutex
	limiters *cache.LRUExpireCache
}

// New is for callers each of whom may do so much a second, and a burst at once.
func New(perSecond rate.Limit, burst int) *Paces {
	full := time.Duration(float64(burst) / float64(perSecond) * float64(time.Second))
	// What is reserved ahead is paid for later: hence twice as long, and at least a minute.
	return &Paces{perSecond: perSecond, burst: burst, remembered: max(2*full, time.Minute), limiters: cache.NewLRUExpireCache(kept)}
}

// Of is the pace of a caller. It is forgotten when the caller has not asked for so long
// that it would be a new one again.
func (p *Paces) Of(caller string) *rate.Limiter {
	p.mu.Lock()
	defer p.mu.Unlock()
	limiter, ok := p.limiters.Get(caller)
	if !ok {
		limiter = rate.NewLimiter(p.perSecond, p.burst)
	}
	p.limiters.Add(caller, limiter, p.remembered)
	return limiter.(*rate.Limiter)
}
