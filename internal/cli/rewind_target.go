package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"

	historyv1 "github.com/clew-dev/clew/api/history/v1alpha1"
	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/clip"
)

// rewindTarget is the target of a rewind: a checkpoint, or a position in the
// conversation with the newest checkpoint before it.
type rewindTarget struct {
	// named is true if the user named the checkpoint.
	named bool
	// checkpoint is the named one, or the newest one before the position; nil if
	// there is none or it is unknown.
	checkpoint *v1alpha1.Checkpoint
	// field is the requested field of spec.rewind.to (commit, message, messagesBack, time
	// or undoOf), value its value, and text both of them for people.
	field string
	value any
	text  string
	// point is the position as it would be resolved now, and last the message
	// there; nil if the history could not be read, for the reason in unknown.
	point   *historyv1.ConversationPoint
	last    *historyv1.ConversationEntry
	unknown string
}

// target resolves the flags to a target.
func (o *rewind) target(ctx context.Context, s *session, task *v1alpha1.Task, list *v1alpha1.CheckpointList) (*rewindTarget, error) {
	if o.to == historyv1.WordBase {
		return s.toBase(ctx, task, list)
	}
	if o.to != "" {
		checkpoint, err := s.anyCheckpoint(ctx, list, task, o.to)
		return &rewindTarget{named: true, checkpoint: checkpoint}, alsoTakes(err, "--to", "base and latest")
	}
	if o.toCommit != "" {
		return toCommit(o.toCommit), nil
	}
	t, err := o.position()
	if err != nil {
		return nil, err
	}
	return t, t.resolve(ctx, s, task, list)
}

// position returns the position that the flags name.
func (o *rewind) position() (*rewindTarget, error) {
	switch {
	case o.toMessage > 0:
		return messageTarget(o.toMessage), nil
	case o.back > 0:
		return &rewindTarget{field: "messagesBack", value: o.back, text: plural(o.back, "message") + " back"}, nil
	}
	return o.timeTarget("--to-time", o.toTime)
}

// query returns the parameters with which the history API resolves the position.
func (t *rewindTarget) query(task *v1alpha1.Task) url.Values {
	name := t.field
	if name == "messagesBack" {
		name = "back"
	}
	return url.Values{"uid": {string(task.UID)}, name: {fmt.Sprint(t.value)}}
}

// resolve asks the history API for the position. A user who may rewind a task need not
// be allowed to read its history; the preview is less detailed then. A position that
// does not exist is an error, before the user is asked to confirm.
func (t *rewindTarget) resolve(ctx context.Context, s *session, task *v1alpha1.Task, list *v1alpha1.CheckpointList) error {
	point := &historyv1.ConversationPoint{}
	err := s.historyGet(ctx, []string{"tasks", task.Name, "conversation", "position"}, t.query(task), point)
	var missing *notInHistory
	switch {
	case errors.As(err, &missing), err == nil && point.Asked < 1:
		if t.lost(task, point.Messages) {
			t.unknown = "the history store is missing part of this conversation"
			return nil
		}
		return t.notFound(task)
	case err != nil:
		t.unknown = err.Error()
		return nil //nolint:nilerr // the preview shows it
	}
	t.point = point
	i := slices.IndexFunc(list.Items, func(c v1alpha1.Checkpoint) bool {
		return point.Checkpoint > 0 && c.Status.Number == point.Checkpoint && c.Status.TaskUID == string(task.UID)
	})
	if i >= 0 {
		t.checkpoint = &list.Items[i]
	}
	if t.checkpoint == nil && point.Checkpoint > 0 {
		if c, err := s.recorded(ctx, task, point.Checkpoint); err == nil {
			t.checkpoint = objectOf(task, c)
		}
	}
	if point.Position < 1 {
		return nil
	}
	page := &historyv1.ConversationList{}
	around := url.Values{"uid": {string(task.UID)}, "after": {strconv.FormatInt(point.Position-1, 10)}, "limit": {"1"}}
	if s.historyGet(ctx, []string{"tasks", task.Name, "conversation"}, around, page) == nil && len(page.Items) == 1 {
		t.last = &page.Items[0]
	}
	return nil
}

// lost reports whether the history store lacks the position although the task's status
// counts it, which means that the store was restored from an older copy. stored is how
// many messages the store has. The manager then waits until the task has sent the rest
// again.
func (t *rewindTarget) lost(task *v1alpha1.Task, stored int64) bool {
	if behind(task) {
		return true
	}
	counted := task.Status.MessageCount
	switch n, _ := t.value.(int64); t.field {
	case "message":
		return n <= counted
	case "messagesBack":
		return n < counted
	}
	return stored < counted
}

// notFound is the error for a position that the conversation does not have.
func (t *rewindTarget) notFound(task *v1alpha1.Task) error {
	problem := map[string]string{
		"message":      fmt.Sprintf("the conversation of task %s has no %s", task.Name, t.text),
		"messagesBack": fmt.Sprintf("the conversation of task %s is too short to go %s", task.Name, t.text),
		"time":         fmt.Sprintf("the conversation of task %s had no message yet at %s", task.Name, t.text),
	}[t.field]
	return fmt.Errorf("%s; `kubectl clew task history %s` shows its messages", problem, task.Name+" -n "+task.Namespace)
}

// name returns the target's name for a sentence.
func (t *rewindTarget) name() string {
	if t.named {
		return fmt.Sprintf("checkpoint %d", t.checkpoint.Status.Number)
	}
	return t.text
}

// requested says that a rewind to the target is requested.
func (t *rewindTarget) requested() string {
	if t.field == undoField {
		return fmt.Sprintf("undo of %s requested", rewindName(t.value))
	}
	return fmt.Sprintf("rewind to %s requested", t.name())
}

// patch returns the patch of spec.rewind.to. It removes the fields that an earlier rewind
// set.
func (t *rewindTarget) patch() map[string]any {
	to := map[string]any{"checkpointRef": nil, "checkpointNumber": nil, "message": nil, "time": nil, "messagesBack": nil, "commit": nil, "undoOf": nil}
	switch {
	case !t.named:
		to[t.field] = t.value
	case t.checkpoint.Name == "":
		to["checkpointNumber"] = t.checkpoint.Status.Number
	default:
		to["checkpointRef"] = map[string]any{"name": t.checkpoint.Name}
	}
	return to
}

// rows returns the rows of the preview that describe the target.
func (t *rewindTarget) rows(p *plugin, scope v1alpha1.RewindScope) [][]string {
	if t.named {
		return [][]string{{"  to", p.checkpointText(t.checkpoint)}}
	}
	rows := [][]string{{"  to", t.text}}
	if t.field == "commit" || t.field == "" {
		return rows
	}
	if t.point == nil {
		return append(rows, []string{"  position", "unknown here (" + oneLine(t.unknown) + "); the cluster will resolve it"})
	}
	if t.point.Snapped {
		rows = append(rows, []string{"  moved back", endOfTurn(t.point.Position)})
	}
	if t.last != nil && scope == v1alpha1.RewindConversation {
		rows = append(rows, []string{"  last kept", fmt.Sprintf("%d %s: %s", t.last.Position, oneLine(t.last.Role), clip.Runes(cmp.Or(entryText(t.last), "(no text)"), 60))})
	}
	switch {
	case t.point.Checkpoint == 0 && t.field == "time":
		rows = append(rows, []string{"  checkpoint", "none of this conversation was taken by then"})
	case t.point.Checkpoint == 0:
		rows = append(rows, []string{"  checkpoint", "none was taken before this position: it is the beginning of the task"})
	case t.checkpoint != nil:
		rows = append(rows, []string{"  checkpoint", p.checkpointText(t.checkpoint)})
	default:
		rows = append(rows, []string{"  checkpoint", fmt.Sprintf("checkpoint %d", t.point.Checkpoint)})
	}
	if n := t.point.ElsewhereCheckpoint; n > 0 {
		rows = append(rows, []string{"  newer", fmt.Sprintf("checkpoint %d, which was taken by then, too, is on another branch of the conversation", n)})
	}
	return rows
}

// entryText returns the text of a message on one line.
func entryText(e *historyv1.ConversationEntry) string {
	switch {
	case e.Text != "":
		return oneLine(e.Text)
	case e.ToolCall != nil:
		return oneLine("calls " + e.ToolCall.Name + " " + readableJSON(e.ToolCall.Input))
	case e.ToolResult != nil:
		return oneLine(e.ToolResult.Output)
	}
	return oneLine(e.Raw)
}

// readableJSON shows the characters that JSON for web pages escapes. A backslash that is itself
// escaped begins no escape.
func readableJSON(text string) string {
	return strings.NewReplacer(`\\`, `\\`, `\u003c`, "<", `\u003e`, ">", `\u0026`, "&").Replace(text)
}

// checkpointText describes a checkpoint by number, name, age, trigger and message.
func (p *plugin) checkpointText(c *v1alpha1.Checkpoint) string {
	text := fmt.Sprintf("checkpoint %d (%s), taken %s ago, %s", c.Status.Number, cmp.Or(c.Name, "its object was deleted"), p.age(c.Status.Time), c.Status.Trigger)
	if c.Spec.Message != "" {
		text += fmt.Sprintf(": %q", clip.Runes(oneLine(c.Spec.Message), 60))
	}
	return text
}

// keptMessages returns how many messages the rewind keeps. known is false if their
// number does not change or is unknown.
func (t *rewindTarget) keptMessages(scope v1alpha1.RewindScope) (kept int64, known bool) {
	switch {
	case scope == v1alpha1.RewindCode:
		return 0, false
	case t.named:
		if at := t.checkpoint.Status.Conversation; at != nil {
			return at.Position, true
		}
		return 0, false
	case t.point == nil:
		return 0, false
	case scope == v1alpha1.RewindBoth:
		return t.point.CheckpointPosition, true
	}
	return t.point.Position, true
}

// messages returns how many messages the history has now, or 0 if unknown.
func (t *rewindTarget) messages() int64 {
	if t.point == nil {
		return 0
	}
	return t.point.Messages
}

// checkRewindable rejects a rewind while another one is in progress.
func checkRewindable(task *v1alpha1.Task) error {
	if r := task.Status.Rewind; r != nil && (r.State == v1alpha1.OperationInProgress || r.State == v1alpha1.OperationPending) {
		return fmt.Errorf("a rewind of task %s is already in progress (%s); wait until it has ended", task.Name, r.ID)
	}
	return nil
}
