package plan

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/daemonapi"
	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/resources"
	"github.com/clew-dev/clew/internal/testing/builders"
)

// releasing makes the task give its volume back while it is suspended.
func releasing(t *v1alpha1.Task) { t.Spec.Workspace.WhenSuspended = v1alpha1.WhenSuspendedRelease }

// onFinish says what becomes of the task once it has finished.
func onFinish(seconds int64, action v1alpha1.FinishAction) builders.TaskOption {
	return func(t *v1alpha1.Task) { t.Spec.OnFinish = &v1alpha1.OnFinish{AfterSeconds: seconds, Action: action} }
}

// drained lets the pod of the newest attempt say that it has stored everything.
func (s *scene) drained() *scene {
	s.o.History.State.Attempt = s.lastAttempt().Number
	s.o.History.State.StoredAttempt = s.lastAttempt().Number
	return s
}

// ends records the last checkpoint of the newest attempt, whose pod stores everything.
func (s *scene) ends(trigger v1alpha1.CheckpointTrigger) *scene {
	s.record(trigger)
	return s.drained()
}

// verified lets the request to verify the latest checkpoint be carried out, if there is one.
func (s *scene) verified() *scene {
	s.Helper()
	s.stored.Known = true
	return s.step().answered(0).step()
}

// answered lets the request to verify the latest checkpoint have been carried out some time ago.
func (s *scene) answered(ago time.Duration) *scene {
	i := &s.stored.Checkpoint.Integrity
	i.Verified, i.Requests = s.now.Add(-ago), history.Requests{Answered: i.Requests.Pending, Age: ago}
	return s
}

// wantNothingRequested fails if anything is asked of the gitstore.
func (s *scene) wantNothingRequested() {
	s.Helper()
	if s.requested != 0 {
		s.Errorf("the verification of checkpoint %d was requested", s.requested)
	}
}

// suspend suspends the task, whose pod ends with a checkpoint.
func (s *scene) suspend() *scene {
	s.Helper()
	s.change(builders.Suspended).step()
	s.ends(v1alpha1.TriggerSuspend)
	s.podGone()
	s.wantState(v1alpha1.ReasonSuspended)
	return s
}

// wantKept fails unless the volume is there, and the condition says why.
func (s *scene) wantKept(why ...string) {
	s.Helper()
	if s.o.Claim == nil || s.status().IsReleased() {
		s.Fatalf("the volume was released")
	}
	s.wantStatus(v1alpha1.TaskVolumeReleased, metav1.ConditionFalse, v1alpha1.ReasonReleasePending, why...)
}

func (s *scene) wantReleased(cause v1alpha1.ReleaseCause) {
	s.Helper()
	if s.o.Claim != nil || !s.status().IsReleased() {
		s.Fatalf("the volume was not released: %+v", s.wantCondition(v1alpha1.TaskVolumeReleased))
	}
	if got := s.status().Released.Cause; got != cause {
		s.Errorf("it was released because the task has %s, want %s", got, cause)
	}
	s.wantStatus(v1alpha1.TaskVolumeReleased, metav1.ConditionTrue, v1alpha1.ReasonReleased)
	s.wantStatus(v1alpha1.TaskWorkspaceReady, metav1.ConditionFalse, v1alpha1.ReasonReleased)
}

func TestTheVolumeOfASuspendedTaskIsReleasedOnceItsLastCheckpointIsVerified(t *testing.T) {
	s := running(t, releasing)
	s.stored.Known = true
	s.suspend()
	s.wantKept("until checkpoint 1 is verified")
	if since := s.stored.Checkpoint.Integrity.Requests.Pending; s.requested != 1 || !since.Equal(s.status().ReleaseConsideredTime.Time) {
		t.Errorf("the verification of checkpoint %d is asked for, since %s", s.requested, since)
	}
	writes := s.writes
	s.step()
	if s.writes != writes {
		t.Error("waiting costs writes")
	}
	s.verified()
	s.wantReleased(v1alpha1.ReleasedSuspended)
	s.wantEntries("TaskStarted", "TaskSuspended", "VolumeReleased")
	s.wantMessage(s.status().History[2].Message, "as spec.workspace.whenSuspended says", "restores checkpoint 1")

	s.change(builders.Running).step()
	if pod := s.wantStarted(2); !pod.VolumeReleased {
		t.Error("the pod is not told that its volume is new because the former one was released")
	}
	if s.o.Claim == nil || s.status().ClaimUID != "claim-2" {
		t.Errorf("there is no new volume: %q", s.status().ClaimUID)
	}
	if meta.FindStatusCondition(s.status().Conditions, v1alpha1.TaskVolumeReleased) != nil {
		t.Error("a task with a volume says that it was released")
	}
	s.prepared(daemonapi.PrepareResult{Reason: v1alpha1.ReasonWorkspacePrepared, Restored: true})
	s.agentRuns()
	s.wantStatus(v1alpha1.TaskWorkspaceReady, metav1.ConditionTrue, v1alpha1.ReasonWorkspacePrepared, "restored from the gitstore")
	s.wantEntries("TaskStarted", "TaskSuspended", "VolumeReleased", "TaskResumed")
	if s.status().Released != nil {
		t.Error("the status still has the release of the former volume")
	}
}

func TestAVolumeIsKeptWhileItMayHaveWhatIsNowhereElse(t *testing.T) {
	for name, c := range map[string]struct {
		happens func(*scene)
		why     string
	}{
		"not pushed":                {func(s *scene) { s.o.History.State.Latest.Durable = false }, "the gitstore does not have checkpoint 1"},
		"refused":                   {func(s *scene) { s.o.History.State.Latest.Durable, s.o.History.State.Latest.Refused = false, "quota" }, "the gitstore refuses checkpoint 1"},
		"lost":                      {func(s *scene) { s.o.History.State.Latest.Durable, s.o.History.State.Latest.Lost = false, true }, "checkpoint 1 is lost"},
		"the sidecar was killed":    {func(s *scene) { s.o.History.State.StoredAttempt = 0 }, "its last pod has not said that it had sent everything"},
		"a later attempt has begun": {func(s *scene) { s.o.History.State.Attempt++ }, "its last pod has not said that it had sent everything"},
		"no checkpoint": {func(s *scene) {
			s.o.History.State.Latest, s.o.History.State.CheckpointCount, s.status().LatestCheckpoint = nil, 0, nil
		}, "no checkpoint"},
		"an older one was refused":           {func(s *scene) { s.stored.Unpushed = []int64{3, 4} }, "only it has checkpoint 3"},
		"an older one is damaged":            {func(s *scene) { s.stored.Damaged = []int64{3, 5} }, "checkpoint 3 is damaged in the gitstore, and the volume may have what it lacks: resume the task, which heals it; to give it up, delete the PersistentVolumeClaim tidy-up-workspace"},
		"damaged":                            {func(s *scene) { s.stored.Checkpoint.Integrity.Damage = "a tree is missing" }, "checkpoint 1 is damaged (a tree is missing"},
		"the history store was put back":     {func(s *scene) { s.o.Task.Status.RecordSequence = 9 }, "lacks records that only the volume may have"},
		"the history was deleted":            {func(s *scene) { s.o.History.Deleted = true }, "the history of this Task was deleted"},
		"a pod cannot be said to have ended": {func(s *scene) { s.o.Pods = append(s.o.Pods, *stray(s.o.Task)) }, "until pod stray has terminated"},
	} {
		t.Run(name, func(t *testing.T) {
			s := running(t)
			s.suspend()
			s.stored = Stored{Known: true, Checkpoint: history.Checkpoint{Integrity: history.Integrity{Verified: s.now}}}
			c.happens(s)
			s.change(releasing).step()
			s.wantKept(c.why)
			s.wantNothingRequested()
		})
	}
}

func TestAVolumeThatWasNotDrainedIsReleasedAfterAnotherSuspension(t *testing.T) {
	s := running(t, releasing)
	s.stored.Known = true
	s.change(builders.Suspended).step()
	s.o.History.State.Attempt = 1
	s.record(v1alpha1.TriggerToolCalls)
	s.podGone()
	s.wantKept("resume the task, and it is sent")
	s.change(builders.Running).step()
	if meta.FindStatusCondition(s.status().Conditions, v1alpha1.TaskVolumeReleased) != nil {
		t.Error("a task that runs says that its volume is to be released")
	}
	s.prepared(daemonapi.PrepareResult{Reason: v1alpha1.ReasonWorkspacePrepared})
	s.agentRuns()
	s.suspend().verified()
	s.wantReleased(v1alpha1.ReleasedSuspended)
}

func TestNothingIsConcludedWhileTheHistoryStoreIsDown(t *testing.T) {
	s := running(t, releasing)
	s.stored.Known = true
	s.suspend()
	s.wantKept("until checkpoint 1 is verified")
	writes := s.writes
	s.o.History = History{}
	s.step()
	if s.writes != writes || s.o.Claim == nil {
		t.Error("something was written or deleted without an answer of the history store")
	}
}

func TestAManagerThatWasKilledAfterTheEntryDeletesTheClaimAndNoOther(t *testing.T) {
	s := running(t, releasing)
	s.suspend()
	claim := s.o.Claim
	s.verified()
	s.o.Claim = claim // it was killed before it deleted the claim
	entries := len(s.status().History)
	s.managerRestarts().step()
	s.wantReleased(v1alpha1.ReleasedSuspended)
	if len(s.status().History) != entries {
		t.Error("the entry was made twice")
	}

	s.o.Claim = claim.DeepCopy()
	s.o.Claim.DeletionTimestamp = &metav1.Time{Time: s.now} // another pod holds it
	s.change(builders.Running).step()
	if s.started() != nil {
		t.Error("a pod was started with the volume that is being deleted")
	}
	s.wantState(v1alpha1.ReasonVolumeUnavailable)
	s.o.Claim = nil
	s.step()
	s.wantStarted(2)

	stranger := s.o.Claim.DeepCopy()
	stranger.Labels[v1alpha1.LabelTaskUID] = "another"
	s = running(t, releasing)
	s.o.Claim = stranger
	s.suspend().verified()
	if s.o.Claim == nil {
		t.Error("the claim of another task was deleted")
	}
}

func TestAVolumeMadeForAPodThatNeverCameIsReleasedAgain(t *testing.T) {
	s := running(t, releasing)
	s.suspend().verified()
	s.wantReleased(v1alpha1.ReleasedSuspended)
	s.change(builders.Running).step()
	s.o.Pods = nil // it never began
	s.o.MadePodUID = ""
	s.after(time.Minute).change(builders.Suspended).step()
	s.wantKept("until checkpoint 1 is verified")
	s.verified().wantReleased(v1alpha1.ReleasedSuspended)
}

func TestARewindOfAReleasedTaskReleasesItsVolumeAgain(t *testing.T) {
	s := running(t, releasing)
	s.record(v1alpha1.TriggerToolCalls)
	s.suspend().verified()
	s.rewind("back", 1).step()
	if pod := s.wantStarted(2); !pod.PrepareOnly || !pod.VolumeReleased {
		t.Errorf("the rewind has the pod %+v", pod)
	}
	s.ends(v1alpha1.TriggerRewound)
	s.prepared(daemonapi.PrepareResult{Operation: "back", ToCheckpoint: 1})
	s.wantState(v1alpha1.ReasonSuspended)
	s.verified().wantReleased(v1alpha1.ReleasedSuspended)
}

func TestAFinishedTaskIsReleasedAtItsTime(t *testing.T) {
	s := completedTask(t, onFinish(60, v1alpha1.FinishRelease)).drained()
	s.after(20 * time.Second).verified()
	if s.o.Claim == nil {
		t.Fatal("it was released too early")
	}
	s.wantNothingRequested()
	if after := s.plans[len(s.plans)-1].RequeueAfter; after != 40*time.Second {
		t.Errorf("the task is looked at again after %s, want 40s", after)
	}
	s.after(40 * time.Second).verified()
	s.wantReleased(v1alpha1.ReleasedFinished)
	s.wantState(v1alpha1.ReasonCompleted)
	s.wantEntries("TaskStarted", "TaskCompleted", "TaskReleased")
	if len(s.o.Pods) != 0 {
		t.Error("its pod is still there")
	}
	s.after(time.Hour).step()
	s.wantEntries("TaskStarted", "TaskCompleted", "TaskReleased")

	s.change(resume("more", "More.")).step()
	s.wantStarted(2)
	if s.status().ClaimUID != "claim-2" {
		t.Errorf("a follow-up has no new volume: %q", s.status().ClaimUID)
	}
}

func TestWhichTasksHaveFinished(t *testing.T) {
	for name, c := range map[string]struct {
		scene    func(*testing.T) *scene
		finished bool
	}{
		"completed": {func(t *testing.T) *scene { return completedTask(t) }, true},
		"failed":    {failedTask, true},
		"rewound":   {rewoundTask, false},
		"suspended": {atRestTask, false},
		"running":   {func(t *testing.T) *scene { return running(t) }, false},
		"drifted": {func(t *testing.T) *scene {
			s := completedTask(t)
			s.change(resume("more", "More.")).step()
			return s.driftStops()
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			s := c.scene(t).drained()
			s.change(onFinish(0, v1alpha1.FinishRelease)).verified()
			if got := s.status().IsReleased(); got != c.finished {
				t.Errorf("it was released: %t, want %t", got, c.finished)
			}
		})
	}
}

func TestAFailedTaskThatWasNotDrainedIsKeptAndSaysSo(t *testing.T) {
	s := failedTask(t)
	s.o.History.State.Attempt = 1
	s.change(onFinish(0, v1alpha1.FinishRelease)).verified()
	s.wantKept("its last pod has not said that it had sent everything")
	if len(s.o.Pods) == 0 {
		t.Error("the pod went although nothing was released")
	}
}

func TestATaskThatNeverBeganHasNothingToKeep(t *testing.T) {
	s := newScene(t, onFinish(0, v1alpha1.FinishRelease))
	s.step()
	s.o.History.State.Attempt = 1
	s.prepareExits(1, daemonapi.PrepareResult{Reason: v1alpha1.ReasonRepositoryNotFound, Permanent: true, Message: "no such repository"})
	s.wantReleased(v1alpha1.ReleasedFinished)
	s.wantState(v1alpha1.ReasonRepositoryNotFound)
}

func TestAReleasedTaskThatFinishesIsReleasedAsFinished(t *testing.T) {
	s := completedTask(t, releasing).drained()
	s.change(builders.Suspended).verified()
	s.wantReleased(v1alpha1.ReleasedSuspended)
	s.change(onFinish(0, v1alpha1.FinishRelease)).step()
	s.wantReleased(v1alpha1.ReleasedFinished)
	if s.status().Released.Checkpoint != 1 {
		t.Errorf("it forgets what it is restored from: %+v", s.status().Released)
	}
}

func TestPublishingIsWaitedFor(t *testing.T) {
	for name, c := range map[string]struct {
		action    v1alpha1.FinishAction
		condition metav1.Condition
		retries   bool
		waits     bool
	}{
		"published":                      {v1alpha1.FinishRelease, metav1.Condition{Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonPublished}, false, false},
		"being published":                {v1alpha1.FinishRelease, metav1.Condition{Status: metav1.ConditionUnknown, Reason: v1alpha1.ReasonPublishing}, false, true},
		"tried again":                    {v1alpha1.FinishRelease, metav1.Condition{Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonPublishFailed}, true, true},
		"refused":                        {v1alpha1.FinishRelease, metav1.Condition{Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonDiverged}, false, false},
		"refused, and to be deleted":     {v1alpha1.FinishDelete, metav1.Condition{Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonDiverged}, false, true},
		"published, and to be deleted":   {v1alpha1.FinishDelete, metav1.Condition{Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonPublished}, false, false},
		"published later, to be deleted": {v1alpha1.FinishDelete, metav1.Condition{Status: metav1.ConditionUnknown, Reason: v1alpha1.ReasonPublishPending}, false, true},
	} {
		t.Run(name, func(t *testing.T) {
			s := completedTask(t, onFinish(0, c.action))
			s.change(func(t *v1alpha1.Task) {
				t.Spec.Publish = &v1alpha1.Publish{Branch: "b", When: v1alpha1.PublishCompleted}
			})
			d := newDecision(s.o, s.now)
			d.setCondition(v1alpha1.TaskPublished, c.condition.Status, c.condition.Reason, "")
			if d.s.Publish = (&v1alpha1.PublishStatus{}); c.retries {
				d.s.Publish.RetryTime = &metav1.Time{Time: s.now}
			}
			because := releaseFinished
			if c.action == v1alpha1.FinishDelete {
				because = releaseToDelete
			}
			if hold := d.publishHold(because); (hold != "") != c.waits {
				t.Errorf("it is held by %q, want that it waits: %t", hold, c.waits)
			}
		})
	}
}

func TestAFinishedTaskIsDeletedAtItsTimeByClew(t *testing.T) {
	s := completedTask(t, onFinish(60, v1alpha1.FinishDelete)).drained()
	s.verified()
	if s.deleted {
		t.Fatal("it was deleted too early")
	}
	s.after(time.Minute).verified()
	if !s.deleted {
		t.Fatal("it was not deleted")
	}
	s.wantEntries("TaskStarted", "TaskCompleted", "TaskReleased")
	farewell := s.plans[len(s.plans)-1].Farewell
	for _, p := range s.plans {
		if p.Farewell != nil {
			farewell = p.Farewell
		}
	}
	if farewell == nil || farewell.Actor != Clew {
		t.Fatalf("the last entry is %+v, want one by Clew", farewell)
	}
	s.wantMessage(farewell.Message, "as spec.onFinish says")
}

func TestATaskThatCannotBeRestoredIsNotDeleted(t *testing.T) {
	s := completedTask(t, onFinish(0, v1alpha1.FinishDelete)).drained()
	s.o.History.State.Latest.Durable = false
	s.verified()
	if s.deleted {
		t.Fatal("it was deleted although the gitstore does not have its last checkpoint")
	}
	s.wantKept("the gitstore does not have checkpoint 1")
}

func TestADeletionThatIsNotAskedForAnyMoreIsForgotten(t *testing.T) {
	s := completedTask(t).drained()
	s.verified()
	s.o.Task.Status.DeletionRequestedTime = &metav1.Time{Time: s.now} // a change came before the deletion
	s.change(resume("more", "More.")).step()
	if s.status().DeletionRequestedTime != nil {
		t.Error("a task that goes on still counts as being deleted by Clew")
	}
}

// stray returns a pod of the task that is no attempt's and cannot be ended.
func stray(task *v1alpha1.Task) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "stray", UID: "uid-of-stray", Labels: resources.Labels(task)}}
}
