package plan

import (
	"testing"
	"time"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/testing/builders"
)

// The gitstore may have been restored from an older copy since a checkpoint was last verified, and the
// volume may be the only one that has it.

// sleeping returns a suspended task that keeps its volume, with one checkpoint.
func sleeping(t *testing.T) *scene {
	t.Helper()
	s := running(t)
	s.stored.Known = true
	return s.suspend()
}

func TestOnlyAVerificationThatIsMadeForTheReleaseCounts(t *testing.T) {
	for name, known := range map[string]history.Integrity{
		"the daily one":                           {Verified: time.Now().Add(time.Hour)},
		"one for a former release":                {Requests: history.Requests{Answered: time.Date(2026, 1, 2, 0, 0, 0, 0, time.UTC), Age: time.Minute}},
		"one that was waited for, and is not yet": {Requests: history.Requests{Pending: time.Date(2026, 1, 2, 0, 0, 0, 0, time.UTC)}},
	} {
		t.Run(name, func(t *testing.T) {
			s := sleeping(t)
			s.stored.Checkpoint.Integrity, s.requested = known, 1
			s.change(releasing).step()
			s.wantKept("until checkpoint 1 is verified")
			if since := s.stored.Checkpoint.Integrity.Requests.Pending; !since.Equal(s.now) {
				t.Errorf("its verification is waited for since %s, want that since it is needed, %s", since, s.now)
			}
			s.verified().wantReleased(v1alpha1.ReleasedSuspended)
			if s.status().ReleaseConsideredTime != nil {
				t.Error("something is still waited for")
			}
		})
	}
}

func TestAVerificationOfAnotherCheckpointDoesNotCount(t *testing.T) {
	s := sleeping(t)
	s.change(releasing).step().answered(0)
	s.record(v1alpha1.TriggerSuspend) // a daemon that had not sent it before has now
	s.step()
	s.wantKept("until checkpoint 2 is verified")
}

func TestAVerificationFromBeforeTheManagerWasAwayIsMadeAgain(t *testing.T) {
	s := sleeping(t)
	s.change(releasing).step().answered(verifiedFor + time.Second).after(verifiedFor + time.Second)
	s.managerRestarts().step()
	s.wantKept("until checkpoint 1 is verified")
	s.answered(verifiedFor).step()
	s.wantReleased(v1alpha1.ReleasedSuspended)
}

func TestWhatElseHoldsAVolumeHasItVerifiedOnceMore(t *testing.T) {
	s := sleeping(t)
	s.change(releasing).step()
	s.stored.Damaged = []int64{1}
	s.answered(0).step()
	s.wantKept("checkpoint 1 is damaged")
	if s.status().ReleaseConsideredTime != nil {
		t.Error("a verification counts that was made before the damage was healed")
	}
	s.stored.Damaged = nil
	s.after(time.Hour).step()
	s.wantKept("until checkpoint 1 is verified")
	s.verified().wantReleased(v1alpha1.ReleasedSuspended)
}

func TestARequestIsMadeOnceAndAgainIfTheStoreHasForgottenIt(t *testing.T) {
	s := sleeping(t)
	requests := func() (n int) {
		for _, p := range s.plans {
			if p.Verify != nil {
				n++
			}
		}
		return n
	}
	if s.change(releasing).step(); requests() != 1 {
		t.Errorf("%d requests, want one", requests())
	}
	since := s.status().ReleaseConsideredTime
	if s.after(time.Minute).managerRestarts().step(); requests() != 0 {
		t.Error("another request while the first one is waited for")
	}
	s.stored.Checkpoint.Integrity.Requests = history.Requests{} // it was restored from an older copy
	if s.step(); requests() != 1 || !s.status().ReleaseConsideredTime.Equal(since) {
		t.Errorf("%d requests, since %s", requests(), s.status().ReleaseConsideredTime)
	}
}

func TestNothingIsConcludedWhileItCannotBeAskedWhatTheReleaseDependsOn(t *testing.T) {
	s := sleeping(t)
	s.stored.Known = false
	s.change(releasing).step()
	if last := s.plans[len(s.plans)-1]; last.Inspect != 1 {
		t.Errorf("the decision does not say what it lacks: %+v", last)
	}
	if s.o.Claim == nil {
		t.Error("the volume was released")
	}
	s.stored.Known = true
	s.step().wantKept("until checkpoint 1 is verified")
	s.answered(0).stored.Known = false
	s.step().wantKept("until checkpoint 1 is verified")
	s.stored.Known = true
	s.step().wantReleased(v1alpha1.ReleasedSuspended)
}

func TestATaskIsDeletedOnceItIsVerifiedAlsoIfTheFirstTryFails(t *testing.T) {
	s := completedTask(t, onFinish(0, v1alpha1.FinishDelete)).drained()
	s.stored.Known = true
	s.step().wantKept("until checkpoint 1 is verified")
	p := s.answered(0).decide()
	if !p.DeleteTask || p.Status.DeletionRequestedTime == nil {
		t.Fatalf("the Task is not deleted: %+v", p)
	}
	p.DeleteTask = false // the manager was killed
	s.carryOut(p)
	s.managerRestarts().step()
	if !s.deleted {
		t.Error("it was not deleted after that")
	}
	s.wantEntries("TaskStarted", "TaskCompleted", "TaskReleased")
}

func TestTheTimeAfterWhichATaskIsDeletedBeginsWhenItFails(t *testing.T) {
	s := running(t, builders.Deadline(60), onFinish(3600, v1alpha1.FinishDelete))
	s.stored.Known = true
	s.runs(30 * time.Second).change(builders.Suspended).step().stopped(0)
	s.change(builders.Deadline(20)).drained().after(72 * time.Hour).step()
	s.wantState(v1alpha1.ReasonSuspended)
	if s.status().FinishedTime != nil {
		t.Error("a suspended task has finished")
	}
	s.change(builders.Running).step()
	s.wantState(v1alpha1.ReasonDeadlineExceeded)
	if at := s.status().FinishedTime; at == nil || !at.Time.Equal(s.now) {
		t.Errorf("it has finished at %s, want now", at)
	}
	if after := s.plans[len(s.plans)-1].RequeueAfter; after != time.Hour || s.requested != 0 {
		t.Errorf("it is looked at again after %s, want an hour; verification of %d", after, s.requested)
	}
	s.after(time.Hour).verified()
	if !s.deleted {
		t.Error("it was not deleted at its time")
	}
}

// The decision that ends a task is no decision to delete it: somebody may see it first.
func TestATaskIsNotDeletedInTheDecisionThatEndsIt(t *testing.T) {
	s := running(t, onFinish(0, v1alpha1.FinishDelete))
	s.record(v1alpha1.TriggerCompletion)
	s.drained().agentExitsUnseen(0)
	p := s.decide()
	if p.Status.FinishedTime == nil || p.Inspect != 0 || p.DeleteTask || p.RequeueAfter == 0 {
		t.Errorf("the decision is %+v", p)
	}
}

func TestATaskThatGoesOnHasNotFinished(t *testing.T) {
	s := completedTask(t)
	first := s.status().FinishedTime
	s.after(time.Hour).change(resume("more", "More.")).step()
	if first == nil || s.status().FinishedTime != nil {
		t.Errorf("it had finished at %s, and has at %s", first, s.status().FinishedTime)
	}
}
