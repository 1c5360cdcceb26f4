//go:build e2e && soak

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	historyv1 "github.com/clew-dev/clew/api/history/v1alpha1"
	clewv1 "github.com/clew-dev/clew/api/v1alpha1"
)

// cell is one event in an agent's life; run returns the outcome.
type cell struct {
	name string
	run  func(ctx context.Context, w *world, a realAgent) string
}

func cells() []cell {
	return []cell{
		{"14 calls", callsCell}, {"three kills inside tools", killsCell}, {"401", unauthorizedCell}, {"429", rateLimitCell},
		{"500 and back", outageCell}, {"wrapped base64 of the key", keyCell}, {"background process", backgroundCell}, {"loop", loopCell},
	}
}

// tableOfAgents names the container of the specs and the table that it prints.
const tableOfAgents = "the table of agents"

// patience is how long an agent may take: many run at once.
const patience = 10 * time.Minute

// Each agent, in the pinned version and in the oldest that Clew works with, goes
// through every cell.
var _ = Describe(tableOfAgents, Label("agents", "slow", "soak"), func() {
	w := newWorld()

	for _, a := range inBothVersions() {
		Context(a.image(), func() {
			for _, c := range cells() {
				It(c.name, func(ctx SpecContext) {
					AddReportEntry(tableOfAgents, c.run(ctx, w, a), ReportEntryVisibilityFailureOrVerbose)
				})
			}
		})
	}
})

func inBothVersions() (rows []realAgent) {
	for _, a := range realAgents() {
		old := a
		old.tag = "oldest"
		rows = append(rows, a, old)
	}
	return rows
}

var _ = ReportAfterSuite(tableOfAgents, func(report Report) {
	outcomes := map[string]string{} // by image and cell
	for _, spec := range report.SpecReports {
		if spec.NumAttempts == 0 || !slices.Contains(spec.ContainerHierarchyTexts, tableOfAgents) {
			continue
		}
		outcome := "F"
		for _, entry := range spec.ReportEntries {
			if entry.Name == tableOfAgents && !spec.Failed() {
				outcome = entry.StringRepresentation()
			}
		}
		outcomes[spec.ContainerHierarchyTexts[1]+spec.LeafNodeText] = outcome
	}
	if len(outcomes) == 0 {
		return
	}
	header, rule, rows := "| CLI", "|---", ""
	for _, c := range cells() {
		header, rule = header+" | "+c.name, rule+"|---"
	}
	for _, a := range inBothVersions() {
		rows += "| " + a.version()
		for _, c := range cells() {
			rows += " | " + outcomes[a.image()+c.name]
		}
		rows += " |\n"
	}
	fmt.Print("\n" + header + " |\n" + rule + "|\n" + rows)
})

// version returns the agent's name and version, from the npm package of its image.
func (a realAgent) version() string {
	GinkgoHelper()
	file := filepath.Join("../../hack/agents", a.tag, a.name, "package.json")
	data, err := os.ReadFile(file)
	Expect(err).NotTo(HaveOccurred())
	var p struct{ Dependencies map[string]string }
	Expect(json.Unmarshal(data, &p)).To(Succeed(), file)
	for name, version := range p.Dependencies {
		if !strings.HasPrefix(name, "node-") {
			return a.name + " " + regexp.MustCompile(`\d+\.\d+\.\d+`).FindString(version)
		}
	}
	Fail(fmt.Sprintf("%s names no version", file))
	return ""
}

// tokens compares the tokens in the task's status with those that the model reported,
// without side requests.
func (w *world) tokens(ctx context.Context, name string, m *model) string {
	GinkgoHelper()
	task := w.untilRecorded(ctx, name)
	var input, output int64
	for _, request := range m.log(ctx) {
		input, output = input+request.Usage.Input, output+request.Usage.Output
	}
	if task.Status.InputTokens == input && task.Status.OutputTokens == output {
		return fmt.Sprintf("tokens %d/%d = billed", input, output)
	}
	return fmt.Sprintf("tokens %d/%d of %d/%d", task.Status.InputTokens, task.Status.OutputTokens, input, output)
}

func callsCell(ctx context.Context, w *world, a realAgent) string {
	m := w.newModel(ctx, "calls", script{Steps: 14, FileToolEvery: 3})
	w.create(ctx, w.agentTask(ctx, "calls", a, m))
	w.untilState(ctx, "calls", patience, clewv1.ReasonCompleted)
	entries := w.conversation(ctx, "calls")
	Expect(w.task(ctx, "calls").Status.Attempts).To(HaveLen(1))
	Expect(stepsOf(entries)).To(Equal(upTo(14)), "each call once and in order")
	Expect(notUnderstood(entries)).To(BeEmpty())
	Expect(texts(entries, "assistant")).To(HaveExactElements("DONE"))
	tokens := w.tokens(ctx, "calls", m)
	Expect(tokens).To(HaveSuffix("= billed"))
	return "14 once, 4 by file tools; " + tokens
}

// slow is a command that waits for a kill in its first run. It waits less than the ten
// seconds after which some agents continue without the result.
func slow(step int) string {
	return fmt.Sprintf(`touch begun.txt; grep -qx "began %[1]d" begun.txt && wait=0 || wait=9; echo "began %[1]d" >> begun.txt; sleep $wait; echo "line of %[1]d" >> notes.txt`, step)
}

// untilServed waits until the model has asked for a step a number of times.
func (m *model) untilServed(ctx context.Context, step, times int, timeout time.Duration) {
	GinkgoHelper()
	Eventually(ctx, func() error {
		if got := m.served(ctx)[step]; got < times {
			return fmt.Errorf("it asked %d times", got)
		}
		return nil
	}).WithTimeout(timeout).Should(Succeed(), "the model has requested step %d", step)
}

func killsCell(ctx context.Context, w *world, a realAgent) string {
	killed := []int{3, 7, 11}
	m := w.newModel(ctx, "kills", script{Steps: 14, FileToolEvery: 5, Commands: map[int]string{
		3: slow(3), 7: slow(7), 11: slow(11), 14: "cat begun.txt notes.txt"}})
	task := w.agentTask(ctx, "kills", a, m)
	task.Spec.BackoffLimit = ptr.To[int32](10)
	w.create(ctx, task)
	for _, step := range killed {
		m.untilServed(ctx, step, 1, patience)
		running := w.untilAgentRuns(ctx, "kills", patience)
		Eventually(ctx, func() error {
			out, err := w.kubectlIn(ctx, nil, "--namespace", w.namespace, "exec", running.Name, "-c", clewv1.AgentContainer, "--", "cat", "begun.txt")
			if err == nil && !strings.Contains(out, fmt.Sprintf("began %d\n", step)) {
				err = fmt.Errorf("begun: %s", out)
			}
			return err
		}).WithTimeout(10*time.Second).Should(Succeed(), "step %d runs", step)
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: running.Name}}
		Expect(w.kube.Delete(ctx, pod, client.GracePeriodSeconds(0))).To(Succeed())
	}
	done := w.untilState(ctx, "kills", patience, clewv1.ReasonCompleted)
	Expect(len(done.Status.Attempts)).To(BeNumerically(">=", 4))
	for _, attempt := range done.Status.Attempts[1:] {
		Expect(attempt.Memory).To(BeElementOf(clewv1.AgentMemorySession, clewv1.AgentMemory("")), attempt.MemoryMessage)
	}
	entries := w.conversation(ctx, "kills")
	once := slices.Clone(stepsOf(entries))
	slices.Sort(once)
	Expect(once).To(Equal(upTo(14)), "each step was done once")
	Expect(interruptedSteps(entries)).To(Equal(killed), "the calls that were cut off are recorded as interrupted")
	Expect(notUnderstood(entries)).To(BeEmpty())
	seen := outputOf(entries, 14)
	for _, step := range killed {
		Expect(strings.Count(seen, fmt.Sprintf("began %d\n", step))).To(Equal(2), "step %d was begun again", step)
	}
	for step, times := range m.served(ctx) {
		if !slices.Contains(killed, step) {
			Expect(times).To(Equal(1), "step %d is in the history, and was requested again", step)
		}
	}
	return "0 lost, 0 doubled, 3 interrupted; " + w.tokens(ctx, "kills", m)
}

// interruptedSteps returns the steps whose calls are recorded as interrupted.
func interruptedSteps(entries []historyv1.ConversationEntry) []int {
	open, steps := map[string]string{}, []int(nil)
	for _, e := range entries {
		if e.ToolCall != nil {
			open[e.ToolCall.ID] = e.ToolCall.Input
		}
		if e.ToolResult == nil || !e.ToolResult.Interrupted {
			continue
		}
		var step int
		if match := stepOfInput.FindStringSubmatch(open[e.ToolResult.CallID]); match != nil {
			fmt.Sscan(match[1], &step)
		}
		steps = append(steps, step)
	}
	return steps
}

func unauthorizedCell(ctx context.Context, w *world, a realAgent) string {
	const said = "the key is expired"
	m := w.newModel(ctx, "expired", script{Steps: 3, Failures: []failure{{Status: 401, Message: said}}})
	w.create(ctx, w.agentTask(ctx, "expired", a, m))
	w.untilState(ctx, "expired", patience, clewv1.ReasonAgentUnauthorized)
	stopped := w.task(ctx, "expired")
	Expect(stopped.Status.Attempts).To(HaveLen(1), "it is not retried")
	Expect(stopped.Status.Attempts[0].Message).To(ContainSubstring(said))
	took := stopped.Status.Attempts[0].EndTime.Sub(stopped.Status.Attempts[0].StartTime.Time).Round(time.Second)
	m.script(ctx, script{Steps: 3})
	w.patchSpec(ctx, "expired", map[string]any{"resume": map[string]any{"id": "with-a-new-key"}})
	w.untilState(ctx, "expired", patience, clewv1.ReasonCompleted)
	Expect(notUnderstood(w.conversation(ctx, "expired"))).To(BeEmpty())
	return fmt.Sprintf("AgentUnauthorized after %s, 1 attempt; resumed", took)
}

func rateLimitCell(ctx context.Context, w *world, a realAgent) string {
	m := w.newModel(ctx, "limited", script{Steps: 3, Failures: []failure{{Status: 429, Message: "Slow down.", RetryAfterSeconds: 1, Times: 3}}})
	task := w.agentTask(ctx, "limited", a, m)
	task.Spec.BackoffLimit = ptr.To[int32](0)
	w.create(ctx, task)
	w.untilState(ctx, "limited", patience, clewv1.ReasonCompleted)
	got := w.task(ctx, "limited")
	Expect(got.Status.Failures).To(BeZero(), "rate limits do not count")
	Expect(stepsOf(w.conversation(ctx, "limited"))).To(Equal(upTo(3)))
	Expect(notUnderstood(w.conversation(ctx, "limited"))).To(BeEmpty())
	return fmt.Sprintf("Completed, 0 failures, attempts %d", len(got.Status.Attempts))
}

func outageCell(ctx context.Context, w *world, a realAgent) string {
	m := w.newModel(ctx, "outage", script{Steps: 6, DelayMilliseconds: 1000})
	task := w.agentTask(ctx, "outage", a, m)
	task.Spec.BackoffLimit = ptr.To[int32](10)
	w.create(ctx, task)
	w.untilToolCalls(ctx, "outage", 3, patience)
	m.script(ctx, script{Steps: 6, Failures: []failure{{Status: 500, Message: "the model is on fire"}}})
	// Two attempts fail, except of agents that retry for longer than this by themselves: the
	// end of the time is no failure, as it would be with Eventually.
	for until := time.Now().Add(5 * time.Minute); len(w.task(ctx, "outage").Status.Attempts) < 3 && time.Now().Before(until); {
		pause(ctx, time.Second)
	}
	m.script(ctx, script{Steps: 6})
	done := w.untilState(ctx, "outage", patience, clewv1.ReasonCompleted)
	Expect(stepsOf(w.conversation(ctx, "outage"))).To(Equal(upTo(6)), "each step was done once")
	Expect(notUnderstood(w.conversation(ctx, "outage"))).To(BeEmpty())
	for i, attempt := range done.Status.Attempts {
		if i > 0 {
			Expect(attempt.Memory).To(Equal(clewv1.AgentMemorySession), attempt.MemoryMessage)
		}
		if i < len(done.Status.Attempts)-1 {
			Expect(attempt.Message).To(ContainSubstring("the model's API fails or cannot be reached"))
		}
	}
	return fmt.Sprintf("Completed, attempts %d, its own session", len(done.Status.Attempts))
}

func keyCell(ctx context.Context, w *world, a realAgent) string {
	m := w.newModel(ctx, "key", script{Steps: 5, Commands: printsKey(a.keyEnv)})
	w.create(ctx, w.agentTask(ctx, "key", a, m))
	w.untilState(ctx, "key", patience, clewv1.ReasonCompleted)
	w.untilRecorded(ctx, "key")
	forms := formsOf([]string{m.key})
	seen := fmt.Sprint(w.conversation(ctx, "key")) + w.kubectl(ctx, "logs", w.task(ctx, "key").Status.Attempts[0].PodName, "--all-containers")
	for _, form := range forms {
		Expect(strings.Count(seen, form)).To(BeZero(), form)
	}
	Expect(w.inRepository(ctx, []string{"line of 5"})).NotTo(Equal("0"))
	Expect(w.inDatabase(ctx, forms)).To(Equal("0"))
	Expect(w.inRepository(ctx, forms)).To(Equal("0"))
	return "0 hits in history, logs, database, objects"
}

func backgroundCell(ctx context.Context, w *world, a realAgent) string {
	m := w.newModel(ctx, "behind", script{Steps: 3, Commands: map[int]string{2: leavesBehind}})
	task := w.agentTask(ctx, "behind", a, m)
	task.Spec.BackoffLimit = ptr.To[int32](0)
	task.Spec.Agent.IdleSeconds = ptr.To[int32](60)
	w.create(ctx, task)
	ended := w.untilState(ctx, "behind", patience, clewv1.ReasonCompleted, clewv1.ReasonAgentFailed, clewv1.ReasonBackoffLimit)
	if state(ended) == clewv1.ReasonCompleted {
		Expect(stepsOf(w.conversation(ctx, "behind"))).To(Equal(upTo(3)))
		return "Completed"
	}
	Expect(ended.Status.Attempts[0].Message).To(ContainSubstring("idleSeconds"))
	Expect(interruptedSteps(w.conversation(ctx, "behind"))).To(Equal([]int{2}), "the call that held it")
	return "the CLI waits for it: ended by idleSeconds, the call recorded as interrupted"
}

func loopCell(ctx context.Context, w *world, a realAgent) string {
	// The model asks again and again for a command that never reports its step as done.
	m := w.newModel(ctx, "loop", script{Steps: 4, DelayMilliseconds: 300, Commands: map[int]string{2: "exit 0"}})
	task := w.agentTask(ctx, "loop", a, m)
	task.Spec.BackoffLimit = ptr.To[int32](0)
	w.create(ctx, task)
	const often = 12
	Eventually(ctx, func() error {
		ended := []string{clewv1.ReasonCompleted, clewv1.ReasonAgentFailed, clewv1.ReasonBackoffLimit}
		if s := state(w.task(ctx, "loop")); m.served(ctx)[2] < often && !slices.Contains(ended, s) {
			return fmt.Errorf("the task is %s after these steps: %v", s, m.served(ctx))
		}
		return nil
	}).WithTimeout(patience).Should(Succeed(), "the agent has ended, or loops")
	if m.served(ctx)[2] < often {
		ended := w.task(ctx, "loop")
		Expect(state(ended)).NotTo(Equal(clewv1.ReasonCompleted), "a loop does not complete the task")
		return fmt.Sprintf("the CLI ends after %d equal calls: %s, %q", m.served(ctx)[2], state(ended), ended.Status.Attempts[0].Message)
	}
	m.script(ctx, script{Steps: 4})
	w.untilState(ctx, "loop", patience, clewv1.ReasonCompleted)
	return "the CLI goes round; put right, Completed"
}
