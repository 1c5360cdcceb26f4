package plan

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/daemonapi"
	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/resources"
	"github.com/clew-dev/clew/internal/testing/builders"
)

// rewindTo requests a rewind to a position in the conversation.
func (s *scene) rewindTo(id string, scope v1alpha1.RewindScope, to v1alpha1.RewindTarget) *scene {
	return s.change(builders.Rewind(id, ""), func(t *v1alpha1.Task) {
		t.Spec.Rewind.To, t.Spec.Rewind.Scope = to, scope
	})
}

func toMessage(n int64) v1alpha1.RewindTarget { return v1alpha1.RewindTarget{Message: &n} }

// found is an answer of the store: boundary is the turn boundary of asked, and
// checkpoint 3 is at message 6.
func found(asked, boundary int64) RewindPosition {
	return RewindPosition{Known: true, Found: &history.Resolved{
		Position: history.Position{Branch: "main", Position: boundary}, Asked: asked, Snapped: asked != boundary,
		Checkpoint: &history.Checkpoint{Number: 3, Commit: "c3", Position: history.Position{Branch: "main", Position: 6}},
	}}
}

// takenAt sets when the checkpoint of an answer was taken.
func takenAt(p RewindPosition, at time.Time) RewindPosition {
	p.Found.Checkpoint.Time = at
	return p
}

// alsoElsewhere adds a newer checkpoint of another branch to an answer.
func alsoElsewhere(p RewindPosition, number int64) RewindPosition {
	p.Found.Elsewhere = number
	return p
}

// wantResolved compares the target and the message of status.rewind.
func (s *scene) wantResolved(want v1alpha1.OperationStatus) {
	s.Helper()
	r := s.status().Rewind
	got := v1alpha1.OperationStatus{
		ToCheckpoint: r.ToCheckpoint, ToCommit: r.ToCommit, CheckpointPosition: r.CheckpointPosition,
		ToPosition: r.ToPosition, Message: r.Message,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		s.Errorf("status.rewind (-want +got):\n%s", diff)
	}
}

// wantTarget compares the target and scope of the operation that prepare gets.
func (s *scene) wantTarget(want daemonapi.Operation) {
	s.Helper()
	op := s.startedOperation()
	got := daemonapi.Operation{
		Checkpoint: op.Checkpoint, Commit: op.Commit, CheckpointPosition: op.CheckpointPosition,
		Position: op.Position, Scope: op.Scope,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		s.Errorf("target of the operation (-want +got):\n%s", diff)
	}
}

func TestARewindToAPositionInTheConversation(t *testing.T) {
	moment := metav1.NewTime(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC))
	for name, c := range map[string]struct {
		scope    v1alpha1.RewindScope
		to       v1alpha1.RewindTarget
		answer   RewindPosition
		position int64 // status.rewind.toPosition
		prepare  int64 // the position that prepare gets
		message  string
	}{
		"conversation, to a boundary": {v1alpha1.RewindConversation, toMessage(8), found(8, 8), 8, 8, ""},
		"conversation, into a turn": {v1alpha1.RewindConversation, toMessage(9), found(9, 8), 8, 8,
			"message 8 ends the last complete turn at or before message 9"},
		"conversation, to a time": {v1alpha1.RewindConversation, v1alpha1.RewindTarget{Time: &moment}, found(9, 8), 8, 8,
			"message 8 ends the last complete turn at or before 2026-01-02T03:04:05Z (message 9)"},
		"conversation, back": {v1alpha1.RewindConversation, v1alpha1.RewindTarget{MessagesBack: ptr.To[int32](2)}, found(8, 8), 8, 8,
			"message 8 ends the last complete turn at or before 2 messages back (message 8)"},
		"both, to a checkpoint's message": {v1alpha1.RewindBoth, toMessage(6), found(6, 6), 6, 0, ""},
		"both, after a checkpoint": {v1alpha1.RewindBoth, toMessage(9), found(9, 8), 6, 0,
			"checkpoint 3, at message 6, is the newest one at or before message 9; a rewind of the conversation alone goes to message 8 itself"},
		"code": {v1alpha1.RewindCode, toMessage(9), found(9, 8), 0, 0, "checkpoint 3 is the newest one at or before message 9"},
		"code, to a time": {v1alpha1.RewindCode, v1alpha1.RewindTarget{Time: &moment}, takenAt(found(6, 6), moment.Time), 0, 0,
			"checkpoint 3 is the newest one at or before 2026-01-02T03:04:05Z (message 6)"},
		"code, to a time of another branch": {v1alpha1.RewindCode, v1alpha1.RewindTarget{Time: &moment}, alsoElsewhere(found(6, 6), 5), 0, 0,
			"checkpoint 3 is the newest one at or before 2026-01-02T03:04:05Z (message 6) in this conversation (checkpoint 5, which was taken by then, too, is on another branch of it)"},
		"code, to a time before its message's checkpoint": {v1alpha1.RewindCode, v1alpha1.RewindTarget{Time: &moment}, takenAt(found(6, 6), moment.Add(time.Minute)), 0, 0,
			"checkpoint 3 is the first one after 2026-01-02T03:04:05Z (message 6), and has its state"},
		"both, to a time before its message's checkpoint": {v1alpha1.RewindBoth, v1alpha1.RewindTarget{Time: &moment}, takenAt(found(6, 6), moment.Add(time.Minute)), 6, 0,
			"checkpoint 3, at message 6, is the first one after 2026-01-02T03:04:05Z (message 6), and has its state"},
		"both, to a time within a call": {v1alpha1.RewindBoth, v1alpha1.RewindTarget{Time: &moment}, found(6, 5), 6, 0,
			"checkpoint 3, at message 6, is the newest one at or before 2026-01-02T03:04:05Z (message 6)"},
	} {
		t.Run(name, func(t *testing.T) {
			s := running(t)
			s.o.RewindPosition = c.answer
			s.rewindTo("back", c.scope, c.to).step()
			s.wantOperation(s.status().Rewind, "back", v1alpha1.OperationInProgress, "")
			s.wantResolved(v1alpha1.OperationStatus{
				ToCheckpoint: 3, ToCommit: "c3", CheckpointPosition: 6, ToPosition: c.position, Message: c.message,
			})
			s.o.RewindPosition = RewindPosition{} // it is resolved once
			s.podGone()
			s.wantTarget(daemonapi.Operation{Checkpoint: 3, Commit: "c3", CheckpointPosition: 6, Position: c.prepare, Scope: c.scope})
			s.prepared(daemonapi.PrepareResult{Operation: "back", FromCheckpoint: 9, ToCheckpoint: 3, ToPosition: c.position})
			s.wantOperation(s.status().Rewind, "back", v1alpha1.OperationCompleted, "")
			r := s.status().Rewind
			if r.ToPosition != c.position {
				t.Errorf("rewound to message %d, want %d", r.ToPosition, c.position)
			}
			s.wantMessage(r.Message, "was rewound", c.message)
		})
	}
}

// TestARewindOfTheConversationIntoALongCall: the checkpoint was taken while the call waited, and what
// the agent remembers of that ends with the conversation before the call.
func TestARewindOfTheConversationIntoALongCall(t *testing.T) {
	moment := metav1.NewTime(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC))
	s := running(t)
	s.o.RewindPosition = found(6, 5)
	s.rewindTo("back", v1alpha1.RewindConversation, v1alpha1.RewindTarget{Time: &moment}).step()
	s.podGone()
	s.wantTarget(daemonapi.Operation{Checkpoint: 3, Commit: "c3", CheckpointPosition: 5, Position: 5, Scope: v1alpha1.RewindConversation})
}

func TestTheConversationIsRewoundToBeforeTheFirstCheckpoint(t *testing.T) {
	const reset = "message 3 is older than the first checkpoint, so every saved session of the agent is newer: " +
		"the agent's state is reset to that before its first run, and its prompt contains the conversation up to message 3"
	for name, c := range map[string]struct {
		to      v1alpha1.RewindTarget
		asked   int64
		message string
	}{
		"to a boundary": {toMessage(3), 3, reset},
		"into a turn":   {toMessage(4), 4, "message 3 ends the last complete turn at or before message 4; " + reset},
		"back": {v1alpha1.RewindTarget{MessagesBack: ptr.To[int32](7)}, 3,
			"message 3 ends the last complete turn at or before 7 messages back (message 3); " + reset},
	} {
		t.Run(name, func(t *testing.T) {
			s := running(t)
			s.o.RewindPosition = found(c.asked, 3)
			s.o.RewindPosition.Found.Checkpoint = nil
			s.rewindTo("back", v1alpha1.RewindConversation, c.to).step()
			s.wantOperation(s.status().Rewind, "back", v1alpha1.OperationInProgress, "")
			s.wantResolved(v1alpha1.OperationStatus{ToPosition: 3, Message: c.message})
			s.podGone()
			s.wantTarget(daemonapi.Operation{Position: 3, Scope: v1alpha1.RewindConversation})
			s.step()
			s.wantState(v1alpha1.ReasonRewinding)
			s.prepared(daemonapi.PrepareResult{Operation: "back", FromCheckpoint: 9, ToPosition: 3})
			s.wantOperation(s.status().Rewind, "back", v1alpha1.OperationCompleted, "")
			s.wantResolved(v1alpha1.OperationStatus{
				ToPosition: 3,
				Message:    "the conversation was rewound to message 3; checkpoint 9 holds the state before the rewind; " + c.message,
			})
		})
	}
}

func TestARewindWithoutATargetIsRefusedAndChangesNothing(t *testing.T) {
	moment := metav1.NewTime(time.Date(2025, 1, 2, 3, 4, 5, 0, time.UTC))
	nowhere := RewindPosition{Known: true}
	early := found(4, 4)
	early.Found.Checkpoint = nil
	elsewhereOnly := alsoElsewhere(found(4, 4), 5)
	elsewhereOnly.Found.Checkpoint = nil
	nothingWhole := found(1, 0)
	nothingWhole.Found.Checkpoint = nil
	for name, c := range map[string]struct {
		scope  v1alpha1.RewindScope
		to     v1alpha1.RewindTarget
		answer RewindPosition
		reason string
		word   string
	}{
		"a message beyond the end": {v1alpha1.RewindBoth, toMessage(99), nowhere, v1alpha1.ReasonPositionNotFound,
			"the conversation has 10 messages, and no message 99: name an earlier one"},
		"a time before the beginning": {v1alpha1.RewindBoth, v1alpha1.RewindTarget{Time: &moment}, nowhere, v1alpha1.ReasonPositionNotFound,
			"the conversation had no message yet at 2025-01-02T03:04:05Z: name a later time"},
		"further back than there is": {v1alpha1.RewindConversation, v1alpha1.RewindTarget{MessagesBack: ptr.To[int32](99)}, nowhere, v1alpha1.ReasonPositionNotFound,
			"the conversation has 10 messages, and cannot go 99 back"},
		"all of it back": {v1alpha1.RewindConversation, v1alpha1.RewindTarget{MessagesBack: ptr.To[int32](10)}, found(0, 0), v1alpha1.ReasonPositionNotFound,
			"the conversation has 10 messages, and cannot go 10 back"},
		"both, before any checkpoint": {v1alpha1.RewindBoth, toMessage(4), early, v1alpha1.ReasonInvalidState,
			"this task has no checkpoint at or before message 4"},
		"a time before any checkpoint": {v1alpha1.RewindBoth, v1alpha1.RewindTarget{Time: &moment}, early, v1alpha1.ReasonInvalidState,
			"this task has no checkpoint at or before 2025-01-02T03:04:05Z (message 4): name a later time"},
		"a time at which another branch had one": {v1alpha1.RewindCode, v1alpha1.RewindTarget{Time: &moment}, elsewhereOnly, v1alpha1.ReasonInvalidState,
			"this task has no checkpoint at or before 2025-01-02T03:04:05Z (message 4) in this conversation (checkpoint 5, which was taken by then, too, is on another branch of it): name a later time"},
		"code, before any checkpoint": {v1alpha1.RewindCode, toMessage(4), early, v1alpha1.ReasonInvalidState,
			"this task has no checkpoint at or before message 4"},
		"conversation, into the first turn": {v1alpha1.RewindConversation, toMessage(1), nothingWhole, v1alpha1.ReasonInvalidState,
			"no complete turn ends at or before message 1: name a later message"},
		"a damaged conversation": {v1alpha1.RewindBoth, toMessage(4), RewindPosition{Known: true, Damaged: "message 3 is gone"}, v1alpha1.ReasonCorrupted,
			"the conversation is damaged (message 3 is gone)"},
		"nothing at all": {v1alpha1.RewindBoth, v1alpha1.RewindTarget{}, nowhere, v1alpha1.ReasonInvalidOperation,
			"rewind.to names no target"},
	} {
		t.Run(name, func(t *testing.T) {
			s := running(t)
			s.o.History.State.Position.Position = 10
			s.o.RewindPosition = c.answer
			s.rewindTo("back", c.scope, c.to).step()
			s.wantOperation(s.status().Rewind, "back", v1alpha1.OperationRefused, c.reason)
			if !strings.Contains(s.status().Rewind.Message, c.word) {
				t.Errorf("the message %q does not contain %q", s.status().Rewind.Message, c.word)
			}
			s.wantState(v1alpha1.ReasonRunning)
			if s.pod().DeletionTimestamp != nil {
				t.Error("the agent was stopped")
			}
		})
	}
}

func TestARewindWaitsForTheHistoryStore(t *testing.T) {
	t.Run("and the task continues in the meantime", func(t *testing.T) {
		s := running(t)
		s.rewindTo("back", v1alpha1.RewindConversation, toMessage(8)).step()
		s.wantOperation(s.status().Rewind, "back", v1alpha1.OperationPending, v1alpha1.ReasonHistoryUnavailable)
		s.wantState(v1alpha1.ReasonRunning)
		writes := s.writes
		for range 100 {
			s.after(time.Second).step()
		}
		if s.writes != writes {
			t.Errorf("%d writes while it waits", s.writes-writes)
		}
		s.o.RewindPosition = found(8, 8)
		s.step()
		s.wantOperation(s.status().Rewind, "back", v1alpha1.OperationInProgress, "")
		s.wantState(v1alpha1.ReasonRewinding)
	})
	t.Run("and can be withdrawn", func(t *testing.T) {
		s := running(t)
		s.rewindTo("back", v1alpha1.RewindConversation, toMessage(8)).step()
		s.change(func(t *v1alpha1.Task) { t.Spec.Rewind = nil }).step()
		s.wantOperation(s.status().Rewind, "back", v1alpha1.OperationFailed, v1alpha1.ReasonInvalidOperation)
	})
}

func TestARewindWaitsForTheStatusOfANewCheckpoint(t *testing.T) {
	s := running(t)
	s.rewind("back", 3)
	s.o.RewindTarget = resources.NewCheckpoint(s.o.Task, "t-3", history.Checkpoint{Number: 3})
	s.step()
	s.wantOperation(s.status().Rewind, "back", v1alpha1.OperationPending, v1alpha1.ReasonCheckpointNotReady)
	s.wantState(v1alpha1.ReasonRunning)
	s.o.RewindTarget = s.checkpoint(3)
	s.step()
	s.wantOperation(s.status().Rewind, "back", v1alpha1.OperationInProgress, "")
	s.wantState(v1alpha1.ReasonRewinding)
}

func TestTheTargetOfARewindIsResolvedOnce(t *testing.T) {
	s := completedTask(t)
	s.o.RewindPosition = found(8, 8)
	s.rewindTo("back", v1alpha1.RewindConversation, toMessage(8)).step()
	s.prepared(daemonapi.PrepareResult{Operation: "back", ToCheckpoint: 3, ToPosition: 8})
	attempts, writes := len(s.status().Attempts), s.writes
	for range 100 {
		s.o.RewindPosition = found(2, 2)
		s.after(time.Second).rewindTo("back", v1alpha1.RewindConversation, toMessage(8))
		s.o.Task.Generation--
		s.step()
	}
	if n := len(s.status().Attempts); n != attempts || s.writes != writes {
		t.Errorf("applied again, the rewind made %d attempts and %d writes", n-attempts, s.writes-writes)
	}
	if got := s.status().Rewind.ToPosition; got != 8 {
		t.Errorf("the rewind's target is now message %d, want 8", got)
	}
}

func TestARewindToACheckpointSaysWhereTheConversationGoes(t *testing.T) {
	for scope, position := range map[v1alpha1.RewindScope]int64{
		v1alpha1.RewindBoth: 4, v1alpha1.RewindConversation: 4, v1alpha1.RewindCode: 0,
	} {
		s := running(t)
		s.rewind("back", 2)
		s.o.Task.Spec.Rewind.Scope = scope
		s.o.RewindTarget.Status.Conversation = &v1alpha1.CheckpointConversation{ConversationPosition: v1alpha1.ConversationPosition{Position: 4}}
		s.step()
		if r := s.status().Rewind; r.ToPosition != position || r.CheckpointPosition != 4 {
			t.Errorf("scope %s: status.rewind is %+v, want position %d and checkpoint position 4", scope, r, position)
		}
		s.podGone()
		if op := s.started().Operation; op.Position != 0 || op.CheckpointPosition != 4 {
			t.Errorf("%s: prepare gets %+v", scope, op)
		}
	}
}

func TestTheAgentsMemoryIsReportedWithItsStart(t *testing.T) {
	s := newScene(t)
	s.step()
	s.prepared(daemonapi.PrepareResult{Reason: v1alpha1.ReasonWorkspacePrepared, Memory: v1alpha1.AgentMemoryNew, MemoryMessage: "it begins"})
	before := s.writes
	s.agentRuns()
	if s.writes != before+1 {
		t.Errorf("the start took %d writes, want 1", s.writes-before)
	}
	if a := s.lastAttempt(); a.Memory != v1alpha1.AgentMemoryNew || a.MemoryMessage != "it begins" {
		t.Errorf("the attempt has the memory %s (%s)", a.Memory, a.MemoryMessage)
	}
	s.after(time.Minute).podGone()
	s.prepared(daemonapi.PrepareResult{Memory: v1alpha1.AgentMemoryRendered, MemoryMessage: strings.Repeat("€", 2000)})
	s.agentRuns()
	if a := s.lastAttempt(); a.Memory != v1alpha1.AgentMemoryRendered || len([]rune(a.MemoryMessage)) != 1024 {
		t.Errorf("the attempt is %+v", a)
	}
	s.after(time.Minute).podGone()
	s.prepared(daemonapi.PrepareResult{Memory: "Telepathy", MemoryMessage: "a later daemon's word"})
	s.agentRuns()
	if a := s.lastAttempt(); a.Memory != "" || a.MemoryMessage == "" {
		t.Errorf("a word that the schema does not know: %+v", a)
	}
}

func TestAResumeBoundsTheContext(t *testing.T) {
	s := running(t, builders.BackoffLimit(0), func(t *v1alpha1.Task) {
		t.Spec.Conversation.Context = v1alpha1.ContextLimits{Messages: ptr.To[int32](50), ToolCalls: ptr.To[int32](7)}
	})
	s.agentExits(1)
	s.podFinishes()
	s.change(builders.Resume("on"), func(t *v1alpha1.Task) {
		t.Spec.Resume.Context = &v1alpha1.ContextLimits{Messages: ptr.To[int32](0), Summary: v1alpha1.ConversationExclude}
	}).step()
	want := &daemonapi.ContextLimits{Messages: 0, ToolCalls: 7, ToolResultBytes: 2000, Summary: false, Bytes: 200000}
	if diff := cmp.Diff(want, s.startedOperation().Context); diff != "" {
		t.Errorf("limits of the context (-want +got):\n%s", diff)
	}
}

func TestSnapshotObjectsAreCreatedWithOtherWrites(t *testing.T) {
	every := func(n int32) builders.TaskOption {
		return func(t *v1alpha1.Task) { t.Spec.Conversation.SnapshotEveryMessages = &n }
	}
	snapshots := func(s *scene) *int64 {
		for _, p := range s.plans {
			if p.Snapshots != nil {
				return p.Snapshots
			}
		}
		return nil
	}
	for name, c := range map[string]struct {
		every    int32
		messages int64
		asked    bool
	}{
		"enough messages": {50, 50, true},
		"too few":         {50, 49, false},
		"not wanted":      {0, 5000, false},
	} {
		t.Run(name, func(t *testing.T) {
			s := running(t, every(c.every))
			s.status().SnapshotCount = 3
			s.o.History.State.Totals.Messages = c.messages
			s.after(time.Minute).step()
			if snapshots(s) != nil {
				t.Error("messages alone cause a write")
			}
			s.record(v1alpha1.TriggerToolCalls)
			s.step()
			var want *int64
			if c.asked {
				want = ptr.To[int64](3)
			}
			if diff := cmp.Diff(want, snapshots(s)); diff != "" {
				t.Errorf("number after which objects are planned (-want +got):\n%s", diff)
			}
		})
	}
}
