package podidentity

import (
	"context"
	"testing"
	"time"

	"github.com/onsi/gomega"
	"k8s.io/utils/clock"
)

// A namespace may have many tokens that were accepted once, and use each of them again and
// again.
func TestKnownTokensOfANamespaceHaveARateLimitOfTheirOwn(t *testing.T) {
	g := gomega.NewWithT(t)
	l := newLimits(clock.RealClock{})
	token := digestOf("token", "")
	l.accept(token)
	asked := func(namespace string) bool {
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		var claimed claims
		claimed.Kubernetes.Namespace = namespace
		return l.wait(ctx, token, claimed, true) == nil
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
