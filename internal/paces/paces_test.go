package paces

import (
	"testing"

	"github.com/onsi/gomega"
)

func TestEachCallerHasAPaceOfTheirOwn(t *testing.T) {
	g := gomega.NewWithT(t)
	p := New(1, 3)
	for range 3 {
		g.Expect(p.Of("busy").Allow()).To(gomega.BeTrue())
	}
	g.Expect(p.Of("busy").Allow()).To(gomega.BeFalse())
	g.Expect(p.Of("other").Allow()).To(gomega.BeTrue())
}

func TestAsManyPacesAreRememberedAsThereIsRoomFor(t *testing.T) {
	g := gomega.NewWithT(t)
	p := New(1, 1)
	g.Expect(p.Of("first").Allow()).To(gomega.BeTrue())
	for i := range kept {
		p.Of(string(rune(i)))
	}
	g.Expect(p.Of("first").Allow()).To(gomega.BeTrue(), "it was forgotten")
}
