package sidecar_test

import (
	"context"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/onsi/gomega"

	"github.com/clew-dev/clew/internal/daemon/daemontest"
	"github.com/clew-dev/clew/internal/daemon/prepare"
	"github.com/clew-dev/clew/internal/daemon/sidecar"
	"github.com/clew-dev/clew/internal/daemon/socket"
	"github.com/clew-dev/clew/internal/daemon/spool"
	"github.com/clew-dev/clew/internal/daemon/volume"
	"github.com/clew-dev/clew/internal/daemon/wire"
	"github.com/clew-dev/clew/internal/daemonapi"
	daemonv1 "github.com/clew-dev/clew/internal/daemonapi/v1"
)

// A number is used for one pod only, but a volume may have been used by pods of a manager
// that did not ensure that.
func TestASecondPodOfAnAttemptIsServedAsAPodOfItsOwn(t *testing.T) {
	t.Run("though an agent of the first one had begun", func(t *testing.T) {
		w := daemontest.NewWorld(t, nil)
		w.PodUID = "pod-1"
		w.Prepare(1, nil)
		d := w.Start(1)
		a := w.Dial("session-of-the-first-pod")
		a.Call("1")
		a.Recorded()
		a.Close()
		d.End()
		w.PodUID = "pod-2"
		w.Prepare(1, nil)
		d = w.Start(1)
		second := w.Dial("session-of-the-second-pod")
		if second.Welcome.Line == -1 {
			t.Error("the shim of the second pod was rejected")
		}
		if w.Dial("another-session").Welcome.Line != -1 {
			t.Error("a second session was admitted")
		}
		second.Close()
		d.End()
	})
	t.Run("though the first one was ended before its agent had begun", func(t *testing.T) {
		w := daemontest.NewWorld(t, map[string]string{"a.txt": "a\n"})
		w.PodUID = "pod-1"
		w.Prepare(1, nil)
		w.Start(1).End()
		w.PodUID = "pod-2"
		w.Prepare(1, nil)
		d := w.Start(1)
		a := w.Dial("session-of-the-second-pod")
		w.Write("work", "a day's work\n")
		a.Call("1")
		a.Recorded()
		a.Send(wire.TypeExit, wire.Exit{Code: 0})
		a.Next(wire.TypeRelease)
		d.End()
		if c := latest(w); c.GetTrigger() != "Completion" {
			t.Errorf("the shim was released, and the newest checkpoint is %v, want one of trigger Completion", c)
		}
		w.PodUID = "pod-3"
		w.Prepare(2, nil)
	})
	t.Run("and the first one is fenced off", func(t *testing.T) {
		w := daemontest.NewWorld(t, nil)
		w.PodUID = "pod-1"
		w.Prepare(1, nil)
		second := *w
		second.PodUID = "pod-2"
		second.Prepare(1, nil)
		d := w.Start(1)
		if answer := w.Knock("session-of-the-first-pod"); answer != wire.TypeStop {
			t.Errorf("the shim of the first pod is answered with a frame of type %d, want Stop", answer)
		}
		d.End()
	})
}

func TestAVolumeOfADaemonWithoutAPodUIDIsUsedFurther(t *testing.T) {
	w := daemontest.NewWorld(t, nil)
	w.Prepare(1, nil)
	d := w.Start(1)
	a := w.Dial("s")
	a.Call("1")
	a.Recorded()
	a.Send(wire.TypeExit, wire.Exit{Code: 1})
	a.Next(wire.TypeRelease)
	d.End()
	w.PodUID = "pod-2"
	w.Prepare(2, nil)
	w.Start(2).End()
}

// The newer attempt's pod is on the same node, so that it can mount the volume.
func TestTheVolumeIsUnlockedOnlyWhenTheOldAgentHasEnded(t *testing.T) {
	if testing.Short() {
		t.Skip("waits for seconds: make test runs it")
	}
	w := daemontest.NewWorld(t, map[string]string{"a.txt": "a\n"})
	w.RetryFor = time.Minute
	w.Prepare(1, nil)
	d := w.Start(1)
	a := w.Dial("s")
	a.Call("1")
	a.Recorded()
	newer := *w
	newer.RunDir = w.CopyVolume().RunDir
	prepared := make(chan daemonapi.PrepareResult, 1)
	go func() { prepared <- prepare.Run(t.Context(), newer.PrepareConfig(2, nil)) }()
	a.UntilStopped()
	w.Write("a.txt", "a slow agent's last words\n")
	select {
	case r := <-prepared:
		t.Fatalf("attempt 2 was prepared while the agent of attempt 1 runs: %+v", r)
	case <-time.After(500 * time.Millisecond):
	}
	a.Close()
	// The shim was between two connections: it reconnects, and is ordered again to end.
	again := w.Reconnect("s")
	select {
	case r := <-prepared:
		t.Fatalf("attempt 2 was prepared while the shim of attempt 1 is connected: %+v", r)
	case <-time.After(500 * time.Millisecond):
	}
	again.Close()
	if r := <-prepared; r.Reason != "Prepared" && r.Reason != "DriftDetected" {
		t.Errorf("attempt 2 is not prepared after the agent of attempt 1 has ended: %+v", r)
	}
	d.End()
}

// A sidecar that was killed may be restarted after a newer attempt has locked the volume.
func TestADaemonThatFindsTheVolumeLockedEndsItsAgent(t *testing.T) {
	w := daemontest.NewWorld(t, nil)
	w.Prepare(1, nil)
	taken, err := spool.Open(filepath.Join(w.Paths().State, "spool"))
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	w.OpenWait = 100 * time.Millisecond
	d := w.Start(1)
	for w.Knock("s") != wire.TypeStop {
		t.Log("the daemon still waits for the volume")
	}
	d.End()
}

// Some network file systems grant a lock to two nodes.
func TestADaemonWhoseLockDoesNotHoldWritesNothingMore(t *testing.T) {
	w := daemontest.NewWorld(t, nil)
	w.Prepare(1, nil)
	d := w.Start(1)
	a := w.Dial("s")
	a.Call("1")
	a.Recorded()
	dir := filepath.Join(w.Paths().State, "spool")
	if err := os.Remove(filepath.Join(dir, "lock")); err != nil {
		t.Fatal(err)
	}
	newer, err := spool.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer newer.Close()
	last := newer.Last()
	a.Say(`{"type":"message","text":"I work on."}`)
	a.UntilStopped()
	a.Close()
	d.End()
	if err := newer.Append(nil, &daemonv1.Record{}); err != nil {
		t.Fatal(err)
	}
	got, err := newer.Read(last, 10, 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	if len(got) != 1 {
		t.Errorf("the spool has %d new records, want only the newer attempt's: %v", len(got), got)
	}
}

// A token may be refused for a while because it has expired, the kubelet is down, or the
// server cannot reach the API server. An attempt is over only when its pod is gone.
func TestATokenThatIsRefusedDoesNotEndTheAgent(t *testing.T) {
	w := daemontest.NewWorld(t, nil)
	w.Prepare(1, nil)
	client, token := w.Client(1)
	good, err := os.ReadFile(token)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	done := make(chan error, 1)
	go func() {
		done <- sidecar.Run(ctx, sidecar.Config{Pod: w.Pod(1, nil), Paths: w.Paths(), RunDir: w.RunDir, Server: client,
			Remote: volume.Remote(w.Store, token, ""), Log: w.Log()})
	}()
	g := gomega.NewWithT(t)
	g.Eventually(func() error { return socket.Ready(w.RunDir) }).WithTimeout(30*time.Second).Should(gomega.Succeed(), "the daemon does not become ready")
	a := w.Dial("s")
	if err := os.WriteFile(token, []byte("expired\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for id := range 5 {
		a.Call(strconv.Itoa(id)) // fails the test if the agent is to be ended
		a.Recorded()
		g.Consistently(done).WithTimeout(100*time.Millisecond).ShouldNot(gomega.Receive(), "the daemon ended")
	}
	if err := os.WriteFile(token, good, 0o600); err != nil {
		t.Fatal(err)
	}
	w.Server.Until(t, "all calls are answered", w.UID, func(k *daemontest.Task) bool { return len(k.Active) == 1+10 })
	a.Close()
	stop()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
