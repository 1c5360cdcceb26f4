//go:build e2e

package e2e

import (
	"os/exec"
	"testing"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
)

func TestSpecs(t *testing.T) {
	RegisterFailHandler(Fail)
	SetDefaultEventuallyPollingInterval(100 * time.Millisecond)
	SetDefaultConsistentlyPollingInterval(100 * time.Millisecond)
	RunSpecs(t, "Clew on a cluster", Label("e2e"))
}

// All specs share the git host that tasks clone from.
var _ = SynchronizedBeforeSuite(func(ctx SpecContext) {
	manifests := "../../hack/demo/manifests/"
	for _, args := range [][]string{
		{"apply", "-f", manifests + "namespace.yaml"},
		{"--namespace", originNamespace, "apply", "-f", manifests + "origin.yaml"},
		{"--namespace", originNamespace, "rollout", "status", "deployment/origin", "--timeout=120s"},
	} {
		out, err := exec.CommandContext(ctx, "kubectl", args...).CombinedOutput()
		Expect(err).NotTo(HaveOccurred(), "start the git host of the specs (make test-e2e brings up what they need): kubectl %v\n%s", args, out)
	}
}, func() {})
