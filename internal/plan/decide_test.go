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

func TestATaskIsStarted(t *testing.T) {
	s := newScene(t).step()

	if s.claims != 1 || s.status().ClaimUID != "claim-1" {
		t.Errorf("%d claims, want 1; the status names %q, want claim-1", s.claims, s.status().ClaimUID)
	}
	s.wantPod(Pod{Attempt: 1})
	if s.writes != 1 {
		t.Errorf("%d status writes so far", s.writes)
	}
	s.wantState(v1alpha1.ReasonPreparing)
	s.wantEntries(v1alpha1.EventTaskStarted)

	s.prepared(daemonapi.PrepareResult{})
	s.agentRuns()
	s.wantState(v1alpha1.ReasonRunning)
	if c := s.wantCondition(v1alpha1.TaskWorkspaceReady); c.Status != metav1.ConditionTrue {
		t.Errorf("WorkspaceReady: %+v", c)
	}
	if s.writes != 2 {
		t.Errorf("%d status writes so far", s.writes)
	}
}

func TestATaskIsCompletedWhenItsLastCheckpointIsRecorded(t *testing.T) {
	s := running(t)
	s.agentExits(0)
	s.wantState(v1alpha1.ReasonCompleting)
	s.record(v1alpha1.TriggerCompletion)
	s.step()
	s.wantState(v1alpha1.ReasonCompleted)
	if c := s.wantCondition(v1alpha1.TaskSucceeded); c.Status != metav1.ConditionTrue {
		t.Errorf("Succeeded is %s", c.Status)
	}
	if s.status().LatestCheckpoint.Number != 1 || s.wantCondition(v1alpha1.TaskDurable).Status != metav1.ConditionTrue {
		t.Errorf("latest checkpoint: %+v", s.status().LatestCheckpoint)
	}
	s.wantOutcomes(v1alpha1.AttemptCompleted)
	s.wantEntries(v1alpha1.EventTaskStarted, v1alpha1.EventTaskCompleted)
	s.podFinishes()
	if len(s.o.Pods) != 1 {
		t.Error("the finished pod is not kept for its logs")
	}
}

func TestATaskWhoseCompletionIsRecordedIsNotRunAgainWhenItsPodVanishes(t *testing.T) {
	s := running(t)
	s.record(v1alpha1.TriggerCompletion)
	s.podGone()
	s.wantState(v1alpha1.ReasonCompleted)
	s.wantOutcomes(v1alpha1.AttemptCompleted)
}

func TestAnAgentThatExitedWithZeroWithoutARecordIsStartedAgain(t *testing.T) {
	s := running(t)
	s.agentExits(0)
	s.podFinishes()
	s.wantState(v1alpha1.ReasonCompleting)
	s.after(time.Minute).step()
	s.wantOutcomes(v1alpha1.AttemptPodLost, "")
}

func TestWithTheStoreDownTheEndOfTheAgentIsNotJudged(t *testing.T) {
	s := running(t)
	s.o.History.Known = false
	s.agentExits(0)
	s.podFinishes()
	s.after(time.Hour).step()
	s.wantState(v1alpha1.ReasonCompleting)
}

func TestAFailedAgentIsRetriedWithGrowingPauses(t *testing.T) {
	s := running(t, builders.BackoffLimit(2))
	for i, pause := range []time.Duration{5 * time.Second, 10 * time.Second} {
		s.agentExits(3)
		s.podFinishes()
		s.wantState(v1alpha1.ReasonRetrying)
		if got := s.plans[len(s.plans)-1].RequeueAfter; got != pause {
			t.Errorf("retry %d after %v, want %v", i+1, got, pause)
		}
		s.after(pause).step()
		s.wantStarted(int64(i + 2))
		s.prepared(daemonapi.PrepareResult{})
		s.agentRuns()
	}
	s.agentExits(3)
	s.wantState(v1alpha1.ReasonBackoffLimit)
	if c := s.wantCondition(v1alpha1.TaskSucceeded); c.Status != metav1.ConditionFalse || !strings.Contains(c.Message, "exited with code 3") {
		t.Errorf("Succeeded: %+v", c)
	}
	s.wantEntries(v1alpha1.EventTaskStarted, v1alpha1.EventTaskRetried, v1alpha1.EventTaskRetried, v1alpha1.EventTaskFailed)
	s.podFinishes()
	if s.started() != nil {
		t.Error("it was started again")
	}
}

func TestATaskWithoutRetriesFailsAtOnce(t *testing.T) {
	s := running(t, builders.BackoffLimit(0))
	s.agentExits(1)
	s.wantState(v1alpha1.ReasonAgentFailed)
}

func TestALostPodIsNoFailureOfTheAgent(t *testing.T) {
	for name, lose := range map[string]func(*scene){
		"gone": func(s *scene) { s.podGone() },
		"deleted, its agent killed": func(s *scene) {
			s.pod().DeletionTimestamp = ptr.To(metav1.NewTime(s.now))
			s.agentExits(137)
			s.wantOutcomes("")
			s.podGone()
		},
		"evicted": func(s *scene) {
			s.pod().Status.Reason = "Evicted"
			s.podFinishes()
		},
		"disrupted, its agent terminated": func(s *scene) {
			s.pod().Status.Conditions = []corev1.PodCondition{{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: "DeletionByTaintManager"}}
			s.agentExits(143)
			s.podFinishes()
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := running(t, builders.BackoffLimit(0))
			s.after(time.Minute)
			lose(s)
			s.wantOutcomes(v1alpha1.AttemptPodLost, "")
			if s.status().Failures != 0 {
				t.Errorf("it counts as %d failures", s.status().Failures)
			}
			if s.lastAttempt().Trigger != v1alpha1.AttemptAfterPodLost {
				t.Errorf("trigger %s", s.lastAttempt().Trigger)
			}
			s.wantEntries(v1alpha1.EventTaskStarted, v1alpha1.EventPodLost, v1alpha1.EventTaskRetried)
		})
	}
}

func TestPodsThatAreLostAtOnceAreNotRemadeInALoop(t *testing.T) {
	s := running(t)
	s.podGone() // the first replacement comes at once
	s.podGone()
	s.wantState(v1alpha1.ReasonRetrying)
	s.after(time.Second).step()
	s.wantStarted(3)
	s.after(time.Minute).podGone() // it ran for a while: at once again
	s.wantStarted(4)
}

func TestPausesGrowToTheirBound(t *testing.T) {
	for failures, seconds := range []int{0, 5, 10, 20, 40, 60, 60} {
		want := time.Duration(seconds) * time.Second
		if got := backoff(5*time.Second, time.Minute, failures); got != want {
			t.Errorf("after %d failures %v, want %v", failures, got, want)
		}
	}
	if got := backoff(5*time.Second, time.Hour, 1000); got != time.Hour {
		t.Errorf("after 1000 failures %v", got)
	}
}

func TestThereAreNeverTwoPodsOfOneTask(t *testing.T) {
	s := running(t)
	s.change(builders.Suspended).step()
	s.change(builders.Running).step()
	if s.started() != nil || len(s.o.Pods) != 1 {
		t.Error("a pod was started beside one that is ending")
	}
	s.podGone()
	s.wantStarted(2)
	s.wantOutcomes(v1alpha1.AttemptSuspended, "")
}

func TestAWorkspaceThatCannotBePrepared(t *testing.T) {
	t.Run("for now, is tried again", func(t *testing.T) {
		s := newScene(t).step()
		s.prepareExits(1, daemonapi.PrepareResult{Reason: v1alpha1.ReasonGitStoreUnreachable, Message: "the gitstore does not answer"})
		s.wantState(v1alpha1.ReasonRetrying)
		if c := s.wantCondition(v1alpha1.TaskWorkspaceReady); c.Status != metav1.ConditionFalse || c.Reason != v1alpha1.ReasonGitStoreUnreachable {
			t.Errorf("WorkspaceReady: %+v", c)
		}
		s.after(5 * time.Second).step()
		s.wantOutcomes(v1alpha1.AttemptPrepareFailed, "")
		if s.status().Failures != 0 {
			t.Error("it counts as a failure of the agent")
		}
	})
	t.Run("until somebody acts, fails the task", func(t *testing.T) {
		s := newScene(t).step()
		s.prepareExits(1, daemonapi.PrepareResult{Reason: v1alpha1.ReasonRefNotFound, Message: "there is no branch x", Permanent: true})
		s.wantState(v1alpha1.ReasonRefNotFound)
		c := s.wantCondition(v1alpha1.TaskSucceeded)
		if c.Status != metav1.ConditionFalse || !strings.Contains(c.Message, "there is no branch x; fix the cause, then resume the task") {
			t.Errorf("Succeeded: %+v", c)
		}
		s.after(time.Hour).step()
		if s.started() != nil {
			t.Error("it was started again")
		}
		s.change(builders.Resume("fixed")).step()
		if op := s.startedOperation(); op.Kind != daemonapi.OperationResume {
			t.Errorf("prepare gets the operation %s, want a resume", op.Kind)
		}
	})
	t.Run("because prepare was killed, is tried again at once", func(t *testing.T) {
		s := newScene(t).step()
		s.prepareKilled()
		s.wantOutcomes(v1alpha1.AttemptPodLost, "")
	})
	t.Run("for no reason that can be read, is tried again", func(t *testing.T) {
		s := newScene(t).step()
		s.prepareExits(2, daemonapi.PrepareResult{})
		s.wantOutcomes(v1alpha1.AttemptPrepareFailed)
		if c := s.wantCondition(v1alpha1.TaskWorkspaceReady); c.Reason != v1alpha1.ReasonPrepareFailed {
			t.Errorf("WorkspaceReady: %+v", c)
		}
	})
}

func TestTheReasonWhyAPodDoesNotStartIsReported(t *testing.T) {
	waiting := func(container, reason, message string) func(*scene) {
		return func(s *scene) {
			s.setContainer(container, corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason, Message: message}})
		}
	}
	unscheduled := func(message string) func(*scene) {
		return func(s *scene) {
			s.pod().Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Message: message}}
		}
	}
	for name, c := range map[string]struct {
		problem func(*scene)
		reason  string
	}{
		"image":      {waiting("agent", "ImagePullBackOff", "not found"), v1alpha1.ReasonImageUnavailable},
		"image name": {waiting("agent", "InvalidImageName", "couldn't parse image name"), v1alpha1.ReasonImageUnavailable},
		"prompt":     {waiting("agent", "CreateContainerConfigError", `secret "p" not found`), v1alpha1.ReasonPromptNotFound},
		"daemon":     {waiting("daemon", "CrashLoopBackOff", "back-off"), v1alpha1.ReasonDaemonUnavailable},
		"node":       {unscheduled("0/1 nodes are available: insufficient cpu"), v1alpha1.ReasonUnschedulable},
		"volume":     {unscheduled("pod has unbound immediate PersistentVolumeClaims"), v1alpha1.ReasonVolumeUnavailable},
		"runtime":    {waiting("agent", "CreateContainerError", "no such file"), v1alpha1.ReasonPodRefused},
		"no problem": {waiting("agent", "PodInitializing", ""), v1alpha1.ReasonPreparing},
	} {
		t.Run(name, func(t *testing.T) {
			s := newScene(t).step()
			c.problem(s)
			s.step()
			s.wantState(v1alpha1.ReasonPreparing) // it may pass
			s.after(10 * time.Second).step()
			s.wantState(c.reason)
			if reported := s.hindered() == 1; reported != (c.reason != v1alpha1.ReasonPreparing) {
				t.Errorf("the problem was reported %d times: %+v", s.hindered(), s.status().History)
			}
			if got := s.wantCondition(v1alpha1.TaskSucceeded); got.Status != metav1.ConditionUnknown {
				t.Errorf("Succeeded is %s while the kubelet still tries", got.Status)
			}
		})
	}
}

func TestTheMessageOfAProblemMayChangeWithoutAWrite(t *testing.T) {
	s := newScene(t).step()
	state := func(reason, message string) {
		s.setContainer("agent", corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason, Message: message}})
	}
	state("ErrImagePull", "not found")
	s.after(10 * time.Second).step()
	before := s.writes
	state("ImagePullBackOff", "back-off pulling image")
	s.step()
	if s.writes != before {
		t.Error("the status was written again")
	}
}

// A container that crash-loops has a problem each time. An attempt reports that once.
func TestAProblemThatComesAndGoesIsReportedOnce(t *testing.T) {
	s := newScene(t).step().after(10 * time.Second)
	for range 3 {
		s.setContainer("daemon", corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff"}})
		s.after(time.Second).step()
		s.wantState(v1alpha1.ReasonDaemonUnavailable)
		s.setContainer("daemon", corev1.ContainerState{Running: &corev1.ContainerStateRunning{}})
		s.after(time.Second).step()
	}
	if s.hindered() != 1 {
		t.Errorf("the problem was reported %d times, want once", s.hindered())
	}
}

func TestAPodThatDoesNotStartIsReplacedWhenTheTemplateChanges(t *testing.T) {
	s := newScene(t).step()
	s.setContainer("agent", corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ImagePullBackOff"}})
	s.after(10 * time.Second).step()
	s.change(func(t *v1alpha1.Task) { t.Spec.Template.Spec.Containers[0].Image = "agent:2" }).step()
	s.podGone()
	s.wantOutcomes(v1alpha1.AttemptStopped, "")
}

func TestAPodWaitsForWhatItNeeds(t *testing.T) {
	t.Run("a claim that is being deleted", func(t *testing.T) {
		s := running(t).after(time.Minute)
		s.o.Claim.DeletionTimestamp = ptr.To(metav1.NewTime(s.now))
		s.podGone()
		s.wantState(v1alpha1.ReasonVolumeUnavailable)
		s.o.Claim = nil
		s.step()
		s.wantState(v1alpha1.ReasonPreparing)
		if s.status().ClaimUID != "claim-2" {
			t.Errorf("status names %q", s.status().ClaimUID)
		}
		s.wantEntries(v1alpha1.EventTaskStarted, v1alpha1.EventPodLost, v1alpha1.EventVolumeLost, v1alpha1.EventTaskRetried)
	})
	t.Run("a claim that is somebody else's", func(t *testing.T) {
		s := newScene(t)
		s.o.Claim = &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: "tidy-up-workspace"}}
		s.step()
		s.wantState(v1alpha1.ReasonVolumeUnavailable)
		if s.started() != nil {
			t.Error("a pod was started on it")
		}
	})
	t.Run("a template that can be used", func(t *testing.T) {
		s := newScene(t)
		s.o.TemplateProblem = "hostPath volumes are refused"
		s.step()
		s.wantState(v1alpha1.ReasonInvalidTemplate)
		s.o.TemplateProblem = ""
		s.step()
		s.wantState(v1alpha1.ReasonPreparing)
	})
	t.Run("an API server that takes the pod", func(t *testing.T) {
		s := newScene(t).step()
		s.o.Pods, s.o.MadePodUID = nil, ""
		s.o.Blocker = &Blocker{v1alpha1.ReasonPodRefused, "exceeded quota"}
		p := Decide(s.o, s.now)
		if p.StartPod == nil || p.Status.Conditions[0].Reason != v1alpha1.ReasonPodRefused {
			t.Errorf("the plan starts %+v, and reports %+v", p.StartPod, p.Status.Conditions)
		}
	})
	t.Run("an API server that takes the claim", func(t *testing.T) {
		s := newScene(t)
		s.o.Claim = nil
		s.o.Blocker = &Blocker{v1alpha1.ReasonVolumeUnavailable, "the volume claim was refused"}
		p := Decide(s.o, s.now)
		if !p.CreateClaim || p.StartPod != nil || len(p.Status.Attempts) > 0 || p.Status.Conditions[0].Reason != v1alpha1.ReasonVolumeUnavailable {
			t.Errorf("the plan tries the claim again: %t, starts %+v, and reports %+v", p.CreateClaim, p.StartPod, p.Status.Conditions)
		}
		s.o.Blocker = nil
		if p := Decide(s.o, s.now); !p.CreateClaim || p.StartPod == nil {
			t.Errorf("once it is not refused, the plan starts %+v", p.StartPod)
		}
	})
}

func TestATaskIsSuspendedAndResumed(t *testing.T) {
	s := running(t)
	s.change(builders.Suspended).step()
	s.wantState(v1alpha1.ReasonSuspending)
	if s.pod().DeletionTimestamp == nil {
		t.Fatal("the pod was not deleted")
	}
	s.record(v1alpha1.TriggerSuspend)
	s.agentExits(143)
	s.wantState(v1alpha1.ReasonSuspending)
	s.podGone()
	s.wantState(v1alpha1.ReasonSuspended)
	s.wantOutcomes(v1alpha1.AttemptSuspended)
	if s.status().Failures != 0 || s.status().LatestCheckpoint == nil {
		t.Errorf("%d failures, want 0; latest checkpoint %+v, want one", s.status().Failures, s.status().LatestCheckpoint)
	}
	s.change(builders.Running).step()
	s.wantPod(Pod{Attempt: 2})
	s.wantEntries(v1alpha1.EventTaskStarted, v1alpha1.EventTaskSuspended, v1alpha1.EventTaskResumed)
}

func TestAManagerThatDiedWhileSuspendingFindsTheTaskSuspended(t *testing.T) {
	s := running(t)
	s.change(builders.Suspended)
	s.podGone() // the pod was stopped, and the status was never written
	s.wantState(v1alpha1.ReasonSuspended)
	s.wantOutcomes(v1alpha1.AttemptSuspended)
}

func TestATaskThatIsAppliedSuspendedIsNotStarted(t *testing.T) {
	s := newScene(t, builders.Suspended).step()
	s.wantState(v1alpha1.ReasonSuspended)
	if s.claims != 0 || len(s.o.Pods) != 0 {
		t.Error("it has a claim or a pod")
	}
}

func TestATaskThatStartsFromAnother(t *testing.T) {
	source := builders.Task("source", builders.WithUID("uid-of-source"))
	checkpoint := &v1alpha1.Checkpoint{
		ObjectMeta: metav1.ObjectMeta{Name: "source-3"},
		Spec:       v1alpha1.CheckpointSpec{TaskRef: v1alpha1.NameReference{Name: "source"}},
		Status: v1alpha1.CheckpointStatus{TaskUID: "uid-of-source", Number: 3, Commit: "c3", Conditions: []metav1.Condition{
			{Type: v1alpha1.CheckpointDurable, Status: metav1.ConditionTrue},
		}},
	}
	s := newScene(t, builders.StartFrom("source", "source-3"))
	s.o.Source.Known = true
	s.step()
	s.wantState(v1alpha1.ReasonSourceNotFound)
	s.o.Source.Task = source
	s.step()
	s.wantState(v1alpha1.ReasonCheckpointNotFound)
	checkpoint.Status.Conversation = &v1alpha1.CheckpointConversation{ConversationPosition: v1alpha1.ConversationPosition{Position: 8}}
	s.o.Source.Checkpoint = checkpoint
	s.step()
	from := daemonapi.Source{TaskUID: "uid-of-source", TaskName: "source", Checkpoint: 3, Commit: "c3", IncludeConversation: true, Position: 8}
	s.wantPod(Pod{Attempt: 1, Source: &from})
	s.wantEntries(v1alpha1.EventTaskStarted, v1alpha1.EventTaskForked)

	s.o.Source = Source{}
	s.podGone()
	s.wantPod(Pod{Attempt: 2, Source: &from}) // it is resolved once
}

// TestATaskThatCopiesFiles has its own conversation, whatever startFrom.conversation defaults to.
func TestATaskThatCopiesFiles(t *testing.T) {
	s := newScene(t, builders.StartFrom("source", ""), func(t *v1alpha1.Task) { t.Spec.StartFrom.CopyFiles = []string{"src/**/*.go"} })
	s.o.Task.Status.Source = &v1alpha1.SourceStatus{TaskUID: "u", Checkpoint: 3, Commit: "c3", Position: 8}
	s.step()
	s.wantPod(Pod{Attempt: 1, Source: &daemonapi.Source{TaskUID: "u", TaskName: "source", Checkpoint: 3, Commit: "c3", Position: 8, CopyFiles: []string{"src/**/*.go"}}})
}

func TestASourceThatCannotBeStartedFrom(t *testing.T) {
	good := func() (*v1alpha1.Task, *v1alpha1.Checkpoint) {
		return builders.Task("source", builders.WithUID("u")), &v1alpha1.Checkpoint{
			Spec: v1alpha1.CheckpointSpec{TaskRef: v1alpha1.NameReference{Name: "source"}},
			Status: v1alpha1.CheckpointStatus{TaskUID: "u", Number: 1, Conditions: []metav1.Condition{
				{Type: v1alpha1.CheckpointDurable, Status: metav1.ConditionTrue},
			}},
		}
	}
	for reason, spoil := range map[string]func(*v1alpha1.Task, *v1alpha1.Checkpoint){
		v1alpha1.ReasonRepositoryMismatch: func(t *v1alpha1.Task, _ *v1alpha1.Checkpoint) { t.Spec.Repository = nil },
		v1alpha1.ReasonCheckpointOfOther:  func(_ *v1alpha1.Task, c *v1alpha1.Checkpoint) { c.Spec.TaskRef.Name = "other" },
		v1alpha1.ReasonCheckpointNotReady: func(_ *v1alpha1.Task, c *v1alpha1.Checkpoint) { c.Status.Conditions = nil },
		v1alpha1.ReasonCheckpointLost: func(_ *v1alpha1.Task, c *v1alpha1.Checkpoint) {
			c.Status.Conditions[0].Status, c.Status.Conditions[0].Reason = metav1.ConditionFalse, v1alpha1.ReasonCheckpointLost
		},
		v1alpha1.ReasonCheckpointCorrupted: func(_ *v1alpha1.Task, c *v1alpha1.Checkpoint) {
			c.Status.Conditions[0] = metav1.Condition{Type: v1alpha1.CheckpointIntact, Status: metav1.ConditionFalse}
		},
	} {
		task, checkpoint := good()
		spoil(task, checkpoint)
		_, h := ResolveSource(builders.Task("new").Spec.Repository, &v1alpha1.StartFrom{TaskRef: v1alpha1.NameReference{Name: "source"}}, Source{Task: task, Checkpoint: checkpoint})
		if h == nil || h.Reason != reason {
			t.Errorf("the source is blocked by %+v, want the reason %s", h, reason)
		}
	}
}

func TestADeletedTaskStopsItsPodAndRecordsItsLastEntry(t *testing.T) {
	s := running(t)
	s.o.Task.DeletionTimestamp = ptr.To(metav1.NewTime(s.now))
	s.step()
	if s.pod().DeletionTimestamp == nil || len(s.o.Task.Finalizers) == 0 {
		t.Fatal("the pod was not stopped first")
	}
	s.podGone()
	farewell := s.plans[0].Farewell
	if farewell == nil {
		t.Fatal("there is no last entry")
	}
	if farewell.Reason != v1alpha1.EventTaskDeleted {
		t.Errorf("the last entry is %s, want %s", farewell.Reason, v1alpha1.EventTaskDeleted)
	}
	if want := s.status().HistorySequence + 1; farewell.Sequence != want {
		t.Errorf("the last entry has the number %d, want %d", farewell.Sequence, want)
	}
	if len(s.o.Task.Finalizers) != 0 {
		t.Error("the finalizer is still there")
	}
}

func TestADeletionSaysThatItWaitsForTheHistoryStore(t *testing.T) {
	s := newScene(t)
	s.o.Task.DeletionTimestamp = ptr.To(metav1.NewTime(s.now))
	s.o.RecordProblem = "the history store cannot be reached"
	p := Decide(s.o, s.now)
	if !p.Write || p.Farewell == nil {
		t.Errorf("the plan writes the status: %v, want true; its last entry is %+v, want one", p.Write, p.Farewell)
	}
	s.wantMessage(p.Status.Conditions[0].Message, "the deletion waits for the history store")
}
