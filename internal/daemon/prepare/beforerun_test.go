package prepare_test

import (
	"testing"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/daemon/daemontest"
	"github.com/clew-dev/clew/internal/daemon/prepare"
	"github.com/clew-dev/clew/internal/daemonapi"
	daemonv1 "github.com/clew-dev/clew/internal/daemonapi/v1"
)

// TestACheckpointBeforeEachRun: a run that ended with a checkpoint needs no other before the next.
func TestACheckpointBeforeEachRun(t *testing.T) {
	t.Parallel()
	w := daemontest.NewWorld(t, files)
	w.Agent, w.Policy.BeforeRun = v1alpha1.AgentClaudeCode, true
	w.Prepare(1, nil)
	expect(t, "checkpoints before the first run", state(t, w).LastNumber, 1)
	play(w, 1, call(1), result(1), sessionSaved, endsCleanly)
	expectCheckpoint(t, checkpointRecord(w, 1), &daemonv1.CheckpointRecord{Number: 1, Trigger: "BeforeRun", Durable: true})
	w.Prepare(2, nil)
	expect(t, "checkpoints before a run that follows one that ended", state(t, w).LastNumber, 2)

	play(w, 2, call(2), result(2)) // and is killed
	w.Prepare(3, nil)
	expect(t, "checkpoints after a kill", state(t, w).LastNumber, 3)
	expect(t, "what the killed run left", w.Read("step"), "2")

	w.Prepare(4, rewindTo(1, "Both", "Discard"))
	expect(t, "the file, before the first run", w.Read("step"), "")
	expect(t, "conversation", w.Lines(), []string{"user Do it."})
	expectCheckpoint(t, latest(w), &daemonv1.CheckpointRecord{Number: 5, Trigger: "Rewound", Durable: true})
	expect(t, "message of checkpoint 3", checkpointRecord(w, 3).GetMessage(), "Before the run of attempt 3")
}

// TestAForksOwnFirstCheckpoint: that of its source is none of its own.
func TestAForksOwnFirstCheckpoint(t *testing.T) {
	t.Parallel()
	source := three(t)
	w := source.Fork("fork", daemonapi.Source{TaskUID: source.UID, Checkpoint: 2, Commit: checkpointRecord(source, 2).GetCommit(), IncludeConversation: true, Position: 5})
	w.Policy.BeforeRun = true
	w.Prepare(1, nil)
	expect(t, "checkpoints", state(t, w).LastNumber, 1)
}

// TestOneCheckpointBeforeARunHoweverOftenItIsKilled: and none for a pod that only prepares.
func TestOneCheckpointBeforeARunHoweverOftenItIsKilled(t *testing.T) {
	t.Parallel()
	for at := 1; ; at++ {
		w := daemontest.NewWorld(t, files)
		w.Policy.BeforeRun = true
		where, done := prepareCrashing(t, w, 1, nil, &crashing{at: at})
		w.Prepare(1, nil)
		expect(t, "checkpoints, killed "+where, state(t, w).LastNumber, 1)
		expect(t, "conversation, killed "+where, w.Lines(), []string{"user Do it."})
		if done {
			break
		}
	}
	w := daemontest.NewWorld(t, files)
	w.Policy.BeforeRun = true
	cfg := w.PrepareConfig(1, nil)
	cfg.Pod.PrepareOnly = true
	expect(t, "reason", prepare.Run(t.Context(), cfg).Reason, "Prepared")
	expect(t, "checkpoints of a pod that only prepares", state(t, w).LastNumber, 0)
}
