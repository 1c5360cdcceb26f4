package pace

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/onsi/gomega"
)

// work simulates work of the given length in parts of a millisecond, and returns how long it
// took.
func work(s *Stretch, while time.Duration) time.Duration {
	began := time.Now()
	s.Begin()
	for range while / time.Millisecond {
		time.Sleep(time.Millisecond) // the work, on the fake clock
		s.Rest()
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
				s := &Stretch{ctx: t.Context(), to: c.to}
				g.Expect(work(s, c.while)).To(gomega.Equal(c.took))
			})
		})
	}
}

func TestAStretchEndsWithTheAttempt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := gomega.NewWithT(t)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		g.Expect(work(&Stretch{ctx: ctx, to: always}, time.Second)).To(gomega.Equal(time.Second))
	})
}

func TestARestEndsWhenNothingIsOwed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := gomega.NewWithT(t)
		began := time.Now()
		s := &Stretch{ctx: t.Context(), to: func(time.Duration) int {
			if time.Since(began) < 2*time.Second {
				return stretchTo
			}
			return 1
		}}
		s.Begin()
		time.Sleep(time.Second) // the work, on the fake clock
		s.Rest()
		g.Expect(time.Since(began)).To(gomega.Equal(2 * time.Second))
	})
}

func TestTheTimeBeforeTheWorkIsNotStretched(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := gomega.NewWithT(t)
		s := &Stretch{ctx: t.Context(), to: always}
		time.Sleep(5 * time.Second) // the time before the work, on the fake clock
		g.Expect(work(s, time.Second)).To(gomega.Equal(4 * time.Second))
	})
}

// The time for which an agent is stopped is limited, and most of it is for the work.
func TestWorkIsStretchedByAtMostTenSecondsWhileTheAgentIsStoppedForACall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := gomega.NewWithT(t)
		agent := &agentIs{stopped: true}
		p := New(Config{ProcessorTime: func() time.Duration { return 0 }, ProcessorsShort: never, Agent: agent})
		p.worked(time.Hour, time.Now())
		s := p.Stretch(t.Context())
		g.Expect(work(s, time.Second)).To(gomega.Equal(2 * time.Second))
		g.Expect(work(s, 10*time.Second)).To(gomega.Equal(19 * time.Second))
		agent.stopped = false
		g.Expect(work(s, time.Second)).To(gomega.Equal(4 * time.Second))
		agent.ending = true
		g.Expect(work(s, time.Second)).To(gomega.Equal(time.Second), "work is not stretched when the pod is about to end")
	})
}

// An agent can pretend that its pod ends. That lifts the bounds on processor time, and never
// that on the number of checkpoints.
func TestWhenThePodEndsNothingWaitsForProcessorTime(t *testing.T) {
	g := gomega.NewWithT(t)
	agent := &agentIs{}
	p := New(Config{LeastIntervalSeconds: 30, ProcessorsShort: never, Agent: agent})
	p.worked(time.Hour, time.Now())
	p.Taken()
	g.Expect(p.RiskyRest()).To(gomega.BeNumerically(">", 0))
	g.Expect(p.AskedRest()).To(gomega.BeNumerically(">", 0))
	agent.ending = true
	g.Expect(p.RiskyRest()).To(gomega.BeZero())
	g.Expect(p.AskedRest()).To(gomega.BeZero())
	g.Expect(p.UntilRisky()).To(gomega.BeZero())
	for range Burst {
		p.Spend()
	}
	g.Expect(p.UntilRisky()).To(gomega.BeNumerically(">", 0))
	agent.ending = false
	g.Expect(p.RiskyRest()).To(gomega.BeNumerically(">", 0))
}
