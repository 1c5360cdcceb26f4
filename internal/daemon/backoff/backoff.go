// Package backoff waits between tries: longer each time, with jitter, so that
// many daemons do not come back at once.
package backoff

import (
	"context"
	"math/rand/v2"
	"time"
)

// Backoff grows from Min to Max by doubling. The zero value of a field means
// 200 ms and 15 s.
type Backoff struct {
	Min, Max time.Duration
	next     time.Duration
}

// Next is how long to wait now: between half and all of the current step.
func (b *Backoff) Next() time.Duration {
	low, high := b.Min, b.Max
	if low == 0 {
		low = 200 * time.Millisecond
	}
	if high == 0 {
		high = 15 * time.Second
	}
	b.next = min(max(b.next, low), high)
	step := b.next
	b.next *= 2
	return step/2 + rand.N(step/2+1)
}

// Reset begins again at Min.
func (b *Backoff) Reset() { b.next = 0 }

// Wait waits for Next; it returns early with ctx's error.
func (b *Backoff) Wait(ctx context.Context) error {
	timer := time.NewTimer(b.Next())
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
