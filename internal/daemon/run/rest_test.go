package run

import (
	"testing"
	"time"

	"github.com/onsi/gomega"
)

func TestAfterALongCheckpointThereIsARest(t *testing.T) {
	now := time.Now()
	for name, c := range map[string]struct{ took, rest time.Duration }{
		"a short one":     {took: 4 * time.Second},
		"a long one":      {took: 5 * time.Second, rest: 15 * time.Second},
		"a very long one": {took: time.Minute, rest: 3 * time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			g := gomega.NewWithT(t)
			p := newPace(1)
			p.took(c.took, now)
			g.Expect(p.rest(now)).To(gomega.Equal(c.rest))
			g.Expect(p.rest(now.Add(c.rest))).To(gomega.BeZero())
			g.Expect(p.wait()).To(gomega.BeZero(), "a call that is held back does not wait for it")
			if c.rest > 0 {
				g.Expect(p.untilLook()).To(gomega.BeNumerically("~", c.rest, time.Second))
			}
		})
	}
}
