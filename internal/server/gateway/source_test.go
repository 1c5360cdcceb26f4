package gateway

import (
	"math"
	"strings"
	"testing"

	"github.com/onsi/gomega"

	daemonv1 "github.com/clew-dev/clew/internal/daemonapi/v1"
)

// What a pod says of its source is stored, added up and shown.
func TestWhatAPodSaysOfItsSourceIsBounded(t *testing.T) {
	g := gomega.NewWithT(t)
	given := func(uid string, position int64) *daemonv1.Source {
		return &daemonv1.Source{TaskUid: uid, Checkpoint: 1, Position: position}
	}
	for said, position := range map[int64]int64{-1: 0, 7: 7, math.MaxInt64: 1 << 32} {
		source, err := sourceOf(given("uid", said))
		g.Expect(err).NotTo(gomega.HaveOccurred())
		g.Expect(source.Position).To(gomega.Equal(position))
	}
	for _, uid := range []string{"", "a\x00b", strings.Repeat("x", maxNameBytes+1)} {
		_, err := sourceOf(given(uid, 1))
		g.Expect(err).To(gomega.MatchError(gomega.ContainSubstring("a source needs the UID of a task")))
	}
}
