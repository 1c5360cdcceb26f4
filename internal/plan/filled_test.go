package plan

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/agent"
	"github.com/clew-dev/clew/internal/daemonapi"
	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/testing/filled"
)

// asked is a decision of a task of which everything is set, whose operations have begun
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
	d.task.Spec.Rewind.Scope, d.task.Spec.Rewind.To.CheckpointRef = v1alpha1.RewindConversation, nil
	return d
}

// TestPrepareIsToldAllOfAnOperation: a field that is new must not be forgotten between
// the Task and its pod.
func TestPrepareIsToldAllOfAnOperation(t *testing.T) {
	d := asked(t)
	if empty := filled.Empty(d.operation(2), "Prompt", "Context"); empty != nil {
		t.Errorf("of a rewind: %v", empty)
	}
	d.task.Spec.Resume.Context.Summary = v1alpha1.ConversationInclude
	d.s.Rewind = nil
	d.task.Spec.Rewind = nil
	if empty := filled.Empty(d.operation(2), "Checkpoint", "Commit", "CheckpointPosition", "Position", "AfterSequence", "Scope", "Preserve", "Branch"); empty != nil {
		t.Errorf("of a resume: %v", empty)
	}
}

// TestAnAttemptTellsItsWholeLife: each field is set in the life of one that fails and is
// tried again.
func TestAnAttemptTellsItsWholeLife(t *testing.T) {
	s := newScene(t)
	s.step()
	s.prepared(daemonapi.PrepareResult{Reason: v1alpha1.ReasonWorkspacePrepared, Memory: v1alpha1.AgentMemorySession, MemoryMessage: "it goes on"})
	s.setContainer(v1alpha1.AgentContainer, corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ImagePullBackOff"}})
	s.after(time.Minute).step()
	s.agentRuns()
	s.agentFails(history.AgentEnd{ExitCode: 1, Cause: string(agent.CauseRateLimited), Message: "slow down", RetryAfter: time.Hour})
	if empty := filled.Empty(s.lastAttempt()); empty != nil {
		t.Errorf("never told: %v of %+v", empty, s.lastAttempt())
	}
}
