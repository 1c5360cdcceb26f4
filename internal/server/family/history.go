package family

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/clew-dev/clew/internal/clip"
	"github.com/clew-dev/clew/internal/conversation"
	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/quote"
	"github.com/clew-dev/clew/internal/toolcall"
)

const (
	// defaultMessages and mostMessages are how many messages are returned.
	defaultMessages, mostMessages = 10, 50
	// maxMessages bounds their texts, in bytes: each gets its part of it.
	maxMessages = 40 << 10
	// maxQuery bounds the words of a search, in bytes, and maxTool the name of a tool that was called.
	maxQuery, maxTool = 1024, 100
)

// message is a message of a conversation for programs.
type message struct {
	Position int64     `json:"position"`
	Time     time.Time `json:"time"`
	Role     string    `json:"role"`
	Tool     string    `json:"tool,omitempty"`
	Text     string    `json:"text"`
}

// history returns the newest messages of a task's conversation as it stands, or those with some words.
func (f *Family) history(ctx context.Context, supervisor history.Task, in toolcall.HistoryInput) (reply, error) {
	of, _, err := f.of(supervisor)
	if err != nil {
		return reply{}, err
	}
	t, err := of.begun(in.Task)
	if err != nil {
		return reply{}, err
	}
	name, limit := of.nameOf(t), within(in.Limit, defaultMessages, mostMessages)
	var r reply
	if strings.TrimSpace(in.Query) == "" {
		r, err = f.newest(ctx, history.ConversationQuery{Namespace: t.Namespace, UID: string(t.UID), Last: limit, Limit: limit}, name)
	} else {
		r, err = f.search(ctx, history.SearchQuery{Namespace: t.Namespace, UID: string(t.UID), Standing: true, Text: in.Query, Limit: limit}, name)
	}
	if errors.Is(err, history.ErrNotFound) {
		err = refuse("The task %s has no conversation yet. It is %s: %s", name, stateOf(t), sentence(t))
	}
	return r, err
}

// newest returns the newest messages.
func (f *Family) newest(ctx context.Context, query history.ConversationQuery, name string) (reply, error) {
	page, err := f.store.TaskConversation(ctx, query)
	if err != nil {
		return reply{}, err
	}
	if len(page.Entries) == 0 {
		return reply{text: fmt.Sprintf("Nothing has been said in the task %s yet.", name), data: map[string]any{"messages": []message{}, "more": false}}, nil
	}
	each := maxMessages / len(page.Entries)
	messages := make([]message, 0, len(page.Entries))
	for _, e := range page.Entries {
		m := message{Position: e.Position, Time: e.Time, Role: string(e.Message.Role)}
		m.Tool, m.Text = said(e.Message)
		m.Text = clip.Marked(m.Text, each)
		messages = append(messages, m)
	}
	text := fmt.Sprintf("The newest messages of %s, of %d in all. %s\n\n%s", name, messages[len(messages)-1].Position, quote.Notice, texts(messages))
	more := messages[0].Position > 1
	if more {
		text += "\n\nThere are older ones: raise limit, or name words of them in query."
	}
	return reply{text: text, data: map[string]any{"messages": messages, "more": more}}, nil
}

// said returns what a message says, and the tool that it calls, if any.
func said(m conversation.Message) (tool, text string) {
	switch {
	case m.ToolCall != nil:
		return m.ToolCall.Name, strings.TrimSpace(m.Text + "\n" + cutAs(m.ToolCall.Input, m.ToolCall.InputPieces))
	case m.ToolResult != nil && m.ToolResult.Interrupted:
		return "", "[The tool was interrupted.]"
	case m.ToolResult != nil && m.ToolResult.IsError:
		return "", "[The tool failed.]\n" + cutAs(m.ToolResult.Output, m.ToolResult.OutputPieces)
	case m.ToolResult != nil:
		return "", cutAs(m.ToolResult.Output, m.ToolResult.OutputPieces)
	case m.Text == "":
		return "", cutAs(m.Raw, m.RawPieces)
	}
	return "", cutAs(m.Text, m.TextPieces)
}

// cutAs marks a text that is only the beginning of what was said.
func cutAs(text string, rest *conversation.Pieces) string {
	if rest == nil {
		return text
	}
	return text + "…"
}

// texts formats messages for a model, which share what an answer may be long.
func texts(messages []message) string {
	parts := make([]string, 0, len(messages))
	for _, m := range messages {
		who := m.Role
		if m.Tool != "" {
			who += ", call of " + clip.Marked(quote.Line(m.Tool), maxTool)
		}
		parts = append(parts, fmt.Sprintf("message %d, %s, %s:\n%s", m.Position, m.Time.Format(time.RFC3339), who,
			clip.Marked(quote.Lines(m.Text), maxMessages/len(messages))))
	}
	return strings.Join(parts, "\n\n")
}

// search returns the messages that have some words.
func (f *Family) search(ctx context.Context, query history.SearchQuery, name string) (reply, error) {
	if len(query.Text) > maxQuery {
		return reply{}, refuse("Name in query the words to search for, in at most %d bytes.", maxQuery)
	}
	page, err := f.store.Search(ctx, query)
	if err != nil {
		return reply{}, err
	}
	marks := strings.NewReplacer(history.SnippetStart, "**", history.SnippetStop, "**")
	messages := make([]message, 0, len(page.Hits))
	for _, hit := range page.Hits {
		messages = append(messages, message{Position: hit.Position, Time: hit.Time, Role: hit.Role, Tool: hit.Tool, Text: marks.Replace(hit.Snippet)})
	}
	text := fmt.Sprintf("Messages of %s. %s\n\n%s", name, quote.Notice, texts(messages))
	switch {
	case len(messages) == 0:
		text = fmt.Sprintf("No message of %s's conversation has these words. Messages of the last seconds may not be found yet; try fewer or other words, or leave query out for the newest messages.", name)
	case page.More:
		text += "\n\nThere are more: name more words, or raise limit."
	}
	return reply{text: text, data: map[string]any{"messages": messages, "more": page.More}}, nil
}
