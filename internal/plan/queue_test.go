package plan

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/daemonapi"
	"github.com/clew-dev/clew/internal/testing/builders"
)

// full makes the scene's cluster one in which no task finds a place.
func (s *scene) full() *scene {
	s.o.Queue = Queue{Waits: true, OfNamespace: true, Maximum: 9, MaximumPerNamespace: 2}
	return s
}

// turn gives the task a place.
func (s *scene) turn() *scene {
	s.o.Queue = Queue{Maximum: 9, MaximumPerNamespace: 2}
	return s
}

func TestATaskWaitsForAPlaceWithoutPodAndVolume(t *testing.T) {
	s := newScene(t).full().step()
	s.wantStatus(v1alpha1.TaskSucceeded, metav1.ConditionUnknown, v1alpha1.ReasonQueued, "at most 2 tasks run at once in this namespace", "highest priority")
	s.wantEntries(v1alpha1.EventTaskQueued)
	last := s.plans[len(s.plans)-1]
	if s.claims != 0 || len(s.o.Pods) != 0 || last.RequeueAfter != 0 || !last.Queued || !last.NeedsPlace {
		t.Errorf("it has %d claims and %d pods, and the plan is %+v", s.claims, len(s.o.Pods), last)
	}
	writes := s.writes
	s.o.Queue.OfNamespace = false // the cluster is full now
	s.after(time.Hour).step()
	if s.writes != writes {
		t.Error("which of the limits is reached was written again")
	}
	s.turn().step()
	s.wantStarted(1)
	s.wantEntries(v1alpha1.EventTaskQueued, v1alpha1.EventTaskStarted)
	if StateAfter(s.status(), s.status().History[0]) != "Queued" {
		t.Error("the history does not have it as queued")
	}
}

func TestTheMessageHasTheLimitsOfNow(t *testing.T) {
	s := newScene(t).full().step()
	s.o.Queue = Queue{Waits: true, Maximum: 1}
	s.step()
	s.wantStatus(v1alpha1.TaskSucceeded, metav1.ConditionUnknown, v1alpha1.ReasonQueued, "at most 1 task runs at once in this cluster")
	s.wantEntries(v1alpha1.EventTaskQueued)
}

func TestAChildWaitsForTheOthersOfItsParent(t *testing.T) {
	s := newScene(t)
	s.o.Queue = Queue{Waits: true, OfParent: true, Parent: "lead", MaximumOfParent: 2, Maximum: 9}
	s.step()
	s.wantStatus(v1alpha1.TaskSucceeded, metav1.ConditionUnknown, v1alpha1.ReasonQueued, "at most 2 children of lead run at once, as children.atOnce of that task says")
	writes := s.writes
	s.o.Queue.OfParent = false // the cluster is full now
	s.after(time.Hour).step()
	if s.writes != writes {
		t.Error("which of the limits is reached was written again")
	}
	s.o.Queue.OfParent, s.o.Queue.MaximumOfParent = true, 1
	s.step()
	s.wantStatus(v1alpha1.TaskSucceeded, metav1.ConditionUnknown, v1alpha1.ReasonQueued, "at most 1 child of lead runs at once")
	s.turn().step()
	s.wantStarted(1)
}

func TestTheLimitThatHoldsATaskIsKnownFromItsStatus(t *testing.T) {
	s := newScene(t).full().step()
	if got := LimitThatHolds(s.o.Task); got != "at most 2 tasks run at once in this namespace" {
		t.Errorf("of the namespace: %q", got)
	}
	s.o.Queue = Queue{Waits: true, OfParent: true, Parent: "lead", MaximumOfParent: 1, Maximum: 9}
	s.step()
	if got := LimitThatHolds(s.o.Task); got != "at most 1 child of lead runs at once, as children.atOnce of that task says" {
		t.Errorf("of the parent: %q", got)
	}
	s.turn().step()
	if got := LimitThatHolds(s.o.Task); got != "" {
		t.Errorf("of a task that runs: %q", got)
	}
}

func TestHowManyChildrenRunAtOnce(t *testing.T) {
	two := ptr.To[int32](2)
	for name, c := range map[string]struct {
		spec v1alpha1.TaskSpec
		want int
	}{
		"a worker":                    {v1alpha1.TaskSpec{}, 0},
		"a supervisor without limits": {v1alpha1.TaskSpec{Role: v1alpha1.RoleSupervisor}, 0},
		"one with another limit":      {v1alpha1.TaskSpec{Role: v1alpha1.RoleSupervisor, Children: &v1alpha1.Children{Maximum: two}}, 0},
		"one with this limit":         {v1alpha1.TaskSpec{Role: v1alpha1.RoleSupervisor, Children: &v1alpha1.Children{AtOnce: two}}, 2},
	} {
		if got := AtOnceOf(&v1alpha1.Task{Spec: c.spec}); got != c.want {
			t.Errorf("%s: %d, want %d", name, got, c.want)
		}
	}
}

func TestWhatElseIsMissingIsToldBeforeTheQueue(t *testing.T) {
	s := newScene(t, builders.DependsOn("a")).full().exists("a", metav1.ConditionUnknown, v1alpha1.ReasonRunning).step()
	s.wantState(v1alpha1.ReasonWaitingForTasks)
	if s.plans[0].NeedsPlace {
		t.Error("a task that waits for another one asks for a place")
	}
}

func TestARewindOfAStoppedTaskNeedsNoPlace(t *testing.T) {
	s := completedTask(t).full()
	s.rewind("back", 1).step()
	s.wantStarted(2)
	if s.lastAttempt().Purpose != v1alpha1.AttemptForRewind || HoldsPlace(s.o.Task) {
		t.Error("a pod without an agent takes a place")
	}
	s.prepared(daemonapi.PrepareResult{Operation: "back", OperationKind: daemonapi.OperationRewind})
	s.wantState(v1alpha1.ReasonRewound)
	s.change(builders.Resume("on")).step()
	s.wantState(v1alpha1.ReasonQueued)
	s.turn().step()
	s.wantStarted(3)
}

func TestWhoHasAPlace(t *testing.T) {
	cases := map[string]struct {
		become func(s *scene)
		want   bool
	}{
		"a new task":                  {func(*scene) {}, true},
		"one whose pod is lost":       {func(s *scene) { s.podGone() }, true},
		"one whose pods are lost":     {func(s *scene) { s.podGone(); s.podGone() }, true},
		"one that failed and retries": {func(s *scene) { s.agentExits(3); s.podFinishes() }, true},
		"one that failed for good": {func(s *scene) {
			s.change(builders.BackoffLimit(0))
			s.agentExits(3)
			s.podFinishes()
		}, false},
		"one that completed": {func(s *scene) {
			s.record(v1alpha1.TriggerCompletion)
			s.agentExits(0)
			s.podFinishes()
		}, false},
		"one that is being suspended": {func(s *scene) { s.change(builders.Suspended).step() }, true},
		"one that is suspended":       {func(s *scene) { s.change(builders.Suspended).step(); s.podGone() }, false},
		"one that is being rewound":   {func(s *scene) { s.record(v1alpha1.TriggerManual); s.rewind("back", 1).step() }, true},
		"one that was stopped for it": {func(s *scene) {
			s.record(v1alpha1.TriggerManual)
			s.rewind("back", 1).step()
			s.podGone()
		}, true},
		"one that drifted": {func(s *scene) {
			s.podGone()
			s.prepareExits(1, daemonapi.PrepareResult{Reason: v1alpha1.ReasonDriftDetected, Permanent: true})
		}, false},
		"one that could not be prepared": {func(s *scene) {
			s.podGone()
			s.prepareExits(1, daemonapi.PrepareResult{Reason: v1alpha1.ReasonServerUnreachable})
		}, true},
		"one that is being deleted": {func(s *scene) { s.o.Task.DeletionTimestamp = ptr.To(metav1.NewTime(s.now)) }, true},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			s := running(t)
			c.become(s)
			if got := HoldsPlace(s.o.Task); got != c.want {
				t.Errorf("it has a place: %t, want %t; its attempts: %+v", got, c.want, s.status().Attempts)
			}
		})
	}
	if HoldsPlace(builders.Task("new")) {
		t.Error("a task without an attempt has a place")
	}
}

func TestAPauseThatTheModelAsksForCostsThePlace(t *testing.T) {
	attempt := func(reason string, pause time.Duration) *v1alpha1.Task {
		task, now := builders.Task("work"), time.Now()
		task.Status.Attempts = []v1alpha1.Attempt{{
			Number: 1, Outcome: v1alpha1.AttemptAgentFailed, Reason: reason,
			EndTime: ptr.To(metav1.NewTime(now)), RetryTime: ptr.To(metav1.NewTime(now.Add(pause))),
		}}
		return task
	}
	for name, c := range map[string]struct {
		task *v1alpha1.Task
		want bool
	}{
		"a rate limit":                  {attempt(v1alpha1.ReasonAgentRateLimited, time.Second), false},
		"a failure with a short pause":  {attempt(v1alpha1.ReasonRetrying, time.Minute), true},
		"a failure with a long pause":   {attempt(v1alpha1.ReasonRetrying, time.Hour), false},
		"a failure that is not retried": {attempt(v1alpha1.ReasonAgentFailed, 0), false},
	} {
		if got := HoldsPlace(c.task); got != c.want {
			t.Errorf("%s: it has a place: %t, want %t", name, got, c.want)
		}
	}
}

func TestASuspendedTaskThatGoesOnAsksAgain(t *testing.T) {
	s := running(t)
	s.podGone() // twice within a moment, so that there is a pause
	s.podGone()
	s.change(builders.Suspended).step()
	s.wantState(v1alpha1.ReasonSuspended)
	if HoldsPlace(s.o.Task) {
		t.Error("a suspended task has a place")
	}
	s.full().change(builders.Running)
	if HoldsPlace(s.o.Task) {
		t.Error("a task has its place back without having asked")
	}
	s.after(time.Minute).step()
	s.wantState(v1alpha1.ReasonQueued)
	if HoldsPlace(s.o.Task) {
		t.Error("a task that waits has a place")
	}
	s.turn().step()
	s.wantState(v1alpha1.ReasonPreparing)
}

// gated puts scheduling gates on the newest pod, as a queue of the cluster does.
func (s *scene) gated(names ...string) *scene {
	s.Helper()
	pod := s.pod()
	pod.Spec.SchedulingGates = nil
	for _, name := range names {
		pod.Spec.SchedulingGates = append(pod.Spec.SchedulingGates, corev1.PodSchedulingGate{Name: name})
	}
	pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonSchedulingGated}}
	return s
}

func TestAPodBehindAForeignGateIsQueued(t *testing.T) {
	s := newScene(t).step()
	s.gated("kueue.x-k8s.io/admission").step()
	s.wantState(v1alpha1.ReasonPreparing) // most gates are lifted within a moment
	s.after(s.o.Limits.ProblemGrace).step()
	s.wantStatus(v1alpha1.TaskSucceeded, metav1.ConditionUnknown, v1alpha1.ReasonQueued, "scheduling gate kueue.x-k8s.io/admission", "lifts it")
	s.wantEntries(v1alpha1.EventTaskStarted, v1alpha1.EventPodGated)
	for range 10 {
		s.after(time.Hour * 24).step()
	}
	s.wantState(v1alpha1.ReasonQueued)
	if s.plans[0].RequeueAfter != 0 || len(s.o.Pods) != 1 || s.pod().DeletionTimestamp != nil {
		t.Error("something times out while the pod is gated")
	}
	s.gated("a", "b").step()
	s.wantStatus(v1alpha1.TaskSucceeded, metav1.ConditionUnknown, v1alpha1.ReasonQueued, "scheduling gates a, b")
	s.wantEntries(v1alpha1.EventTaskStarted, v1alpha1.EventPodGated)

	s.gated()
	s.pod().Status.Conditions = nil
	s.step()
	s.wantState(v1alpha1.ReasonPreparing)
	s.prepared(daemonapi.PrepareResult{})
	s.agentRuns()
	s.wantState(v1alpha1.ReasonRunning)
	if state := s.newDecisionState(); state != "Running" {
		t.Errorf("the history has the task as %s", state)
	}
}

func (s *scene) newDecisionState() string { return newDecision(s.o, s.now).stateInHistory() }

func TestAGatedPodThatIsTakenAwayIsALostOne(t *testing.T) {
	s := newScene(t).step()
	s.gated("kueue.x-k8s.io/admission").after(time.Minute).step()
	s.podGone()
	s.wantStarted(2)
	s.wantOutcomes(v1alpha1.AttemptPodLost, "")
	if s.status().Failures != 0 {
		t.Errorf("%d failures were counted", s.status().Failures)
	}
}

func TestAGatedPodIsReplacedWhenTheTaskChanged(t *testing.T) {
	s := newScene(t).step()
	s.gated("kueue.x-k8s.io/admission").after(time.Minute).step()
	s.change(func(t *v1alpha1.Task) {
		t.Spec.Template.Labels = map[string]string{"kueue.x-k8s.io/queue-name": "another"}
	}).step()
	if s.pod().DeletionTimestamp == nil {
		t.Error("the pod with the old label is kept")
	}
	s.podGone()
	if label := s.pod().Labels["kueue.x-k8s.io/queue-name"]; !strings.Contains(label, "another") {
		t.Errorf("the new pod has the label %q", label)
	}
}
