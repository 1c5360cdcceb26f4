//go:build e2e

package e2e

import (
	"bytes"
	"context"
	"crypto/sha512"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
)

const (
	stubManifest = "../../hack/agents/stub.yaml"
	stubURL      = "http://agent-stub." + originNamespace + ".svc"
	stubProxy    = "/api/v1/namespaces/" + originNamespace + "/services/agent-stub:80/proxy"
)

// script says what the model does; see hack/agents/stub.
type script struct {
	Steps             int            `json:"steps"`
	FileToolEvery     int            `json:"fileToolEvery"`
	Commands          map[int]string `json:"commands,omitempty"`
	Tools             map[int]served `json:"tools,omitempty"`
	DelayMilliseconds int            `json:"delayMilliseconds,omitempty"`
	Delays            map[int]int    `json:"delays,omitempty"`
	Key               string         `json:"key,omitempty"`
	Failures          []failure      `json:"failures,omitempty"`
}

// served is a call of a tool of a server, by its name there; no other step has its input. It is made until
// its result matches a regular expression, if there is one.
type served struct {
	Name  string         `json:"name"`
	Input map[string]any `json:"input"`
	Until string         `json:"until,omitempty"`
}

// failure is an error with which the model answers a number of requests, or all for 0.
type failure struct {
	Status            int    `json:"status"`
	Message           string `json:"message"`
	Times             int    `json:"times,omitempty"`
	RetryAfterSeconds int    `json:"retryAfterSeconds,omitempty"`
}

// request is one request in the stub's log.
type request struct {
	Status  int
	Model   string
	Calls   int
	Results int
	Steps   []int
	Prompts []string
	Answer  string
	Aside   bool
	Usage   struct{ Input, Cached, Output int64 }
}

// prompt returns the last prompt of the request.
func (r request) prompt() string {
	if len(r.Prompts) == 0 {
		return ""
	}
	return r.Prompts[len(r.Prompts)-1]
}

// model is a session of the stub that answers a task's agent, and those of its forks.
type model struct {
	w    *world
	name string
	key  string
}

// newModel makes a session of the stub that follows the script.
func (w *world) newModel(ctx context.Context, task string, s script) *model {
	GinkgoHelper()
	for _, args := range [][]string{
		// Several processes do so at once: on a new cluster, two clients that both find nothing
		// would both create, and one fail; the server applies to what is there by then.
		{"apply", "--server-side", "--force-conflicts", "--field-manager=clew-e2e", "-f", stubManifest},
		{"rollout", "status", "deployment/agent-stub", "--timeout=60s"},
	} {
		out, err := w.kubectlIn(ctx, nil, append([]string{"--namespace", originNamespace}, args...)...)
		Expect(err).NotTo(HaveOccurred(), "start the stub of the agents' models: kubectl %v\n%s", args, out)
	}
	m := &model{w: w, name: w.namespace + "-" + task, key: canary(w.namespace + "-" + task)}
	m.script(ctx, s)
	return m
}

// canary returns a key of realistic length, a different one for each name.
func canary(name string) string {
	sum := sha512.Sum512([]byte(name))
	return ("canary-" + hex.EncodeToString(sum[:]))[:keyLength]
}

// keyLength is the length of one provider's keys: their base64 has two lines.
const keyLength = 108

// url returns the base URL for the agent.
func (m *model) url() string { return stubURL + "/s/" + m.name }

// script replaces the model's script; the stub accepts only the task's own key.
func (m *model) script(ctx context.Context, s script) {
	GinkgoHelper()
	s.Key = m.key
	body, err := json.Marshal(s)
	Expect(err).NotTo(HaveOccurred())
	Eventually(ctx, func() error {
		return m.w.clientset.CoreV1().RESTClient().Put().RequestURI(stubProxy + "/s/" + m.name + "/script").Body(body).Do(ctx).Error()
	}).WithTimeout(time.Minute).Should(Succeed(), "the stub accepts the script")
}

// log lists the requests of the conversation, without the agent's side requests.
func (m *model) log(ctx context.Context) []request {
	GinkgoHelper()
	var body []byte
	Eventually(ctx, func() (err error) {
		body, err = m.w.rawQuery(ctx, stubProxy+"/s/"+m.name+"/log")
		return err
	}).WithTimeout(time.Minute).Should(Succeed(), "the stub serves its log")
	var log []request
	for decoder := json.NewDecoder(bytes.NewReader(body)); decoder.More(); {
		var r request
		Expect(decoder.Decode(&r)).To(Succeed(), "the stub's log")
		if !r.Aside && r.Model != "" {
			log = append(log, r)
		}
	}
	return log
}

// first returns the first request whose last prompt contains the text.
func (m *model) first(ctx context.Context, text string) request {
	GinkgoHelper()
	for _, r := range m.log(ctx) {
		if strings.Contains(r.prompt(), text) {
			return r
		}
	}
	Fail(fmt.Sprintf("no request had the prompt %q", text))
	return request{}
}

// served counts how often the model asked for each step.
func (m *model) served(ctx context.Context) map[int]int {
	GinkgoHelper()
	count := map[int]int{}
	for _, a := range m.log(ctx) {
		var step int
		if _, err := fmt.Sscanf(a.Answer, "step %d:", &step); err == nil {
			count[step]++
		}
	}
	return count
}
