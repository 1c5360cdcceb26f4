package gateway

import (
	"cmp"
	"crypto/sha256"
	"fmt"
	"strings"
	"time"
	"unicode"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/clew-dev/clew/internal/clip"
	"github.com/clew-dev/clew/internal/conversation"
	daemonv1 "github.com/clew-dev/clew/internal/daemonapi/v1"
	"github.com/clew-dev/clew/internal/history"
)

// This file converts between the protocol's messages and those of the history, which
// differ on purpose. The protocol is spoken by daemons of older releases and only ever
// grows; a message of the history is hashed, and what was stored under its hash must be
// found again however the protocol has grown. filled_test.go checks that no field is lost
// between them.

// maxSourcePosition bounds the number of messages that may be reported as lost with a
// source.
const maxSourcePosition = 1 << 32

func sourceOf(m *daemonv1.Source) (*history.Source, error) {
	if m == nil {
		return nil, nil
	}
	if uid := m.GetTaskUid(); uid == "" || len(uid) > maxNameBytes || strings.ContainsRune(uid, 0) || m.GetCheckpoint() < 1 {
		return nil, invalid("a source needs the UID of a task (at most %d bytes, without NUL) and the number of one of its checkpoints", maxNameBytes)
	}
	// Lost messages are added up, and the number is known only from the pod.
	position := min(max(m.GetPosition(), 0), maxSourcePosition)
	return &history.Source{TaskUID: m.GetTaskUid(), Checkpoint: m.GetCheckpoint(), IncludeConversation: m.GetIncludeConversation(),
		MayBeLost: m.GetHasBegun() || m.GetMayBeLost(), Position: position}, nil
}

func problemOf(m *daemonv1.Problem) (*history.Problem, error) {
	if m == nil {
		return nil, nil
	}
	if !isReason(m.GetReason()) {
		return nil, invalid("a problem's reason must be at most 64 letters and digits, beginning with a capital letter")
	}
	if len(m.GetMessage()) > maxNameBytes || strings.ContainsRune(m.GetMessage(), 0) {
		return nil, invalid("a problem's message must be at most %d bytes, without NUL", maxNameBytes)
	}
	return &history.Problem{Reason: m.GetReason(), Message: m.GetMessage()}, nil
}

// isReason reports whether a text can be the reason of a condition.
func isReason(s string) bool {
	if s == "" || len(s) > 64 || s[0] < 'A' || s[0] > 'Z' {
		return false
	}
	return !strings.ContainsFunc(s, func(r rune) bool { return r > unicode.MaxASCII || !unicode.IsLetter(r) && !unicode.IsDigit(r) })
}

func recordsOf(messages []*daemonv1.Record) ([]history.Record, error) {
	records := make([]history.Record, 0, len(messages))
	for i, m := range messages {
		if m.GetSequence() < 1 {
			return nil, invalid("record %d of the request has the sequence %d; sequences begin at 1", i+1, m.GetSequence())
		}
		r := recordOf(m)
		if fault := cmp.Or(piecesFault(r), moveFault(r.Move)); fault != "" {
			return nil, invalid("record %d of the request %s", i+1, fault)
		}
		records = append(records, r)
	}
	return records, nil
}

// moveFault describes what is wrong with a move of the conversation.
func moveFault(m *history.MoveOperation) string {
	switch {
	case m == nil:
		return ""
	case m.ID == "" || len(m.ID) > maxNameBytes || len(m.Reason) > maxNameBytes:
		return fmt.Sprintf("has an empty operation_id, or an operation_id or a reason of more than %d bytes", maxNameBytes)
	case m.Checkpoint < 0 && !m.KeepPosition:
		return fmt.Sprintf("moves the conversation to checkpoint %d; give a checkpoint's number, or 0 for the beginning of the task's conversation", m.Checkpoint)
	case m.Position < 0:
		return fmt.Sprintf("moves the conversation to position %d; positions begin at 1, and 0 means the checkpoint's", m.Position)
	}
	return rewoundFault(m.Rewound)
}

// piecesFault describes what is wrong with a record's piece, or with the pieces that its
// message refers to.
func piecesFault(r history.Record) string {
	if len(r.Piece) > conversation.MaxPiece {
		return fmt.Sprintf("contains a piece of %d bytes; cut texts into pieces of at most %d bytes", len(r.Piece), conversation.MaxPiece)
	}
	if r.Message == nil {
		return ""
	}
	for _, t := range r.Message.Texts() {
		if *t.Pieces == nil {
			continue
		}
		if !(*t.Pieces).Plausible() {
			return fmt.Sprintf("refers to %d pieces for a text of %d bytes, which is impossible", len((*t.Pieces).Hashes), (*t.Pieces).Bytes)
		}
		for _, hash := range (*t.Pieces).Hashes {
			if len(hash) != sha256.Size {
				return fmt.Sprintf("refers to a piece by a hash of %d bytes; use its SHA-256", len(hash))
			}
		}
	}
	return ""
}

func recordOf(m *daemonv1.Record) history.Record {
	r := history.Record{Sequence: m.GetSequence(), ID: m.GetId(), Time: timeOf(m.GetTime()), Attempt: m.GetAttempt()}
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
			CachedInputTokens: body.Usage.GetCachedInputTokens(), Model: body.Usage.GetModel(),
		}
	case *daemonv1.Record_Event:
		r.Event = &history.DaemonEvent{Reason: body.Event.GetReason(), Message: body.Event.GetMessage(), Details: body.Event.GetDetails()}
	case *daemonv1.Record_AgentEnd:
		end := body.AgentEnd
		r.AgentEnd = &history.AgentEnd{
			ExitCode: end.GetExitCode(), Cause: bounded(end.GetCause(), maxCauseBytes), Message: bounded(end.GetMessage(), maxNameBytes),
			RetryAfter: time.Duration(min(max(end.GetRetryAfterSeconds(), 0), maxRetryAfterSeconds)) * time.Second,
		}
	case *daemonv1.Record_Piece:
		r.Piece = body.Piece.GetData()
	case *daemonv1.Record_Move:
		r.Move = &history.MoveOperation{
			ID: body.Move.GetOperationId(), Checkpoint: body.Move.GetCheckpoint(), Position: body.Move.GetPosition(),
			Reason: body.Move.GetReason(), KeepPosition: body.Move.GetKeepPosition(), AfterSequence: body.Move.GetAfterSequence(),
			Anew: body.Move.GetAnew(), Rewound: rewoundOf(body.Move.GetRewound()),
		}
	case *daemonv1.Record_Stored:
		r.Stored = true
	case *daemonv1.Record_Gap:
		r.Gap = &history.Gap{Through: body.Gap.GetThrough(), Reason: body.Gap.GetReason()}
	case *daemonv1.Record_ToolRequest:
		q := body.ToolRequest
		r.Request = &history.ToolRequest{
			ID: q.GetId(), Tool: q.GetTool(), Input: q.GetInput(), InputDigest: q.GetInputDigest(), Message: q.GetMessage(),
			StopsAgent: q.GetStopsAgent(), Since: timeOf(q.GetSince()), Deadline: timeOf(q.GetDeadline()), Refused: q.GetRefused(),
		}
	case *daemonv1.Record_ToolRequestEnd:
		r.RequestEnd = body.ToolRequestEnd.GetId()
	case *daemonv1.Record_HoldEnd:
		h := body.HoldEnd
		r.HoldEnd = &history.HoldEnd{Set: h.GetSet(), Checkpoint: h.GetCheckpoint(), Released: h.GetReleased(), InCall: h.GetInCall()}
	}
	return r
}

const (
	maxCauseBytes        = 64
	maxRetryAfterSeconds = 24 * 60 * 60
)

// bounded returns the beginning of a text, without bytes that a database cannot store.
func bounded(s string, n int) string {
	return strings.ToValidUTF8(strings.ReplaceAll(clip.Bytes(s, n), "\x00", ""), "")
}

// timeOf returns the zero time if none was given.
func timeOf(t *timestamppb.Timestamp) time.Time {
	if t == nil || !t.IsValid() {
		return time.Time{}
	}
	return t.AsTime()
}

// roleOf maps a missing or unknown role to output.
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
	message := conversation.Message{
		Role: roleOf(m.GetRole()), Text: m.GetText(), Raw: m.GetRaw(),
		TextPieces: piecesOf(m.GetTextPieces()), RawPieces: piecesOf(m.GetRawPieces()),
	}
	if c := m.GetToolCall(); c != nil {
		message.ToolCall = &conversation.ToolCall{
			ID: c.GetId(), Name: c.GetName(), Input: c.GetInput(), InputPieces: piecesOf(c.GetInputPieces()),
		}
	}
	if r := m.GetToolResult(); r != nil {
		message.ToolResult = &conversation.ToolResult{
			CallID: r.GetCallId(), Output: r.GetOutput(), IsError: r.GetIsError(), Interrupted: r.GetInterrupted(),
			OutputPieces: piecesOf(r.GetOutputPieces()),
		}
	}
	return message
}

func piecesOf(p *daemonv1.Pieces) *conversation.Pieces {
	if p == nil {
		return nil
	}
	return &conversation.Pieces{Hashes: p.GetHashes(), Bytes: p.GetBytes()}
}

func piecesMessage(p *conversation.Pieces) *daemonv1.Pieces {
	if p == nil {
		return nil
	}
	return &daemonv1.Pieces{Hashes: p.Hashes, Bytes: p.Bytes}
}

func entryMessage(e history.Entry) *daemonv1.ConversationEntry {
	m := &daemonv1.Message{
		Role: roleMessage(e.Message.Role), Text: e.Message.Text, Raw: e.Message.Raw,
		TextPieces: piecesMessage(e.Message.TextPieces), RawPieces: piecesMessage(e.Message.RawPieces),
	}
	if c := e.Message.ToolCall; c != nil {
		m.ToolCall = &daemonv1.ToolCall{Id: c.ID, Name: c.Name, Input: c.Input, InputPieces: piecesMessage(c.InputPieces)}
	}
	if r := e.Message.ToolResult; r != nil {
		m.ToolResult = &daemonv1.ToolResult{
			CallId: r.CallID, Output: r.Output, IsError: r.IsError, Interrupted: r.Interrupted,
			OutputPieces: piecesMessage(r.OutputPieces),
		}
	}
	return &daemonv1.ConversationEntry{Position: e.Position, Time: timestamppb.New(e.Time), Message: m}
}

func positionMessage(p history.Position) *daemonv1.Position {
	return &daemonv1.Position{Branch: p.Branch, Position: p.Position, ToolCalls: p.ToolCalls}
}

func beginResponse(s history.TaskState) *daemonv1.BeginResponse {
	response := &daemonv1.BeginResponse{
		Attempt: s.Attempt, LastSequence: s.LastSequence, Position: positionMessage(s.Position),
		CompletedOperations: s.CompletedOperations, OpenToolCalls: s.OpenToolCalls,
		LastRecordId: s.LastRecordID, SequencedMoves: true,
	}
	for _, m := range s.Moves {
		response.Moves = append(response.Moves, &daemonv1.MoveResult{OperationId: m.ID, Position: positionMessage(m.Position), Refused: m.Refused})
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
		Consistency: m.GetConsistency(), FrozenMilliseconds: m.GetFrozenMilliseconds(), AfterSequence: m.GetAfterSequence(),
	}
	if r := m.GetRiskyTool(); r != nil {
		c.RiskyTool = &history.RiskyTool{Name: r.GetName(), CallID: r.GetCallId(), Before: r.GetBefore()}
	}
	if a := m.GetSession(); a != nil {
		c.Session = &history.AgentSession{Agent: a.GetAgent(), ID: a.GetId(), Version: a.GetVersion(), Model: a.GetModel()}
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
		Consistency: c.Consistency, FrozenMilliseconds: c.FrozenMilliseconds,
	}
	if r := c.RiskyTool; r != nil {
		m.RiskyTool = &daemonv1.RiskyTool{Name: r.Name, CallId: r.CallID, Before: r.Before}
	}
	if a := c.Session; a != nil {
		m.Session = &daemonv1.AgentSession{Agent: a.Agent, Id: a.ID, Version: a.Version, Model: a.Model}
	}
	for _, f := range c.Skipped {
		m.Skipped = append(m.Skipped, &daemonv1.SkippedFile{Path: f.Path, Reason: f.Reason, Bytes: f.Bytes})
	}
	for _, f := range c.Changes {
		m.Changes = append(m.Changes, &daemonv1.FileChange{Path: f.Path, Action: f.Action})
	}
	return m
}
