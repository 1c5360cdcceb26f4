package sidecar_test

import (
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/clew-dev/clew/internal/daemon/daemontest"
	"github.com/clew-dev/clew/internal/daemon/wire"
	"github.com/clew-dev/clew/internal/daemonapi"
)

// burst is how many automatic checkpoints are taken at any pace.
const burst = 20

// spend causes as many checkpoints as are taken at any pace.
func spend(w *daemontest.World, a *daemontest.Shim) {
	for i := range burst {
		w.Write("file", fmt.Sprint(i))
		a.Call(fmt.Sprintf("spent-%d", i))
		a.Recorded()
		a.Next(wire.TypeThaw)
	}
}

// told are the events that the daemon recorded.
func told(w *daemontest.World) (events []string) {
	w.Server.Look(w.UID, func(k *daemontest.Task) {
		for _, r := range k.Records {
			if e := r.GetEvent(); e != nil {
				events = append(events, e.GetReason()+": "+e.GetMessage())
			}
		}
	})
	return events
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
	// What the flood left behind is in the last one, which is always taken.
	if c := latest(w); c.GetNumber() != burst+1 || c.GetTrigger() != "Completion" || c.GetFilesChanged() != 1 {
		t.Errorf("%v", c)
	}
}

func TestNoCheckpointIsTakenOfWhatHasNotChanged(t *testing.T) {
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
	// A change is taken, once it is there.
	w.Write("file", "changed")
	a.Call("last")
	a.Recorded()
	a.Next(wire.TypeThaw)
	finish(a, d, 0)
	if c := latest(w); c.GetNumber() != 3 || c.GetTrigger() != "Completion" {
		t.Errorf("%v", c)
	}
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
	w.Server.Look(w.UID, func(k *daemontest.Task) {
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

func TestAfterADearCheckpointOthersWaitUntilItIsPaidFor(t *testing.T) {
	w := daemontest.NewWorld(t, nil)
	w.Policy.EveryToolCalls, w.Policy.LeastIntervalSeconds = 1, 1
	var used atomic.Int64
	w.ProcessorTime = func() time.Duration { return time.Duration(used.Add(int64(10 * time.Second))) }
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
	// The one at the end does not wait.
	if c := latest(w); c.GetNumber() != 2 || c.GetTrigger() != "Completion" {
		t.Errorf("%v", c)
	}
}

// It takes a minute: that is how long the checkpoint is put off.
func TestACheckpointThatIsAskedForIsTakenHoweverBusyTheAgentIs(t *testing.T) {
	if testing.Short() {
		t.Skip("waits for a minute: make test runs it")
	}
	w := daemontest.NewWorld(t, nil)
	w.Policy.EveryToolCalls, w.Policy.LeastIntervalSeconds = 1, 1
	var used atomic.Int64
	w.ProcessorTime = func() time.Duration { return time.Duration(used.Add(int64(10 * time.Second))) }
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
	taken := func() (taken bool) {
		w.Server.Look(w.UID, func(k *daemontest.Task) { taken = k.Latest().GetRequestedByName() == "by-hand" })
		return taken
	}
	deadline := time.Now().Add(3 * time.Minute)
	for i := 1; !taken(); i++ {
		if time.Now().After(deadline) {
			t.Fatal("it is not taken")
		}
		busy(i)
		time.Sleep(50 * time.Millisecond)
	}
	finish(a, d, 0)
}

// Each risky call has a checkpoint 20 s after the last one: sooner than whoever asks.
func TestACheckpointThatIsAskedForIsTakenHoweverManyCallsAreRisky(t *testing.T) {
	if testing.Short() {
		t.Skip("waits for 20 s: make test runs it")
	}
	w := daemontest.NewWorld(t, nil)
	w.Agent = "ClaudeCode"
	w.Policy.RiskyTools = []daemonapi.ToolPattern{{Tool: "^Bash$"}}
	w.Policy.LeastIntervalSeconds = 1
	var used atomic.Int64
	w.ProcessorTime = func() time.Duration { return time.Duration(used.Add(int64(10 * time.Second))) }
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
	<-time.After(21 * time.Second) // a held call's wait is over, and the other's is not
	risky(1)
	w.Server.Until(t, "what was asked for is taken, and stands for the call", w.UID, func(k *daemontest.Task) bool { return k.Latest().GetRequestedByName() == "by-hand" })
	finish(a, d, 0)
}

func TestACheckpointOfARunningAgentSaysSo(t *testing.T) {
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
			if c := latest(w); c.GetConsistency() != name {
				t.Errorf("%v", c)
			}
			finish(a, d, 0)
			said := slices.ContainsFunc(told(w), func(e string) bool { return strings.HasPrefix(e, "CheckpointNotPointInTime: ") })
			if said != (name != "PointInTime") {
				t.Errorf("%q", told(w))
			}
			if c := latest(w); c.GetTrigger() != "Completion" || c.GetConsistency() != "PointInTime" || c.GetFrozenMilliseconds() != 0 {
				t.Errorf("%v", c)
			}
		})
	}
}

func TestACheckpointOfAnAgentThatCannotBeReachedSaysSo(t *testing.T) {
	w := daemontest.NewWorld(t, nil)
	w.Prepare(1, nil)
	d := w.Start(1)
	a := w.Dial("s")
	a.Say("a")
	a.Recorded()
	a.Close()
	w.AskForCheckpoint("by-hand")
	w.Server.Until(t, "it is durable", w.UID, durable(1))
	if c := latest(w); c.GetTrigger() != "Manual" || c.GetConsistency() != "AgentNotStopped" {
		t.Errorf("%v", c)
	}
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
	// The agent is stopped, goes on while everything is stored, and is stopped
	// for what is left.
	a.Next(wire.TypeFreeze)
	a.Next(wire.TypeThaw)
	a.Next(wire.TypeFreeze)
	a.Next(wire.TypeThaw)
	w.Server.Until(t, "it is durable", w.UID, durable(1))
	if c := latest(w); c.GetNumber() != 1 || c.GetFilesChanged() != 1200 || c.GetConsistency() != "PointInTime" {
		t.Errorf("%v", c)
	}
	finish(a, d, 0)
}
