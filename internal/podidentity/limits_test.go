package podidentity

import (
	"context"
	"testing"
	"time"

	"github.com/onsi/gomega"
	"k8s.io/utils/clock"
)

// A namespace may have many tokens that were accepted once, and have each of them
// asked about again and again.
func TestKnownTokensOfANamespaceHaveAPaceOfTheirOwn(t *testing.T) {
	g := gomega.NewWithT(t)
	l := newLimits(clock.RealClock{})
	token := digestOf("token", "")
	l.accept(token)
	asked := func(namespace string) bool {
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		var said claims
		said.Kubernetes.Namespace = namespace
		return l.wait(ctx, token, said, true) == nil
	}
	began, times := time.Now(), 0
	for range 1000 {
		if asked("hostile") {
			times++
		}
	}
	g.Expect(times).To(gomega.BeNumerically("<=", knownBurst+knownPerSecond*(int(time.Since(began)/time.Second)+1)))
	g.Expect(asked("team")).To(gomega.BeTrue())
}
