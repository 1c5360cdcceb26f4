package plan

import (
	"fmt"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/daemonapi"
	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/testing/builders"
)

// nodeLoss says what becomes of the task when its node cannot be reached.
func nodeLoss(seconds int64, policy v1alpha1.NodeLossPolicy) builders.TaskOption {
	return func(t *v1alpha1.Task) { t.Spec.NodeLoss = v1alpha1.NodeLoss{AfterSeconds: seconds, Policy: policy} }
}

// onNode returns a scene whose agent runs on node-1, with a durable checkpoint, and with a volume that
// only node-1 can attach.
func onNode(t *testing.T, options ...builders.TaskOption) *scene {
	t.Helper()
	s := newScene(t, append([]builders.TaskOption{nodeLoss(60, v1alpha1.NodeLossReplace)}, options...)...)
	s.volume = Volume{Bound: true, Nodes: map[string]Node{"node-1": {}}}
	s.step()
	s.scheduled("node-1")
	s.prepared(daemonapi.PrepareResult{Reason: v1alpha1.ReasonWorkspacePrepared})
	s.agentRuns()
	s.o.History.State.Attempt = 1
	s.record(v1alpha1.TriggerToolCalls)
	s.o.History.State.ActiveAt = s.now.Add(7 * time.Second)
	return s.after(10 * time.Second).step()
}

// scheduled puts the newest pod on a node, to which the volume is bound from then on.
func (s *scene) scheduled(node string) {
	s.pod().Spec.NodeName = node
	s.o.Claim.Spec.VolumeName = "volume-of-" + s.o.Claim.Name
	s.setNode(node, Node{})
}

// setNode says what is known of a node.
func (s *scene) setNode(name string, n Node) {
	if s.o.Nodes == nil {
		s.o.Nodes = map[string]Node{}
	}
	s.o.Nodes[name] = n
	if _, bound := s.volume.Nodes[name]; bound {
		s.volume.Nodes[name] = n
	}
}

// leaves makes a node one that cannot be reached from now on.
func (s *scene) leaves(node string) *scene {
	s.Helper()
	s.setNode(node, Node{UnreadySince: s.now})
	return s.step()
}

// podOf returns the pod of an attempt.
func (s *scene) podOf(attempt int64) *corev1.Pod {
	s.Helper()
	i := slices.IndexFunc(s.o.Pods, func(p corev1.Pod) bool { return p.Name == fmt.Sprintf("tidy-up-%d", attempt) })
	if i < 0 {
		s.Fatalf("there is no pod of attempt %d", attempt)
	}
	return &s.o.Pods[i]
}

func TestATaskGoesOnElsewhereOnceItsNodeIsLost(t *testing.T) {
	s := onNode(t).leaves("node-1")
	s.wantStatus(v1alpha1.TaskSucceeded, metav1.ConditionUnknown, v1alpha1.ReasonNodeUnreachable, "node node-1 has been unreachable since 2026-01-02T03:04:15Z",
		"if it is not back by 2026-01-02T03:05:15Z", "from its last durable checkpoint")
	if last := s.plans[len(s.plans)-1]; last.RequeueAfter != 60*time.Second {
		t.Errorf("the next decision follows after %s, want the time that the node has left", last.RequeueAfter)
	}
	if s.pod().DeletionTimestamp != nil {
		t.Error("the pod is deleted although its node may be back in time")
	}

	s.after(60 * time.Second).step()
	s.wantStarted(2)
	s.wantOutcomes(v1alpha1.AttemptNodeLost, "")
	if a := s.status().Attempts[0]; a.Reason != v1alpha1.ReasonNodeLost {
		t.Errorf("attempt 1 ended for the reason %q", a.Reason)
	}
	s.wantEntries("TaskStarted", "NodeUnreachable", "NodeLost", "VolumeLost", "TaskRetried")
	lost := s.status().History[3]
	s.wantMessage(lost.Message, "node node-1", "leaves its volume tidy-up-workspace behind", "checkpoint 1, of 2026-01-02T03:04:05Z", "tidy-up.2-workspace",
		"what it did after that is lost, and the history last heard of its agent at 2026-01-02T03:04:12Z")
	if lost.Checkpoint != 1 {
		t.Errorf("the entry is about checkpoint %d", lost.Checkpoint)
	}
	if s.status().ClaimName != "tidy-up.2-workspace" || s.o.Claim.Name != "tidy-up.2-workspace" || s.status().ClaimUID != "claim-2" {
		t.Errorf("the task's claim is %q (%s), and %s was made", s.status().ClaimName, s.status().ClaimUID, s.o.Claim.Name)
	}
	if s.podOf(1).DeletionTimestamp == nil {
		t.Error("the lost pod is not deleted")
	}
	if s.status().UnreachableNode != nil {
		t.Error("the task still waits for the node")
	}
	if len(s.o.FormerClaims) != 1 {
		t.Fatal("the former claim is gone before its pod is")
	}

	s.scheduled("node-2")
	s.prepared(daemonapi.PrepareResult{Reason: v1alpha1.ReasonWorkspacePrepared, Restored: true})
	s.agentRuns()
	s.wantState(v1alpha1.ReasonRunning)
	s.setNode("node-1", Node{})
	s.o.Pods = slices.DeleteFunc(s.o.Pods, func(p corev1.Pod) bool { return p.Name == "tidy-up-1" })
	s.step()
	if len(s.o.FormerClaims) != 0 || len(s.status().FormerClaims) != 0 {
		t.Errorf("the former claim is left: %v", s.status().FormerClaims)
	}
	s.wantState(v1alpha1.ReasonRunning)
	s.wantOutcomes(v1alpha1.AttemptNodeLost, "")
}

func TestANodeThatIsBackInTimeChangesNothing(t *testing.T) {
	s := onNode(t).leaves("node-1").after(59 * time.Second)
	s.setNode("node-1", Node{})
	s.step()
	s.wantState(v1alpha1.ReasonRunning)
	s.wantOutcomes("")
	if s.pod().DeletionTimestamp != nil || s.status().UnreachableNode != nil {
		t.Errorf("the pod or the status shows it: %v", s.status().UnreachableNode)
	}
	s.leaves("node-1").after(59 * time.Second).step()
	s.wantOutcomes("")
	s.after(time.Second).step()
	s.wantOutcomes(v1alpha1.AttemptNodeLost, "")
}

func TestTheTimeOfANodeThatIsGoneBeginsWhenItWasFirstMissed(t *testing.T) {
	for name, missed := range map[string]func(*scene){
		"gone at once":           func(s *scene) { s.setNode("node-1", Node{Gone: true}) },
		"unreachable, then gone": func(s *scene) { s.leaves("node-1"); s.setNode("node-1", Node{Gone: true}) },
		"from False to Unknown": func(s *scene) {
			s.leaves("node-1")
			s.setNode("node-1", Node{UnreadySince: s.now.Add(20 * time.Second)})
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := onNode(t)
			missed(s)
			s.step()
			s.managerRestarts().after(59 * time.Second).step()
			s.wantOutcomes("")
			s.after(time.Second).step()
			s.wantOutcomes(v1alpha1.AttemptNodeLost, "")
			s.wantStarted(2)
		})
	}
}

func TestATaskWaitsForItsNodeIfTheSpecSaysSo(t *testing.T) {
	s := onNode(t, nodeLoss(60, v1alpha1.NodeLossWait)).leaves("node-1").after(24 * time.Hour).step()
	s.wantStatus(v1alpha1.TaskSucceeded, metav1.ConditionUnknown, v1alpha1.ReasonNodeUnreachable, "as spec.nodeLoss.policy says; set it to Replace")
	s.wantOutcomes("")
	if at := s.plans[len(s.plans)-1].RequeueAfter; at != 0 {
		t.Errorf("it polls, after %s", at)
	}
	s.change(nodeLoss(60, v1alpha1.NodeLossReplace)).step()
	s.wantOutcomes(v1alpha1.AttemptNodeLost, "")
	s.wantStarted(2)
}

func TestATaskWaitsWhileNoNodeOfTheClusterCanBeReached(t *testing.T) {
	s := onNode(t).leaves("node-1")
	s.o.Elsewhere = false
	s.after(time.Hour).step()
	s.wantOutcomes("")
	s.wantStatus(v1alpha1.TaskSucceeded, metav1.ConditionUnknown, v1alpha1.ReasonNodeUnreachable, "no other node of the cluster can be reached either")
	s.o.Elsewhere = true
	s.step()
	s.wantStarted(2)
}

func TestTheVolumeIsUsedElsewhereIfKubernetesSaysThatTheNodeIsOutOfService(t *testing.T) {
	for name, policy := range map[string]v1alpha1.NodeLossPolicy{"Replace": v1alpha1.NodeLossReplace, "Wait": v1alpha1.NodeLossWait} {
		t.Run(name, func(t *testing.T) {
			s := onNode(t, nodeLoss(60, policy))
			s.volume = Volume{}
			s.leaves("node-1")
			s.wantOutcomes("")
			s.setNode("node-1", Node{UnreadySince: s.now, OutOfService: true})
			s.after(time.Second).step()
			s.wantOutcomes(v1alpha1.AttemptNodeLost)
			if s.pod().DeletionTimestamp == nil {
				t.Fatal("the pod is not deleted, so that Kubernetes does not end it either")
			}
			if s.started() != nil {
				t.Fatal("a pod is started before the former one is gone")
			}
			s.podGone()
			s.wantStarted(2)
			if s.status().ClaimName != "" || s.claims != 1 {
				t.Errorf("the volume was replaced, by %q", s.status().ClaimName)
			}
			s.wantEntries("TaskStarted", "NodeUnreachable", "NodeLost", "TaskRetried")
		})
	}
}

func TestAVolumeThatIsBoundToANodeOutOfServiceIsLeftBehindAfterTheSameTime(t *testing.T) {
	s := onNode(t).leaves("node-1")
	s.setNode("node-1", Node{UnreadySince: s.now, OutOfService: true})
	s.after(59 * time.Second).step()
	s.wantOutcomes("")
	s.podGone() // Kubernetes has deleted it by force
	s.wantOutcomes(v1alpha1.AttemptNodeLost)
	s.wantStatus(v1alpha1.TaskSucceeded, metav1.ConditionUnknown, v1alpha1.ReasonNodeUnreachable, "has the task's volume", "if it is not back by")
	s.after(time.Second).step()
	s.wantStarted(2)
	s.wantEntries("TaskStarted", "NodeUnreachable", "NodeLost", "VolumeLost", "TaskRetried")
	if s.status().ClaimName != "tidy-up.2-workspace" {
		t.Errorf("the task's claim is %q", s.status().ClaimName)
	}
}

func TestAPodThatKubernetesCollectsWithItsNodeIsLostWithIt(t *testing.T) {
	for name, collected := range map[string]func(*scene){
		"failed": func(s *scene) {
			s.pod().Status.Conditions = []corev1.PodCondition{{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: "DeletionByPodGC"}}
			s.podFinishes()
		},
		"gone": func(s *scene) { s.podGone() },
	} {
		t.Run(name, func(t *testing.T) {
			s := onNode(t)
			s.volume = Volume{}
			s.setNode("node-1", Node{Gone: true})
			s.step()
			s.wantOutcomes("")
			collected(s)
			s.wantOutcomes(v1alpha1.AttemptNodeLost, "")
			s.wantStarted(2)
			if s.status().ClaimName != "" {
				t.Errorf("the volume, which every node can attach, was replaced by %s", s.status().ClaimName)
			}
		})
	}
}

func TestATaskWithoutADurableCheckpointStartsAnew(t *testing.T) {
	s := onNode(t)
	s.o.History.State.Latest.Durable = false
	s.durable = Durable{Known: true}
	s.leaves("node-1").after(time.Minute).step()
	s.wantStarted(2)
	s.wantMessage(s.status().History[3].Message, "it has no durable checkpoint, and starts anew", "all that it did is lost")
}

func TestATaskGoesOnFromAnOlderCheckpointIfTheLatestIsNotDurable(t *testing.T) {
	s := onNode(t)
	s.record(v1alpha1.TriggerToolCalls)
	s.o.History.State.Latest.Durable = false
	s.leaves("node-1").after(time.Minute).step()
	s.wantOutcomes(v1alpha1.AttemptNodeLost)
	if s.started() != nil || s.status().ClaimName != "" {
		t.Fatal("it goes on before it is known from where")
	}
	s.durable = Durable{Known: true, Checkpoint: &history.Checkpoint{Number: 1, Time: s.now.Add(-time.Hour)}}
	s.after(5 * time.Second).step()
	s.wantStarted(2)
	if e := s.status().History[3]; e.Reason != v1alpha1.EventVolumeLost || e.Checkpoint != 1 {
		t.Errorf("the entry is %s, about checkpoint %d", e.Reason, e.Checkpoint)
	}
}

func TestNothingIsDecidedAboutALostNodeWhileTheHistoryStoreIsDown(t *testing.T) {
	s := onNode(t).leaves("node-1")
	s.o.History = History{}
	s.after(time.Hour).step()
	s.wantOutcomes("")
	s.wantStatus(v1alpha1.TaskSucceeded, metav1.ConditionUnknown, v1alpha1.ReasonNodeUnreachable, "when the history store can be reached")
}

func TestAnAgentThatHasCompletedOnANodeThatIsAwayNeedNotRunAgain(t *testing.T) {
	s := onNode(t).leaves("node-1")
	s.record(v1alpha1.TriggerCompletion)
	s.step()
	s.wantState(v1alpha1.ReasonCompleted)
	s.wantOutcomes(v1alpha1.AttemptCompleted)
}

func TestTheTimeOnANodeThatIsAwayCountsTowardsNoDeadline(t *testing.T) {
	s := onNode(t, builders.Deadline(100)).leaves("node-1").after(time.Hour).step()
	s.wantOutcomes(v1alpha1.AttemptNodeLost, "")
	if got := s.status().ActiveSeconds; got != 10 {
		t.Errorf("the agent has run for %d seconds, want the 10 until its node went away", got)
	}
}
