package plan

import (
	"testing"
	"time"

	"github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/daemonapi"
)

// acknowledges has the task's owner know of so many lost records.
func (s *scene) acknowledges(n int64) *scene {
	return s.change(func(t *v1alpha1.Task) { t.Spec.Acknowledge = &v1alpha1.Acknowledgement{LostRecords: n} }).after(time.Second).step()
}

func (s *scene) loses(n int64) *scene {
	s.o.History.State.LostRecords = n
	return s.after(time.Minute).step()
}

func (s *scene) wantComplete(status metav1.ConditionStatus, reason string) {
	s.Helper()
	if c := s.wantCondition(v1alpha1.TaskHistoryComplete); c.Status != status || c.Reason != reason {
		s.Errorf("HistoryComplete is %s, %s (%s); want %s, %s", c.Status, c.Reason, c.Message, status, reason)
	}
}

func (s *scene) entries(reason string) (found []v1alpha1.HistoryEntry) {
	for _, e := range s.status().History {
		if e.Reason == reason {
			found = append(found, e)
		}
	}
	return found
}

func TestALossThatTheOwnerKnowsOfIsComplete(t *testing.T) {
	g := gomega.NewWithT(t)
	s := running(t)
	s.o.Stamped = true
	s.o.Task.Spec.RequestedBy = &v1alpha1.TaskRequesters{Acknowledge: "ann"}
	s.loses(29).wantComplete(metav1.ConditionFalse, v1alpha1.ReasonHistoryGap)
	s.acknowledges(28).wantComplete(metav1.ConditionFalse, v1alpha1.ReasonHistoryGap)
	s.acknowledges(29).wantComplete(metav1.ConditionTrue, v1alpha1.ReasonLossAcknowledged)
	g.Expect(s.wantCondition(v1alpha1.TaskHistoryComplete).Message).To(gomega.HavePrefix("29 records of this task are lost for good, as its owner knows"))
	g.Expect(s.status().LostRecords).To(gomega.BeEquivalentTo(29))
	g.Expect(s.status().AcknowledgedRecords).To(gomega.BeEquivalentTo(29))

	writes := s.writes
	s.after(time.Minute).step()
	s.o.History.Known = false
	s.after(time.Minute).step()
	s.o.History.Known = true
	s.after(time.Minute).step()
	g.Expect(s.writes).To(gomega.Equal(writes), "nothing new is written")
	told := s.entries(v1alpha1.EventLossAcknowledged)
	g.Expect(told).To(gomega.HaveLen(2))
	g.Expect(told[1].Actor).To(gomega.Equal("ann"))
	g.Expect(told[1].Message).To(gomega.ContainSubstring("29 records"))

	s.loses(30).wantComplete(metav1.ConditionFalse, v1alpha1.ReasonHistoryGap)
	s.acknowledges(30).wantComplete(metav1.ConditionTrue, v1alpha1.ReasonLossAcknowledged)
	s.change(func(t *v1alpha1.Task) { t.Spec.Acknowledge = nil }).step().wantComplete(metav1.ConditionFalse, v1alpha1.ReasonHistoryGap)
	g.Expect(s.status().AcknowledgedRecords).To(gomega.BeZero())
}

// Only a loss is acknowledged, not what else is missing.
func TestWhatElseIsMissingOfAHistoryShowsThoughItsLossIsKnown(t *testing.T) {
	s := running(t)
	s.loses(3).acknowledges(3)
	s.o.History.State.LeftOutRecords = 5
	s.after(time.Minute).step().wantComplete(metav1.ConditionFalse, v1alpha1.ReasonHistoryLimitReached)
}

// Nobody knows how many records went with a volume, and so no number covers them.
func TestALossThatNobodyHasCountedIsNotAcknowledgedByANumber(t *testing.T) {
	s := atRest(t, 1)
	s.loses(2).acknowledges(2).wantComplete(metav1.ConditionTrue, v1alpha1.ReasonLossAcknowledged)
	s.o.Claim = nil
	s.storeGoesBack(1)
	s.loses(2).wantComplete(metav1.ConditionFalse, v1alpha1.ReasonHistoryBehind)
	s.change(func(t *v1alpha1.Task) { t.Spec.Resume = &v1alpha1.Resume{ID: "r1"} }).step()
	s.prepared(daemonapi.PrepareResult{Reason: v1alpha1.ReasonWorkspacePrepared})
	s.agentRuns()
	s.after(time.Minute).step().wantComplete(metav1.ConditionFalse, v1alpha1.ReasonUncountedHistoryGap)
	s.after(time.Minute).step().wantComplete(metav1.ConditionFalse, v1alpha1.ReasonUncountedHistoryGap)
}
