package plan

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/daemonapi"
)

// told returns what the only pod is told that publishes.
func (s *scene) told() daemonapi.PublishConfig {
	s.Helper()
	if len(s.o.Publishers) != 1 {
		s.Fatalf("%d pods publish, want one", len(s.o.Publishers))
	}
	config, err := daemonapi.DecodePublishConfig(s.o.Publishers[0].Spec.Containers[0].Env[0].Value)
	if err != nil {
		s.Fatal(err)
	}
	return config
}

func announced(commit, onto string) daemonapi.PublishResult {
	return daemonapi.PublishResult{Reason: v1alpha1.ReasonPublishPending, Message: "it is about to be pushed", Ref: somewhere, Commit: commit, Onto: onto}
}

// wantTries fails unless these are the tries in the status, and what the pod is told of them.
func wantTries(t *testing.T, status []v1alpha1.PublishTry, told daemonapi.PublishConfig, want ...v1alpha1.PublishTry) {
	t.Helper()
	if diff := cmp.Diff(want, status); diff != "" {
		t.Errorf("the tries of the status (-want +got):\n%s", diff)
	}
	var tries []int64
	var pushes []daemonapi.OwnPush
	for _, try := range want {
		if try.Commit == "" {
			tries = append(tries, try.Checkpoint)
		} else {
			pushes = append(pushes, daemonapi.OwnPush{Commit: try.Commit, Onto: try.Onto})
		}
	}
	if diff := cmp.Diff([]any{true, tries, pushes}, []any{told.Announce, told.Tries, told.Announced}); diff != "" {
		t.Errorf("what the pod is told (-want +got):\n%s", diff)
	}
}

// beingPublished is the scene of a task whose work is being published.
func beingPublished(t *testing.T) *scene {
	t.Helper()
	s := running(t, publishes())
	s.record(v1alpha1.TriggerCompletion)
	s.agentExits(0)
	s.podFinishes()
	s.told()
	return s
}

func TestWhatAPodMayPushIsOnRecordBeforeItStarts(t *testing.T) {
	s := beingPublished(t)
	first := v1alpha1.PublishTry{Ref: somewhere, Checkpoint: 1}
	wantTries(t, s.status().Publish.Tries, s.told(), first)

	s.step() // it is seen
	s.o.Publishers = nil
	s.step()
	s.after(time.Minute).step()
	wantTries(t, s.status().Publish.Tries, s.told(), first)

	s.publisherEnds(pushed("c1"))
	if tries := s.status().Publish.Tries; len(tries) > 0 {
		t.Errorf("after a push that was reported, there are the tries %+v", tries)
	}
}

func TestAnAnnouncedPushIsMadeByAnotherPodAtOnce(t *testing.T) {
	s := beingPublished(t)
	s.publisherEnds(announced("c1", "theirs"))
	wantTries(t, s.status().Publish.Tries, s.told(), v1alpha1.PublishTry{Ref: somewhere, Checkpoint: 1}, v1alpha1.PublishTry{Ref: somewhere, Checkpoint: 1, Commit: "c1", Onto: "theirs"})
	if p := s.status().Publish; p.Number != 2 || p.Failures != 0 {
		t.Errorf("it is pod %d, after %d failures", p.Number, p.Failures)
	}
	s.publisherEnds(pushed("c1"))
	s.wantStatus(v1alpha1.TaskPublished, metav1.ConditionTrue, v1alpha1.ReasonPublished, "c1")
	s.wantNoPublisher()
}

// The checkpoints of a task that works on must not keep it from being published.
func TestTheAnnouncedCheckpointIsPushedAlthoughThereIsANewerOne(t *testing.T) {
	s := running(t, publishes(func(p *v1alpha1.Publish) { p.When = v1alpha1.PublishCheckpoint }))
	s.record(v1alpha1.TriggerToolCalls)
	s.step()
	s.wantPublisher(1, 1, "")
	s.record(v1alpha1.TriggerToolCalls)
	s.publisherEnds(announced("c1", ""))
	s.wantPublisher(2, 1, "")
}

func TestOthersWhoKeepPushingAreGivenTime(t *testing.T) {
	s := beingPublished(t)
	for n := range maxAnnouncements {
		s.publisherEnds(announced("c1", fmt.Sprintf("theirs-%d", n)))
		s.told()
	}
	s.publisherEnds(announced("c1", "theirs-x"))
	s.wantNoPublisher()
	s.wantStatus(v1alpha1.TaskPublished, metav1.ConditionFalse, v1alpha1.ReasonPublishFailed, "others keep pushing")
	s.after(time.Minute).step()
	s.told()
}

func TestTheTriesOfAStatusAreBounded(t *testing.T) {
	var tries []v1alpha1.PublishTry
	for n := range int64(maxTries + 5) {
		tries = addTry(tries, v1alpha1.PublishTry{Ref: somewhere, Checkpoint: n})
		tries = addTry(tries, v1alpha1.PublishTry{Ref: somewhere, Checkpoint: n})
	}
	if len(tries) != maxTries || tries[0].Checkpoint != 5 {
		t.Errorf("there are %d tries from checkpoint %d on", len(tries), tries[0].Checkpoint)
	}
}

func TestWhatAPodMayPushOfABranchIsOnRecordBeforeItStarts(t *testing.T) {
	s := pushing(t, "a").step()
	first := v1alpha1.PublishTry{Ref: "refs/heads/a", Checkpoint: 4}
	wantTries(t, s.origin(0).Tries, s.told(), first)
	s.step() // it is seen
	s.o.Publishers = nil
	s.step()
	s.now = s.now.Add(time.Minute)
	s.step()
	wantTries(t, s.origin(0).Tries, s.told(), first)

	push := daemonapi.PublishResult{Reason: v1alpha1.ReasonPublishPending, Ref: "refs/heads/a", Commit: "c1", Onto: "theirs"}
	s.ends(push)
	wantTries(t, s.origin(0).Tries, s.told(), first, v1alpha1.PublishTry{Ref: "refs/heads/a", Checkpoint: 4, Commit: "c1", Onto: "theirs"})
	s.ends(at("refs/heads/a", "c1"))
	if tries := s.origin(0).Tries; len(tries) > 0 {
		t.Errorf("after a push that was reported, there are the tries %+v", tries)
	}
	for _, e := range s.events[1:] {
		if e.Reason == v1alpha1.EventBranchNotPublished {
			t.Errorf("an announcement counts as a failure: %+v", e)
		}
	}
}

func TestABranchThatOthersKeepMovingIsGivenTime(t *testing.T) {
	s := pushing(t, "a").step()
	for n := range maxAnnouncements + 1 {
		s.ends(daemonapi.PublishResult{Reason: v1alpha1.ReasonPublishPending, Ref: "refs/heads/a", Commit: "c1", Onto: fmt.Sprintf("theirs-%d", n)})
	}
	s.wantNoPod()
	s.want(0, v1alpha1.ReasonPublishFailed, "others keep pushing")
}
