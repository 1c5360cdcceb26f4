package prepare

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/onsi/gomega"

	"github.com/clew-dev/clew/internal/daemon/gatewayclient"
)

// Waiting for a source does not count towards RetryFor, and another error in between does
// not end it.
func TestWhatFailsWhileASourceIsAwaitedHasTimeOfItsOwn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := gomega.NewWithT(t)
		p := &preparer{cfg: Config{RetryFor: 5 * time.Minute, ReportAfter: time.Hour}}
		began := time.Now()
		busy := false
		g.Expect(p.retry(t.Context(), func() error {
			switch waited := time.Since(began); {
			case waited > 7*time.Minute:
				return nil
			case waited > 6*time.Minute && !busy:
				busy = true
				return wrapPlace(placeServer, errors.New("no place"))
			}
			return &sourceMissing{err: gatewayclient.ErrSourceAwaited}
		})).To(gomega.Succeed())
		g.Expect(busy).To(gomega.BeTrue())
		down := wrapPlace(placeServer, errors.New("down"))
		began = time.Now()
		g.Expect(p.retry(t.Context(), func() error { return down })).To(gomega.MatchError(down))
		g.Expect(time.Since(began)).To(gomega.BeNumerically("~", 5*time.Minute, 20*time.Second))
	})
}
