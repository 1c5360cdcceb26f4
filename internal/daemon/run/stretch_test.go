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

func TestARestIsOverWhenNothingIsOwedAnyMore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := gomega.NewWithT(t)
		began := time.Now()
		s := newStretch(t.Context(), func() bool { return time.Since(began) < 2*time.Second })
		s.begin()
		time.Sleep(time.Second)
		s.rest()
		g.Expect(time.Since(began)).To(gomega.Equal(2 * time.Second))
	})
}

func TestWhatCameBeforeTheWorkIsNotStretched(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := gomega.NewWithT(t)
		s := newStretch(t.Context(), func() bool { return true })
		time.Sleep(5 * time.Second)
		g.Expect(work(s, time.Second)).To(gomega.Equal(4 * time.Second))
	})
}

func TestWorkIsNotStretchedWhileTheAgentStandsStillForACall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := gomega.NewWithT(t)
		socket := newSocket(nil, nil, daemonapi.Config{}, logr.Discard())
		d := &daemon{socket: socket, guard: &guard{}, pace: newPace(1), cfg: Config{ProcessorTime: func() time.Duration { return 0 }}}
		d.pace.worked(time.Hour, time.Now())
		connect(t, socket)
		s := newStretch(t.Context(), d.owing())
		g.Expect(work(s, time.Second)).To(gomega.Equal(4 * time.Second))
		h := d.halt(t.Context())
		g.Expect(work(s, time.Second)).To(gomega.Equal(time.Second))
		d.guard.part(h)
		g.Expect(work(s, time.Second)).To(gomega.Equal(4 * time.Second))
		socket.terminating = true
		g.Expect(work(s, time.Second)).To(gomega.Equal(time.Second), "nor when the pod is to end")
	})
}
