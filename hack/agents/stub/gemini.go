package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
)

// gemini is Google's generateContent API, with and without streaming.
type gemini struct{}

func (gemini) read(httpRequest *http.Request, body []byte) (request, error) {
	type part struct {
		Text         string
		FunctionCall *struct {
			ID, Name string
			Args     json.RawMessage
		}
		FunctionResponse *struct {
			ID       string
			Response struct{ Output string }
		}
	}
	var in struct {
		Contents []struct {
			Role  string
			Parts []part
		}
		Tools []struct {
			FunctionDeclarations []struct{ Name string }
		}
	}
	if err := json.Unmarshal(body, &in); err != nil {
		return request{}, fmt.Errorf("not a request of generateContent: %w", err)
	}
	model, method, _ := strings.Cut(httpRequest.PathValue("model"), ":")
	if method != "streamGenerateContent" && method != "generateContent" {
		return request{}, fmt.Errorf("unknown method %s", method)
	}
	r := request{model: model, stream: method == "streamGenerateContent", messages: len(in.Contents)}
	for _, t := range in.Tools {
		for _, f := range t.FunctionDeclarations {
			r.tools = append(r.tools, tool{name: f.Name})
		}
	}
	unnamed := 0
	for _, c := range in.Contents {
		var texts []string
		for _, p := range c.Parts {
			switch {
			case p.FunctionCall != nil:
				r.calls = append(r.calls, call{orNumber(p.FunctionCall.ID, len(r.calls)), string(p.FunctionCall.Args)})
			case p.FunctionResponse != nil:
				r.results = append(r.results, result{orNumber(p.FunctionResponse.ID, unnamed), p.FunctionResponse.Response.Output})
				unnamed++
			case p.Text != "":
				texts = append(texts, p.Text)
			}
		}
		if c.Role == "model" {
			r.assistant++
		} else {
			r.prompt(strings.Join(texts, "\n"))
		}
	}
	return r, nil
}

// orNumber returns an id for calls and responses without one: the nth of both get the same.
func orNumber(id string, n int) string {
	if id != "" {
		return id
	}
	return fmt.Sprintf("unnamed-%d", n)
}

func (gemini) write(w *writer, r request, a answer, n int, u usage) {
	whole := func(parts ...any) map[string]any {
		return map[string]any{
			"candidates":   []any{map[string]any{"index": 0, "content": map[string]any{"role": "model", "parts": parts}}},
			"modelVersion": r.model, "responseId": fmt.Sprintf("response-%d", n),
		}
	}
	finish := func(chunk map[string]any) map[string]any {
		chunk["candidates"].([]any)[0].(map[string]any)["finishReason"] = "STOP"
		chunk["usageMetadata"] = map[string]int{
			"promptTokenCount": u.Input, "cachedContentTokenCount": u.Cached, "candidatesTokenCount": u.Output, "totalTokenCount": u.Input + u.Output,
		}
		return chunk
	}
	if a.isCall() {
		made := finish(whole(map[string]any{"functionCall": map[string]any{"name": a.tool.name, "args": a.input}}))
		if r.stream {
			w.event("", made)
		} else {
			writeJSON(w, http.StatusOK, made)
		}
		return
	}
	if !r.stream {
		writeJSON(w, http.StatusOK, finish(whole(map[string]any{"text": a.text})))
		return
	}
	parts := halves(a.text)
	for _, part := range parts[:len(parts)-1] {
		w.event("", whole(map[string]any{"text": part}))
	}
	w.event("", finish(whole(map[string]any{"text": parts[len(parts)-1]})))
}

func (gemini) refusal(status int, message string) any {
	kind := map[int]string{
		http.StatusUnauthorized: "UNAUTHENTICATED", http.StatusTooManyRequests: "RESOURCE_EXHAUSTED",
		http.StatusInternalServerError: "INTERNAL", http.StatusServiceUnavailable: "UNAVAILABLE",
	}[status]
	return map[string]any{"error": map[string]any{"code": status, "message": message, "status": cmp.Or(kind, "INVALID_ARGUMENT")}}
}
