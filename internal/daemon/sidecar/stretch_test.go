package sidecar

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

func always(time.Duration) int { return stretchTo }

func TestWorkThatOwesProcessorTimeIsStretched(t *testing.T) {
	yes, no := always, func(time.Duration) int { return 1 }
	for name, c := range map[string]struct {
		to          func(time.Duration) int
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
				s := newStretch(t.Context(), c.to)
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
		s := newStretch(t.Context(), func(time.Duration) int {
			if time.Since(began) < 2*time.Second {
				return stretchTo
			}
			return 1
		})
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
		d := &daemon{socket: socket, guard: &guard{}, pace: newPace(1, never), cfg: Config{ProcessorTime: func() time.Duration { return 0 }}}
		d.pace.worked(time.Hour, time.Now())
		connect(t, socket)
		s := newStretch(t.Context(), d.stretchesTo())
		h := d.halt(t.Context())
		g.Expect(work(s, time.Second)).To(gomega.Equal(2 * time.Second))
		g.Expect(work(s, 10*time.Second)).To(gomega.Equal(19 * time.Second))
		d.guard.part(h)
		g.Expect(work(s, time.Second)).To(gomega.Equal(4 * time.Second))
		socket.haste = time.Now().Add(time.Minute)
		g.Expect(work(s, time.Second)).To(gomega.Equal(time.Second), "nothing is put off when the pod is to end")
	})
}

// An agent can have its pod's shim told to end, and go on: that takes the bounds of its
// checkpoints away for two minutes at most, and never that of their number.
func TestWhatAnAgentSaysOfItsPodsEndLiftsNoBoundForLong(t *testing.T) {
	g := gomega.NewWithT(t)
	socket := newSocket(nil, nil, daemonapi.Config{}, logr.Discard())
	d := &daemon{socket: socket, guard: &guard{}, pace: newPace(30, never), cfg: Config{ProcessorTime: func() time.Duration { return 0 }}}
	now := time.Now()
	d.pace.worked(time.Hour, now)
	d.pace.took = now
	g.Expect(d.holdRest()).To(gomega.BeNumerically(">", 0))
	socket.haste = now.Add(longestHaste)
	g.Expect(d.holdRest()).To(gomega.BeZero())
	g.Expect(d.hold()).To(gomega.BeZero())
	for range checkpointBurst {
		d.pace.spend()
	}
	g.Expect(d.hold()).To(gomega.BeNumerically(">", 0))
	socket.haste = now.Add(-time.Nanosecond)
	g.Expect(d.holdRest()).To(gomega.BeNumerically(">", 0))
}
