package postgres

import (
	"cmp"
	"encoding/hex"
	"encoding/json"
	"slices"
	"time"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/clip"
	"github.com/clew-dev/clew/internal/conversation"
	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/history/postgres/sqlc"
)

// batch collects what a run of records adds to the tables.
type batch struct {
	task   history.Task
	id     int32
	branch sqlc.Branch
	// log and digest are the state at the head as records are added.
	log    conversation.Log
	digest conversation.Digest
	// snapshotEvery is the interval of automatic snapshots in messages, none if 0;
	// snapshots is their number so far.
	snapshotEvery int64
	snapshots     int64

	messages map[conversation.Hash]conversation.Message
	// hashes are the hashes of the entries' messages, in order.
	hashes  []conversation.Hash
	entries sqlc.InsertEntriesParams

	// pieces are the pieces to store, by hash; awaited are those that came before their
	// message, missing those that a message refers to and that are not stored.
	pieces  map[conversation.Hash][]byte
	awaited map[conversation.Hash]bool
	missing []string

	checkpoints []sqlc.InsertCheckpointParams
	// placed maps the numbers of checkpoints that are sent again to the record after
	// which each was taken.
	placed map[int32]int64
	// refusals are applied after the checkpoints in whatever order they came: a durable
	// checkpoint is not refused.
	refusals []sqlc.SetCheckpointRefusedParams
	losses   []sqlc.SetCheckpointLostParams
	// lost counts the records lost in gaps.
	lost   int64
	events sqlc.InsertEventsParams
	// tellsOfCalls is true if some of the events may be in the timeline already, as the manager tells them.
	tellsOfCalls bool
	// delivered are the ids of calls of tools whose answers have reached the agent, and calls where they
	// were made.
	delivered []string
	calls     callPlaces

	// preface is a system message to add before the next record; empty for none.
	preface string

	// requests are the records about requests, in order.
	requests []history.Record
	// holds say how holds of the agent ended, in order.
	holds []history.HoldEnd

	// end is how the agent last ended, activeAt when it was last active, and workedAt when it last did what
	// only an agent does.
	end                *history.AgentEnd
	activeAt, workedAt time.Time
	// agentAttempt is the newest attempt whose agent was heard of, first at agentSince; storedAttempt
	// the newest one that has everything stored, 0 for none of the batch.
	agentAttempt, storedAttempt int64
	agentSince                  time.Time

	// Shown in lists of tasks.
	preview string
	tools   map[string]bool
	models  map[string]history.Usage
}

func newBatch(l locked) (*batch, error) {
	log, err := l.head()
	return &batch{
		preface: l.preface,
		task:    l.task, id: l.row.ID, branch: l.branch, log: log, digest: conversation.Digest(l.branch.HeadDigest), snapshotEvery: l.row.SnapshotEvery, snapshots: l.row.SnapshotCount,
		messages: map[conversation.Hash]conversation.Message{},
		pieces:   map[conversation.Hash][]byte{}, awaited: map[conversation.Hash]bool{},
		tools: map[string]bool{}, models: map[string]history.Usage{}, placed: map[int32]int64{},
		agentAttempt: l.row.AgentAttempt,
	}, err
}

func (b *batch) add(r history.Record) error {
	if b.preface != "" {
		b.addMessage(r, conversation.Message{Role: conversation.RoleSystem, Text: b.preface})
		b.preface = ""
	}
	if r.Message != nil || r.Usage != nil || r.Piece != nil {
		b.activeAt = r.Time
	}
	if isWork(r) {
		b.workedAt = r.Time
	}
	if r.Attempt > b.agentAttempt && byAgent(r) {
		b.agentAttempt, b.agentSince = r.Attempt, r.Time
	}
	switch {
	case r.Stored:
		b.storedAttempt = max(b.storedAttempt, r.Attempt)
	case r.AgentEnd != nil:
		end := *r.AgentEnd
		end.Attempt = r.Attempt
		b.end = &end
	case r.Message != nil:
		b.addMessage(r, r.Message.Clean())
	case r.Usage != nil:
		b.addUsage(*r.Usage)
	case r.Checkpoint != nil && r.Checkpoint.Number > 0 && r.Checkpoint.Number == int64(narrow(r.Checkpoint.Number)):
		return b.addCheckpoint(r)
	case r.Event != nil:
		return b.addDaemonEvent(r, *r.Event)
	case r.Gap != nil:
		b.addGap(r)
	case r.Request != nil, r.RequestEnd != "":
		b.requests = append(b.requests, r)
	case r.HoldEnd != nil:
		b.holds = append(b.holds, *r.HoldEnd)
	case r.Piece != nil:
		hash := conversation.Hash(conversation.PieceHash(string(r.Piece)))
		b.pieces[hash], b.awaited[hash] = r.Piece, true
	}
	return nil
}

// byAgent reports whether a record shows that the agent of its attempt has begun: prompts, and results of
// calls that were interrupted, are recorded before.
func byAgent(r history.Record) bool {
	return r.Usage != nil || r.Message != nil && (r.Message.Role == conversation.RoleAssistant || r.Message.Role == conversation.RoleOutput)
}

// isWork reports whether a record is of what the agent, its model or its tools have done. Other output may
// be that of a program in the background, and other messages are Clew's.
func isWork(r history.Record) bool {
	if m := r.Message; m != nil {
		return m.Role == conversation.RoleAssistant || m.ToolResult != nil && !m.ToolResult.Interrupted
	}
	return r.Usage != nil
}

func (b *batch) addMessage(r history.Record, m conversation.Message) {
	if event, ok := chatEvent(m); ok {
		b.addEvent(r, event, nil)
		if event.Reason == reasonUserMessage && b.preview == "" {
			b.preview = event.Message
		}
	}
	if m.ToolCall != nil && m.ToolCall.Name != "" {
		b.tools[clip.Marked(m.ToolCall.Name, maxToolName)] = true
	}
	b.calls.next(b.log, m)
	m = b.cut(m)
	hash := m.Hash(b.task.Namespace)
	b.messages[hash] = m
	b.hashes = append(b.hashes, hash)
	before := b.log.Boundary
	b.log.Append(m)
	b.digest = b.digest.Add(hash)
	snapshot := int64(0)
	if b.snapshotEvery > 0 && b.log.Boundary/b.snapshotEvery > before/b.snapshotEvery {
		b.snapshots++
		snapshot = b.snapshots
	}
	b.addEntry(r, m, snapshot)
}

// maxToolName bounds the length of a tool's name in lists.
const maxToolName = 200

// cut replaces the long texts of a message by their beginnings and adds their pieces to
// the batch.
func (b *batch) cut(m conversation.Message) conversation.Message {
	m = m.Clone()
	for _, t := range m.Texts() {
		beginning, names, pieces := conversation.Cut(*t.Text)
		*t.Text = beginning
		if *t.Pieces != nil {
			continue
		}
		*t.Pieces = names
		for i, piece := range pieces {
			b.pieces[conversation.Hash(names.Hashes[i])] = []byte(piece)
		}
	}
	return m
}

// addEntry adds the message's position. A snapshot is stored with the message that
// reaches a turn boundary, so that it has the same position.
func (b *batch) addEntry(r history.Record, m conversation.Message, snapshot int64) {
	e := &b.entries
	e.Position = append(e.Position, b.log.Position)
	e.Time = append(e.Time, plausibleTime(r.Time))
	e.Attempt = append(e.Attempt, narrow(r.Attempt))
	e.Snapshot = append(e.Snapshot, narrow(snapshot))
	e.Sequence = append(e.Sequence, r.Sequence)
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
	e.Digest = append(e.Digest, slices.Clone(b.digest[:]))
}

func (b *batch) addUsage(u history.Usage) {
	b.log.AddUsage(u.InputTokens, u.OutputTokens, u.CostMicroUSD)
	model := clip.Marked(clean(u.Model), maxToolName)
	if model == "" {
		return
	}
	sum := b.models[model]
	sum.InputTokens += max(u.InputTokens, 0)
	sum.CachedInputTokens += max(u.CachedInputTokens, 0)
	sum.OutputTokens += max(u.OutputTokens, 0)
	sum.CostMicroUSD += u.CostMicroUSD
	b.models[model] = sum
}

func (b *batch) addCheckpoint(r history.Record) error {
	row, err := checkpointRow(b, r)
	b.checkpoints = append(b.checkpoints, row)
	if after := r.Checkpoint.AfterSequence; after > 0 && after < r.Sequence {
		b.placed[row.Number] = after
	}
	return err
}

func (b *batch) addDaemonEvent(r history.Record, note history.DaemonEvent) error {
	details := make(map[string]string, len(note.Details))
	for key, value := range note.Details {
		details[clean(key)] = clean(value)
	}
	encoded, err := json.Marshal(details)
	event := daemonEvent(note)
	event.ID = history.RecordEventID(b.task.UID, r.Sequence)
	if id := details[history.ToolCallAbout]; id != "" && event.Reason == v1alpha1.EventToolCalled {
		event.ID = history.ToolCallEventID(b.task.UID, id) // the manager has an entry of it, which counts, and so may the daemon
		b.tellsOfCalls = true
		b.calls.add(b.log, id)
	}
	if !slices.Contains(b.events.ID, event.ID) {
		b.addEventAs(r, event, encoded)
	}
	if id := details[history.ToolCallDelivered]; id != "" {
		b.delivered = append(b.delivered, id)
	}
	if event.Reason == reasonCheckpointRefused && event.Checkpoint > 0 {
		b.refusals = append(b.refusals, sqlc.SetCheckpointRefusedParams{
			TaskID: b.id, Number: narrow(event.Checkpoint),
			Refused: clip.Marked(cmp.Or(details["message"], event.Message, event.Reason), maxRefusal),
		})
	}
	if event.Reason == reasonCheckpointLost && event.Checkpoint > 0 {
		b.losses = append(b.losses, sqlc.SetCheckpointLostParams{
			TaskID: b.id, Number: narrow(event.Checkpoint),
			Why: clip.Marked(cmp.Or(details["message"], event.Message, event.Reason), maxRefusal),
		})
	}
	return err
}

// addGap records lost records, in the timeline and at their place in the conversation.
func (b *batch) addGap(r history.Record) {
	n := r.Last() - r.Sequence + 1
	b.recordGap(r, n, gapText(n, r.Sequence, r.Last(), r.Gap.Reason))
}

// recordGap records that n records, or messages, are missing here.
func (b *batch) recordGap(r history.Record, n int64, text string) {
	b.lost += n
	b.addEvent(r, history.Event{Type: history.EventTypeTask, Reason: reasonHistoryGap, Actor: "clew", Message: text}, nil)
	b.log.MarkLost()
	b.addMessage(r, conversation.Message{Role: conversation.RoleSystem, Text: text})
}

// addEvent adds an event made by the record to the timeline.
func (b *batch) addEvent(r history.Record, e history.Event, details []byte) {
	e.ID = history.RecordEventID(b.task.UID, r.Sequence)
	b.addEventAs(r, e, details)
}

// addEventAs adds an event that has an id.
func (b *batch) addEventAs(r history.Record, e history.Event, details []byte) {
	e.Task, e.Time, e.Attempt = b.task, plausibleTime(r.Time), r.Attempt
	appendEvent(&b.events, e, details)
}

// addMissing adds a piece that a message refers to and that is not stored.
func (b *batch) addMissing(hash conversation.Hash) {
	b.missing = append(b.missing, hex.EncodeToString(hash[:]))
}
