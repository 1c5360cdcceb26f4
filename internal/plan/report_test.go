package plan

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/history"
)

func TestTransitionsWaitWhenTooManyAreUnrecorded(t *testing.T) {
	s := running(t)
	s.status().HistorySequence = maxUnrecorded
	s.podGone()
	s.wantOutcomes("")
	if c := s.wantCondition(v1alpha1.TaskHistoryRecorded); c.Reason != v1alpha1.ReasonHistoryFull {
		t.Errorf("the condition is %+v", c)
	}
	s.recorded()
	s.step()
	s.wantOutcomes(v1alpha1.AttemptPodLost, "")
}

func TestEntriesStayUntilTheyAreRecorded(t *testing.T) {
	s := running(t)
	for range 30 {
		s.after(time.Minute).podGone()
	}
	if n := len(s.status().History); n != 61 {
		t.Fatalf("%d entries; none is recorded, so none may be dropped", n)
	}
	s.recorded()
	s.after(time.Minute).podGone()
	if n := len(s.status().History); n != keepEntries {
		t.Errorf("%d entries are kept, want %d", n, keepEntries)
	}
	if got := Unrecorded(s.status(), 0); len(got) != 2 {
		t.Errorf("%d entries are unrecorded, want 2", len(got))
	}
}

func TestATaskAtRestReportsOnceThatItIsRecorded(t *testing.T) {
	s := completedTask(t)
	before := s.writes
	s.recorded()
	s.step()
	if s.status().RecordedSequence != s.status().HistorySequence || s.writes != before+1 {
		t.Errorf("recorded %d of %d in %d writes", s.status().RecordedSequence, s.status().HistorySequence, s.writes-before)
	}
	if c := s.wantCondition(v1alpha1.TaskHistoryRecorded); c.Status != metav1.ConditionTrue {
		t.Errorf("the condition is %+v", c)
	}
	s.after(time.Hour).step()
	if s.writes != before+1 {
		t.Error("it was written again")
	}
}

func TestOnlyATransitionOrACheckpointIsWorthAWrite(t *testing.T) {
	s := running(t)
	before := s.writes
	s.recorded()
	s.o.History.State.Totals = history.Totals{Messages: 100, ToolCalls: 50}
	s.after(time.Hour).step()
	if s.writes != before {
		t.Error("messages alone caused a write")
	}
	s.record(v1alpha1.TriggerToolCalls)
	s.step()
	if s.writes != before+1 {
		t.Errorf("a checkpoint took %d writes, want 1", s.writes-before)
	}
	if status := s.status(); status.MessageCount != 100 || status.RecordedSequence != 1 {
		t.Errorf("that write has %d messages, want 100, and recorded sequence %d, want 1", status.MessageCount, status.RecordedSequence)
	}
}

func TestManyCheckpointsAreReportedAtIntervals(t *testing.T) {
	s := running(t).after(time.Minute)
	s.record(v1alpha1.TriggerToolCalls)
	s.step()
	before := s.writes
	for range 20 {
		s.after(50 * time.Millisecond).record(v1alpha1.TriggerToolCalls)
		s.step()
	}
	if s.writes != before {
		t.Errorf("%d status writes within a second", s.writes-before)
	}
	s.after(s.plans[len(s.plans)-1].RequeueAfter).step()
	if r := s.plans[0].Checkpoints; r == nil || *r != (Range{After: 1, UpTo: 21}) {
		t.Errorf("checkpoints %+v", r)
	}
	if s.status().LatestCheckpoint.Number != 21 || s.status().CheckpointCount != 21 {
		t.Errorf("%d checkpoints are counted, and the latest is %+v", s.status().CheckpointCount, s.status().LatestCheckpoint)
	}
}

func TestRemainingObjectsAreCreatedWithTheNextWrites(t *testing.T) {
	s := running(t).after(time.Minute)
	for range 120 {
		s.record(v1alpha1.TriggerToolCalls)
	}
	p := Decide(s.o, s.now)
	if r := p.Checkpoints; r == nil || *r != (Range{UpTo: 120}) {
		t.Fatalf("checkpoints %+v", r)
	}
	// The controller created some of them, and the newest.
	p.Status.CheckpointObjectsThrough = ptr.To[int64](50)
	s.carryOut(p)
	if s.status().LatestCheckpoint.Number != 120 {
		t.Errorf("the latest checkpoint is %+v", s.status().LatestCheckpoint)
	}
	p = Decide(s.o, s.now)
	if p.Acts() {
		t.Fatalf("the remaining objects are planned at once: %+v", p)
	}
	if after := p.RequeueAfter; after == 0 || after > s.o.Limits.RefreshEvery {
		t.Fatalf("the next decision follows after %v, want at most %v", after, s.o.Limits.RefreshEvery)
	}
	p = Decide(s.o, s.now.Add(p.RequeueAfter))
	if r := p.Checkpoints; r == nil || *r != (Range{After: 50, UpTo: 120}) {
		t.Fatalf("checkpoints %+v", r)
	}
	s.after(s.o.Limits.RefreshEvery).step()
	if s.status().CheckpointObjectsThrough != nil {
		t.Errorf("objects are left although all were created: %+v", s.status())
	}
}

func TestTheLastCheckpointIsReportedTogetherWithThePodsEnd(t *testing.T) {
	s := running(t).after(time.Minute)
	before := s.writes
	s.record(v1alpha1.TriggerCompletion)
	s.step()
	if s.writes != before {
		t.Error("the last checkpoint caused a write of its own")
	}
	s.after(time.Second).agentExits(0)
	if s.writes != before+1 {
		t.Errorf("%d writes", s.writes-before)
	}
}

func TestAnUnreachableStoreIsReportedUntilItIsBack(t *testing.T) {
	s := running(t)
	s.o.RecordProblem = "the history store cannot be reached"
	s.step()
	if c := s.wantCondition(v1alpha1.TaskHistoryRecorded); c.Status != metav1.ConditionFalse {
		t.Errorf("the condition is %+v", c)
	}
	s.wantState(v1alpha1.ReasonRunning)
	s.o.RecordProblem = ""
	s.recorded()
	s.step()
	if c := s.wantCondition(v1alpha1.TaskHistoryRecorded); c.Status != metav1.ConditionTrue {
		t.Errorf("the condition is %+v", c)
	}
}
