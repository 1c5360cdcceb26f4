package v1alpha1

import (
	"k8s.io/apimachinery/pkg/api/meta"
)

// UndecidedDrift returns the files of a stopped task that a pod found changed and about which
// nobody has decided since; nil if none are known. What was changed later is found when the next
// pod starts.
func (s *TaskStatus) UndecidedDrift() *DriftStatus {
	n := len(s.Attempts)
	if n > 0 && s.Attempts[n-1].Outcome == "" || !meta.IsStatusConditionTrue(s.Conditions, TaskDrifted) {
		return nil
	}
	return s.driftedFiles()
}

// DiscardedDrift returns the changed files that the attempt which found them has discarded; nil if
// none were.
func (s *TaskStatus) DiscardedDrift() *DriftStatus {
	if c := meta.FindStatusCondition(s.Conditions, TaskDrifted); c == nil || c.Reason != EventDriftOverridden {
		return nil
	}
	return s.driftedFiles()
}

// driftedFiles returns the drift unless only the HEAD was moved.
func (s *TaskStatus) driftedFiles() *DriftStatus {
	if s.Drift == nil || s.Drift.FileCount == 0 {
		return nil
	}
	return s.Drift
}

// PromptLost reports whether the resume failed, so that the agent has not got its prompt.
func (s *TaskStatus) PromptLost(r *Resume) bool {
	ended := s.Resume
	return r != nil && ended != nil && r.ID == ended.ID && r.Prompt != "" && ended.State == OperationFailed
}

// PromptKeptByDrift reports whether it was drift by which the resume failed.
func (s *TaskStatus) PromptKeptByDrift(r *Resume) bool {
	return s.PromptLost(r) && s.Resume.Reason == ReasonDriftDetected
}
