package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
)

// anthropic is Anthropic's Messages API.
type anthropic struct{}

// block is a content block.
type block struct {
	Type      string          `json:"type"`
	Text      string          `json:"text"`
	ID        string          `json:"id"`
	Input     json.RawMessage `json:"input"`
	ToolUseID string          `json:"tool_use_id"`
	Content   content         `json:"content"`
}

// content is a list of blocks; in JSON, it may also be a text.
type content []block

// UnmarshalJSON implements json.Unmarshaler.
func (c *content) UnmarshalJSON(data []byte) error {
	var text string
	if json.Unmarshal(data, &text) == nil {
		*c = content{{Type: "text", Text: text}}
		return nil
	}
	return json.Unmarshal(data, (*[]block)(c))
}

// text joins the texts of the blocks.
func (c content) text() string {
	var texts []string
	for _, b := range c {
		if b.Text != "" {
			texts = append(texts, b.Text)
		}
	}
	return strings.Join(texts, "\n")
}

func (anthropic) read(_ *http.Request, body []byte) (request, error) {
	var in struct {
		Model    string
		Stream   bool
		Tools    []struct{ Name string }
		Messages []struct {
			Role    string
			Content content
		}
	}
	if err := json.Unmarshal(body, &in); err != nil {
		return request{}, fmt.Errorf("not a request of the Messages API: %w", err)
	}
	r := request{model: in.Model, stream: in.Stream, messages: len(in.Messages)}
	for _, t := range in.Tools {
		r.tools = append(r.tools, tool{name: t.Name})
	}
	for _, m := range in.Messages {
		for _, b := range m.Content {
			switch b.Type {
			case "tool_use":
				r.calls = append(r.calls, call{b.ID, string(b.Input)})
			case "tool_result":
				r.results = append(r.results, result{b.ToolUseID, b.Content.text()})
			}
		}
		switch m.Role {
		case "assistant":
			r.assistant++
		case "user":
			r.prompt(m.Content.text())
		}
	}
	return r, nil
}

func (anthropic) write(w *writer, r request, a answer, n int, u usage) {
	// This API does not include cached tokens in input_tokens.
	used := map[string]any{"input_tokens": u.Input - u.Cached, "cache_read_input_tokens": u.Cached, "cache_creation_input_tokens": 0, "output_tokens": u.Output}
	message := map[string]any{
		"id": fmt.Sprintf("msg_%d", n), "type": "message", "role": "assistant", "model": r.model,
		"content": []any{}, "stop_reason": nil, "stop_sequence": nil, "usage": used,
	}
	said, stop := map[string]any{"type": "text", "text": a.text}, "end_turn"
	if a.isCall() {
		said = map[string]any{"type": "tool_use", "id": fmt.Sprintf("toolu_%d_%d", a.step, n), "name": a.tool.name, "input": a.input}
		stop = "tool_use"
	}
	if !r.stream {
		message["content"], message["stop_reason"] = []any{said}, stop
		writeJSON(w, http.StatusOK, message)
		return
	}
	w.event("message_start", map[string]any{"type": "message_start", "message": message})
	begin, kind, field, whole := map[string]any{"type": "text", "text": ""}, "text_delta", "text", a.text
	if a.isCall() {
		begin = map[string]any{"type": "tool_use", "id": said["id"], "name": a.tool.name, "input": map[string]any{}}
		kind, field, whole = "input_json_delta", "partial_json", encode(a.input)
	}
	w.event("content_block_start", map[string]any{"type": "content_block_start", "index": 0, "content_block": begin})
	for _, part := range halves(whole) {
		w.event("content_block_delta", map[string]any{"type": "content_block_delta", "index": 0, "delta": map[string]any{"type": kind, field: part}})
	}
	w.event("content_block_stop", map[string]any{"type": "content_block_stop", "index": 0})
	w.event("message_delta", map[string]any{
		"type": "message_delta", "delta": map[string]any{"stop_reason": stop, "stop_sequence": nil}, "usage": map[string]any{"output_tokens": u.Output},
	})
	w.event("message_stop", map[string]any{"type": "message_stop"})
}

func (anthropic) refusal(status int, message string) any {
	kind := map[int]string{
		http.StatusUnauthorized: "authentication_error", http.StatusPaymentRequired: "billing_error",
		http.StatusTooManyRequests: "rate_limit_error", http.StatusInternalServerError: "api_error", 529: "overloaded_error",
	}[status]
	return map[string]any{"type": "error", "error": map[string]string{"type": cmp.Or(kind, "invalid_request_error"), "message": message}}
}
