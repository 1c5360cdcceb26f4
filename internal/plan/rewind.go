package plan

import (
	"cmp"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/clip"
	"github.com/clew-dev/clew/internal/daemonapi"
	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/refname"
	"github.com/clew-dev/clew/internal/resources"
)

// NewRewind returns the rewind that is requested and not in the status yet; nil for none.
// Its target has to be observed before Decide.
func NewRewind(task *v1alpha1.Task) *v1alpha1.Rewind {
	if s := task.Status.Rewind; s != nil && s.State == v1alpha1.OperationInProgress {
		return nil
	}
	for _, r := range requestedRewinds(&task.Spec, &task.Status) {
		if !handled(&task.Status, daemonapi.OperationRewind, r.ID) {
			return r
		}
	}
	return nil
}

// PositionOf returns the query that resolves the target of a rewind; ok is false for a
// rewind that names a checkpoint.
func PositionOf(r *v1alpha1.Rewind) (q history.PositionQuery, ok bool) {
	switch to := r.To; {
	case to.Message != nil:
		return history.PositionQuery{Message: *to.Message}, true
	case to.Time != nil:
		return history.PositionQuery{Time: to.Time.Time}, true
	case to.MessagesBack != nil:
		return history.PositionQuery{Back: int64(*to.MessagesBack)}, true
	}
	return q, false
}

// considerRewind accepts or refuses a new rewind. An accepted rewind is carried out
// whatever happens in the meantime.
func (d *decision) considerRewind() {
	d.dropWithdrawnRewind()
	r := NewRewind(d.task)
	if r == nil || d.rewinding() || handled(d.s, daemonapi.OperationRewind, r.ID) {
		return
	}
	accepted, refusal := d.resolveNew(r)
	switch {
	case refusal != nil:
		d.markHandled(daemonapi.OperationRewind, r.ID)
		d.s.Rewind = d.refuseOperation(daemonapi.OperationRewind, r.ID, refusal.Reason, refusal.Message)
	case accepted != nil && r.Children == v1alpha1.ChildrenRewind && len(d.yetToFollow()) > 0:
		d.reportPending(r, time.Second, v1alpha1.ReasonChildrenFollow, fmt.Sprintf(
			"the rewind starts when these children have seen the last one, %s, which takes them along: %s", d.s.SetRewind.ID, namesOf(d.yetToFollow(), maxChildrenNamed)))
	case accepted != nil:
		d.acceptRewind(r, *accepted)
	case r.To.CheckpointRef != nil && d.knowsDone(r.ID):
		d.reportPending(r, time.Second, v1alpha1.ReasonCheckpointNotReady,
			fmt.Sprintf("Checkpoint %q has just been taken: the rewind starts when its status is written", r.To.CheckpointRef.Name))
	case d.behind():
		d.reportPending(r, d.o.Limits.RetryBase, v1alpha1.ReasonHistoryStoreWentBack,
			"the history store was restored from an older copy: the target is resolved when the task's pod has sent again what the store lost; if no pod runs, resume the task, or rewind to a checkpoint by its name")
	default:
		d.reportPending(r, d.o.Limits.RetryBase, v1alpha1.ReasonHistoryUnavailable,
			"the target is resolved when the history store can be reached; the task continues until then")
	}
}

// resolveNew is resolveRewind, but for one that the history store knows to be complete, which the status lacks
// since it is of an older copy: that has gone where its daemon has recorded. In the present conversation, which it
// has made, a message or a time may lead elsewhere.
func (d *decision) resolveNew(r *v1alpha1.Rewind) (*v1alpha1.OperationStatus, *Blocker) {
	done, known := d.doneRewind(r.ID)
	switch {
	case !known:
		return nil, nil
	case done == nil:
		return d.resolveRewind(r)
	}
	accepted := &v1alpha1.OperationStatus{UndoOf: r.To.UndoOf}
	asDone(accepted, done)
	return accepted, nil
}

// acceptRewind notes that a rewind is to be carried out, to the target in accepted.
func (d *decision) acceptRewind(r *v1alpha1.Rewind, accepted v1alpha1.OperationStatus) {
	d.markHandled(daemonapi.OperationRewind, r.ID)
	accepted.ID, accepted.State = r.ID, v1alpha1.OperationInProgress
	accepted.StartTime = ptr.To(metav1.NewTime(d.now))
	accepted.RequestedBy = d.rewindRequester(r)
	d.noteSetRewind(r, &accepted)
	if r.To.UndoOf == "" {
		accepted.Scope, accepted.Paths = r.Scope, r.Paths
	}
	d.s.Rewind = &accepted
}

// reportPending reports, once, what a rewind waits for. The rewind is not accepted yet: its
// target is resolved when it starts.
func (d *decision) reportPending(r *v1alpha1.Rewind, retry time.Duration, reason, message string) {
	d.requeue(retry)
	if s := d.s.Rewind; s != nil && s.ID == r.ID && s.State == v1alpha1.OperationPending {
		return
	}
	pending := d.pendingUndo(r)
	pending.ID, pending.State, pending.Reason, pending.Message = r.ID, v1alpha1.OperationPending, reason, message
	d.s.Rewind = &pending
}

// dropWithdrawnRewind closes a rewind whose request is no longer in the spec and that no
// pod has started. (The journal completes one that was started.)
func (d *decision) dropWithdrawnRewind() {
	s := d.s.Rewind
	if s == nil || s.Attempt != 0 || d.requestedRewind(s.ID) != nil {
		return
	}
	if s.State == v1alpha1.OperationInProgress || s.State == v1alpha1.OperationPending {
		d.closeOperation(s, v1alpha1.OperationFailed, v1alpha1.ReasonInvalidOperation, "it was withdrawn before it started")
	}
}

// resolveRewind returns the target of a new rewind, or what blocks it; neither while that
// is unknown.
func (d *decision) resolveRewind(r *v1alpha1.Rewind) (*v1alpha1.OperationStatus, *Blocker) {
	if b := d.runningBlocker(r); b != nil {
		return nil, b
	}
	if r.To.UndoOf != "" {
		if _, b := d.setUndo(r); b != nil {
			return nil, b
		}
		return d.toBefore(r)
	}
	if b := cmp.Or(filesBlocker(r), branchBlocker(r)); b != nil {
		return nil, b
	}
	switch {
	case r.To.CheckpointRef != nil:
		return d.toCheckpoint(r)
	case r.To.CheckpointNumber != nil:
		return d.toNumber(r, *r.To.CheckpointNumber)
	case r.To.Commit != "":
		return &v1alpha1.OperationStatus{ToCommit: r.To.Commit}, nil // prepare finds out whether the task knows it
	}
	query, ok := PositionOf(r)
	switch answer := d.o.RewindPosition; {
	case !ok:
		return nil, &Blocker{v1alpha1.ReasonInvalidOperation,
			"rewind.to names no target: set one of checkpointRef, checkpointNumber, commit, message, time, messagesBack and undoOf, and request the rewind again"}
	case !answer.Known, d.behind():
		return nil, nil
	case answer.Damaged != "":
		return nil, &Blocker{v1alpha1.ReasonCorrupted, "the conversation is damaged (" + answer.Damaged +
			"): rewind to a checkpoint by its name with scope Code, and request the rewind again"}
	case answer.Found == nil || answer.Found.Asked < 1:
		return nil, d.noSuchPosition(query)
	default:
		return toPosition(r, query, *answer.Found)
	}
}

// runningBlocker returns why a rewind that must not stop the agent is refused; nil if no agent
// runs, or is about to.
func (d *decision) runningBlocker(r *v1alpha1.Rewind) *Blocker {
	a := d.active()
	if r.WhenRunning != v1alpha1.WhenRunningRefuse || a == nil {
		return nil
	}
	if v := d.views[a.Number]; v != nil && v.prepareOnly {
		return nil
	}
	return &Blocker{v1alpha1.ReasonInvalidOperation,
		"the task is running, and this rewind refuses running tasks: suspend the task first, or let the rewind stop it, and request the rewind again"}
}

// branchBlocker returns why no branch can preserve the current state; nil if one can. The
// API refuses most of these names, but not in objects that are older than its rules.
func branchBlocker(r *v1alpha1.Rewind) *Blocker {
	if r.Preserve != v1alpha1.PreserveBranch || r.Scope == v1alpha1.RewindConversation {
		return nil // no branch is needed: the files stay
	}
	name := daemonapi.PreservedBranch(r.Branch, r.ID)
	if err := refname.CheckBranch(name); err != nil {
		return &Blocker{v1alpha1.ReasonInvalidBranch, fmt.Sprintf(
			"%q is not a valid branch name: %v; set rewind.branch to another name, and request the rewind again", name, err)}
	}
	return nil
}

// toCheckpoint resolves a rewind that names a Checkpoint.
func (d *decision) toCheckpoint(r *v1alpha1.Rewind) (*v1alpha1.OperationStatus, *Blocker) {
	target, refusal := d.targetOf("rewind", r.To.CheckpointRef.Name, d.o.RewindTarget)
	if target == nil {
		return nil, refusal
	}
	if _, b := d.setRewind(r, target); b != nil {
		return nil, b
	}
	return atObject(r, target), nil
}

// atObject returns the status of a rewind to a Checkpoint that was taken.
func atObject(r *v1alpha1.Rewind, target *v1alpha1.Checkpoint) *v1alpha1.OperationStatus {
	position := int64(0)
	if c := target.Status.Conversation; c != nil {
		position = c.Position
	}
	return atCheckpoint(r, target.Status.Number, target.Status.Commit, position)
}

// toNumber resolves a rewind to the checkpoint of a number: from the history, since the
// checkpoint need not have an object any more.
func (d *decision) toNumber(r *v1alpha1.Rewind, number int64) (*v1alpha1.OperationStatus, *Blocker) {
	found, refusal := d.recordOf("rewind", number, d.o.RewindRecord)
	if found == nil {
		return nil, refusal
	}
	return atCheckpoint(r, number, found.Commit, found.Position.Position), nil
}

// recordOf returns the recorded checkpoint that an operation (rewind or resume) names by its
// number, or what blocks it; neither while that is unknown.
func (d *decision) recordOf(operation string, number int64, answer RewindRecord) (*history.Checkpoint, *Blocker) {
	switch {
	case !answer.Known, d.behind():
		return nil, nil
	case answer.Found == nil:
		return nil, &Blocker{v1alpha1.ReasonCheckpointNotFound, fmt.Sprintf(
			"the task has no checkpoint %d: name one that kubectl clew checkpoint list shows, and request the %s again", number, operation)}
	case answer.Found.Lost:
		return nil, &Blocker{v1alpha1.ReasonInvalidState, fmt.Sprintf(
			"neither the gitstore nor the task's volume has checkpoint %d any more: name another one, and request the %s again", number, operation)}
	case answer.Found.Integrity.Damage != "":
		return nil, damaged(operation, *answer.Found)
	}
	return answer.Found, nil
}

// atCheckpoint returns the status of a rewind to a checkpoint at a position in the conversation.
func atCheckpoint(r *v1alpha1.Rewind, number int64, commit string, position int64) *v1alpha1.OperationStatus {
	s := &v1alpha1.OperationStatus{ToCheckpoint: number, ToCommit: commit, CheckpointPosition: position}
	if r.Scope != v1alpha1.RewindCode {
		s.ToPosition = position
	}
	return s
}

// targetOf returns the Checkpoint that an operation (rewind or resume) names, or what blocks
// it; neither while the manager has not written the status of one that it created.
func (d *decision) targetOf(operation, name string, c *v1alpha1.Checkpoint) (*v1alpha1.Checkpoint, *Blocker) {
	switch {
	case c == nil:
		return nil, &Blocker{v1alpha1.ReasonCheckpointNotFound, fmt.Sprintf(
			"there is no Checkpoint %q in this namespace: name one of this task's checkpoints, and request the %s again", name, operation)}
	case c.Spec.TaskRef.Name != d.task.Name || (c.Status.TaskUID != "" && c.Status.TaskUID != string(d.task.UID)):
		return nil, &Blocker{v1alpha1.ReasonCheckpointOfOther, fmt.Sprintf(
			"Checkpoint %q belongs to another task: name one of this task's checkpoints, and request the %s again", name, operation)}
	case meta.IsStatusConditionFalse(c.Status.Conditions, v1alpha1.CheckpointIntact):
		return nil, &Blocker{v1alpha1.ReasonCheckpointCorrupted, fmt.Sprintf(
			"Checkpoint %q is damaged%s: name another one, and request the %s again", name, damageClause(c), operation)}
	case c.Status.Number == 0 && madeByManager(c):
		return nil, nil
	case c.Status.Number == 0 || c.Status.Commit == "":
		return nil, &Blocker{v1alpha1.ReasonInvalidState, fmt.Sprintf(
			"Checkpoint %q has not been taken yet: wait until it is Ready, and request the %s again", name, operation)}
	}
	return c, nil
}

// damaged is why an operation (rewind or resume) does not use a checkpoint that is recorded as
// damaged.
func damaged(operation string, c history.Checkpoint) *Blocker {
	return &Blocker{v1alpha1.ReasonCheckpointCorrupted, fmt.Sprintf(
		"checkpoint %d is damaged (%s): name another one, and request the %s again", c.Number, Damage(c.Integrity), operation)}
}

// damageClause returns a clause about what is wrong with a damaged Checkpoint, which names the
// nearest earlier one that is intact; "" if that is not known.
func damageClause(c *v1alpha1.Checkpoint) string {
	is := meta.FindStatusCondition(c.Status.Conditions, v1alpha1.CheckpointIntact)
	if is == nil || is.Message == "" {
		return ""
	}
	return " (" + is.Message + ")"
}

// madeByManager reports whether the manager created the Checkpoint object, for a
// checkpoint that had been taken.
func madeByManager(c *v1alpha1.Checkpoint) bool {
	_, _, ok := resources.CheckpointNumber(c)
	return ok
}

// toPosition resolves a rewind to a message or a time. The files and the agent's own state
// become those of the newest checkpoint at or before it, or of the one that has the state of the
// time. With scope Both the conversation does too, so that files and memory agree. The conversation
// alone can be rewound to a message before the first checkpoint.
func toPosition(r *v1alpha1.Rewind, query history.PositionQuery, found history.Resolved) (*v1alpha1.OperationStatus, *Blocker) {
	c := found.Checkpoint
	switch {
	case c == nil && r.Scope == v1alpha1.RewindConversation:
		return beforeCheckpoints(query, found)
	case c == nil:
		return nil, &Blocker{v1alpha1.ReasonInvalidState, fmt.Sprintf(
			"this task has no checkpoint at or before %s, or rewind the conversation alone, and request the rewind again", laterThan(query, found))}
	case c.Integrity.Damage != "":
		return nil, damaged("rewind", *c)
	}
	s := &v1alpha1.OperationStatus{
		ToCheckpoint: c.Number, ToCommit: c.Commit, CheckpointPosition: c.Position.Position,
	}
	switch r.Scope {
	case v1alpha1.RewindCode:
		s.Message = fmt.Sprintf("checkpoint %d %s", c.Number, chosen(query, found))
	case v1alpha1.RewindConversation:
		s.ToPosition, s.ToSequence, s.Message = found.Position.Position, found.AfterSequence, snapped(query, found)
		s.CheckpointPosition = found.CheckpointPosition() // the agent's memory ends there, too
	default:
		s.ToPosition = c.Position.Position
		if s.ToPosition != found.Asked || query.Message == 0 {
			s.Message = fmt.Sprintf("checkpoint %d, at message %d, %s", c.Number, s.ToPosition, chosen(query, found))
		}
		if s.ToPosition < found.Position.Position {
			s.Message += fmt.Sprintf("; a rewind of the conversation alone goes to message %d itself", found.Position.Position)
		}
	}
	return s, nil
}

// chosen says of the checkpoint that a query leads to why it is this one.
func chosen(query history.PositionQuery, found history.Resolved) string {
	if !query.Counts(found.Checkpoint.Time) {
		return fmt.Sprintf("is the first one after %s, and has its state", describeQuery(query, found))
	}
	return "is the newest one at or before " + describeQuery(query, found) + onAnotherBranch(found)
}

// onAnotherBranch is a clause about a newer checkpoint to which a time does not lead; "" if there is none.
func onAnotherBranch(found history.Resolved) string {
	if found.Elsewhere == 0 {
		return ""
	}
	return fmt.Sprintf(" in this conversation (checkpoint %d, which was taken by then, too, is on another branch of it)", found.Elsewhere)
}

// laterThan names the place before which there is no checkpoint, and what to name instead. A
// checkpoint may have been taken after a time although the conversation had no message between.
func laterThan(query history.PositionQuery, found history.Resolved) string {
	if query.Time.IsZero() {
		return fmt.Sprintf("message %d: name a later message", found.Position.Position)
	}
	return describeQuery(query, found) + onAnotherBranch(found) + ": name a later time"
}

// beforeCheckpoints resolves a rewind of the conversation to a message before the first
// checkpoint.
func beforeCheckpoints(query history.PositionQuery, found history.Resolved) (*v1alpha1.OperationStatus, *Blocker) {
	position := found.Position.Position
	if position < 1 {
		return nil, &Blocker{v1alpha1.ReasonInvalidState, fmt.Sprintf(
			"no complete turn ends at or before %s: name a later message, and request the rewind again", describeQuery(query, found))}
	}
	message := fmt.Sprintf("message %d is older than the first checkpoint, so every saved session of the agent is newer: "+
		"the agent's state is reset to that before its first run, and its prompt contains the conversation up to message %d", position, position)
	if s := snapped(query, found); s != "" {
		message = s + "; " + message
	}
	return &v1alpha1.OperationStatus{ToPosition: position, ToSequence: found.AfterSequence, Message: message}, nil
}

// snapped explains why the rewind goes to another message than the requested one; "" if
// it does not.
func snapped(query history.PositionQuery, found history.Resolved) string {
	if !found.Snapped && query.Message != 0 {
		return ""
	}
	return fmt.Sprintf("message %d ends the last complete turn at or before %s", found.Position.Position, describeQuery(query, found))
}

// destination describes the target of a rewind.
func destination(s *v1alpha1.OperationStatus) string {
	switch {
	case s.ToCheckpoint == 0 && s.ToPosition == 0 && s.ToCommit == "": // as the history has it of one that is done
		return "before the first checkpoint"
	case s.ToCheckpoint == 0 && s.ToPosition == 0:
		return "commit " + clip.Bytes(s.ToCommit, 12)
	case s.ToCheckpoint == 0:
		return fmt.Sprintf("message %d", s.ToPosition)
	}
	return fmt.Sprintf("checkpoint %d", s.ToCheckpoint)
}

// describeQuery describes the position that was requested.
func describeQuery(query history.PositionQuery, found history.Resolved) string {
	switch {
	case !query.Time.IsZero():
		return fmt.Sprintf("%s (message %d)", query.Time.UTC().Format(time.RFC3339Nano), found.Asked)
	case query.Back > 0:
		return fmt.Sprintf("%d messages back (message %d)", query.Back, found.Asked)
	}
	return fmt.Sprintf("message %d", query.Message)
}

// noSuchPosition returns the blocker of a rewind to a position that the conversation does
// not have.
func (d *decision) noSuchPosition(query history.PositionQuery) *Blocker {
	has := "the conversation has no messages yet"
	if n := d.o.History.State.Position.Position; n > 0 {
		has = fmt.Sprintf("the conversation has %d messages", n)
	}
	message := fmt.Sprintf("%s, and no message %d: name an earlier one, and request the rewind again", has, query.Message)
	switch {
	case !query.Time.IsZero():
		message = fmt.Sprintf("the conversation had no message yet at %s: name a later time, and request the rewind again",
			query.Time.UTC().Format(time.RFC3339Nano))
	case query.Back > 0:
		message = fmt.Sprintf("%s, and cannot go %d back: name fewer, and request the rewind again", has, query.Back)
	}
	return &Blocker{v1alpha1.ReasonPositionNotFound, message}
}

// rewindOperation returns the rewind in progress in the form that prepare receives; nil
// if it has been withdrawn.
func (d *decision) rewindOperation() *daemonapi.Operation {
	s := d.s.Rewind
	r := d.requestedRewind(s.ID)
	if r == nil {
		return nil
	}
	op := &daemonapi.Operation{
		Kind: daemonapi.OperationRewind, ID: r.ID, OnDrift: r.OnDrift,
		Checkpoint: s.ToCheckpoint, Commit: s.ToCommit, CheckpointPosition: s.CheckpointPosition,
		Scope: scopeOf(r, s), Preserve: r.Preserve, Branch: r.Branch,
	}
	if r.Preserve == v1alpha1.PreserveBranch {
		op.Branch = daemonapi.PreservedBranch(r.Branch, r.ID)
	}
	if op.Scope == v1alpha1.RewindConversation && !r.To.NamesCheckpoint() {
		op.Position, op.AfterSequence = s.ToPosition, s.ToSequence
	}
	if len(s.Paths) > 0 || r.To.Commit != "" {
		op.Files = &daemonapi.RewindFiles{Checkpoint: op.Checkpoint, Commit: op.Commit, Paths: s.Paths}
		op.Checkpoint, op.Commit = 0, ""
	}
	return op
}

// completeRewind closes a rewind that is complete, and adds its entry.
func (d *decision) completeRewind(result daemonapi.PrepareResult) {
	op := d.s.Rewind
	resolved := op.Message
	op.FromCheckpoint, op.Preserved = result.FromCheckpoint, result.Preserved
	op.ToCheckpoint = cmp.Or(result.ToCheckpoint, op.ToCheckpoint)
	if done, _ := d.doneRewind(op.ID); done != nil && op.FromCheckpoint == 0 { // a new volume's pod knows its target only
		asDone(op, done)
	}
	op.ToPosition = cmp.Or(result.ToPosition, op.ToPosition)
	message := rewound(d.requestedRewind(op.ID), op)
	if op.FromCheckpoint != 0 {
		message += fmt.Sprintf("; checkpoint %d holds the state before the rewind", op.FromCheckpoint)
	}
	if op.Preserved != "" {
		message += ", and so does " + op.Preserved
	}
	if resolved != "" {
		message += "; " + resolved
	}
	d.wentBack(op, message, "rewind "+op.ID)
}
