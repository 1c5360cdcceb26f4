package plan

import (
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/daemonapi"
)

// maxDrifted is how many drifted files the status lists.
const maxDrifted = 50

// reportSettledDrift reports what prepare found changed in a worktree that it has prepared:
// files that it has kept or restored, as it was told, and a HEAD that was moved, which is no
// more than a warning.
func (d *decision) reportSettledDrift(a *v1alpha1.Attempt, result daemonapi.PrepareResult) {
	reported := d.old.Drift != nil && d.old.Drift.Attempt == a.Number
	d.s.Drift = driftOf(a.Number, result)
	switch op := d.operation(a.Number); {
	case result.DriftCount > 0 && op != nil && op.OnDrift == v1alpha1.OnDriftOverride:
		d.setCondition(v1alpha1.TaskDrifted, metav1.ConditionFalse, v1alpha1.EventDriftOverridden, changedWhileStopped(result, "restored"))
	case result.DriftCount > 0 && op != nil:
		d.setCondition(v1alpha1.TaskDrifted, metav1.ConditionFalse, v1alpha1.EventDriftPreserved, changedWhileStopped(result, "kept"))
	case result.DriftCount > 0 && reported: // the operation is over
	case result.DriftCount > 0: // the spec has another operation by now
		d.setCondition(v1alpha1.TaskDrifted, metav1.ConditionFalse, v1alpha1.ReasonNoDrift, changedWhileStopped(result, "kept or restored, as the operation asked"))
	case result.MovedHead != nil && result.DriftCount == 0:
		d.setCondition(v1alpha1.TaskDrifted, metav1.ConditionFalse, v1alpha1.ReasonHeadMoved, statusText(result.MovedHead.String()+"; the task continues with it"))
	case d.findCondition(v1alpha1.TaskDrifted) != nil:
		d.setCondition(v1alpha1.TaskDrifted, metav1.ConditionFalse, v1alpha1.ReasonNoDrift, "the worktree is as Clew last left it")
	}
}

// changedWhileStopped says what became of the files that drifted.
func changedWhileStopped(result daemonapi.PrepareResult, became string) string {
	if result.DriftCount == 1 {
		return "1 file that was changed while the task was not running was " + became
	}
	return fmt.Sprintf("%d files that were changed while the task was not running were %s", result.DriftCount, became)
}

// driftOf returns what prepare found changed; nil for nothing.
func driftOf(attempt int64, result daemonapi.PrepareResult) *v1alpha1.DriftStatus {
	if result.DriftCount == 0 && result.MovedHead == nil {
		return nil
	}
	s := &v1alpha1.DriftStatus{Attempt: attempt, Checkpoint: result.DriftFrom, FileCount: int64(result.DriftCount), Commit: result.DriftCommit}
	actions := map[byte]v1alpha1.FileAction{
		daemonapi.DriftAdded: v1alpha1.FileAdded, daemonapi.DriftModified: v1alpha1.FileModified, daemonapi.DriftDeleted: v1alpha1.FileDeleted,
	}
	for i, path := range result.DriftedFiles[:min(len(result.DriftedFiles), maxDrifted)] {
		f := v1alpha1.ChangedFile{Path: path}
		if i < len(result.DriftedActions) {
			f.Action = actions[result.DriftedActions[i]]
		}
		s.Files = append(s.Files, f)
	}
	if m := result.MovedHead; m != nil {
		s.ExpectedHead = &v1alpha1.HeadStatus{Branch: m.FromBranch, Commit: m.FromCommit}
		s.Head = &v1alpha1.HeadStatus{Branch: m.Branch, Commit: m.Commit}
	}
	return s
}
