//go:build e2e

package e2e

import (
	"cmp"
	"context"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	historyv1 "github.com/clew-dev/clew/api/history/v1alpha1"
	clewv1 "github.com/clew-dev/clew/api/v1alpha1"
)

// realAgent is one of the agents that users run, as hack/agents builds it.
type realAgent struct {
	name  string
	kind  clewv1.AgentType
	model string
	// keyEnv is the environment variable with the API key.
	keyEnv string
	// configure makes the agent send its requests to a URL.
	configure func(c *corev1.Container, url string)
	// tag of its image; empty for the pinned version.
	tag string
	// sessions are the folders of its home that hold its session.
	sessions []string
}

func realAgents() []realAgent {
	return []realAgent{claude(), codex(), gemini(), openCode(), qwen()}
}

func claude() realAgent {
	return realAgent{
		name: "claude", kind: clewv1.AgentClaudeCode, keyEnv: "ANTHROPIC_API_KEY", sessions: []string{".claude/projects"},
		configure: func(c *corev1.Container, url string) {
			c.Env = append(c.Env,
				corev1.EnvVar{Name: "ANTHROPIC_BASE_URL", Value: url},
				corev1.EnvVar{Name: "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", Value: "1"})
		},
	}
}

func codex() realAgent {
	return realAgent{
		name: "codex", kind: clewv1.AgentCodex, model: "gpt-5.5", keyEnv: "CODEX_API_KEY", sessions: []string{".codex/sessions"},
		configure: func(c *corev1.Container, url string) {
			c.Args = []string{"-c", "model_provider=stub", "-c",
				fmt.Sprintf(`model_providers.stub={name="stub",base_url=%q,wire_api="responses",env_key="CODEX_API_KEY"}`, url+"/v1")}
		},
	}
}

func gemini() realAgent {
	return realAgent{
		name: "gemini", kind: clewv1.AgentGeminiCLI, model: "gemini-2.5-flash", keyEnv: "GEMINI_API_KEY", sessions: []string{".gemini/tmp"},
		configure: func(c *corev1.Container, url string) {
			c.Env = append(c.Env, corev1.EnvVar{Name: "GOOGLE_GEMINI_BASE_URL", Value: url})
		},
	}
}

func openCode() realAgent {
	return realAgent{
		name: "opencode", kind: clewv1.AgentOpenCode, model: "stub/stub-model", keyEnv: "OPENAI_API_KEY", sessions: []string{".local/share/opencode"},
		configure: func(c *corev1.Container, url string) {
			c.Env = append(c.Env,
				corev1.EnvVar{Name: "OPENCODE_DISABLE_MODELS_FETCH", Value: "1"},
				corev1.EnvVar{Name: "OPENCODE_CONFIG_CONTENT", Value: fmt.Sprintf(
					`{"provider":{"stub":{"npm":"@ai-sdk/openai-compatible","options":{"baseURL":%q,"apiKey":"{env:OPENAI_API_KEY}"},"models":{"stub-model":{}}}},"small_model":"stub/stub-model"}`, url+"/v1")})
		},
	}
}

func qwen() realAgent {
	return realAgent{
		name: "qwen", kind: clewv1.AgentQwenCode, model: "gpt-5.5", keyEnv: "OPENAI_API_KEY", sessions: []string{".qwen/projects"},
		configure: func(c *corev1.Container, url string) {
			c.Args = []string{"--auth-type", "openai"}
			c.Env = append(c.Env, corev1.EnvVar{Name: "OPENAI_BASE_URL", Value: url + "/v1"})
		},
	}
}

// image returns the name of the image that hack/agents builds.
func (a realAgent) image() string {
	return "localhost/clew-dev/agent-" + a.name + ":" + cmp.Or(a.tag, "latest")
}

// agentEntries returns a table entry for each agent.
func agentEntries() []TableEntry {
	var entries []TableEntry
	for _, a := range realAgents() {
		entries = append(entries, Entry(a.name, a))
	}
	return entries
}

const beginning = "Do the next small step, one at a time, until all is done."

// agentTask builds a task of a real agent that talks to the model, with its key from a
// Secret, in an empty repository.
func (w *world) agentTask(ctx context.Context, name string, a realAgent, m *model) *clewv1.Task {
	GinkgoHelper()
	secret := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: name + "-key"},
		StringData: map[string]string{"key": m.key},
	}
	Expect(w.kube.Create(ctx, secret)).To(Succeed())
	task := w.newTask(name)
	task.Spec.Repository = nil
	task.Spec.Prompt = ptr.To(beginning)
	task.Spec.Agent = clewv1.Agent{Type: a.kind, Model: a.model}
	task.Spec.CheckpointPolicy.EveryToolCalls = ptr.To[int32](3)
	task.Spec.BackoffLimit = ptr.To[int32](2)
	container := &task.Spec.Template.Spec.Containers[0]
	container.Image = a.image()
	container.Env = []corev1.EnvVar{{Name: a.keyEnv, ValueFrom: &corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{
		LocalObjectReference: corev1.LocalObjectReference{Name: secret.Name}, Key: "key",
	}}}}
	a.configure(container, m.url())
	return task
}

// runs creates a task of the agent and waits until it has completed its script.
func (w *world) runs(ctx context.Context, name string, a realAgent, s script, change ...func(*clewv1.Task)) *model {
	GinkgoHelper()
	m := w.newModel(ctx, name, s)
	task := w.agentTask(ctx, name, a, m)
	for _, c := range change {
		c(task)
	}
	w.create(ctx, task)
	w.untilState(ctx, name, 5*time.Minute, clewv1.ReasonCompleted)
	return m
}

var _ = Describe("a real agent", Label("agents"), func() {
	w := newWorld()

	DescribeTable("runs unmodified, with each message, call and token recorded once", func(ctx SpecContext, a realAgent) {
		m := w.runs(ctx, "works", a, script{Steps: 12, FileToolEvery: 4}, func(task *clewv1.Task) {
			task.Spec.Repository = &clewv1.Repository{URL: originURL, Ref: "main"}
		})

		task := w.task(ctx, "works")
		Expect(task.Status.Attempts).To(HaveLen(1))
		Expect(task.Status.Attempts[0].Memory).To(Equal(clewv1.AgentMemoryNew))
		log := m.log(ctx)
		Expect(log).To(HaveLen(13), "one request for each step, and one that is answered with DONE")
		entries := w.conversation(ctx, "works")
		Expect(texts(entries, "user")).To(Equal([]string{beginning}), "the prompt, once")
		Expect(texts(entries, "assistant")).To(HaveExactElements("DONE"), "a message that was streamed in pieces is one message")
		Expect(stepsOf(entries)).To(Equal(upTo(12)), "each call with its result, once and in order")
		Expect(notUnderstood(entries)).To(BeEmpty())
		Expect(task.Status.ToolCallCount).To(BeEquivalentTo(12))

		var input, output int64
		for _, request := range log {
			input, output = input+request.Usage.Input, output+request.Usage.Output
		}
		Expect(task.Status.InputTokens).To(Equal(input), "the tokens that the model reported")
		Expect(task.Status.OutputTokens).To(Equal(output))
		if a.kind != clewv1.AgentOpenCode { // its model has no known price
			Expect(task.Status.CostMicroUSD).To(BeNumerically(">", 0))
		}
		GinkgoWriter.Printf("%s: %d messages, %d calls, %d tokens in, %d out, %d µ$\n", a.name, len(entries), task.Status.ToolCallCount,
			task.Status.InputTokens, task.Status.OutputTokens, task.Status.CostMicroUSD)
	}, agentEntries())
})

// texts returns the texts of a role's messages.
func texts(entries []historyv1.ConversationEntry, role string) []string {
	var found []string
	for _, e := range entries {
		message := e.Text != "" && e.ToolCall == nil
		if e.Role == role && message {
			found = append(found, e.Text)
		}
	}
	return found
}

func notUnderstood(entries []historyv1.ConversationEntry) []string {
	var raw []string
	for _, e := range entries {
		if e.Raw != "" {
			raw = append(raw, e.Raw)
		}
	}
	return raw
}

// stepOfInput finds the step in a call: Codex reports only the paths of a patch.
var stepOfInput = regexp.MustCompile(`(?:\bstep |/file)(\d+)\b`)

// stepsOf lists the steps of the answered calls, in the order of the results.
func stepsOf(entries []historyv1.ConversationEntry) []int {
	steps, done := map[string]int{}, []int(nil)
	for _, e := range entries {
		if e.ToolCall != nil {
			if match := stepOfInput.FindStringSubmatch(e.ToolCall.Input); match != nil {
				steps[e.ToolCall.ID], _ = strconv.Atoi(match[1])
			}
		}
		if e.ToolResult != nil && !e.ToolResult.Interrupted {
			done = append(done, steps[e.ToolResult.CallID])
		}
	}
	return done
}

// outputOf returns the last output of a step's tool.
func outputOf(entries []historyv1.ConversationEntry, step int) string {
	calls, output := map[string]bool{}, ""
	for _, e := range entries {
		if e.ToolCall != nil && strings.Contains(e.ToolCall.Input, fmt.Sprintf("# step %d", step)) {
			calls[e.ToolCall.ID] = true
		}
		if e.ToolResult != nil && calls[e.ToolResult.CallID] {
			output = e.ToolResult.Output
		}
	}
	return output
}

// afterStep returns the position of the result of a step.
func afterStep(entries []historyv1.ConversationEntry, step int) int64 {
	for i, e := range entries {
		if e.ToolResult != nil && len(stepsOf(entries[:i+1])) == step {
			return e.Position
		}
	}
	return 0
}

// upTo lists 1 to n.
func upTo(n int) []int {
	var all []int
	for i := 1; i <= n; i++ {
		all = append(all, i)
	}
	return all
}
