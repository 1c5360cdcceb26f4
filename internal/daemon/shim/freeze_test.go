package shim_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/clew-dev/clew/internal/daemon/wire"
)

// TestAnAgentThatWasStoppedForTooLongGoesOnAndTheDaemonIsTold: the limit leaves a
// busy machine the time to stop the agent's processes. An agent that does not
// stop within the limit is told as one that runs, which is another case.
func TestAnAgentThatWasStoppedForTooLongGoesOnAndTheDaemonIsTold(t *testing.T) {
	t.Setenv("SHIM_MAX_FREEZE", "3s")
	d := newDaemon(t)
	file := filepath.Join(t.TempDir(), "stop")
	p := d.start(sh(`echo begun; while [ ! -e ` + file + ` ]; do sleep 0.01; done; echo on`)...)
	s := d.accept(0)
	s.until("begun")
	s.send(wire.TypeFreeze, wire.Freeze{ID: 7})
	told := map[wire.Type]bool{}
	for range 2 {
		f := s.next()
		var z wire.Freeze
		if err := f.Decode(&z); err != nil || z.ID != 7 || z.Running {
			t.Fatalf("%+v, %v", z, err)
		}
		told[f.Type] = true
	}
	if !told[wire.TypeFrozen] || !told[wire.TypeThawed] {
		t.Fatalf("%v", told)
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

// TestAFreezeThatIsThawedInTimeIsNotTold.
func TestAFreezeThatIsThawedInTimeIsNotTold(t *testing.T) {
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

// TestTheAgentGoesOnAfterTheNewestFreeze, in whatever order they come, and each is
// answered.
func TestTheAgentGoesOnAfterTheNewestFreeze(t *testing.T) {
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
	if len(answers) != 3 {
		t.Fatalf("%v", answers)
	}
	s.send(wire.TypeThaw, wire.Freeze{ID: 3})
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	s.exit()
	s.send(wire.TypeRelease, nil)
	p.code()
}

// TestAThawThatFollowsItsFreezeAtOnceIsHeard.
func TestAThawThatFollowsItsFreezeAtOnceIsHeard(t *testing.T) {
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

// TestAnAgentThatIsStoppedGoesOnWhenItIsToEnd, so that it has its time for that, and the
// daemon is told.
func TestAnAgentThatIsStoppedGoesOnWhenItIsToEnd(t *testing.T) {
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
	if err := s.expect(wire.TypeThawed).Decode(&z); err != nil || z.ID != 7 {
		t.Fatalf("%+v, %v", z, err)
	}
	s.expect(wire.TypeTerminating)
	s.until("saved")
	if e := s.exit(); e.Code != 3 || !e.Terminating {
		t.Errorf("%+v", e)
	}
	s.send(wire.TypeThaw, wire.Freeze{ID: 7})
	s.send(wire.TypeRelease, nil)
	p.code()
}

// TestAnAgentThatIsToEndIsStoppedForFiveSecondsAtMost: its pod's time is short.
func TestAnAgentThatIsToEndIsStoppedForFiveSecondsAtMost(t *testing.T) {
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
// cannot be stopped while the child is. It is asked for often, so that some of the stops
// come in that moment.
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
