package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
)

// responses is OpenAI's Responses API.
type responses struct{}

// responsesTool is a tool that the agent offers, or a namespace of tools.
type responsesTool struct {
	Type, Name string
	Tools      []struct{ Type, Name string }
}

// offer adds tools that the agent offers.
func (r *request) offer(tools []responsesTool) {
	for _, t := range tools {
		r.tools = append(r.tools, tool{name: t.Name, freeform: t.Type == "custom", search: t.Type == "tool_search"})
		for _, inner := range t.Tools {
			r.tools = append(r.tools, tool{name: inner.Name, freeform: inner.Type == "custom", namespace: t.Name})
		}
	}
}

// unquoted returns the arguments of a call, which are JSON in a string, or JSON.
func unquoted(arguments json.RawMessage) string {
	var text string
	if json.Unmarshal(arguments, &text) == nil {
		return text
	}
	return string(arguments)
}

func (responses) read(_ *http.Request, body []byte) (request, error) {
	var in struct {
		Model  string
		Stream bool
		Tools  []responsesTool
		Input  []struct {
			Type, Role       string
			Arguments, Input json.RawMessage
			Content, Output  content
			CallID           string `json:"call_id"`
			Tools            []responsesTool
		}
	}
	if err := json.Unmarshal(body, &in); err != nil {
		return request{}, fmt.Errorf("not a request of the Responses API: %w", err)
	}
	r := request{model: in.Model, stream: in.Stream, messages: len(in.Input)}
	r.offer(in.Tools)
	for _, item := range in.Input {
		switch {
		case item.Type == "tool_search_call":
		case item.Type == "tool_search_output":
			r.offer(item.Tools)
		case strings.HasSuffix(item.Type, "_call"):
			r.calls = append(r.calls, call{item.CallID, unquoted(item.Arguments) + string(item.Input)})
		case strings.HasSuffix(item.Type, "_call_output"):
			r.results = append(r.results, result{item.CallID, item.Output.text()})
		case item.Role == "assistant":
			r.assistant++
		case item.Role == "user":
			r.prompt(item.Content.text())
		}
	}
	return r, nil
}

func (responses) write(w *writer, r request, a answer, n int, u usage) {
	item := map[string]any{
		"type": "message", "id": fmt.Sprintf("msg_%d", n), "role": "assistant", "status": "completed",
		"content": []any{map[string]any{"type": "output_text", "text": a.text, "annotations": []any{}}},
	}
	if a.isCall() {
		item = map[string]any{"id": fmt.Sprintf("fc_%d", n), "call_id": fmt.Sprintf("call_%d_%d", a.step, n), "name": a.tool.name, "status": "completed"}
		switch {
		case a.tool.search:
			item["type"], item["execution"], item["arguments"] = "tool_search_call", "client", a.input
			delete(item, "name")
		case a.tool.freeform:
			item["type"], item["input"] = "custom_tool_call", a.input
		default:
			item["type"], item["arguments"] = "function_call", encode(a.input)
			if a.tool.namespace != "" {
				item["namespace"] = a.tool.namespace
			}
		}
	}
	response := func(status string) map[string]any {
		return map[string]any{"id": fmt.Sprintf("resp_%d", n), "object": "response", "created_at": 0, "status": status, "model": r.model, "output": []any{}}
	}
	done := response("completed")
	done["output"] = []any{item}
	done["usage"] = map[string]any{
		"input_tokens": u.Input, "input_tokens_details": map[string]int{"cached_tokens": u.Cached},
		"output_tokens": u.Output, "output_tokens_details": map[string]int{"reasoning_tokens": 0}, "total_tokens": u.Input + u.Output,
	}
	if !r.stream {
		writeJSON(w, http.StatusOK, done)
		return
	}
	number := 0
	event := func(name string, data map[string]any) {
		data["type"], data["sequence_number"] = name, number
		number++
		w.event(name, data)
	}
	event("response.created", map[string]any{"response": response("in_progress")})
	if a.isCall() {
		event("response.output_item.added", map[string]any{"output_index": 0, "item": item})
	} else {
		event("response.output_item.added", map[string]any{"output_index": 0, "item": map[string]any{
			"type": "message", "id": item["id"], "role": "assistant", "status": "in_progress", "content": []any{},
		}})
		for _, part := range halves(a.text) {
			event("response.output_text.delta", map[string]any{"item_id": item["id"], "output_index": 0, "content_index": 0, "delta": part})
		}
	}
	event("response.output_item.done", map[string]any{"output_index": 0, "item": item})
	event("response.completed", map[string]any{"response": done})
}

func (responses) refusal(status int, message string) any { return openAIError(status, message) }

// chat is OpenAI's Chat Completions API.
type chat struct{}

func (chat) read(_ *http.Request, body []byte) (request, error) {
	var in struct {
		Model  string
		Stream bool
		Tools  []struct {
			Function struct{ Name string }
		}
		Messages []struct {
			Role       string
			Content    content
			ToolCallID string `json:"tool_call_id"`
			ToolCalls  []struct {
				ID       string
				Function struct{ Arguments string }
			} `json:"tool_calls"`
		}
	}
	if err := json.Unmarshal(body, &in); err != nil {
		return request{}, fmt.Errorf("not a request of the Chat Completions API: %w", err)
	}
	r := request{model: in.Model, stream: in.Stream, messages: len(in.Messages)}
	for _, t := range in.Tools {
		r.tools = append(r.tools, tool{name: t.Function.Name})
	}
	for _, m := range in.Messages {
		switch m.Role {
		case "tool":
			r.results = append(r.results, result{m.ToolCallID, m.Content.text()})
		case "assistant":
			r.assistant++
		case "user":
			r.prompt(m.Content.text())
		}
		for _, c := range m.ToolCalls {
			r.calls = append(r.calls, call{c.ID, c.Function.Arguments})
		}
	}
	return r, nil
}

func (chat) write(w *writer, r request, a answer, n int, u usage) {
	used := map[string]any{
		"prompt_tokens": u.Input, "completion_tokens": u.Output, "total_tokens": u.Input + u.Output,
		"prompt_tokens_details": map[string]int{"cached_tokens": u.Cached},
	}
	made := func(input string) []any {
		return []any{map[string]any{
			"index": 0, "id": fmt.Sprintf("call_%d_%d", a.step, n), "type": "function",
			"function": map[string]any{"name": a.tool.name, "arguments": input},
		}}
	}
	stop := "stop"
	if a.isCall() {
		stop = "tool_calls"
	}
	envelope := func(object string, choice map[string]any) map[string]any {
		choice["index"] = 0
		return map[string]any{"id": fmt.Sprintf("chatcmpl-%d", n), "object": object, "created": 0, "model": r.model, "choices": []any{choice}}
	}
	if !r.stream {
		message := map[string]any{"role": "assistant", "content": a.text}
		if a.isCall() {
			message["content"], message["tool_calls"] = nil, made(encode(a.input))
		}
		whole := envelope("chat.completion", map[string]any{"message": message, "finish_reason": stop})
		whole["usage"] = used
		writeJSON(w, http.StatusOK, whole)
		return
	}
	chunk := func(delta map[string]any, finish any) map[string]any {
		return envelope("chat.completion.chunk", map[string]any{"delta": delta, "finish_reason": finish})
	}
	w.event("", chunk(map[string]any{"role": "assistant", "content": ""}, nil))
	if a.isCall() {
		parts := halves(encode(a.input))
		w.event("", chunk(map[string]any{"tool_calls": made(parts[0])}, nil))
		for _, part := range parts[1:] {
			w.event("", chunk(map[string]any{"tool_calls": []any{map[string]any{"index": 0, "function": map[string]any{"arguments": part}}}}, nil))
		}
	} else {
		for _, part := range halves(a.text) {
			w.event("", chunk(map[string]any{"content": part}, nil))
		}
	}
	end := chunk(map[string]any{}, stop)
	end["usage"] = used
	w.event("", end)
	w.event("", "[DONE]")
}

func (chat) refusal(status int, message string) any { return openAIError(status, message) }

// openAIError returns the body of an error of OpenAI's APIs.
func openAIError(status int, message string) any {
	kind, code := "invalid_request_error", ""
	switch status {
	case http.StatusUnauthorized:
		code = "invalid_api_key"
	case http.StatusTooManyRequests:
		kind, code = "requests", "rate_limit_exceeded"
		if strings.Contains(message, "quota") {
			kind, code = "insufficient_quota", "insufficient_quota"
		}
	case http.StatusInternalServerError, http.StatusServiceUnavailable:
		kind, code = "server_error", "server_error"
	}
	return map[string]any{"error": map[string]any{"message": message, "type": kind, "code": code}}
}
