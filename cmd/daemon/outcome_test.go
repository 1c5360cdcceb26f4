package main

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/daemon/daemontest"
	daemonv1 "github.com/clew-dev/clew/internal/daemonapi/v1"
)

// endOf plays a part and returns what the daemon told of the agent's end, the
// trigger of the last checkpoint, and the exit code.
func endOf(t *testing.T, kind, part string, env ...string) (*daemonv1.AgentEnd, string, int, *daemontest.World) {
	t.Helper()
	w := daemontest.NewWorld(t, nil)
	w.Agent = v1alpha1.AgentType(kind)
	p := fakePod(t, w, part, env...)
	select {
	case <-p.agent.done:
	case <-time.After(2 * time.Minute):
		t.Fatalf("the agent does not end\n%s", p.sidecar.out.String())
	}
	p.sidecar.cmd.Process.Signal(os.Interrupt)
	<-p.sidecar.done
	var end *daemonv1.AgentEnd
	trigger := ""
	w.Server.Look(w.UID, func(k *daemontest.Task) {
		for _, r := range k.Records {
			if r.GetAgentEnd() != nil {
				end = r.GetAgentEnd()
			}
		}
		trigger = k.Latest().GetTrigger()
	})
	return end, trigger, p.agent.cmd.ProcessState.ExitCode(), w
}

// TestWhyAnAgentFailedIsTold: the cause and the agent's own words, masked, go to
// the server before the agent's container ends.
func TestWhyAnAgentFailedIsTold(t *testing.T) {
	const key = "sk-canary-0123456789abcdef"
	for _, tt := range []struct {
		kind, part, cause, message string
		code                       int
	}{
		{"ClaudeCode", "unauthorized", "Unauthorized", "API Error: 401 the key [masked] is expired", 1},
		{"GeminiCLI", "loop", "GaveUp", "Loop detected, stopping execution", 1},
		{"ClaudeCode", "options", "InvalidOptions", "error: unknown option '--no-such'", 1},
		{"Exec", "stderr", "", "panic: the key [masked] is none", 3},
		{"Exec", "refused-tool", "", "curl: (22) HTTP 429 Too Many Requests", 22},
		{"ClaudeCode", "worked", "", "make: 401 Unauthorized", 2},
	} {
		t.Run(tt.part, func(t *testing.T) {
			t.Parallel()
			end, trigger, code, _ := endOf(t, tt.kind, tt.part, "THE_KEY="+key, "CLEW_MASK_0="+key)
			if end.GetCause() != tt.cause || end.GetMessage() != tt.message || int(end.GetExitCode()) != tt.code || code != tt.code || trigger != "Failure" {
				t.Errorf("exit code %d, %s, told %v", code, trigger, end)
			}
		})
	}
}

// TestAnAgentThatEndsWellTellsOfNoFailure, whatever it printed to standard error.
func TestAnAgentThatEndsWellTellsOfNoFailure(t *testing.T) {
	if end, trigger, code, _ := endOf(t, "ClaudeCode", "well"); end != nil || trigger != "Completion" || code != 0 {
		t.Errorf("exit code %d, %s, told %v", code, trigger, end)
	}
}

// TestACallThatWasCutIsToldAsCut: a tool that is killed just before its agent did
// not answer, and one whose agent goes on did.
func TestACallThatWasCutIsToldAsCut(t *testing.T) {
	for part, want := range map[string]string{"cut": "interrupted t-1", "killed-tool": "result t-1"} {
		t.Run(part, func(t *testing.T) {
			t.Parallel()
			_, _, _, w := endOf(t, "ClaudeCode", part)
			if got := strings.Join(w.Lines(), "\n"); !strings.Contains(got, "call t-1\n"+want) {
				t.Errorf("%s", got)
			}
		})
	}
}
