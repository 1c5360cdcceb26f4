package sidecar_test

import (
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/onsi/gomega"
	"google.golang.org/protobuf/testing/protocmp"

	"github.com/clew-dev/clew/internal/daemon/daemontest"
	"github.com/clew-dev/clew/internal/daemon/wire"
	daemonv1 "github.com/clew-dev/clew/internal/daemonapi/v1"
)

const openCall, itsResult = `{"type":"tool_call","id":"1","name":"x"}`, `{"type":"tool_result","id":"1","output":"ok"}`

// holdWorld is one whose agent has written a file.
func holdWorld(t *testing.T, change ...func(*daemontest.World)) (*daemontest.World, *daemontest.Sidecar, *daemontest.Shim) {
	w := daemontest.NewWorld(t, map[string]string{"a": "a"})
	for _, f := range change {
		f(w)
	}
	w.Prepare(1, nil)
	d, a := w.Start(1), w.Dial("s")
	w.Write("counter", "1")
	return w, d, a
}

// askForSet makes the server request the checkpoint of a set.
func askForSet(w *daemontest.World, set string) {
	w.Server.Ask(&daemonv1.TakeCheckpoint{Name: "of-" + set, Uid: "uid-of-" + set, Hold: set})
}

// holdEnds returns how holds ended, as recorded.
func holdEnds(w *daemontest.World) (ends []*daemonv1.HoldEnd) {
	w.Server.Inspect(w.UID, func(k *daemontest.Task) {
		for _, r := range k.Records {
			if e := r.GetHoldEnd(); e != nil {
				ends = append(ends, e)
			}
		}
	})
	return ends
}

// expectHoldEnds waits until it is recorded how as many holds ended, and compares them.
func expectHoldEnds(t *testing.T, w *daemontest.World, want ...*daemonv1.HoldEnd) {
	t.Helper()
	gomega.NewWithT(t).Eventually(func() int { return len(holdEnds(w)) }, 20*time.Second, 5*time.Millisecond).Should(gomega.BeNumerically(">=", len(want)))
	if diff := cmp.Diff(want, holdEnds(w), protocmp.Transform()); diff != "" {
		t.Errorf("how holds ended (-want +got):\n%s", diff)
	}
}

// awaitTaken waits until the server has the checkpoint, which is shipped while the agent is stopped.
func awaitTaken(t *testing.T, w *daemontest.World, number int64) {
	t.Helper()
	w.Server.Until(t, "the checkpoint is recorded", w.UID, func(k *daemontest.Task) bool { return k.Checkpoints[number] != nil })
}

// untilHeld requests the checkpoint of a set, and waits until it is taken and the agent is kept stopped.
func untilHeld(t *testing.T, w *daemontest.World, a *daemontest.Shim) {
	t.Helper()
	askForSet(w, "set")
	a.Next(wire.TypeFreeze)
	a.Next(wire.TypeFreeze) // that of the checkpoint itself
	awaitTaken(t, w, 1)
}

func TestAnAgentStaysStoppedForASetUntilItIsReleased(t *testing.T) {
	w, d, a := holdWorld(t)
	untilHeld(t, w, a)
	askForSet(w, "set") // repeated, as on another stream
	if ends := holdEnds(w); len(ends) > 0 {
		t.Fatalf("the agent continues before the set is released: %v", ends)
	}
	w.Server.Release("another set")
	w.Server.Release("set")
	a.Next(wire.TypeThaw)
	expectHoldEnds(t, w, &daemonv1.HoldEnd{Set: "set", Checkpoint: 1, Released: true})
	expectCheckpoint(t, latest(w), &daemonv1.CheckpointRecord{Number: 1, Trigger: "Manual", RequestedByUid: "uid-of-set", Consistency: "PointInTime"})
	a.Send(wire.TypeExit, wire.Exit{Code: 0})
	a.Next(wire.TypeRelease)
	d.End()
	expectHoldEnds(t, w, &daemonv1.HoldEnd{Set: "set", Checkpoint: 1, Released: true})
}

func TestTheCheckpointOfASetWaitsForTheEndOfACall(t *testing.T) {
	w, _, a := holdWorld(t)
	a.Say(openCall)
	a.Recorded()
	askForSet(w, "set")
	a.Quiet(300 * time.Millisecond)
	if c := latest(w); c != nil {
		t.Fatalf("a checkpoint was taken in the middle of the call: %v", c)
	}
	a.Say(itsResult)
	a.Next(wire.TypeFreeze)
	a.Next(wire.TypeFreeze)
	awaitTaken(t, w, 1)
	w.Server.Release("set")
	a.Next(wire.TypeThaw)
	expectHoldEnds(t, w, &daemonv1.HoldEnd{Set: "set", Checkpoint: 1, Released: true})
}

func TestTheCheckpointOfASetIsTakenInTheMiddleOfALongCall(t *testing.T) {
	w, _, a := holdWorld(t, func(w *daemontest.World) { w.BoundaryWait = 100 * time.Millisecond })
	a.Say(openCall)
	a.Recorded()
	untilHeld(t, w, a)
	w.Server.Release("set")
	a.Next(wire.TypeThaw)
	expectHoldEnds(t, w, &daemonv1.HoldEnd{Set: "set", Checkpoint: 1, Released: true, InCall: true})
}

func TestAnAgentThatNobodyReleasesContinues(t *testing.T) {
	w, _, a := holdWorld(t, func(w *daemontest.World) { w.HoldTime = 100 * time.Millisecond })
	askForSet(w, "set")
	a.Next(wire.TypeThaw)
	expectHoldEnds(t, w, &daemonv1.HoldEnd{Set: "set", Checkpoint: 1})
	w.Server.Release("set") // too late
	askForSet(w, "next")
	a.Next(wire.TypeThaw)
	expectHoldEnds(t, w, &daemonv1.HoldEnd{Set: "set", Checkpoint: 1}, &daemonv1.HoldEnd{Set: "next", Checkpoint: 2})
}

func TestAnAgentOfASetThatIsGoneContinuesAndWasNotReleased(t *testing.T) {
	w, _, a := holdWorld(t)
	untilHeld(t, w, a)
	w.Server.Drop("set")
	a.Next(wire.TypeThaw)
	expectHoldEnds(t, w, &daemonv1.HoldEnd{Set: "set", Checkpoint: 1})
}

func TestAnAgentThatContinuedByItselfWasNotHeld(t *testing.T) {
	w, _, a := holdWorld(t)
	untilHeld(t, w, a)
	a.Send(wire.TypeThawed, wire.Freeze{ID: 2})
	a.Say("it goes on")
	a.Recorded()
	w.Server.Release("set")
	expectHoldEnds(t, w, &daemonv1.HoldEnd{Set: "set", Checkpoint: 1})
}

func TestAnAgentThatEndsWhileItIsHeldWasNotReleased(t *testing.T) {
	w, d, a := holdWorld(t)
	untilHeld(t, w, a)
	a.Send(wire.TypeExit, wire.Exit{Code: 137})
	a.Next(wire.TypeRelease)
	d.End()
	expectHoldEnds(t, w, &daemonv1.HoldEnd{Set: "set", Checkpoint: 1})
}

func TestAPodThatIsToEndWaitsForNoSet(t *testing.T) {
	w, _, a := holdWorld(t)
	untilHeld(t, w, a)
	a.Send(wire.TypeTerminating, nil)
	a.Next(wire.TypeThaw)
	expectHoldEnds(t, w, &daemonv1.HoldEnd{Set: "set", Checkpoint: 1})
}

func TestADaemonThatWasKilledRecordsThatItsHoldExpired(t *testing.T) {
	w, _, a := holdWorld(t)
	untilHeld(t, w, a)
	killed := w.CopyVolume()
	killed.Start(1)
	killed.Dial("s")
	expectHoldEnds(t, w, &daemonv1.HoldEnd{Set: "set", Checkpoint: 1})
	askForSet(w, "set") // repeated: it was served
	killed.AskForCheckpoint("other")
	w.Server.Until(t, "another checkpoint is recorded", w.UID, func(k *daemontest.Task) bool { return k.Checkpoints[2].GetRequestedByName() == "other" })
	expectHoldEnds(t, w, &daemonv1.HoldEnd{Set: "set", Checkpoint: 1})
}

func TestASetThatFailsBeforeItsTurnStopsNobody(t *testing.T) {
	w, _, a := holdWorld(t)
	a.Say(openCall)
	a.Recorded()
	askForSet(w, "set")
	a.Quiet(200 * time.Millisecond)
	w.Server.Release("set")
	a.Quiet(200 * time.Millisecond)
	a.Say(itsResult)
	a.Recorded()
	w.AskForCheckpoint("other")
	a.Next(wire.TypeThaw)
	w.Server.Until(t, "the other checkpoint is recorded", w.UID, func(k *daemontest.Task) bool { return k.Checkpoints[1].GetRequestedByName() == "other" })
	if ends := holdEnds(w); len(ends) > 0 {
		t.Errorf("the agent was held: %v", ends)
	}
}

// TestAnAgentIsNotStoppedForASetWhileItsChangesAreStored: that may take minutes if there are many.
func TestAnAgentIsNotStoppedForASetWhileItsChangesAreStored(t *testing.T) {
	w, _, a := holdWorld(t)
	w.AskForCheckpoint("first")
	a.Next(wire.TypeThaw)
	awaitTaken(t, w, 1)
	for i := range 1100 { // more than a brief stop is enough for
		w.Write(fmt.Sprintf("many/%d", i), strconv.Itoa(i))
	}
	askForSet(w, "set")
	a.Next(wire.TypeFreeze)
	a.Next(wire.TypeThaw) // while the changes are stored
	a.Next(wire.TypeFreeze)
	awaitTaken(t, w, 2)
	w.Server.Release("set")
	a.Next(wire.TypeThaw)
	expectHoldEnds(t, w, &daemonv1.HoldEnd{Set: "set", Checkpoint: 2, Released: true})
}

// TestAnAgentThatIsHeldIsNotSilent: it cannot print anything.
func TestAnAgentThatIsHeldIsNotSilent(t *testing.T) {
	if testing.Short() {
		t.Skip("waits for seconds: make test runs it")
	}
	t.Parallel()
	w, d, a := holdWorld(t, func(w *daemontest.World) { w.IdleSeconds, w.HoldTime = 1, 2500*time.Millisecond })
	askForSet(w, "set")
	a.Next(wire.TypeThaw)
	finish(a, d, 0)
	if end := recordedEnd(w); end.GetCause() == "Idle" {
		t.Errorf("the agent was ended because it was held: %v", end)
	}
}
