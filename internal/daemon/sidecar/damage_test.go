package sidecar_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/clew-dev/clew/internal/daemon/daemontest"
	"github.com/clew-dev/clew/internal/daemon/wire"
)

// TestAnAgentContinuesAfterTheEndOfTheSpoolWasDamaged: the shim has dropped the acknowledged
// lines, and the spool no longer has the last of them.
func TestAnAgentContinuesAfterTheEndOfTheSpoolWasDamaged(t *testing.T) {
	w := daemontest.NewWorld(t, nil)
	w.Prepare(1, nil)
	w.Start(1)
	a := w.Dial("s")
	a.Call("1")
	a.Recorded()
	a.Call("2")
	a.Recorded()
	w.Server.Until(t, "all is there", w.UID, func(k *daemontest.Task) bool { return k.Last() == 5 })
	killed := w.CopyVolume()
	names, err := filepath.Glob(filepath.Join(killed.Root, "clew", "spool", "*.log"))
	if err != nil || len(names) != 1 {
		t.Fatalf("segments: %v, %v", names, err)
	}
	data, err := os.ReadFile(names[0])
	if err != nil {
		t.Fatal(err)
	}
	data[len(data)-20] ^= 1
	if err := os.WriteFile(names[0], data, 0o600); err != nil {
		t.Fatal(err)
	}
	d := killed.Start(1)
	b := killed.DialFrom("s", a.Sent+1)
	if b.Welcome.Line != a.Sent {
		t.Errorf("the shim, which has lines from %d, was asked to continue after %d", a.Sent+1, b.Welcome.Line)
	}
	b.Call("3")
	b.Recorded()
	b.Send(wire.TypeExit, wire.Exit{})
	b.Next(wire.TypeRelease)
	d.End()
}
