package postgres_test

import (
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/clew-dev/clew/internal/history"
)

var _ = Describe("Holds of an agent for sets of checkpoints", func() {
	ended := func(set string, checkpoint int64, released bool) history.Record {
		return history.Record{HoldEnd: &history.HoldEnd{Set: set, Checkpoint: checkpoint, Released: released, InCall: !released}}
	}

	It("are known by how they ended, as the first record says", func() {
		w := begin(GinkgoTB(), open(GinkgoTB()), taskNamed("a"), 1)
		w.append(user("begin"), ended("set-1", 3, true))
		w.append(ended("set-1", 3, false)) // of a daemon that was killed in between
		w.append(ended("set-2", 4, false), agent("on it goes"))
		Expect(w.state().Holds).To(HaveExactElements(
			history.HoldEnd{Set: "set-1", Checkpoint: 3, Released: true}, history.HoldEnd{Set: "set-2", Checkpoint: 4, InCall: true}))
		Expect(w.state().Totals.Messages).To(BeEquivalentTo(2))
	})

	It("are bounded, and the newest are known", func() {
		w := begin(GinkgoTB(), open(GinkgoTB()), taskNamed("a"), 1)
		for n := range int64(40) {
			w.append(ended("set", n+1, true))
		}
		Expect(w.state().Holds).To(And(HaveLen(16), ContainElement(HaveField("Checkpoint", int64(40)))))
	})
})
