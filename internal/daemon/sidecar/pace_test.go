package sidecar_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/onsi/gomega"

	"github.com/clew-dev/clew/internal/daemon/daemontest"
	"github.com/clew-dev/clew/internal/daemon/wire"
	"github.com/clew-dev/clew/internal/daemonapi"
	daemonv1 "github.com/clew-dev/clew/internal/daemonapi/v1"
)

// burst is how many automatic checkpoints are taken without delay.
const burst = 20

// spend causes a whole burst of checkpoints.
func spend(w *daemontest.World, a *daemontest.Shim) {
	for i := range burst {
		w.Write("file", fmt.Sprint(i))
		a.Call(fmt.Sprintf("spent-%d", i))
		a.Recorded()
		a.Next(wire.TypeThaw)
	}
}

// recordedEvents returns the events that the daemon recorded, each as "reason: message".
func recordedEvents(w *daemontest.World) (events []string) {
	w.Server.Inspect(w.UID, func(k *daemontest.Task) {
		for _, r := range k.Records {
			if e := r.GetEvent(); e != nil {
				events = append(events, e.GetReason()+": "+e.GetMessage())
			}
		}
	})
	return events
}

// expectEvent fails the test if the daemon did not record an event.
func expectEvent(t *testing.T, w *daemontest.World, want string) {
	t.Helper()
	if events := recordedEvents(w); !slices.Contains(events, want) {
		t.Errorf("the events are %q, want %q among them", events, want)
	}
}

func TestAnAgentCausesFewCheckpointsHoweverManyCallsItMakes(t *testing.T) {
	w := daemontest.NewWorld(t, nil)
	w.Policy.EveryToolCalls, w.Policy.LeastIntervalSeconds = 1, 30
	w.Prepare(1, nil)
	d := w.Start(1)
	a := w.Dial("s")
	spend(w, a)
	for i := range 100 {
		w.Write("file", fmt.Sprintf("flood %d", i))
		a.Call(fmt.Sprintf("flood-%d", i))
	}
	a.Recorded()
	finish(a, d, 0)
	// The changes of the flood are in the last checkpoint, which is always taken.
	expectCheckpoint(t, latest(w), &daemonv1.CheckpointRecord{Number: burst + 1, Trigger: "Completion", FilesChanged: 1})
}

func TestNoCheckpointIsTakenWithoutChanges(t *testing.T) {
	w := daemontest.NewWorld(t, nil)
	w.Policy.EveryToolCalls, w.Policy.EverySeconds = 1, 1
	w.Prepare(1, nil)
	d := w.Start(1)
	a := w.Dial("s")
	a.Call("first")
	a.Recorded()
	a.Next(wire.TypeThaw)
	w.Server.Until(t, "it is durable", w.UID, durable(1))
	for i := range 50 {
		a.Call(fmt.Sprint(i))
	}
	a.Recorded()
	// A checkpoint is taken of the next change.
	w.Write("file", "changed")
	a.Call("last")
	a.Recorded()
	a.Next(wire.TypeThaw)
	finish(a, d, 0)
	expectCheckpoint(t, latest(w), &daemonv1.CheckpointRecord{Number: 3, Trigger: "Completion"})
}

func TestARiskyToolWaitsForItsCheckpointWhenThereWereTooMany(t *testing.T) {
	if testing.Short() {
		t.Skip("waits for seconds: make test runs it")
	}
	w := daemontest.NewWorld(t, map[string]string{"src/a": "a"})
	w.Agent = "ClaudeCode"
	w.Policy.RiskyTools = []daemonapi.ToolPattern{{Tool: "^Bash$"}}
	w.Policy.LeastIntervalSeconds = 1
	w.Prepare(1, nil)
	d := w.Start(1)
	a := w.Dial("s")
	for i := range burst + 2 {
		w.Write("file", fmt.Sprint(i))
		held := claudeHook(w, fmt.Sprintf("t-%d", i), "Bash", removal, time.Minute)
		a.Next(wire.TypeFreeze)
		select {
		case <-held:
			t.Fatal("the tool may run before the checkpoint")
		default:
		}
		a.Next(wire.TypeThaw)
		answered(t, held)
	}
	finish(a, d, 0)
	calls := map[string]bool{}
	w.Server.Inspect(w.UID, func(k *daemontest.Task) {
		for _, c := range k.Checkpoints {
			calls[c.GetRiskyTool().GetCallId()] = true
		}
	})
	for i := range burst + 2 {
		if !calls[fmt.Sprintf("t-%d", i)] {
			t.Errorf("call %d had no checkpoint", i)
		}
	}
}

func TestAManualCheckpointDoesNotWait(t *testing.T) {
	w := daemontest.NewWorld(t, nil)
	w.Policy.EveryToolCalls, w.Policy.LeastIntervalSeconds = 1, 30
	w.Prepare(1, nil)
	d := w.Start(1)
	a := w.Dial("s")
	spend(w, a)
	w.AskForCheckpoint("by-hand")
	a.Next(wire.TypeThaw)
	w.Server.Until(t, "it is taken", w.UID, func(k *daemontest.Task) bool { return k.Latest().GetRequestedByName() == "by-hand" })
	finish(a, d, 0)
}

func TestAfterAnExpensiveCheckpointOthersWait(t *testing.T) {
	w := daemontest.NewWorld(t, nil)
	w.Policy.EveryToolCalls, w.Policy.LeastIntervalSeconds = 1, 1
	w.ProcessorTime = expensive()
	w.Prepare(1, nil)
	d := w.Start(1)
	a := w.Dial("s")
	w.Write("file", "1")
	a.Call("dear")
	a.Recorded()
	a.Next(wire.TypeThaw)
	w.Server.Until(t, "it is durable", w.UID, durable(1))
	for i := range 5 {
		w.Write("file", fmt.Sprint(i))
		a.Call(fmt.Sprintf("soon-%d", i))
		a.Recorded()
	}
	w.AskForCheckpoint("by-hand")
	finish(a, d, 0)
	// The last checkpoint does not wait.
	expectCheckpoint(t, latest(w), &daemonv1.CheckpointRecord{Number: 2, Trigger: "Completion"})
}

// The test takes a minute, since the checkpoint is delayed for that long.
func TestARequestedCheckpointIsTakenHoweverBusyTheAgentIs(t *testing.T) {
	if testing.Short() {
		t.Skip("waits for a minute: make test runs it")
	}
	w := daemontest.NewWorld(t, nil)
	w.Policy.EveryToolCalls, w.Policy.LeastIntervalSeconds = 1, 1
	w.ProcessorTime = expensive()
	w.Prepare(1, nil)
	d := w.Start(1)
	a := w.Dial("s")
	busy := func(i int) {
		w.Write("file", fmt.Sprint(i))
		a.Call(fmt.Sprintf("call-%d", i))
		a.Recorded()
	}
	busy(0)
	a.Next(wire.TypeThaw)
	w.AskForCheckpoint("by-hand")
	calls := 0
	gomega.NewWithT(t).Eventually(func() string {
		calls++
		busy(calls)
		return latest(w).GetRequestedByName()
	}).WithTimeout(3*time.Minute).WithPolling(50*time.Millisecond).Should(gomega.Equal("by-hand"), "the requested checkpoint is not taken")
	finish(a, d, 0)
}

// A risky call gets a checkpoint 20 s after the last one, which is sooner than a request.
func TestARequestedCheckpointIsTakenHoweverManyCallsAreRisky(t *testing.T) {
	if testing.Short() {
		t.Skip("waits for 20 s: make test runs it")
	}
	w := daemontest.NewWorld(t, nil)
	w.Agent = "ClaudeCode"
	w.Policy.RiskyTools = []daemonapi.ToolPattern{{Tool: "^Bash$"}}
	w.Policy.LeastIntervalSeconds = 1
	w.ProcessorTime = expensive()
	w.Prepare(1, nil)
	d := w.Start(1)
	a := w.Dial("s")
	risky := func(i int) {
		w.Write("file", fmt.Sprint(i))
		held := claudeHook(w, fmt.Sprintf("t-%d", i), "Bash", removal, time.Minute)
		a.Next(wire.TypeFreeze)
		a.Next(wire.TypeThaw)
		answered(t, held)
	}
	risky(0)
	w.AskForCheckpoint("by-hand")
	time.Sleep(21 * time.Second) // the limit itself is tested: a call is held for 20 s, a request for longer
	risky(1)
	w.Server.Until(t, "the requested checkpoint is taken, and covers the call", w.UID, func(k *daemontest.Task) bool { return k.Latest().GetRequestedByName() == "by-hand" })
	finish(a, d, 0)
}

func TestTheConsistencyOfACheckpointSaysWhetherTheAgentRan(t *testing.T) {
	for name, answer := range map[string]func(*daemontest.Shim, wire.Freeze){
		"PointInTime": func(a *daemontest.Shim, z wire.Freeze) { a.Send(wire.TypeFrozen, z) },
		"AgentNotStopped": func(a *daemontest.Shim, z wire.Freeze) {
			z.Running = true
			a.Send(wire.TypeFrozen, z)
		},
		"AgentThawed": func(a *daemontest.Shim, z wire.Freeze) {
			a.Send(wire.TypeThawed, z)
			a.Send(wire.TypeFrozen, z)
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := daemontest.NewWorld(t, nil)
			w.Prepare(1, nil)
			d := w.Start(1)
			a := w.Dial("s")
			w.AskForCheckpoint("by-hand")
			a.Answer(answer)
			w.Server.Until(t, "it is durable", w.UID, durable(1))
			expectCheckpoint(t, latest(w), &daemonv1.CheckpointRecord{Consistency: name})
			finish(a, d, 0)
			reported := slices.ContainsFunc(recordedEvents(w), func(e string) bool { return strings.HasPrefix(e, "CheckpointNotPointInTime: ") })
			if want := name != "PointInTime"; reported != want {
				t.Errorf("an event says that the agent ran: %v, want %v; events %q", reported, want, recordedEvents(w))
			}
			expectCheckpoint(t, latest(w), &daemonv1.CheckpointRecord{Trigger: "Completion", Consistency: "PointInTime"})
			if ms := latest(w).GetFrozenMilliseconds(); ms != 0 {
				t.Errorf("for the last checkpoint the agent was stopped for %d ms, want 0", ms)
			}
		})
	}
}

func TestACheckpointOfADisconnectedAgentIsMarkedAsNotStopped(t *testing.T) {
	w := daemontest.NewWorld(t, nil)
	w.Prepare(1, nil)
	d := w.Start(1)
	a := w.Dial("s")
	a.Say("a")
	a.Recorded()
	a.Close()
	w.AskForCheckpoint("by-hand")
	w.Server.Until(t, "it is durable", w.UID, durable(1))
	expectCheckpoint(t, latest(w), &daemonv1.CheckpointRecord{Trigger: "Manual", Consistency: "AgentNotStopped"})
	d.End()
}

func TestALargeChangeIsStoredWhileTheAgentWorks(t *testing.T) {
	w := daemontest.NewWorld(t, nil)
	w.Prepare(1, nil)
	d := w.Start(1)
	a := w.Dial("s")
	for i := range 1200 {
		w.Write(fmt.Sprintf("deps/%d", i), fmt.Sprint(i))
	}
	w.AskForCheckpoint("by-hand")
	// The agent is stopped, runs while the changes are stored, and is stopped again for
	// the rest.
	a.Next(wire.TypeFreeze)
	a.Next(wire.TypeThaw)
	a.Next(wire.TypeFreeze)
	a.Next(wire.TypeThaw)
	w.Server.Until(t, "it is durable", w.UID, durable(1))
	expectCheckpoint(t, latest(w), &daemonv1.CheckpointRecord{Number: 1, FilesChanged: 1200, Consistency: "PointInTime"})
	finish(a, d, 0)
}
