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

	It("are in the agent's repository when it next starts, and checked out there if no file changes by that", SpecTimeout(10*time.Minute), func(ctx SpecContext) {
		const name = "own"
		w.create(ctx, w.newTask(name, idle...))
		w.inAgent(ctx, name, `cd /workspace; git config user.email agent@example.com; git config user.name Agent
echo one > one.txt; git add -A; git commit -qm one; echo two > two.txt; printf '*.log\n' > .gitignore; echo ignored > an.log`)
		taken := w.take(ctx, name, "own-two")
		w.plugin(ctx, "checkpoint", "branch", name, taken.Name, "--name", "try/two")
		agent := func() *clewv1.AgentBranchStatus {
			c := &clewv1.Checkpoint{}
			if err := w.get(ctx, taken.Name, c); err != nil || len(c.Status.Branches) == 0 {
				return nil
			}
			return c.Status.Branches[0].Agent
		}
		restart := func() {
			w.patchSpec(ctx, name, map[string]any{"operatingMode": "Suspended"})
			w.untilState(ctx, name, 3*time.Minute, clewv1.ReasonSuspended)
			w.patchSpec(ctx, name, map[string]any{"operatingMode": "Running"})
			w.untilAgentRuns(ctx, name, 3*time.Minute)
		}
		checksOut := func() { w.plugin(ctx, "checkpoint", "branch", name, taken.Name, "--name", "try/two", "--checkout") }
		eventually := func(matches ...OmegaMatcher) {
			GinkgoHelper()
			w.eventually(ctx, agent).WithTimeout(time.Minute).Should(And(Not(BeNil()), And(matches...)))
		}
		eventually(HaveField("State", clewv1.AgentBranchPending))
		Expect(w.inAgent(ctx, name, "cd /workspace; git branch --list 'try/*'")).To(BeEmpty(), "no restart is forced")

		By("starting the agent again")
		was := w.inAgent(ctx, name, fingerprint+gitSays)
		restart()
		eventually(HaveField("State", clewv1.AgentBranchMade))
		Expect(w.inAgent(ctx, name, fingerprint+gitSays)).To(Equal(was), "neither files nor HEAD and index have changed")
		commit := agent().Commit
		Expect(w.inAgent(ctx, name, `cd /workspace; git rev-parse try/two; git ls-tree --name-only try/two; git fsck --full`)).To(And(
			HavePrefix(commit+"\n"), ContainSubstring("\ntwo.txt\n"), Not(ContainSubstring("an.log")),
		), "what .gitignore names stays out of what the agent may push")

		By("checking it out")
		checksOut()
		restart()
		eventually(HaveField("Checkout.State", clewv1.CheckoutDone))
		Expect(w.inAgent(ctx, name, "cd /workspace; git symbolic-ref HEAD; git rev-parse HEAD; git status --porcelain")).To(Equal("refs/heads/try/two\n" + commit + "\n"))
		w.inAgent(ctx, name, "cd /workspace; echo three > three.txt; git add -A; git commit -qm three")
		restart()
		Expect(w.inAgent(ctx, name, "cd /workspace; git symbolic-ref HEAD; git log -1 --format=%s")).To(Equal("refs/heads/try/two\nthree\n"), "it was checked out once")
		eventually(HaveField("State", clewv1.AgentBranchMade), HaveField("Commit", commit))

		By("asking for it with other files in the worktree")
		w.inAgent(ctx, name, "cd /workspace; git switch -q -c elsewhere; git branch -qf try/two "+commit)
		checksOut()
		restart()
		eventually(HaveField("Checkout.State", clewv1.CheckoutRefused), HaveField("Checkout.Message", ContainSubstring("rewind to it first")))
		Expect(w.inAgent(ctx, name, "cd /workspace; git symbolic-ref HEAD; cat three.txt")).To(Equal("refs/heads/elsewhere\nthree\n"))
		Eventually(ctx, w.eventReasons).WithTimeout(time.Minute).
			Should(ContainElements(clewv1.EventAgentBranchMade, clewv1.EventBranchCheckedOut, clewv1.EventBranchNotCheckedOut))
		var recorded []string
		for _, e := range w.timeline(ctx, name) {
			recorded = append(recorded, e.Reason)
		}
		Expect(recorded).To(And(
			ContainElements(clewv1.EventAgentBranchMade, clewv1.EventBranchCheckedOut, clewv1.EventBranchNotCheckedOut),
			Not(ContainElement(clewv1.EventAgentBranchNotMade)),
		), "what the agent has made of its branch is its own business")
	})
})
