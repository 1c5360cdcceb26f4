package plan

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/agent"
	"github.com/clew-dev/clew/internal/daemonapi"
	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/testing/builders"
	"github.com/clew-dev/clew/internal/testing/filled"
)

// asked returns a decision about a task with every field set, whose operations have begun
// in its second attempt.
func asked(t *testing.T) *decision {
	t.Helper()
	s := running(t)
	filled.In(&s.o.Task.Spec.Rewind)
	filled.In(&s.o.Task.Spec.Resume)
	filled.In(&s.o.Task.Status.Rewind)
	filled.In(&s.o.Task.Status.Resume)
	d := newDecision(s.o, s.now)
	for _, op := range []*v1alpha1.OperationStatus{d.s.Rewind, d.s.Resume} {
		op.State, op.Attempt = v1alpha1.OperationInProgress, 2
	}
	d.s.Rewind.ID, d.s.Resume.ID = d.task.Spec.Rewind.ID, d.task.Spec.Resume.ID
	d.task.Spec.Rewind.Scope = v1alpha1.RewindConversation
	d.task.Spec.Rewind.To.CheckpointRef, d.task.Spec.Rewind.To.CheckpointNumber, d.task.Spec.Rewind.To.UndoOf = nil, nil, ""
	d.s.Rewind.Scope = v1alpha1.RewindConversation
	return d
}

// TestPrepareGetsEveryFieldOfAnOperation: a new field must not be forgotten between the
// Task and its pod.
func TestPrepareGetsEveryFieldOfAnOperation(t *testing.T) {
	d := asked(t)
	if empty := filled.Empty(d.operation(2), "Prompt", "AdditionalContext", "Context", "Checkpoint", "Commit", "Anew", "Rewind"); empty != nil {
		t.Errorf("these fields of a rewind of files are empty: %v", empty)
	}
	d.s.Rewind.Paths, d.task.Spec.Rewind.To.Commit = nil, ""
	if empty := filled.Empty(d.operation(2), "Prompt", "AdditionalContext", "Context", "Files", "Anew", "Rewind"); empty != nil {
		t.Errorf("these fields of a rewind are empty: %v", empty)
	}
	d.task.Spec.Resume.Context.Summary = v1alpha1.ConversationInclude
	d.s.Rewind = nil
	d.task.Spec.Rewind = nil
	d.task.Spec.Resume.Mode = v1alpha1.ResumeFromCheckpoint
	if empty := filled.Empty(d.operation(2), "Checkpoint", "Commit", "CheckpointPosition", "Position", "AfterSequence", "Scope", "Preserve", "Branch", "Files", "Anew", "Rewind.Anew"); empty != nil {
		t.Errorf("these fields of a resume are empty: %v", empty)
	}
}

// TestEveryFieldOfAnAttemptIsSet: each is set for an attempt that fails and is retried, but that of one
// that has not got as far, and BackTo, of one that rewinds.
func TestEveryFieldOfAnAttemptIsSet(t *testing.T) {
	s := newScene(t, builders.ToolCallBudget(1))
	s.step()
	s.prepared(daemonapi.PrepareResult{Reason: v1alpha1.ReasonWorkspacePrepared, Memory: v1alpha1.AgentMemorySession, MemoryMessage: "it goes on"})
	s.pod().Spec.NodeName = "node-7"
	s.setContainer(v1alpha1.AgentContainer, corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ImagePullBackOff"}})
	s.after(time.Minute).step()
	s.agentRuns()
	s.calls(1)
	s.agentFails(history.AgentEnd{ExitCode: 1, Cause: string(agent.CauseRateLimited), Message: "slow down", RetryAfter: time.Hour})
	if empty := filled.Empty(s.lastAttempt(), "PlaceGivenUpTime", "WaitingSince", "WaitedSeconds", "UnansweredSeconds", "BackTo"); empty != nil {
		t.Errorf("these fields are empty: %v of %+v", empty, s.lastAttempt())
	}
}
