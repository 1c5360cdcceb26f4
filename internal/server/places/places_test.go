package places_test

import (
	"context"
	"testing"

	"github.com/onsi/gomega"

	"github.com/clew-dev/clew/internal/server/places"
)

func TestWhoWaitsForTheirOwnShareKeepsNobodyElseWaiting(t *testing.T) {
	g := gomega.NewWithT(t)
	p := places.New(2)
	share := func(name string) places.Share { return places.Share{Of: name, Places: 1} }
	first, err := p.Take(t.Context(), share("a"))
	g.Expect(err).NotTo(gomega.HaveOccurred())
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = p.Take(ended, share("a"))
	g.Expect(err).To(gomega.MatchError(places.ErrBusy))
	second, err := p.Take(t.Context(), share("b"))
	g.Expect(err).NotTo(gomega.HaveOccurred())
	_, err = p.Take(ended, share("c"))
	g.Expect(err).To(gomega.MatchError(places.ErrBusy), "all places are taken")
	second()
	first()
	again, err := p.Take(t.Context(), share("a"))
	g.Expect(err).NotTo(gomega.HaveOccurred())
	again()
}
