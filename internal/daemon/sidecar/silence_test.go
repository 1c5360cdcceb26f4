package sidecar_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"

	"github.com/clew-dev/clew/internal/daemon/daemontest"
	"github.com/clew-dev/clew/internal/daemon/wire"
	daemonv1 "github.com/clew-dev/clew/internal/daemonapi/v1"
)

// recordedEnd returns the record about the agent's end; nil for none.
func recordedEnd(w *daemontest.World) (end *daemonv1.AgentEnd) {
	w.Server.Inspect(w.UID, func(k *daemontest.Task) {
		for _, r := range k.Records {
			if r.GetAgentEnd() != nil {
				end = r.GetAgentEnd()
			}
		}
	})
	return end
}

// TestASilentAgentIsEnded after the task's limit, counted from its last line, and the
// reason is recorded.
func TestASilentAgentIsEnded(t *testing.T) {
	if testing.Short() {
		t.Skip("waits for seconds: make test runs it")
	}
	t.Parallel()
	for _, code := range []int{143, 0} { // some agents catch the signal and exit with 0
		t.Run(fmt.Sprintf("exit code %d", code), func(t *testing.T) {
			t.Parallel()
			w := daemontest.NewWorld(t, nil)
			w.Agent, w.IdleSeconds = "GeminiCLI", 1
			w.Prepare(1, nil)
			d := w.Start(1)
			a := w.Dial("s")
			a.Say(geminiInit, geminiCall)
			a.Recorded()
			last := time.Now()
			a.Next(wire.TypeFinish)
			if silent := time.Since(last); silent < 900*time.Millisecond {
				t.Errorf("the agent was terminated after %s, want at least 900 ms", silent)
			}
			finish(a, d, code)
			want := &daemonv1.AgentEnd{Cause: "Idle", ExitCode: 143, Message: "the agent printed nothing for 1s and was terminated, as spec.agent.idleSeconds requires"}
			if diff := cmp.Diff(want, recordedEnd(w), protocmp.Transform()); diff != "" {
				t.Errorf("the recorded end (-want +got):\n%s", diff)
			}
			expectCheckpoint(t, latest(w), &daemonv1.CheckpointRecord{Trigger: "Failure"})
		})
	}
}

// TestAnAgentThatHasAnsweredIsEnded if a process that it left running keeps it from
// exiting. It counts as successful, whatever signal ended it.
func TestAnAgentThatHasAnsweredIsEnded(t *testing.T) {
	t.Parallel()
	w := daemontest.NewWorld(t, nil)
	w.Agent, w.DoneGrace = "GeminiCLI", time.Second
	w.Prepare(1, nil)
	d := w.Start(1)
	a := w.Dial("s")
	a.Say(geminiInit, geminiCall, geminiResult, delta("DONE"), `{"type":"result","status":"success","stats":{}}`)
	a.Recorded()
	a.Next(wire.TypeFinish)
	finish(a, d, 143)
	if end := recordedEnd(w); end != nil {
		t.Errorf("a failure of the agent is recorded: %v", end)
	}
	expectCheckpoint(t, latest(w), &daemonv1.CheckpointRecord{Trigger: "Completion"})
}

// TestAnAgentAtWorkIsNotEnded: neither limit applies while lines arrive, and without an
// answer or a limit an agent may be silent for any time.
func TestAnAgentAtWorkIsNotEnded(t *testing.T) {
	if testing.Short() {
		t.Skip("waits for seconds: make test runs it")
	}
	t.Parallel()
	for name, w := range map[string]*daemontest.World{"at work": daemontest.NewWorld(t, nil), "silent": daemontest.NewWorld(t, nil)} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w.Agent, w.DoneGrace = "GeminiCLI", time.Second
			lines := 1
			if name == "at work" {
				w.IdleSeconds, lines = 2, 12
			}
			w.Prepare(1, nil)
			d := w.Start(1)
			a := w.Dial("s")
			a.Say(geminiInit)
			for range lines {
				a.Say(geminiCall)
				a.Recorded()
				time.Sleep(300 * time.Millisecond) // the agent's pace, which is within the limit
			}
			if name == "silent" {
				time.Sleep(3 * time.Second) // the silence itself, which must not end the agent
			}
			a.Send(wire.TypeExit, wire.Exit{Code: 0})
			for typ := wire.Type(0); typ != wire.TypeRelease; {
				f, err := wire.Read(a.Reader)
				if err != nil {
					t.Fatal(err)
				}
				if typ = f.Type; typ == wire.TypeFinish {
					t.Error("the agent was terminated")
				}
				if typ == wire.TypeFreeze {
					var z wire.Freeze
					f.Decode(&z)
					a.Send(wire.TypeFrozen, z)
				}
			}
			d.End()
		})
	}
}
