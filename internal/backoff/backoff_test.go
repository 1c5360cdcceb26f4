package backoff_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/clew-dev/clew/internal/backoff"
)

func TestWaitsDoubleFromTheFirstToTheLast(t *testing.T) {
	b := backoff.Backoff{Min: 100 * time.Millisecond, Max: time.Second}
	for range 2 {
		for n, step := range []time.Duration{100 * time.Millisecond, 200 * time.Millisecond, 400 * time.Millisecond, 800 * time.Millisecond, time.Second, time.Second, time.Second} {
			if got := b.Next(); got < step/2 || got > step {
				t.Errorf("wait %d is %s, and not between half and all of %s", n+1, got, step)
			}
		}
		b.Reset()
	}
}

func TestAWaitEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		b := backoff.Backoff{Min: time.Hour, Max: time.Hour}
		begin := time.Now()
		if err := b.Wait(ctx); !errors.Is(err, context.DeadlineExceeded) || time.Since(begin) != time.Second {
			t.Errorf("%v after %s", err, time.Since(begin))
		}
	})
}
