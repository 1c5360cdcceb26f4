package sidecar_test

import (
	"context"
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/onsi/gomega"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/daemon/daemontest"
	"github.com/clew-dev/clew/internal/daemon/mask"
	"github.com/clew-dev/clew/internal/daemon/socket"
	"github.com/clew-dev/clew/internal/daemon/wire"
	"github.com/clew-dev/clew/internal/daemonapi"
	daemonv1 "github.com/clew-dev/clew/internal/daemonapi/v1"
)

// askWorld is one whose policy has a person asked about pushes, and refuses deletions.
func askWorld(t *testing.T, agent string) *daemontest.World {
	w := daemontest.NewWorld(t, map[string]string{"a": "a"})
	w.Agent, w.PodUID = v1alpha1.AgentType(agent), "pod-1"
	w.Policy.RiskyTools = []daemonapi.ToolPattern{
		{Tool: "^Bash$", Input: "git"},
		{Tool: "^Bash$", Input: "git push", Action: v1alpha1.RiskyToolAsk, Message: "pushes go to customers"},
		{Tool: "^Bash$", Input: "--force", Action: v1alpha1.RiskyToolDeny, Message: "never by force"},
	}
	w.Policy.ApprovalDeadlineSeconds = 600
	w.Prepare(1, nil)
	return w
}

const push = `{"command":"git push"}`

// hookResult is what a hook was answered.
type hookResult struct {
	refused string
	err     error
}

// pushHook runs the hook of a push, until ctx ends.
func pushHook(ctx context.Context, w *daemontest.World, id string) <-chan hookResult {
	done := make(chan hookResult, 1)
	go func() {
		refused, err := awaitTool(ctx, w, id, "Bash", push, time.Minute)
		done <- hookResult{refused, err}
	}()
	return done
}

// expectHookAnswer waits for what a hook is answered.
func expectHookAnswer(t *testing.T, done <-chan hookResult, want string) {
	t.Helper()
	select {
	case got := <-done:
		if got.err != nil || got.refused != want {
			t.Errorf("the hook was answered %q, %v; want %q", got.refused, got.err, want)
		}
	case <-time.After(20 * time.Second):
		t.Fatal("the hook still waits after 20 s")
	}
}

// requestsOf returns the requests that were recorded, and the ids of those that wait no longer.
func requestsOf(w *daemontest.World) (all []*daemonv1.ToolRequest, ended []string) {
	w.Server.Inspect(w.UID, func(k *daemontest.Task) {
		for _, r := range k.Records {
			if q := r.GetToolRequest(); q != nil {
				all = append(all, q)
			}
			if e := r.GetToolRequestEnd(); e != nil {
				ended = append(ended, e.GetId())
			}
		}
	})
	return all, ended
}

// awaitRequest waits until so many requests are recorded, and returns the last one.
func awaitRequest(t *testing.T, w *daemontest.World, n int) *daemonv1.ToolRequest {
	t.Helper()
	w.Server.Until(t, fmt.Sprintf("%d requests are recorded", n), w.UID, func(k *daemontest.Task) bool {
		found := 0
		for _, r := range k.Records {
			if r.GetToolRequest() != nil {
				found++
			}
		}
		return found >= n
	})
	all, _ := requestsOf(w)
	return all[len(all)-1]
}

// awaitEnded waits until a request waits no longer.
func awaitEnded(t *testing.T, w *daemontest.World, id string) {
	t.Helper()
	gomega.NewWithT(t).Eventually(func() []string { _, ended := requestsOf(w); return ended }, 20*time.Second, 5*time.Millisecond).
		Should(gomega.ContainElement(id))
}

func TestACallWaitsForAPersonsAnswer(t *testing.T) {
	for _, c := range []struct {
		approved bool
		want     string
		note     string
	}{
		{true, "", "approved by alice: looks right"},
		{false, "The call of Bash was denied by alice: looks right. Do not make it again; go on without it.", "denied by alice: looks right"},
	} {
		t.Run(fmt.Sprintf("approved: %v", c.approved), func(t *testing.T) {
			w := askWorld(t, "ClaudeCode")
			d := w.Start(1)
			a := w.Dial("s")
			a.Say(claudeInit, strings.Replace(claudeCall, "rm -rf src", "git push", 1))
			a.Recorded()
			w.Write("new", "n")
			hook := pushHook(t.Context(), w, "t-1")
			q := awaitRequest(t, w, 1)
			if !strings.HasPrefix(q.GetId(), "1-") || q.GetTool() != "Bash" || q.GetInput() != push || q.GetMessage() != "pushes go to customers" ||
				q.GetStopsAgent() || q.GetRefused() != "" || q.GetDeadline().AsTime().Sub(q.GetSince().AsTime()) != 10*time.Minute {
				t.Errorf("the request is %v", q)
			}
			gomega.NewWithT(t).Consistently(hook).WithTimeout(50 * time.Millisecond).ShouldNot(gomega.Receive())
			w.Server.AnswerRequest(&daemonv1.AnswerRequest{Id: "1-another", Approved: true, By: "mallory"})
			w.Server.AnswerRequest(&daemonv1.AnswerRequest{Id: q.GetId(), Approved: c.approved, By: "alice", Reason: "looks right"})
			w.Server.AnswerRequest(&daemonv1.AnswerRequest{Id: q.GetId(), Approved: !c.approved, By: "mallory"})
			if c.approved {
				a.Next(wire.TypeThaw) // the checkpoint before the tool runs
			}
			expectHookAnswer(t, hook, c.want)
			awaitEnded(t, w, q.GetId())
			if all, _ := requestsOf(w); len(all) != 1 {
				t.Errorf("the requests are %v", all)
			}
			finish(a, d, 0)
			expectLines(t, w, "user Do it.", "call t-1", "system Clew asks a person before the call of Bash is carried out (request "+q.GetId()+").",
				"system Request "+q.GetId()+" was "+c.note, "interrupted t-1")
		})
	}
}

// An identical call later is another one, also if the model gives it the same id.
func TestTheSameCallLaterIsAskedAboutAnew(t *testing.T) {
	for agent, id := range map[string]string{"GeminiCLI": "", "ClaudeCode": "t-1"} {
		t.Run(agent, func(t *testing.T) {
			w := askWorld(t, agent)
			d := w.Start(1)
			a := w.Dial("s")
			ids := map[string]bool{}
			for n := range 3 {
				hook := pushHook(t.Context(), w, id)
				q := awaitRequest(t, w, n+1)
				ids[q.GetId()] = true
				w.Server.AnswerRequest(&daemonv1.AnswerRequest{Id: q.GetId(), By: "alice"})
				expectHookAnswer(t, hook, "The call of Bash was denied by alice. Do not make it again; go on without it.")
			}
			if len(ids) != 3 {
				t.Errorf("the requests have the ids %v", ids)
			}
			finish(a, d, 0)
		})
	}
}

// hookWithKey asks about a call as a process of the agent can: with a key of its own choice.
func hookWithKey(t *testing.T, w *daemontest.World, key, input string) <-chan hookResult {
	t.Helper()
	conn, err := net.Dial("unix", filepath.Join(w.RunDir, socket.Name))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	if err := wire.WriteBeforeTool(conn, wire.BeforeTool{Key: key, ID: "t-1", Name: "Bash", Input: input}); err != nil {
		t.Fatal(err)
	}
	done := make(chan hookResult, 1)
	go func() {
		var answer wire.Proceed
		f, err := wire.Read(conn)
		if err == nil {
			err = f.Decode(&answer)
		}
		done <- hookResult{answer.Refused, err}
	}()
	return done
}

// TestAnAnswerIsGoodForOneCall: whatever says the same key asks about a call of its own.
func TestAnAnswerIsGoodForOneCall(t *testing.T) {
	w := askWorld(t, "ClaudeCode")
	d := w.Start(1)
	a := w.Dial("s")
	a.Say(claudeInit, strings.Replace(claudeCall, "rm -rf src", "git push", 1))
	a.Recorded()
	w.Write("new", "n")
	first := hookWithKey(t, w, "key", push)
	q := awaitRequest(t, w, 1)
	other := hookWithKey(t, w, "key", `{"command":"git push elsewhere"}`)
	if asked := awaitRequest(t, w, 2); asked.GetInput() != `{"command":"git push elsewhere"}` || asked.GetId() == q.GetId() {
		t.Errorf("a call with the key of another one is asked about as %v", asked)
	}
	w.Server.AnswerRequest(&daemonv1.AnswerRequest{Id: q.GetId(), Approved: true, By: "alice"})
	a.Next(wire.TypeThaw) // the checkpoint before the tool runs
	expectHookAnswer(t, first, "")
	gomega.NewWithT(t).Consistently(other).WithTimeout(50 * time.Millisecond).ShouldNot(gomega.Receive())

	again := hookWithKey(t, w, "key", push)
	if asked := awaitRequest(t, w, 3); asked.GetId() == q.GetId() {
		t.Error("an approval is good for a second call")
	}
	a.Send(wire.TypeExit, wire.Exit{Code: 0})
	expectHookAnswer(t, other, "This run of the agent is ending: the call is not carried out.")
	expectHookAnswer(t, again, "This run of the agent is ending: the call is not carried out.")
	a.Next(wire.TypeRelease)
	d.End()
}

func TestACallThatIsGivenUpWaitsNoLonger(t *testing.T) {
	w := askWorld(t, "ClaudeCode")
	w.ReturnWait = 20 * time.Millisecond
	d := w.Start(1)
	a := w.Dial("s")
	ctx, cancel := context.WithCancel(t.Context())
	hook := pushHook(ctx, w, "t-1")
	q := awaitRequest(t, w, 1)
	cancel()
	<-hook
	awaitEnded(t, w, q.GetId())
	// What is called again is asked about again.
	hook = pushHook(t.Context(), w, "t-1")
	if again := awaitRequest(t, w, 2); again.GetId() == q.GetId() {
		t.Error("the request that was given up is used again")
	}
	a.Send(wire.TypeExit, wire.Exit{Code: 0})
	expectHookAnswer(t, hook, "This run of the agent is ending: the call is not carried out.")
	a.Next(wire.TypeRelease)
	d.End()
	all, _ := requestsOf(w)
	awaitEnded(t, w, all[1].GetId())
}

func TestARefusedCallIsAnsweredAtOnce(t *testing.T) {
	w := askWorld(t, "ClaudeCode")
	d := w.Start(1)
	a := w.Dial("s")
	err := <-claudeHook(w, "t-1", "Bash", `{"command":"git push --force"}`, time.Minute)
	if err == nil || err.Error() != "refused: A rule of this task refuses the call: never by force" {
		t.Errorf("the hook ended with %v", err)
	}
	long := `{"command":"` + strings.Repeat("x", 100<<10) + `"}`
	if err := <-claudeHook(w, "t-2", "Bash", long, time.Minute); err == nil || !strings.Contains(err.Error(), "too long to be looked at as a whole") {
		t.Errorf("the hook of a call that cannot be looked at ended with %v", err)
	}
	finish(a, d, 0)
	expectEvent(t, w, "ToolRefused: the tool Bash was not run: A rule of this task refuses the call: never by force")
	if all, _ := requestsOf(w); all != nil {
		t.Errorf("somebody is asked: %v", all)
	}
}

// More calls than may wait are refused, so that the hooks of other tools have room.
func TestFewCallsWaitAtATime(t *testing.T) {
	w := askWorld(t, "ClaudeCode")
	d := w.Start(1)
	a := w.Dial("s")
	ctx, cancel := context.WithCancel(t.Context())
	var hooks []<-chan hookResult
	for i := range 16 {
		hooks = append(hooks, pushHook(ctx, w, fmt.Sprint(i)))
		awaitRequest(t, w, i+1)
	}
	got := <-pushHook(ctx, w, "one-more")
	if !strings.Contains(got.refused, "16 calls wait for answers already") {
		t.Errorf("one call more is answered %q, %v", got.refused, got.err)
	}
	answered(t, claudeHook(w, "t-0", "Bash", `{"command":"ls"}`, time.Minute))
	cancel()
	for _, hook := range hooks {
		<-hook
	}
	finish(a, d, 0)
}

// Whoever is asked sees the call without the values of Secrets, and not all of a long one.
func TestARequestIsMaskedAndBounded(t *testing.T) {
	w := askWorld(t, "ClaudeCode")
	w.Mask = mask.New([]byte("correct-horse-battery"))
	d := w.Start(1)
	a := w.Dial("s")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go awaitTool(ctx, w, "t-1", "Bash", `{"command":"git push https://correct-horse-battery@host `+strings.Repeat("x", 5000)+`"}`, time.Minute)
	q := awaitRequest(t, w, 1)
	if strings.Contains(q.String(), "correct-horse-battery") || len(q.GetInput()) > 1024 || !strings.HasSuffix(q.GetInput(), "…") {
		t.Errorf("the request is %v", q)
	}
	cancel()
	finish(a, d, 0)
}

// execPush is a call of an agent without hooks.
const execPush = `{"type":"tool_call","id":"1","name":"Bash","input":{"command":"git push"}}`

func TestAnAgentWithoutHooksIsEndedAtTheCall(t *testing.T) {
	w := askWorld(t, "Exec")
	d := w.Start(1)
	a := w.Dial("s")
	w.Write("work", "half done")
	a.Say(execPush)
	a.Next(wire.TypeFreeze)
	a.Next(wire.TypeFinish)
	q := awaitRequest(t, w, 1)
	if !q.GetStopsAgent() || q.GetRefused() != "" || q.GetInput() != push {
		t.Errorf("the request is %v", q)
	}
	a.Send(wire.TypeExit, wire.Exit{Code: 137})
	a.Next(wire.TypeRelease)
	d.End()
	expectCheckpoint(t, latest(w), &daemonv1.CheckpointRecord{Trigger: "Suspend", FilesChanged: 1})
	if end := recordedEnd(w); end != nil {
		t.Errorf("the agent is said to have failed: %v", end)
	}
	if _, ended := requestsOf(w); ended != nil {
		t.Errorf("the requests %v wait no longer", ended)
	}

	// The next attempt is told the answer, and lets the call pass, once.
	w.PodUID = "pod-2"
	w.Answers = []daemonapi.RequestAnswer{{ID: q.GetId(), Tool: q.GetTool(), InputDigest: q.GetInputDigest(), Approved: true, Prompt: "Approved: make the call again."}}
	w.Prepare(2, nil)
	w.Prepare(2, nil)
	d = w.Start(2)
	a = w.Dial("t")
	a.Say(execPush)
	a.Next(wire.TypeFreeze)
	a.Next(wire.TypeThaw)
	a.Say(`{"type":"tool_result","id":"1","output":"ok"}`)
	a.Recorded()
	a.Say(strings.Replace(execPush, `"1"`, `"2"`, 1))
	a.Next(wire.TypeFinish)
	if again := awaitRequest(t, w, 2); again.GetId() == q.GetId() || !strings.HasPrefix(again.GetId(), "2-") || again.GetInputDigest() != q.GetInputDigest() {
		t.Errorf("the second request is %v", again)
	}
	a.Send(wire.TypeExit, wire.Exit{Code: 137})
	a.Next(wire.TypeRelease)
	d.End()
	told := 0
	for _, line := range w.Lines() {
		if line == "user Approved: make the call again." {
			told++
		}
	}
	if told != 1 {
		t.Errorf("the agent was told %d times: %q", told, w.Lines())
	}
}

// The agent's exit code and its daemon's death change nothing: the call waits.
func TestAnAgentThatIsEndedAtACallHasNotCompleted(t *testing.T) {
	w := askWorld(t, "Exec")
	d := w.Start(1)
	a := w.Dial("s")
	a.Say(execPush)
	a.Next(wire.TypeFinish)
	awaitRequest(t, w, 1)
	d.End()
	d = w.Start(1)
	a = w.DialFrom("s", a.Sent+1)
	a.Next(wire.TypeFinish) // the next daemon ends the agent as well
	a.Send(wire.TypeExit, wire.Exit{Code: 0})
	a.Next(wire.TypeRelease)
	d.End()
	expectCheckpoint(t, latest(w), &daemonv1.CheckpointRecord{Trigger: "Suspend"})
}

func TestAnAgentWithoutHooksIsToldOfARefusal(t *testing.T) {
	w := askWorld(t, "Exec")
	d := w.Start(1)
	a := w.Dial("s")
	a.Say(strings.Replace(execPush, "git push", "git push --force", 1))
	a.Next(wire.TypeFinish)
	if q := awaitRequest(t, w, 1); !q.GetStopsAgent() || q.GetRefused() != "A rule of this task refuses the call: never by force" {
		t.Errorf("the request is %v", q)
	}
	a.Send(wire.TypeExit, wire.Exit{Code: 137})
	a.Next(wire.TypeRelease)
	d.End()
}
