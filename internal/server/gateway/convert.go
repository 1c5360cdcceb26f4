package gateway

import (
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/clew-dev/clew/internal/conversation"
	daemonv1 "github.com/clew-dev/clew/internal/daemonapi/v1"
	"github.com/clew-dev/clew/internal/history"
)

func sourceOf(m *daemonv1.Source) (*history.Source, error) {
	if m == nil {
		return nil, nil
	}
	if m.GetTaskUid() == "" || m.GetCheckpoint() < 1 {
		return nil, invalid("a source needs the UID of a task and the number of one of its checkpoints")
	}
	return &history.Source{TaskUID: m.GetTaskUid(), Checkpoint: m.GetCheckpoint(), IncludeConversation: m.GetIncludeConversation()}, nil
}

func recordsOf(messages []*daemonv1.Record) ([]history.Record, error) {
	if len(messages) > maxRecords {
		return nil, invalid("%d records are too many at once; send at most %d", len(messages), maxRecords)
	}
	records := make([]history.Record, 0, len(messages))
	for i, m := range messages {
		if m.GetSequence() < 1 {
			return nil, invalid("record %d of the request has the sequence %d; sequences begin at 1", i+1, m.GetSequence())
		}
		records = append(records, recordOf(m))
	}
	return records, nil
}

func recordOf(m *daemonv1.Record) history.Record {
	r := history.Record{Sequence: m.GetSequence(), Time: timeOf(m.GetTime()), Attempt: m.GetAttempt()}
	switch body := m.GetBody().(type) {
	case *daemonv1.Record_Message:
		message := messageOf(body.Message)
		r.Message = &message
	case *daemonv1.Record_Checkpoint:
		checkpoint := checkpointOf(body.Checkpoint)
		r.Checkpoint = &checkpoint
	case *daemonv1.Record_Usage:
		r.Usage = &history.Usage{
			InputTokens: body.Usage.GetInputTokens(), OutputTokens: body.Usage.GetOutputTokens(), CostMicroUSD: body.Usage.GetCostMicroUsd(),
		}
	case *daemonv1.Record_Event:
		r.Event = &history.Note{Reason: body.Event.GetReason(), Message: body.Event.GetMessage(), Details: body.Event.GetDetails()}
	}
	return r
}

// timeOf is the zero time where none was given.
func timeOf(t *timestamppb.Timestamp) time.Time {
	if t == nil || !t.IsValid() {
		return time.Time{}
	}
	return t.AsTime()
}

// roleOf files what has no role, or one that is not known yet, under output.
func roleOf(role daemonv1.Role) conversation.Role {
	switch role {
	case daemonv1.Role_ROLE_USER:
		return conversation.RoleUser
	case daemonv1.Role_ROLE_ASSISTANT:
		return conversation.RoleAssistant
	case daemonv1.Role_ROLE_SYSTEM:
		return conversation.RoleSystem
	case daemonv1.Role_ROLE_TOOL:
		return conversation.RoleTool
	default:
		return conversation.RoleOutput
	}
}

func roleMessage(role conversation.Role) daemonv1.Role {
	switch role {
	case conversation.RoleUser:
		return daemonv1.Role_ROLE_USER
	case conversation.RoleAssistant:
		return daemonv1.Role_ROLE_ASSISTANT
	case conversation.RoleSystem:
		return daemonv1.Role_ROLE_SYSTEM
	case conversation.RoleTool:
		return daemonv1.Role_ROLE_TOOL
	default:
		return daemonv1.Role_ROLE_OUTPUT
	}
}

func messageOf(m *daemonv1.Message) conversation.Message {
	message := conversation.Message{Role: roleOf(m.GetRole()), Text: m.GetText(), Raw: m.GetRaw()}
	if c := m.GetToolCall(); c != nil {
		message.ToolCall = &conversation.ToolCall{ID: c.GetId(), Name: c.GetName(), Input: c.GetInput()}
	}
	if r := m.GetToolResult(); r != nil {
		message.ToolResult = &conversation.ToolResult{
			CallID: r.GetCallId(), Output: r.GetOutput(), IsError: r.GetIsError(), Interrupted: r.GetInterrupted(),
		}
	}
	return message
}

func entryMessage(e history.Entry) *daemonv1.ConversationEntry {
	m := &daemonv1.Message{Role: roleMessage(e.Message.Role), Text: e.Message.Text, Raw: e.Message.Raw}
	if c := e.Message.ToolCall; c != nil {
		m.ToolCall = &daemonv1.ToolCall{Id: c.ID, Name: c.Name, Input: c.Input}
	}
	if r := e.Message.ToolResult; r != nil {
		m.ToolResult = &daemonv1.ToolResult{CallId: r.CallID, Output: r.Output, IsError: r.IsError, Interrupted: r.Interrupted}
	}
	return &daemonv1.ConversationEntry{Position: e.Position, Time: timestamppb.New(e.Time), Message: m}
}

// chunksOf puts entries into messages of about chunkBytes; a larger entry gets
// one of its own.
func chunksOf(entries []history.Entry) []*daemonv1.ConversationResponse {
	var chunks []*daemonv1.ConversationResponse
	room := 0
	for _, e := range entries {
		m := entryMessage(e)
		size := proto.Size(m)
		if len(chunks) == 0 || size > room {
			chunks = append(chunks, &daemonv1.ConversationResponse{})
			room = chunkBytes
		}
		last := chunks[len(chunks)-1]
		last.Entries = append(last.Entries, m)
		room -= size
	}
	return chunks
}

func positionMessage(p history.Position) *daemonv1.Position {
	return &daemonv1.Position{Branch: p.Branch, Position: p.Position, ToolCalls: p.ToolCalls}
}

func beginResponse(s history.TaskState) *daemonv1.BeginResponse {
	response := &daemonv1.BeginResponse{
		Attempt: s.Attempt, LastSequence: s.LastSequence, Position: positionMessage(s.Position),
		CompletedOperations: s.CompletedOperations, OpenToolCalls: s.OpenToolCalls,
	}
	if s.Latest != nil {
		response.LatestCheckpoint = checkpointMessage(*s.Latest)
	}
	return response
}

func checkpointOf(m *daemonv1.CheckpointRecord) history.Checkpoint {
	c := history.Checkpoint{
		Number: m.GetNumber(), Trigger: m.GetTrigger(), Time: timeOf(m.GetTime()), Message: m.GetMessage(),
		Commit: m.GetCommit(), Tree: m.GetTree(), Parent: m.GetParent(), Base: m.GetBase(), StateCommit: m.GetStateCommit(),
		FilesChanged: m.GetFilesChanged(), LinesAdded: m.GetLinesAdded(), LinesRemoved: m.GetLinesRemoved(),
		GitHead: m.GetGitHead(), GitBranch: m.GetGitBranch(), DirtyFiles: m.GetDirtyFiles(), DirtyFileCount: m.GetDirtyFileCount(),
		Files: m.GetFiles(), Bytes: m.GetBytes(), SkippedCount: m.GetSkippedCount(), Durable: m.GetDurable(),
		RequestedByName: m.GetRequestedByName(), RequestedByUID: m.GetRequestedByUid(),
	}
	for _, f := range m.GetSkipped() {
		c.Skipped = append(c.Skipped, history.SkippedFile{Path: f.GetPath(), Reason: f.GetReason(), Bytes: f.GetBytes()})
	}
	for _, f := range m.GetChanges() {
		c.Changes = append(c.Changes, history.FileChange{Path: f.GetPath(), Action: f.GetAction()})
	}
	return c
}

func checkpointMessage(c history.Checkpoint) *daemonv1.CheckpointRecord {
	m := &daemonv1.CheckpointRecord{
		Number: c.Number, Attempt: c.Attempt, Trigger: c.Trigger, Time: timestamppb.New(c.Time), Message: c.Message,
		Commit: c.Commit, Tree: c.Tree, Parent: c.Parent, Base: c.Base, StateCommit: c.StateCommit,
		FilesChanged: c.FilesChanged, LinesAdded: c.LinesAdded, LinesRemoved: c.LinesRemoved,
		GitHead: c.GitHead, GitBranch: c.GitBranch, DirtyFiles: c.DirtyFiles, DirtyFileCount: c.DirtyFileCount,
		Files: c.Files, Bytes: c.Bytes, SkippedCount: c.SkippedCount, Durable: c.Durable,
		RequestedByName: c.RequestedByName, RequestedByUid: c.RequestedByUID, Position: positionMessage(c.Position),
	}
	for _, f := range c.Skipped {
		m.Skipped = append(m.Skipped, &daemonv1.SkippedFile{Path: f.Path, Reason: f.Reason, Bytes: f.Bytes})
	}
	for _, f := range c.Changes {
		m.Changes = append(m.Changes, &daemonv1.FileChange{Path: f.Path, Action: f.Action})
	}
	return m
}
