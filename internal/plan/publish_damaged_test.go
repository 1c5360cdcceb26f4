package plan

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/daemonapi"
	"github.com/clew-dev/clew/internal/history"
)

// isDamaged records that a checkpoint is damaged.
func (s *scene) isDamaged(number int64) {
	s.o.Publication.Damaged = &history.Checkpoint{Number: number, Integrity: history.Integrity{Damage: "a.txt is missing", IntactBefore: 6}}
}

// cannotRead is what a pod reports that finds its checkpoint damaged.
func cannotRead() daemonapi.PublishResult {
	return daemonapi.PublishResult{Reason: v1alpha1.ReasonCheckpointCorrupted, Message: "git cannot read a.txt", Retryable: true, NotPushed: true}
}

const heldFirst = "checkpoint 1 is damaged (a.txt is missing; checkpoint 6 is the nearest earlier one that is intact): it is published by itself once it is healed"

func TestACheckpointThatIsRecordedAsDamagedIsPublishedOnceItIsHealed(t *testing.T) {
	s := running(t, publishes())
	s.record(v1alpha1.TriggerCompletion)
	s.isDamaged(1)
	s.agentExits(0)
	s.podFinishes()
	for range 3 {
		s.wantNoPublisher()
		s.wantPublished(metav1.ConditionFalse, v1alpha1.ReasonCheckpointCorrupted, heldFirst)
		s.after(30 * time.Hour).step()
	}
	if e := s.entries(v1alpha1.EventTaskNotPublished); len(e) != 1 || e[0].Checkpoint != 1 {
		t.Errorf("the entries are %+v, want one of checkpoint 1", e)
	}
	s.o.Publication.Damaged = nil
	s.step()
	s.wantPublisher(1, 1, "")
	s.publisherEnds(pushed("c1"))
	s.wantPublished(metav1.ConditionTrue, v1alpha1.ReasonPublished, whereFirst)
}

func TestAPodThatFindsItsCheckpointDamagedIsFollowedByAnotherOnceThatIsHealed(t *testing.T) {
	s := completedTask(t, publishes())
	s.publisherEnds(cannotRead())
	s.wantNoPublisher()
	s.wantPublished(metav1.ConditionFalse, v1alpha1.ReasonCheckpointCorrupted, "git cannot read a.txt; trying again")
	if found := s.status().Publish.RetryTime; !found.Time.Equal(s.now) {
		t.Errorf("the damage was found at %v, want %v", found, s.now)
	}
	s.isDamaged(1)
	for range 3 {
		s.after(15 * time.Hour).step()
		s.wantNoPublisher()
		s.wantPublished(metav1.ConditionFalse, v1alpha1.ReasonCheckpointCorrupted, heldFirst)
	}
	if e := s.entries(v1alpha1.EventTaskNotPublished); len(e) != 1 {
		t.Errorf("the entries are %+v, want one", e)
	}
	s.o.Publication.Damaged = nil
	s.step()
	s.wantPublisher(2, 1, "")
	s.publisherEnds(daemonapi.PublishResult{Reason: v1alpha1.ReasonRepositoryUnreachable, Message: "no route", Retryable: true})
	s.wantPublished(metav1.ConditionFalse, v1alpha1.ReasonRepositoryUnreachable, "no route; trying again")
	s.after(s.o.Limits.RetryCap).step()
	s.publisherEnds(pushed("c1"))
	s.wantPublished(metav1.ConditionTrue, v1alpha1.ReasonPublished, whereFirst)
}

// The verification may find nothing, or may not have taken place.
func TestDamageThatIsNotConfirmedIsTriedAgainAsOtherFailures(t *testing.T) {
	s, pods := completedTask(t, publishes()), 1
	for s.publisherEnds(cannotRead()); s.status().Publish.RetryTime != nil && pods < 2*branchFailures; pods++ {
		pause := s.plans[len(s.plans)-1].RequeueAfter
		if pause <= 0 || pause > s.o.Limits.RetryCap {
			t.Fatalf("the next decision is in %s", pause)
		}
		s.isDamaged(1) // until it has been verified
		s.step()
		s.o.Publication.Damaged = nil
		s.after(pause).step()
		s.publisherEnds(cannotRead())
	}
	s.wantPublished(metav1.ConditionFalse, v1alpha1.ReasonCheckpointCorrupted, "git cannot read a.txt; it is not tried again")
	if pods > branchFailures {
		t.Errorf("there were %d pods", pods)
	}
}

func TestANewerCheckpointIsPublishedInPlaceOfADamagedOne(t *testing.T) {
	s := running(t, publishes(everyCheckpoint))
	s.record(v1alpha1.TriggerToolCalls)
	s.isDamaged(1)
	s.step()
	s.wantNoPublisher()
	s.record(v1alpha1.TriggerToolCalls)
	s.step()
	s.wantPublisher(1, 2, "")
	s.publisherEnds(pushed("c2"))
	s.wantPublished(metav1.ConditionTrue, v1alpha1.ReasonPublished, "checkpoint 2")
}

func TestARequestForADamagedCheckpointIsAnswered(t *testing.T) {
	s := completedTask(t, publishes())
	s.publisherEnds(pushed("c1"))
	s.isDamaged(1)
	s.change(func(t *v1alpha1.Task) { t.Spec.Publish.Branch = "another" }).step()
	s.wantNoPublisher()
	s.wantPublished(metav1.ConditionFalse, v1alpha1.ReasonCheckpointCorrupted, heldFirst)
	s.change(func(t *v1alpha1.Task) { t.Spec.Publish.Branch = "clew/work" }).step()
	s.wantPublished(metav1.ConditionFalse, v1alpha1.ReasonCheckpointCorrupted, heldFirst)
	if e := s.entries(v1alpha1.EventTaskNotPublished); len(e) != 2 {
		t.Errorf("the entries are %+v, want one of each request", e)
	}
}
