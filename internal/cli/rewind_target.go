package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"time"

	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	historyv1 "github.com/clew-dev/clew/api/history/v1alpha1"
	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/clip"
)

// rewindTarget is where a rewind goes to: a checkpoint, or a place in the
// conversation with the newest checkpoint before it.
type rewindTarget struct {
	// named: the user named the checkpoint.
	named bool
	// checkpoint that is named, or that belongs to the place; nil if it has none
	// or is not known.
	checkpoint *v1alpha1.Checkpoint
	// to is one of message, messagesBack and time, as asked for.
	field string
	value any
	words string
	// point is the place as it would be resolved now, and last the message
	// there; nil if the history could not be asked, which is said in unknown.
	point   *historyv1.ConversationPoint
	last    *historyv1.ConversationEntry
	unknown string
}

// target finds out where the flags lead to.
func (o *rewind) target(ctx context.Context, s *session, task *v1alpha1.Task, list *v1alpha1.CheckpointList) (*rewindTarget, error) {
	if o.to != "" {
		checkpoint, err := find(list, task, o.to)
		return &rewindTarget{named: true, checkpoint: checkpoint}, err
	}
	t := &rewindTarget{}
	params := url.Values{"uid": {string(task.UID)}}
	switch {
	case o.toMessage > 0:
		t.field, t.value, t.words = "message", o.toMessage, fmt.Sprintf("message %d", o.toMessage)
		params.Set("message", strconv.FormatInt(o.toMessage, 10))
	case o.back > 0:
		t.field, t.value, t.words = "messagesBack", o.back, plural(o.back, "message")+" back"
		params.Set("back", strconv.FormatInt(o.back, 10))
	default:
		at, err := o.parseMoment("--to-time", o.toTime)
		if err != nil {
			return nil, err
		}
		if _, err := time.Parse(time.DateTime, o.toTime); err == nil {
			// A message is shown with its second, and is meant when that is given.
			at = at.Add(time.Second - time.Millisecond)
		}
		moment := at.UTC().Format(time.RFC3339Nano)
		t.field, t.value, t.words = "time", moment, o.stamp(at)
		params.Set("time", moment)
	}
	return t, t.look(ctx, s, task, list, params)
}

// look asks the history where the place is. Whoever may rewind a task need not
// be able to read its history: then the preview says less. A place that is not
// there is an error, before anybody is asked to agree to it.
func (t *rewindTarget) look(ctx context.Context, s *session, task *v1alpha1.Task, list *v1alpha1.CheckpointList, params url.Values) error {
	point := &historyv1.ConversationPoint{}
	err := s.historyGet(ctx, []string{"tasks", task.Name, "conversation", "position"}, params, point)
	var none *notInHistory
	switch {
	case errors.As(err, &none), err == nil && point.Asked < 1:
		if t.lost(task, point.Messages) {
			t.unknown = "the history store lacks a part of this conversation"
			return nil
		}
		return t.nowhere(task)
	case err != nil:
		t.unknown = err.Error()
		return nil //nolint:nilerr // the preview says it
	}
	t.point = point
	for i := range list.Items {
		c := &list.Items[i]
		if c.Status.Number == point.Checkpoint && point.Checkpoint > 0 && c.Status.TaskUID == string(task.UID) {
			t.checkpoint = c
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

// lost says that the history store does not have the place, and its task does, as
// its status tells: the store was put back to an older copy, and has so many messages.
// The manager then waits until the task has sent the rest again.
func (t *rewindTarget) lost(task *v1alpha1.Task, stored int64) bool {
	c := apimeta.FindStatusCondition(task.Status.Conditions, v1alpha1.TaskHistoryComplete)
	if c != nil && c.Status == metav1.ConditionFalse && c.Reason == v1alpha1.ReasonHistoryBehind {
		return true
	}
	told := task.Status.MessageCount
	switch n, _ := t.value.(int64); t.field {
	case "message":
		return n <= told
	case "messagesBack":
		return n < told
	}
	return stored < told
}

// nowhere says that the conversation has no such place.
func (t *rewindTarget) nowhere(task *v1alpha1.Task) error {
	what := map[string]string{
		"message":      fmt.Sprintf("the conversation of task %s has no %s", task.Name, t.words),
		"messagesBack": fmt.Sprintf("the conversation of task %s is too short to go %s", task.Name, t.words),
		"time":         fmt.Sprintf("the conversation of task %s had no message yet at %s", task.Name, t.words),
	}[t.field]
	return fmt.Errorf("%s; `kubectl clew task history %s` shows what there is", what, task.Name)
}

// name of the target in a sentence.
func (t *rewindTarget) name() string {
	if t.named {
		return fmt.Sprintf("checkpoint %d", t.checkpoint.Status.Number)
	}
	return t.words
}

// patch is spec.rewind.to. It takes out what an earlier rewind had there.
func (t *rewindTarget) patch() map[string]any {
	to := map[string]any{"checkpointRef": nil, "message": nil, "time": nil, "messagesBack": nil}
	if t.named {
		to["checkpointRef"] = map[string]any{"name": t.checkpoint.Name}
	} else {
		to[t.field] = t.value
	}
	return to
}

// rows of the preview that say where it goes.
func (t *rewindTarget) rows(p *plugin, scope v1alpha1.RewindScope) [][]string {
	if t.named {
		return [][]string{{"  to", p.checkpointWords(t.checkpoint)}}
	}
	rows := [][]string{{"  to", t.words}}
	if t.point == nil {
		return append(rows, []string{"  which is", "not known here (" + oneLine(t.unknown) + "); the cluster finds it out"})
	}
	if t.point.Snapped {
		rows = append(rows, []string{"  moved back", fmt.Sprintf("to message %d, where the turn ends: after it, a tool call has no result yet", t.point.Position)})
	}
	if t.last != nil && scope == v1alpha1.RewindConversation {
		rows = append(rows, []string{"  last kept", fmt.Sprintf("%d %s: %s", t.last.Position, oneLine(t.last.Role), clip.Runes(cmp.Or(entryWords(t.last), "…"), 60))})
	}
	switch {
	case t.point.Checkpoint == 0:
		rows = append(rows, []string{"  checkpoint", "none was taken before it: it is the beginning of the task"})
	case t.checkpoint != nil:
		rows = append(rows, []string{"  checkpoint", p.checkpointWords(t.checkpoint)})
	default:
		rows = append(rows, []string{"  checkpoint", fmt.Sprintf("checkpoint %d", t.point.Checkpoint)})
	}
	return rows
}

// entryWords is what a message says, on one line.
func entryWords(e *historyv1.ConversationEntry) string {
	switch {
	case e.Text != "":
		return oneLine(e.Text)
	case e.ToolCall != nil:
		return oneLine("calls " + e.ToolCall.Name + " " + e.ToolCall.Input)
	case e.ToolResult != nil:
		return oneLine(e.ToolResult.Output)
	}
	return oneLine(e.Raw)
}

// checkpointWords tells which checkpoint it is.
func (p *plugin) checkpointWords(c *v1alpha1.Checkpoint) string {
	words := fmt.Sprintf("checkpoint %d (%s), taken %s ago, %s", c.Status.Number, c.Name, p.age(c.Status.Time), c.Status.Trigger)
	if c.Spec.Message != "" {
		words += fmt.Sprintf(": %q", clip.Runes(oneLine(c.Spec.Message), 60))
	}
	return words
}

// kept says how many messages are left, empty if that does not change or is
// not known.
func (t *rewindTarget) kept(scope v1alpha1.RewindScope) string {
	switch {
	case scope == v1alpha1.RewindCode:
		return ""
	case t.named:
		if at := t.checkpoint.Status.Conversation; at != nil {
			return plural(at.Position, "message")
		}
		return ""
	case t.point == nil:
		return ""
	case scope == v1alpha1.RewindBoth:
		return plural(t.point.CheckpointPosition, "message") + ", as at the checkpoint"
	}
	return plural(t.point.Position, "message")
}

// messages there are now, as far as the history told.
func (t *rewindTarget) messages() int64 {
	if t.point == nil {
		return 0
	}
	return t.point.Messages
}
