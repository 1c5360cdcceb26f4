package cli

import (
	"testing"

	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	historyv1 "github.com/clew-dev/clew/api/history/v1alpha1"
	"github.com/clew-dev/clew/api/v1alpha1"
)

// driftsInto gives a stopped task files that were found changed.
func (b *bench) driftsInto(task *v1alpha1.Task) {
	b.Helper()
	task.Status.Attempts = []v1alpha1.Attempt{{Number: 2, PodName: "b", Outcome: v1alpha1.AttemptBlocked, Reason: v1alpha1.ReasonDriftDetected}}
	task.Status.Drift = &v1alpha1.DriftStatus{Attempt: 2, Checkpoint: 3, FileCount: 7, Commit: "d0d0"}
	for _, path := range []string{"README.md", "a", "b", "c", "d", "e"} {
		task.Status.Drift.Files = append(task.Status.Drift.Files, v1alpha1.ChangedFile{Path: path, Action: v1alpha1.FileModified})
	}
	setDrifted(task, metav1.ConditionTrue, v1alpha1.ReasonDriftDetected)
	b.try(server.Client.Status().Update(b.ctx, task))
}

func setDrifted(task *v1alpha1.Task, status metav1.ConditionStatus, reason string) {
	apimeta.SetStatusCondition(&task.Status.Conditions, metav1.Condition{Type: v1alpha1.TaskDrifted, Status: status, Reason: reason})
}

// sevenFiles is how the files of driftsInto are named.
const sevenFiles = "7 files changed while the task was not running: README.md, a, b, c, d and 2 more"

// What is known to be discarded for good is said before somebody agrees to it, and afterwards.
func TestARewindSaysWhatDriftItDiscards(t *testing.T) {
	b := newBench(t)
	task := b.task("wanderer", v1alpha1.ReasonDriftDetected)
	b.driftsInto(task)
	b.checkpoint(task, 1)
	none := effect()
	none.Files.Totals, none.Files.Items = historyv1.DiffTotals{}, nil
	r := b.withHistory(map[string]any{"GET tasks/wanderer/diff/rewind": none})
	args := []string{"rewind", "wanderer", "--to", "1"}
	_, errOut, err := b.clew("", append(args, "--yes")...)
	wantError(t, err, "the rewind would fail, and is not requested: "+sevenFiles+"; keep the changes with --on-drift preserve, or discard them with --on-drift override")
	wantParts(t, "the preview", errOut, "has drifted         "+sevenFiles+": the rewind fails because of them")
	out, _ := b.must(append(args, "--dry-run=client", "--on-drift", "preserve")...)
	wantParts(t, "the preview", out, "keeps first         "+sevenFiles+", and whatever else its next pod finds (as a checkpoint of their own)\n  preserves           the current state as a checkpoint,")
	wantParts(t, "the query", r.query(), "onDrift=Preserve")
	if b.get(task); task.Spec.Rewind != nil {
		t.Fatalf("requested %+v", task.Spec.Rewind)
	}
	playManager(b, &v1alpha1.TaskList{}, func(t *v1alpha1.Task) bool {
		if t.Spec.Rewind == nil {
			return false
		}
		t.Status.Rewind = &v1alpha1.OperationStatus{ID: t.Spec.Rewind.ID, State: v1alpha1.OperationCompleted, Attempt: 3, FromCheckpoint: 3, ToCheckpoint: 1}
		t.Status.HandledOperations = []string{"Rewind/" + t.Spec.Rewind.ID}
		t.Status.Drift = &v1alpha1.DriftStatus{Attempt: 3, FileCount: 1, Files: []v1alpha1.ChangedFile{{Path: "new", Action: v1alpha1.FileAdded}}}
		setDrifted(t, metav1.ConditionFalse, v1alpha1.EventDriftOverridden)
		return true
	})
	out, errOut = b.must(append(args, "--yes", "--on-drift", "override")...)
	wantParts(t, "the preview", errOut, "discards            "+sevenFiles+", and whatever else its next pod finds (they are not kept, and undo does not bring them back)\n"+
		"  preserves           the current state, without what is discarded, as a checkpoint, and as branch")
	wantParts(t, "the preview", errOut, "  changes             no other file\n")
	wantText(t, "output", "task.clew.dev/wanderer rewound to checkpoint 1; discarded 1 file changed while the task was not running: new; "+
		"the previous state, without these changes, is kept as checkpoint 3\n", out)
	b.get(task)
	b.driftsInto(task)
	answer := effect()
	answer.UndoOf = "cli-abcdefgh"
	b.withHistory(map[string]any{"GET tasks/wanderer/diff/rewind": answer})
	_, errOut, err = b.clew("", "undo", "wanderer", "--yes")
	wantError(t, err, "the rewind would fail, and is not requested: "+sevenFiles)
	wantParts(t, "the preview", errOut, "has drifted")

	// Nobody has looked yet.
	fresh := b.task("fresh", v1alpha1.ReasonSuspended)
	b.checkpoint(fresh, 1)
	out, _ = b.must("rewind", "fresh", "--to", "1", "--dry-run=client", "--on-drift", "override")
	wantParts(t, "the preview", out, "files changed while the task was not running, if its next pod finds any (they are not kept,")
}

func TestAResumeSaysWhatDriftItDiscards(t *testing.T) {
	b := newBench(t)
	task := b.task("sleeper", v1alpha1.ReasonDriftDetected)
	b.driftsInto(task)
	out, _ := b.must("resume", "sleeper", "--dry-run=client", "--on-drift", "override")
	wantText(t, "output", "discards "+sevenFiles+", and whatever else its next pod finds (they are not kept, and undo does not bring them back)\ntask.clew.dev/sleeper resume requested (dry run)\n", out)
	playManager(b, &v1alpha1.TaskList{}, func(t *v1alpha1.Task) bool {
		if t.Spec.Resume == nil {
			return false
		}
		t.Status.Resume = &v1alpha1.OperationStatus{ID: t.Spec.Resume.ID, State: v1alpha1.OperationCompleted, Attempt: 3}
		t.Status.Drift = nil // the attempt that had discarded them was lost
		setDrifted(t, metav1.ConditionFalse, v1alpha1.ReasonNoDrift)
		setSucceeded(t, v1alpha1.ReasonRunning)
		return true
	})
	out, _ = b.must("resume", "sleeper", "--on-drift", "override", "--yes")
	wantText(t, "output", "task.clew.dev/sleeper resumed; discarded "+sevenFiles+"\n", out)
}
