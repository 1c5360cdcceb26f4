//go:build e2e

package e2e

import (
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	clewv1 "github.com/clew-dev/clew/api/v1alpha1"
)

var _ = Describe("the branches of checkpoints", func() {
	w := newWorld()

	It("are made in the gitstore for a stopped task, on top of the agent's own commit, and removed", SpecTimeout(5*time.Minute), func(ctx SpecContext) {
		w.create(ctx, w.newTask("branched", idle...))
		head := strings.TrimSpace(w.inAgent(ctx, "branched", `cd /workspace; echo one > one.txt; git add -A
git -c user.name=Agent -c user.email=agent@example.com commit -qm one; git rev-parse HEAD`))
		w.take(ctx, "branched", "clean")
		w.inAgent(ctx, "branched", "echo two > /workspace/two.txt")
		dirty := w.take(ctx, "branched", "dirty")
		w.patchSpec(ctx, "branched", map[string]any{"operatingMode": "Suspended"})
		w.untilState(ctx, "branched", 3*time.Minute, clewv1.ReasonSuspended)

		commit := func(checkpoint, branch string) string {
			return w.plugin(ctx, "checkpoint", "branch", "branched", checkpoint, "--name", branch, "-o", "jsonpath={.status.branches[0].commit}")
		}
		inRepository := func(command string) string {
			return strings.TrimSpace(w.inGitstore(ctx, "git -c safe.directory='*' --git-dir "+w.repository()+" "+command))
		}
		Expect(commit("clean", "try/one")).To(Equal(head), "the agent had committed everything")
		two := commit("dirty", "try/two")
		Expect(inRepository("log -1 --format='%H %P %an %T' refs/heads/clew/branched/try/two")).To(Equal(two + " " + head + " Clew " + dirty.Status.Tree))

		w.plugin(ctx, "checkpoint", "branch", "branched", "--name", "try/two", "--remove")
		Expect(inRepository("for-each-ref --format='%(refname)' refs/heads/clew/branched")).To(Equal("refs/heads/clew/branched/try/one"))
	})
})
