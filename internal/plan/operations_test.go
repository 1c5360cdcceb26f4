package plan

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/daemonapi"
	"github.com/clew-dev/clew/internal/testing/builders"
)

// wantOperation fails unless the operation has this id, state and reason.
func (s *scene) wantOperation(op *v1alpha1.OperationStatus, id string, state v1alpha1.OperationState, reason string) {
	s.Helper()
	if op == nil {
		s.Fatalf("the operation %s has no status", id)
	}
	want, got := []string{id, string(state), reason}, []string{op.ID, string(op.State), op.Reason}
	if diff := cmp.Diff(want, got); diff != "" {
		s.Errorf("id, state and reason of the operation (-want +got):\n%s\nits message is %q", diff, op.Message)
	}
}

func TestARunningTaskIsStoppedForARewindAndContinuesAfterIt(t *testing.T) {
	s := running(t)
	s.rewind("back", 2).step()
	s.wantState(v1alpha1.ReasonRewinding)
	s.wantOperation(s.status().Rewind, "back", v1alpha1.OperationInProgress, "")
	if s.pod().DeletionTimestamp == nil {
		t.Fatal("the agent was not stopped")
	}
	s.podGone()
	s.wantPod(Pod{Attempt: 2, Operation: &daemonapi.Operation{
		Kind: daemonapi.OperationRewind, ID: "back", OnDrift: "Fail", Checkpoint: 2, Commit: "c2",
		Scope: "Both", Preserve: "Branch", Branch: "clew/before-back",
	}})
	s.wantState(v1alpha1.ReasonRewinding)
	s.prepared(daemonapi.PrepareResult{Operation: "back", FromCheckpoint: 5, ToCheckpoint: 2, Preserved: "clew/before-back"})
	s.wantOperation(s.status().Rewind, "back", v1alpha1.OperationCompleted, "")
	type outcome struct {
		From, To  int64
		Preserved string
	}
	r := s.status().Rewind
	if diff := cmp.Diff(outcome{5, 2, "clew/before-back"}, outcome{r.FromCheckpoint, r.ToCheckpoint, r.Preserved}); diff != "" {
		t.Errorf("status.rewind (-want +got):\n%s", diff)
	}
	s.agentRuns()
	s.wantState(v1alpha1.ReasonRunning)
	s.wantOutcomes(v1alpha1.AttemptStopped, "")
	s.wantEntries(v1alpha1.EventTaskStarted, v1alpha1.EventTaskRewound)
}

// failedRewind is what prepare reports about a rewind that failed and changed nothing.
func failedRewind(id, reason string) daemonapi.PrepareResult {
	return daemonapi.PrepareResult{Operation: "Rewind/" + id, Failed: &daemonapi.OperationFailure{
		Kind: daemonapi.OperationRewind, ID: id, Reason: reason, Message: "it cannot be done"}}
}

func TestARewindThatFailsInAPreparedWorkspaceIsReportedAndTheAgentContinues(t *testing.T) {
	for _, reason := range []string{v1alpha1.ReasonBranchExists, v1alpha1.ReasonCheckpointCorrupted, v1alpha1.ReasonGitStoreRefused} {
		s := running(t)
		s.o.Stamped = true
		s.o.Task.Spec.RequestedBy = &v1alpha1.TaskRequesters{Rewind: "ben"}
		s.rewind("back", 2).step()
		s.podGone()
		s.prepared(failedRewind("back", reason))
		s.wantOperation(s.status().Rewind, "back", v1alpha1.OperationFailed, reason)
		entries := s.status().History
		event := entries[len(entries)-1]
		if got, want := event.Message, "rewind back failed ("+reason+"): it cannot be done; files and conversation are as they were before"; got != want || event.Actor != "ben" {
			t.Errorf("the Event says %q by %s, want %q", got, event.Actor, want)
		}
		if got, want := s.status().Rewind.Message, "it cannot be done; files and conversation are as they were before"; got != want {
			t.Errorf("status.rewind says %q, want %q", got, want)
		}
		s.agentRuns()
		s.wantState(v1alpha1.ReasonRunning)
		s.wantOutcomes(v1alpha1.AttemptStopped, "")
		s.wantEntries(v1alpha1.EventTaskStarted, v1alpha1.EventOperationFailed)
		s.rewind("corrected", 2).step()
		s.podGone()
		s.prepared(daemonapi.PrepareResult{OperationKind: daemonapi.OperationRewind, Operation: "corrected", ToCheckpoint: 2})
		s.wantOperation(s.status().Rewind, "corrected", v1alpha1.OperationCompleted, "")
	}
}

// The agent chooses the path that is in the way, and so how long the reason is.
func TestALongFailureOfARewindSaysThatNothingWasChanged(t *testing.T) {
	s := running(t)
	s.rewind("back", 2).step()
	s.podGone()
	result := failedRewind("back", v1alpha1.ReasonInvalidState)
	result.Failed.Message = strings.Repeat("deep/", 204)
	s.prepared(result)
	entries := s.status().History
	for _, got := range []string{s.status().Rewind.Message, entries[len(entries)-1].Message} {
		if !strings.HasSuffix(got, "…; files and conversation are as they were before") {
			t.Errorf("it does not say that nothing was changed: …%s", got[len(got)-60:])
		}
	}
}

func TestAStoppedTaskStaysUnchangedWhenItsRewindFails(t *testing.T) {
	s := completedTask(t)
	s.rewind("back", 1).step()
	s.prepared(failedRewind("back", v1alpha1.ReasonBranchExists))
	s.podFinishes()
	s.wantOperation(s.status().Rewind, "back", v1alpha1.OperationFailed, v1alpha1.ReasonBranchExists)
	s.wantState(v1alpha1.ReasonCompleted)
}

func TestARewindWithAnInvalidBranchIsRefusedAtOnce(t *testing.T) {
	for _, id := range []string{"v1..v2", "fix.lock"} {
		s := running(t)
		s.rewind(id, 2).step()
		s.wantOperation(s.status().Rewind, id, v1alpha1.OperationRefused, v1alpha1.ReasonInvalidBranch)
		s.wantState(v1alpha1.ReasonRunning)
	}
}

func TestARewindOfTheConversationAloneNeedsNoBranch(t *testing.T) {
	for _, id := range []string{"v1..v2", "fix.lock"} {
		s := running(t)
		s.rewind(id, 2)
		s.o.Task.Spec.Rewind.Scope = v1alpha1.RewindConversation
		s.step()
		s.wantOperation(s.status().Rewind, id, v1alpha1.OperationInProgress, "")
	}
}

func TestTheOutcomeOfAnOperationOfAnotherKindIsNotTheRewinds(t *testing.T) {
	s := running(t)
	s.rewind("1", 2).step()
	s.podGone()
	s.prepared(daemonapi.PrepareResult{OperationKind: daemonapi.OperationResume, Operation: "1"})
	s.wantOperation(s.status().Rewind, "1", v1alpha1.OperationInProgress, "")
	s.prepared(daemonapi.PrepareResult{OperationKind: daemonapi.OperationRewind, Operation: "1", ToCheckpoint: 2})
	s.wantOperation(s.status().Rewind, "1", v1alpha1.OperationCompleted, "")
}

func TestARewindOfAStoppedTaskStartsNoAgent(t *testing.T) {
	suspended := func(t *testing.T) *scene {
		s := running(t)
		s.change(builders.Suspended).step()
		s.podGone()
		return s
	}
	failed := func(t *testing.T) *scene {
		s := running(t, builders.BackoffLimit(0))
		s.agentExits(1)
		s.podFinishes()
		return s
	}
	for name, c := range map[string]struct {
		make  func(*testing.T) *scene
		after string
	}{
		"suspended": {suspended, v1alpha1.ReasonSuspended},
		"completed": {func(t *testing.T) *scene { return completedTask(t) }, v1alpha1.ReasonRewound},
		"failed":    {failed, v1alpha1.ReasonRewound},
	} {
		t.Run(name, func(t *testing.T) {
			s := c.make(t)
			s.rewind("back", 1).step()
			if op := s.startedOperation(); op.ID != "back" || !s.started().PrepareOnly {
				t.Fatalf("started %+v, want a pod that only carries out the rewind", s.started())
			}
			s.wantState(v1alpha1.ReasonRewinding)
			s.prepared(daemonapi.PrepareResult{Operation: "back", ToCheckpoint: 1})
			s.wantState(c.after)
			s.wantOperation(s.status().Rewind, "back", v1alpha1.OperationCompleted, "")
			s.after(time.Hour).step()
			if s.started() != nil {
				t.Error("something was started after it")
			}
		})
	}
}

func TestARewoundTaskContinuesWhenItIsResumed(t *testing.T) {
	s := completedTask(t)
	s.rewind("back", 1).step()
	s.prepared(daemonapi.PrepareResult{Operation: "back"})
	s.change(builders.Resume("on"), func(t *v1alpha1.Task) { t.Spec.Resume.Prompt = "now the other way" }).step()
	s.wantPod(Pod{Attempt: 3, Prompt: "now the other way", Operation: &daemonapi.Operation{
		Kind: daemonapi.OperationResume, ID: "on", Prompt: "now the other way", OnDrift: v1alpha1.OnDriftFail,
	}})
	s.prepared(daemonapi.PrepareResult{Operation: "on"})
	s.wantOperation(s.status().Resume, "on", v1alpha1.OperationCompleted, "")
	s.agentRuns()
	s.wantState(v1alpha1.ReasonRunning)
	s.after(time.Minute).podGone()
	s.wantPod(Pod{Attempt: 4, Prompt: "now the other way"}) // after a lost pod
}

func TestARewindIsCarriedOutWhateverHappensToItsPod(t *testing.T) {
	s := running(t)
	s.rewind("back", 1).step()
	s.podGone()
	for range 5 {
		s.after(time.Minute).prepareKilled()
		if op := s.startedOperation(); op.ID != "back" {
			t.Fatalf("after a kill the next pod gets the operation %q, want back", op.ID)
		}
	}
	s.prepareExits(1, daemonapi.PrepareResult{Reason: v1alpha1.ReasonServerUnreachable, Message: "no answer"})
	s.after(time.Minute).step()
	if p := s.started(); p == nil || p.Operation == nil {
		t.Fatalf("after an outage: %+v", p)
	}
	s.prepared(daemonapi.PrepareResult{Operation: "back"})
	s.wantOperation(s.status().Rewind, "back", v1alpha1.OperationCompleted, "")
}

func TestARewindIsNotInterruptedBySuspending(t *testing.T) {
	s := running(t)
	s.rewind("back", 1).step()
	s.podGone()
	s.change(builders.Suspended).step()
	if s.pod().DeletionTimestamp != nil {
		t.Fatal("the rewind was interrupted")
	}
	s.prepared(daemonapi.PrepareResult{Operation: "back"})
	s.wantState(v1alpha1.ReasonSuspending)
	s.podGone()
	s.wantState(v1alpha1.ReasonSuspended)
}

func TestTheSameIDAgainDoesNothing(t *testing.T) {
	s := completedTask(t)
	s.rewind("a", 1).step()
	s.prepared(daemonapi.PrepareResult{Operation: "a"})
	s.rewind("b", 1).step()
	s.prepared(daemonapi.PrepareResult{Operation: "b"})
	attempts := len(s.status().Attempts)
	for _, id := range []string{"b", "a"} {
		s.rewind(id, 1).step()
		if len(s.status().Attempts) != attempts || s.status().Rewind.ID != "b" {
			t.Errorf("%s was carried out again: %+v", id, s.status().Rewind)
		}
	}
}

func TestAnImpossibleRewindIsRefusedAndChangesNothing(t *testing.T) {
	for reason, target := range map[string]func(*scene) *v1alpha1.Checkpoint{
		v1alpha1.ReasonCheckpointNotFound: func(*scene) *v1alpha1.Checkpoint { return nil },
		v1alpha1.ReasonCheckpointOfOther: func(s *scene) *v1alpha1.Checkpoint {
			c := s.checkpoint(1)
			c.Spec.TaskRef.Name = "other"
			return c
		},
		v1alpha1.ReasonInvalidState: func(s *scene) *v1alpha1.Checkpoint {
			c := s.checkpoint(1)
			c.Status = v1alpha1.CheckpointStatus{}
			return c
		},
		v1alpha1.ReasonCheckpointCorrupted: func(s *scene) *v1alpha1.Checkpoint {
			c := s.checkpoint(1)
			c.Status.Conditions = []metav1.Condition{{Type: v1alpha1.CheckpointIntact, Status: metav1.ConditionFalse}}
			return c
		},
	} {
		t.Run(reason, func(t *testing.T) {
			s := running(t)
			s.rewind("back", 1)
			s.o.RewindTarget = target(s)
			s.step()
			s.wantOperation(s.status().Rewind, "back", v1alpha1.OperationRefused, reason)
			s.wantState(v1alpha1.ReasonRunning)
			if s.pod().DeletionTimestamp != nil {
				t.Error("the agent was stopped")
			}
			s.wantEntries(v1alpha1.EventTaskStarted, v1alpha1.EventOperationRefused)
		})
	}
}

func TestAFailedRewindLeavesTheTaskUnchanged(t *testing.T) {
	broken := daemonapi.PrepareResult{Reason: v1alpha1.ReasonCheckpointCorrupted, Message: "an object of checkpoint 1 is damaged", Permanent: true}
	t.Run("a completed one stays completed", func(t *testing.T) {
		s := completedTask(t)
		s.rewind("back", 1).step()
		s.prepareExits(1, broken)
		s.wantOperation(s.status().Rewind, "back", v1alpha1.OperationFailed, v1alpha1.ReasonCheckpointCorrupted)
		s.wantState(v1alpha1.ReasonCompleted)
	})
	t.Run("a running one continues", func(t *testing.T) {
		s := running(t)
		s.rewind("back", 1).step()
		s.podGone()
		s.prepareExits(1, broken)
		s.wantOperation(s.status().Rewind, "back", v1alpha1.OperationFailed, v1alpha1.ReasonCheckpointCorrupted)
		s.wantPod(Pod{Attempt: 3})
	})
}

func TestDriftStopsATaskUntilSomebodyDecides(t *testing.T) {
	s := running(t)
	s.change(builders.Suspended).step()
	s.podGone()
	s.change(builders.Running).step()
	s.prepareExits(1, daemonapi.PrepareResult{
		Reason: v1alpha1.ReasonDriftDetected, Permanent: true, DriftCount: 2, DriftedFiles: []string{"a.txt"}, DriftedActions: "D", DriftFrom: 3, DriftCommit: "d0d0",
		MovedHead: &daemonapi.MovedHead{FromBranch: "main", FromCommit: "c1", Commit: "c2"},
		Message:   "1 file was changed while the task was suspended: a.txt",
	})
	s.wantState(v1alpha1.ReasonDriftDetected)
	if c := s.wantCondition(v1alpha1.TaskDrifted); c.Status != metav1.ConditionTrue || !strings.Contains(c.Message, "a.txt") {
		t.Errorf("Drifted: %+v", c)
	}
	want := &v1alpha1.DriftStatus{Attempt: 2, Checkpoint: 3, FileCount: 2, Files: []v1alpha1.ChangedFile{{Path: "a.txt", Action: v1alpha1.FileDeleted}}, Commit: "d0d0",
		ExpectedHead: &v1alpha1.HeadStatus{Branch: "main", Commit: "c1"}, Head: &v1alpha1.HeadStatus{Commit: "c2"}}
	if diff := cmp.Diff(want, s.status().Drift); diff != "" {
		t.Errorf("status.drift (-want +got):\n%s", diff)
	}
	if c := s.wantCondition(v1alpha1.TaskSucceeded); c.Status != metav1.ConditionUnknown || !strings.Contains(c.Message, "onDrift") {
		t.Errorf("Succeeded: %+v", c)
	}
	s.change(builders.Resume("keep"), func(t *v1alpha1.Task) { t.Spec.Resume.OnDrift = v1alpha1.OnDriftPreserve }).step()
	if op := s.startedOperation(); op.OnDrift != v1alpha1.OnDriftPreserve {
		t.Fatalf("prepare gets onDrift %q, want Preserve", op.OnDrift)
	}
	s.prepared(daemonapi.PrepareResult{Operation: "keep", DriftCount: 1, DriftedFiles: []string{"a.txt"}, DriftFrom: 3})
	const kept = "1 file that was changed while the task was not running was kept"
	s.wantStatus(v1alpha1.TaskDrifted, metav1.ConditionFalse, v1alpha1.EventDriftPreserved, kept)
	s.agentRuns()
	s.wantStatus(v1alpha1.TaskDrifted, metav1.ConditionFalse, v1alpha1.EventDriftPreserved, kept)
	if got := s.status().Drift; got == nil || got.Attempt != 3 || got.FileCount != 1 || got.Commit != "" {
		t.Errorf("status.drift is %+v, want the file that was kept", got)
	}
}

func TestFilesThatWereRestoredAreNoLongerDrifted(t *testing.T) {
	s := running(t)
	s.change(builders.Suspended).step()
	s.podGone()
	s.change(builders.Resume("restore"), builders.Running, func(t *v1alpha1.Task) { t.Spec.Resume.OnDrift = v1alpha1.OnDriftOverride }).step()
	s.prepared(daemonapi.PrepareResult{Operation: "restore", DriftCount: 2, DriftedFiles: []string{"a.txt", "b.txt"}, DriftFrom: 3})
	s.wantStatus(v1alpha1.TaskDrifted, metav1.ConditionFalse, v1alpha1.EventDriftOverridden, "2 files that were changed while the task was not running were restored")
}

func TestAMovedHeadIsAWarning(t *testing.T) {
	s := running(t)
	s.change(builders.Suspended).step()
	s.podGone()
	s.change(builders.Resume("on"), builders.Running).step()
	s.prepared(daemonapi.PrepareResult{Operation: "on", DriftFrom: 3,
		MovedHead: &daemonapi.MovedHead{FromBranch: "main", FromCommit: "0123456789abcdef", Branch: "by-hand", Commit: "0123456789abcdef"}})
	s.wantOperation(s.status().Resume, "on", v1alpha1.OperationCompleted, "")
	c := s.wantCondition(v1alpha1.TaskDrifted)
	if c.Status != metav1.ConditionFalse || c.Reason != v1alpha1.ReasonHeadMoved {
		t.Errorf("Drifted: %+v", c)
	}
	s.wantMessage(c.Message, "from commit 0123456789ab of branch main to commit 0123456789ab of branch by-hand; the task continues with it")
	if got := s.status().Drift; got == nil || got.Head.Branch != "by-hand" || got.FileCount != 0 {
		t.Errorf("status.drift is %+v", got)
	}
	// The next attempt that finds the worktree as it was left ends the warning.
	s.agentRuns()
	s.change(builders.Suspended).step()
	s.podGone()
	s.change(builders.Resume("again"), builders.Running).step()
	s.prepared(daemonapi.PrepareResult{Operation: "again"})
	if c := s.wantCondition(v1alpha1.TaskDrifted); c.Reason != v1alpha1.ReasonNoDrift || s.status().Drift != nil {
		t.Errorf("Drifted: %+v, %+v", c, s.status().Drift)
	}
}

func TestAResumeIsRefusedUnlessTheTaskIsAtRest(t *testing.T) {
	for name, c := range map[string]struct {
		scene func(*testing.T) *scene
		word  string
	}{
		"running":   {func(t *testing.T) *scene { return running(t) }, "the task is running"},
		"completed": {func(t *testing.T) *scene { return completedTask(t) }, "a completed task continues only with a new prompt"},
		"suspended": {func(t *testing.T) *scene {
			s := running(t)
			s.change(builders.Suspended).step()
			s.podGone()
			return s
		}, "operatingMode is Suspended"},
		"about to retry": {func(t *testing.T) *scene {
			s := running(t)
			s.agentExits(1)
			s.podFinishes()
			return s
		}, "about to be restarted automatically"},
	} {
		t.Run(name, func(t *testing.T) {
			s := c.scene(t)
			before := s.wantCondition(v1alpha1.TaskSucceeded)
			s.change(builders.Resume("on")).step()
			s.wantOperation(s.status().Resume, "on", v1alpha1.OperationRefused, v1alpha1.ReasonInvalidOperation)
			if !strings.Contains(s.status().Resume.Message, c.word) {
				t.Errorf("the message is %q", s.status().Resume.Message)
			}
			s.wantState(before.Reason)
		})
	}
}

func TestACompletedTaskContinuesWithAPromptAsOftenAsItIsAsked(t *testing.T) {
	s := completedTask(t)
	want := []v1alpha1.AttemptTrigger{v1alpha1.AttemptStart}
	for n := int64(2); n <= 6; n++ {
		prompt := fmt.Sprintf("Question %d?", n)
		s.change(resume(fmt.Sprintf("ask-%d", n), prompt)).step()
		p := s.wantStarted(n)
		if p.PrepareOnly || p.Prompt != prompt || p.Operation.Prompt != prompt {
			t.Fatalf("attempt %d is started with %+v and the operation %+v", n, p, p.Operation)
		}
		s.prepared(daemonapi.PrepareResult{OperationKind: daemonapi.OperationResume, Operation: fmt.Sprintf("ask-%d", n), Memory: v1alpha1.AgentMemorySession})
		s.agentRuns()
		s.wantState(v1alpha1.ReasonRunning)
		s.record(v1alpha1.TriggerCompletion)
		s.agentExits(0)
		s.podFinishes()
		s.wantState(v1alpha1.ReasonCompleted)
		want = append(want, v1alpha1.AttemptResume)
	}
	var got []v1alpha1.AttemptTrigger
	for i, a := range s.status().Attempts {
		got = append(got, a.Trigger)
		if a.Number != int64(i)+1 || a.Outcome != v1alpha1.AttemptCompleted {
			t.Errorf("attempt %d of the chain is %+v", i+1, a)
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("the chain of attempts (-want +got):\n%s", diff)
	}
}

// resume requests a resume with a prompt.
func resume(id, prompt string) builders.TaskOption {
	return func(t *v1alpha1.Task) { builders.Resume(id)(t); t.Spec.Resume.Prompt = prompt }
}

func TestASuspendedTaskIsResumedWithAPrompt(t *testing.T) {
	s := running(t)
	s.change(builders.Suspended).step()
	s.podGone()
	s.change(builders.Running, builders.Resume("on")).step()
	if op := s.startedOperation(); op.ID != "on" {
		t.Fatalf("prepare gets the operation %q, want on", op.ID)
	}
	s.wantEntries(v1alpha1.EventTaskStarted, v1alpha1.EventTaskSuspended, v1alpha1.EventTaskResumed)
}

// Each operation happens once, however many pods it takes.
func TestAResumeIsReportedOnceAlthoughItsPodIsLost(t *testing.T) {
	s := running(t)
	s.change(builders.Suspended).step()
	s.podGone()
	s.change(builders.Running, builders.Resume("on")).step()
	s.podGone()
	if op := s.startedOperation(); op.ID != "on" {
		t.Fatalf("prepare gets the operation %q, want on", op.ID)
	}
	s.wantEntries(v1alpha1.EventTaskStarted, v1alpha1.EventTaskSuspended, v1alpha1.EventTaskResumed, v1alpha1.EventPodLost, v1alpha1.EventTaskRetried)
}

func TestAResumeRestoresTheAgentsRetries(t *testing.T) {
	s := running(t, builders.BackoffLimit(0))
	s.agentExits(1)
	s.podFinishes()
	s.change(builders.Resume("on")).step()
	if s.status().Failures != 0 || s.lastAttempt().Trigger != v1alpha1.AttemptResume {
		t.Errorf("the status is %+v", s.status())
	}
}

func TestANewTaskDoesNotCarryOutTheOperationsOfItsManifest(t *testing.T) {
	s := newScene(t, resume("on", "Go on."), builders.Rewind("back", "tidy-up-3"))
	s.step()
	s.wantOperation(s.status().Resume, "on", v1alpha1.OperationNotApplicable, "")
	s.wantOperation(s.status().Rewind, "back", v1alpha1.OperationNotApplicable, "")
	s.wantMessage(s.status().Resume.Message, "a new Task has nothing to resume", "give it a new id")
	s.wantEntries(v1alpha1.EventNotApplicable, v1alpha1.EventNotApplicable, v1alpha1.EventTaskStarted)
	s.wantPod(Pod{Attempt: 1})
	s.prepared(daemonapi.PrepareResult{Reason: v1alpha1.ReasonWorkspacePrepared})
	s.agentRuns()
	s.record(v1alpha1.TriggerCompletion)
	s.agentExits(0)
	s.podFinishes()
	s.wantState(v1alpha1.ReasonCompleted)
	attempts := len(s.status().Attempts)
	s.change(func(t *v1alpha1.Task) { t.Labels = map[string]string{"synced": "again"} }).step()
	if len(s.status().Attempts) != attempts {
		t.Error("an operation was carried out after all")
	}
	t.Run("a new id is another request", func(t *testing.T) {
		s.change(resume("further", "Go on.")).step()
		s.wantOperation(s.status().Resume, "further", v1alpha1.OperationInProgress, "")
	})
}

func TestAnOperationInTheSpecIsNeverForgotten(t *testing.T) {
	s := completedTask(t)
	s.rewind("stays", 1).step()
	s.prepared(daemonapi.PrepareResult{Operation: "stays", ToCheckpoint: 1})
	s.wantState(v1alpha1.ReasonRewound)
	for n := range 150 {
		s.change(builders.Running, builders.Resume(fmt.Sprintf("on-%d", n))).step()
		s.prepared(daemonapi.PrepareResult{OperationKind: daemonapi.OperationResume, Operation: fmt.Sprintf("on-%d", n)})
		s.agentRuns()
		s.recorded()
		s.change(builders.Suspended).step()
		s.podGone()
	}
	handled := s.status().HandledOperations
	if len(handled) != 100 || handled[0] != "Rewind/stays" || handled[99] != "Resume/on-149" {
		t.Errorf("%d operations are remembered: %q", len(handled), handled)
	}
	s.wantOperation(s.status().Rewind, "stays", v1alpha1.OperationCompleted, "")
}
