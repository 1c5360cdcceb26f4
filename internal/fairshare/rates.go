package fairshare

import (
	"sync"
	"time"

	"golang.org/x/time/rate"
	"k8s.io/apimachinery/pkg/util/cache"
)

// maxCallers is how many callers are remembered: the most recent ones.
const maxCallers = 16384

// Rates gives each caller, by name, a rate limiter of its own with the same limit: a number
// of requests a second in the long run, and a burst after a pause. It is safe for concurrent
// use. Make one with NewRates.
type Rates struct {
	perSecond rate.Limit
	burst     int
	// remembered is how long a caller's limiter is kept after its last request.
	remembered time.Duration

	mu       sync.Mutex
	limiters *cache.LRUExpireCache
}

// NewRates returns limiters that let each caller make perSecond requests a second, and a
// burst at once.
func NewRates(perSecond rate.Limit, burst int) *Rates {
	full := time.Duration(float64(burst) / float64(perSecond) * float64(time.Second))
	// A caller may have reserved tokens ahead, hence twice the time a full burst takes.
	return &Rates{perSecond: perSecond, burst: burst, remembered: max(2*full, time.Minute), limiters: cache.NewLRUExpireCache(maxCallers)}
}

// Of returns the caller's limiter. It is forgotten once the caller has paused for so long
// that a new one would be equal.
func (p *Rates) Of(caller string) *rate.Limiter {
	p.mu.Lock()
	defer p.mu.Unlock()
	limiter, ok := p.limiters.Get(caller)
	if !ok {
		limiter = rate.NewLimiter(p.perSecond, p.burst)
	}
	p.limiters.Add(caller, limiter, p.remembered)
	return limiter.(*rate.Limiter)
}
