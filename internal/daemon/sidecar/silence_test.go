package sidecar_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/clew-dev/clew/internal/daemon/daemontest"
	"github.com/clew-dev/clew/internal/daemon/wire"
	daemonv1 "github.com/clew-dev/clew/internal/daemonapi/v1"
)

// endTold is the end of the agent that the server knows of; nil for none.
func endTold(w *daemontest.World) (end *daemonv1.AgentEnd) {
	w.Server.Look(w.UID, func(k *daemontest.Task) {
		for _, r := range k.Records {
			if r.GetAgentEnd() != nil {
				end = r.GetAgentEnd()
			}
		}
	})
	return end
}

// TestASilentAgentIsEndedAndSaysSo: by the task's limit, counted from the last line.
func TestASilentAgentIsEndedAndSaysSo(t *testing.T) {
	if testing.Short() {
		t.Skip("waits for seconds: make test runs it")
	}
	t.Parallel()
	for _, code := range []int{143, 0} { // some catch the signal, and end as if all were done
		t.Run(fmt.Sprintf("exit code %d", code), func(t *testing.T) {
			t.Parallel()
			w := daemontest.NewWorld(t, nil)
			w.Agent, w.IdleSeconds = "GeminiCLI", 1
			w.Prepare(1, nil)
			d := w.Start(1)
			a := w.Dial("s")
			a.Say(geminiInit, geminiCall)
			a.Recorded()
			said := time.Now()
			a.Next(wire.TypeFinish)
			if silent := time.Since(said); silent < 900*time.Millisecond {
				t.Errorf("it was ended after %s", silent)
			}
			finish(a, d, code)
			end := endTold(w)
			if end.GetCause() != "Idle" || end.GetMessage() != "the agent printed nothing for 1s and was ended, as spec.agent.idleSeconds says" || end.GetExitCode() != 143 {
				t.Errorf("%v", end)
			}
			if trigger := latest(w).GetTrigger(); trigger != "Failure" {
				t.Errorf("the last checkpoint is for %s", trigger)
			}
		})
	}
}

// TestAnAgentThatHasAnsweredIsEnded, if what it left running holds it: then it has
// ended well, whatever signal ended it.
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
	if end := endTold(w); end != nil || latest(w).GetTrigger() != "Completion" {
		t.Errorf("%s, told %v", latest(w).GetTrigger(), end)
	}
}

// TestAnAgentAtWorkIsNotEnded: neither limit counts while lines come, and without
// an answer or a limit an agent may be silent for as long as it likes.
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
				time.Sleep(300 * time.Millisecond) // what is looked for is what must not come
			}
			if name == "silent" {
				time.Sleep(3 * time.Second)
			}
			a.Send(wire.TypeExit, wire.Exit{Code: 0})
			for typ := wire.Type(0); typ != wire.TypeRelease; {
				f, err := wire.Read(a.Reader)
				if err != nil {
					t.Fatal(err)
				}
				if typ = f.Type; typ == wire.TypeFinish {
					t.Error("it was ended")
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
