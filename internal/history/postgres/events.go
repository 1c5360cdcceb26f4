package postgres

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/clip"
	"github.com/clew-dev/clew/internal/conversation"
	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/history/postgres/sqlc"
	"github.com/clew-dev/clew/internal/reason"
)

// Reasons of the events made from records.
const (
	reasonUserMessage       = v1alpha1.EventUserMessage
	reasonAgentMessage      = v1alpha1.EventAgentMessage
	reasonCheckpointCreated = v1alpha1.EventCheckpointCreated
	reasonConversationMoved = v1alpha1.EventConversationMoved
)

// reasonCheckpointRefused is sent by a daemon: the gitstore does not accept the
// checkpoint in the detail "checkpoint"; the detail "message" says why.
const reasonCheckpointRefused = v1alpha1.EventCheckpointRefused

// reasonCheckpointLost is sent by a daemon: neither the gitstore nor the volume has the
// checkpoint in the detail "checkpoint".
const reasonCheckpointLost = v1alpha1.ReasonCheckpointLost

// Reasons of events about lost records and refused moves.
const (
	reasonHistoryGap  = v1alpha1.EventHistoryGap
	reasonMoveRefused = v1alpha1.EventConversationMoveRefused
)

// gapText describes a gap.
func gapText(n, from, through int64, reason string) string {
	lost := fmt.Sprintf("%d records (%d to %d) were lost", n, from, through)
	if n == 1 {
		lost = fmt.Sprintf("1 record (%d) was lost", from)
	}
	switch reason {
	case v1alpha1.ReasonHistoryStoreWentBack:
		return "The history has a gap: " + lost + " when the history store was restored from an older copy."
	case v1alpha1.ReasonSpoolDamaged:
		return "The history has a gap: " + lost + ", because the task's volume could not be read or was restored from an older copy."
	}
	return "The history has a gap: " + lost + " (" + clip.Marked(clean(reason), maxToolName) + ")."
}

// sourceLostText describes what a fork's conversation lacks.
func sourceLostText(source history.Source) string {
	what, were := "The conversation", "was"
	switch {
	case source.Position == 1:
		what = "The first message of the conversation"
	case source.Position > 1:
		what, were = fmt.Sprintf("The first %d messages of the conversation", source.Position), "were"
	}
	return fmt.Sprintf("The history has a gap: %s, which this task inherited from checkpoint %d of the task with UID %s, %s lost when the history store was restored from an older copy.",
		what, source.Checkpoint, clip.Marked(clean(source.TaskUID), maxToolName), were)
}

// maxRefusal bounds the reason of a refusal, in bytes.
const maxRefusal = 1024

// previewBytes is how much of a message the timeline shows.
const previewBytes = 200

// chatEvent returns the timeline's event of a message: for what users and agents say, not
// for each tool call.
func chatEvent(m conversation.Message) (history.Event, bool) {
	// Little of a large text is shown, so splitting all of it is avoided.
	e := history.Event{Type: history.EventTypeChat, Message: clip.Marked(strings.Join(strings.Fields(clip.Bytes(m.Text, 8*previewBytes)), " "), previewBytes)}
	switch {
	case m.Text == "" || m.ToolCall != nil || m.ToolResult != nil:
		return e, false
	case m.Role == conversation.RoleUser:
		e.Reason, e.Actor = reasonUserMessage, "user"
	case m.Role == conversation.RoleAssistant:
		e.Reason, e.Actor = reasonAgentMessage, "agent"
	default:
		return e, false
	}
	return e, true
}

// checkpointText is the timeline's text of a checkpoint.
func checkpointText(row sqlc.NamespaceTimelineRow) string {
	text := fmt.Sprintf("checkpoint %d (%s): %s changed, +%d -%d lines",
		row.Checkpoint, row.Trigger, counted(int64(row.FilesChanged), "file"), row.LinesAdded, row.LinesRemoved)
	if row.Message != "" {
		text += ": " + clip.Marked(row.Message, previewBytes)
	}
	return text
}

// filesText is the timeline's text of the files that changed up to a checkpoint.
func filesText(row sqlc.NamespaceTimelineRow) (string, error) {
	first, err := changesOf(row.Changes)
	if err != nil || len(first) == 0 {
		return counted(int64(row.FilesChanged), "file") + " changed", err
	}
	var parts []string
	for _, f := range first {
		parts = append(parts, strings.ToLower(f.Action)+" "+clip.Marked(clean(f.Path), maxToolName))
	}
	text := strings.Join(parts, ", ")
	if more := int64(row.FilesChanged) - int64(len(first)); more > 0 {
		text += fmt.Sprintf(" and %s more", counted(more, "file"))
	}
	return text, nil
}

// daemonEvent converts a daemon's event. Its type is the one it names, or else that of
// its reason. What the agent did with one of Clew's tools is the agent's doing.
func daemonEvent(note history.DaemonEvent) history.Event {
	e := history.Event{Reason: clean(note.Reason), Actor: "clew", Message: clean(note.Message)}
	if note.Reason == v1alpha1.EventToolCalled {
		e.Actor = "agent"
	}
	e.Checkpoint, _ = strconv.ParseInt(note.Details["checkpoint"], 10, 64)
	switch kind := note.Details["type"]; {
	case slices.Contains([]string{history.EventTypeTask, history.EventTypeChat, history.EventTypeCheckpoint,
		history.EventTypeRewind, history.EventTypeFork, history.EventTypeFile}, kind):
		e.Type = kind
	case reason.Find(note.Reason).AboutCheckpoint:
		e.Type = history.EventTypeCheckpoint
	default:
		e.Type = history.EventTypeTask
	}
	return e
}
