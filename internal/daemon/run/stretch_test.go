package run

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/onsi/gomega"
)

// work works for a while in parts of a millisecond, and tells how long it took.
func work(s *stretch, while time.Duration) time.Duration {
	began := time.Now()
	for range while / time.Millisecond {
		<-time.After(time.Millisecond)
		s.rest()
	}
	return time.Since(began)
}

func TestWorkThatOwesProcessorTimeIsStretched(t *testing.T) {
	yes, no := func() bool { return true }, func() bool { return false }
	for name, c := range map[string]struct {
		owed        func() bool
		while, took time.Duration
	}{
		"a second's":             {yes, time.Second, 4 * time.Second},
		"a moment's":             {yes, 10 * time.Millisecond, 10 * time.Millisecond},
		"by 20 s at most":        {yes, time.Minute, 80 * time.Second},
		"not if nothing is owed": {no, time.Minute, time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := gomega.NewWithT(t)
				s := newStretch(t.Context(), c.owed)
				g.Expect(work(s, c.while)).To(gomega.Equal(c.took))
			})
		})
	}
}

func TestAStretchIsOverWithTheAttempt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := gomega.NewWithT(t)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		g.Expect(work(newStretch(ctx, func() bool { return true }), time.Second)).To(gomega.Equal(time.Second))
	})
}
