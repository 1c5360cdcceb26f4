package prepare_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/daemon/checkpoint"
	"github.com/clew-dev/clew/internal/daemon/daemontest"
	"github.com/clew-dev/clew/internal/daemon/journal"
	"github.com/clew-dev/clew/internal/daemon/ship"
	"github.com/clew-dev/clew/internal/daemon/volume"
	daemonv1 "github.com/clew-dev/clew/internal/daemonapi/v1"
)

const sessionID = "d4a342ce-945f-430c-8aa6-839a0c27b5c3"

// sessionFile returns, for each type of agent, where the agent keeps its session, and the
// file's content when it holds the results of some calls.
var sessionFile = map[v1alpha1.AgentType]func(results []string) (name, text string){
	"ClaudeCode": func(results []string) (string, string) {
		lines := []string{`{"type":"user","message":{"role":"user","content":"Do it."},"uuid":"u0","sessionId":"` + sessionID + `"}`}
		for _, id := range results {
			lines = append(lines,
				`{"type":"assistant","message":{"role":"assistant","content":[{"type":"tool_use","id":"`+id+`","name":"Bash","input":{}}]},"uuid":"a`+id+`"}`,
				`{"type":"user","message":{"role":"user","content":[{"tool_use_id":"`+id+`","type":"tool_result","content":"ok"}]},"uuid":"u`+id+`"}`)
		}
		return ".claude/projects/-workspace/" + sessionID + ".jsonl", strings.Join(lines, "\n") + "\n{\"type\":\"user\",\"mess"
	},
	"GeminiCLI": func(results []string) (string, string) {
		lines := []string{`{"sessionId":"` + sessionID + `","projectHash":"p"}`, `{"id":"0","type":"user","content":"Do it."}`}
		for _, id := range results {
			lines = append(lines, `{"id":"m`+id+`","type":"gemini","content":"","toolCalls":[{"id":"`+id+`","name":"x","result":[{"functionResponse":{"id":"`+id+`"}}]}]}`)
		}
		return ".gemini/tmp/workspace/chats/session-2026-11-21T01-36-" + sessionID[:8] + ".jsonl", strings.Join(lines, "\n") + "\n"
	},
}

// action is one thing that agent or daemon does in an attempt.
type action struct {
	name string
	do   func(*run)
}

// names joins the names of actions, as a key for worlds in which the same has happened.
func names(actions []action) string {
	var all []string
	for _, a := range actions {
		all = append(all, a.name)
	}
	return strings.Join(all, ", ")
}

// run is an attempt being played.
type run struct {
	w       *daemontest.World
	attempt int64
	volume  *volume.Volume
	taker   *checkpoint.Taker
	// results are the ids of the calls whose results the agent has.
	results []string
}

// call makes the agent call a tool.
func call(n int) action {
	id := fmt.Sprint(n)
	return action{fmt.Sprintf("call(%d)", n), func(r *run) {
		r.say(&daemonv1.Message{Role: daemonv1.Role_ROLE_ASSISTANT, ToolCall: &daemonv1.ToolCall{Id: id, Name: "shell", Input: `{"command":"step ` + id + `"}`}})
	}}
}

// result is the result of a call, which has changed the worktree.
func result(n int) action {
	id := fmt.Sprint(n)
	return action{fmt.Sprintf("result(%d)", n), func(r *run) {
		r.w.Write("step", id)
		r.results = append(r.results, id)
		r.say(&daemonv1.Message{Role: daemonv1.Role_ROLE_TOOL, ToolResult: &daemonv1.ToolResult{CallId: id, Output: "output of " + id}})
	}}
}

// says makes the agent say something.
func says(text string) action {
	return action{fmt.Sprintf("says(%q)", text), func(r *run) {
		r.say(&daemonv1.Message{Role: daemonv1.Role_ROLE_ASSISTANT, Text: text})
	}}
}

var (
	// sessionSaved: the agent writes its session's file, with all results so far.
	sessionSaved = action{"sessionSaved", func(r *run) {
		_, text := sessionFile[r.w.Agent](r.results)
		name := r.sessionPath()
		r.must(os.MkdirAll(filepath.Dir(name), 0o700))
		r.must(os.WriteFile(name, []byte(text), 0o600))
	}}
	// sessionRefused: the agent refuses to resume its session.
	sessionRefused = action{"sessionRefused", func(r *run) {
		r.must(r.volume.Journal.Update(func(s *journal.State) error { s.SessionRefused = sessionID; return nil }))
	}}
	// checkpointTaken: the daemon takes a checkpoint and pushes it.
	checkpointTaken = action{"checkpointTaken", func(r *run) { r.takeCheckpoint(false) }}
	// endsCleanly: the attempt ends with a checkpoint to which the worktree is equal.
	endsCleanly = action{"endsCleanly", func(r *run) { r.takeCheckpoint(true) }}
)

func (r *run) must(err error) {
	r.w.T.Helper()
	if err != nil {
		r.w.T.Fatal(err)
	}
}

func (r *run) say(m *daemonv1.Message) {
	r.must(r.volume.Spool.Append(nil, &daemonv1.Record{Time: timestamppb.Now(), Attempt: r.attempt, Body: &daemonv1.Record_Message{Message: m}}))
}

func (r *run) sessionPath() string {
	name, _ := sessionFile[r.w.Agent](nil)
	return filepath.Join(r.w.Root, "home", name)
}

func (r *run) takeCheckpoint(clean bool) {
	_, err := r.taker.Take(r.w.T.Context(), checkpoint.Request{Trigger: "ToolCalls", Also: func(s *journal.State, p journal.Point) {
		if clean {
			s.Clean = &p
		}
	}})
	r.must(err)
	r.must(r.taker.Push(r.w.T.Context()))
}

// readSession finds the results that the session's file already holds.
func (r *run) readSession() {
	old, err := os.ReadFile(r.sessionPath())
	if err != nil {
		return
	}
	for _, id := range []string{"1", "2", "3", "4", "5", "6"} {
		if strings.Contains(string(old), `id":"`+id+`"`) {
			r.results = append(r.results, id)
		}
	}
}

// play does in an attempt's pod what the actions say. Unless the last one is endsCleanly,
// the pod is killed there.
func play(w *daemontest.World, attempt int64, actions ...action) {
	t := w.T
	t.Helper()
	client, token := w.Client(attempt)
	v, err := volume.Open(t.Context(), w.Paths(), w.Pod(attempt, nil), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer v.Close()
	r := &run{w: w, attempt: attempt, volume: v, taker: &checkpoint.Taker{Repo: v.Repo, Journal: v.Journal, Spool: v.Spool,
		Remote: volume.Remote(w.Store, token, ""), TaskUID: w.UID, Attempt: attempt, Log: w.Log()}}
	r.must(v.Journal.Update(func(s *journal.State) error {
		s.Clean, s.Final = nil, nil
		if s.RunningSession() == nil {
			return s.SetAgentSession(&daemonv1.AgentSession{Agent: string(w.Agent), Id: sessionID, Version: "1"})
		}
		return s.SetAgentSession(s.RunningSession())
	}))
	r.readSession()
	for _, a := range actions {
		a.do(r)
	}
	r.must(ship.New(client, v.Spool, w.Log()).Drain(t.Context()))
}

// begun is a task whose first attempt did two steps, with a checkpoint after each (at
// positions 3 and 6), and then the given actions.
func begun(t *testing.T, agentType v1alpha1.AgentType, then ...action) *daemontest.World {
	t.Helper()
	w := daemontest.NewWorld(t, files)
	w.Agent = agentType
	w.Prepare(1, nil)
	play(w, 1, append([]action{
		call(1), result(1), sessionSaved, checkpointTaken,
		says("one"), call(2), result(2), sessionSaved, checkpointTaken,
	}, then...)...)
	return w
}
