package plan

import (
	"testing"

	"k8s.io/utils/ptr"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/daemonapi"
	"github.com/clew-dev/clew/internal/history"
)

func toNumber(n int64) v1alpha1.RewindTarget {
	return v1alpha1.RewindTarget{CheckpointNumber: ptr.To(n)}
}

// recorded is the store's answer about checkpoint 3, at message 6.
func recorded() RewindRecord {
	return RewindRecord{Known: true, Found: &history.Checkpoint{Number: 3, Commit: "c3", Position: history.Position{Branch: "main", Position: 6}}}
}

func TestARewindToACheckpointByItsNumber(t *testing.T) {
	for scope, position := range map[v1alpha1.RewindScope]int64{
		v1alpha1.RewindBoth: 6, v1alpha1.RewindConversation: 6, v1alpha1.RewindCode: 0,
	} {
		s := running(t)
		s.o.RewindRecord = recorded()
		s.rewindTo("back", scope, toNumber(3)).step()
		s.wantOperation(s.status().Rewind, "back", v1alpha1.OperationInProgress, "")
		s.wantResolved(v1alpha1.OperationStatus{ToCheckpoint: 3, ToCommit: "c3", CheckpointPosition: 6, ToPosition: position})
		s.o.RewindRecord = RewindRecord{} // it is resolved once
		s.podGone()
		s.wantTarget(daemonapi.Operation{Checkpoint: 3, Commit: "c3", CheckpointPosition: 6, Scope: scope})
		s.prepared(daemonapi.PrepareResult{Operation: "back", FromCheckpoint: 9, ToCheckpoint: 3, ToPosition: position})
		s.wantOperation(s.status().Rewind, "back", v1alpha1.OperationCompleted, "")
		s.wantMessage(s.status().Rewind.Message, "to checkpoint 3; checkpoint 9 holds the state before the rewind")
	}
}

func TestARewindToANumberThatCannotBeRestoredIsRefused(t *testing.T) {
	lost := recorded()
	lost.Found.Lost = true
	for name, c := range map[string]struct {
		answer  RewindRecord
		reason  string
		message string
	}{
		"no such checkpoint": {RewindRecord{Known: true}, v1alpha1.ReasonCheckpointNotFound, "the task has no checkpoint 3: name one"},
		"a lost checkpoint":  {lost, v1alpha1.ReasonInvalidState, "neither the gitstore nor the task's volume has checkpoint 3 any more"},
	} {
		t.Run(name, func(t *testing.T) {
			s := running(t)
			s.o.RewindRecord = c.answer
			s.rewindTo("back", v1alpha1.RewindBoth, toNumber(3)).step()
			s.wantOperation(s.status().Rewind, "back", v1alpha1.OperationRefused, c.reason)
			s.wantMessage(s.status().Rewind.Message, c.message)
			s.wantState(v1alpha1.ReasonRunning)
		})
	}
}

func TestARewindToANumberWaitsForTheHistoryStore(t *testing.T) {
	s := running(t)
	s.rewindTo("back", v1alpha1.RewindBoth, toNumber(3)).step()
	s.wantOperation(s.status().Rewind, "back", v1alpha1.OperationPending, v1alpha1.ReasonHistoryUnavailable)
	s.o.RewindRecord = recorded()
	s.step()
	s.wantOperation(s.status().Rewind, "back", v1alpha1.OperationInProgress, "")
}

func TestARewindThatMustNotStopTheAgent(t *testing.T) {
	refuse := func(s *scene) *scene {
		s.o.RewindRecord = recorded()
		return s.rewindTo("back", v1alpha1.RewindBoth, toNumber(3)).change(func(t *v1alpha1.Task) {
			t.Spec.Rewind.WhenRunning = v1alpha1.WhenRunningRefuse
		})
	}
	t.Run("is refused while it runs, and the agent continues", func(t *testing.T) {
		s := refuse(running(t))
		s.step()
		s.wantOperation(s.status().Rewind, "back", v1alpha1.OperationRefused, v1alpha1.ReasonInvalidOperation)
		s.wantMessage(s.status().Rewind.Message, "the task is running, and this rewind refuses running tasks")
		s.wantState(v1alpha1.ReasonRunning)
	})
	t.Run("is carried out when it does not run", func(t *testing.T) {
		s := refuse(completedTask(t))
		s.step()
		s.wantOperation(s.status().Rewind, "back", v1alpha1.OperationInProgress, "")
	})
}
