package shim_test

import (
	"fmt"
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

// TestAnAgentThatWasStoppedForTooLongIsContinued, and the daemon is notified. The limit leaves a
// busy machine the time to stop the agent's processes: an agent that does not stop within
// it would be reported as running, which is another case.
func TestAnAgentThatWasStoppedForTooLongIsContinued(t *testing.T) {
	t.Setenv("SHIM_MAX_FREEZE", "3s")
	d := newDaemon(t)
	file := filepath.Join(t.TempDir(), "stop")
	p := d.start(sh(`echo begun; while [ ! -e ` + file + ` ]; do sleep 0.01; done; echo on`)...)
	s := d.accept(0)
	s.until("begun")
	s.send(wire.TypeFreeze, wire.Freeze{ID: 7})
	got := map[wire.Type]wire.Freeze{}
	for range 2 {
		f := s.next()
		var z wire.Freeze
		if err := f.Decode(&z); err != nil {
			t.Fatal(err)
		}
		got[f.Type] = z
	}
	if diff := cmp.Diff(map[wire.Type]wire.Freeze{wire.TypeFrozen: {ID: 7}, wire.TypeThawed: {ID: 7}}, got); diff != "" {
		t.Fatalf("frames of the shim (-want +got):\n%s", diff)
	}
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	s.until("on")
	s.send(wire.TypeThaw, wire.Freeze{ID: 7})
	s.exit()
	s.send(wire.TypeRelease, nil)
	p.code()
}

// TestAFreezeThatIsThawedInTimeIsNotReported as expired.
func TestAFreezeThatIsThawedInTimeIsNotReported(t *testing.T) {
	t.Setenv("SHIM_MAX_FREEZE", time.Minute.String())
	d := newDaemon(t)
	file := filepath.Join(t.TempDir(), "stop")
	p := d.start(sh(`echo begun; while [ ! -e ` + file + ` ]; do sleep 0.01; done`)...)
	s := d.accept(0)
	s.until("begun")
	s.send(wire.TypeFreeze, wire.Freeze{ID: 1})
	s.expect(wire.TypeFrozen)
	s.send(wire.TypeThaw, wire.Freeze{ID: 1})
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	s.exit() // the next frame
	s.send(wire.TypeRelease, nil)
	p.code()
}

// TestTheAgentIsContinuedAfterTheNewestFreeze, in whatever order the freezes arrive, and
// each is answered.
func TestTheAgentIsContinuedAfterTheNewestFreeze(t *testing.T) {
	t.Setenv("SHIM_MAX_FREEZE", time.Hour.String())
	d := newDaemon(t)
	file := filepath.Join(t.TempDir(), "stop")
	p := d.start(sh(`echo begun; while [ ! -e ` + file + ` ]; do sleep 0.01; done`)...)
	s := d.accept(0)
	s.until("begun")
	for _, id := range []int64{1, 3, 2} {
		s.send(wire.TypeFreeze, wire.Freeze{ID: id})
	}
	answers := map[int64]bool{}
	for range 3 {
		var z wire.Freeze
		if err := s.expect(wire.TypeFrozen).Decode(&z); err != nil {
			t.Fatalf("%+v, %v", z, err)
		}
		answers[z.ID] = true
	}
	if diff := cmp.Diff(map[int64]bool{1: true, 2: true, 3: true}, answers); diff != "" {
		t.Fatalf("freezes answered (-want +got):\n%s", diff)
	}
	s.send(wire.TypeThaw, wire.Freeze{ID: 3})
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	s.exit()
	s.send(wire.TypeRelease, nil)
	p.code()
}

// TestAThawThatFollowsItsFreezeAtOnceCounts, so that the agent is not left stopped.
func TestAThawThatFollowsItsFreezeAtOnceCounts(t *testing.T) {
	t.Setenv("SHIM_MAX_FREEZE", time.Hour.String())
	d := newDaemon(t)
	file := filepath.Join(t.TempDir(), "stop")
	p := d.start(sh(`echo begun; while [ ! -e ` + file + ` ]; do sleep 0.01; done`)...)
	s := d.accept(0)
	s.until("begun")
	const times = 50
	for id := range int64(times) {
		s.send(wire.TypeFreeze, wire.Freeze{ID: id + 1})
		s.send(wire.TypeThaw, wire.Freeze{ID: id + 1})
	}
	for range times {
		s.expect(wire.TypeFrozen)
	}
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	s.exit()
	s.send(wire.TypeRelease, nil)
	p.code()
}

// TestAStoppedAgentIsContinuedWhenItHasToEnd, so that it has time for that, and the daemon
// is notified.
func TestAStoppedAgentIsContinuedWhenItHasToEnd(t *testing.T) {
	t.Setenv("SHIM_MAX_FREEZE", time.Hour.String())
	d := newDaemon(t)
	p := d.start(sh(`trap "echo saved; exit 3" TERM; echo begun; while :; do sleep 0.01; done`)...)
	s := d.accept(0)
	s.until("begun")
	s.send(wire.TypeFreeze, wire.Freeze{ID: 7})
	s.expect(wire.TypeFrozen)
	if err := p.Process.Signal(unix.SIGTERM); err != nil {
		t.Fatal(err)
	}
	var z wire.Freeze
	if err := s.expect(wire.TypeThawed).Decode(&z); err != nil {
		t.Fatal(err)
	}
	if z.ID != 7 {
		t.Fatalf("the shim reports freeze %d as thawed, want 7", z.ID)
	}
	s.expect(wire.TypeTerminating)
	s.until("saved")
	expectExit(t, s.exit(), wire.Exit{Code: 3, Terminating: true})
	s.send(wire.TypeThaw, wire.Freeze{ID: 7})
	s.send(wire.TypeRelease, nil)
	p.code()
}

// TestAnAgentThatHasToEndIsStoppedForAtMostFiveSeconds, since its pod's grace period is
// short.
func TestAnAgentThatHasToEndIsStoppedForAtMostFiveSeconds(t *testing.T) {
	t.Setenv("SHIM_MAX_FREEZE", time.Hour.String())
	d := newDaemon(t)
	file := filepath.Join(t.TempDir(), "stop")
	p := d.start(sh(`trap : TERM; echo begun; while [ ! -e ` + file + ` ]; do sleep 0.01; done; echo saved`)...)
	s := d.accept(0)
	s.until("begun")
	if err := p.Process.Signal(unix.SIGTERM); err != nil {
		t.Fatal(err)
	}
	s.expect(wire.TypeTerminating)
	s.send(wire.TypeFreeze, wire.Freeze{ID: 7})
	s.expect(wire.TypeFrozen)
	s.expect(wire.TypeThawed)
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	s.until("saved")
	s.exit()
	s.send(wire.TypeRelease, nil)
	p.code()
}

// TestAnAgentThatIsStartingAProgramIsStopped: a process that waits for a child by vfork
// cannot be stopped while the child is stopped. The test asks often, so that some of the
// freezes arrive at that moment.
func TestAnAgentThatIsStartingAProgramIsStopped(t *testing.T) {
	t.Setenv("SHIM_MAX_FREEZE", time.Hour.String())
	d := newDaemon(t)
	file := filepath.Join(t.TempDir(), "stop")
	p := d.start(sh(`echo begun; while [ ! -e ` + file + ` ]; do /bin/true; done`)...)
	s := d.accept(0)
	s.until("begun")
	for id := range int64(300) {
		s.send(wire.TypeFreeze, wire.Freeze{ID: id + 1})
		var z wire.Freeze
		if err := s.expect(wire.TypeFrozen).Decode(&z); err != nil {
			t.Fatal(err)
		}
		if z.Running {
			t.Fatalf("the agent was not stopped the %dth time", id+1)
		}
		s.send(wire.TypeThaw, wire.Freeze{ID: id + 1})
	}
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	s.exit()
	s.send(wire.TypeRelease, nil)
	p.code()
}

// TestFreeze: between Frozen and Thaw the agent does not run, and all its output from before
// has been sent.
func TestFreeze(t *testing.T) {
	t.Parallel()
	d := newDaemon(t)
	file := filepath.Join(t.TempDir(), "steps")
	g := gomega.NewWithT(t)
	p := d.start(sh(`i=0; while [ ! -e ` + file + `.stop ]; do i=$((i+1)); echo $i >> ` + file + `; echo $i; done; sh -c 'echo sub'`)...)
	s := d.accept(0)
	s.until("10")
	for id := int64(1); id < 12; id++ {
		s.send(wire.TypeFreeze, wire.Freeze{ID: id})
		s.expect(wire.TypeFrozen)
		before, _ := os.ReadFile(file)
		steps, printed := strings.Count(string(before), "\n"), 0
		fmt.Sscan(s.lines[len(s.lines)-1], &printed)
		if steps != printed && steps != printed+1 {
			t.Fatalf("the agent took %d steps and the daemon got %d lines", steps, printed)
		}
		g.Consistently(func() int {
			after, _ := os.ReadFile(file)
			return len(after)
		}).WithTimeout(5*time.Millisecond).WithPolling(time.Millisecond).Should(gomega.Equal(len(before)), "a stopped agent works on")
		s.send(wire.TypeThaw, wire.Freeze{ID: id})
	}
	s.send(wire.TypeFreeze, wire.Freeze{ID: 99})
	s.expect(wire.TypeFrozen)
	s.Close() // a lost daemon must not leave the agent stopped
	last := d.accept(s.last)
	os.WriteFile(file+".stop", nil, 0o600)
	expectExit(t, last.exit(), wire.Exit{})
	if line := last.lines[len(last.lines)-1]; line != "sub" {
		t.Fatalf("the last line is %q, want sub", line)
	}
	last.send(wire.TypeRelease, nil)
	p.code()
}

// TestFreezeStopsOtherSessions: a process that the agent started in a session of its own is
// stopped as well, and so is one whose parent has ended.
func TestFreezeStopsOtherSessions(t *testing.T) {
	t.Parallel()
	d := newDaemon(t)
	file := filepath.Join(t.TempDir(), "steps")
	work := `while [ ! -e ` + file + `.stop ]; do echo x >> ` + file + `.$0; done`
	p := d.start(sh(`setsid sh -c '` + work + `' child & (setsid setsid -f sh -c '` + work + `' orphan); while [ ! -e ` + file + `.child -o ! -e ` + file + `.orphan ]; do sleep 0.01; done; echo both; wait`)...)
	s := d.accept(0)
	s.until("both")
	g := gomega.NewWithT(t)
	sizes := func() (out [2]int64) {
		for i, name := range []string{".child", ".orphan"} {
			if info, err := os.Stat(file + name); err == nil {
				out[i] = info.Size()
			}
		}
		return out
	}
	for id := int64(1); id < 6; id++ {
		s.send(wire.TypeFreeze, wire.Freeze{ID: id})
		s.expect(wire.TypeFrozen)
		before := sizes()
		g.Consistently(sizes).WithTimeout(20*time.Millisecond).WithPolling(time.Millisecond).Should(gomega.Equal(before), "a stopped process works on")
		s.send(wire.TypeThaw, wire.Freeze{ID: id})
		for i := range before {
			g.Eventually(func() int64 { return sizes()[i] }).WithTimeout(10*time.Second).WithPolling(time.Millisecond).
				ShouldNot(gomega.Equal(before[i]), "a process was not continued")
		}
	}
	os.WriteFile(file+".stop", nil, 0o600)
	s.exit()
	s.send(wire.TypeRelease, nil)
	p.code()
}
