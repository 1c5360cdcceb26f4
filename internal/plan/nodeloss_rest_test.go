package plan

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/daemonapi"
	"github.com/clew-dev/clew/internal/testing/builders"
)

// asleep returns a scene whose task is suspended in good order, with a volume that only node-1 can attach,
// which is then gone.
func asleep(t *testing.T, options ...builders.TaskOption) *scene {
	t.Helper()
	s := onNode(t, options...).suspend()
	s.setNode("node-1", Node{UnreadySince: s.now})
	s.after(time.Second).step()
	s.wantState(v1alpha1.ReasonSuspended)
	if s.status().UnreachableNode != nil {
		t.Error("a task that rests waits for a node")
	}
	return s
}

func TestASuspendedTaskGetsANewVolumeWhenItIsResumedAndItsNodeIsLost(t *testing.T) {
	s := asleep(t)
	s.change(builders.Running).step()
	s.wantStatus(v1alpha1.TaskSucceeded, metav1.ConditionUnknown, v1alpha1.ReasonNodeUnreachable, "has the task's volume", "with a new volume")
	s.wantEntries("TaskStarted", "TaskSuspended", "NodeUnreachable")
	if s.started() != nil {
		t.Fatal("a pod is started that no node can take")
	}
	s.after(time.Minute).step()
	s.wantStarted(2)
	s.wantEntries("TaskStarted", "TaskSuspended", "NodeUnreachable", "VolumeLost", "TaskResumed")
	if message := s.status().History[3].Message; message[len(message)-len("tidy-up.2-workspace"):] != "tidy-up.2-workspace" {
		t.Errorf("it says that something is lost: %s", message)
	}
}

func TestASuspendedTaskUsesItsVolumeIfItsNodeIsBack(t *testing.T) {
	s := asleep(t)
	s.change(builders.Running).step()
	s.after(59 * time.Second)
	s.setNode("node-1", Node{})
	s.step()
	s.wantStarted(2)
	if s.status().ClaimName != "" || s.status().UnreachableNode != nil {
		t.Errorf("its claim is %q; it waits for %v", s.status().ClaimName, s.status().UnreachableNode)
	}
}

func TestATaskAtRestWaitsForItsNodeIfOnlyThatHasItsWork(t *testing.T) {
	s := asleep(t)
	s.o.History.State.Latest.Durable = false
	s.change(builders.Running).after(time.Hour).step()
	s.wantStatus(v1alpha1.TaskSucceeded, metav1.ConditionUnknown, v1alpha1.ReasonNodeUnreachable, "only that volume may have what the task did last",
		"delete the PersistentVolumeClaim tidy-up-workspace")
	s.o.Claim = nil // somebody gives it up
	s.step()
	s.wantStarted(2)
	s.wantEntries("TaskStarted", "TaskSuspended", "NodeUnreachable", "VolumeLost", "TaskResumed")
}

func TestATaskAtRestWaitsForANodeThatIsGoneForTheSameTime(t *testing.T) {
	s := onNode(t).suspend()
	s.volume.Nodes = nil
	s.after(time.Hour).change(builders.Running).step()
	s.wantState(v1alpha1.ReasonNodeUnreachable)
	s.after(59 * time.Second).step()
	s.wantState(v1alpha1.ReasonNodeUnreachable)
	s.after(time.Second).step()
	s.wantStarted(2)
}

func TestATaskThatIsSuspendedWhileItsNodeIsAwayRestsWhenTheNodeIsLost(t *testing.T) {
	s := onNode(t).leaves("node-1").change(builders.Suspended).step()
	s.wantStatus(v1alpha1.TaskSucceeded, metav1.ConditionUnknown, v1alpha1.ReasonNodeUnreachable, "the pod counts as lost, with what the agent did")
	if s.pod().DeletionTimestamp == nil {
		t.Error("its pod is not stopped")
	}
	s.after(time.Minute).step()
	s.wantState(v1alpha1.ReasonSuspended)
	s.wantOutcomes(v1alpha1.AttemptNodeLost)
	s.wantEntries("TaskStarted", "NodeUnreachable", "NodeLost", "TaskSuspended")
	if s.status().ClaimName != "" {
		t.Error("its volume is given up although nobody needs one")
	}

	s.change(builders.Running).step()
	s.wantStarted(2)
	s.wantEntries("TaskStarted", "NodeUnreachable", "NodeLost", "TaskSuspended", "VolumeLost", "TaskResumed")
}

func TestARewindThatIsRequestedWhileTheNodeIsAwayIsCarriedOutElsewhere(t *testing.T) {
	s := onNode(t).leaves("node-1").rewind("undo", 1).step()
	s.wantState(v1alpha1.ReasonNodeUnreachable)
	s.after(time.Minute).step()
	s.wantOutcomes(v1alpha1.AttemptNodeLost, "")
	if op := s.startedOperation(); op.Kind != daemonapi.OperationRewind || op.ID != "undo" {
		t.Errorf("the pod carries out %s %s", op.Kind, op.ID)
	}
	s.scheduled("node-2")
	s.prepared(daemonapi.PrepareResult{Reason: v1alpha1.ReasonWorkspacePrepared, Operation: "undo", OperationKind: daemonapi.OperationRewind})
	s.agentRuns()
	if op := s.status().Rewind; op.State != v1alpha1.OperationCompleted {
		t.Errorf("the rewind is %s: %s", op.State, op.Message)
	}
}

func TestASuspendedTaskIsRewoundOnAnotherNode(t *testing.T) {
	s := asleep(t).rewind("undo", 1).step()
	s.wantState(v1alpha1.ReasonNodeUnreachable)
	s.after(time.Minute).step()
	if p := s.wantStarted(2); !p.PrepareOnly {
		t.Error("the pod runs an agent")
	}
}

func TestTheDeletionOfATaskWaitsForAPodOnALostNodeOnlySoLong(t *testing.T) {
	for name, policy := range map[string]v1alpha1.NodeLossPolicy{"Replace": v1alpha1.NodeLossReplace, "Wait": v1alpha1.NodeLossWait} {
		t.Run(name, func(t *testing.T) {
			s := onNode(t, nodeLoss(60, policy)).leaves("node-1")
			s.o.Task.DeletionTimestamp = ptr.To(metav1.NewTime(s.now))
			s.after(10 * time.Second).step()
			s.wantStatus(v1alpha1.TaskSucceeded, metav1.ConditionUnknown, v1alpha1.ReasonDeleting, "waits until 2026-01-02T03:05:15Z for pod tidy-up-1")
			if at := s.plans[len(s.plans)-1].RequeueAfter; at != 50*time.Second {
				t.Errorf("the next decision follows after %s", at)
			}
			if s.pod().DeletionTimestamp == nil || len(s.o.Task.Finalizers) == 0 {
				t.Fatal("the pod is not deleted, or the Task does not wait for it")
			}
			s.after(50 * time.Second)
			if p := s.decide(); p.Farewell == nil {
				t.Fatal("the deletion still waits")
			}
		})
	}
}

func TestAPodThatWasLeftBehindHoldsNoRelease(t *testing.T) {
	s := onNode(t, releasing).leaves("node-1").after(time.Minute).step()
	s.scheduled("node-2")
	s.prepared(daemonapi.PrepareResult{Reason: v1alpha1.ReasonWorkspacePrepared, Restored: true})
	s.agentRuns()
	s.stored.Known = true
	s.suspend()
	s.wantKept("until checkpoint 2 is verified")
	s.verified()
	s.wantReleased(v1alpha1.ReleasedSuspended)
	if len(s.o.FormerClaims) != 1 {
		t.Error("the claim of the lost pod is deleted before its pod is gone")
	}
	s.change(builders.Running).step()
	s.wantStarted(3)
	if s.o.Claim.Name != "tidy-up.2-workspace" {
		t.Errorf("its new claim is %s", s.o.Claim.Name)
	}
}

func TestAPodThatNoNodeTakesIsReplacedIfItsVolumeIsOnALostNode(t *testing.T) {
	s := onNode(t).suspend()
	s.change(builders.Running).step() // a moment before the node is missed
	s.wantStarted(2)
	s.setNode("node-1", Node{UnreadySince: s.now})
	s.pod().Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Message: "1 node(s) had an untolerated taint"}}
	s.after(59 * time.Second).step()
	s.wantStatus(v1alpha1.TaskSucceeded, metav1.ConditionUnknown, v1alpha1.ReasonNodeUnreachable, "has the task's volume")
	s.after(time.Second).step()
	s.podGone()
	s.wantStarted(3)
	if s.status().ClaimName != "tidy-up.2-workspace" {
		t.Errorf("the task's claim is %q", s.status().ClaimName)
	}
}

func TestClaimsThatWereLeftBehindAreBounded(t *testing.T) {
	s := onNode(t)
	for i := range maxFormerClaims + 2 {
		node := fmt.Sprintf("node-%d", i+1)
		s.volume.Nodes = map[string]Node{node: {}}
		s.leaves(node).after(time.Minute).step()
		s.scheduled(fmt.Sprintf("node-%d", i+2))
		s.prepared(daemonapi.PrepareResult{Reason: v1alpha1.ReasonWorkspacePrepared, Restored: true})
		s.agentRuns()
		s.recorded()
	}
	if got := len(s.status().FormerClaims); got != maxFormerClaims {
		t.Errorf("the status has %d former claims", got)
	}
	if first := s.status().FormerClaims[0].Name; first != "tidy-up.3-workspace" {
		t.Errorf("the oldest of them is %s: those before were deleted", first)
	}
	if got := s.status().ClaimName; got != fmt.Sprintf("tidy-up.%d-workspace", maxFormerClaims+3) {
		t.Errorf("the claim is %s", got)
	}
}
