package pace

import (
	"testing"
	"time"

	"github.com/onsi/gomega"
)

func never() bool { return false }

// agentIs is the state of the agent.
type agentIs struct{ stopped, ending bool }

func (a *agentIs) Stopped() bool { return a.stopped }
func (a *agentIs) Ending() bool  { return a.ending }

func paced(short func() bool) *Pace {
	return New(Config{LeastIntervalSeconds: 1, ProcessorsShort: short, Agent: &agentIs{}})
}

// TestCheckpointsWaitForEightTimesWhatEarlierOnesUsed, for at most a minute, and for at most
// 20 s if a call waits for one.
func TestCheckpointsWaitForEightTimesWhatEarlierOnesUsed(t *testing.T) {
	start := time.Now()
	for name, c := range map[string]struct {
		used        time.Duration // for each of ten checkpoints
		every, rest time.Duration
	}{
		"cheap ones, often":                   {used: 100 * time.Millisecond, every: 5 * time.Second},
		"a burst of cheap ones":               {used: 300 * time.Millisecond},
		"a burst of expensive ones":           {used: 500 * time.Millisecond, rest: 16 * time.Second},
		"expensive ones at the allowed share": {used: 3 * time.Second, every: 24 * time.Second},
		"expensive ones, too often":           {used: time.Second, every: 5 * time.Second, rest: 11 * time.Second},
		"the most expensive":                  {used: time.Hour, every: time.Minute, rest: time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			g := gomega.NewWithT(t)
			p, now := paced(never), start
			for range 10 {
				now = now.Add(c.every)
				p.worked(c.used, now)
				p.taken, p.checked = now, now
			}
			g.Expect(p.rest(now)).To(gomega.BeNumerically("~", c.rest, time.Millisecond))
			g.Expect(p.rest(now.Add(c.rest))).To(gomega.BeNumerically("<", time.Millisecond))
			g.Expect(p.holdRest(now)).To(gomega.BeNumerically("~", min(c.rest, longestHold), time.Millisecond), "the wait of a call that is held back")
			g.Expect(p.holdRest(now.Add(longestHold))).To(gomega.BeZero())
			g.Expect(p.restSince(p.taken, now, longestRest)).To(gomega.BeNumerically("~", c.rest, time.Millisecond))
			if c.every == 0 && c.rest > 0 {
				g.Expect(p.UntilCheck()).To(gomega.BeNumerically("~", c.rest, 5*time.Second))
			}
			p.worked(time.Hour, now.Add(longestRest))
			g.Expect(p.restSince(p.taken, now.Add(longestRest), longestRest)).To(gomega.BeZero(), "the wait must not grow with the work since")
		})
	}
}

func TestCheckpointsWaitTwiceAsLongWhileProcessorsAreShort(t *testing.T) {
	for name, c := range map[string]struct{ used, rest, shortRest time.Duration }{
		"what is free":     {used: freeProcessorTime},
		"a second more":    {used: freeProcessorTime + time.Second, rest: 8 * time.Second, shortRest: 16 * time.Second},
		"a minute at most": {used: time.Hour, rest: time.Minute, shortRest: time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			g := gomega.NewWithT(t)
			short := false
			p, now := paced(func() bool { return short }), time.Now()
			p.worked(c.used, now)
			g.Expect(p.rest(now)).To(gomega.Equal(c.rest))
			short = true
			g.Expect(p.rest(now)).To(gomega.Equal(c.shortRest))
			g.Expect(p.rest(now.Add(c.shortRest))).To(gomega.BeZero())
		})
	}
}

func TestWorkCountsByTheProcessorTimeItTook(t *testing.T) {
	g := gomega.NewWithT(t)
	used := time.Duration(0)
	const each = 10 * time.Second
	p := New(Config{ProcessorTime: func() time.Duration { used += each; return used }, ProcessorsShort: never, Agent: &agentIs{}})
	p.CountWork()()
	g.Expect(p.free).To(gomega.Equal(freeProcessorTime - each))
}

// Otherwise other work, such as comparisons that the agent asks for, could keep checkpoints from being
// taken for ever.
func TestACheckIsMadeAfterAMinuteWhateverIsOwed(t *testing.T) {
	g := gomega.NewWithT(t)
	p, now := paced(never), time.Now()
	p.worked(time.Hour, now)
	g.Expect(p.UntilCheck()).To(gomega.BeNumerically("~", longestRest, time.Second))
	p.checked = now.Add(-longestRest)
	g.Expect(p.UntilCheck()).To(gomega.BeZero())
	p.Unchanged()
	g.Expect(p.UntilCheck()).To(gomega.BeNumerically("~", longestRest, time.Second), "the next check waits as well")
}
