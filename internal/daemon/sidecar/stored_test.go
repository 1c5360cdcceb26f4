package sidecar_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/clew-dev/clew/internal/daemon/daemontest"
	"github.com/clew-dev/clew/internal/daemon/wire"
	daemonv1 "github.com/clew-dev/clew/internal/daemonapi/v1"
)

// storedRecords returns the attempts that have reported that everything is stored, and whether such a
// report is the last record.
func storedRecords(w *daemontest.World) (attempts []int64, last bool) {
	w.Server.Inspect(w.UID, func(k *daemontest.Task) {
		for _, r := range k.Records {
			if last = isStored(r); last {
				attempts = append(attempts, r.GetAttempt())
			}
		}
	})
	return attempts, last
}

func isStored(r *daemonv1.Record) bool {
	_, is := r.GetBody().(*daemonv1.Record_Stored)
	return is
}

// Whoever releases the volume relies on it.
func TestTheLastRecordOfAPodIsThatEverythingIsStored(t *testing.T) {
	for name, end := range map[string]func(*daemontest.Shim, *daemontest.Sidecar){
		"completed": func(a *daemontest.Shim, d *daemontest.Sidecar) { finish(a, d, 0) },
		"failed":    func(a *daemontest.Shim, d *daemontest.Sidecar) { finish(a, d, 3) },
		"suspended": func(a *daemontest.Shim, d *daemontest.Sidecar) {
			a.Send(wire.TypeTerminating, nil)
			a.Send(wire.TypeExit, wire.Exit{Code: 143, Terminating: true})
			d.End()
		},
		"never started": func(a *daemontest.Shim, d *daemontest.Sidecar) { a.Close(); d.End() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := daemontest.NewWorld(t, nil)
			w.Prepare(1, nil)
			d := w.Start(1)
			a := w.Dial("s")
			w.Write("x", "x")
			a.Say("a")
			a.Recorded()
			if attempts, _ := storedRecords(w); len(attempts) > 0 {
				t.Error("everything is said to be stored while the agent runs")
			}
			end(a, d)
			if attempts, last := storedRecords(w); len(attempts) != 1 || attempts[0] != 1 || !last {
				t.Errorf("the attempts that have said it are %v, by the last record: %t", attempts, last)
			}
		})
	}
}

// It is said when the gitstore has everything, and not when the agent ends.
func TestNothingIsSaidToBeStoredBeforeItIs(t *testing.T) {
	w := daemontest.NewWorld(t, nil)
	w.Prepare(1, nil)
	d := w.Start(1)
	a := w.Dial("s")
	w.Write("x", "x")
	w.Git.SetDown(true)
	a.Send(wire.TypeExit, wire.Exit{})
	w.Server.Until(t, "the last checkpoint is recorded", w.UID, func(k *daemontest.Task) bool { return k.Checkpoints[1] != nil })
	if attempts, _ := storedRecords(w); len(attempts) > 0 {
		t.Error("the gitstore is down, and everything is said to be stored")
	}
	w.Git.SetDown(false)
	a.Next(wire.TypeRelease)
	d.End()
	if attempts, last := storedRecords(w); len(attempts) != 1 || !last {
		t.Errorf("the attempts that have said it are %v, by the last record: %t", attempts, last)
	}
}

// The volume alone has the files of an agent whose last checkpoint could not be taken.
func TestAPodWithoutALastCheckpointDoesNotSayThatEverythingIsStored(t *testing.T) {
	if testing.Short() {
		t.Skip("waits until the pod gives up: make test runs it")
	}
	t.Parallel()
	w := daemontest.NewWorld(t, nil)
	w.Prepare(1, nil)
	d := w.Start(1)
	a := w.Dial("s")
	w.Write("x", "x")
	if err := os.Rename(filepath.Join(w.Root, "worktree"), filepath.Join(w.Root, "elsewhere")); err != nil {
		t.Fatal(err)
	}
	a.Send(wire.TypeTerminating, nil)
	a.Send(wire.TypeExit, wire.Exit{Code: 143, Terminating: true})
	d.End()
	if attempts, _ := storedRecords(w); len(attempts) > 0 {
		t.Errorf("attempt %v says that everything is stored", attempts)
	}
}
