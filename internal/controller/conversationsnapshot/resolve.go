package conversationsnapshot

import (
	"context"
	"errors"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/resources"
)

// problem is why a snapshot cannot be resolved yet.
type problem struct{ reason, message string }

// resolve fills the status from the store, or returns why it cannot yet.
func (r *Reconciler) resolve(ctx context.Context, s *v1alpha1.ConversationSnapshot) (*problem, error) {
	task := &v1alpha1.Task{}
	name := s.Spec.TaskRef.Name
	if err := r.Client.Get(ctx, client.ObjectKey{Namespace: s.Namespace, Name: name}, task); err != nil {
		return &problem{v1alpha1.ReasonTaskNotFound, fmt.Sprintf("there is no Task %q in this namespace: name a task of this namespace", name)},
			client.IgnoreNotFound(err)
	}
	if uid, ordinal, ok := resources.SnapshotOrdinal(s); ok {
		// Anybody in the namespace can write labels: they count only for this Task.
		if uid != string(task.UID) {
			return &problem{v1alpha1.ReasonTaskNotFound, fmt.Sprintf(
				"its labels do not match Task %q in this namespace: delete this object, and apply a ConversationSnapshot without labels of clew.dev", name)}, nil
		}
		return r.follow(ctx, s, uid, ordinal)
	}
	number, p, err := r.checkpoint(ctx, s, task)
	if p != nil || err != nil {
		return p, err
	}
	query := history.SnapshotQuery{Checkpoint: number, Position: ptr.Deref(s.Spec.Position, 0)}
	found, err := r.read(ctx, s, string(task.UID), query)
	missing := problem{v1alpha1.ReasonNoConversation, fmt.Sprintf("task %q has no conversation yet", name)}
	switch {
	case s.Spec.CheckpointNumber != nil:
		missing = problem{v1alpha1.ReasonCheckpointNotFound, fmt.Sprintf(
			"the history of task %q has no checkpoint %d, or no conversation up to it: delete this object, and name another number", name, number)}
	case query.Position > 0:
		missing = problem{v1alpha1.ReasonPositionNotFound, fmt.Sprintf(
			"the conversation of task %q has no message %d yet: the snapshot is resolved when it has", name, query.Position)}
	}
	if p, err := problemOf(err, missing); p != nil || err != nil {
		return p, err
	}
	fill(s, string(task.UID), v1alpha1.SnapshotManual, found)
	s.Status.Time = ptr.To(metav1.NewTime(r.Clock.Now()))
	set(s, v1alpha1.SnapshotIntact, metav1.ConditionTrue, v1alpha1.ReasonVerified, verified)
	return nil, nil
}

// verified is the message of the condition Intact after a verification.
const verified = "the messages up to the position match the digest"

// problemOf returns the problem behind an error of the store; missing is the one to return
// when something does not exist. An error that says nothing about the snapshot is passed
// on.
func problemOf(err error, missing problem) (*problem, error) {
	switch {
	case errors.Is(err, history.ErrNotFound), errors.Is(err, history.ErrInvalid):
		return &missing, nil
	case errors.Is(err, history.ErrUnavailable):
		return &problem{v1alpha1.ReasonHistoryUnavailable, "the history store cannot be reached; retrying"}, nil
	case errors.Is(err, history.ErrCorrupted):
		return &problem{v1alpha1.ReasonCorrupted, resources.PlainText(err.Error(), maxMessage)}, nil
	}
	return nil, err
}

// maxMessage is the length of a message in a condition, in characters.
const maxMessage = 1024

// follow fills the status from an automatic snapshot of the store. The store computed the
// digest as it stored the messages; reading all of them again for each of many snapshots
// would cost more than it is worth, so they are verified with the others later.
func (r *Reconciler) follow(ctx context.Context, s *v1alpha1.ConversationSnapshot, taskUID string, ordinal int64) (*problem, error) {
	rows, err := r.Store.SnapshotsAfter(ctx, taskUID, ordinal-1, 1)
	missing := problem{v1alpha1.ReasonPositionNotFound, fmt.Sprintf(
		"the history store does not have automatic snapshot %d of this task, or no longer has it: this object can be deleted", ordinal)}
	if p, err := problemOf(err, missing); p != nil || err != nil {
		return p, err
	}
	if len(rows) == 0 || rows[0].Ordinal != ordinal {
		return &missing, nil
	}
	fill(s, taskUID, v1alpha1.SnapshotAutomatic, rows[0])
	s.Status.Time = ptr.To(metav1.NewTime(rows[0].Time))
	set(s, v1alpha1.SnapshotIntact, metav1.ConditionTrue, v1alpha1.ReasonRecorded,
		"the digest was computed as the messages were stored; they are verified from time to time")
	return nil, nil
}

// fill writes what the store has about a snapshot to its status.
func fill(s *v1alpha1.ConversationSnapshot, taskUID string, trigger v1alpha1.SnapshotTrigger, found history.Snapshot) {
	s.Status.TaskUID, s.Status.Trigger, s.Status.Checkpoint = taskUID, trigger, found.Checkpoint
	s.Status.Conversation = &v1alpha1.ConversationPosition{
		Branch: found.Position.Branch, Position: found.Position.Position, ToolCalls: found.Position.ToolCalls,
	}
	s.Status.MessageCount = found.Totals.Messages
	s.Status.InputTokens, s.Status.OutputTokens = found.Totals.InputTokens, found.Totals.OutputTokens
	s.Status.CostMicroUSD, s.Status.Digest = found.Totals.CostMicroUSD, found.Digest
}

// verify makes the store read the messages up to the position again, and sets the condition
// Intact to whether they match the digest.
func (r *Reconciler) verify(ctx context.Context, s *v1alpha1.ConversationSnapshot) error {
	if s.Status.Trigger == "" || s.Status.Conversation == nil {
		return nil // resolved by a version without chained digests: there is nothing to compare
	}
	query := history.SnapshotQuery{Position: s.Status.Conversation.Position}
	if query.Position == 0 {
		set(s, v1alpha1.SnapshotIntact, metav1.ConditionTrue, v1alpha1.ReasonVerified, verified)
		return nil
	}
	if s.Spec.CheckpointRef != nil || s.Spec.CheckpointNumber != nil {
		query = history.SnapshotQuery{Checkpoint: s.Status.Checkpoint}
	}
	found, err := r.read(ctx, s, s.Status.TaskUID, query)
	elsewhere := found.Position.Branch != s.Status.Conversation.Branch || found.Position.Position != s.Status.Conversation.Position
	switch {
	case errors.Is(err, history.ErrCorrupted):
		set(s, v1alpha1.SnapshotIntact, metav1.ConditionFalse, v1alpha1.ReasonCorrupted, resources.PlainText(err.Error(), maxMessage))
	case errors.Is(err, history.ErrNotFound), err == nil && elsewhere:
		// The conversation was rewound, and continues on another branch: the last known
		// result is kept.
	case err != nil:
		return fmt.Errorf("verify the snapshot: %w", err)
	case found.Digest != s.Status.Digest:
		set(s, v1alpha1.SnapshotIntact, metav1.ConditionFalse, v1alpha1.ReasonCorrupted,
			"the messages up to the position no longer match the digest: the history was changed or is damaged")
	default:
		set(s, v1alpha1.SnapshotIntact, metav1.ConditionTrue, v1alpha1.ReasonVerified, verified)
	}
	return nil
}

// checkpoint returns the number of the checkpoint that the snapshot names; 0 for none.
func (r *Reconciler) checkpoint(ctx context.Context, s *v1alpha1.ConversationSnapshot, task *v1alpha1.Task) (int64, *problem, error) {
	if s.Spec.CheckpointRef == nil {
		return ptr.Deref(s.Spec.CheckpointNumber, 0), nil, nil
	}
	name := s.Spec.CheckpointRef.Name
	c := &v1alpha1.Checkpoint{}
	if err := r.Client.Get(ctx, client.ObjectKey{Namespace: s.Namespace, Name: name}, c); err != nil {
		return 0, &problem{v1alpha1.ReasonCheckpointNotFound, fmt.Sprintf("there is no Checkpoint %q in this namespace: name one of the task's checkpoints", name)},
			client.IgnoreNotFound(err)
	}
	switch {
	case c.Spec.TaskRef.Name != task.Name || (c.Status.TaskUID != "" && c.Status.TaskUID != string(task.UID)):
		return 0, &problem{v1alpha1.ReasonCheckpointOfOther, fmt.Sprintf("Checkpoint %q does not belong to task %q: name one of that task's checkpoints", name, task.Name)}, nil
	case c.Status.Number == 0:
		return 0, &problem{v1alpha1.ReasonCheckpointNotReady, fmt.Sprintf("Checkpoint %q has not been taken yet", name)}, nil
	}
	return c.Status.Number, nil, nil
}
