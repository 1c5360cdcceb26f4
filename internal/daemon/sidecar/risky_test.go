package sidecar_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/onsi/gomega"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/daemon/daemontest"
	"github.com/clew-dev/clew/internal/daemon/shim"
	"github.com/clew-dev/clew/internal/daemon/socket"
	"github.com/clew-dev/clew/internal/daemon/wire"
	"github.com/clew-dev/clew/internal/daemonapi"
	daemonv1 "github.com/clew-dev/clew/internal/daemonapi/v1"
)

// claudeHook runs the hook as Claude Code does; the channel receives its result. It is an error if the
// tool is refused.
func claudeHook(w *daemontest.World, id, tool, input string, timeout time.Duration) <-chan error {
	done := make(chan error, 1)
	go func() {
		refused, err := awaitTool(context.Background(), w, id, tool, input, timeout)
		if err == nil && refused != "" {
			err = errors.New("refused: " + refused)
		}
		done <- err
	}()
	return done
}

// awaitTool runs the hook as Claude Code does.
func awaitTool(ctx context.Context, w *daemontest.World, id, tool, input string, timeout time.Duration) (refused string, err error) {
	return shim.AwaitTool(ctx, shim.HookConfig{AgentType: "ClaudeCode", Socket: filepath.Join(w.RunDir, socket.Name), Timeout: timeout,
		Stdin: strings.NewReader(`{"hook_event_name":"PreToolUse","tool_use_id":"` + id + `","tool_name":"` + tool + `","tool_input":` + input + `}`)})
}

func answered(t *testing.T, done <-chan error) {
	t.Helper()
	select {
	case err := <-done:
		if err != nil {
			t.Fatalf("the hook failed: %v", err)
		}
	case <-time.After(20 * time.Second):
		t.Fatal("the tool is still held back after 20 s")
	}
}

const (
	claudeInit = `{"type":"system","subtype":"init","session_id":"s-1","model":"m"}`
	claudeCall = `{"type":"assistant","message":{"id":"m1","role":"assistant","content":[{"type":"tool_use","id":"t-1","name":"Bash","input":{"command":"rm -rf src"}}]}}`
)

var removal = `{"command":"rm -rf src"}`

func riskyWorld(t *testing.T, agent string) *daemontest.World {
	w := daemontest.NewWorld(t, map[string]string{"src/a": "a"})
	w.Agent = v1alpha1.AgentType(agent)
	w.Policy.RiskyTools = []daemonapi.ToolPattern{{Tool: "^Bash$", Input: `rm\s+-rf`}, {Tool: "["}}
	w.Prepare(1, nil)
	return w
}

// TestBeforeRiskyTool: the tool waits until the checkpoint is taken.
func TestBeforeRiskyTool(t *testing.T) {
	w := riskyWorld(t, "ClaudeCode")
	d := w.Start(1)
	a := w.Dial("s")
	answered(t, claudeHook(w, "t-0", "Bash", `{"command":"ls"}`, time.Minute))
	a.Say(claudeInit, claudeCall)
	a.Recorded()
	w.Write("new", "n")
	held := claudeHook(w, "t-1", "Bash", removal, time.Minute)
	a.Next(wire.TypeFreeze)
	select {
	case <-held:
		t.Fatal("the tool may run before the checkpoint")
	default:
	}
	a.Next(wire.TypeThaw)
	answered(t, held)
	w.Write("src", "")
	w.Server.Until(t, "the checkpoint is durable", w.UID, durable(1))
	expectCheckpoint(t, latest(w), &daemonv1.CheckpointRecord{Trigger: "BeforeRiskyTool", Files: 2,
		RiskyTool: &daemonv1.RiskyTool{Name: "Bash", CallId: "t-1", Before: true}})
	// The same call again, and another one before which nothing has changed.
	answered(t, claudeHook(w, "t-1", "Bash", removal, time.Minute))
	w.Write("src/a", "a")
	answered(t, claudeHook(w, "t-2", "Bash", removal, time.Minute))
	expectNumber(t, w, 1)
	// A file has changed, without any output of the agent.
	w.Write("new", "changed")
	held = claudeHook(w, "t-3", "Bash", removal, time.Minute)
	a.Next(wire.TypeThaw)
	answered(t, held)
	w.Server.Until(t, "there is a second one", w.UID, durable(2))
	gomega.NewWithT(t).Expect(recordedEvents(w)).To(gomega.HaveExactElements(
		gomega.HavePrefix(`RiskyToolPatternInvalid: the pattern "[" in beforeRiskyTools is not a valid regular expression`),
		gomega.Equal("RiskyToolGuarded: checkpoint 1 holds the state before the tool Bash")))
	finish(a, d, 0)
}

// TestRiskyToolSeen: an agent that does not ask before tools is stopped when the call is
// seen in its output.
func TestRiskyToolSeen(t *testing.T) {
	w := riskyWorld(t, "Exec")
	d := w.Start(1)
	a := w.Dial("s")
	a.Say(`{"type":"tool_call","id":"1","name":"Bash","input":{"command":"rm -rf src"}}`)
	a.Next(wire.TypeFreeze)
	a.Next(wire.TypeThaw)
	w.Server.Until(t, "the checkpoint is durable", w.UID, durable(1))
	expectCheckpoint(t, latest(w), &daemonv1.CheckpointRecord{Trigger: "BeforeRiskyTool", RiskyTool: &daemonv1.RiskyTool{Name: "Bash", CallId: "1"}})
	a.Say(`{"type":"tool_result","id":"1","output":"ok"}`, `{"type":"tool_call","id":"2","name":"Bash","input":{"command":"ls"}}`)
	a.Recorded()
	finish(a, d, 0)
	expectLines(t, w, "user Do it.", "call 1", "result 1", "call 2", "interrupted 2")
	expectNumber(t, w, 2)
}

// TestHookWithoutDaemon: the tool waits for a daemon that is being restarted, and runs when
// the daemon does not answer in time.
func TestHookWithoutDaemon(t *testing.T) {
	if testing.Short() {
		t.Skip("waits for seconds: make test runs it")
	}
	w := riskyWorld(t, "ClaudeCode")
	if err := <-claudeHook(w, "t-1", "Bash", removal, 100*time.Millisecond); err == nil || !strings.Contains(err.Error(), "the daemon does not answer before the tool Bash") {
		t.Errorf("the hook ended with %v, want an error about a daemon that does not answer", err)
	}
	held := claudeHook(w, "t-1", "Bash", removal, time.Minute)
	gomega.NewWithT(t).Consistently(held).WithTimeout(50*time.Millisecond).ShouldNot(gomega.Receive(), "the tool may run without a daemon")
	d := w.Start(1)
	a := w.Dial("s")
	answered(t, held)
	finish(a, d, 0)
	for _, stdin := range []string{"", "{}", "no JSON", `{"tool_name":7}`} {
		_, err := shim.AwaitTool(t.Context(), shim.HookConfig{AgentType: "ClaudeCode", Stdin: strings.NewReader(stdin), Timeout: time.Second})
		if err == nil {
			t.Errorf("the hook accepted %q as a call", stdin)
		}
	}
}

// TestHostileHooks: a client that asks in a loop neither blocks the daemon nor fills the
// volume with checkpoints.
func TestHostileHooks(t *testing.T) {
	w := riskyWorld(t, "ClaudeCode")
	d := w.Start(1)
	a := w.Dial("s")
	for i := range 300 {
		c, err := net.Dial("unix", filepath.Join(w.RunDir, socket.Name))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		switch i % 3 {
		case 0:
			_ = wire.WriteBeforeTool(c, wire.BeforeTool{Name: "Bash", Input: strings.Repeat("rm -rf ", 20_000)})
		case 1:
			_, _ = c.Write([]byte("\x00\x00\x00\x03\x07{}x more than a frame"))
		default:
			_ = wire.Write(c, wire.TypeBeforeTool, "not an object")
		}
	}
	g := gomega.NewWithT(t)
	g.Eventually(func() error { return socket.Ready(w.RunDir) }).WithTimeout(15*time.Second).Should(gomega.Succeed(), "the daemon no longer answers")
	answerFreezes(a, nil)
	number := func() int64 { return latest(w).GetNumber() }
	g.Consistently(number).WithTimeout(500*time.Millisecond).Should(gomega.BeNumerically("<=", 3), "checkpoints taken for hostile hooks")
	answered(t, claudeHook(w, "t-9", "Bash", removal, time.Minute))
	g.Expect(number()).To(gomega.BeNumerically("<=", 3), "checkpoints taken for hostile hooks")
	_ = wire.Write(a, wire.TypeExit, wire.Exit{})
	d.End()
}

// TestSimultaneousRiskyCallsShareStops: however many calls an agent makes at once, it is
// stopped only a few times, and every call is accounted for.
func TestSimultaneousRiskyCallsShareStops(t *testing.T) {
	const calls = 300
	w := riskyWorld(t, "Exec")
	d := w.Start(1)
	a := w.Dial("s")
	stops := answerFreezes(a, nil)
	for i := range calls {
		a.Say(fmt.Sprintf(`{"type":"tool_call","id":"%d","name":"Bash","input":{"command":"rm -rf src"}}`, i))
	}
	accounted := func(k *daemontest.Task) int {
		n := 1 // the call that the checkpoint was taken for
		for _, r := range k.Records {
			if e := r.GetEvent(); strings.HasPrefix(e.GetReason(), "RiskyToolGuarded") {
				more, err := strconv.Atoi(e.GetDetails()["calls"])
				if err != nil {
					more = 1
				}
				n += more
			}
		}
		return n
	}
	w.Server.Until(t, "every call is accounted for", w.UID, func(k *daemontest.Task) bool { return accounted(k) >= calls })
	w.Server.Inspect(w.UID, func(k *daemontest.Task) {
		if n := accounted(k); n != calls {
			t.Errorf("%d calls are accounted for, want %d", n, calls)
		}
	})
	a.Send(wire.TypeExit, wire.Exit{})
	d.End()
	if n := stops.Load(); n > calls/3 {
		t.Errorf("the agent was stopped %d times for %d calls, want at most %d", n, calls, calls/3)
	}
}
