package postgres

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/conversation"
	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/history/postgres/sqlc"
	"github.com/clew-dev/clew/internal/toolcall"
)

// maxEffects bounds what is read of the effects of the calls on one page of a conversation.
const maxEffects = 5000

// callPlaces finds the messages at which tools of a supervisor were called, as a batch is read.
type callPlaces struct {
	// answered is the position of the call whose result is the last message, and output that result, or
	// empty if it is long; 0 if the last message is no result.
	answered int64
	output   string
	found    []placedCall
}

// placedCall is a call of a supervisor's tool, and the position of the message that made it.
type placedCall struct {
	id       string
	position int64
}

// next notes what the next message of the conversation is.
func (p *callPlaces) next(log conversation.Log, m conversation.Message) {
	p.answered, p.output = 0, ""
	if m.ToolResult == nil {
		return
	}
	i := slices.IndexFunc(log.Open, func(c conversation.OpenCall) bool { return c.ID == m.ToolResult.CallID })
	if i < 0 {
		return
	}
	p.answered = log.Open[i].Position
	if m.ToolResult.OutputPieces == nil {
		p.output = m.ToolResult.Output
	}
}

// add notes where a call of a tool was made, when a record says how it ended: at the call whose result,
// right before that, shows the answer; or, if a program has got it, at the newest call without a result,
// which has started the program. An agent that reports no calls has made it at its last message.
func (p *callPlaces) add(log conversation.Log, id string) {
	call := placedCall{id, log.Position}
	switch open := log.Open; {
	case p.answered > 0 && (p.output == "" || strings.Contains(p.output, toolcall.Marker(id))):
		call.position = p.answered
	case len(open) > 0:
		call.position = open[len(open)-1].Position
	}
	if call.position > 0 && !slices.Contains(p.found, call) {
		p.found = append(p.found, call)
	}
}

// writeEffects stores what calls of tools did, at their messages.
func (b *batch) writeEffects(ctx context.Context, q *sqlc.Queries) error {
	if len(b.calls.found) == 0 {
		return nil
	}
	var ids []string
	for _, call := range b.calls.found {
		ids = append(ids, call.id)
	}
	rows, err := q.ToolCallsByID(ctx, sqlc.ToolCallsByIDParams{TaskID: b.id, Ids: ids})
	if err != nil {
		return err
	}
	effects := sqlc.InsertCallEffectsParams{BranchID: b.branch.ID}
	for _, call := range b.calls.found {
		for _, row := range rows {
			if row.ID == call.id {
				addEffects(&effects, call.position, row.Tool, row.Data)
			}
		}
	}
	if len(effects.Position) == 0 {
		return nil
	}
	return q.InsertCallEffects(ctx, effects)
}

// addEffects adds what a call did: one row for each task that it was about. Data of an unknown form says
// nothing.
func addEffects(rows *sqlc.InsertCallEffectsParams, position int64, tool string, data []byte) {
	var done toolcall.Done
	if json.Unmarshal(data, &done) != nil {
		return
	}
	tasks := []toolcall.Made{{Object: done.Object, UID: done.UID}}
	switch v1alpha1.AgentTool(tool) {
	case v1alpha1.ToolTaskFork:
		tasks = done.Made
	case v1alpha1.ToolPhaseSet:
		tasks = []toolcall.Made{{}}
	case v1alpha1.ToolPublish:
		if done.Ref == "" {
			return // it is yet to be published
		}
	}
	for _, task := range tasks {
		rows.Position = append(rows.Position, position)
		rows.Checkpoint = append(rows.Checkpoint, done.Checkpoint)
		rows.Tool = append(rows.Tool, tool)
		rows.TaskUid = append(rows.TaskUid, task.UID)
		rows.TaskName = append(rows.TaskName, task.Object)
		rows.Phase = append(rows.Phase, done.Phase)
	}
}

// addCallEffects adds to the entries of a page what their calls did. active is the branch that the task
// continues on.
func (s *Store) addCallEffects(ctx context.Context, namespace string, branch, active int64, entries []history.Entry) error {
	if len(entries) == 0 {
		return nil
	}
	first, last := entries[0].Position, entries[len(entries)-1].Position
	rows, err := s.read().CallEffects(ctx, sqlc.CallEffectsParams{
		BranchID: branch, ActiveBranch: active, After: first - 1, Upto: last, Namespace: namespace, UpToRows: maxEffects,
	})
	for _, row := range rows {
		if at := int(row.Position - first); at >= 0 && at < len(entries) {
			entries[at].Effects = append(entries[at].Effects, history.CallEffect{
				Tool: row.Tool, Task: row.TaskName, UID: row.TaskUid, Phase: row.Phase, Checkpoint: row.Checkpoint,
				State: row.State, TakenBack: row.TakenBack, Repeated: row.Repeated,
			})
		}
	}
	return err
}

// MadeBy returns the call of a supervisor's tool that made a task; nil if the history knows of none.
func (s *Store) MadeBy(ctx context.Context, task history.Key) (*history.MadeBy, error) {
	row, err := s.read().MadeByCall(ctx, sqlc.MadeByCallParams{TaskUid: task.UID, Namespace: task.Namespace})
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, nil
	}
	if err != nil {
		return nil, wrap(err, "find out which call made the task with UID "+task.UID)
	}
	return &history.MadeBy{
		Task: history.Task{Namespace: task.Namespace, Name: row.Name, UID: row.Uid}, Tool: row.Tool, Phase: row.Phase,
		Branch: branchName(row.Number), Position: row.Position, TakenBack: row.TakenBack,
	}, nil
}
