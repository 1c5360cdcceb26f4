package plan

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/daemonapi"
	"github.com/clew-dev/clew/internal/testing/builders"
)

func resumeDone(id string) daemonapi.PrepareResult {
	return daemonapi.PrepareResult{Reason: v1alpha1.ReasonWorkspacePrepared, OperationKind: daemonapi.OperationResume, Operation: id}
}

// The agent's image is pulled after prepare has ended, so the resume is complete when the template is
// corrected and the pod is replaced.
func TestAResumedTaskGoesOnWhenItsPodIsReplacedBeforeTheAgentStarts(t *testing.T) {
	for name, ended := range map[string]func(*testing.T) *scene{"completed": func(t *testing.T) *scene { return completedTask(t) }, "failed": failedTask} {
		t.Run(name, func(t *testing.T) {
			s := ended(t)
			s.change(resume("more", "More.")).step()
			s.prepared(resumeDone("more"))
			s.wantOperation(s.status().Resume, "more", v1alpha1.OperationCompleted, "")
			s.setContainer(v1alpha1.AgentContainer, corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ImagePullBackOff", Message: "not found"}})
			s.after(time.Hour).step()
			s.wantState(v1alpha1.ReasonImageUnavailable)
			s.change(func(t *v1alpha1.Task) {}).step()
			s.podGone()
			if s.started() == nil {
				s.Errorf("no pod follows; the task is %+v, attempts %+v", s.wantCondition(v1alpha1.TaskSucceeded), s.status().Attempts)
			}
		})
	}
}

// The same through a suspension: the pod had recorded the prompt, and was stopped behind that.
func TestAPromptThatTheHistoryHasIsNotToBeRepeatedAfterASuspension(t *testing.T) {
	s := completedTask(t)
	s.change(resume("more", "More.")).step()
	s.o.History.State.CompletedOperations = []string{"Resume/more"}
	s.change(builders.Suspended).step().podGone()
	s.wantState(v1alpha1.ReasonSuspended)
	s.change(builders.Resume("on"), builders.Running).step()
	s.wantOperation(s.status().Resume, "on", v1alpha1.OperationInProgress, "")
}

// wantToldOnce expects one entry about an operation that failed to have the message.
func (s *scene) wantToldOnce(message string) {
	s.Helper()
	told := 0
	for _, e := range s.status().History {
		if e.Reason == v1alpha1.EventOperationFailed && e.Message == message {
			told++
		}
	}
	if told != 1 {
		s.Errorf("%q is told %d times: %+v", message, told, s.status().History)
	}
}

// The second one waits itself until its checkpoint is known.
func TestAResumeThatReplacesOneThatWaitsIsToldBeforeItIsAccepted(t *testing.T) {
	s := failedTask(t)
	s.change(resume("more", "More."), builders.Running).step()
	s.change(builders.Suspended).step().podGone()
	s.change(builders.Resume("on"), fromNumber(1), builders.Running).step()
	s.wantOperation(s.status().Resume, "on", v1alpha1.OperationPending, v1alpha1.ReasonHistoryUnavailable)
	s.after(time.Minute).step()
	s.wantToldOnce("resume on takes the place of resume more, which was not seen to be carried out")
}

// The second one's spec has taken the place of the first one's, and its prompt with it.
func TestAResumeThatReplacesOneThatWaitsIsTold(t *testing.T) {
	for name, test := range map[string]struct {
		ended func(*testing.T) *scene
		state v1alpha1.OperationState
	}{
		"completed": {func(t *testing.T) *scene { return completedTask(t) }, v1alpha1.OperationRefused},
		"failed":    {failedTask, v1alpha1.OperationInProgress},
	} {
		t.Run(name, func(t *testing.T) {
			s := test.ended(t)
			s.change(resume("more", "More."), builders.Running).step()
			s.change(builders.Suspended).step().podGone()
			s.wantState(v1alpha1.ReasonSuspended)
			s.change(builders.Resume("on"), builders.Running).step()
			if s.status().Resume.State != test.state {
				t.Errorf("the second resume is %+v, want %s", s.status().Resume, test.state)
			}
			s.wantToldOnce("resume on takes the place of resume more, which was not seen to be carried out")
		})
	}
}

// A manager that was away has not seen that the agent has worked.
func TestATaskThatHasWorkedGoesOnAfterARewind(t *testing.T) {
	s := completedTask(t)
	s.change(resume("more", "More.")).step()
	// the manager is away; the pod prepares, works for hours, and is lost with its node
	s.o.History.State.CompletedOperations = []string{"Resume/more"}
	s.record(v1alpha1.TriggerManual)
	s.managerRestarts().after(5 * time.Hour)
	s.rewind("back", 2)
	s.podGone()
	p := s.wantStarted(3)
	if p.PrepareOnly {
		t.Errorf("the agent that has worked for hours does not go on: %+v", s.status().Attempts)
	}
}

func TestAFollowUpThatNoNodeCouldTakeNeedsItsPromptAgain(t *testing.T) {
	s := completedTask(t)
	s.status().Attempts[0].NodeName = "n1"
	s.change(resume("more", "More."), func(t *v1alpha1.Task) { t.Spec.Resume.Placement = v1alpha1.PlacementOtherNode }).step()
	s.wantStarted(2)
	s.after(time.Minute).step()
	s.change(builders.Resume("any")).step()
	s.wantOperation(s.status().Resume, "any", v1alpha1.OperationRefused, v1alpha1.ReasonInvalidOperation)
}

// The resume was carried out, prepare failed behind that, and the rewind that overtakes it fails, too.
func TestAResumeThatWasCarriedOutGoesOnAfterARewindThatFails(t *testing.T) {
	s := completedTask(t)
	s.change(resume("more", "More.")).step()
	s.o.History.State.CompletedOperations = []string{"Resume/more"}
	s.prepareExits(1, daemonapi.PrepareResult{Reason: v1alpha1.ReasonServerUnreachable, Message: "no answer"})
	s.rewind("back", 1).after(time.Hour).step()
	s.wantOperation(s.status().Resume, "more", v1alpha1.OperationCompleted, "")
	s.wantStarted(3)
	s.prepareExits(1, daemonapi.PrepareResult{Reason: v1alpha1.ReasonDriftDetected, Permanent: true, Message: "a.txt was changed"})
	s.wantOperation(s.status().Rewind, "back", v1alpha1.OperationFailed, v1alpha1.ReasonDriftDetected)
	if p := s.wantStarted(4); p.PrepareOnly {
		t.Error("the agent does not go on")
	}
}
