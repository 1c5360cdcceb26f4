package sidecar_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/clew-dev/clew/internal/daemon/daemontest"
	"github.com/clew-dev/clew/internal/daemon/wire"
	daemonv1 "github.com/clew-dev/clew/internal/daemonapi/v1"
)

const riskyCall = `{"type":"tool_call","id":"%s","name":"Bash","input":{"command":"rm -rf src"}}`

// manyFiles are more than are read in a moment: they are stored while the agent works.
const manyFiles = 1200

// untilThawed answers freezes as a shim does, until the agent is continued after at least
// the given number of stops. Before it answers a stop it calls stopping with its number.
func untilThawed(t *testing.T, a *daemontest.Shim, stops int64, stopping func(stop int64)) {
	newest := int64(0)
	for {
		f, err := wire.Read(a.Reader)
		if err != nil {
			t.Errorf("while the agent is stopped: %v", err)
			return
		}
		var z wire.Freeze
		if f.Type == wire.TypeFreeze || f.Type == wire.TypeThaw {
			if err := f.Decode(&z); err != nil {
				t.Error(err)
				return
			}
		}
		switch f.Type {
		case wire.TypeFreeze:
			newest = max(newest, z.ID)
			stopping(z.ID)
			a.Send(wire.TypeFrozen, z)
		case wire.TypeThaw:
			if z.ID == newest && newest >= stops {
				return
			}
		}
	}
}

// expensive returns processor times by which every piece of work uses 10 s.
func expensive() func() time.Duration {
	var used atomic.Int64
	return func() time.Duration { return time.Duration(used.Add(int64(10 * time.Second))) }
}

func TestTheAgentOfARiskyCallStaysStoppedWhileManyChangesAreStored(t *testing.T) {
	w := riskyWorld(t, "Exec")
	d := w.Start(1)
	a := w.Dial("s")
	for i := range manyFiles {
		w.Write(fmt.Sprintf("deps/%d", i), "before")
	}
	a.Say(fmt.Sprintf(riskyCall, "1"))
	untilThawed(t, a, 1, func(int64) {})
	w.Write("damage", "done")
	w.Server.Until(t, "the checkpoint is durable", w.UID, durable(1))
	if c := latest(w); c.GetRiskyTool().GetCallId() != "1" || c.GetFilesChanged() != manyFiles {
		t.Errorf("the checkpoint before the call %q holds %d changes", c.GetRiskyTool().GetCallId(), c.GetFilesChanged())
	}
	finish(a, d, 0)
}

// TestARiskyCallIsCoveredByTheCheckpointThatIsBeingTaken: it was seen before the files
// were read, and one of its own may be put off.
func TestARiskyCallIsCoveredByTheCheckpointThatIsBeingTaken(t *testing.T) {
	w := riskyWorld(t, "Exec")
	w.ProcessorTime = expensive()
	d := w.Start(1)
	a := w.Dial("s")
	for i := range manyFiles {
		w.Write(fmt.Sprintf("deps/%d", i), "before")
	}
	w.AskForCheckpoint("by-hand")
	thawed := make(chan struct{})
	go func() {
		defer close(thawed)
		untilThawed(t, a, 3, func(stop int64) {
			switch stop {
			case 1:
				a.Say(fmt.Sprintf(riskyCall, "1"))
			case 3:
				time.Sleep(500 * time.Millisecond) // until the daemon waits for the call, which nothing shows
			}
		})
	}()
	w.Server.Until(t, "the checkpoint is taken", w.UID, func(k *daemontest.Task) bool { return k.Checkpoints[1] != nil })
	w.Write("damage", "done") // a further checkpoint would differ from now on
	w.Server.Until(t, "the call's event is recorded", w.UID, func(k *daemontest.Task) bool {
		return slices.ContainsFunc(k.Records, func(r *daemonv1.Record) bool { return r.GetEvent().GetReason() == "RiskyToolGuarded" })
	})
	expectEvent(t, w, "RiskyToolGuarded: checkpoint 1 holds the state before the tool Bash")
	<-thawed
	w.Server.Until(t, "the checkpoint is durable", w.UID, durable(1))
	expectCheckpoint(t, latest(w), &daemonv1.CheckpointRecord{Number: 1, RequestedByName: "by-hand", FilesChanged: manyFiles})
	finish(a, d, 0)
}

// An agent may restart the numbers of its calls in each turn.
func TestAnotherCallWithTheSameIDHasACheckpointOfItsOwn(t *testing.T) {
	w := riskyWorld(t, "Exec")
	d := w.Start(1)
	a := w.Dial("s")
	for n := range int64(2) {
		w.Write("file", fmt.Sprint(n))
		a.Say(fmt.Sprintf(riskyCall, "call-0"))
		untilThawed(t, a, 1, func(int64) {})
		w.Server.Until(t, "its checkpoint is durable", w.UID, durable(n+1))
		if c := latest(w); c.GetRiskyTool().GetCallId() != "call-0" {
			t.Errorf("checkpoint %d is not one before the call: %v", c.GetNumber(), c)
		}
	}
	finish(a, d, 0)
}

// running are the frames by which a shim reports that an agent ran while a checkpoint was
// taken.
var running = map[string]func(*daemontest.Shim, wire.Freeze){
	"not stopped": func(a *daemontest.Shim, z wire.Freeze) {
		z.Running = true
		a.Send(wire.TypeFrozen, z)
	},
	"thawed": func(a *daemontest.Shim, z wire.Freeze) {
		a.Send(wire.TypeThawed, z)
		a.Send(wire.TypeFrozen, z)
	},
}

// The agent, or a process that it has started, may have changed the files while they were
// read, so they may not be those before the call.
func TestACheckpointOfAnAgentThatRanDoesNotGuardACall(t *testing.T) {
	for name, answer := range running {
		t.Run(name, func(t *testing.T) {
			w := riskyWorld(t, "ClaudeCode")
			d := w.Start(1)
			a := w.Dial("s")
			asked := claudeHook(w, "t-1", "Bash", removal, time.Minute)
			a.Answer(answer)
			answered(t, asked)
			w.Server.Until(t, "the call's event is recorded", w.UID, func(k *daemontest.Task) bool {
				return slices.ContainsFunc(k.Records, func(r *daemonv1.Record) bool { return r.GetEvent().GetDetails()["call"] == "t-1" })
			})
			expectEvent(t, w, "RiskyToolUnguarded: checkpoint 1 may not hold the state before the tool Bash: the agent ran while it was taken")
			finish(a, d, 0)
		})
	}
}

// The agent is stopped for a limited time. What it does after that is in the checkpoint,
// even if it is stopped again for it.
func TestACallWhoseStopEndsBeforeItsCheckpointIsNotGuarded(t *testing.T) {
	w := riskyWorld(t, "Exec")
	d := w.Start(1)
	a := w.Dial("s")
	for i := range manyFiles {
		w.Write(fmt.Sprintf("deps/%d", i), "before")
	}
	a.Say(fmt.Sprintf(riskyCall, "1"))
	untilThawed(t, a, 3, func(stop int64) {
		if stop == 3 { // the stops are for the call, for finding many changes, and for the rest of them
			a.Send(wire.TypeThawed, wire.Freeze{ID: 2})
		}
	})
	w.Server.Until(t, "the checkpoint is durable", w.UID, durable(1))
	expectCheckpoint(t, latest(w), &daemonv1.CheckpointRecord{Trigger: "ToolCalls", Consistency: "PointInTime"})
	if tool := latest(w).GetRiskyTool(); tool != nil {
		t.Errorf("the checkpoint names the call %q, want none", tool.GetCallId())
	}
	expectEvent(t, w, "RiskyToolUnguarded: checkpoint 1 may not hold the state before the tool Bash: the agent has run since the call")
	finish(a, d, 0)
}

func TestARiskyCallAfterACheckpointOfAnAgentThatRanHasItsOwnCheckpoint(t *testing.T) {
	for name, answer := range running {
		t.Run(name, func(t *testing.T) {
			w := riskyWorld(t, "ClaudeCode")
			d := w.Start(1)
			a := w.Dial("s")
			w.AskForCheckpoint("by-hand")
			a.Answer(answer)
			w.Server.Until(t, "it is taken", w.UID, func(k *daemontest.Task) bool { return k.Checkpoints[1] != nil })
			a.Next(wire.TypeThaw)
			asked := claudeHook(w, "t-1", "Bash", removal, time.Minute) // nothing has changed since
			a.Next(wire.TypeThaw)
			answered(t, asked)
			w.Server.Until(t, "there is a second one", w.UID, durable(2))
			expectCheckpoint(t, latest(w), &daemonv1.CheckpointRecord{Consistency: "PointInTime",
				RiskyTool: &daemonv1.RiskyTool{Name: "Bash", CallId: "t-1", Before: true}})
			if events := recordedEvents(w); slices.ContainsFunc(events, func(e string) bool { return strings.HasPrefix(e, "RiskyToolUnguarded") }) {
				t.Errorf("a call is reported as unguarded: %q", events)
			}
			finish(a, d, 0)
		})
	}
}

func TestNothingIsHeldBackWhenThePodIsToEnd(t *testing.T) {
	w := riskyWorld(t, "ClaudeCode")
	w.ProcessorTime = expensive()
	d := w.Start(1)
	a := w.Dial("s")
	w.AskForCheckpoint("by-hand")
	a.Next(wire.TypeThaw)
	w.Write("new", "n")
	began := time.Now()
	asked := claudeHook(w, "t-1", "Bash", removal, time.Minute)
	a.Send(wire.TypeTerminating, nil)
	a.Next(wire.TypeThaw)
	answered(t, asked)
	if took := time.Since(began); took > 15*time.Second {
		t.Errorf("the call was held back for %s, want at most 15 s", took)
	}
	w.Server.Until(t, "it is durable", w.UID, durable(2))
	if call := latest(w).GetRiskyTool().GetCallId(); call != "t-1" {
		t.Errorf("the checkpoint is for the call %q, want t-1", call)
	}
	finish(a, d, 0)
}

// However many checkpoints are requested or due while all of them fail, and whatever they
// cost.
func TestARiskyCallIsNotHeldBackByCheckpointsThatFail(t *testing.T) {
	if testing.Short() {
		t.Skip("waits for seconds: make test runs it")
	}
	for name, c := range map[string]struct {
		cost  func() time.Duration
		asked int
		few   int64 // stops of the agent
	}{
		"asked for":             {asked: 60, few: 20},
		"asked for, and dear":   {cost: expensive(), asked: 60, few: 20},
		"due by time, and dear": {cost: expensive(), few: 1},
	} {
		t.Run(name, func(t *testing.T) {
			w := riskyWorld(t, "ClaudeCode")
			if c.cost != nil {
				w.ProcessorTime = c.cost
			}
			if c.asked == 0 {
				w.Policy.EverySeconds = 1
			}
			d := w.Start(1)
			a := w.Dial("s")
			repository := filepath.Join(w.Paths().State, "git")
			if err := os.Rename(repository, repository+".away"); err != nil {
				t.Fatal(err)
			}
			first := make(chan struct{})
			stops := answerFreezes(a, func(stop int64) {
				if stop == 1 {
					close(first)
					time.Sleep(2 * time.Second) // until the daemon waits for the call, which nothing shows
				}
				time.Sleep(100 * time.Millisecond) // the time that the failing checkpoints take is the subject
			})
			for n := range c.asked {
				w.AskForCheckpoint(fmt.Sprint("by-hand-", n))
			}
			w.Write("new", "n")
			<-first
			answered(t, claudeHook(w, "t-1", "Bash", removal, time.Minute))
			if n := stops.Load(); n > c.few {
				t.Errorf("the call waited for %d checkpoints to fail", n)
			}
			w.Server.Until(t, "the call's event is recorded", w.UID, func(k *daemontest.Task) bool {
				return slices.ContainsFunc(k.Records, func(r *daemonv1.Record) bool {
					return strings.HasPrefix(r.GetEvent().GetMessage(), "the tool Bash runs without a checkpoint before it, since the one that would have covered it could not be taken: ")
				})
			})
			if err := os.Rename(repository+".away", repository); err != nil {
				t.Fatal(err)
			}
			d.End()
		})
	}
}

// answerFreezes answers freezes as a shim does until the connection ends or the shim is
// released, and counts them. Before it answers one it calls stopping with its number, if
// that is not nil.
func answerFreezes(a *daemontest.Shim, stopping func(stop int64)) *atomic.Int64 {
	stops := &atomic.Int64{}
	go func() {
		for {
			f, err := wire.Read(a.Reader)
			if err != nil || f.Type == wire.TypeRelease {
				return
			}
			var z wire.Freeze
			if f.Type == wire.TypeFreeze && f.Decode(&z) == nil {
				if n := stops.Add(1); stopping != nil {
					stopping(n)
				}
				_ = wire.Write(a, wire.TypeFrozen, z) // the daemon may have ended
			}
		}
	}()
	return stops
}
