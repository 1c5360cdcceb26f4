package backoff_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/clew-dev/clew/internal/backoff"
)

func TestDelaysDoubleFromMinToMax(t *testing.T) {
	b := backoff.Backoff{Min: 100 * time.Millisecond, Max: time.Second}
	for range 2 {
		for n, step := range []time.Duration{100 * time.Millisecond, 200 * time.Millisecond, 400 * time.Millisecond, 800 * time.Millisecond, time.Second, time.Second, time.Second} {
			if got := b.Next(); got < step/2 || got > step {
				t.Errorf("delay %d is %s, want between half and all of %s", n+1, got, step)
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
		if err := b.Wait(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Wait returns %v, want DeadlineExceeded", err)
		}
		if took := time.Since(begin); took != time.Second {
			t.Errorf("Wait returned after %s, want 1s", took)
		}
	})
}
