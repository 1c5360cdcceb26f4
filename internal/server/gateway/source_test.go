package gateway

import (
	"math"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	daemonv1 "github.com/clew-dev/clew/internal/daemonapi/v1"
)

var _ = Describe("The source of a task", func() {
	// What a pod says about its source is stored, added up and shown.
	It("what a pod says about its source is bounded", func() {
		given := func(uid string, position int64) *daemonv1.Source {
			return &daemonv1.Source{TaskUid: uid, Checkpoint: 1, Position: position}
		}
		for said, position := range map[int64]int64{-1: 0, 7: 7, math.MaxInt64: 1 << 32} {
			source, err := sourceOf(given("uid", said))
			Expect(err).NotTo(HaveOccurred())
			Expect(source.Position).To(Equal(position))
		}
		for _, uid := range []string{"", "a\x00b", strings.Repeat("x", maxNameBytes+1)} {
			_, err := sourceOf(given(uid, 1))
			Expect(err).To(MatchError(ContainSubstring("a source needs the UID of a task")))
		}
	})
})
