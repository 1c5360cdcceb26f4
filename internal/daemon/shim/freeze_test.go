package shim_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

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
