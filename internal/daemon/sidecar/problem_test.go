package sidecar_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/onsi/gomega"

	"github.com/clew-dev/clew/internal/daemon/daemontest"
	"github.com/clew-dev/clew/internal/daemon/wire"
	daemonv1 "github.com/clew-dev/clew/internal/daemonapi/v1"
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
	w.Server.Until(t, "the problem is reported", w.UID, func(k *daemontest.Task) bool { return k.Problem != nil })
	w.Server.Inspect(w.UID, func(k *daemontest.Task) {
		if k.Problem.GetReason() != "CheckpointFailed" || !strings.Contains(k.Problem.GetMessage(), "worktree") {
			t.Errorf("the problem is %v, want CheckpointFailed about the worktree", k.Problem)
		}
	})
	if err := os.Rename(aside, w.Path("")); err != nil {
		t.Fatal(err)
	}
	a.Call("2")
	w.Server.Until(t, "the problem is solved", w.UID, func(k *daemontest.Task) bool { return k.Problem == nil && k.Latest() != nil })
	w.Server.Inspect(w.UID, func(k *daemontest.Task) {
		if k.Reports > 3 {
			t.Errorf("the daemon reported %d times, want at most 3: at its start, the problem and its end", k.Reports)
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
	w.Server.Until(t, "the problem is reported", w.UID, func(k *daemontest.Task) bool {
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
	expectCheckpoint(t, latest(w), &daemonv1.CheckpointRecord{Durable: true})
	d.End()
}

func TestErrorsOfTheModelShowWhileTheAgentRetries(t *testing.T) {
	t.Parallel()
	w := daemontest.NewWorld(t, nil)
	w.Agent = "ClaudeCode"
	w.Prepare(1, nil)
	d := w.Start(1)
	a := w.Dial("s")
	retry := `{"type":"system","subtype":"api_retry","attempt":1,"max_retries":10,"retry_delay_ms":603,"error_status":401,"error":"authentication_failed"}`
	a.Say(`{"type":"system","subtype":"init","session_id":"s-1","model":"m"}`, retry, retry)
	w.Server.Until(t, "the problem is reported", w.UID, func(k *daemontest.Task) bool {
		return k.Problem.GetReason() == "ModelErrors" &&
			k.Problem.GetMessage() == "the model's API answers with status 401 authentication_failed; the agent retries by itself"
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
	w.Server.Until(t, "the problem is reported", w.UID, func(k *daemontest.Task) bool {
		return k.Problem.GetReason() == "RecordingFailed" && strings.Contains(k.Problem.GetMessage(), "its log says why")
	})
	w.Server.Refuse(nil)
	w.Server.Until(t, "the problem is solved", w.UID, func(k *daemontest.Task) bool { return k.Problem == nil && k.Last() > 1 })
	a.Send(wire.TypeExit, wire.Exit{})
	a.Next(wire.TypeRelease)
	d.End()
}

func TestAPodThatWaitsForTheGitstoreIsReported(t *testing.T) {
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
	w.Server.Until(t, "the wait is reported", w.UID, func(k *daemontest.Task) bool {
		return k.Problem.GetReason() == "GitStoreUnreachable" && strings.HasPrefix(k.Problem.GetMessage(), "the agent has ended, and its pod waits")
	})
	w.Git.SetDown(false)
	a.Next(wire.TypeRelease)
	w.Server.Until(t, "the problem is solved", w.UID, func(k *daemontest.Task) bool { return k.Problem == nil })
	d.End()
}

// TestAProblemIsReportedAgainToARestoredStore: the store is restored to a copy from before
// the task began, and has neither the task nor its problem.
func TestAProblemIsReportedAgainToARestoredStore(t *testing.T) {
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
	failing := func(k *daemontest.Task) bool { return k.Problem.GetReason() == "CheckpointFailed" }
	a.Call("1")
	w.Server.Until(t, "the problem is reported", w.UID, failing)
	w.Server.Forget(w.UID)
	a.Call("2")
	w.Server.Until(t, "the problem is reported again", w.UID, failing)
	if err := os.Rename(aside, w.Path("")); err != nil {
		t.Fatal(err)
	}
	a.Call("3")
	gomega.NewWithT(t).Eventually(func(g gomega.Gomega) {
		w.Server.Inspect(w.UID, func(k *daemontest.Task) {
			g.Expect(k.Problem).To(gomega.BeNil())
			g.Expect(k.Latest()).NotTo(gomega.BeNil(), "the newest checkpoint")
			g.Expect(k.Lost).To(gomega.BeZero(), "records that are lost")
			g.Expect(k.Lines()).To(gomega.HaveLen(7))
		})
	}).WithTimeout(30 * time.Second).Should(gomega.Succeed())
	a.Send(wire.TypeExit, wire.Exit{})
	a.Next(wire.TypeRelease)
	d.End()
}

// TestAVolumeTooFullToBeOpenedIsReported: repairing the spool needs room.
func TestAVolumeTooFullToBeOpenedIsReported(t *testing.T) {
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
	w.Server.Until(t, "the volume is open", w.UID, func(k *daemontest.Task) bool { return k.Problem == nil && len(k.Reported) > 0 })
	w.Server.Inspect(w.UID, func(k *daemontest.Task) {
		if k.Reported[0] != "VolumeFull" {
			t.Errorf("the problems reported are %v, want VolumeFull first", k.Reported)
		}
	})
	d.End()
}
