//go:build e2e

package e2e

import (
	"context"
	"os/exec"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
)

// expectCallsToldOf expects that the conversation of the supervisor lead says what its calls did, and that
// of a child which message made it.
func (w *world) expectCallsToldOf(ctx context.Context) {
	GinkgoHelper()
	told := func(args ...string) string {
		GinkgoHelper()
		out, err := exec.CommandContext(ctx, "kubectl", append([]string{"clew", "--namespace", w.namespace}, args...)...).CombinedOutput()
		Expect(err).NotTo(HaveOccurred(), "%s", out)
		return string(out)
	}
	Expect(told("task", "history", "lead")).To(And(
		ContainSubstring("→ made task lead-parser (phase Plan), now Completed"),
		ContainSubstring("→ took task lead-wrong back to checkpoint 1, now Completed"),
		ContainSubstring("→ made task lead-small by a fork from checkpoint "),
		ContainSubstring("→ moved the contract to phase Review"),
		ContainSubstring("→ published checkpoint "),
	))
	Expect(told("task", "history", "lead-parser")).To(ContainSubstring("A child of task lead, made in phase Plan: `kubectl clew task history lead --from "))
	Expect(told("tree", "--contract", "port")).To(ContainSubstring("contract port is in phase Review since "))
}
