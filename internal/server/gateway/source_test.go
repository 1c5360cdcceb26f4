package gateway

import (
	"math"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	daemonv1 "github.com/clew-dev/clew/internal/daemonapi/v1"
	"github.com/clew-dev/clew/internal/testing/cases"
)

var _ = Describe("The source of a task", func() {
	given := func(uid string, position int64) *daemonv1.Source {
		return &daemonv1.Source{TaskUid: uid, Checkpoint: 1, Position: position}
	}

	// What a pod says about its source is stored, added up and shown.
	Describe("what a pod says about its source is bounded", func() {
		It("a position is", func() {
			for said, position := range cases.Sorted(map[string][2]int64{
				"below 0": {-1, 0}, "a position": {7, 7}, "too large": {math.MaxInt64, 1 << 32},
			}) {
				source, err := sourceOf(given("uid", position[0]))
				Expect(err).NotTo(HaveOccurred(), said)
				Expect(source.Position).To(Equal(position[1]), said)
			}
		})

		It("a UID is", func() {
			for said, uid := range cases.Sorted(map[string]string{"none": "", "with a NUL": "a\x00b", "too long": strings.Repeat("x", maxNameBytes+1)}) {
				_, err := sourceOf(given(uid, 1))
				Expect(err).To(MatchError(ContainSubstring("a source needs the UID of a task")), said)
			}
		})
	})
})
