package shim_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/onsi/gomega"
	"golang.org/x/sys/unix"

	"github.com/clew-dev/clew/internal/daemon/wire"
)

// TestReconnect loses the daemon in the middle of the output, twice: lines that were not
// acknowledged are sent again with their numbers, in the same session.
func TestReconnect(t *testing.T) {
	t.Parallel()
	d := newDaemon(t)
	p := d.start(sh(`for i in 1 2 3 4 5 6 7 8 9; do echo $i; sleep 0.02; done; exit 2`)...)
	s := d.accept(0)
	s.until("5")
	s.send(wire.TypeAck, wire.Ack{Line: 3})
	s.Close()
	again := d.accept(4) // recorded, but the acknowledgement was lost
	if again.id != s.id {
		t.Fatalf("the shim reconnected as session %q, want %q", again.id, s.id)
	}
	again.until("6")
	again.Close()
	last := d.accept(6)
	expectExit(t, last.exit(), wire.Exit{Code: 2})
	if diff := cmp.Diff([]string{"7", "8", "9"}, last.lines); diff != "" {
		t.Fatalf("lines after the second loss (-want +got):\n%s", diff)
	}
	last.Close() // while the shim waits for its release, too
	final := d.accept(9)
	expectExit(t, final.exit(), wire.Exit{Code: 2})
	if len(final.lines) != 0 {
		t.Fatalf("recorded lines were sent again: %q", final.lines)
	}
	final.send(wire.TypeRelease, nil)
	p.expectCode(2)
}

// TestStopsWithoutDaemon: the agent is stopped at its next line.
func TestStopsWithoutDaemon(t *testing.T) {
	t.Parallel()
	d := newDaemon(t)
	file := filepath.Join(t.TempDir(), "steps")
	p := d.start(sh(`for i in 1 2 3 4 5 6 7 8; do echo $i; echo $i >> ` + file + `; sleep 0.02; done`)...)
	s := d.accept(0)
	s.until("2")
	s.Close()
	c := <-d.conns // reconnects, but is not welcomed
	gomega.NewWithT(t).Consistently(func() int {
		steps, _ := os.ReadFile(file)
		return strings.Count(string(steps), "\n")
	}).WithTimeout(300*time.Millisecond).Should(gomega.BeNumerically("<=", 4), "steps of the agent without a daemon")
	c.Close()
	again := d.accept(s.last)
	expectExit(t, again.exit(), wire.Exit{})
	if last := again.lines[len(again.lines)-1]; last != "8" {
		t.Fatalf("the last line is %q, want 8", last)
	}
	again.send(wire.TypeRelease, nil)
	p.code()
}

// TestTermWithoutDaemon: a stopped agent can still end by itself.
func TestTermWithoutDaemon(t *testing.T) {
	t.Parallel()
	d := newDaemon(t)
	file := filepath.Join(t.TempDir(), "ended")
	p := d.start(sh(`trap 'touch ` + file + `; exit 5' TERM; i=0; while :; do i=$((i+1)); echo $i; sleep 0.01; done`)...)
	s := d.accept(0)
	s.until("3")
	s.Close()
	c := <-d.conns
	g := gomega.NewWithT(t)
	g.Eventually(p.agentState).WithTimeout(10*time.Second).Should(gomega.Equal("T"), "the agent is not stopped without a daemon")
	p.Process.Signal(unix.SIGTERM)
	g.Eventually(file).WithTimeout(10*time.Second).Should(gomega.BeAnExistingFile(), "the agent did not get SIGTERM")
	p.expectHeld()
	c.Close()
	again := d.accept(s.last)
	again.expect(wire.TypeTerminating)
	expectExit(t, again.exit(), wire.Exit{Code: 5, Terminating: true})
	again.send(wire.TypeRelease, nil)
	p.code()
}

// TestNoStartWithoutDaemon: the agent is not started before the daemon has welcomed the shim.
func TestNoStartWithoutDaemon(t *testing.T) {
	t.Parallel()
	d := newDaemon(t)
	file := filepath.Join(t.TempDir(), "started")
	p := d.start(sh(`touch ` + file)...)
	c := <-d.conns
	gomega.NewWithT(t).Consistently(file).WithTimeout(50*time.Millisecond).ShouldNot(gomega.BeAnExistingFile(), "the agent was started")
	c.Close()
	p.Process.Signal(unix.SIGTERM)
	p.expectCode(143)
}

// TestBackpressure: output that is not recorded blocks the agent before it fills the shim's
// memory.
func TestBackpressure(t *testing.T) {
	t.Parallel()
	d := newDaemon(t)
	p := d.start(sh(`head -c 3000000 /dev/zero | tr '\0' x | fold -w 999; echo; echo end`)...)
	s := d.accept(0)
	acked, patience := int64(0), time.Now().Add(time.Minute)
	for len(s.lines) == 0 || s.lines[len(s.lines)-1] != "end" {
		s.SetReadDeadline(time.Now().Add(200 * time.Millisecond))
		f, err := wire.Read(s)
		if err != nil {
			if !errors.Is(err, os.ErrDeadlineExceeded) || time.Now().After(patience) {
				t.Fatalf("after %d lines: %v", len(s.lines), err)
			}
			if ahead := (s.last - acked) * 1000; ahead > 1<<20 {
				t.Fatalf("%d bytes were sent unacknowledged, want at most 1 MiB", ahead)
			}
			if s.last == acked {
				continue // on a busy machine the agent has not written more yet
			}
			acked = s.last
			s.send(wire.TypeAck, wire.Ack{Line: acked})
			continue
		}
		s.line(f)
	}
	s.SetReadDeadline(time.Now().Add(20 * time.Second))
	s.exit()
	s.send(wire.TypeRelease, nil)
	p.code()
}

func TestStopEndsTheAgent(t *testing.T) {
	t.Parallel()
	d := newDaemon(t)
	p := d.start(sh(`trap '' TERM; echo ready; sleep 100`)...)
	s := d.accept(0)
	s.until("ready")
	s.send(wire.TypeStop, nil)
	p.expectCode(137)
}
