package gateway

import (
	"errors"
	"testing"

	"github.com/onsi/gomega"
)

func TestASourceIsAwaitedByWhoHasBegun(t *testing.T) {
	g, w := gomega.NewWithT(t), sourceWait{}
	g.Expect(w.heard(ErrNotFound)).To(gomega.Equal(ErrNotFound))
	g.Expect(w.over()).To(gomega.BeFalse(), "it has nothing to begin with")
	w.begin()
	g.Expect(w.over()).To(gomega.BeFalse(), "nothing is missing")
	g.Expect(w.heard(ErrNotFound)).To(gomega.MatchError(ErrSourceAwaited))
	g.Expect(w.over()).To(gomega.BeTrue())
	g.Expect(w.heard(errors.New("down"))).NotTo(gomega.MatchError(ErrSourceAwaited))
	g.Expect(w.over()).To(gomega.BeFalse(), "after an outage everybody has yet to come back")
	g.Expect(w.heard(nil)).To(gomega.Succeed())
}
