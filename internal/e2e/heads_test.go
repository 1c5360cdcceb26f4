//go:build e2e

package e2e

import (
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	clewv1 "github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/refname"
)

var _ = Describe("the agent's own commits", func() {
	w := newWorld()

	It("are in the gitstore with their checkpoints, and a way back once the volume is lost", SpecTimeout(10*time.Minute), func(ctx SpecContext) {
		w.create(ctx, w.newTask("committer", idle...))
		const commit = "cd /workspace; git config user.email agent@example.com; git config user.name Agent; git add -A; git commit -q -m one; git rev-parse HEAD"
		one := strings.TrimSpace(w.inAgent(ctx, "committer", "cd /workspace; echo one > one.txt; "+commit))
		checkpoint := w.take(ctx, "committer", "one")
		Expect(checkpoint.Status.Git.Head).To(Equal(one))
		two := strings.TrimSpace(w.inAgent(ctx, "committer", "cd /workspace; git reset -q --hard HEAD~1; echo two > two.txt; "+commit))
		w.take(ctx, "committer", "two")

		By("looking into the gitstore")
		for _, id := range []string{one, two} {
			ref := refname.Head(checkpoint.Status.TaskUID, id)
			Expect(w.inGitstore(ctx, "git -c safe.directory='*' --git-dir "+w.repository()+" log -1 --format='%H %an' "+ref)).To(Equal(id + " Agent\n"))
		}

		By("losing the volume")
		w.patchSpec(ctx, "committer", map[string]any{"operatingMode": "Suspended"})
		w.untilState(ctx, "committer", 3*time.Minute, clewv1.ReasonSuspended)
		w.kubectl(ctx, "delete", "pvc", "committer-workspace")
		w.plugin(ctx, "rewind", "committer", "--to-commit", one, "--preserve", "discard", "--yes")
		w.patchSpec(ctx, "committer", map[string]any{"operatingMode": "Running"})
		w.untilAgentRuns(ctx, "committer", 3*time.Minute)
		Expect(w.inAgent(ctx, "committer", "cd /workspace; cat one.txt; ls two.txt 2>/dev/null || echo none")).To(Equal("one\nnone\n"))
	})
})
