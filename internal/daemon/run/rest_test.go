package run

import (
	"testing"
	"time"

	"github.com/onsi/gomega"
)

func TestCheckpointsTakeAnEighthOfAProcessorAtMost(t *testing.T) {
	start := time.Now()
	for name, c := range map[string]struct {
		used        time.Duration // for each of ten checkpoints
		every, rest time.Duration
	}{
		"small ones, often":         {used: 100 * time.Millisecond, every: 5 * time.Second},
		"a burst of small ones":     {used: 500 * time.Millisecond},
		"a burst of dear ones":      {used: time.Second, rest: 40 * time.Second},
		"dear ones that keep to it": {used: 5 * time.Second, every: 40 * time.Second},
		"dear ones, too often":      {used: time.Second, every: 4 * time.Second, rest: 4 * time.Second},
		"the dearest":               {used: time.Hour, every: time.Minute, rest: time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			g := gomega.NewWithT(t)
			p, now := newPace(1), start
			for range 10 {
				now = now.Add(c.every)
				p.worked(c.used, now)
				p.took = now
			}
			g.Expect(p.rest(now)).To(gomega.BeNumerically("~", c.rest, time.Millisecond))
			g.Expect(p.rest(now.Add(c.rest))).To(gomega.BeNumerically("<", time.Millisecond))
			g.Expect(p.hold(now)).To(gomega.BeNumerically("~", min(c.rest, longestHold), time.Millisecond), "a call that is held back waits no longer than that")
			g.Expect(p.hold(now.Add(longestHold))).To(gomega.BeZero())
			if c.every == 0 && c.rest > 0 {
				g.Expect(p.untilLook()).To(gomega.BeNumerically("~", c.rest, 5*time.Second))
			}
		})
	}
}
