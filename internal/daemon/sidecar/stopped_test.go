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

// untilThawed answers as a shim does until the agent would go on, having been stopped
// so many times at least. Before it answers a stop it calls stopping with its number.
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

func dear() func() time.Duration {
	var used atomic.Int64
	return func() time.Duration { return time.Duration(used.Add(int64(10 * time.Second))) }
}

func TestTheAgentOfARiskyCallStandsStillWhileMuchIsStored(t *testing.T) {
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
	w.ProcessorTime = dear()
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
				time.Sleep(500 * time.Millisecond) // the call waits by now
			}
		})
	}()
	w.Server.Until(t, "the checkpoint is taken", w.UID, func(k *daemontest.Task) bool { return k.Checkpoints[1] != nil })
	w.Write("damage", "done") // there is more to take from here on
	w.Server.Until(t, "the call is told of", w.UID, func(k *daemontest.Task) bool {
		return slices.ContainsFunc(k.Records, func(r *daemonv1.Record) bool { return r.GetEvent().GetReason() == "RiskyToolGuarded" })
	})
	if events := told(w); !slices.Contains(events, "RiskyToolGuarded: checkpoint 1 holds what was before the tool Bash") {
		t.Errorf("%q", events)
	}
	<-thawed
	w.Server.Until(t, "the checkpoint is durable", w.UID, durable(1))
	if c := latest(w); c.GetNumber() != 1 || c.GetRequestedByName() != "by-hand" || c.GetFilesChanged() != manyFiles {
		t.Errorf("checkpoint %d, for %q, holds %d changes", c.GetNumber(), c.GetRequestedByName(), c.GetFilesChanged())
	}
	finish(a, d, 0)
}

// An agent may number its calls anew in each turn.
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

// running are ways to say that an agent ran while a checkpoint was taken.
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

// Files that the agent, or what it has started, may have changed while they were read are
// not said to be those before the call that the checkpoint was taken for.
func TestACheckpointOfAnAgentThatRanIsNotSaidToHoldWhatWasBeforeACall(t *testing.T) {
	for name, answer := range running {
		t.Run(name, func(t *testing.T) {
			w := riskyWorld(t, "ClaudeCode")
			d := w.Start(1)
			a := w.Dial("s")
			asked := claudeHook(w, "t-1", "Bash", removal, time.Minute)
			a.Answer(answer)
			answered(t, asked)
			w.Server.Until(t, "it is told of the call", w.UID, func(k *daemontest.Task) bool {
				return slices.ContainsFunc(k.Records, func(r *daemonv1.Record) bool { return r.GetEvent().GetDetails()["call"] == "t-1" })
			})
			if events := told(w); !slices.Contains(events,
				"RiskyToolUnguarded: checkpoint 1 may not hold what was before the tool Bash: the agent ran while it was taken") {
				t.Errorf("%q", events)
			}
			finish(a, d, 0)
		})
	}
}

// The agent stands still only for so long. What it does from then on is in the checkpoint,
// even if it stands still again for that one.
func TestACallWhoseStopIsOverBeforeItsCheckpointIsTakenIsNotGuarded(t *testing.T) {
	w := riskyWorld(t, "Exec")
	d := w.Start(1)
	a := w.Dial("s")
	for i := range manyFiles {
		w.Write(fmt.Sprintf("deps/%d", i), "before")
	}
	a.Say(fmt.Sprintf(riskyCall, "1"))
	untilThawed(t, a, 3, func(stop int64) {
		if stop == 3 { // for the call, to see that there is much to store, and when it is stored
			a.Send(wire.TypeThawed, wire.Freeze{ID: 2})
		}
	})
	w.Server.Until(t, "the checkpoint is durable", w.UID, durable(1))
	if c := latest(w); c.GetTrigger() != "ToolCalls" || c.GetRiskyTool() != nil || c.GetConsistency() != "PointInTime" {
		t.Errorf("a checkpoint %s of trigger %s for the call %q", c.GetConsistency(), c.GetTrigger(), c.GetRiskyTool().GetCallId())
	}
	if events := told(w); !slices.Contains(events,
		"RiskyToolUnguarded: checkpoint 1 may not hold what was before the tool Bash: the agent has run since the call") {
		t.Errorf("%q", events)
	}
	finish(a, d, 0)
}

func TestARiskyCallAfterACheckpointOfAnAgentThatRanHasOneOfItsOwn(t *testing.T) {
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
			if c := latest(w); c.GetRiskyTool().GetCallId() != "t-1" || c.GetConsistency() != "PointInTime" {
				t.Errorf("%v", c)
			}
			if events := told(w); slices.ContainsFunc(events, func(e string) bool { return strings.HasPrefix(e, "RiskyToolUnguarded") }) {
				t.Errorf("%q", events)
			}
			finish(a, d, 0)
		})
	}
}

func TestNothingIsHeldBackWhenThePodIsToEnd(t *testing.T) {
	w := riskyWorld(t, "ClaudeCode")
	w.ProcessorTime = dear()
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
		t.Errorf("the call is held back for %s", took)
	}
	w.Server.Until(t, "it is durable", w.UID, durable(2))
	if c := latest(w); c.GetRiskyTool().GetCallId() != "t-1" {
		t.Errorf("%v", c)
	}
	finish(a, d, 0)
}

// However many checkpoints are asked for or due on a volume that takes none, and whatever
// they cost.
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
		"asked for, and dear":   {cost: dear(), asked: 60, few: 20},
		"due by time, and dear": {cost: dear(), few: 1},
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
			stops := standStill(a, func(stop int64) {
				if stop == 1 {
					close(first)
					time.Sleep(2 * time.Second) // the call waits by now
				}
				time.Sleep(100 * time.Millisecond)
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
			w.Server.Until(t, "the call is told of", w.UID, func(k *daemontest.Task) bool {
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

// standStill answers as a shim does until its connection ends, and counts how often it
// stopped the agent. Before it answers a stop it calls stopping with its number.
func standStill(a *daemontest.Shim, stopping func(stop int64)) *atomic.Int64 {
	stops := &atomic.Int64{}
	go func() {
		for {
			f, err := wire.Read(a.Reader)
			if err != nil {
				return
			}
			var z wire.Freeze
			if f.Type == wire.TypeFreeze && f.Decode(&z) == nil {
				stopping(stops.Add(1))
				_ = wire.Write(a, wire.TypeFrozen, z) // the daemon may have ended
			}
		}
	}()
	return stops
}
