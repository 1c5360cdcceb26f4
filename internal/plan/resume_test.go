package plan

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/daemonapi"
	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/testing/builders"
)

// mode sets the mode of the resume that the Task requests.
func mode(m v1alpha1.ResumeMode) builders.TaskOption {
	return func(t *v1alpha1.Task) { t.Spec.Resume.Mode = m }
}

// fromNumber continues from the checkpoint of a number.
func fromNumber(n int64) builders.TaskOption {
	return func(t *v1alpha1.Task) {
		t.Spec.Resume.Mode, t.Spec.Resume.CheckpointNumber = v1alpha1.ResumeFromCheckpoint, &n
	}
}

// atRestTask returns a scene whose task is suspended, with one checkpoint.
func atRestTask(t *testing.T) *scene {
	t.Helper()
	s := running(t)
	s.record(v1alpha1.TriggerSuspend)
	s.change(builders.Suspended).step()
	s.podGone()
	s.wantState(v1alpha1.ReasonSuspended)
	return s
}

// failedTask returns a scene whose agent has failed, with one checkpoint.
func failedTask(t *testing.T) *scene {
	t.Helper()
	s := running(t, builders.BackoffLimit(0))
	s.record(v1alpha1.TriggerFailure)
	s.agentExits(1)
	s.podFinishes()
	s.wantState(v1alpha1.ReasonAgentFailed)
	return s
}

// rewoundTask returns a scene whose completed task was rewound.
func rewoundTask(t *testing.T) *scene {
	t.Helper()
	s := completedTask(t)
	s.rewind("back", 1).step()
	s.prepared(daemonapi.PrepareResult{Operation: "back", ToCheckpoint: 1})
	s.wantState(v1alpha1.ReasonRewound)
	return s
}

func TestWhichModesResumeATaskInWhichState(t *testing.T) {
	const (
		yes     = ""
		invalid = v1alpha1.ReasonInvalidOperation
	)
	pending := func(t *testing.T) *scene {
		s := newScene(t)
		s.o.Blocker = &Blocker{v1alpha1.ReasonPodRefused, "no quota"}
		s.step()
		return s
	}
	for name, c := range map[string]struct {
		scene func(*testing.T) *scene
		// want is the reason for which each mode is refused; "" if it is accepted.
		want map[v1alpha1.ResumeMode]string
	}{
		"pending":   {pending, map[v1alpha1.ResumeMode]string{v1alpha1.ResumeContinue: invalid, v1alpha1.ResumeClean: invalid, v1alpha1.ResumeFromCheckpoint: invalid}},
		"running":   {func(t *testing.T) *scene { return running(t) }, map[v1alpha1.ResumeMode]string{v1alpha1.ResumeContinue: invalid, v1alpha1.ResumeClean: invalid, v1alpha1.ResumeFromCheckpoint: invalid}},
		"suspended": {atRestTask, map[v1alpha1.ResumeMode]string{v1alpha1.ResumeContinue: yes, v1alpha1.ResumeClean: yes, v1alpha1.ResumeFromCheckpoint: yes}},
		"failed":    {failedTask, map[v1alpha1.ResumeMode]string{v1alpha1.ResumeContinue: yes, v1alpha1.ResumeClean: yes, v1alpha1.ResumeFromCheckpoint: yes}},
		"rewound":   {rewoundTask, map[v1alpha1.ResumeMode]string{v1alpha1.ResumeContinue: yes, v1alpha1.ResumeClean: yes, v1alpha1.ResumeFromCheckpoint: yes}},
		"completed": {func(t *testing.T) *scene { return completedTask(t) },
			map[v1alpha1.ResumeMode]string{v1alpha1.ResumeContinue: invalid, v1alpha1.ResumeClean: invalid, v1alpha1.ResumeFromCheckpoint: yes}},
		"completed, with a prompt": {func(t *testing.T) *scene { s := completedTask(t); s.change(resume("on", "And now?")); return s },
			map[v1alpha1.ResumeMode]string{v1alpha1.ResumeContinue: yes, v1alpha1.ResumeClean: yes, v1alpha1.ResumeFromCheckpoint: yes}},
	} {
		for m, refusal := range c.want {
			t.Run(name+", "+string(m), func(t *testing.T) {
				s := c.scene(t)
				if s.o.Task.Spec.Resume == nil {
					s.change(builders.Resume("on"))
				}
				s.change(builders.Running, mode(m))
				if m == v1alpha1.ResumeFromCheckpoint {
					s.change(fromNumber(1))
					s.o.ResumeRecord = RewindRecord{Known: true, Found: &history.Checkpoint{Number: 1, Commit: "c1"}}
				}
				s.step()
				state := v1alpha1.OperationInProgress
				if refusal != "" {
					state = v1alpha1.OperationRefused
				}
				s.wantOperation(s.status().Resume, "on", state, refusal)
			})
		}
	}
	t.Run("deleted", func(t *testing.T) {
		s := atRestTask(t)
		s.change(builders.Running, builders.Resume("on"), func(t *v1alpha1.Task) { t.DeletionTimestamp = ptr.To(metav1.Now()) }).step()
		if s.status().Resume != nil || s.started() != nil {
			t.Errorf("a task that is being deleted was resumed: %+v", s.status().Resume)
		}
	})
}

func TestACleanResumeBeginsANewConversation(t *testing.T) {
	s := completedTask(t)
	s.change(resume("on", "Write tests."), mode(v1alpha1.ResumeClean)).step()
	s.wantPod(Pod{Attempt: 2, Prompt: "Write tests.", Operation: &daemonapi.Operation{
		Kind: daemonapi.OperationResume, ID: "on", Prompt: "Write tests.", OnDrift: v1alpha1.OnDriftFail,
		Rewind: &daemonapi.ResumeRewind{Anew: true},
	}})
	s.prepared(daemonapi.PrepareResult{OperationKind: daemonapi.OperationResume, Operation: "on", FromCheckpoint: 1})
	s.wantOperation(s.status().Resume, "on", v1alpha1.OperationCompleted, "")
	s.wantMessage(s.status().Resume.Message, "the task continues; checkpoint 1 holds the state before the resume")
}

func TestATaskIsResumedFromACheckpoint(t *testing.T) {
	byName := func(t *v1alpha1.Task) {
		t.Spec.Resume.Mode, t.Spec.Resume.CheckpointRef = v1alpha1.ResumeFromCheckpoint, &v1alpha1.NameReference{Name: "tidy-up-1"}
	}
	for name, from := range map[string]builders.TaskOption{"by its name": byName, "by its number": fromNumber(1)} {
		t.Run(name, func(t *testing.T) {
			s := failedTask(t)
			s.o.ResumeTarget = s.checkpoint(1)
			s.o.ResumeTarget.Status.Conversation = &v1alpha1.CheckpointConversation{ConversationPosition: v1alpha1.ConversationPosition{Position: 4}}
			s.o.ResumeRecord = RewindRecord{Known: true, Found: &history.Checkpoint{Number: 1, Commit: "c1", Position: history.Position{Position: 4}}}
			s.change(resume("on", "The other way."), from).step()
			s.wantPod(Pod{Attempt: 2, Prompt: "The other way.", Operation: &daemonapi.Operation{
				Kind: daemonapi.OperationResume, ID: "on", Prompt: "The other way.", OnDrift: v1alpha1.OnDriftFail,
				Rewind: &daemonapi.ResumeRewind{Checkpoint: 1, Commit: "c1", CheckpointPosition: 4, Branch: "clew/before/resume-on"},
			}})
			s.prepared(daemonapi.PrepareResult{OperationKind: daemonapi.OperationResume, Operation: "on", FromCheckpoint: 5, ToCheckpoint: 1, Preserved: "clew/before/resume-on"})
			s.wantOperation(s.status().Resume, "on", v1alpha1.OperationCompleted, "")
			s.wantMessage(s.status().Resume.Message, "rewound to checkpoint 1", "checkpoint 5 holds the state before", "so does clew/before/resume-on")
			s.agentRuns()
			s.wantState(v1alpha1.ReasonRunning)
			s.wantEntries(v1alpha1.EventTaskStarted, v1alpha1.EventTaskFailed, v1alpha1.EventTaskResumed, v1alpha1.EventTaskRewound)
		})
	}
}

func TestAResumeFromACheckpointThatCannotBeUsedIsRefused(t *testing.T) {
	found := history.Checkpoint{Number: 1, Commit: "c1"}
	lost := found
	lost.Lost = true
	for name, c := range map[string]struct {
		observe func(*scene)
		reason  string
	}{
		"there is none of that number": {func(s *scene) { s.o.ResumeRecord = RewindRecord{Known: true} }, v1alpha1.ReasonCheckpointNotFound},
		"it is lost":                   {func(s *scene) { s.o.ResumeRecord = RewindRecord{Known: true, Found: &lost} }, v1alpha1.ReasonInvalidState},
		"the task has none": {func(s *scene) {
			s.o.History.State.CheckpointCount, s.o.History.State.Latest, s.o.Task.Status.LatestCheckpoint = 0, nil, nil
			s.o.ResumeRecord = RewindRecord{Known: true}
		}, v1alpha1.ReasonInvalidState},
	} {
		t.Run(name, func(t *testing.T) {
			s := atRestTask(t)
			c.observe(s)
			s.change(builders.Running, builders.Resume("on"), fromNumber(1)).step()
			s.wantOperation(s.status().Resume, "on", v1alpha1.OperationRefused, c.reason)
			if s.started() != nil {
				t.Fatal("the agent continues from where nobody asked it to")
			}
			s.wantState(v1alpha1.ReasonSuspended)
			s.wantMessage(s.wantCondition(v1alpha1.TaskSucceeded).Message, "stays suspended", "resume was refused")
			s.change(builders.Resume("simply")).step()
			s.wantOperation(s.status().Resume, "simply", v1alpha1.OperationInProgress, "")
			s.wantStarted(2)
		})
	}
}

func TestASuspendedTaskWaitsUntilTheCheckpointOfItsResumeIsKnown(t *testing.T) {
	s := atRestTask(t)
	s.change(builders.Running, builders.Resume("on"), fromNumber(1)).step()
	s.wantOperation(s.status().Resume, "on", v1alpha1.OperationPending, v1alpha1.ReasonHistoryUnavailable)
	s.wantState(v1alpha1.ReasonSuspended)
	s.o.ResumeRecord = RewindRecord{Known: true, Found: &history.Checkpoint{Number: 1, Commit: "c1"}}
	s.after(time.Minute).step()
	if got := s.startedOperation().Rewind.Checkpoint; got != 1 {
		t.Errorf("the task continues from checkpoint %d", got)
	}
}

// elsewhere keeps the resume off the node on which the task last ran.
func elsewhere(t *v1alpha1.Task) { t.Spec.Resume.Placement = v1alpha1.PlacementOtherNode }

func TestAResumeToAnotherNodeKeepsOneAttemptOffTheLastOne(t *testing.T) {
	s := running(t)
	s.pod().Spec.NodeName = "node-7"
	s.change(builders.Suspended).step()
	s.podGone()
	s.change(builders.Running, builders.Resume("move"), elsewhere).step()
	if p := s.wantStarted(2); p.AvoidedNode != "node-7" {
		t.Fatalf("attempt 2 avoids %q", p.AvoidedNode)
	}
	if got := s.status().Attempts[0].NodeName; got != "node-7" {
		t.Errorf("attempt 1 ran on %q", got)
	}
	s.pod().Spec.NodeName = "node-8"
	s.prepared(daemonapi.PrepareResult{OperationKind: daemonapi.OperationResume, Operation: "move"})
	s.agentRuns()
	s.after(time.Minute).podGone()
	if p := s.wantStarted(3); p.AvoidedNode != "" {
		t.Errorf("a later attempt avoids %q", p.AvoidedNode)
	}
}

func TestAResumeToAnyNodeReplacesOneThatNoOtherNodeCanCarryOut(t *testing.T) {
	s := completedTask(t)
	s.o.Task.Status.Attempts[0].NodeName = "node-7"
	s.change(resume("move", "Go on."), elsewhere).step()
	s.pod().Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
		NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchFields: []corev1.NodeSelectorRequirement{
			{Key: "metadata.name", Operator: corev1.NodeSelectorOpNotIn, Values: []string{"node-7"}}}}}}}}
	s.pod().Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Message: "0/1 nodes are available"}}
	s.after(time.Minute).step()
	s.wantState(v1alpha1.ReasonUnschedulable)
	s.wantMessage(s.wantCondition(v1alpha1.TaskSucceeded).Message, "keeps it off node node-7", "resume it with the placement Any")

	s.change(resume("return", "Go on.")).step()
	s.wantOperation(s.status().Resume, "return", v1alpha1.OperationInProgress, "")
	s.podGone()
	if p := s.wantStarted(3); p.AvoidedNode != "" || p.Operation.ID != "return" {
		t.Errorf("started %+v", p)
	}
	s.wantOutcomes(v1alpha1.AttemptCompleted, v1alpha1.AttemptStopped, "")
}

func TestAResumeToAnotherNodeNeedsToKnowTheLastOne(t *testing.T) {
	s := completedTask(t)
	s.change(resume("move", "Go on."), elsewhere).step()
	s.wantOperation(s.status().Resume, "move", v1alpha1.OperationRefused, v1alpha1.ReasonInvalidState)
	s.wantState(v1alpha1.ReasonCompleted)
}

func TestAResumeWhoseRewindFailsDoesNotStartTheAgent(t *testing.T) {
	s := completedTask(t)
	s.o.ResumeRecord = RewindRecord{Known: true, Found: &history.Checkpoint{Number: 1, Commit: "c1"}}
	s.change(resume("on", "Go on."), fromNumber(1)).step()
	s.prepareExits(1, daemonapi.PrepareResult{Reason: v1alpha1.ReasonCheckpointCorrupted, Permanent: true, Message: "an object is damaged; files and conversation are as they were before"})
	s.wantOperation(s.status().Resume, "on", v1alpha1.OperationFailed, v1alpha1.ReasonCheckpointCorrupted)
	s.wantState(v1alpha1.ReasonCheckpointCorrupted)
	s.change(resume("simply", "Go on.")).step()
	if op := s.startedOperation(); op.ID != "simply" || op.Rewind != nil {
		t.Errorf("the next resume is carried out as %s", cmp.Diff(daemonapi.Operation{}, op))
	}
}

// A completed task that was to continue from a checkpoint, and cannot, is no longer complete: its
// state says why, whatever became of its pod.
func TestACompletedTaskWhoseResumeFailsSaysWhy(t *testing.T) {
	for name, ends := range map[string]func(*scene){
		"and its pod is there":      func(*scene) {},
		"and its pod is gone since": func(s *scene) { s.podFinishes(); s.step(); s.podGone(); s.step() },
		"and a new manager looks":   func(s *scene) { s.managerRestarts().step() },
	} {
		t.Run(name, func(t *testing.T) {
			s := completedTask(t)
			s.o.ResumeRecord = RewindRecord{Known: true, Found: &history.Checkpoint{Number: 1, Commit: "c1"}}
			s.change(resume("on", ""), fromNumber(1)).step()
			s.prepareExits(1, daemonapi.PrepareResult{Reason: v1alpha1.ReasonCheckpointCorrupted, Message: "checkpoint 1 is damaged", Permanent: true})
			ends(s)
			s.wantOperation(s.status().Resume, "on", v1alpha1.OperationFailed, v1alpha1.ReasonCheckpointCorrupted)
			s.wantStatus(v1alpha1.TaskSucceeded, metav1.ConditionFalse, v1alpha1.ReasonCheckpointCorrupted, "checkpoint 1 is damaged", "resume the task")
		})
	}
}

// One whose resume is refused stays complete, and says so as well.
func TestACompletedTaskWhoseResumeIsRefusedSaysWhy(t *testing.T) {
	s := completedTask(t)
	s.o.ResumeRecord = RewindRecord{Known: true}
	s.change(resume("on", ""), fromNumber(7)).step()
	s.wantStatus(v1alpha1.TaskSucceeded, metav1.ConditionTrue, v1alpha1.ReasonCompleted,
		"the agent exited with 0", "its resume on was refused (CheckpointNotFound): the task has no checkpoint 7")
	s.o.ResumeRecord.Found = &history.Checkpoint{Number: 1, Commit: "c1"}
	s.change(resume("again", ""), fromNumber(1)).step()
	s.prepareExits(1, daemonapi.PrepareResult{Reason: v1alpha1.ReasonCheckpointCorrupted, Message: "checkpoint 1 is damaged", Permanent: true})
	s.wantStatus(v1alpha1.TaskSucceeded, metav1.ConditionFalse, v1alpha1.ReasonCheckpointCorrupted, "checkpoint 1 is damaged")
	if is := s.wantCondition(v1alpha1.TaskSucceeded); strings.Contains(is.Message, "refused") {
		t.Errorf("the resume that was refused before is still told: %s", is.Message)
	}
}
