//go:build e2e

package e2e

import (
	"context"
	"slices"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	clewv1 "github.com/clew-dev/clew/api/v1alpha1"
)

// gitHolds prints what the agent's repository holds, whatever is in the worktree: HEAD, branch and
// index.
const gitHolds = `
export LC_ALL=C
cd /workspace
git rev-parse HEAD; git symbolic-ref -q HEAD || echo detached
git ls-files --stage | sha256sum
`

// wrongTurn changes files in every way, and the repository with them.
const wrongTurn = `
cd /workspace
git config user.email agent@example.com; git config user.name Agent
git checkout -q -b wrong-turn
echo changed >> README.md; git commit -q -a -m 'A wrong turn'
mkdir -p picked/deep left; echo half > picked/staged; git add picked/staged
echo new > picked/deep/new.txt; echo new > left/new.txt; echo more >> README.md
rm "$(git ls-files | grep -v -e README.md -e picked | tail -n 1)"
`

// without leaves the lines of a fingerprint out that are about some paths, or what is below them.
func without(fingerprint string, paths ...string) string {
	lines := slices.DeleteFunc(strings.Split(fingerprint, "\n"), func(line string) bool {
		return slices.ContainsFunc(paths, func(p string) bool { return strings.HasSuffix(line, " ./"+p) || strings.Contains(line, " ./"+p+"/") })
	})
	return strings.Join(lines, "\n")
}

var _ = Describe("a rewind of files", func() {
	w := newWorld()

	// expectIn expects the worktree and the agent's repository to be in a state.
	expectIn := func(ctx context.Context, task, tree, git string) {
		GinkgoHelper()
		Expect(w.inAgent(ctx, task, fingerprint)).To(Equal(tree), "the files")
		Expect(w.inAgent(ctx, task, gitHolds)).To(Equal(git), "the agent's repository")
	}

	It("restores the paths that it names, and nothing else; and so does its undo", SpecTimeout(10*time.Minute), func(ctx SpecContext) {
		w.create(ctx, w.newTask("picky", idle...))
		w.inAgent(ctx, "picky", `cd /workspace; mkdir -p picked; echo kept > picked/old.txt; chmod 600 picked/old.txt`)
		w.take(ctx, "picky", "good")
		good := w.inAgent(ctx, "picky", fingerprint)
		w.inAgent(ctx, "picky", wrongTurn+`rm picked/old.txt`)
		bad, git := w.inAgent(ctx, "picky", fingerprint), w.inAgent(ctx, "picky", gitHolds)

		w.plugin(ctx, "rewind", "picky", "--to", "good", "--yes", "--", "picked/", "READ*.md")

		rewound := w.inAgent(ctx, "picky", fingerprint)
		Expect(without(rewound, "picked", "README.md")).To(Equal(without(bad, "picked", "README.md")), "what no path names stays")
		Expect(w.inAgent(ctx, "picky", gitHolds)).To(Equal(git), "and so do HEAD and the index")
		Expect(w.inAgent(ctx, "picky", "cd /workspace; cat picked/old.txt; ls -A picked; stat -c %a picked/old.txt")).To(Equal("kept\nold.txt\n600\n"))
		for _, line := range strings.Split(good, "\n") {
			if strings.HasSuffix(line, " ./README.md") {
				Expect(rewound).To(ContainSubstring(line))
			}
		}
		back := w.task(ctx, "picky").Status.Rewind
		Expect(back.Message).To(ContainSubstring(`the path "picked/" and 1 more were rewound to checkpoint`))

		By("undoing it")
		w.patchRewind(ctx, "picky", `{"id":"undo","to":{"checkpointRef":null,"undoOf":"`+back.ID+`"},"scope":null,"paths":null}`)
		undo := w.untilRewound(ctx, "picky", "undo", 3*time.Minute).Status.Rewind
		Expect(undo.Paths).To(HaveExactElements("picked/", "READ*.md"))
		expectIn(ctx, "picky", bad, git)
	})

	It("goes to a commit that the task started from, and to no commit that it does not know", SpecTimeout(10*time.Minute), func(ctx SpecContext) {
		w.create(ctx, w.newTask("returning", idle...))
		start, commit := w.inAgent(ctx, "returning", fingerprint), strings.TrimSpace(w.inAgent(ctx, "returning", "git -C /workspace rev-parse HEAD"))
		w.inAgent(ctx, "returning", wrongTurn)
		git := w.inAgent(ctx, "returning", gitHolds)

		out := w.plugin(ctx, "rewind", "returning", "--to-commit", commit, "--preserve", "discard", "--yes")

		Expect(out).To(ContainSubstring("rewound to commit " + commit[:12]))
		expectIn(ctx, "returning", start, git)

		By("asking for a commit that nobody has")
		w.patchRewind(ctx, "returning", `{"id":"nowhere","to":{"commit":"`+strings.Repeat("a", 40)+`"}}`)
		w.eventually(ctx, func() *clewv1.OperationStatus { return w.task(ctx, "returning").Status.Rewind }).WithTimeout(2 * time.Minute).
			Should(HaveValue(SatisfyAll(
				HaveField("ID", "nowhere"), HaveField("State", clewv1.OperationFailed), HaveField("Reason", clewv1.ReasonCommitNotFound))))
		expectIn(ctx, "returning", start, git)
	})
})

// patchRewind merges fields into spec.rewind.
func (w *world) patchRewind(ctx context.Context, task, rewind string) {
	GinkgoHelper()
	out, err := w.kubectlIn(ctx, nil, "patch", "task", task, "--type=merge", "-p", `{"spec":{"rewind":`+rewind+`}}`)
	Expect(err).NotTo(HaveOccurred(), "patch spec.rewind of %s\n%s", task, out)
}
