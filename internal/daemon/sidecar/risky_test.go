package sidecar_test

import (
	"context"
	"fmt"
	"net"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/daemon/daemontest"
	"github.com/clew-dev/clew/internal/daemon/shim"
	"github.com/clew-dev/clew/internal/daemon/socket"
	"github.com/clew-dev/clew/internal/daemon/wire"
	"github.com/clew-dev/clew/internal/daemonapi"
)

// claudeHook runs the hook as Claude Code does.
func claudeHook(w *daemontest.World, id, tool, input string, timeout time.Duration) <-chan error {
	done := make(chan error, 1)
	go func() {
		done <- shim.AwaitTool(context.Background(), shim.HookConfig{AgentType: "ClaudeCode", Socket: filepath.Join(w.RunDir, socket.Name), Timeout: timeout,
			Stdin: strings.NewReader(`{"hook_event_name":"PreToolUse","tool_use_id":"` + id + `","tool_name":"` + tool + `","tool_input":` + input + `}`)})
	}()
	return done
}

func answered(t *testing.T, done <-chan error) {
	t.Helper()
	select {
	case err := <-done:
		if err != nil {
			t.Fatal(err)
		}
	case <-time.After(20 * time.Second):
		t.Fatal("the tool is held back")
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
	c := latest(w)
	if c.GetTrigger() != "BeforeRiskyTool" || !c.GetRiskyTool().GetBefore() || c.GetRiskyTool().GetCallId() != "t-1" || c.GetRiskyTool().GetName() != "Bash" || c.GetFiles() != 2 {
		t.Errorf("%v", c)
	}
	// The same call, and another one before which nothing has changed.
	answered(t, claudeHook(w, "t-1", "Bash", removal, time.Minute))
	w.Write("src/a", "a")
	answered(t, claudeHook(w, "t-2", "Bash", removal, time.Minute))
	if c := latest(w); c.GetNumber() != 1 {
		t.Errorf("%v", c)
	}
	// A file changed, and the daemon was not told of anything.
	w.Write("new", "changed")
	held = claudeHook(w, "t-3", "Bash", removal, time.Minute)
	a.Next(wire.TypeThaw)
	answered(t, held)
	w.Server.Until(t, "there is a second one", w.UID, durable(2))
	events := told(w)
	if len(events) != 2 || !strings.HasPrefix(events[0], `RiskyToolPatternInvalid: the pattern "[" of beforeRiskyTools is no regular expression`) ||
		events[1] != "RiskyToolGuarded: checkpoint 1 holds what was before the tool Bash" {
		t.Errorf("%q", events)
	}
	finish(a, d, 0)
}

// TestRiskyToolSeen: an agent that does not ask is stopped when the call is seen.
func TestRiskyToolSeen(t *testing.T) {
	w := riskyWorld(t, "Exec")
	d := w.Start(1)
	a := w.Dial("s")
	a.Say(`{"type":"tool_call","id":"1","name":"Bash","input":{"command":"rm -rf src"}}`)
	a.Next(wire.TypeFreeze)
	a.Next(wire.TypeThaw)
	w.Server.Until(t, "the checkpoint is durable", w.UID, durable(1))
	if c := latest(w); c.GetTrigger() != "BeforeRiskyTool" || c.GetRiskyTool().GetBefore() || c.GetRiskyTool().GetCallId() != "1" {
		t.Errorf("%v", c)
	}
	a.Say(`{"type":"tool_result","id":"1","output":"ok"}`, `{"type":"tool_call","id":"2","name":"Bash","input":{"command":"ls"}}`)
	a.Recorded()
	finish(a, d, 0)
	expectLines(t, w, "user Do it.", "call 1", "result 1", "call 2", "interrupted 2")
	if c := latest(w); c.GetNumber() != 2 {
		t.Errorf("%v", c)
	}
}

// TestHookWithoutDaemon: the tool waits for a daemon that comes back, and runs
// when it does not.
func TestHookWithoutDaemon(t *testing.T) {
	if testing.Short() {
		t.Skip("waits for seconds: make test runs it")
	}
	w := riskyWorld(t, "ClaudeCode")
	if err := <-claudeHook(w, "t-1", "Bash", removal, 100*time.Millisecond); err == nil || !strings.Contains(err.Error(), "without a checkpoint") {
		t.Errorf("%v", err)
	}
	held := claudeHook(w, "t-1", "Bash", removal, time.Minute)
	time.Sleep(50 * time.Millisecond)
	d := w.Start(1)
	a := w.Dial("s")
	answered(t, held)
	finish(a, d, 0)
	for _, stdin := range []string{"", "{}", "no JSON", `{"tool_name":7}`} {
		err := shim.AwaitTool(t.Context(), shim.HookConfig{AgentType: "ClaudeCode", Stdin: strings.NewReader(stdin), Timeout: time.Second})
		if err == nil {
			t.Errorf("%q is taken for a call", stdin)
		}
	}
}

// TestHostileHooks: whoever asks without end neither stops the daemon nor fills
// the volume with checkpoints.
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
	deadline := time.Now().Add(15 * time.Second)
	for socket.Ready(w.RunDir) != nil {
		if time.Now().After(deadline) {
			t.Fatal("the daemon does not answer any more")
		}
	}
	go func() { // the agent is stopped and goes on as it is told
		for {
			f, err := wire.Read(a.Reader)
			if err != nil || f.Type == wire.TypeRelease {
				return
			}
			if f.Type == wire.TypeFreeze {
				var z wire.Freeze
				_ = f.Decode(&z)
				_ = wire.Write(a, wire.TypeFrozen, z)
			}
		}
	}()
	time.Sleep(500 * time.Millisecond)
	answered(t, claudeHook(w, "t-9", "Bash", removal, time.Minute))
	if c := latest(w); c.GetNumber() > 3 {
		t.Errorf("checkpoint %d", c.GetNumber())
	}
	_ = wire.Write(a, wire.TypeExit, wire.Exit{})
	d.End()
}

// TestRiskyCallsThatComeAtOnceStopTheAgentTogether: however many calls an agent makes
// at once, it is stopped a few times, and each call is accounted for.
func TestRiskyCallsThatComeAtOnceStopTheAgentTogether(t *testing.T) {
	const calls = 300
	w := riskyWorld(t, "Exec")
	d := w.Start(1)
	a := w.Dial("s")
	freezes := make(chan int, 1)
	go func() { // the agent is stopped and goes on as it is told
		n := 0
		for {
			f, err := wire.Read(a.Reader)
			if err != nil || f.Type == wire.TypeRelease {
				freezes <- n
				return
			}
			if f.Type == wire.TypeFreeze {
				n++
				var z wire.Freeze
				_ = f.Decode(&z)
				_ = wire.Write(a, wire.TypeFrozen, z)
			}
		}
	}()
	for i := range calls {
		a.Say(fmt.Sprintf(`{"type":"tool_call","id":"%d","name":"Bash","input":{"command":"rm -rf src"}}`, i))
	}
	accounted := func() int {
		n := 1 // the one that the checkpoint was taken for
		w.Server.Look(w.UID, func(k *daemontest.Task) {
			for _, r := range k.Records {
				if e := r.GetEvent(); strings.HasPrefix(e.GetReason(), "RiskyToolGuarded") {
					more, err := strconv.Atoi(e.GetDetails()["calls"])
					if err != nil {
						more = 1
					}
					n += more
				}
			}
		})
		return n
	}
	for deadline := time.Now().Add(30 * time.Second); accounted() < calls; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%d of %d calls are accounted for", accounted(), calls)
		}
	}
	if n := accounted(); n != calls {
		t.Errorf("%d calls are accounted for, of %d", n, calls)
	}
	_ = wire.Write(a, wire.TypeExit, wire.Exit{})
	if n := <-freezes; n > calls/3 {
		t.Errorf("the agent was stopped %d times", n)
	}
	d.End()
}
