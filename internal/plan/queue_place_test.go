package plan

import (
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/daemonapi"
	"github.com/clew-dev/clew/internal/testing/builders"
)

// wanted makes the scene's task one whose place another task waits for.
func (s *scene) wanted() *scene {
	s.o.Queue = Queue{Limited: true, Wanted: true, Maximum: 1, MaximumPerNamespace: 1}
	return s
}

// unschedulable makes the newest pod one for which no node has room.
func (s *scene) unschedulable() *scene {
	s.Helper()
	s.pod().Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Message: "0/3 nodes are available"}}
	return s
}

func TestWhatIsInTheWayBetweenTwoAttemptsCostsThePlace(t *testing.T) {
	s := running(t)
	s.o.Claim.Status.Phase = corev1.ClaimLost
	s.podGone()
	s.wantState(v1alpha1.ReasonVolumeUnavailable)
	if HoldsPlace(s.o.Task) {
		t.Error("a task that cannot start again has a place")
	}
	s.full().o.Claim.Status.Phase = corev1.ClaimBound
	s.step().wantState(v1alpha1.ReasonQueued)
}

func TestAttemptsWithoutAnAgentCostThePlaceInTheEnd(t *testing.T) {
	s := running(t)
	s.podGone()
	for n := range maxUnstarted {
		s.prepareExits(1, daemonapi.PrepareResult{Reason: v1alpha1.ReasonServerUnreachable})
		s.wantState(v1alpha1.ReasonRetrying)
		if got, want := HoldsPlace(s.o.Task), n+1 < maxUnstarted; got != want {
			t.Fatalf("after %d attempts without an agent it has a place: %t, want %t", n+1, got, want)
		}
		s.after(s.o.Limits.PrepareRetryCap).step()
	}
	if !HoldsPlace(s.o.Task) {
		t.Error("the attempt that follows has no place")
	}
}

func TestAPlaceIsGivenUpForOthersWhenItsPodDoesNotStart(t *testing.T) {
	for name, c := range map[string]struct {
		stuck    func(*scene)
		patience time.Duration
		why      string
	}{
		"behind a gate":    {func(s *scene) { s.gated("kueue.x-k8s.io/admission") }, DefaultLimits().StartPatience, "its scheduling gate kueue.x-k8s.io/admission"},
		"without a node":   {func(s *scene) { s.unschedulable() }, DefaultLimits().StartPatience, "0/3 nodes are available"},
		"and nobody knows": {func(*scene) {}, DefaultLimits().PreparePatience, "its workspace is still being prepared"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newScene(t).wanted().step()
			c.stuck(s)
			s.step()
			if s.pod().DeletionTimestamp != nil {
				t.Fatal("it is given up at once")
			}
			s.after(c.patience).step()
			if s.pod().DeletionTimestamp == nil || s.lastAttempt().Reason != v1alpha1.ReasonPlaceGivenUp {
				t.Fatalf("the pod is kept; the attempt is %+v", s.lastAttempt())
			}
			i := slices.IndexFunc(s.status().History, func(e v1alpha1.HistoryEntry) bool { return e.Reason == v1alpha1.ReasonPlaceGivenUp })
			s.wantMessage(s.status().History[i].Message, "attempt 1 gives its place to a task that waits", c.why)
			if !HoldsPlace(s.o.Task) {
				t.Error("it is said to have no place while its pod ends")
			}
			s.o.Pods = nil
			if p := s.decide(); !p.Queued || p.NeedsPlace || p.StartPod != nil {
				t.Errorf("it takes another place before it is seen without one: %+v", p)
			}
			s.full().step()
			s.wantState(v1alpha1.ReasonQueued)
			s.wantOutcomes(v1alpha1.AttemptStopped)
			if HoldsPlace(s.o.Task) {
				t.Error("it still has a place")
			}
			if s.status().Failures != 0 {
				t.Errorf("%d failures were counted", s.status().Failures)
			}
			s.turn().step()
			s.wantStarted(2)
		})
	}
}

func TestAPlaceThatIsGivenUpIsAnEntryOnce(t *testing.T) {
	s := newScene(t).wanted().step()
	s.gated("kueue.x-k8s.io/admission").after(DefaultLimits().StartPatience).step()
	s.after(time.Second).step()
	s.full().podGone()
	s.turn().step()
	s.wantEntries(v1alpha1.EventTaskStarted, v1alpha1.ReasonPlaceGivenUp, v1alpha1.EventPodGated, v1alpha1.EventTaskQueued, v1alpha1.EventTaskResumed)
}

func TestAnOperationWhosePodDoesNotStartWaitsForAPlaceAsWell(t *testing.T) {
	t.Run("a resume", func(t *testing.T) {
		s := running(t, builders.BackoffLimit(0))
		s.agentExits(3)
		s.podFinishes()
		s.change(builders.Resume("on")).wanted().step()
		s.wantStarted(2)
		s.unschedulable().after(DefaultLimits().StartPatience).step()
		s.full().podGone()
		s.wantState(v1alpha1.ReasonQueued)
		if HoldsPlace(s.o.Task) || s.status().Resume.State != v1alpha1.OperationInProgress {
			t.Errorf("it has a place, or its resume is lost: %+v", s.status().Resume)
		}
		s.turn().step()
		s.wantStarted(3)
		if op := s.startedOperation(); op.ID != "on" {
			t.Errorf("the next attempt carries out %+v", op)
		}
	})
	t.Run("a rewind, which then runs no agent", func(t *testing.T) {
		s := running(t)
		s.record(v1alpha1.TriggerManual)
		s.rewind("back", 1).step()
		s.wanted().podGone()
		s.wantStarted(2)
		s.unschedulable().after(DefaultLimits().StartPatience).step()
		s.full().podGone()
		s.wantStarted(3)
		if s.lastAttempt().Purpose != v1alpha1.AttemptForRewind || s.startedOperation().ID != "back" {
			t.Errorf("the next attempt is %+v", s.lastAttempt())
		}
	})
}

func TestAnAttemptWhosePodIsRefusedAsksAgain(t *testing.T) {
	s := newScene(t).wanted().step()
	s.o.Pods, s.o.MadePodUID = nil, "" // it was refused
	s.o.Blocker = &Blocker{v1alpha1.ReasonPodRefused, "exceeded quota"}
	s.lastPlan().wantState(v1alpha1.ReasonPodRefused)
	s.after(DefaultLimits().StartPatience).lastPlan()
	s.wantOutcomes(v1alpha1.AttemptStopped)
	s.wantState(v1alpha1.ReasonQueued)
	if HoldsPlace(s.o.Task) {
		t.Error("it still has a place")
	}
}

// lastPlan decides once, and writes what was decided: no pod can be made.
func (s *scene) lastPlan() *scene {
	s.Helper()
	p := s.decide()
	p.StartPod = nil
	s.carryOut(p)
	return s
}

func TestAPlaceThatNobodyWaitsForIsKept(t *testing.T) {
	s := newScene(t).wanted()
	s.o.Queue.Wanted = false
	s.step().unschedulable().step()
	for range 5 {
		s.after(DefaultLimits().StartPatience).step()
		if after := s.plans[0].RequeueAfter; after != DefaultLimits().StartPatience {
			t.Errorf("it looks again after %s", after)
		}
	}
	s.wanted().step()
	if s.pod().DeletionTimestamp == nil {
		t.Error("it is kept when somebody waits")
	}
}

func TestAnAgentThatRunsKeepsItsPlace(t *testing.T) {
	s := running(t).wanted()
	s.after(100 * time.Hour).step()
	s.wantState(v1alpha1.ReasonRunning)
	if s.pod().DeletionTimestamp != nil {
		t.Error("it was stopped for others")
	}
}

func TestATaskThatWaitsForAPlaceIsRewoundMeanwhile(t *testing.T) {
	s := running(t)
	s.record(v1alpha1.TriggerManual)
	s.change(builders.Suspended).step()
	s.podGone()
	s.full().change(builders.Running).step()
	s.wantState(v1alpha1.ReasonQueued)
	s.rewind("back", 1).step()
	s.wantStarted(2)
	if s.lastAttempt().Purpose != v1alpha1.AttemptForRewind || HoldsPlace(s.o.Task) {
		t.Errorf("the attempt %+v takes a place", s.lastAttempt())
	}
	s.prepared(daemonapi.PrepareResult{Operation: "back", OperationKind: daemonapi.OperationRewind})
	s.wantState(v1alpha1.ReasonQueued)
	if state := s.newDecisionState(); state != "Queued" {
		t.Errorf("the history has the task as %s", state)
	}
	s.turn().step()
	s.wantStarted(3)
}

func TestAPodInAQueueIsReplacedOnlyForWhatItIsMadeOf(t *testing.T) {
	for name, c := range map[string]struct {
		change   builders.TaskOption
		replaced bool
	}{
		"its priority":         {builders.Priority(7), false},
		"its deadline":         {func(t *v1alpha1.Task) { t.Spec.DeadlineSeconds = ptr.To[int64](3600) }, false},
		"its backoff limit":    {builders.BackoffLimit(9), false},
		"what becomes of it":   {func(t *v1alpha1.Task) { t.Spec.OnFinish = &v1alpha1.OnFinish{} }, false},
		"its agent's image":    {func(t *v1alpha1.Task) { t.Spec.Template.Spec.Containers[0].Image = "another" }, true},
		"when checkpoints are": {func(t *v1alpha1.Task) { t.Spec.CheckpointPolicy.EverySeconds = new(int32) }, true},
	} {
		t.Run(name, func(t *testing.T) {
			s := newScene(t).step()
			s.gated("kueue.x-k8s.io/admission").after(time.Minute).step()
			s.change(c.change).step()
			if got := s.pod().DeletionTimestamp != nil; got != c.replaced {
				t.Errorf("the pod is replaced: %t, want %t", got, c.replaced)
			}
		})
	}
	t.Run("one of a former version for anything", func(t *testing.T) {
		s := newScene(t).step()
		s.gated("kueue.x-k8s.io/admission").after(time.Minute).step()
		delete(s.pod().Annotations, v1alpha1.AnnotationPodDigest)
		s.change(builders.Priority(7)).step()
		if s.pod().DeletionTimestamp == nil {
			t.Error("the pod is kept")
		}
	})
}
