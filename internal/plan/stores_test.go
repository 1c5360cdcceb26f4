package plan

import (
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/history"
)

// TestRecordsThatAreLostForGoodAreToldOnce: in a condition of their own for as
// long as the history has the gap, and as a transition when it becomes known.
func TestRecordsThatAreLostForGoodAreToldOnce(t *testing.T) {
	s := running(t)
	told := func() (n int) {
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
	c := s.wantCondition(v1alpha1.TaskHistoryComplete)
	if c.Status != metav1.ConditionFalse || c.Reason != v1alpha1.ReasonHistoryGap || !strings.HasPrefix(c.Message, "29 records") {
		t.Errorf("%+v", c)
	}
	if told() != 1 || s.status().LostRecords != 29 {
		t.Errorf("told of %d times, %d records", told(), s.status().LostRecords)
	}
	if c := meta.FindStatusCondition(s.status().Conditions, v1alpha1.TaskHistoryRecorded); c != nil && c.Status != metav1.ConditionTrue {
		t.Errorf("a gap of the past is a trouble of now: %+v", c)
	}
	writes := s.writes
	s.o.History.Known = false
	s.after(time.Minute).step()
	s.o.History.Known = true
	if s.after(time.Minute).step(); s.writes != writes || told() != 1 {
		t.Errorf("%d more writes, told of %d times", s.writes-writes, told())
	}
	s.o.History.State.LostRecords = 30
	if s.after(time.Minute).step(); told() != 2 {
		t.Errorf("told of %d times", told())
	}
	s.o.RecordProblem = "no route to host"
	if c := s.step().wantCondition(v1alpha1.TaskHistoryRecorded); c.Reason != v1alpha1.ReasonNotRecorded {
		t.Errorf("the gap hides a trouble of now: %+v", c)
	}
}

// TestLeftOutOutputIsToldAfterTheTaskTooIsOver: its number is a sum, which alone
// causes no write.
func TestLeftOutOutputIsToldAfterTheTaskTooIsOver(t *testing.T) {
	s := running(t)
	s.o.History.State.LeftOutRecords = 1
	s.after(time.Minute).step()
	writes := s.writes
	for range 20 {
		s.o.History.State.LeftOutRecords++
		s.after(time.Second).step()
	}
	if s.writes != writes {
		t.Errorf("%d writes of the number alone", s.writes-writes)
	}
	s.record(v1alpha1.TriggerCompletion)
	s.agentExits(0)
	s.podFinishes()
	s.wantState(v1alpha1.ReasonCompleted)
	if c := s.wantCondition(v1alpha1.TaskHistoryComplete); c.Status != metav1.ConditionFalse || c.Reason != v1alpha1.ReasonHistoryLimitReached {
		t.Errorf("%+v", c)
	}
	if s.status().LeftOutRecords != 21 {
		t.Errorf("%d records left out", s.status().LeftOutRecords)
	}
}

// TestTheLatestCheckpointKeepsItsNameWhenTheHistoryStoreWentBack: its object is
// there, and none is made that would give it one.
func TestTheLatestCheckpointKeepsItsNameWhenTheHistoryStoreWentBack(t *testing.T) {
	s := running(t)
	s.record(v1alpha1.TriggerToolCalls)
	older := *s.o.History.State.Latest
	s.record(v1alpha1.TriggerToolCalls)
	s.after(time.Hour).step()
	s.o.History.State.Latest = &older
	s.after(time.Hour).step()
	if latest := s.status().LatestCheckpoint; latest.Number != older.Number || latest.Name != s.o.Task.Name+"-1" {
		t.Errorf("%+v", latest)
	}
}

// TestAnAgentThatItsDaemonEndedHasNotFailed: the daemon stands down, since the
// volume cannot be gone on with, or since a newer attempt has begun. The shim
// then kills the agent.
func TestAnAgentThatItsDaemonEndedHasNotFailed(t *testing.T) {
	for name, told := range map[string]func(*history.TaskState){
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
			told(&s.o.History.State)
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
