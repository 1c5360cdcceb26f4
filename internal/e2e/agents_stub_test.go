//go:build e2e

package e2e

import (
	"bytes"
	"crypto/sha512"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strings"
	"time"
)

const (
	stubManifest = "../../hack/agents/stub.yaml"
	stubURL      = "http://agent-stub." + originNamespace + ".svc"
	stubProxy    = "/api/v1/namespaces/" + originNamespace + "/services/agent-stub:80/proxy"
)

// script is what the model does: see hack/agents/stub.
type script struct {
	Steps             int            `json:"steps"`
	FileToolEvery     int            `json:"fileToolEvery"`
	Commands          map[int]string `json:"commands,omitempty"`
	DelayMilliseconds int            `json:"delayMilliseconds,omitempty"`
	Delays            map[int]int    `json:"delays,omitempty"`
	Key               string         `json:"key,omitempty"`
	Failures          []failure      `json:"failures,omitempty"`
}

// failure is what the model answers so many requests with; 0 for all.
type failure struct {
	Status            int    `json:"status"`
	Message           string `json:"message"`
	Times             int    `json:"times,omitempty"`
	RetryAfterSeconds int    `json:"retryAfterSeconds,omitempty"`
}

// asked is what the stub's log says of one request.
type asked struct {
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

// prompt is the last one that the request carried.
func (a asked) prompt() string {
	if len(a.Prompts) == 0 {
		return ""
	}
	return a.Prompts[len(a.Prompts)-1]
}

// model is a session of the stub that answers a task's agent, and those of its forks.
type model struct {
	w    *world
	name string
	key  string
}

// newModel has a stub answer as the script says.
func (w *world) newModel(task string, s script) *model {
	w.Helper()
	for _, args := range [][]string{
		{"apply", "-f", stubManifest},
		{"rollout", "status", "deployment/agent-stub", "--timeout=60s"},
	} {
		if out, err := w.kubectlIn(w.ctx, nil, append([]string{"--namespace", originNamespace}, args...)...); err != nil {
			w.Fatalf("the stub of the agents' models: kubectl %v: %v\n%s", args, err, out)
		}
	}
	m := &model{w: w, name: w.namespace + "-" + task, key: canary(w.namespace + "-" + task)}
	m.script(s)
	return m
}

// canary is a key that is as long as real ones, another for each name.
func canary(name string) string {
	sum := sha512.Sum512([]byte(name))
	return ("canary-" + hex.EncodeToString(sum[:]))[:keyLength]
}

// keyLength is that of the keys of one provider: its base64 has two lines.
const keyLength = 108

// url is the base URL that the agent is given.
func (m *model) url() string { return stubURL + "/s/" + m.name }

// script replaces what the model does; only the task's own key will do.
func (m *model) script(s script) {
	m.w.Helper()
	s.Key = m.key
	body, err := json.Marshal(s)
	if err != nil {
		m.w.Fatal(err)
	}
	m.w.until("the stub takes the script", time.Minute, func() error {
		return m.w.clientset.CoreV1().RESTClient().Put().RequestURI(stubProxy + "/s/" + m.name + "/script").Body(body).Do(m.w.ctx).Error()
	})
}

// log lists what was asked in the conversation, without the agent's asides.
func (m *model) log() []asked {
	m.w.Helper()
	var body []byte
	m.w.until("the stub tells its log", time.Minute, func() (err error) {
		body, err = m.w.rawQuery(stubProxy + "/s/" + m.name + "/log")
		return err
	})
	var log []asked
	for decoder := json.NewDecoder(bytes.NewReader(body)); decoder.More(); {
		var a asked
		if err := decoder.Decode(&a); err != nil {
			m.w.Fatalf("the stub's log: %v", err)
		}
		if !a.Aside && a.Model != "" {
			log = append(log, a)
		}
	}
	return log
}

// first gives the first request whose last prompt holds the text.
func (m *model) first(text string) asked {
	m.w.Helper()
	for _, a := range m.log() {
		if strings.Contains(a.prompt(), text) {
			return a
		}
	}
	m.w.Fatalf("no request had the prompt %q", text)
	return asked{}
}

// served counts how often each step was asked of the agent.
func (m *model) served() map[int]int {
	m.w.Helper()
	count := map[int]int{}
	for _, a := range m.log() {
		var step int
		if _, err := fmt.Sscanf(a.Answer, "step %d:", &step); err == nil {
			count[step]++
		}
	}
	return count
}
