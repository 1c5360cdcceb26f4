package plan

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/daemonapi"
	"github.com/clew-dev/clew/internal/resources"
)

// publishes makes a task publish its work.
func publishes(change ...func(*v1alpha1.Publish)) func(*v1alpha1.Task) {
	return func(t *v1alpha1.Task) {
		t.Spec.Repository = &v1alpha1.Repository{URL: "https://git.example.com/p.git"}
		t.Spec.Publish = &v1alpha1.Publish{Branch: "clew/work", When: v1alpha1.PublishCompleted}
		for _, f := range change {
			f(t.Spec.Publish)
		}
	}
}

// startPublisher creates the pod of a plan.
func (s *scene) startPublisher(p *Publisher) {
	s.Helper()
	for i := range s.o.Publishers {
		if pod := &s.o.Publishers[i]; !inspect(pod).finished && !PublisherIsLost(pod, s.now) {
			s.Fatalf("pod %d was started while %s publishes", p.Number, s.o.Publishers[i].Name)
		}
	}
	pod, err := resources.NewPublisher(resources.PublisherRequest{Task: s.o.Task, Number: p.Number, Checkpoint: p.Checkpoint, Replaces: p.Replaces, Onto: p.Onto, Earlier: p.Earlier, Tries: p.Tries, Announced: p.Announced, Unreported: p.Unreported}, resources.Options{})
	if err != nil {
		s.Fatal(err)
	}
	pod.UID, pod.CreationTimestamp, pod.Status.Phase = types.UID("uid-of-"+pod.Name), metav1.NewTime(s.now), corev1.PodPending
	s.o.Publishers, s.o.ReservedPublisher = append(s.o.Publishers, *pod), 0
}

// publisherEnds ends the pod that publishes, with a result, and decides again.
func (s *scene) publisherEnds(result daemonapi.PublishResult) *scene {
	s.Helper()
	if len(s.o.Publishers) != 1 {
		s.Fatalf("%d pods publish, want one", len(s.o.Publishers))
	}
	message, _ := json.Marshal(result)
	pod := &s.o.Publishers[0]
	pod.Status.Phase = corev1.PodSucceeded
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: daemonapi.PublishContainer, State: corev1.ContainerState{
		Terminated: &corev1.ContainerStateTerminated{Message: string(message), ExitCode: 1},
	}}}
	return s.step()
}

// wantPublisher fails unless this is the only pod that publishes.
func (s *scene) wantPublisher(number, checkpoint int64, replaces string) {
	s.Helper()
	s.o.Publishers = slices.DeleteFunc(s.o.Publishers, func(pod corev1.Pod) bool { return PublisherIsLost(&pod, s.now) })
	if len(s.o.Publishers) != 1 || s.o.Publishers[0].Name != resources.PublisherName(s.o.Task.Name, number) {
		s.Fatalf("the pods that publish are %d, want number %d", len(s.o.Publishers), number)
	}
	got, err := daemonapi.DecodePublishConfig(s.o.Publishers[0].Spec.Containers[0].Env[0].Value)
	if err != nil {
		s.Fatal(err)
	}
	if got.Checkpoint != checkpoint || got.Replaces != replaces {
		s.Errorf("checkpoint %d is published over %q, want %d over %q", got.Checkpoint, got.Replaces, checkpoint, replaces)
	}
}

// wantOnto fails unless the only pod that publishes keeps this commit of others.
func (s *scene) wantOnto(commit string) {
	s.Helper()
	config, err := daemonapi.DecodePublishConfig(s.o.Publishers[0].Spec.Containers[0].Env[0].Value)
	if err != nil {
		s.Fatal(err)
	}
	if config.Onto != commit {
		s.Errorf("what is published keeps %q of others, want %q", config.Onto, commit)
	}
}

// wantNoPublisher fails if a pod publishes.
func (s *scene) wantNoPublisher() {
	s.Helper()
	if len(s.o.Publishers) > 0 {
		s.Errorf("the pod %s publishes", s.o.Publishers[0].Name)
	}
}

const somewhere = "refs/heads/clew/work"

func pushed(commit string) daemonapi.PublishResult {
	return daemonapi.PublishResult{Reason: v1alpha1.ReasonPublished, Ref: somewhere, Commit: commit, Answer: "https://git.example.com/mr/1"}
}

func TestACompletedTaskIsPublishedOnce(t *testing.T) {
	s := running(t, publishes())
	s.record(v1alpha1.TriggerToolCalls)
	s.step()
	s.wantNoPublisher()
	s.wantStatus(v1alpha1.TaskPublished, metav1.ConditionUnknown, v1alpha1.ReasonPublishPending, "when it is completed")
	s.record(v1alpha1.TriggerCompletion)
	s.agentExits(0)
	s.podFinishes()
	s.wantPublisher(1, 2, "")
	s.wantStatus(v1alpha1.TaskPublished, metav1.ConditionUnknown, v1alpha1.ReasonPublishing, "checkpoint 2")
	s.publisherEnds(pushed("c1"))
	s.wantNoPublisher()
	s.wantStatus(v1alpha1.TaskPublished, metav1.ConditionTrue, v1alpha1.ReasonPublished, "checkpoint 2 is at refs/heads/clew/work as c1")
	want := &v1alpha1.PublishStatus{Number: 1, Checkpoint: 2, Request: s.status().Publish.Request, Reason: v1alpha1.ReasonPublished, Ref: somewhere, Commit: "c1", PublishedCheckpoint: 2, PublishedTime: ptr.To(metav1.NewTime(s.now)),
		Tries: []v1alpha1.PublishTry{{Ref: somewhere, Checkpoint: 2}}, Answer: "https://git.example.com/mr/1"}
	if diff := cmp.Diff(want, s.status().Publish); diff != "" {
		t.Errorf("status.publish (-want +got):\n%s", diff)
	}
	if e := s.entries(v1alpha1.EventTaskPublished); len(e) != 1 || e[0].Checkpoint != 2 || *e[0].Publication != (v1alpha1.Publication{Ref: somewhere, Commit: "c1", Number: 1}) {
		t.Errorf("the entries are %+v", e)
	}
	s.after(time.Hour).step()
	s.managerRestarts().step()
	s.wantNoPublisher()
}

func TestEachCheckpointIsPublishedOverTheLast(t *testing.T) {
	s := running(t, publishes(everyCheckpoint))
	s.record(v1alpha1.TriggerToolCalls)
	s.after(time.Minute).step()
	s.wantPublisher(1, 1, "")
	s.record(v1alpha1.TriggerToolCalls)
	s.record(v1alpha1.TriggerToolCalls)
	s.after(time.Minute).step()
	s.wantPublisher(1, 1, "")
	first := pushed("c1")
	first.Onto = "c0"
	s.publisherEnds(first)
	s.after(s.o.Limits.PublishEvery).step()
	s.wantPublisher(2, 3, "c1")
	s.wantOnto("c0")
	s.change(func(t *v1alpha1.Task) { t.Spec.Publish.Branch = "another" })
	s.publisherEnds(pushed("c3"))
	s.wantPublisher(3, 3, "")
	s.wantOnto("")
}

func everyCheckpoint(p *v1alpha1.Publish) { p.When = v1alpha1.PublishCheckpoint }

func TestTheNewestCheckpointIsPublishedAfterAnInterval(t *testing.T) {
	s := running(t, publishes(everyCheckpoint))
	s.record(v1alpha1.TriggerToolCalls)
	s.step()
	s.wantPublisher(1, 1, "")
	every := s.o.Limits.PublishEvery
	s.after(time.Minute).publisherEnds(pushed("c1"))
	s.record(v1alpha1.TriggerToolCalls)
	s.step()
	s.record(v1alpha1.TriggerToolCalls)
	s.after(every - time.Minute - time.Second).step()
	s.wantNoPublisher()
	if got := s.plans[len(s.plans)-1].RequeueAfter; got != time.Second {
		t.Errorf("the next decision is in %s, want it in a second", got)
	}
	s.after(time.Second).step()
	s.wantPublisher(2, 3, "c1")
}

func TestRefusalsInARowDoubleTheInterval(t *testing.T) {
	s := running(t, publishes(everyCheckpoint))
	s.record(v1alpha1.TriggerToolCalls)
	s.step()
	refused := daemonapi.PublishResult{Reason: v1alpha1.ReasonDiverged, Message: "others have pushed"}
	number := int64(1)
	for _, pause := range []time.Duration{5 * time.Minute, 10 * time.Minute, 20 * time.Minute, 40 * time.Minute, time.Hour, time.Hour} {
		s.wantPublisher(number, number, "")
		s.publisherEnds(refused)
		s.record(v1alpha1.TriggerToolCalls)
		s.after(pause - time.Second).step()
		s.wantNoPublisher()
		s.after(time.Second).step()
		number++
	}
	s.wantPublisher(number, number, "")
	s.publisherEnds(pushed("c1"))
	s.record(v1alpha1.TriggerToolCalls)
	s.after(s.o.Limits.PublishEvery).step()
	s.wantPublisher(number+1, number+1, "c1")
}

func TestARequestToTryAgainDoesNotWaitForTheInterval(t *testing.T) {
	s := running(t, publishes(everyCheckpoint))
	s.record(v1alpha1.TriggerToolCalls)
	s.step()
	s.publisherEnds(daemonapi.PublishResult{Reason: v1alpha1.ReasonDiverged, Message: "others have pushed"})
	s.change(func(t *v1alpha1.Task) { t.Spec.Publish.ID = "again" }).step()
	s.wantPublisher(2, 1, "")
}

// TestWhatAnAgentPublishesIsNotFollowedByWhatItDidItself: its own work would take the place of that of a child.
func TestWhatAnAgentPublishesIsNotFollowedByWhatItDidItself(t *testing.T) {
	s := completedTask(t, publishes(func(p *v1alpha1.Publish) { p.When = v1alpha1.PublishCalled }))
	s.wantNoPublisher()
	if c := meta.FindStatusCondition(s.status().Conditions, v1alpha1.TaskPublished); c != nil {
		t.Errorf("the condition Published is %+v", c)
	}
	s.change(func(t *v1alpha1.Task) { t.Spec.Publish.When = v1alpha1.PublishCompleted }).step()
	s.wantPublisher(1, 1, "")
}

func TestASuspendedTaskIsPublishedIfAskedFor(t *testing.T) {
	for when, want := range map[v1alpha1.PublishWhen]bool{v1alpha1.PublishSuspended: true, v1alpha1.PublishCompleted: false} {
		t.Run(string(when), func(t *testing.T) {
			s := running(t, publishes(func(p *v1alpha1.Publish) { p.When = when }))
			s.change(func(t *v1alpha1.Task) { t.Spec.OperatingMode = v1alpha1.OperatingModeSuspended })
			s.record(v1alpha1.TriggerSuspend)
			s.agentExits(143)
			s.podFinishes()
			s.podGone()
			s.wantState(v1alpha1.ReasonSuspended)
			if got := len(s.o.Publishers) == 1; got != want {
				t.Errorf("it is published: %v, want %v", got, want)
			}
		})
	}
}

func TestWhatAPersonMustCureIsTriedAgainOnRequest(t *testing.T) {
	s := completedTask(t, publishes())
	s.publisherEnds(daemonapi.PublishResult{Reason: v1alpha1.ReasonDiverged, Message: "others have pushed"})
	s.wantStatus(v1alpha1.TaskPublished, metav1.ConditionFalse, v1alpha1.ReasonDiverged, "others have pushed")
	s.after(24 * time.Hour).step()
	s.wantNoPublisher()
	s.change(func(t *v1alpha1.Task) { t.Spec.Publish.ID = "again" }).step()
	s.wantPublisher(2, 1, "")
	s.publisherEnds(pushed("c1"))
	s.wantStatus(v1alpha1.TaskPublished, metav1.ConditionTrue, v1alpha1.ReasonPublished)
	if e := s.entries(v1alpha1.EventTaskNotPublished); len(e) != 1 {
		t.Errorf("the entries are %+v", e)
	}
}

func TestWhatMayPassIsTriedAgainAfterAPause(t *testing.T) {
	s := completedTask(t, publishes())
	for n := int64(1); n <= 4; n++ {
		s.wantPublisher(n, 1, "")
		s.publisherEnds(daemonapi.PublishResult{Reason: v1alpha1.ReasonRepositoryUnreachable, Message: "no route", Retryable: true})
		s.wantStatus(v1alpha1.TaskPublished, metav1.ConditionFalse, v1alpha1.ReasonRepositoryUnreachable, "trying again")
		s.wantNoPublisher()
		s.after(s.o.Limits.RetryBase << (n - 1)).step()
	}
	if e := s.entries(v1alpha1.EventTaskNotPublished); len(e) != 1 {
		t.Errorf("%d entries say that it failed, want 1", len(e))
	}
	s.wantPublisher(5, 1, "")
	s.publisherEnds(pushed("c1"))
	if f := s.status().Publish.Failures; f != 0 {
		t.Errorf("%d failures remain", f)
	}
}

func TestAPublisherThatIsLostIsFollowedByAnother(t *testing.T) {
	for name, lose := range map[string]func(s *scene){
		"gone":             func(s *scene) { s.o.Publishers = nil },
		"without a result": func(s *scene) { s.publisherEnds(daemonapi.PublishResult{}) },
		"evicted": func(s *scene) {
			s.o.Publishers[0].Status = corev1.PodStatus{Phase: corev1.PodFailed, Reason: "Evicted"}
		},
		"hanging": func(s *scene) { s.after(publishPatience) },
		"on a lost node": func(s *scene) {
			s.o.Publishers[0].DeletionTimestamp = ptr.To(metav1.NewTime(s.now))
			s.step()
			if got := s.plans[len(s.plans)-1].RequeueAfter; got != publisherLostAfter {
				s.Errorf("it is looked at again after %s, want %s", got, publisherLostAfter)
			}
			s.after(publisherLostAfter)
		},
		"another of its name": func(s *scene) { s.o.Publishers[0].UID = "other" },
	} {
		t.Run(name, func(t *testing.T) {
			s := completedTask(t, publishes())
			s.step()
			s.status().Publish.PodUID = string(s.o.Publishers[0].UID)
			lose(s)
			s.step()
			s.wantStatus(v1alpha1.TaskPublished, metav1.ConditionFalse, v1alpha1.ReasonPublishFailed, "trying again")
			s.after(time.Minute).step()
			s.wantPublisher(2, 1, "")
		})
	}
}

func TestAPublisherThatWasNeverCreatedIsCreated(t *testing.T) {
	s := completedTask(t, publishes())
	s.o.Publishers, s.o.ReservedPublisher = nil, 1 // the API server did not take it
	s.step()
	s.wantPublisher(1, 1, "")
}

func TestARefusedPublisherIsReported(t *testing.T) {
	s := completedTask(t, publishes())
	s.o.Publishers, s.o.PublisherRefused = nil, "exceeded quota"
	s.step()
	s.wantStatus(v1alpha1.TaskPublished, metav1.ConditionFalse, v1alpha1.ReasonPodRefused, "exceeded quota")
	s.after(time.Minute).step()
	s.wantPublisher(2, 1, "")
}

func TestProtectedFilesAreNamedUntilSomebodyAgrees(t *testing.T) {
	s := completedTask(t, publishes(func(p *v1alpha1.Publish) { p.ProtectedPaths = []string{".github/workflows/"} }))
	s.publisherEnds(daemonapi.PublishResult{Reason: v1alpha1.ReasonProtectedPaths, Message: "changes", Commit: "c1", Protected: []string{".github/workflows/a.yml"}})
	if got := s.status().Publish.HeldCommit; got != "c1" {
		t.Errorf("the commit that is held is %q", got)
	}
	if diff := cmp.Diff([]string{".github/workflows/a.yml"}, s.status().Publish.ProtectedFiles); diff != "" {
		t.Errorf("protectedFiles (-want +got):\n%s", diff)
	}
	s.change(func(t *v1alpha1.Task) { t.Spec.Publish.ApprovedCommit = "c1" }).step()
	s.wantPublisher(2, 1, "")
	config, err := daemonapi.DecodePublishConfig(s.o.Publishers[0].Spec.Containers[0].Env[0].Value)
	if err != nil || config.ApprovedCommit != "c1" {
		t.Errorf("the pod is told that %q is approved (%v)", config.ApprovedCommit, err)
	}
	s.publisherEnds(pushed("c1"))
	if p := s.status().Publish; p.ProtectedFiles != nil || p.HeldCommit != "" {
		t.Errorf("the protected files %q are still named, or %q is held", p.ProtectedFiles, p.HeldCommit)
	}
}

func TestATaskThatNoLongerPublishesForgetsTheCondition(t *testing.T) {
	s := completedTask(t, publishes())
	s.publisherEnds(pushed("c1"))
	s.change(func(t *v1alpha1.Task) { t.Spec.Publish = nil }).step()
	if c := meta.FindStatusCondition(s.status().Conditions, v1alpha1.TaskPublished); c != nil {
		t.Errorf("the condition is %+v", c)
	}
	s.change(publishes()).step()
	s.wantNoPublisher()
	s.wantStatus(v1alpha1.TaskPublished, metav1.ConditionTrue, v1alpha1.ReasonPublished, "checkpoint 1 is at refs/heads/clew/work as c1")
}

func TestNothingIsPublishedThatIsNotDurable(t *testing.T) {
	s := running(t, publishes(everyCheckpoint))
	s.record(v1alpha1.TriggerToolCalls)
	s.o.History.State.Latest.Durable = false
	s.after(time.Minute).step()
	s.wantNoPublisher()
	s.o.History.State.Latest.Durable = true
	s.after(time.Minute).step()
	s.wantPublisher(1, 1, "")
}

func TestWhoApprovedIsInTheTimelineOnce(t *testing.T) {
	s := completedTask(t, publishes())
	s.publisherEnds(daemonapi.PublishResult{Reason: v1alpha1.ReasonProtectedPaths, Commit: "c1", Message: "it changes 1 file"})
	s.o.Stamped = true
	s.change(func(t *v1alpha1.Task) {
		t.Spec.Publish.ApprovedCommit, t.Spec.RequestedBy = "c1", &v1alpha1.TaskRequesters{Publish: "ann"}
	}).step()
	s.publisherEnds(pushed("c1"))
	s.managerRestarts().step()
	if e := s.entries(v1alpha1.EventCommitApproved); len(e) != 1 || e[0].Actor != "ann" || !strings.Contains(e[0].Message, "c1") {
		t.Errorf("the entries are %+v, want one that ann approved c1", e)
	}
	if e := s.entries(v1alpha1.EventTaskPublished); len(e) != 1 || e[0].Actor != "ann" {
		t.Errorf("the entries are %+v, want one by ann", e)
	}
	s.change(func(t *v1alpha1.Task) { t.Spec.Publish.ApprovedCommit = "" }).step()
	s.change(func(t *v1alpha1.Task) { t.Spec.Publish.ApprovedCommit = "c1" }).step()
	if e := s.entries(v1alpha1.EventCommitApproved); len(e) != 2 {
		t.Errorf("the entries are %+v, want another one", e)
	}
}

func TestAnApprovalBeforeTheFirstPushIsInTheTimeline(t *testing.T) {
	s := newScene(t, publishes(func(p *v1alpha1.Publish) { p.ApprovedCommit = "c1" })).step()
	if e := s.entries(v1alpha1.EventCommitApproved); len(e) != 1 {
		t.Errorf("the entries are %+v, want one", e)
	}
	s.wantNoPublisher()
	s.wantPublished(metav1.ConditionUnknown, v1alpha1.ReasonPublishPending)
}
