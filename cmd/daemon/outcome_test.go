package main

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/daemon/daemontest"
	daemonv1 "github.com/clew-dev/clew/internal/daemonapi/v1"
)

// outcome is what is known after the end of an agent.
type outcome struct {
	// End is the record about the agent's end; nil for none.
	End *daemonv1.AgentEnd
	// Trigger is the last checkpoint's.
	Trigger string
	// Code is the exit code of the agent's container.
	Code int
}

// endOf plays a part and returns its outcome.
func endOf(t *testing.T, kind, part string, env ...string) (outcome, *daemontest.World) {
	t.Helper()
	w := daemontest.NewWorld(t, nil)
	w.Agent = v1alpha1.AgentType(kind)
	p := fakePod(t, w, part, env...)
	select {
	case <-p.agent.done:
	case <-time.After(2 * time.Minute):
		t.Fatalf("the agent did not end within two minutes\n%s", p.sidecar.out.String())
	}
	p.sidecar.cmd.Process.Signal(os.Interrupt)
	<-p.sidecar.done
	out := outcome{Code: p.agent.cmd.ProcessState.ExitCode()}
	w.Server.Inspect(w.UID, func(k *daemontest.Task) {
		for _, r := range k.Records {
			if r.GetAgentEnd() != nil {
				out.End = r.GetAgentEnd()
			}
		}
		out.Trigger = k.Latest().GetTrigger()
	})
	return out, w
}

// TestTheReasonOfAnAgentsFailureIsRecorded: the cause and the agent's own message, masked,
// are sent to the server before the agent's container ends.
func TestTheReasonOfAnAgentsFailureIsRecorded(t *testing.T) {
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
			got, _ := endOf(t, tt.kind, tt.part, "THE_KEY="+key, "CLEW_MASK_0="+key)
			end := &daemonv1.AgentEnd{Cause: tt.cause, Message: tt.message, ExitCode: int32(tt.code)}
			if diff := cmp.Diff(outcome{End: end, Trigger: "Failure", Code: tt.code}, got, protocmp.Transform()); diff != "" {
				t.Errorf("outcome (-want +got):\n%s", diff)
			}
		})
	}
}

// TestNoFailureOfASuccessfulAgentIsRecorded, whatever it printed to standard error.
func TestNoFailureOfASuccessfulAgentIsRecorded(t *testing.T) {
	got, _ := endOf(t, "ClaudeCode", "well")
	if diff := cmp.Diff(outcome{Trigger: "Completion"}, got, protocmp.Transform()); diff != "" {
		t.Errorf("outcome (-want +got):\n%s", diff)
	}
}

// TestAKilledToolIsRecordedAsInterrupted if its agent was killed right after it. If the agent
// survives, the tool's result counts.
func TestAKilledToolIsRecordedAsInterrupted(t *testing.T) {
	for part, want := range map[string]string{"cut": "interrupted t-1", "killed-tool": "result t-1"} {
		t.Run(part, func(t *testing.T) {
			t.Parallel()
			_, w := endOf(t, "ClaudeCode", part)
			if got := strings.Join(w.Lines(), "\n"); !strings.Contains(got, "call t-1\n"+want) {
				t.Errorf("the conversation does not have %q after the call:\n%s", want, got)
			}
		})
	}
}
