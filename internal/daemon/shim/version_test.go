package shim_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/onsi/gomega"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/daemon/launchplan"
	"github.com/clew-dev/clew/internal/daemon/wire"
)

// program returns a shim that starts a script with the name of a known program, according to
// a launch plan.
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
	g := gomega.NewWithT(t)
	e := s.exit()
	g.Expect(e.Code).NotTo(gomega.BeZero())
	g.Expect(e.Cause).To(gomega.Equal("TooOld"))
	g.Expect(e.Message).To(gomega.And(gomega.ContainSubstring("0.98.0"), gomega.ContainSubstring("0.144.6")))
	s.send(wire.TypeRelease, nil)
	p.code()
	if _, err := os.Stat(started); err == nil {
		t.Error("the program was started")
	}
	if !strings.Contains(p.errOut.String(), "0.98.0") {
		t.Errorf("the log has %q", p.errOut.String())
	}
}

// A program that does not print its version is started, with the user's options where it
// reads them.
func TestAProgramThatPrintsNoVersionIsStarted(t *testing.T) {
	t.Parallel()
	for _, answer := range []string{"exit 3", "echo codex-cli 0.144.6; exit 0"} {
		d := newDaemon(t)
		p := d.program("codex", "Codex", `[ "$1" = --version ] && { `+answer+`; }; echo "$1 $2 $3"`)
		p.begin()
		s := d.accept(0)
		if e := s.exit(); e.Code != 0 || strings.Join(s.lines, "") != "exec -c model_provider=ours" {
			t.Errorf("with %q as its answer the program printed %q and ended with %+v", answer, s.lines, e)
		}
		s.send(wire.TypeRelease, nil)
		p.code()
	}
}

// The last lines of standard error are reported with the agent's end, masked.
func TestTheLastErrorsAreReported(t *testing.T) {
	t.Parallel()
	d := newDaemon(t)
	p := d.command(sh(`i=0; while [ $i -lt 2000 ]; do echo "error $i of $KEY" >&2; i=$((i+1)); done; exit 4`)...)
	p.Env = append(p.Env, "CLEW_MASK_1=sk-test-0123456789", "KEY=sk-test-0123456789")
	p.begin()
	s := d.accept(0)
	e := s.exit()
	g := gomega.NewWithT(t)
	g.Expect(len(e.LastErrors)).To(gomega.BeNumerically("<=", wire.MaxLastErrors), "bytes of the last errors")
	lines := strings.Split(strings.TrimSpace(e.LastErrors), "\n")
	g.Expect(len(lines)).To(gomega.BeNumerically(">=", 100), "lines of the last errors")
	g.Expect(lines[0]).To(gomega.HavePrefix("error "), "the first line is not whole")
	g.Expect(lines[len(lines)-1]).To(gomega.Equal("error 1999 of [masked]"))
	failing := 1
	s.send(wire.TypeRelease, wire.Release{Code: &failing})
	p.expectCode(1)
}
