package plan

import (
	"testing"
	"time"

	"github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/clew-dev/clew/api/v1alpha1"
)

// acknowledges sets the number of acknowledged lost records.
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

func TestAHistoryWhoseLossIsAcknowledgedIsComplete(t *testing.T) {
	g := gomega.NewWithT(t)
	s := running(t)
	s.o.Stamped = true
	s.o.Task.Spec.RequestedBy = &v1alpha1.TaskRequesters{Acknowledge: "ann"}
	s.loses(29).wantComplete(metav1.ConditionFalse, v1alpha1.ReasonHistoryGap)
	s.acknowledges(28).wantComplete(metav1.ConditionFalse, v1alpha1.ReasonHistoryGap)
	s.acknowledges(29).wantComplete(metav1.ConditionTrue, v1alpha1.ReasonLossAcknowledged)
	g.Expect(s.wantCondition(v1alpha1.TaskHistoryComplete).Message).To(gomega.HavePrefix("29 records of this task are permanently lost, which spec.acknowledge covers"))
	g.Expect(s.status().LostRecords).To(gomega.BeEquivalentTo(29))
	g.Expect(s.status().AcknowledgedLostRecords).To(gomega.BeEquivalentTo(29))

	writes := s.writes
	s.after(time.Minute).step()
	s.o.History.Known = false
	s.after(time.Minute).step()
	s.o.History.Known = true
	s.after(time.Minute).step()
	g.Expect(s.writes).To(gomega.Equal(writes), "nothing new is written")
	entries := s.entries(v1alpha1.EventLossAcknowledged)
	g.Expect(entries).To(gomega.HaveLen(2))
	g.Expect(entries[1].Actor).To(gomega.Equal("ann"))
	g.Expect(entries[1].Message).To(gomega.Equal("29 of 29 lost records acknowledged"))

	s.loses(30).wantComplete(metav1.ConditionFalse, v1alpha1.ReasonHistoryGap)
	s.acknowledges(30).wantComplete(metav1.ConditionTrue, v1alpha1.ReasonLossAcknowledged)
	s.change(func(t *v1alpha1.Task) { t.Spec.Acknowledge = nil }).step().wantComplete(metav1.ConditionFalse, v1alpha1.ReasonHistoryGap)
	g.Expect(s.status().AcknowledgedLostRecords).To(gomega.BeZero())
}

// An acknowledgement covers lost records, and nothing else that is missing.
func TestAnAcknowledgementHidesNothingElseThatIsMissing(t *testing.T) {
	s := running(t)
	s.loses(3).acknowledges(3)
	s.o.History.State.LeftOutRecords = 5
	s.after(time.Minute).step().wantComplete(metav1.ConditionFalse, v1alpha1.ReasonHistoryLimitReached)

	writes := s.writes
	s.o.History = History{} // an outage of the history store
	s.after(time.Minute).step().wantComplete(metav1.ConditionFalse, v1alpha1.ReasonHistoryLimitReached)
	gomega.NewWithT(t).Expect(s.writes).To(gomega.Equal(writes), "nothing new is written")
}

// The records found lost after the store was put back may be other ones.
func TestAnAcknowledgementEndsWhenTheStoreGoesBackToBeforeTheLoss(t *testing.T) {
	for name, later := range map[string]int64{"fewer": 20, "as many": 29, "more": 30} {
		t.Run(name, func(t *testing.T) {
			g := gomega.NewWithT(t)
			s := running(t)
			s.loses(29).acknowledges(29)
			s.loses(0)
			g.Expect(complete(s)).To(gomega.BeNil())
			g.Expect(s.status().AcknowledgedLostRecords).To(gomega.BeZero())
			for _, known := range []bool{true, false, true} {
				s.o.History.Known = known
				s.loses(later)
			}
			s.wantComplete(metav1.ConditionFalse, v1alpha1.ReasonHistoryGap)
			g.Expect(s.wantCondition(v1alpha1.TaskHistoryComplete).Message).To(gomega.ContainSubstring("remove it before you set it again"))
			s.change(func(t *v1alpha1.Task) { t.Spec.Acknowledge = nil }).after(time.Second).step()
			s.wantComplete(metav1.ConditionFalse, v1alpha1.ReasonHistoryGap)
			s.acknowledges(later).wantComplete(metav1.ConditionTrue, v1alpha1.ReasonLossAcknowledged)
			g.Expect(s.entries(v1alpha1.EventLossAcknowledged)).To(gomega.HaveLen(2))
		})
	}
}

// A new number is set for what is lost then.
func TestALowerNumberAcknowledgesAnewAfterTheStoreWentBack(t *testing.T) {
	s := running(t)
	s.loses(29).acknowledges(29)
	s.loses(20).wantComplete(metav1.ConditionFalse, v1alpha1.ReasonHistoryGap)
	s.acknowledges(20).wantComplete(metav1.ConditionTrue, v1alpha1.ReasonLossAcknowledged)
}

// The Task may be a copy of another one, from a backup or a manifest.
func TestWhatATaskIsCreatedWithAcknowledgesNothing(t *testing.T) {
	s := running(t, func(t *v1alpha1.Task) { t.Spec.Acknowledge = &v1alpha1.Acknowledgement{LostRecords: 29} })
	for _, lost := range []int64{20, 29, 30} {
		s.loses(lost).wantComplete(metav1.ConditionFalse, v1alpha1.ReasonHistoryGap)
	}
	s.acknowledges(30).wantComplete(metav1.ConditionTrue, v1alpha1.ReasonLossAcknowledged)
}

// A former version reported it like a counted loss, but without a number.
func TestAnUncountedLossSurvivesAnUpgrade(t *testing.T) {
	s := running(t)
	s.status().Conditions = append(s.status().Conditions, metav1.Condition{
		Type: v1alpha1.TaskHistoryComplete, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonHistoryGap,
		Message: "the history store was restored from an older copy", LastTransitionTime: metav1.NewTime(s.now.Add(-time.Hour)),
	})
	s.after(time.Minute).step().wantComplete(metav1.ConditionFalse, v1alpha1.ReasonUncountedHistoryGap)
	s.loses(2).acknowledges(2).wantComplete(metav1.ConditionFalse, v1alpha1.ReasonUncountedHistoryGap)
	gomega.NewWithT(t).Expect(s.status().UncountedLoss.Message).To(gomega.Equal("the history store was restored from an older copy"))
	gomega.NewWithT(t).Expect(s.entries(v1alpha1.EventHistoryGap)).To(gomega.HaveLen(1), "only the two are new")
	s.o.History.Known = false
	s.after(time.Minute).step().wantComplete(metav1.ConditionFalse, v1alpha1.ReasonUncountedHistoryGap)
}
