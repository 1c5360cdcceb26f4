package prepare_test

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/clew-dev/clew/internal/daemon/daemontest"
	"github.com/clew-dev/clew/internal/daemonapi"
	daemonv1 "github.com/clew-dev/clew/internal/daemonapi/v1"
)

// toFloor rewinds the conversation to a position older than every checkpoint.
func toFloor(position int64) *daemonapi.Operation { return toPosition(position, 0, 0) }

// callTool makes one call that writes a file, without a checkpoint after it.
func callTool(w *daemontest.World, a *daemontest.Shim, id, file, text string) {
	w.T.Helper()
	w.Write(file, text)
	home(w, id)
	a.Call(id)
	a.Recorded()
}

// forked is a fork of the first of three checkpoints, at message 3, that has another
// prompt, made two calls, and has a checkpoint at its end.
func forked(t *testing.T) *daemontest.World {
	t.Helper()
	source := three(t)
	w := source.Fork("fork", daemonapi.Source{TaskUID: source.UID, Checkpoint: 1,
		Commit: checkpointRecord(source, 1).GetCommit(), IncludeConversation: true, Position: 3})
	w.Prompt, w.Policy.EveryToolCalls = "Do it another way.", 0
	w.Prepare(1, nil)
	attempt(w, 1, func(a *daemontest.Shim) {
		callTool(w, a, "4", "f", "f\n")
		callTool(w, a, "5", "g", "g\n")
	})
	if n := latest(w).GetNumber(); n != 1 {
		t.Fatalf("the fork has %d checkpoints", n)
	}
	return w
}

var forkLines = append(slices.Clone(callsOfThree[:3]), "user Do it another way.", "call 4", "result 4", "call 5", "result 5")

// TestRewindToBeforeAnyCheckpoint: the agent's state is deleted, the conversation moves to
// the position, the files stay, and all of it can be undone.
func TestRewindToBeforeAnyCheckpoint(t *testing.T) {
	t.Parallel()
	w := three(t)
	before, op := w.Tree(), toFloor(1)
	want := daemonapi.PrepareResult{Reason: "Prepared", OperationKind: "Rewind", Operation: op.ID, FromCheckpoint: 4, ToPosition: 1}
	for n := int64(2); n < 4; n++ {
		expect(t, "result", w.Prepare(n, op), want)
		expect(t, "conversation", w.Lines(), callsOfThree[:1])
		expect(t, "what the agent finds", strings.Count(w.Conversation(), "\n"), 1)
		expect(t, "home", readHome(w), "")
		expect(t, "tree", w.Tree(), before)
	}
	expectCheckpoint(t, latest(w), &daemonv1.CheckpointRecord{Number: 5, Trigger: "Rewound", Durable: true})
	// The server remembers what the volume has lost.
	w.LoseVolume()
	want.FromCheckpoint, want.Restored = 0, true
	expect(t, "result", w.Prepare(4, op), want)
	expect(t, "home", readHome(w), "")
	expect(t, "tree", w.Tree(), before)
	w.Prepare(5, rewindTo(4, "Both", "Discard"))
	expect(t, "tree", w.Tree(), before)
	expect(t, "home", readHome(w), "3")
	expect(t, "conversation", w.Lines(), callsOfThree)
}

// TestRewindToBeforeTheFirstCheckpointEver: a killed agent that has no checkpoint gets one
// first.
func TestRewindToBeforeTheFirstCheckpointEver(t *testing.T) {
	t.Parallel()
	w := daemontest.NewWorld(t, files)
	w.Prepare(1, nil)
	d := w.Start(1)
	a := w.Dial("s1")
	callTool(w, a, "1", "one.txt", "1\n")
	killed := w.CopyVolume()
	r := killed.Prepare(2, toFloor(1))
	expect(t, "the checkpoint before the rewind", r.FromCheckpoint, 1)
	expect(t, "the target", r.ToCheckpoint, 0)
	expect(t, "trigger of checkpoint 1", checkpointRecord(killed, 1).GetTrigger(), "PreRewind")
	expect(t, "trigger of checkpoint 2", checkpointRecord(killed, 2).GetTrigger(), "Rewound")
	expect(t, "message", checkpointRecord(killed, 1).GetMessage(), "Before the rewind to message 1")
	expect(t, "home", readHome(killed), "")
	expect(t, "one.txt", killed.Read("one.txt"), "1\n")
	expect(t, "conversation", killed.Lines(), callsOfThree[:1])
	killed.Prepare(3, rewindTo(1, "Both", "Discard"))
	expect(t, "home", readHome(killed), "1")
	expect(t, "conversation", killed.Lines(), callsOfThree[:3])
	d.End()
}

// TestOnlyTheConversationGoesToBeforeAnyCheckpoint: a rewind of files, or to a position
// that does not exist, changes nothing.
func TestOnlyTheConversationGoesToBeforeAnyCheckpoint(t *testing.T) {
	t.Parallel()
	w := three(t)
	for _, bad := range []*daemonapi.Operation{toFloor(0), toFloor(8), rewindTo(0, "Both", "Discard"), rewindTo(0, "Code", "Discard"), rewindTo(7, "Both", "Discard")} {
		reason := "CheckpointNotFound"
		if bad.Position == 8 {
			reason = "PrepareFailed"
		}
		expectFailed(t, w.Prepare(2, bad), bad.ID, reason)
	}
	expect(t, "home", readHome(w), "3")
	expect(t, "conversation", w.Lines(), callsOfThree)
}

// TestAForkGoesBackToWhatItBeganWith: the source's state, as long as the position is not
// older than that and the state is available.
func TestAForkGoesBackToWhatItBeganWith(t *testing.T) {
	t.Parallel()
	arranged := forked(t)
	lost := func(t *testing.T, w *daemontest.World) {
		for _, kind := range []string{"code", "state"} {
			ref := "refs/clew/" + w.Source.TaskUID + "/" + kind + "/1"
			w.Git.Run(t, w.Git.Dir+"/store.git", "update-ref", "-d", ref)
			w.Git.Run(t, w.Root+"/clew/git", "update-ref", "-d", ref)
		}
	}
	tests := []struct {
		name     string
		position int64
		arrange  func(*testing.T, *daemontest.World)
		home     string
	}{
		{"where it began", 4, nil, "1"},
		{"where the other task stood", 3, nil, "1"},
		{"later", 6, nil, "1"},
		{"before that", 1, nil, ""},
		{"from a new volume", 4, func(t *testing.T, w *daemontest.World) { w.LoseVolume() }, "1"},
		{"when the other task is gone", 4, lost, ""},
		{"when nobody knows where the other task stood", 4, func(_ *testing.T, w *daemontest.World) { w.Source.Position = 0 }, ""},
		{"without the conversation", 4, func(_ *testing.T, w *daemontest.World) { w.Source.IncludeConversation = false }, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			w := arranged.Copy(t)
			source := *w.Source
			w.Source = &source
			if tt.arrange != nil {
				tt.arrange(t, w)
			}
			r := w.Prepare(2, toFloor(tt.position))
			if r.ToPosition != tt.position || r.ToCheckpoint != 0 {
				t.Fatalf("the rewind went to position %d and checkpoint %d, want %d and none", r.ToPosition, r.ToCheckpoint, tt.position)
			}
			expect(t, "home", readHome(w), tt.home)
			expect(t, "conversation", w.Lines(), forkLines[:tt.position])
			expect(t, "g", w.Read("g"), "g\n")
		})
	}
}

// TestOnlyWhatACheckpointHoldsIsTakenAway: credentials are not deleted.
func TestOnlyWhatACheckpointHoldsIsTakenAway(t *testing.T) {
	t.Parallel()
	w := begun(t, "ClaudeCode", endsCleanly)
	credentials := w.Root + "/home/.claude/.credentials.json"
	if err := os.WriteFile(credentials, []byte("{}"), 0o600); err != nil {
		t.Fatal(err)
	}
	w.Prepare(2, toFloor(1))
	name, _ := sessionFile["ClaudeCode"](nil)
	if _, err := os.Stat(w.Root + "/home/" + name); !os.IsNotExist(err) {
		t.Fatalf("the session is still there: %v", err)
	}
	if _, err := os.Stat(credentials); err != nil {
		t.Fatal(err)
	}
}
