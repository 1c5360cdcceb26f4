package plan

import (
	"math"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/daemonapi"
)

func TestANumberIsReservedForOnePod(t *testing.T) {
	t.Run("the process that reserved it makes the pod, however often it has to try", func(t *testing.T) {
		s := newScene(t).step()
		s.o.Pods, s.o.MadePodUID = nil, "" // the API server refused it
		s.step()
		s.wantStarted(1)
		s.wantOutcomes("")
	})
	for name, ran := range map[string]bool{
		"a manager that died before it made the pod":                                  false,
		"a manager that died after it, and the pod is gone before the next one looks": true,
	} {
		t.Run(name, func(t *testing.T) {
			s := newScene(t).step()
			if ran {
				s.setContainer(v1alpha1.AgentContainer, corev1.ContainerState{Running: &corev1.ContainerStateRunning{}})
			}
			s.o.Pods = nil
			s.managerRestarts().step()
			s.wantStarted(2)
			s.wantOutcomes(v1alpha1.AttemptPodLost, "")
			if s.status().Failures != 0 {
				t.Error("it counts as a failure of the agent")
			}
		})
	}
	t.Run("a manager that finds the pod of another one keeps it", func(t *testing.T) {
		s := newScene(t).step()
		uid := string(s.pod().UID)
		s.managerRestarts().step()
		s.prepared(daemonapi.PrepareResult{Reason: v1alpha1.ReasonWorkspacePrepared})
		s.agentRuns()
		s.wantOutcomes("")
		if got := s.lastAttempt().PodUID; got != uid {
			t.Errorf("the pod's UID is %q, want %q", got, uid)
		}
	})
	t.Run("a rewind continues with the next number", func(t *testing.T) {
		s := completedTask(t)
		s.rewind("r1", 1).step()
		s.o.Pods = nil
		s.managerRestarts().step()
		s.wantStarted(3)
		if op := s.startedOperation(); op.ID != "r1" {
			t.Errorf("prepare gets the operation %q, want r1", op.ID)
		}
	})
}

func TestAPodThatClewDidNotMakeIsNoAttempts(t *testing.T) {
	forged := func(s *scene, change func(*corev1.Pod)) {
		pod := s.pod().DeepCopy()
		pod.Name, pod.UID = "forged", "uid-of-forged"
		pod.Status.Phase = corev1.PodRunning
		change(pod)
		s.o.Pods = append([]corev1.Pod{*pod}, s.o.Pods...)
	}
	stopped := func(s *scene) bool {
		return slices.ContainsFunc(s.o.Pods, func(p corev1.Pod) bool { return p.UID == "uid-of-forged" && p.DeletionTimestamp != nil })
	}
	for name, change := range map[string]func(*corev1.Pod){
		"of the attempt's number":             func(*corev1.Pod) {},
		"of a number that is yet to come":     func(p *corev1.Pod) { p.Labels[v1alpha1.LabelAttempt] = "7" },
		"of the highest number there is":      func(p *corev1.Pod) { p.Labels[v1alpha1.LabelAttempt] = "9223372036854775807" },
		"of no number at all":                 func(p *corev1.Pod) { delete(p.Labels, v1alpha1.LabelAttempt) },
		"of the attempt's number and its end": func(p *corev1.Pod) { p.Status.ContainerStatuses = nil },
	} {
		t.Run(name, func(t *testing.T) {
			s := running(t)
			forged(s, change)
			s.step()
			if !stopped(s) {
				t.Error("it is left to run")
			}
			s.o.Pods = s.o.Pods[1:]
			s.agentExits(1)
			s.podFinishes()
			s.after(time.Minute).step()
			s.wantStarted(2)
		})
	}
	t.Run("and by the name of the next pod it makes way first", func(t *testing.T) {
		s := newScene(t).step()
		own := s.pod().DeepCopy()
		own.UID, own.Status.Phase = "uid-of-forged", corev1.PodRunning
		s.o.Pods, s.o.MadePodUID = []corev1.Pod{*own}, "" // the API server refused the pod: the name is taken
		s.step()
		if !stopped(s) || s.started() != nil {
			t.Fatalf("stopped: %v, started %+v", stopped(s), s.started())
		}
		s.podGone()
		s.wantStarted(1)
	})
	t.Run("and by the name of a pod that is known it is not taken for that", func(t *testing.T) {
		s := running(t)
		s.pod().UID = types.UID("uid-of-forged")
		s.step()
		s.wantOutcomes(v1alpha1.AttemptPodLost)
		if !stopped(s) {
			t.Error("it is left to run")
		}
	})
}

func TestNumbersAreNeverUsedAgain(t *testing.T) {
	t.Run("though the status was restored from a backup", func(t *testing.T) {
		s := newScene(t)
		s.o.History.State.Attempt = 7
		s.step()
		s.wantStarted(8)
	})
	t.Run("though the restored status has an attempt under way", func(t *testing.T) {
		s := running(t)
		s.o.History.State.Attempt = 5
		s.managerRestarts().podGone()
		s.wantStarted(6)
		s.wantOutcomes(v1alpha1.AttemptPodLost, "")
	})
	t.Run("so nothing is reserved before the history store was asked", func(t *testing.T) {
		s := newScene(t)
		s.o.History = History{}
		s.step()
		s.wantState(v1alpha1.ReasonPending)
		if len(s.status().Attempts) != 0 {
			t.Fatalf("attempts were reserved: %+v", s.status().Attempts)
		}
		s.o.History.Known, s.o.History.State.Attempt = true, 2
		s.step()
		s.wantStarted(3)
	})
	t.Run("and none follows the highest there is", func(t *testing.T) {
		s := running(t)
		s.o.History.State.Attempt = math.MaxInt64
		s.podGone()
		s.wantOutcomes(v1alpha1.AttemptPodLost)
		c := s.wantCondition(v1alpha1.TaskSucceeded)
		s.wantState(v1alpha1.ReasonPodRefused)
		s.wantMessage(c.Message, "fork the task")
	})
}

func TestADeletionSaysWhichPodItWaitsFor(t *testing.T) {
	s := running(t)
	s.pod().Spec.NodeName = "node-7"
	s.o.Task.DeletionTimestamp = ptr.To(metav1.NewTime(s.now))
	writes := s.writes
	s.step()
	s.after(5 * time.Second).step()
	if s.writes != writes {
		t.Error("a pod that is about to end is worth a write")
	}
	s.after(time.Minute).step()
	s.wantStatus(v1alpha1.TaskSucceeded, metav1.ConditionUnknown, v1alpha1.ReasonDeleting, s.pod().Name, "node-7", "--force")
	s.after(time.Minute).step()
	if s.writes != writes+1 {
		t.Errorf("the deletion took %d status writes, want 1", s.writes-writes)
	}
	s.podGone()
	if len(s.o.Task.Finalizers) != 0 {
		t.Error("the task is still held")
	}
}

// TestALostPodIsNoCompletionOfAnEarlierAttempt: what the history store has about an
// earlier attempt says nothing about the one that ran since.
func TestALostPodIsNoCompletionOfAnEarlierAttempt(t *testing.T) {
	s := running(t)
	s.podGone()
	s.prepared(daemonapi.PrepareResult{Reason: v1alpha1.ReasonWorkspacePrepared})
	s.agentRuns()
	s.record(v1alpha1.TriggerCompletion)
	s.o.History.State.Latest.Attempt = 1
	s.podGone()
	if got := s.status().Attempts[1].Outcome; got != v1alpha1.AttemptPodLost {
		t.Errorf("attempt 2 ended as %q", got)
	}
}
