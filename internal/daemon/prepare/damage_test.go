package prepare_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/clew-dev/clew/internal/daemon/daemontest"
	"github.com/clew-dev/clew/internal/daemon/prepare"
	"github.com/clew-dev/clew/internal/daemonapi"
	daemonv1 "github.com/clew-dev/clew/internal/daemonapi/v1"
)

// TestAForkOfADamagedCheckpointSaysSo: it cannot be fetched, the server that is asked says why, and
// which checkpoint to start from instead.
func TestAForkOfADamagedCheckpointSaysSo(t *testing.T) {
	t.Parallel()
	source := three(t)
	second := checkpointRecord(source, 2)
	damageStored(t, source, second.GetTree())
	source.Server.Verify(func(number int64) *daemonv1.VerifyCheckpointResponse {
		return &daemonv1.VerifyCheckpointResponse{Verified: true, Damaged: number == 2, IntactBefore: 1}
	})
	fork := source.Fork("fork", daemonapi.Source{TaskUID: source.UID, Checkpoint: 2, Commit: second.GetCommit()})
	r := prepare.Run(t.Context(), fork.PrepareConfig(1, nil))
	expect(t, "reason", r.Reason, "CheckpointCorrupted")
	expect(t, "permanent", r.Permanent, true)
	if !strings.Contains(r.Message, "checkpoint 2 is damaged in the gitstore") || !strings.Contains(r.Message, "checkpoint 1 is the nearest earlier one that is intact") {
		t.Errorf("it says %q", r.Message)
	}
	source.Server.Inspect(source.UID, func(k *daemontest.Task) {
		if !slices.Equal(k.Verified, []int64{2}) {
			t.Errorf("the server was asked to verify %v", k.Verified)
		}
	})
	fork = source.Fork("other", daemonapi.Source{TaskUID: source.UID, Checkpoint: 1, Commit: checkpointRecord(source, 1).GetCommit()})
	fork.Prepare(1, nil)
}

// TestTheCheckpointThatDriftIsComparedWithIsFetchedAgainIfItIsDamaged: every part of it. What was
// changed is found nevertheless.
func TestTheCheckpointThatDriftIsComparedWithIsFetchedAgainIfItIsDamaged(t *testing.T) {
	t.Parallel()
	source := three(t)
	clean := state(t, source).Clean
	for what, id := range map[string]string{"commit": clean.Code, "tree": clean.Tree, "state": clean.State} {
		w := source.Copy(t)
		damage(t, w, id)
		changed := w.Copy(t)
		changed.Write("a.txt", "by hand\n")
		expect(t, "reason, "+what, w.Prepare(2, nil).Reason, "Prepared")
		r := prepare.Run(t.Context(), changed.PrepareConfig(2, nil))
		expect(t, "reason with drift, "+what, r.Reason, "DriftDetected")
		expect(t, "files with drift, "+what, r.DriftedFiles, []string{"a.txt"})
	}
}
