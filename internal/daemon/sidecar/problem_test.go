package sidecar_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"

	"github.com/clew-dev/clew/internal/daemon/daemontest"
	"github.com/clew-dev/clew/internal/daemon/wire"
)

func TestACheckpointThatCannotBeTakenShowsUntilOneCan(t *testing.T) {
	if testing.Short() {
		t.Skip("waits for seconds: make test runs it")
	}
	w := daemontest.NewWorld(t, map[string]string{"a.txt": "a\n"})
	w.Policy.EveryToolCalls = 1
	w.Prepare(1, nil)
	d := w.Start(1)
	a := w.Dial("s")
	aside := w.Root + "/aside"
	if err := os.Rename(w.Path(""), aside); err != nil {
		t.Fatal(err)
	}
	a.Call("1")
	w.Server.Until(t, "the problem is told of", w.UID, func(k *daemontest.Task) bool { return k.Problem != nil })
	w.Server.Look(w.UID, func(k *daemontest.Task) {
		if k.Problem.GetReason() != "CheckpointFailed" || !strings.Contains(k.Problem.GetMessage(), "worktree") {
			t.Errorf("%v", k.Problem)
		}
	})
	if err := os.Rename(aside, w.Path("")); err != nil {
		t.Fatal(err)
	}
	a.Call("2")
	w.Server.Until(t, "the problem is solved", w.UID, func(k *daemontest.Task) bool { return k.Problem == nil && k.Latest() != nil })
	w.Server.Look(w.UID, func(k *daemontest.Task) {
		if k.Reports > 3 {
			t.Errorf("the daemon told %d times, not just at its start, of the problem and of its end", k.Reports)
		}
	})
	a.Send(wire.TypeExit, wire.Exit{})
	a.Next(wire.TypeRelease)
	d.End()
}

func TestAGitstoreWithoutRoomShowsWhileCheckpointsWaitForIt(t *testing.T) {
	if testing.Short() {
		t.Skip("waits for seconds: make test runs it")
	}
	w := daemontest.NewWorld(t, nil)
	w.Prepare(1, nil)
	path := filepath.Join(w.Git.Dir, "store.git", "hooks", "pre-receive")
	hook := "#!/bin/sh\necho 'clew: QuotaExceeded: ask for a larger quota' >&2; exit 1\n"
	if err := os.WriteFile(path, []byte(hook), 0o755); err != nil {
		t.Fatal(err)
	}
	d := w.Start(1)
	a := w.Dial("s")
	a.Send(wire.TypeExit, wire.Exit{})
	w.Server.Until(t, "the problem is told of", w.UID, func(k *daemontest.Task) bool {
		return k.Problem.GetReason() == "GitStoreRefused" && strings.HasSuffix(k.Problem.GetMessage(), "ask for a larger quota")
	})
	// Git may be about to run it, so another takes its place at once.
	if err := os.WriteFile(path+".new", []byte("#!/bin/sh\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
	a.Next(wire.TypeRelease)
	if c := latest(w); !c.GetDurable() {
		t.Errorf("%v", c)
	}
	d.End()
}

func TestErrorsOfTheModelShowWhileTheAgentTriesAgain(t *testing.T) {
	t.Parallel()
	w := daemontest.NewWorld(t, nil)
	w.Agent = "ClaudeCode"
	w.Prepare(1, nil)
	d := w.Start(1)
	a := w.Dial("s")
	retry := `{"type":"system","subtype":"api_retry","attempt":1,"max_retries":10,"retry_delay_ms":603,"error_status":401,"error":"authentication_failed"}`
	a.Say(`{"type":"system","subtype":"init","session_id":"s-1","model":"m"}`, retry, retry)
	w.Server.Until(t, "the problem is told of", w.UID, func(k *daemontest.Task) bool {
		return k.Problem.GetReason() == "ModelErrors" &&
			k.Problem.GetMessage() == "the model's API answers with status 401 authentication_failed; the agent tries again by itself"
	})
	a.Say(`{"type":"assistant","message":{"id":"m-1","role":"assistant","content":[{"type":"text","text":"DONE"}]}}`)
	w.Server.Until(t, "the problem is solved", w.UID, func(k *daemontest.Task) bool { return k.Problem == nil })
	a.Send(wire.TypeExit, wire.Exit{})
	a.Next(wire.TypeRelease)
	d.End()
}

func TestAServerThatRefusesRecordsShowsWhileItDoes(t *testing.T) {
	if testing.Short() {
		t.Skip("waits for seconds: make test runs it")
	}
	w := daemontest.NewWorld(t, nil)
	w.TellAfter = time.Millisecond
	w.Prepare(1, nil)
	d := w.Start(1)
	a := w.Dial("s")
	w.Server.Refuse(connect.NewError(connect.CodeInternal, errors.New("its log says why")))
	a.Call("1")
	w.Server.Until(t, "the problem is told of", w.UID, func(k *daemontest.Task) bool {
		return k.Problem.GetReason() == "RecordingFailed" && strings.Contains(k.Problem.GetMessage(), "its log says why")
	})
	w.Server.Refuse(nil)
	w.Server.Until(t, "the problem is solved", w.UID, func(k *daemontest.Task) bool { return k.Problem == nil && k.Last() > 1 })
	a.Send(wire.TypeExit, wire.Exit{})
	a.Next(wire.TypeRelease)
	d.End()
}

func TestAnEndThatWaitsForTheGitstoreIsTold(t *testing.T) {
	if testing.Short() {
		t.Skip("waits for seconds: make test runs it")
	}
	w := daemontest.NewWorld(t, nil)
	w.TellAfter = 100 * time.Millisecond
	w.Prepare(1, nil)
	d := w.Start(1)
	a := w.Dial("s")
	w.Git.SetDown(true)
	a.Send(wire.TypeExit, wire.Exit{})
	w.Server.Until(t, "it is told what the end waits for", w.UID, func(k *daemontest.Task) bool {
		return k.Problem.GetReason() == "GitStoreUnreachable" && strings.HasPrefix(k.Problem.GetMessage(), "the agent has ended, and its end waits")
	})
	w.Git.SetDown(false)
	a.Next(wire.TypeRelease)
	w.Server.Until(t, "the problem is solved", w.UID, func(k *daemontest.Task) bool { return k.Problem == nil })
	d.End()
}

// TestAProblemIsToldAgainToAnOlderStore: the store is put back to before the task
// began, and knows neither it nor what keeps it from its work.
func TestAProblemIsToldAgainToAnOlderStore(t *testing.T) {
	if testing.Short() {
		t.Skip("waits for seconds: make test runs it")
	}
	w := daemontest.NewWorld(t, map[string]string{"a.txt": "a\n"})
	w.Policy.EveryToolCalls = 1
	w.Prepare(1, nil)
	d := w.Start(1)
	a := w.Dial("s")
	aside := w.Root + "/aside"
	if err := os.Rename(w.Path(""), aside); err != nil {
		t.Fatal(err)
	}
	hindered := func(k *daemontest.Task) bool { return k.Problem.GetReason() == "CheckpointFailed" }
	a.Call("1")
	w.Server.Until(t, "the problem is told of", w.UID, hindered)
	w.Server.Forget(w.UID)
	a.Call("2")
	w.Server.Until(t, "it is told again", w.UID, hindered)
	if err := os.Rename(aside, w.Path("")); err != nil {
		t.Fatal(err)
	}
	a.Call("3")
	w.Server.Until(t, "everything is there again", w.UID, func(k *daemontest.Task) bool {
		return k.Problem == nil && k.Latest() != nil && k.Lost == 0 && len(k.Lines()) == 7
	})
	a.Send(wire.TypeExit, wire.Exit{})
	a.Next(wire.TypeRelease)
	d.End()
}

// TestAVolumeWithoutRoomToBeginIsToldOf: what is to be repaired on it takes room.
func TestAVolumeWithoutRoomToBeginIsToldOf(t *testing.T) {
	w := daemontest.NewWorld(t, nil)
	w.Prepare(1, nil)
	segments, err := filepath.Glob(filepath.Join(w.Root, "clew", "spool", "*.log"))
	if err != nil || len(segments) != 1 {
		t.Fatal(segments, err)
	}
	data, err := os.ReadFile(segments[0])
	if err != nil {
		t.Fatal(err)
	}
	data[10] ^= 1 // in the mark that it begins with
	if err := os.WriteFile(segments[0], data, 0o600); err != nil {
		t.Fatal(err)
	}
	// The repaired segment cannot be written; the second try finds room.
	if err := os.Symlink("/dev/full", segments[0]+".new"); err != nil {
		t.Fatal(err)
	}
	d := w.Start(1)
	w.Server.Until(t, "the volume is open", w.UID, func(k *daemontest.Task) bool { return k.Problem == nil && len(k.Told) > 0 })
	w.Server.Look(w.UID, func(k *daemontest.Task) {
		if k.Told[0] != "VolumeFull" {
			t.Errorf("told of %v", k.Told)
		}
	})
	d.End()
}
