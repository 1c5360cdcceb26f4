package plan

import (
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/history"
)

// TestLostRecordsAreReportedOnce: in a condition of their own for as long as the history
// has the gap, and as a transition when it becomes known.
func TestLostRecordsAreReportedOnce(t *testing.T) {
	s := running(t)
	entries := func() (n int) {
		for _, e := range s.status().History {
			if e.Reason == v1alpha1.EventHistoryGap {
				n++
			}
		}
		return n
	}
	s.o.History.State.LostRecords = 29
	s.after(time.Second).step()
	s.recorded()
	s.after(time.Minute).step()
	s.wantStatus(v1alpha1.TaskHistoryComplete, metav1.ConditionFalse, v1alpha1.ReasonHistoryGap, "29 records")
	if entries() != 1 || s.status().LostRecords != 29 {
		t.Errorf("%d entries, want 1; %d lost records, want 29", entries(), s.status().LostRecords)
	}
	if c := meta.FindStatusCondition(s.status().Conditions, v1alpha1.TaskHistoryRecorded); c != nil && c.Status != metav1.ConditionTrue {
		t.Errorf("a past gap is reported as a current problem: %+v", c)
	}
	writes := s.writes
	s.o.History.Known = false
	s.after(time.Minute).step()
	s.o.History.Known = true
	if s.after(time.Minute).step(); s.writes != writes || entries() != 1 {
		t.Errorf("%d more writes, and %d entries", s.writes-writes, entries())
	}
	s.o.History.State.LostRecords = 30
	if s.after(time.Minute).step(); entries() != 2 {
		t.Errorf("%d entries about the gap", entries())
	}
	s.o.RecordProblem = "no route to host"
	if c := s.step().wantCondition(v1alpha1.TaskHistoryRecorded); c.Reason != v1alpha1.ReasonNotRecorded {
		t.Errorf("the gap hides a current problem: %+v", c)
	}
}

// TestLeftOutOutputIsReportedAfterTheTaskHasEnded: its number is a total, which causes no
// write by itself.
func TestLeftOutOutputIsReportedAfterTheTaskHasEnded(t *testing.T) {
	s := running(t)
	s.o.History.State.LeftOutRecords = 1
	s.after(time.Minute).step()
	writes := s.writes
	for range 20 {
		s.o.History.State.LeftOutRecords++
		s.after(time.Second).step()
	}
	if s.writes != writes {
		t.Errorf("the number alone caused %d writes", s.writes-writes)
	}
	s.record(v1alpha1.TriggerCompletion)
	s.agentExits(0)
	s.podFinishes()
	s.wantState(v1alpha1.ReasonCompleted)
	if c := s.wantCondition(v1alpha1.TaskHistoryComplete); c.Status != metav1.ConditionFalse || c.Reason != v1alpha1.ReasonHistoryLimitReached {
		t.Errorf("the condition is %+v", c)
	}
	if s.status().LeftOutRecords != 21 {
		t.Errorf("%d records are reported as left out", s.status().LeftOutRecords)
	}
}

// TestTheLatestCheckpointKeepsItsNameWhenTheHistoryStoreWentBack: its object exists, and
// no new one is created that would set the name.
func TestTheLatestCheckpointKeepsItsNameWhenTheHistoryStoreWentBack(t *testing.T) {
	s := running(t)
	s.o.History.State.Attempt = 1
	s.record(v1alpha1.TriggerToolCalls)
	older := *s.o.History.State.Latest
	s.record(v1alpha1.TriggerToolCalls)
	s.o.History.State.LastSequence = 9
	s.after(time.Hour).step()
	s.o.History.State.Latest, s.o.History.State.LastSequence = &older, 12 // what the volume lacks too is a gap
	s.after(time.Hour).step()
	if latest := s.status().LatestCheckpoint; latest.Number != older.Number || latest.Name != s.o.Task.Name+"-1" {
		t.Errorf("the latest checkpoint is %+v", latest)
	}
}

// TestAnAgentThatItsDaemonEndedHasNotFailed: the daemon gives up, because the volume
// cannot be used any further or a newer attempt has begun. The shim then kills the agent.
func TestAnAgentThatItsDaemonEndedHasNotFailed(t *testing.T) {
	for name, report := range map[string]func(*history.TaskState){
		"for the volume": func(state *history.TaskState) {
			state.Problem = &history.Problem{Reason: v1alpha1.ReasonVolumeOutdated, Message: "the next attempt restores the workspace"}
		},
		"for an attempt that the gitstore alone has seen": func(state *history.TaskState) {
			state.Problem = &history.Problem{Reason: v1alpha1.ReasonFenced, Message: "attempt 7 has been seen"}
		},
		"for a newer attempt": func(state *history.TaskState) { state.Attempt = 5 },
	} {
		t.Run(name, func(t *testing.T) {
			s := running(t)
			s.o.Task.Spec.BackoffLimit = new(int32)
			s.o.History.State.Attempt = 1
			report(&s.o.History.State)
			s.agentExits(137)
			s.podFinishes()
			s.after(time.Minute).step()
			if s.status().Failures != 0 {
				t.Error("it counts as a failure of the agent")
			}
			s.wantOutcomes(v1alpha1.AttemptPodLost, "")
		})
	}
}

// TestARewindToAMessageWaitsForAHistoryThatIsBehind: the store was restored from an
// older copy, and the daemon has yet to send again what it lost.
func TestARewindToAMessageWaitsForAHistoryThatIsBehind(t *testing.T) {
	there := history.Resolved{Asked: 8, Position: history.Position{Position: 8}, AfterSequence: 11,
		Checkpoint: &history.Checkpoint{Number: 1, Commit: "c1", Position: history.Position{Position: 2}}}
	behind := func(t *testing.T) *scene {
		s := running(t)
		s.o.History.State.LastSequence, s.o.History.State.Attempt = 20, 1
		s.record(v1alpha1.TriggerToolCalls)
		s.after(time.Minute).step()
		s.o.History.State.LastSequence = 5
		s.o.RewindPosition = RewindPosition{Known: true} // the older copy has no such message
		s.rewindTo("back", v1alpha1.RewindConversation, toMessage(8)).step()
		if r := s.status().Rewind; r.State != v1alpha1.OperationPending || r.Reason != v1alpha1.ReasonHistoryStoreWentBack {
			t.Fatalf("status.rewind is %+v", r)
		}
		s.o.RewindPosition.Found = &there
		if r := s.after(time.Minute).step().status().Rewind; r.State != v1alpha1.OperationPending {
			t.Fatalf("status.rewind is %+v", r)
		}
		return s
	}
	t.Run("until it has caught up", func(t *testing.T) {
		s := behind(t)
		s.o.History.State.LastSequence = 20
		r := s.after(time.Minute).step().status().Rewind
		s.wantOperation(r, r.ID, v1alpha1.OperationInProgress, "")
		if r.ToPosition != 8 || r.ToSequence != 11 {
			t.Fatalf("the rewind goes to message %d, want 8, and sequence %d, want 11", r.ToPosition, r.ToSequence)
		}
	})
	t.Run("until another pod has sent what it has", func(t *testing.T) {
		s := behind(t)
		s.podGone()
		s.after(time.Minute).step()
		if r := s.status().Rewind; r.State != v1alpha1.OperationPending {
			t.Fatalf("status.rewind is %+v", r)
		}
		s.isPrepared()
		if r := s.after(time.Minute).step().status().Rewind; r.State != v1alpha1.OperationPending {
			t.Fatalf("status.rewind is %+v", r)
		}
		s.o.History.State.Attempt, s.o.History.State.LastSequence = 2, 21 // a gap up to 20
		s.agentRuns()
		if r := s.after(time.Minute).step().status().Rewind; r.State != v1alpha1.OperationInProgress {
			t.Fatalf("status.rewind is %+v", r)
		}
		if s.status().RecordSequence != 21 {
			t.Errorf("the record sequence is %d", s.status().RecordSequence)
		}
	})
}
