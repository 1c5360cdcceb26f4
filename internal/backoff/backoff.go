// Package backoff waits between tries: longer each time, with jitter, so that
// many daemons do not come back at once. The steps are those of apimachinery's wait.
package backoff

import (
	"cmp"
	"context"
	"math"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
)

// Backoff grows from Min to Max by doubling. The zero value of a field means
// 200 ms and 15 s.
type Backoff struct {
	Min, Max time.Duration
	next     wait.DelayFunc
}

// Next is how long to wait now: between half and all of the current step.
func (b *Backoff) Next() time.Duration {
	if b.next == nil {
		low, high := cmp.Or(b.Min, 200*time.Millisecond), cmp.Or(b.Max, 15*time.Second)
		b.next = wait.Backoff{Duration: low / 2, Cap: high / 2, Factor: 2, Jitter: 1, Steps: math.MaxInt32}.DelayFunc()
	}
	return b.next()
}

// Reset begins again at Min.
func (b *Backoff) Reset() { b.next = nil }

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
