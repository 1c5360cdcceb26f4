package shim_test

import (
	"strings"
	"testing"

	"github.com/clew-dev/clew/internal/daemon/launchplan"
	"github.com/clew-dev/clew/internal/daemon/wire"
)

// TestPlan: an agent of a known kind is started as its adapter says, after the user's own
// command and arguments, and with the user's own variables first.
func TestPlan(t *testing.T) {
	for _, tt := range []struct {
		name string
		plan launchplan.Plan
		want []string
		code int
	}{
		{"a new session", launchplan.Plan{AgentType: "ClaudeCode", Model: "a-model", Prompt: "Do\nit -- now."},
			[]string{"own -p --output-format stream-json --verbose --dangerously-skip-permissions --settings RUN/context/agent/claude.json --model a-model", "Do", "it -- now.", "1 mine"}, 0},
		{"its own session", launchplan.Plan{AgentType: "ClaudeCode", Session: "s-1", Prompt: strings.Repeat("x", 200_000)},
			[]string{"own -p --output-format stream-json --verbose --dangerously-skip-permissions --settings RUN/context/agent/claude.json --resume s-1", strings.Repeat("x", 200_000), "1 mine"}, 0},
		{"an unknown kind", launchplan.Plan{AgentType: "Other"}, nil, 126},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			if err := launchplan.Write(dir, tt.plan); err != nil {
				t.Fatal(err)
			}
			d := newDaemon(t)
			p := d.command("sh", "-c", `echo "$@"; cat; echo; echo "$DISABLE_TELEMETRY $DISABLE_AUTOUPDATER"`, "agent", "own")
			p.Env = append(p.Env, "SHIM_RUN_DIR="+dir, "DISABLE_AUTOUPDATER=mine")
			p.begin()
			s := d.accept(0)
			if e := s.exit(); e.Code != tt.code {
				t.Errorf("the agent exited with %+v, want %d", e, tt.code)
			}
			if got, want := strings.ReplaceAll(strings.Join(s.lines, "\n"), dir, "RUN"), strings.Join(tt.want, "\n"); got != want {
				t.Errorf("the agent printed %.400q, want %.400q", got, want)
			}
			s.send(wire.TypeRelease, nil)
			if p.code(); tt.code != 0 && !strings.Contains(p.errOut.String(), "no agent of type") {
				t.Errorf("the log has %q, want the unknown type", p.errOut.String())
			}
		})
	}
}
