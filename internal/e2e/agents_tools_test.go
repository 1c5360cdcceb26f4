//go:build e2e

package e2e

import (
	"context"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	clewv1 "github.com/clew-dev/clew/api/v1alpha1"
)

var _ = Describe("Clew's tools", func() {
	w := newWorld()

	DescribeTable("are the agent's by its own configuration", Label("agents"), func(ctx SpecContext, a realAgent) {
		w.runs(ctx, "tools", a, script{Steps: 3, Tools: map[int]served{2: {Name: "checkpoint", Input: map[string]any{"message": "before step 2"}}}})

		var results []string
		for _, e := range w.conversation(ctx, "tools") {
			if e.ToolResult != nil {
				results = append(results, e.ToolResult.Output)
			}
		}
		Expect(results).To(ContainElement(ContainSubstring("Checkpoint 1 is taken: ")), "the model got the answer")
		w.expectAgentsCheckpoint(ctx, "tools", "before step 2")
	}, Entry("Claude Code", claude()), Entry("Codex", codex()), Entry("Gemini CLI", gemini()), Entry("OpenCode", openCode()))

	It("are a program for every other agent", func(ctx SpecContext) {
		task := w.newTask("program", "sh", "-ec", `
			echo one > a.txt
			clew checkpoint -m "by a program"
			echo two > a.txt
			"$CLEW_BIN" diff 1 --path a.txt | grep -q "^+two"
			! clew history search nothing`)
		task.Spec.Tools = []clewv1.AgentTool{clewv1.ToolCheckpoint, clewv1.ToolDiff}
		w.create(ctx, task)
		w.untilState(ctx, "program", 3*time.Minute, clewv1.ReasonCompleted)
		w.expectAgentsCheckpoint(ctx, "program", "by a program")
	})
})

// expectAgentsCheckpoint expects that checkpoint 1 was taken because the agent asked for it.
func (w *world) expectAgentsCheckpoint(ctx context.Context, task, message string) {
	GinkgoHelper()
	Eventually(func() []clewv1.Checkpoint { return w.checkpoints(ctx, task) }).WithContext(ctx).WithTimeout(time.Minute).Should(ContainElement(
		And(HaveField("Spec.Message", message), HaveField("Status.Number", BeEquivalentTo(1)), HaveField("Status.Trigger", clewv1.TriggerAgent))))
	Expect(w.timeline(ctx, task)).To(ContainElement(And(
		HaveField("Reason", clewv1.EventToolCalled), HaveField("Actor", "agent"), HaveField("Message", "the agent took checkpoint 1: "+message), HaveField("Checkpoint", BeEquivalentTo(1)))))
}
