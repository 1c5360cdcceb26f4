//go:build e2e

package e2e

import (
	"context"
	"encoding/json"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	historyv1 "github.com/clew-dev/clew/api/history/v1alpha1"
)

// everyChange changes files in every way that a patch can express.
const everyChange = `
cd /workspace
sed -i '1i a first line' README.md
printf 'no newline' > added
printf '\0\1\2' > binary
mkdir -p deep/er; echo below > 'deep/er/a name'
ln -s README.md link
chmod +x "$(git ls-files | grep -v README.md | head -n 1)"
git rm -q "$(git ls-files | grep -v README.md | tail -n 1)"
`

// worktreeTree prints the id of the tree that the worktree has in git, ignored files included. It
// uses an index of its own, so that the agent's stays as it is.
const worktreeTree = `
cd /workspace
export GIT_INDEX_FILE=/tmp/worktree-tree
rm -f "$GIT_INDEX_FILE"
git add --all --force . && git write-tree
`

var _ = Describe("the difference between two moments", func() {
	w := newWorld()

	It("is a patch that leads from one to the other", SpecTimeout(8*time.Minute), func(ctx SpecContext) {
		w.create(ctx, w.newTask("changing", idle...))
		w.take(ctx, "changing", "before")
		before := w.inAgent(ctx, "changing", worktreeTree)
		w.inAgent(ctx, "changing", everyChange)
		after := w.inAgent(ctx, "changing", worktreeTree)
		w.take(ctx, "changing", "after")

		By("asking for the files")
		summary := w.differs(ctx, "changing", "before", "after")
		Expect(summary.Totals.Files).To(BeEquivalentTo(len(summary.Items)))
		Expect(summary.Items).To(ContainElements(
			HaveField("Path", "README.md"), HaveField("Path", "added"), HaveField("Path", "deep/er/a name"),
			And(HaveField("Path", "link"), HaveField("NewMode", "120000")),
			And(HaveField("Path", "binary"), HaveField("Binary", true))))

		By("asking for what changed since, while the agent works")
		Expect(w.differs(ctx, "changing", "after", "live").Items).To(BeEmpty())
		w.inAgent(ctx, "changing", `cd /workspace; echo now > present`)
		now := w.differs(ctx, "changing", "latest", "live")
		Expect(now.Items).To(HaveExactElements(And(HaveField("Path", "present"), HaveField("Action", "Added"))))
		Expect(now.To.Type).To(Equal(historyv1.MomentLive))
		w.inAgent(ctx, "changing", `rm /workspace/present`)

		By("taking the changes back with the patch in the other direction, in the agent's worktree")
		back := w.plugin(ctx, "diff", "changing", "after", "before")
		w.applyPatch(ctx, "changing", back)
		Expect(w.inAgent(ctx, "changing", worktreeTree)).To(Equal(before), "the patch leads back to the tree of before")
		w.applyPatch(ctx, "changing", w.plugin(ctx, "diff", "changing", "before", "after"))
		Expect(w.inAgent(ctx, "changing", worktreeTree)).To(Equal(after), "and its reverse to that of after")

		By("asking for what a fork changed")
		w.plugin(ctx, "fork", "changing", "--from", "after", "--name", "other", "--wait")
		w.inAgent(ctx, "other", `cd /workspace; echo by the fork > forked`)
		w.take(ctx, "other", "forked")
		Expect(w.differs(ctx, "other", "changing:after", "forked").Items).To(HaveExactElements(HaveField("Path", "forked")))
	})
})

// differs returns what kubectl clew says about the difference between two moments.
func (w *world) differs(ctx context.Context, task, from, to string) historyv1.Diff {
	GinkgoHelper()
	var d historyv1.Diff
	Expect(json.Unmarshal([]byte(w.plugin(ctx, "diff", task, from, to, "-o", "json")), &d)).To(Succeed())
	return d
}

// applyPatch applies a patch in the agent's worktree.
func (w *world) applyPatch(ctx context.Context, task, patch string) {
	GinkgoHelper()
	pod := w.untilAgentRuns(ctx, task, time.Minute)
	out, err := w.kubectlIn(ctx, []byte(patch), "exec", "-i", pod.Name, "-c", "agent", "--", "git", "-C", "/workspace", "apply", "-")
	Expect(err).NotTo(HaveOccurred(), "git apply\n%s\n%s", out, strings.TrimSpace(patch))
}
