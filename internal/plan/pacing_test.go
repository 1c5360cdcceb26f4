package plan

import (
	"fmt"
	"testing"
	"time"

	"github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/daemonapi"
	"github.com/clew-dev/clew/internal/testing/builders"
)

// refused asks for a rewind that is refused.
func (s *scene) refused(id string) *scene {
	s.change(builders.Rewind(id, "no-such-checkpoint"))
	s.o.RewindTarget = nil
	return s.after(100 * time.Millisecond).step()
}

// Whoever may patch a Task could otherwise have one write, one row and one Event for each request that
// is refused.
func TestTransitionsThatCostNothingArePaced(t *testing.T) {
	g := gomega.NewWithT(t)
	s := completedTask(t)
	before := s.writes
	for n := range 40 {
		s.refused(fmt.Sprintf("r%d", n))
	}
	g.Expect(s.writes-before).To(gomega.Equal(cheapBurst), "all at once, and the rest later")
	held := s.plans[len(s.plans)-1]
	g.Expect(held.Held).To(gomega.BeTrue())
	g.Expect(held.RequeueAfter).To(gomega.And(gomega.BeNumerically(">", 0), gomega.BeNumerically("<=", cheapEvery)))
	s.after(held.RequeueAfter).step()
	g.Expect(s.plans[len(s.plans)-1].Held).To(gomega.BeFalse())
	s.wantOperation(s.status().Rewind, "r39", v1alpha1.OperationRefused, v1alpha1.ReasonCheckpointNotFound)
	g.Expect(s.writes - before).To(gomega.Equal(cheapBurst + 1))

	// Once recorded, entries leave the status, and the pace stays.
	s.recorded()
	s.after(time.Hour).step()
	told := s.status().HistorySequence
	for n := range 600 {
		s.after(900 * time.Millisecond).refused(fmt.Sprintf("s%d", n)) // for ten minutes
		s.recorded()
	}
	g.Expect(s.status().HistorySequence - told).To(gomega.BeNumerically("<=", 600/5))
}

func TestWhatStartsAnAgentIsNotHeld(t *testing.T) {
	s := completedTask(t)
	for n := range 20 {
		s.refused(fmt.Sprintf("r%d", n))
	}
	s.change(resume("go-on", "And now?")).step()
	s.wantStarted(2)
	s.prepared(daemonapi.PrepareResult{OperationKind: daemonapi.OperationResume, Operation: "go-on", Memory: v1alpha1.AgentMemorySession})
	s.agentRuns()
	s.wantState(v1alpha1.ReasonRunning)
}

// The failures of a task that others wait for, and its resumes, are told by each of these.
func TestAnotherTasksFailuresArePaced(t *testing.T) {
	g := gomega.NewWithT(t)
	s := newScene(t, builders.DependsOn("first"))
	for range 40 {
		s.exists("first", metav1.ConditionFalse, v1alpha1.ReasonAgentFailed).after(100 * time.Millisecond).step()
		s.exists("first", metav1.ConditionUnknown, v1alpha1.ReasonRunning).after(100 * time.Millisecond).step()
	}
	g.Expect(s.status().HistorySequence).To(gomega.BeEquivalentTo(cheapBurst))
	s.exists("first", metav1.ConditionTrue, v1alpha1.ReasonCompleted).step()
	s.wantStarted(1)
}
