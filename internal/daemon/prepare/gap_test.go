package prepare_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"

	"github.com/clew-dev/clew/internal/daemon/daemontest"
	"github.com/clew-dev/clew/internal/daemonapi"
	daemonv1 "github.com/clew-dev/clew/internal/daemonapi/v1"
)

// chat records so much that the volume drops everything before it.
func chat(w *daemontest.World, a *daemontest.Shim) {
	w.T.Helper()
	for n := range 120 {
		a.Say(fmt.Sprintf(`{"type":"message","role":"assistant","text":"%d %s"}`, n, strings.Repeat("x", 60_000)))
	}
	a.Recorded()
	w.Server.Until(w.T, "the server has what was said", w.UID, func(k *daemontest.Task) bool {
		lines := k.Lines()
		return strings.HasPrefix(lines[len(lines)-1], "assistant 119 ")
	})
}

// briefly is the conversation without what chat recorded, and without gaps.
func briefly(w *daemontest.World) []string {
	return slices.DeleteFunc(w.Lines(), func(line string) bool { return len(line) > 1000 || strings.HasPrefix(line, "system gap of") })
}

// known returns the numbers of the checkpoints that the server knows.
func known(w *daemontest.World) (numbers []int64) {
	w.Server.Inspect(w.UID, func(k *daemontest.Task) { numbers = slices.Sorted(maps.Keys(k.Checkpoints)) })
	return numbers
}

func lost(w *daemontest.World) (n int64) {
	w.Server.Inspect(w.UID, func(k *daemontest.Task) { n = k.Lost })
	return n
}

// TestARewindAmongLostRecordsIsKnown: the history store goes back to before a rewind, which
// is outside the margin.
func TestARewindAmongLostRecordsIsKnown(t *testing.T) {
	t.Parallel()
	w := three(t)
	w.Margin = daemonapi.SpoolMargin{Bytes: 1, Seconds: 1}
	var before int64
	w.Server.Inspect(w.UID, func(k *daemontest.Task) { before = k.Last() })
	w.Prepare(2, rewindTo(1, "Both", "Discard"))
	attempt(w, 2, func(a *daemontest.Shim) {
		step(w, a, "4", "four", "4\n")
		chat(w, a)
		step(w, a, "5", "five", "5\n")
	})
	all := known(w)
	w.Server.RollBack(w.UID, before)
	w.Prepare(3, nil)
	if lost(w) == 0 {
		t.Fatal("nothing was lost: the test is about a loss")
	}
	expect(t, "conversation", briefly(w), append(slices.Clone(callsOfThree[:3]), "call 5", "result 5"))
	expect(t, "checkpoints", known(w), all)
	// An operation from before the loss names a position that no longer exists.
	rewind := rewindTo(all[len(all)-3], "Both", "Discard")
	rewind.CheckpointPosition = 1000
	expect(t, "position", w.Prepare(4, rewind).ToPosition, int64(len(w.Lines())))
}

// TestARestoredVolumeKnowsWhereItStandsBehindALoss: its spool has no record from before the
// loss.
func TestARestoredVolumeKnowsWhereItStandsBehindALoss(t *testing.T) {
	t.Parallel()
	w := three(t)
	w.LoseVolume()
	w.Prepare(2, nil)
	attempt(w, 2, func(a *daemontest.Shim) { step(w, a, "4", "four", "4\n") })
	w.Server.RollBack(w.UID, 3)
	w.Prepare(3, nil)
	if lost(w) == 0 {
		t.Fatal("nothing was lost: the test is about a loss")
	}
	w.Server.Inspect(w.UID, func(k *daemontest.Task) {
		for _, m := range k.Moves {
			if m.GetRefused() != "" {
				t.Errorf("%s was refused: %s", m.GetOperationId(), m.GetRefused())
			}
		}
	})
	expect(t, "conversation", briefly(w), []string{"user Do it.", "call 1", "result 1", "call 4", "result 4"})
}

// TestARewindToAMessageLeadsToItBehindALoss: the message has another position there.
func TestARewindToAMessageLeadsToItBehindALoss(t *testing.T) {
	t.Parallel()
	w := three(t)
	w.LoseVolume()
	w.Prepare(2, nil) // its spool begins here
	attempt(w, 2, func(a *daemontest.Shim) {
		step(w, a, "4", "four", "4\n")
		step(w, a, "5", "five", "5\n")
	})
	op := rewindTo(latest(w).GetNumber()-2, "Conversation", "Discard")
	w.Server.Inspect(w.UID, func(k *daemontest.Task) {
		op.Position = int64(slices.Index(k.Lines(), "result 4")) + 1
		for _, r := range k.Records {
			if r.GetMessage().GetToolResult().GetCallId() == "4" {
				op.AfterSequence = r.GetSequence()
			}
		}
	})
	w.Prepare(3, op)
	if lines := w.Lines(); lines[len(lines)-1] != "result 4" {
		t.Fatalf("the conversation does not end with the last result: %q", lines)
	}
	w.Server.RollBack(w.UID, 1)
	w.Prepare(4, nil)
	expect(t, "conversation", briefly(w), []string{"user Do it.", "call 4", "result 4"})
}

// TestCheckpointsThatOnlyTheGitstoreHasAreRecordedAgain: they are recorded in their original
// places. The volume on which they were taken is lost, and the history store has gone back
// since.
func TestCheckpointsThatOnlyTheGitstoreHasAreRecordedAgain(t *testing.T) {
	t.Parallel()
	w := three(t)
	w.LoseVolume()
	w.Prepare(2, nil)
	attempt(w, 2, func(a *daemontest.Shim) { step(w, a, "4", "four", "4\n") })
	all, first, second := known(w), checkpointRecord(w, 1), checkpointRecord(w, 2)
	w.Server.RollBack(w.UID, 3)
	w.Prepare(3, nil)
	if lost(w) == 0 {
		t.Fatal("nothing was lost: the test is about a loss")
	}
	expect(t, "checkpoints", known(w), all)
	again := checkpointRecord(w, 1)
	if !again.GetDurable() {
		t.Error("the gitstore has checkpoint 1, and it does not count as durable")
	}
	expect(t, "checkpoint", saidOf(again), saidOf(first))
	expect(t, "reason", w.Prepare(4, rewindTo(2, "Both", "Discard")).Reason, "Prepared")
	expect(t, "conversation", briefly(w), []string{"user Do it.", "call 1", "result 1"})
	expect(t, "a file of checkpoint 2", w.Read("a.txt"), "changed by 2\n")
	expect(t, "commit", checkpointRecord(w, 2).GetCommit(), second.GetCommit())
}

// saidOf returns what the history knows of a checkpoint that can be restored from the
// gitstore: everything except the list of changed files, whether the agent was frozen until
// the end, which is known only when all is written, and the record's sequence.
func saidOf(c *daemonv1.CheckpointRecord) string {
	c = proto.CloneOf(c)
	c.Changes, c.Consistency, c.FrozenMilliseconds, c.AfterSequence, c.Durable = nil, "", 0, 0, false
	return prototext.Format(c)
}

// TestCheckpointIsRecordedAgainWithTheAttemptThatTookIt: recorded as this attempt's, the
// last checkpoint of a completed attempt would say that the running agent has completed.
func TestCheckpointIsRecordedAgainWithTheAttemptThatTookIt(t *testing.T) {
	t.Parallel()
	w := three(t)
	completed := latest(w)
	w.LoseVolume()
	w.Server.RollBack(w.UID, 1)
	w.Prepare(2, nil)
	told := map[int64]int64{}
	w.Server.Inspect(w.UID, func(k *daemontest.Task) {
		for _, r := range k.Records {
			if c := r.GetCheckpoint(); c.GetTrigger() != "" {
				told[c.GetNumber()] = r.GetAttempt()
			}
		}
	})
	for n := range completed.GetNumber() {
		expect(t, fmt.Sprintf("attempt of checkpoint %d", n+1), told[n+1], 1)
	}
	expect(t, "trigger of the last one", checkpointRecord(w, completed.GetNumber()).GetTrigger(), "Completion")
}
