package shim_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"golang.org/x/sys/unix"

	"github.com/clew-dev/clew/internal/agent"
	"github.com/clew-dev/clew/internal/daemon/wire"
)

func TestOutputExitAndHold(t *testing.T) {
	long := strings.Repeat("x", 200_000)
	tests := []struct {
		name    string
		command []string
		code    int
		lines   []string
	}{
		{"lines", sh(`printf 'a\n\nb\r\nc'; echo err >&2; exit 3`), 3, []string{"a", "", "b\r", "c"}},
		{"nothing", sh(`exit 0`), 0, nil},
		{"a signal", sh(`kill -KILL $$`), 137, nil},
		{"a long line", sh(`head -c 200000 /dev/zero | tr '\0' x; echo; echo y`), 0, []string{long, "y"}},
		{"no stdin", sh(`cat; echo end`), 0, []string{"end"}},
		{"environment", sh(`echo $CLEW_CONVERSATION $CLEW_ATTEMPT`), 0, []string{"/c.jsonl 3"}},
		{"unknown command", []string{"no-such-command"}, 127, nil},
		{"unknown path", []string{"/no/such/command"}, 127, nil},
		{"a folder", []string{"/"}, 126, nil},
		{"no program", []string{"/etc/passwd"}, 126, nil},
		{"a script's own code", sh(`exit 127`), 127, nil},
		{"left behind", sh(`(setsid sh -c 'sleep 100; echo late') & (sleep 100; echo late) & echo done`), 0, []string{"done"}},
		{"orphans", sh(`(sh -c 'sleep 0.05; echo late' & echo early); sleep 0.5`), 0, []string{"early", "late"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			d := newDaemon(t)
			p := d.start(tt.command...)
			s := d.accept(0)
			cause := map[int]agent.Cause{127: agent.CauseProgramNotFound, 126: agent.CauseProgramNotExecutable}[tt.code]
			if tt.name == "a script's own code" {
				cause = agent.CauseUnknown
			}
			expectExit(t, s.exit(), wire.Exit{Code: tt.code, Cause: string(cause)})
			if got, want := strings.Join(s.lines, "\n"), strings.Join(tt.lines, "\n"); got != want {
				t.Errorf("the daemon got %.200q, want %.200q", got, want)
			}
			if s.open != "" {
				t.Errorf("the last line does not end: %.200q", s.open)
			}
			p.expectHeld()
			s.send(wire.TypeRelease, nil)
			p.expectCode(tt.code)
			if got, want := strings.TrimSuffix(p.out.String(), "\n"), strings.Join(tt.lines, "\n"); got != want {
				t.Errorf("the log has %.200q, want %.200q", got, want)
			}
		})
	}
}

// expectExit compares how the agent ended. Messages and the last errors are left out.
func expectExit(t *testing.T, got, want wire.Exit) {
	t.Helper()
	if diff := cmp.Diff(want, got, cmpopts.IgnoreFields(wire.Exit{}, "Message", "LastErrors")); diff != "" {
		t.Errorf("exit (-want +got):\n%s", diff)
	}
}

func TestSignalsAreForwarded(t *testing.T) {
	t.Parallel()
	d := newDaemon(t)
	p := d.start(sh(`trap 'echo usr1' USR1; trap 'echo hup' HUP; trap 'echo term; exit 7' TERM; echo ready; while :; do sleep 0.05; done`)...)
	s := d.accept(0)
	s.until("ready")
	p.Process.Signal(unix.SIGUSR1)
	s.until("usr1")
	p.Process.Signal(unix.SIGHUP)
	s.until("hup")
	p.Process.Signal(unix.SIGTERM)
	s.expect(wire.TypeTerminating)
	expectExit(t, s.exit(), wire.Exit{Code: 7, Terminating: true})
	s.send(wire.TypeRelease, nil)
	p.expectCode(7)
}

func TestTermWhileHeld(t *testing.T) {
	t.Parallel()
	d := newDaemon(t)
	p := d.start(sh(`exit 4`)...)
	s := d.accept(0)
	s.exit()
	p.Process.Signal(unix.SIGTERM)
	s.expect(wire.TypeTerminating)
	p.expectHeld()
	s.send(wire.TypeRelease, nil)
	p.expectCode(4)
}

// TestSecretsAreMasked: a Secret's value reaches neither the log nor the daemon, and the
// agent does not have Clew's variable with it.
func TestSecretsAreMasked(t *testing.T) {
	t.Parallel()
	d := newDaemon(t)
	p := d.command(sh(`printf 'key: sk-test-'; sleep 0.05; printf '0123456789\nthe same: %s\n' "$CLEW_MASK_1"; echo "error: $KEY" >&2; printf "$KEY"`)...)
	p.Env = append(p.Env, "CLEW_MASK_1=sk-test-0123456789", "KEY=sk-test-0123456789")
	p.begin()
	s := d.accept(0)
	if e := s.exit(); e.Code != 0 {
		t.Fatalf("the agent exited with %+v, want 0", e)
	}
	if got := strings.Join(s.lines, "\n"); got != "key: [masked]\nthe same: \n[masked]" {
		t.Errorf("the daemon got %q", got)
	}
	s.send(wire.TypeRelease, nil)
	p.code()
	if got := p.out.String() + p.errOut.String(); got != "key: [masked]\nthe same: \n[masked]error: [masked]\n" {
		t.Errorf("the log has %q", got)
	}
}
