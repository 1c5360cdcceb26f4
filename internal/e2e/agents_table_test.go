//go:build e2e && soak

package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	historyv1 "github.com/clew-dev/clew/api/history/v1alpha1"
	clewv1 "github.com/clew-dev/clew/api/v1alpha1"
)

// cell is one thing that happens to an agent; it returns what came of it.
type cell struct {
	name string
	run  func(w *world, g *gomega.WithT, a realAgent) string
}

// patience is how long an agent may take: many run at once.
const patience = 10 * time.Minute

var cells = []cell{
	{"14 calls", callsCell}, {"three kills inside tools", killsCell}, {"401", unauthorizedCell}, {"429", rateLimitCell},
	{"500 and back", outageCell}, {"wrapped base64 of the key", keyCell}, {"background process", backgroundCell}, {"loop", loopCell},
}

// TestTheTableOfAgents runs each agent, in the pinned version and in the oldest
// that Clew works with, through what happens to agents, and prints a table.
func TestTheTableOfAgents(t *testing.T) {
	var rows []realAgent
	for _, a := range realAgents {
		old := a
		old.tag = "oldest"
		rows = append(rows, a, old)
	}
	var mu sync.Mutex
	came := map[string]string{}
	t.Run("cells", func(t *testing.T) {
		for _, a := range rows {
			version := a.version(t)
			for _, c := range cells {
				t.Run(version+"/"+c.name, func(t *testing.T) {
					t.Parallel()
					result := "F"
					defer func() {
						mu.Lock()
						defer mu.Unlock()
						came[version+"/"+c.name] = result
					}()
					got := c.run(newWorld(t), gomega.NewWithT(t), a)
					if !t.Failed() {
						result = got
					}
					t.Log(result)
				})
			}
		}
	})
	header, rule := "| CLI", "|---"
	for _, c := range cells {
		header, rule = header+" | "+c.name, rule+"|---"
	}
	table := "\n" + header + " |\n" + rule + "|\n"
	for _, a := range rows {
		table += "| " + a.version(t)
		for _, c := range cells {
			table += " | " + came[a.version(t)+"/"+c.name]
		}
		table += " |\n"
	}
	t.Log(table)
}

var plainVersion = regexp.MustCompile(`\d+\.\d+\.\d+`)

// version is the agent's name and version, by the package that its image is made of.
func (a realAgent) version(t *testing.T) string {
	t.Helper()
	file := filepath.Join("../../hack/agents", a.tag, a.name, "package.json")
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var p struct{ Dependencies map[string]string }
	if err := json.Unmarshal(data, &p); err != nil {
		t.Fatalf("%s: %v", file, err)
	}
	for name, version := range p.Dependencies {
		if !strings.HasPrefix(name, "node-") {
			return a.name + " " + plainVersion.FindString(version)
		}
	}
	t.Fatalf("%s names no version", file)
	return ""
}

// tokens that the task's status counts, and those that the model has told, without
// what it was asked aside.
func (w *world) tokens(name string, m *model) string {
	w.Helper()
	task := w.untilSettled(name)
	var input, output int64
	for _, request := range m.log() {
		input, output = input+request.Usage.Input, output+request.Usage.Output
	}
	if task.Status.InputTokens == input && task.Status.OutputTokens == output {
		return fmt.Sprintf("tokens %d/%d = billed", input, output)
	}
	return fmt.Sprintf("tokens %d/%d of %d/%d", task.Status.InputTokens, task.Status.OutputTokens, input, output)
}

func callsCell(w *world, g *gomega.WithT, a realAgent) string {
	m := w.newModel("calls", script{Steps: 14, FileToolEvery: 3})
	w.create(w.agentTask("calls", a, m))
	w.untilState("calls", patience, clewv1.ReasonCompleted)
	entries := w.conversation("calls")
	g.Expect(w.task("calls").Status.Attempts).To(gomega.HaveLen(1))
	g.Expect(stepsOf(entries)).To(gomega.Equal(upTo(14)), "each call once and in order")
	g.Expect(notUnderstood(entries)).To(gomega.BeEmpty())
	g.Expect(texts(entries, "assistant")).To(gomega.HaveExactElements("DONE"))
	tokens := w.tokens("calls", m)
	g.Expect(tokens).To(gomega.HaveSuffix("= billed"))
	return "14 once, 4 by file tools; " + tokens
}

// slow is a command that waits for a kill when it is run first. It waits less than
// the ten seconds after which some agents go on without the result.
func slow(step int) string {
	return fmt.Sprintf(`touch begun.txt; grep -qx "began %[1]d" begun.txt && wait=0 || wait=9; echo "began %[1]d" >> begun.txt; sleep $wait; echo "line of %[1]d" >> notes.txt`, step)
}

// untilServed waits until the model has asked for a step so often.
func (m *model) untilServed(step, times int, timeout time.Duration) {
	m.w.Helper()
	m.w.until(fmt.Sprintf("the model has asked for step %d", step), timeout, func() error {
		if got := m.served()[step]; got < times {
			return fmt.Errorf("it has %d times", got)
		}
		return nil
	})
}

func killsCell(w *world, g *gomega.WithT, a realAgent) string {
	killed := []int{3, 7, 11}
	m := w.newModel("kills", script{Steps: 14, FileToolEvery: 5, Commands: map[int]string{
		3: slow(3), 7: slow(7), 11: slow(11), 14: "cat begun.txt notes.txt"}})
	task := w.agentTask("kills", a, m)
	task.Spec.BackoffLimit = ptr.To[int32](10)
	w.create(task)
	for _, step := range killed {
		m.untilServed(step, 1, patience)
		running := w.untilAgentRuns("kills", patience)
		w.until(fmt.Sprintf("step %d runs", step), 10*time.Second, func() error {
			out, err := w.kubectlIn(w.ctx, nil, "--namespace", w.namespace, "exec", running.Name, "-c", clewv1.AgentContainer, "--", "cat", "begun.txt")
			if err == nil && !strings.Contains(out, fmt.Sprintf("began %d\n", step)) {
				err = fmt.Errorf("begun: %s", out)
			}
			return err
		})
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: running.Name}}
		g.Expect(w.kube.Delete(w.ctx, pod, client.GracePeriodSeconds(0))).To(gomega.Succeed())
	}
	done := w.untilState("kills", patience, clewv1.ReasonCompleted)
	g.Expect(len(done.Status.Attempts)).To(gomega.BeNumerically(">=", 4))
	for _, attempt := range done.Status.Attempts[1:] {
		g.Expect(attempt.Memory).To(gomega.BeElementOf(clewv1.AgentMemorySession, clewv1.AgentMemory("")), attempt.MemoryMessage)
	}
	entries := w.conversation("kills")
	once := slices.Clone(stepsOf(entries))
	slices.Sort(once)
	g.Expect(once).To(gomega.Equal(upTo(14)), "each step was done once")
	g.Expect(interruptedSteps(entries)).To(gomega.Equal(killed), "the calls that were cut are told as interrupted")
	g.Expect(notUnderstood(entries)).To(gomega.BeEmpty())
	seen := outputOf(entries, 14)
	for _, step := range killed {
		g.Expect(strings.Count(seen, fmt.Sprintf("began %d\n", step))).To(gomega.Equal(2), "step %d was begun again", step)
	}
	for step, times := range m.served() {
		if !slices.Contains(killed, step) {
			g.Expect(times).To(gomega.Equal(1), "step %d was in history, and was asked for again", step)
		}
	}
	return "0 lost, 0 doubled, 3 interrupted; " + w.tokens("kills", m)
}

// interruptedSteps are the steps of the calls that are told as interrupted.
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

func unauthorizedCell(w *world, g *gomega.WithT, a realAgent) string {
	const said = "the key is expired"
	m := w.newModel("expired", script{Steps: 3, Failures: []failure{{Status: 401, Message: said}}})
	w.create(w.agentTask("expired", a, m))
	w.untilState("expired", patience, clewv1.ReasonAgentUnauthorized)
	stopped := w.task("expired")
	g.Expect(stopped.Status.Attempts).To(gomega.HaveLen(1), "it is not tried again")
	g.Expect(stopped.Status.Attempts[0].Message).To(gomega.ContainSubstring(said))
	took := stopped.Status.Attempts[0].EndTime.Sub(stopped.Status.Attempts[0].StartTime.Time).Round(time.Second)
	m.script(script{Steps: 3})
	w.patchSpec("expired", map[string]any{"resume": map[string]any{"id": "with-a-new-key"}})
	w.untilState("expired", patience, clewv1.ReasonCompleted)
	g.Expect(notUnderstood(w.conversation("expired"))).To(gomega.BeEmpty())
	return fmt.Sprintf("AgentUnauthorized after %s, 1 attempt; resumed", took)
}

func rateLimitCell(w *world, g *gomega.WithT, a realAgent) string {
	m := w.newModel("limited", script{Steps: 3, Failures: []failure{{Status: 429, Message: "Slow down.", RetryAfterSeconds: 1, Times: 3}}})
	task := w.agentTask("limited", a, m)
	task.Spec.BackoffLimit = ptr.To[int32](0)
	w.create(task)
	w.untilState("limited", patience, clewv1.ReasonCompleted)
	got := w.task("limited")
	g.Expect(got.Status.Failures).To(gomega.BeZero(), "rate limits do not count")
	g.Expect(stepsOf(w.conversation("limited"))).To(gomega.Equal(upTo(3)))
	g.Expect(notUnderstood(w.conversation("limited"))).To(gomega.BeEmpty())
	return fmt.Sprintf("Completed, 0 failures, attempts %d", len(got.Status.Attempts))
}

func outageCell(w *world, g *gomega.WithT, a realAgent) string {
	m := w.newModel("outage", script{Steps: 6, DelayMilliseconds: 1000})
	task := w.agentTask("outage", a, m)
	task.Spec.BackoffLimit = ptr.To[int32](10)
	w.create(task)
	w.untilToolCalls("outage", 3, patience)
	m.script(script{Steps: 6, Failures: []failure{{Status: 500, Message: "the model is on fire"}}})
	// Two attempts fail, but for agents that try for longer than this by themselves.
	for until := time.Now().Add(5 * time.Minute); len(w.task("outage").Status.Attempts) < 3 && time.Now().Before(until); {
		time.Sleep(time.Second)
	}
	m.script(script{Steps: 6})
	done := w.untilState("outage", patience, clewv1.ReasonCompleted)
	g.Expect(stepsOf(w.conversation("outage"))).To(gomega.Equal(upTo(6)), "each step was done once")
	g.Expect(notUnderstood(w.conversation("outage"))).To(gomega.BeEmpty())
	for i, attempt := range done.Status.Attempts {
		if i > 0 {
			g.Expect(attempt.Memory).To(gomega.Equal(clewv1.AgentMemorySession), attempt.MemoryMessage)
		}
		if i < len(done.Status.Attempts)-1 {
			g.Expect(attempt.Message).To(gomega.ContainSubstring("the model's API fails or cannot be reached"))
		}
	}
	return fmt.Sprintf("Completed, attempts %d, its own session", len(done.Status.Attempts))
}

func keyCell(w *world, g *gomega.WithT, a realAgent) string {
	m := w.newModel("key", script{Steps: 5, Commands: printsKey(a.keyEnv)})
	w.create(w.agentTask("key", a, m))
	w.untilState("key", patience, clewv1.ReasonCompleted)
	w.untilSettled("key")
	forms := formsOf([]string{m.key})
	seen := fmt.Sprint(w.conversation("key")) + w.kubectl("logs", w.task("key").Status.Attempts[0].PodName, "--all-containers")
	for _, form := range forms {
		g.Expect(strings.Count(seen, form)).To(gomega.BeZero(), form)
	}
	g.Expect(w.inRepository([]string{"line of 5"})).NotTo(gomega.Equal("0"))
	g.Expect(w.inDatabase(forms)).To(gomega.Equal("0"))
	g.Expect(w.inRepository(forms)).To(gomega.Equal("0"))
	return "0 hits in history, logs, database, objects"
}

func backgroundCell(w *world, g *gomega.WithT, a realAgent) string {
	m := w.newModel("behind", script{Steps: 3, Commands: map[int]string{2: leavesBehind}})
	task := w.agentTask("behind", a, m)
	task.Spec.BackoffLimit = ptr.To[int32](0)
	task.Spec.Agent.IdleSeconds = ptr.To[int32](60)
	w.create(task)
	ended := w.untilState("behind", patience, clewv1.ReasonCompleted, clewv1.ReasonAgentFailed, clewv1.ReasonBackoffLimit)
	if state(ended) == clewv1.ReasonCompleted {
		g.Expect(stepsOf(w.conversation("behind"))).To(gomega.Equal(upTo(3)))
		return "Completed"
	}
	g.Expect(ended.Status.Attempts[0].Message).To(gomega.ContainSubstring("idleSeconds"))
	g.Expect(interruptedSteps(w.conversation("behind"))).To(gomega.Equal([]int{2}), "the call that held it")
	return "the CLI waits for it: ended by idleSeconds, the call told as interrupted"
}

func loopCell(w *world, g *gomega.WithT, a realAgent) string {
	// A command that never says that its step is done is asked for again and again.
	m := w.newModel("loop", script{Steps: 4, DelayMilliseconds: 300, Commands: map[int]string{2: "exit 0"}})
	task := w.agentTask("loop", a, m)
	task.Spec.BackoffLimit = ptr.To[int32](0)
	w.create(task)
	const often = 12
	w.until("the agent has ended, or goes round", patience, func() error {
		if s := state(w.task("loop")); m.served()[2] < often && s != clewv1.ReasonCompleted && s != clewv1.ReasonAgentFailed && s != clewv1.ReasonBackoffLimit {
			return fmt.Errorf("it is %s after %v", s, m.served())
		}
		return nil
	})
	if m.served()[2] < often {
		ended := w.task("loop")
		g.Expect(state(ended)).NotTo(gomega.Equal(clewv1.ReasonCompleted), "a loop is no completion")
		return fmt.Sprintf("the CLI ends after %d equal calls: %s, %q", m.served()[2], state(ended), ended.Status.Attempts[0].Message)
	}
	m.script(script{Steps: 4})
	w.untilState("loop", patience, clewv1.ReasonCompleted)
	return "the CLI goes round; put right, Completed"
}
