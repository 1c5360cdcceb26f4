package shim_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/daemon/launchplan"
	"github.com/clew-dev/clew/internal/daemon/wire"
)

// program writes a script under the name of a known program, and a plan that
// has it started.
func (d *daemon) program(name, kind, script string) *process {
	d.t.Helper()
	dir := d.t.TempDir()
	path := filepath.Join(dir, name)
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+script), 0o755); err != nil {
		d.t.Fatal(err)
	}
	if err := launchplan.Write(dir, launchplan.Plan{AgentType: v1alpha1.AgentType(kind), Prompt: "Do it."}); err != nil {
		d.t.Fatal(err)
	}
	p := d.command(path, "-c", "model_provider=ours")
	p.Env = append(p.Env, "SHIM_RUN_DIR="+dir)
	return p
}

// A program that is too old is not started, and the reason names both versions.
func TestAProgramThatIsTooOldIsNotStarted(t *testing.T) {
	t.Parallel()
	d := newDaemon(t)
	started := filepath.Join(t.TempDir(), "started")
	p := d.program("codex", "Codex", `[ "$1" = --version ] && { echo "WARNING: no aliases" >&2; echo codex-cli 0.98.0; exit 0; }; touch `+started)
	p.begin()
	s := d.accept(0)
	e := s.exit()
	if e.Code == 0 || e.Cause != "TooOld" || !strings.Contains(e.Message, "0.98.0") || !strings.Contains(e.Message, "0.144.6") {
		t.Errorf("%+v", e)
	}
	s.send(wire.TypeRelease, nil)
	p.code()
	if _, err := os.Stat(started); err == nil {
		t.Error("it was started")
	}
	if !strings.Contains(p.errOut.String(), "0.98.0") {
		t.Errorf("the log has %q", p.errOut.String())
	}
}

// A program that does not tell its version is started, with the user's settings
// where it reads them.
func TestAProgramThatTellsNoVersionIsStarted(t *testing.T) {
	t.Parallel()
	for _, answer := range []string{"exit 3", "echo codex-cli 0.144.6; exit 0"} {
		d := newDaemon(t)
		p := d.program("codex", "Codex", `[ "$1" = --version ] && { `+answer+`; }; echo "$1 $2 $3"`)
		p.begin()
		s := d.accept(0)
		if e := s.exit(); e.Code != 0 || strings.Join(s.lines, "") != "exec -c model_provider=ours" {
			t.Errorf("%s: %+v %q", answer, e, s.lines)
		}
		s.send(wire.TypeRelease, nil)
		p.code()
	}
}

// The last lines of standard error are told with the agent's end, masked.
func TestTheLastErrorsAreTold(t *testing.T) {
	t.Parallel()
	d := newDaemon(t)
	p := d.command(sh(`i=0; while [ $i -lt 2000 ]; do echo "error $i of $KEY" >&2; i=$((i+1)); done; exit 4`)...)
	p.Env = append(p.Env, "CLEW_MASK_1=sk-test-0123456789", "KEY=sk-test-0123456789")
	p.begin()
	s := d.accept(0)
	e := s.exit()
	lines := strings.Split(strings.TrimSpace(e.LastErrors), "\n")
	if len(e.LastErrors) > wire.MaxLastErrors || lines[len(lines)-1] != "error 1999 of [masked]" || !strings.HasPrefix(lines[0], "error ") || len(lines) < 100 {
		t.Errorf("%d lines, %.60q … %q", len(lines), e.LastErrors, lines[len(lines)-1])
	}
	failing := 1
	s.send(wire.TypeRelease, wire.Release{Code: &failing})
	if got := p.code(); got != 1 {
		t.Errorf("the exit code is %d, not the one it was told", got)
	}
}
