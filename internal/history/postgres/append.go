package postgres

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/clew-dev/clew/internal/conversation"
	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/history/postgres/sqlc"
)

// Append stores records in one transaction and returns the sequence up to
// which everything is stored. Records up to the last stored one are ignored,
// so that a batch whose answer was lost may be sent again. Errors:
// history.ErrGap (a *history.GapError; last is then the last stored sequence),
// history.ErrFenced, history.ErrNotFound if no attempt has begun,
// history.ErrUnavailable. After an error nothing of the batch is stored, but
// for an ErrUnavailable, after which all of it may be.
func (s *Store) Append(ctx context.Context, task history.Task, attempt int64, records []history.Record) (last int64, err error) {
	doing := fmt.Sprintf("store records of the task %s/%s", task.Namespace, task.Name)
	err = s.write(ctx, doing, func(q *sqlc.Queries) error {
		l, err := lockTask(ctx, q, task)
		if err != nil {
			return err
		}
		if err := l.fence(attempt); err != nil {
			return err
		}
		last = l.row.LastSequence
		fresh, err := unseen(records, last)
		if err != nil || len(fresh) == 0 {
			return err
		}
		last = fresh[len(fresh)-1].Sequence
		return s.ingest(ctx, q, l, attempt, fresh)
	})
	if err == nil || errors.Is(err, history.ErrGap) {
		return last, err
	}
	return 0, err
}

// unseen leaves out the records that are stored already; what remains follows
// on the last one without a gap.
func unseen(records []history.Record, last int64) ([]history.Record, error) {
	fresh := make([]history.Record, 0, len(records))
	for _, r := range records {
		if r.Sequence <= last {
			continue
		}
		if r.Sequence != last+1 {
			return nil, &history.GapError{Last: last - int64(len(fresh)), First: r.Sequence}
		}
		fresh = append(fresh, r)
		last = r.Sequence
	}
	return fresh, nil
}

// ingest writes records that follow on the last stored one.
func (s *Store) ingest(ctx context.Context, q *sqlc.Queries, l locked, attempt int64, records []history.Record) error {
	log, err := l.head()
	if err != nil {
		return err
	}
	b := batch{task: l.task, branch: l.branch, log: log, messages: map[conversation.Hash]conversation.Message{}}
	for _, r := range records {
		if r.Attempt < 1 || r.Attempt > attempt {
			r.Attempt = attempt
		}
		if err := b.add(r); err != nil {
			return err
		}
	}
	if err := b.write(ctx, q); err != nil {
		return err
	}
	for _, c := range b.checkpoints {
		if err := s.ingestCheckpoint(ctx, q, &l, c); err != nil {
			return err
		}
	}
	for _, refusal := range b.refusals {
		if err := q.SetCheckpointRefused(ctx, refusal); err != nil {
			return err
		}
	}
	l.row.Attempt = max(l.row.Attempt, attempt)
	l.row.LastSequence = records[len(records)-1].Sequence
	return l.save(ctx, q)
}

// ingestCheckpoint stores a checkpoint, or what is new about one that is stored.
func (s *Store) ingestCheckpoint(ctx context.Context, q *sqlc.Queries, l *locked, c checkpointWrite) error {
	inserted, err := q.InsertCheckpoint(ctx, c.row)
	if err != nil {
		return err
	}
	if inserted > 0 {
		l.row.CheckpointCount++
		l.row.LatestCheckpoint = max(l.row.LatestCheckpoint, c.row.Number)
		return q.InsertCheckpointChanges(ctx, sqlc.InsertCheckpointChangesParams{
			TaskUid: c.row.TaskUid, Number: c.row.Number, Changes: c.changes,
		})
	}
	updated, err := q.SetCheckpointDurable(ctx, sqlc.SetCheckpointDurableParams{
		Durable: c.row.Durable, RequestedByName: c.row.RequestedByName, RequestedByUid: c.row.RequestedByUid,
		TaskUid: c.row.TaskUid, Number: c.row.Number, Commit: c.row.Commit,
	})
	if err == nil && updated == 0 {
		s.log.Info("A checkpoint was told a second time with another commit; the first one stands.",
			"namespace", l.task.Namespace, "task", l.task.Name, "checkpoint", c.row.Number, "ignoredCommit", c.row.Commit)
	}
	return err
}

// batch is what a run of records adds to the tables.
type batch struct {
	task        history.Task
	branch      sqlc.Branch
	log         conversation.Log
	messages    map[conversation.Hash]conversation.Message
	entries     sqlc.InsertEntriesParams
	checkpoints []checkpointWrite
	// refusals follow the checkpoints in whatever order they were told: what is
	// durable is not refused.
	refusals []sqlc.SetCheckpointRefusedParams
	events   sqlc.InsertEventsParams
}

type checkpointWrite struct {
	row     sqlc.InsertCheckpointParams
	changes []byte
}

func (b *batch) add(r history.Record) error {
	switch {
	case r.Message != nil:
		b.addMessage(r, r.Message.Clean())
	case r.Usage != nil:
		b.log.Spend(r.Usage.InputTokens, r.Usage.OutputTokens, r.Usage.CostMicroUSD)
	case r.Checkpoint != nil && r.Checkpoint.Number > 0:
		return b.addCheckpoint(r)
	case r.Event != nil:
		return b.addNote(r, *r.Event)
	}
	return nil
}

func (b *batch) addMessage(r history.Record, m conversation.Message) {
	hash := m.Hash(b.task.Namespace)
	b.messages[hash] = m
	b.log.Append(m)

	e := &b.entries
	e.Position = append(e.Position, b.log.Position)
	e.Time = append(e.Time, sane(r.Time))
	e.Attempt = append(e.Attempt, r.Attempt)
	e.Sequence = append(e.Sequence, r.Sequence)
	e.Hash = append(e.Hash, hash[:])
	var call, answered string
	if m.ToolCall != nil {
		call = m.ToolCall.ID
	}
	if m.ToolResult != nil {
		answered = m.ToolResult.CallID
	}
	e.CallID = append(e.CallID, call)
	e.ResultCallID = append(e.ResultCallID, answered)
	e.Boundary = append(e.Boundary, b.log.Boundary)
	e.ToolCalls = append(e.ToolCalls, b.log.Totals.ToolCalls)
	e.InputTokens = append(e.InputTokens, b.log.Totals.InputTokens)
	e.OutputTokens = append(e.OutputTokens, b.log.Totals.OutputTokens)
	e.CostMicroUsd = append(e.CostMicroUsd, b.log.Totals.CostMicroUSD)

	if event, ok := chatEvent(m); ok {
		b.addEvent(r, event, nil)
	}
}

func (b *batch) addCheckpoint(r history.Record) error {
	row, err := checkpointRow(b.task, r, r.Attempt, b.branch, b.log)
	if err != nil {
		return err
	}
	changes, err := changesOf(r.Checkpoint)
	b.checkpoints = append(b.checkpoints, checkpointWrite{row, changes})
	r.Time = row.Time
	b.addEvent(r, checkpointEvent(row), nil)
	return err
}

func (b *batch) addNote(r history.Record, note history.Note) error {
	details := make(map[string]string, len(note.Details))
	for key, value := range note.Details {
		details[clean(key)] = clean(value)
	}
	encoded, err := json.Marshal(details)
	event := noteEvent(note)
	b.addEvent(r, event, encoded)
	if event.Reason == reasonCheckpointRefused && event.Checkpoint > 0 {
		b.refusals = append(b.refusals, sqlc.SetCheckpointRefusedParams{
			TaskUid: b.task.UID, Number: event.Checkpoint,
			Refused: shorten(cmp.Or(details["message"], event.Message, event.Reason), maxRefusal),
		})
	}
	return err
}

// addEvent adds what the record tells to the timeline.
func (b *batch) addEvent(r history.Record, e history.Event, details []byte) {
	e.ID = history.RecordEventID(b.task.UID, r.Sequence)
	e.Task, e.Time, e.Attempt = b.task, sane(r.Time), r.Attempt
	appendEvent(&b.events, e, details)
}

// write stores all but the checkpoints.
func (b *batch) write(ctx context.Context, q *sqlc.Queries) error {
	if len(b.messages) > 0 {
		if err := q.InsertMessages(ctx, messageRows(b.task.Namespace, b.messages)); err != nil {
			return err
		}
		b.entries.BranchID = b.branch.ID
		if err := q.InsertEntries(ctx, b.entries); err != nil {
			return err
		}
	}
	if len(b.events.ID) > 0 {
		if err := q.InsertEvents(ctx, b.events); err != nil {
			return err
		}
	}
	head, err := headOf(b.branch.ID, b.log)
	if err != nil {
		return err
	}
	return q.SetBranchHead(ctx, head)
}

// messageRows sorts by hash, so that transactions of two tasks that say the
// same things wait for each other in one order.
func messageRows(namespace string, messages map[conversation.Hash]conversation.Message) sqlc.InsertMessagesParams {
	hashes := make([]conversation.Hash, 0, len(messages))
	for hash := range messages {
		hashes = append(hashes, hash)
	}
	slices.SortFunc(hashes, func(a, b conversation.Hash) int { return bytes.Compare(a[:], b[:]) })

	rows := sqlc.InsertMessagesParams{Namespace: namespace}
	for _, hash := range hashes {
		m := messages[hash]
		call, result := conversation.ToolCall{}, conversation.ToolResult{}
		if m.ToolCall != nil {
			call = *m.ToolCall
		}
		if m.ToolResult != nil {
			result = *m.ToolResult
		}
		rows.Hash = append(rows.Hash, hash[:])
		rows.Role = append(rows.Role, string(m.Role))
		rows.Body = append(rows.Body, m.Text)
		rows.Raw = append(rows.Raw, m.Raw)
		rows.HasCall = append(rows.HasCall, m.ToolCall != nil)
		rows.ToolName = append(rows.ToolName, call.Name)
		rows.ToolInput = append(rows.ToolInput, call.Input)
		rows.HasResult = append(rows.HasResult, m.ToolResult != nil)
		rows.ToolOutput = append(rows.ToolOutput, result.Output)
		rows.IsError = append(rows.IsError, result.IsError)
		rows.Interrupted = append(rows.Interrupted, result.Interrupted)
	}
	return rows
}

// Reasons of the events that records make.
const (
	reasonUserMessage       = "UserMessage"
	reasonAgentMessage      = "AgentMessage"
	reasonCheckpointCreated = "CheckpointCreated"
	reasonConversationMoved = "ConversationMoved"
)

// reasonCheckpointRefused is a daemon's: the gitstore will not take the
// checkpoint named by the detail "checkpoint", the detail "message" says why.
const reasonCheckpointRefused = "CheckpointRefused"

// maxRefusal is how long, in bytes, the reason of a refusal may be.
const maxRefusal = 1024

// previewBytes is how much of a message the timeline shows.
const previewBytes = 200

// chatEvent is what the timeline shows of a message: what people and agents
// say, not each tool call.
func chatEvent(m conversation.Message) (history.Event, bool) {
	e := history.Event{Type: history.EventTypeChat, Message: shorten(strings.Join(strings.Fields(firstBytes(m.Text)), " "), previewBytes)}
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

// firstBytes spares splitting a large text of which little is shown.
func firstBytes(s string) string { return strings.ToValidUTF8(s[:min(len(s), 8*previewBytes)], "") }

func checkpointEvent(c sqlc.InsertCheckpointParams) history.Event {
	text := fmt.Sprintf("checkpoint %d (%s): %d files changed, +%d -%d lines", c.Number, c.Trigger, c.FilesChanged, c.LinesAdded, c.LinesRemoved)
	if c.Message != "" {
		text += ": " + shorten(c.Message, previewBytes)
	}
	return history.Event{
		Type: history.EventTypeCheckpoint, Reason: reasonCheckpointCreated, Actor: "clew", Message: text, Checkpoint: c.Number,
	}
}

// noteEvent files a daemon's note under the type it names, or else guesses
// from the reason.
func noteEvent(note history.Note) history.Event {
	e := history.Event{Reason: clean(note.Reason), Actor: "clew", Message: clean(note.Message)}
	e.Checkpoint, _ = strconv.ParseInt(note.Details["checkpoint"], 10, 64)
	switch kind := note.Details["type"]; {
	case slices.Contains([]string{history.EventTypeTask, history.EventTypeChat, history.EventTypeCheckpoint,
		history.EventTypeRewind, history.EventTypeFork, history.EventTypeFile}, kind):
		e.Type = kind
	case strings.Contains(note.Reason, "Rew"):
		e.Type = history.EventTypeRewind
	case strings.Contains(note.Reason, "Checkpoint"):
		e.Type = history.EventTypeCheckpoint
	default:
		e.Type = history.EventTypeTask
	}
	return e
}
