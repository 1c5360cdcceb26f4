package historyapi

import (
	"context"
	"net/http"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	historyv1alpha1 "github.com/clew-dev/clew/api/history/v1alpha1"
	"github.com/clew-dev/clew/internal/conversation"
	"github.com/clew-dev/clew/internal/history"
)

const (
	// maxTextBytes bounds the total length of a message's texts that are returned in
	// full, and maxPageBytes is the length of the messages' JSON after which a page ends.
	maxTextBytes = 8 << 20
	maxPageBytes = 32 << 20
)

// conversation writes a page of a task's conversation. Parameters: limit, continue, after
// (a position), branch (its name; the active one by default), tail (the last messages, up
// to that number), uid (of a former task of the name), full (long texts in full, up to
// maxTextBytes, instead of their beginnings).
//
// Texts may be long, as the agent chooses: a message's texts are read when it is its
// turn, and released when it is written. A page ends early if the next message would make
// it too long, comes too late or cannot be read; requested as the first one, that message
// returns the error.
func (a *api) conversation(w http.ResponseWriter, c *call) error {
	query, err := conversationQuery(c)
	if err != nil {
		return err
	}
	full, err := flagOf(c.URL.Query(), "full")
	if err != nil {
		return err
	}
	var page history.EntryPage
	err = a.inReadSlot(c, func() error {
		page, err = a.Store.TaskConversation(c.Context(), query)
		return err
	})
	if err != nil {
		return err
	}
	if err := a.hideOutcomes(c, page.Entries); err != nil {
		return err
	}
	list := newListWriter(w, "ConversationList")
	for i, e := range page.Entries {
		if full {
			if i > 0 && list.bytes+cutBytes(e.Message) > maxPageBytes {
				break
			}
			if e.Message, err = a.hydrate(c, page.Task.Namespace, e.Message); err != nil && i > 0 {
				break
			}
			if err != nil {
				return err
			}
		}
		if err := list.entry(entryOf(e)); err != nil {
			return err
		}
		if list.bytes >= maxPageBytes || c.Context().Err() != nil {
			break
		}
	}
	meta, err := conversationMeta(page, list.count)
	if err != nil {
		return err
	}
	return list.close(meta)
}

func conversationQuery(c *call) (query history.ConversationQuery, err error) {
	values, access := c.URL.Query(), c.access
	limit, err := numberOf(values, "limit", maxLimit)
	if err != nil {
		return query, err
	}
	tail, err := numberOf(values, "tail", 0)
	if err != nil {
		return query, err
	}
	after, err := numberOf(values, "after", 0)
	if err != nil {
		return query, err
	}
	query = history.ConversationQuery{
		After:     int64(after),
		Namespace: access.Namespace, Name: access.Name, UID: values.Get("uid"), Branch: values.Get("branch"),
		Limit: min(limit, maxLimit), Last: min(tail, maxLimit), WithEffects: true,
	}
	if token := values.Get("continue"); token != "" {
		from, err := decodeCursor(token, kindConversation)
		if err != nil {
			return query, err
		}
		query.UID, query.Branch, query.After, query.Last = from.UID, from.Branch, from.After, 0
	}
	return query, nil
}

// conversationMeta describes what follows the given number of entries of a page.
func conversationMeta(page history.EntryPage, given int) (meta metav1.ListMeta, err error) {
	remaining := page.Remaining + int64(len(page.Entries)-given)
	if remaining == 0 || given == 0 {
		return meta, nil
	}
	meta.RemainingItemCount = &remaining
	meta.Continue, err = cursor{
		Kind: kindConversation, UID: page.Task.UID, Branch: page.Branch, After: page.Entries[given-1].Position,
	}.encode()
	return meta, err
}

// hydrate returns a message with its long texts in full, as far as the limit allows:
// those that remain cut keep their pieces.
func (a *api) hydrate(c *call, namespace string, m conversation.Message) (conversation.Message, error) {
	if cutBytes(m) == 0 {
		return m, nil
	}
	m = m.Clone()
	return m, a.inReadSlot(c, func() error { return a.readTexts(c.Context(), namespace, &m) })
}

func (a *api) readTexts(ctx context.Context, namespace string, m *conversation.Message) error {
	room := int64(maxTextBytes)
	for _, text := range m.Texts() {
		pieces := *text.Pieces
		if pieces == nil || pieces.Bytes > room {
			continue
		}
		whole, err := a.Store.Text(ctx, namespace, pieces)
		if err != nil {
			return err
		}
		room -= pieces.Bytes
		*text.Text, *text.Pieces = whole, nil
	}
	return nil
}

// cutBytes returns how much of a message's texts hydrate would read.
func cutBytes(m conversation.Message) int64 {
	sum := int64(0)
	for _, text := range m.Texts() {
		if bytes := whole(*text.Pieces); bytes <= maxTextBytes-sum {
			sum += bytes
		}
	}
	return sum
}

// whole returns the full length of a cut text, 0 for one that is not cut.
func whole(p *conversation.Pieces) int64 {
	if p == nil {
		return 0
	}
	return p.Bytes
}

func entryOf(e history.Entry) historyv1alpha1.ConversationEntry {
	entry := historyv1alpha1.ConversationEntry{
		Position: e.Position, Time: metav1.NewMicroTime(e.Time), Branch: e.Branch, Attempt: e.Attempt,
		Role: string(e.Message.Role), Text: e.Message.Text, TextBytes: whole(e.Message.TextPieces),
		Raw: e.Message.Raw, RawBytes: whole(e.Message.RawPieces), Effects: effectsOf(e.Effects),
	}
	if c := e.Message.ToolCall; c != nil {
		entry.ToolCall = &historyv1alpha1.ToolCall{ID: c.ID, Name: c.Name, Input: c.Input, InputBytes: whole(c.InputPieces)}
	}
	if r := e.Message.ToolResult; r != nil {
		entry.ToolResult = &historyv1alpha1.ToolResult{
			CallID: r.CallID, Output: r.Output, OutputBytes: whole(r.OutputPieces), IsError: r.IsError, Interrupted: r.Interrupted,
		}
	}
	return entry
}
