package shim_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/clew-dev/clew/internal/daemon/wire"
)

// TestAnAgentThatWasStoppedForTooLongGoesOnAndTheDaemonIsTold: nothing that the
// agent says afterwards comes before the word that it goes on.
func TestAnAgentThatWasStoppedForTooLongGoesOnAndTheDaemonIsTold(t *testing.T) {
	t.Setenv("SHIM_MAX_FREEZE", "50ms")
	d := newDaemon(t)
	file := filepath.Join(t.TempDir(), "stop")
	p := d.start(sh(`echo begun; while [ ! -e ` + file + ` ]; do sleep 0.01; done; echo on`)...)
	s := d.accept(0)
	s.until("begun")
	s.send(wire.TypeFreeze, wire.Freeze{ID: 7})
	var z wire.Freeze
	if err := s.expect(wire.TypeFrozen).Decode(&z); err != nil || z.ID != 7 || z.Running {
		t.Fatalf("%+v, %v", z, err)
	}
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	said := len(s.lines)
	if err := s.expect(wire.TypeThawed).Decode(&z); err != nil || z.ID != 7 || len(s.lines) != said {
		t.Fatalf("%+v, %v, then %q", z, err, s.lines[said:])
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
