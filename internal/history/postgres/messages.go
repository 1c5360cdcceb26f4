package postgres

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/clew-dev/clew/internal/conversation"
	"github.com/clew-dev/clew/internal/history/postgres/sqlc"
)

// holdAttempts is how often storing is tried while others keep removing the same rows.
const holdAttempts = 10

// writeMessages stores the messages and their entries. pieces are the ids of the pieces
// that they may refer to.
func (b *batch) writeMessages(ctx context.Context, q *sqlc.Queries, pieces map[conversation.Hash]int64) error {
	if len(b.hashes) == 0 {
		return nil
	}
	ids, err := holdMessages(ctx, q, b.task.Namespace, b.messages)
	if err != nil {
		return err
	}
	if err := b.linkPieces(ctx, q, ids, pieces); err != nil {
		return err
	}
	b.entries.BranchID = b.branch.ID
	for _, hash := range b.hashes {
		b.entries.MessageID = append(b.entries.MessageID, ids[hash])
	}
	return q.InsertEntries(ctx, b.entries)
}

// holdMessages stores missing messages, and keeps all of them from being removed until
// the transaction ends. It returns their ids.
func holdMessages(ctx context.Context, q *sqlc.Queries, namespace string, messages map[conversation.Hash]conversation.Message) (map[conversation.Hash]int64, error) {
	ids := map[conversation.Hash]int64{}
	for range holdAttempts {
		rows, err := messageRows(namespace, messages, ids)
		if err != nil {
			return nil, err
		}
		inserted, err := q.InsertMessages(ctx, rows)
		if err != nil {
			return nil, err
		}
		for _, row := range inserted {
			ids[conversation.Hash(row.Hash)] = row.ID
		}
		if len(ids) == len(messages) {
			return ids, nil
		}
		held, err := q.HoldMessages(ctx, without(rows.Hash, ids))
		if err != nil {
			return nil, err
		}
		for _, row := range held {
			ids[conversation.Hash(row.Hash)] = row.ID
		}
		if len(ids) == len(messages) {
			return ids, nil
		}
	}
	return nil, errors.New("messages kept being removed while they were being stored; try again")
}

// without returns the hashes whose ids are unknown.
func without(hashes [][]byte, ids map[conversation.Hash]int64) [][]byte {
	return slices.DeleteFunc(slices.Clone(hashes), func(h []byte) bool { return ids[conversation.Hash(h)] != 0 })
}

// sortedHashes returns the keys of a map, in order, so that concurrent transactions with
// the same messages take their locks in the same order.
func sortedHashes[V any](m map[conversation.Hash]V) []conversation.Hash {
	hashes := make([]conversation.Hash, 0, len(m))
	for hash := range m {
		hashes = append(hashes, hash)
	}
	slices.SortFunc(hashes, func(a, b conversation.Hash) int { return bytes.Compare(a[:], b[:]) })
	return hashes
}

// messageRows returns rows for the messages whose ids are unknown.
func messageRows(namespace string, messages map[conversation.Hash]conversation.Message, known map[conversation.Hash]int64) (sqlc.InsertMessagesParams, error) {
	rows := sqlc.InsertMessagesParams{Namespace: namespace}
	for _, hash := range sortedHashes(messages) {
		if known[hash] != 0 {
			continue
		}
		m := messages[hash]
		call, result := conversation.ToolCall{}, conversation.ToolResult{}
		if m.ToolCall != nil {
			call = *m.ToolCall
		}
		if m.ToolResult != nil {
			result = *m.ToolResult
		}
		cuts, err := encodeCuts(m)
		if err != nil {
			return rows, err
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
		rows.Cuts = append(rows.Cuts, cuts)
	}
	return rows, nil
}

// cuts holds the pieces of a message's texts.
type cuts struct {
	Text   *conversation.Pieces `json:"text,omitempty"`
	Raw    *conversation.Pieces `json:"raw,omitempty"`
	Input  *conversation.Pieces `json:"input,omitempty"`
	Output *conversation.Pieces `json:"output,omitempty"`
}

// encodeCuts returns an empty string for a message without cut texts.
func encodeCuts(m conversation.Message) (string, error) {
	c := cuts{Text: m.TextPieces, Raw: m.RawPieces}
	if m.ToolCall != nil {
		c.Input = m.ToolCall.InputPieces
	}
	if m.ToolResult != nil {
		c.Output = m.ToolResult.OutputPieces
	}
	if c == (cuts{}) {
		return "", nil
	}
	encoded, err := json.Marshal(c)
	return string(encoded), err
}

// messageFields are the columns of a message.
type messageFields struct {
	Role, Body, Raw, ToolName, ToolInput, ToolOutput, Cuts string
	HasCall, HasResult, IsError, Interrupted               bool
	// CallID and ResultCallID are those of the entry.
	CallID, ResultCallID string
}

func (f messageFields) message() (conversation.Message, error) {
	m := conversation.Message{Role: conversation.Role(f.Role), Text: f.Body, Raw: f.Raw}
	var c cuts
	if f.Cuts != "" {
		if err := json.Unmarshal([]byte(f.Cuts), &c); err != nil {
			return m, fmt.Errorf("read the pieces of a message: %w", err)
		}
	}
	m.TextPieces, m.RawPieces = c.Text, c.Raw
	if f.HasCall {
		m.ToolCall = &conversation.ToolCall{ID: f.CallID, Name: f.ToolName, Input: f.ToolInput, InputPieces: c.Input}
	}
	if f.HasResult {
		m.ToolResult = &conversation.ToolResult{
			CallID: f.ResultCallID, Output: f.ToolOutput, IsError: f.IsError, Interrupted: f.Interrupted, OutputPieces: c.Output,
		}
	}
	return m, nil
}
