// Package backoff computes the delays between retries: exponentially growing, with
// jitter, so that many daemons do not retry at the same moment. It is based on
// apimachinery's wait.Backoff.
package backoff

import (
	"cmp"
	"context"
	"math"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
)

// Backoff is a delay that doubles from Min to Max. Zero means 200 ms for Min and
// 15 s for Max.
type Backoff struct {
	Min, Max time.Duration
	next     wait.DelayFunc
}

// Next returns the next delay: a random duration between half of the current step and
// the whole of it.
func (b *Backoff) Next() time.Duration {
	if b.next == nil {
		low, high := cmp.Or(b.Min, 200*time.Millisecond), cmp.Or(b.Max, 15*time.Second)
		b.next = wait.Backoff{Duration: low / 2, Cap: high / 2, Factor: 2, Jitter: 1, Steps: math.MaxInt32}.DelayFunc()
	}
	return b.next()
}

// Reset starts over at Min.
func (b *Backoff) Reset() { b.next = nil }

// Wait waits for the next delay. It returns early, with ctx's error, if ctx is done.
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
