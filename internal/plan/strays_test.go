package plan

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/daemonapi"
)

// A manager whose lease has run out may still create the pod of an attempt that another manager has
// taken for lost meanwhile.
func TestAPodThatAppearsAfterItsAttemptHasEndedIsStopped(t *testing.T) {
	suspends := func(s *scene) {
		s.change(func(t *v1alpha1.Task) { t.Spec.OperatingMode = v1alpha1.OperatingModeSuspended })
	}
	for name, tt := range map[string]struct {
		before func(*scene)
		want   v1alpha1.AttemptOutcome
	}{
		"as Suspended": {suspends, v1alpha1.AttemptSuspended},
		"as Stopped": {func(s *scene) {
			s.status().Attempts[0].Reason = v1alpha1.ReasonReplaced
			suspends(s)
		}, v1alpha1.AttemptStopped},
		"as PodLost": {func(s *scene) { s.o.History.Known = false }, v1alpha1.AttemptPodLost}, // no other attempt follows
	} {
		t.Run(name, func(t *testing.T) {
			s := newScene(t).step()
			late := *s.pod()
			s.o.Pods = nil
			tt.before(s)
			s.managerRestarts().step()
			suspends(s)
			s.step()
			s.wantOutcomes(tt.want)

			s.o.Pods = []corev1.Pod{late}
			s.agentRuns()
			if s.pod().DeletionTimestamp == nil {
				t.Error("it is left to run")
			}
			s.wantOutcomes(tt.want)
		})
	}
}

// Its logs would be lost with it.
func TestAPodThatIsAboutToEndByItselfIsLeft(t *testing.T) {
	for name, end := range map[string]func(*scene){
		"after its agent": func(s *scene) {
			s.prepared(daemonapi.PrepareResult{Reason: v1alpha1.ReasonWorkspacePrepared})
			s.agentRuns()
			s.record(v1alpha1.TriggerCompletion)
			s.agentExits(0)
			s.wantOutcomes(v1alpha1.AttemptCompleted)
		},
		"after its preparation has failed": func(s *scene) {
			s.setContainer(daemonapi.PrepareContainer, corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{
				ExitCode: 1, FinishedAt: metav1.NewTime(s.now), Message: `{"reason":"DriftDetected","permanent":true}`,
			}})
			s.step()
			s.wantOutcomes(v1alpha1.AttemptBlocked)
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newScene(t).step()
			end(s)
			s.after(time.Minute).step()
			if s.pod().DeletionTimestamp != nil {
				t.Error("it is stopped")
			}
		})
	}
}

func TestAPodIsStoppedOnce(t *testing.T) {
	s := completedTask(t)
	s.o.Pods[0].Status.Phase = corev1.PodRunning
	s.o.Pods[0].Status.ContainerStatuses = nil
	s.change(func(t *v1alpha1.Task) { t.Spec.Resume = &v1alpha1.Resume{ID: "again", Prompt: "go on"} })
	if p := Decide(s.o, s.now); len(p.StopPods) != 1 {
		t.Errorf("the pods to stop are %+v", p.StopPods)
	}
}
