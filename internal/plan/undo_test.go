package plan

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/daemonapi"
	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/testing/builders"
)

func undoOf(id string) v1alpha1.RewindTarget { return v1alpha1.RewindTarget{UndoOf: id} }

// done is what the store has about a completed rewind from checkpoint 9 to checkpoint 3.
func done(id string, scope v1alpha1.RewindScope) RewindUndone {
	return RewindUndone{Known: true, Found: history.Rewind{ID: id, Completed: true,
		Rewound: &history.Rewound{Scope: string(scope), From: 9, To: 3}}}
}

// nine is what the store has about checkpoint 9, at message 20.
func nine() RewindRecord {
	return RewindRecord{Known: true, Found: &history.Checkpoint{Number: 9, Commit: "c9", Position: history.Position{Branch: "main", Position: 20}}}
}

func TestAnUndoRestoresWhatWasBeforeTheRewindWithItsScope(t *testing.T) {
	for scope, c := range map[v1alpha1.RewindScope]struct {
		position int64
		message  string
	}{
		v1alpha1.RewindBoth:         {20, "the task was rewound to checkpoint 9"},
		v1alpha1.RewindConversation: {20, "the conversation was rewound to checkpoint 9"},
		v1alpha1.RewindCode:         {0, "the task was rewound to checkpoint 9"},
	} {
		t.Run(string(scope), func(t *testing.T) {
			s := running(t)
			s.o.RewindUndone, s.o.RewindRecord = done("back", scope), nine()
			s.rewindTo("undo", v1alpha1.RewindBoth, undoOf("back")) // as the API server defaults it
			if n := CheckpointOf(s.o.Task.Spec.Rewind, s.o); n != 9 {
				t.Errorf("the checkpoint to observe is %d, want 9", n)
			}
			s.step()
			s.wantOperation(s.status().Rewind, "undo", v1alpha1.OperationInProgress, "")
			s.wantResolved(v1alpha1.OperationStatus{ToCheckpoint: 9, ToCommit: "c9", CheckpointPosition: 20, ToPosition: c.position, Message: "this undoes the rewind back"})
			if r := s.status().Rewind; r.UndoOf != "back" || r.Scope != scope {
				t.Errorf("status.rewind undoes %q with scope %s, want back with %s", r.UndoOf, r.Scope, scope)
			}
			s.o.RewindUndone, s.o.RewindRecord = RewindUndone{}, RewindRecord{} // it is resolved once
			s.podGone()
			s.wantTarget(daemonapi.Operation{Checkpoint: 9, Commit: "c9", CheckpointPosition: 20, Scope: scope})
			s.prepared(daemonapi.PrepareResult{Operation: "undo", FromCheckpoint: 12, ToCheckpoint: 9, ToPosition: c.position})
			s.wantOperation(s.status().Rewind, "undo", v1alpha1.OperationCompleted, "")
			s.wantMessage(s.status().Rewind.Message, c.message, "checkpoint 12 holds the state before the rewind", "this undoes the rewind back")
		})
	}
}

// A daemon that is too old to record what it has done leaves it to status.rewind.
func TestTheLastRewindOfAnOlderDaemonIsUndoneByTheStatus(t *testing.T) {
	for name, wait := range map[string]bool{"at once": false, "after the history store was down": true} {
		t.Run(name, func(t *testing.T) {
			s := running(t)
			s.o.RewindRecord = recorded()
			s.rewindTo("back", v1alpha1.RewindCode, toNumber(3)).step()
			s.podGone()
			s.prepared(daemonapi.PrepareResult{Operation: "back", FromCheckpoint: 9, ToCheckpoint: 3})
			s.agentRuns()
			s.wantOperation(s.status().Rewind, "back", v1alpha1.OperationCompleted, "")
			s.o.RewindUndone = RewindUndone{Known: true, Found: history.Rewind{ID: "back", Completed: true}}
			s.o.RewindRecord = nine()
			if wait {
				known := s.o.RewindUndone
				s.o.RewindUndone = RewindUndone{}
				s.rewindTo("undo", v1alpha1.RewindBoth, undoOf("back")).step()
				s.wantOperation(s.status().Rewind, "undo", v1alpha1.OperationPending, v1alpha1.ReasonHistoryUnavailable)
				s.o.RewindUndone = known
				s.step()
			} else {
				s.rewindTo("undo", v1alpha1.RewindBoth, undoOf("back")).step()
			}
			s.wantOperation(s.status().Rewind, "undo", v1alpha1.OperationInProgress, "")
			s.wantResolved(v1alpha1.OperationStatus{ToCheckpoint: 9, ToCommit: "c9", CheckpointPosition: 20, Message: "this undoes the rewind back"})
			s.podGone()
			s.wantTarget(daemonapi.Operation{Checkpoint: 9, Commit: "c9", CheckpointPosition: 20, Scope: v1alpha1.RewindCode})
		})
	}
}

func TestAnUndoThatIsImpossibleIsRefusedAndChangesNothing(t *testing.T) {
	known := func(change func(*history.Rewind)) RewindUndone {
		u := done("back", v1alpha1.RewindBoth)
		change(&u.Found)
		return u
	}
	lost := nine()
	lost.Found.Lost = true
	for name, c := range map[string]struct {
		undone  RewindUndone
		record  RewindRecord
		status  v1alpha1.TaskStatus
		reason  string
		message string
	}{
		"an unknown id": {RewindUndone{Known: true, Found: history.Rewind{ID: "back"}}, RewindRecord{}, v1alpha1.TaskStatus{},
			v1alpha1.ReasonInvalidOperation, "this task has no rewind with the id back: name one that kubectl clew timeline shows, and request the rewind again"},
		"one that failed after it had begun": {known(func(r *history.Rewind) { r.Completed, r.Failed, r.Rewound = false, true, nil }), RewindRecord{}, v1alpha1.TaskStatus{},
			v1alpha1.ReasonInvalidOperation, "there is nothing to undo: the rewind back was refused or failed, and changed nothing"},
		"one that was refused": {RewindUndone{Known: true}, RewindRecord{},
			v1alpha1.TaskStatus{Rewind: &v1alpha1.OperationStatus{ID: "back", State: v1alpha1.OperationRefused}},
			v1alpha1.ReasonInvalidOperation, "there is nothing to undo: the rewind back was refused or failed"},
		"one that was refused long ago": {RewindUndone{Known: true}, RewindRecord{}, v1alpha1.TaskStatus{HandledOperations: []string{"Rewind/back"}},
			v1alpha1.ReasonInvalidOperation, "nothing is recorded of what the rewind back did: either it was refused or failed, and there is nothing to undo, or its record is lost"},
		"one that was carried out, and whose record is lost": {RewindUndone{Known: true}, RewindRecord{},
			v1alpha1.TaskStatus{HandledOperations: []string{"Rewind/back"}, Rewind: &v1alpha1.OperationStatus{ID: "back", State: v1alpha1.OperationCompleted, Scope: v1alpha1.RewindBoth}},
			v1alpha1.ReasonInvalidOperation, "the rewind back was carried out, but no record says what it rewound: rewind to a checkpoint from before it"},
		"one of an older daemon, that is not the last": {known(func(r *history.Rewind) { r.Rewound = nil }), RewindRecord{}, v1alpha1.TaskStatus{},
			v1alpha1.ReasonInvalidOperation, "the rewind back was carried out by an older version of Clew, which did not record what it rewound"},
		"a scope of a newer daemon": {known(func(r *history.Rewind) { r.Rewound.Scope = "Dreams" }), RewindRecord{}, v1alpha1.TaskStatus{},
			v1alpha1.ReasonInvalidOperation, `the rewind back rewound "Dreams", which this version of Clew does not know: rewind to checkpoint 9`},
		"no checkpoint from before": {known(func(r *history.Rewind) { r.Rewound.From = -4 }), RewindRecord{}, v1alpha1.TaskStatus{},
			v1alpha1.ReasonInvalidOperation, "the rewind back was recorded without the checkpoint that holds the state before it"},
		"a checkpoint that was never recorded": {done("back", v1alpha1.RewindBoth), RewindRecord{Known: true}, v1alpha1.TaskStatus{},
			v1alpha1.ReasonCheckpointNotFound, "the rewind back cannot be undone: the history has no checkpoint 9, which held the state before it"},
		"a lost checkpoint": {done("back", v1alpha1.RewindBoth), lost, v1alpha1.TaskStatus{},
			v1alpha1.ReasonInvalidState, "the rewind back cannot be undone: neither the gitstore nor the task's volume has checkpoint 9 any more, which held the state before it"},
	} {
		t.Run(name, func(t *testing.T) {
			s := running(t)
			s.o.RewindUndone, s.o.RewindRecord = c.undone, c.record
			s.status().Rewind, s.status().HandledOperations = c.status.Rewind, c.status.HandledOperations
			s.rewindTo("undo", v1alpha1.RewindBoth, undoOf("back")).step()
			s.wantOperation(s.status().Rewind, "undo", v1alpha1.OperationRefused, c.reason)
			s.wantMessage(s.status().Rewind.Message, c.message)
			s.wantState(v1alpha1.ReasonRunning)
		})
	}
}

func TestAnUndoOfACodeRewindNeedsAValidBranch(t *testing.T) {
	for scope, state := range map[v1alpha1.RewindScope]v1alpha1.OperationState{
		v1alpha1.RewindCode: v1alpha1.OperationRefused, v1alpha1.RewindConversation: v1alpha1.OperationInProgress,
	} {
		s := running(t)
		s.o.RewindUndone, s.o.RewindRecord = done("back", scope), nine()
		s.rewindTo("undo", v1alpha1.RewindBoth, undoOf("back")).change(func(t *v1alpha1.Task) {
			t.Spec.Rewind.Preserve, t.Spec.Rewind.Branch = v1alpha1.PreserveBranch, "a..b"
		}).step()
		if got := s.status().Rewind.State; got != state {
			t.Errorf("scope %s: the undo is %s, want %s", scope, got, state)
		}
	}
}

func TestAnUndoWaitsForTheHistoryStore(t *testing.T) {
	s := running(t)
	s.rewindTo("undo", v1alpha1.RewindBoth, undoOf("back")).step()
	s.wantOperation(s.status().Rewind, "undo", v1alpha1.OperationPending, v1alpha1.ReasonHistoryUnavailable)
	s.o.RewindUndone, s.o.RewindRecord = done("back", v1alpha1.RewindBoth), nine()
	s.step()
	s.wantOperation(s.status().Rewind, "undo", v1alpha1.OperationInProgress, "")
	s.wantStatus(v1alpha1.TaskSucceeded, metav1.ConditionUnknown, v1alpha1.ReasonRewinding)
}

// An agent of the type Exec gets the prompt of the last resume with each of its pods.
func TestAnUndoneResumeDoesNotPromptTheAgentAgain(t *testing.T) {
	s := atRestTask(t)
	s.change(resume("on", "Use the other library."), mode(v1alpha1.ResumeClean), builders.Running).step()
	s.prepared(daemonapi.PrepareResult{OperationKind: daemonapi.OperationResume, Operation: "on", FromCheckpoint: 9})
	s.agentRuns()
	s.o.RewindUndone, s.o.RewindRecord = done("resume:on", v1alpha1.RewindBoth), nine()
	s.rewindTo("undo", v1alpha1.RewindBoth, undoOf("resume:on")).step()
	s.podGone()
	if p := s.wantStarted(3); p.Operation == nil || p.Operation.ID != "undo" || p.Prompt != "" {
		t.Errorf("the undo is started with %+v", p)
	}
	s.prepared(daemonapi.PrepareResult{OperationKind: daemonapi.OperationRewind, Operation: "undo", FromCheckpoint: 12, ToCheckpoint: 9})
	s.agentRuns()
	s.after(time.Minute).podGone()
	if p := s.wantStarted(4); p.Prompt != "" {
		t.Errorf("after it, the agent gets the prompt %q", p.Prompt)
	}
	// The undo is undone, and the conversation has the prompt again.
	s.prepared(daemonapi.PrepareResult{})
	s.agentRuns()
	s.o.RewindUndone = done("undo", v1alpha1.RewindBoth)
	s.rewindTo("redo", v1alpha1.RewindBoth, undoOf("undo")).step()
	s.podGone()
	if p := s.wantStarted(5); p.Prompt != "Use the other library." {
		t.Errorf("the agent gets the prompt %q", p.Prompt)
	}
}
