package plan

import (
	"testing"
	"time"

	"github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/daemonapi"
	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/testing/builders"
)

// atRest returns a scene whose agent has ended after three checkpoints.
func atRest(t *testing.T, code int32) *scene {
	t.Helper()
	s := running(t, builders.BackoffLimit(0))
	s.record(v1alpha1.TriggerToolCalls)
	s.record(v1alpha1.TriggerToolCalls)
	s.record(v1alpha1.TriggerFailure)
	s.o.History.State.LastSequence = 20
	if code == 0 {
		s.o.History.State.Latest.Trigger = string(v1alpha1.TriggerCompletion)
	}
	s.agentExits(code)
	s.podFinishes()
	s.o.Pods = nil
	s.recorded()
	s.after(time.Hour).step()
	s.wantState(map[bool]string{true: v1alpha1.ReasonCompleted, false: v1alpha1.ReasonAgentFailed}[code == 0])
	return s
}

// storeGoesBack puts the history store back to this number of checkpoints; 0 for an empty
// store.
func (s *scene) storeGoesBack(number int64) *scene {
	s.o.History.State = history.TaskState{CheckpointCount: number, LastSequence: map[int64]int64{0: 0, 1: 5, 3: 20}[number]}
	if number > 0 {
		s.o.History.State.Latest = &history.Checkpoint{Number: number, Attempt: 1, Trigger: string(v1alpha1.TriggerToolCalls), Time: s.now, Durable: true}
	}
	return s
}

// isPrepared makes prepare succeed in the newest pod.
func (s *scene) isPrepared() {
	s.Helper()
	s.prepared(daemonapi.PrepareResult{Reason: v1alpha1.ReasonWorkspacePrepared})
}

func complete(s *scene) *metav1.Condition {
	return meta.FindStatusCondition(s.status().Conditions, v1alpha1.TaskHistoryComplete)
}

// TestATaskAtRestReportsWhatTheHistoryStoreHasLost: it has no daemon to send it again.
func TestATaskAtRestReportsWhatTheHistoryStoreHasLost(t *testing.T) {
	for name, test := range map[string]struct {
		code   int32
		number int64
		says   string
		advice string
	}{
		"a part of it":                  {1, 1, "up to checkpoint 1 of 3", "resume the task"},
		"all of it":                     {1, 0, "none of this task's 3 checkpoints", "resume the task"},
		"a part of it, once it is done": {0, 1, "up to checkpoint 1 of 3", "resume the task with a prompt, or rewind it to its latest checkpoint"},
	} {
		t.Run(name, func(t *testing.T) {
			g := gomega.NewWithT(t)
			s := atRest(t, test.code)
			s.storeGoesBack(test.number).after(time.Minute).step()
			c := s.wantCondition(v1alpha1.TaskHistoryComplete)
			g.Expect(c.Status).To(gomega.Equal(metav1.ConditionFalse))
			g.Expect(c.Reason).To(gomega.Equal(v1alpha1.ReasonHistoryBehind))
			g.Expect(c.Message).To(gomega.And(gomega.ContainSubstring(test.says), gomega.ContainSubstring(test.advice)))
			g.Expect(s.status().LatestCheckpoint.Number).To(gomega.Equal(int64(3)), "the task has it")
			g.Expect(s.status().CheckpointCount).To(gomega.Equal(int64(3)))

			writes := s.writes
			s.after(time.Hour).step()
			s.o.History.Known = false
			s.after(time.Hour).step()
			g.Expect(complete(s).Reason).To(gomega.Equal(v1alpha1.ReasonHistoryBehind), "the store cannot be asked")
			s.o.History.Known = true
			s.after(time.Hour).step()
			g.Expect(s.writes).To(gomega.Equal(writes), "nothing new is written")

			// The next pod sends it again.
			if s.change(builders.Resume("r1")); test.code == 0 {
				s.rewind("r1", 3)
			}
			s.step()
			g.Expect(complete(s).Reason).To(gomega.Equal(v1alpha1.ReasonHistoryBehind), "nothing was sent yet")
			s.storeGoesBack(3)
			s.isPrepared()
			s.after(time.Second).step()
			g.Expect(complete(s)).To(gomega.BeNil())
		})
	}
}

// TestWhatTheVolumeDoesNotHaveEitherIsAGap: the volume was lost, or the records are older
// than those it keeps. The next pod reports their number.
func TestWhatTheVolumeDoesNotHaveEitherIsAGap(t *testing.T) {
	g := gomega.NewWithT(t)
	s := atRest(t, 1)
	s.o.Claim = nil
	s.storeGoesBack(1).after(time.Minute).step()
	g.Expect(s.wantCondition(v1alpha1.TaskHistoryComplete).Message).To(gomega.ContainSubstring("lost with the task's volume"))
	s.change(builders.Resume("r1")).step()
	s.isPrepared()
	s.agentRuns()
	s.after(time.Minute).step()
	g.Expect(s.wantCondition(v1alpha1.TaskHistoryComplete).Reason).To(gomega.Equal(v1alpha1.ReasonHistoryBehind), "nothing was sent yet")
	s.o.History.State.LastSequence, s.o.History.State.LostRecords = 21, 15
	s.after(time.Minute).step()
	c := s.wantCondition(v1alpha1.TaskHistoryComplete)
	g.Expect(c.Reason).To(gomega.Equal(v1alpha1.ReasonHistoryGap))
	g.Expect(c.Message).To(gomega.ContainSubstring("15 records of this task are permanently lost"))
	g.Expect(s.status().LatestCheckpoint.Number).To(gomega.Equal(int64(1)), "the store's word counts again")
	g.Expect(s.status().RecordSequence).To(gomega.Equal(int64(21)))
	g.Expect(s.entries(v1alpha1.EventHistoryGap)).To(gomega.HaveLen(1))
}

// A pod was prepared while the store had everything, or had been sent it. The pod's volume
// has what such a store lacks later.
func TestAStoreThatIsPutBackWhileAPodIsPreparedIsSentTheRestAgain(t *testing.T) {
	for name, test := range map[string]struct{ before, whilePrepared int64 }{
		"for the first time": {3, 1},
		"to nothing yet":     {3, 0},
		"for a second time":  {1, 1},
	} {
		t.Run(name, func(t *testing.T) {
			g := gomega.NewWithT(t)
			s := atRest(t, 1)
			s.o.History.State.Attempt = 1
			s.storeGoesBack(test.before).after(time.Minute).step()
			s.change(builders.Resume("r1")).step()
			s.storeGoesBack(test.whilePrepared).after(time.Minute).step()
			g.Expect(complete(s).Reason).To(gomega.Equal(v1alpha1.ReasonHistoryBehind))
			s.isPrepared()
			s.agentRuns()
			for range 3 {
				s.after(time.Minute).step()
				c := s.wantCondition(v1alpha1.TaskHistoryComplete)
				g.Expect(c.Reason).To(gomega.Equal(v1alpha1.ReasonHistoryBehind))
				g.Expect(c.Message).To(gomega.ContainSubstring("the task's pod resends what the store lacks"))
			}
			s.storeGoesBack(3).o.History.State.Attempt = 2
			s.after(time.Minute).step()
			g.Expect(complete(s)).To(gomega.BeNil(), "the run's daemon has sent it")
			g.Expect(s.status().UncountedLoss).To(gomega.BeNil())
			g.Expect(s.entries(v1alpha1.EventHistoryGap)).To(gomega.BeEmpty())
		})
	}
}

// The attempt's own records follow those that its volume had when it started.
func TestAStoreThatIsPutBackUnderAnAgentIsSentTheRestAgain(t *testing.T) {
	g := gomega.NewWithT(t)
	s := atRest(t, 1)
	s.change(builders.Resume("r1")).step()
	s.o.History.State.Attempt = 2
	s.isPrepared()
	s.agentRuns()
	s.record(v1alpha1.TriggerToolCalls)
	s.o.History.State.LastSequence = 30
	s.after(time.Minute).step()
	had := s.o.History.State
	s.storeGoesBack(1).after(time.Minute).step()
	g.Expect(s.wantCondition(v1alpha1.TaskHistoryComplete).Reason).To(gomega.Equal(v1alpha1.ReasonHistoryBehind))
	g.Expect(s.status().LatestCheckpoint.Number).To(gomega.Equal(int64(4)), "the task has it")
	writes := s.writes
	for range 2 {
		s.o.History.State.ActiveAt = s.now
		s.o.History.State.LastSequence++
		s.o.History.State.Latest.Number++
		s.after(time.Hour).step()
	}
	g.Expect(s.writes).To(gomega.Equal(writes), "nothing new is written")
	s.o.History.State = had
	s.after(time.Minute).step()
	g.Expect(complete(s)).To(gomega.BeNil())
	g.Expect(s.status().UncountedLoss).To(gomega.BeNil())
}

// TestAStoreThatLacksTheNewestRecordsIsBehind: the last record of a task at rest says
// that the gitstore has its last checkpoint.
func TestAStoreThatLacksTheNewestRecordsIsBehind(t *testing.T) {
	g := gomega.NewWithT(t)
	s := atRest(t, 0)
	s.o.History.State.Latest.Durable, s.o.History.State.LastSequence = false, 19
	s.after(time.Minute).step()
	c := s.wantCondition(v1alpha1.TaskHistoryComplete)
	g.Expect(c.Reason).To(gomega.Equal(v1alpha1.ReasonHistoryBehind))
	g.Expect(c.Message).To(gomega.ContainSubstring("lacks this task's newest records"))
	g.Expect(s.wantCondition(v1alpha1.TaskDurable).Status).To(gomega.Equal(metav1.ConditionTrue), "it is not on its way")
	s.o.History.State.Latest.Durable, s.o.History.State.LastSequence = true, 20
	s.after(time.Minute).step()
	g.Expect(complete(s)).To(gomega.BeNil())
}

// TestAStoreThatHasNoCheckpointIsNotBehindForEver: the task's volume was lost as well,
// and the attempt that found that out ended before it recorded a checkpoint and before the
// manager observed it.
func TestAStoreThatHasNoCheckpointIsNotBehindForEver(t *testing.T) {
	g := gomega.NewWithT(t)
	s := atRest(t, 1)
	s.o.Claim = nil
	s.storeGoesBack(0).after(time.Minute).step()
	g.Expect(complete(s).Reason).To(gomega.Equal(v1alpha1.ReasonHistoryBehind))
	s.change(builders.Resume("r1")).step()
	s.isPrepared()
	s.agentRuns()
	s.agentExits(1)
	s.podFinishes()
	s.o.Pods = nil
	s.after(time.Minute).step()
	s.o.History.State.LastSequence, s.o.History.State.Attempt, s.o.History.State.LostRecords = 23, 2, 20
	for range 2 {
		s.after(time.Hour).step()
		g.Expect(s.wantCondition(v1alpha1.TaskHistoryComplete).Reason).To(gomega.Equal(v1alpha1.ReasonHistoryGap))
	}
	g.Expect(s.status().LatestCheckpoint).To(gomega.BeNil())
	g.Expect(meta.FindStatusCondition(s.status().Conditions, v1alpha1.TaskDurable)).To(gomega.BeNil(), "there is none to be durable")

	// Checkpoints that have an object get no second one.
	s.o.History.State.Latest = &history.Checkpoint{Number: 4, Attempt: 2, Trigger: string(v1alpha1.TriggerFailure), Time: s.now}
	s.after(time.Hour).step()
	g.Expect(s.plans[0].Checkpoints).To(gomega.HaveValue(gomega.Equal(Range{After: 3, UpTo: 4})))
	g.Expect(s.status().CheckpointObjectsThrough).To(gomega.BeNil())
}

// TestAStatusWithoutARecordSequenceIsComparedByCheckpoints: a former version wrote it.
func TestAStatusWithoutARecordSequenceIsComparedByCheckpoints(t *testing.T) {
	g := gomega.NewWithT(t)
	s := atRest(t, 1)
	s.status().RecordSequence = 0
	s.storeGoesBack(1).after(time.Minute).step()
	g.Expect(complete(s).Reason).To(gomega.Equal(v1alpha1.ReasonHistoryBehind))
	s.o.History.State.Latest.Number = 4 // the next pod's
	s.after(time.Minute).step()
	g.Expect(complete(s)).To(gomega.BeNil())
	g.Expect(s.status().RecordSequence).To(gomega.Equal(int64(5)))
}
