package fairshare

import (
	"strconv"
	"testing"
	"time"

	"github.com/onsi/gomega"
	"golang.org/x/time/rate"
)

// slowly is a rate at which no second request is admitted while a test runs.
var slowly = rate.Every(time.Hour)

func TestEachCallerHasALimiterOfItsOwn(t *testing.T) {
	g := gomega.NewWithT(t)
	p := NewRates(slowly, 3)
	for range 3 {
		g.Expect(p.Of("busy").Allow()).To(gomega.BeTrue())
	}
	g.Expect(p.Of("busy").Allow()).To(gomega.BeFalse())
	g.Expect(p.Of("other").Allow()).To(gomega.BeTrue())
}

func TestTheMostRecentCallersAreRemembered(t *testing.T) {
	g := gomega.NewWithT(t)
	p := NewRates(slowly, 1)
	g.Expect(p.Of("first").Allow()).To(gomega.BeTrue())
	for i := range maxCallers - 1 {
		p.Of(strconv.Itoa(i))
	}
	g.Expect(p.Of("first").Allow()).To(gomega.BeFalse(), "it is still remembered")
	for i := range maxCallers {
		p.Of("another " + strconv.Itoa(i))
	}
	g.Expect(p.Of("first").Allow()).To(gomega.BeTrue(), "it has been evicted")
}

// A limiter that is forgotten earlier would grant a new burst too soon.
func TestALimiterIsRememberedUntilItIsFull(t *testing.T) {
	for name, c := range map[string]struct {
		perSecond rate.Limit
		burst     int
		least     time.Duration
	}{
		"a short burst": {perSecond: 10, burst: 10, least: time.Second},
		"a long one":    {perSecond: rate.Every(time.Hour), burst: 5, least: 5 * time.Hour},
		"no limit":      {perSecond: rate.Inf},
	} {
		t.Run(name, func(t *testing.T) {
			gomega.NewWithT(t).Expect(NewRates(c.perSecond, c.burst).remembered).To(gomega.BeNumerically(">=", c.least))
		})
	}
}
