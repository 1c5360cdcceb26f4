package run

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"github.com/onsi/gomega"

	"github.com/clew-dev/clew/internal/daemonapi"
)

// work works for a while in parts of a millisecond, and tells how long it took.
func work(s *stretch, while time.Duration) time.Duration {
	began := time.Now()
	s.begin()
	for range while / time.Millisecond {
		<-time.After(time.Millisecond)
		s.rest()
	}
	return time.Since(began)
}

func always(time.Duration) bool { return true }

func TestWorkThatOwesProcessorTimeIsStretched(t *testing.T) {
	yes, no := always, func(time.Duration) bool { return false }
	for name, c := range map[string]struct {
		owed        func(time.Duration) bool
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
		g.Expect(work(newStretch(ctx, always), time.Second)).To(gomega.Equal(time.Second))
	})
}

func TestARestIsOverWhenNothingIsOwedAnyMore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := gomega.NewWithT(t)
		began := time.Now()
		s := newStretch(t.Context(), func(time.Duration) bool { return time.Since(began) < 2*time.Second })
		s.begin()
		time.Sleep(time.Second)
		s.rest()
		g.Expect(time.Since(began)).To(gomega.Equal(2 * time.Second))
	})
}

func TestWhatCameBeforeTheWorkIsNotStretched(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := gomega.NewWithT(t)
		s := newStretch(t.Context(), always)
		time.Sleep(5 * time.Second)
		g.Expect(work(s, time.Second)).To(gomega.Equal(4 * time.Second))
	})
}

// An agent is only stopped for so long: the rest of that is for the work.
func TestWorkIsStretchedByTenSecondsAtMostWhileTheAgentStandsStillForACall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := gomega.NewWithT(t)
		socket := newSocket(nil, nil, daemonapi.Config{}, logr.Discard())
		d := &daemon{socket: socket, guard: &guard{}, pace: newPace(1), cfg: Config{ProcessorTime: func() time.Duration { return 0 }}}
		d.pace.worked(time.Hour, time.Now())
		connect(t, socket)
		s := newStretch(t.Context(), d.owing())
		h := d.halt(t.Context())
		g.Expect(work(s, 10*time.Second)).To(gomega.Equal(20 * time.Second))
		d.guard.part(h)
		g.Expect(work(s, time.Second)).To(gomega.Equal(4 * time.Second))
		socket.terminating = true
		g.Expect(work(s, time.Second)).To(gomega.Equal(time.Second), "nothing is put off when the pod is to end")
	})
}
