package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// maxBody limits the size of a request.
const maxBody = 64 << 20

// Entry is the log entry of one request.
type Entry struct {
	Session string    `json:"session"`
	Number  int       `json:"number"`
	Time    time.Time `json:"time"`
	Path    string    `json:"path"`
	Status  int       `json:"status"`
	Bytes   int       `json:"bytes"`
	Model   string    `json:"model,omitempty"`
	// The content of the request: the number of messages, of calls and of distinct
	// results, the steps that are done according to it, and the user's texts.
	Messages int      `json:"messages"`
	Calls    int      `json:"calls"`
	Results  int      `json:"results"`
	Steps    []int    `json:"steps,omitempty"`
	Prompts  []string `json:"prompts,omitempty"`
	// Answer is "step N: TOOL", or the text. Aside is true if the request offered no
	// tools, so that it is not part of the conversation.
	Answer string `json:"answer,omitempty"`
	Aside  bool   `json:"aside,omitempty"`
	Usage  usage  `json:"usage"`
}

// usage is the usage that the answer reports. Input includes Cached.
type usage struct {
	Input  int `json:"input"`
	Cached int `json:"cached"`
	Output int `json:"output"`
}

// modelAPI decodes requests and encodes answers of one API.
type modelAPI interface {
	// read decodes a request.
	read(httpRequest *http.Request, body []byte) (request, error)
	// write sends the answer to request number n, streamed if the request wants that.
	write(out *writer, r request, a answer, n int, u usage)
	// refusal returns the body of an error.
	refusal(status int, message string) any
}

// stub is the server.
type stub struct {
	mu       sync.Mutex
	sessions map[string]*session
	log      []Entry
}

// session is the state of one session.
type session struct {
	script   Script
	requests int
	failures int // requests since the script was set, to which its failures apply
}

func newStub() *stub { return &stub{sessions: map[string]*session{}} }

// handler routes the APIs, the scripts and the logs.
func (s *stub) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(http.ResponseWriter, *http.Request) {})
	mux.HandleFunc("GET /log", func(w http.ResponseWriter, _ *http.Request) { s.writeLog(w, "") })
	mux.HandleFunc("GET /s/{session}/log", func(w http.ResponseWriter, r *http.Request) { s.writeLog(w, r.PathValue("session")) })
	mux.HandleFunc("PUT /s/{session}/script", s.putScript)
	for pattern, api := range map[string]modelAPI{
		"POST /s/{session}/v1/messages":           anthropic{},
		"POST /s/{session}/v1/responses":          responses{},
		"POST /s/{session}/v1/chat/completions":   chat{},
		"POST /s/{session}/v1beta/models/{model}": gemini{},
	} {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) { s.ask(w, r, api) })
	}
	mux.HandleFunc("POST /s/{session}/v1/messages/count_tokens", func(w http.ResponseWriter, _ *http.Request) {
		writeJSON(w, http.StatusOK, map[string]int{"input_tokens": 100})
	})
	mux.HandleFunc("GET /s/{session}/v1/models", func(w http.ResponseWriter, _ *http.Request) {
		writeJSON(w, http.StatusOK, map[string]any{"object": "list", "data": []any{}, "models": []any{}})
	})
	mux.HandleFunc("/", s.unknown)
	return mux
}

// session returns the session with that name, and creates it with the default script.
func (s *stub) session(name string) *session {
	if s.sessions[name] == nil {
		s.sessions[name] = &session{script: defaultScript()}
	}
	return s.sessions[name]
}

// putScript sets the script of a session.
func (s *stub) putScript(w http.ResponseWriter, r *http.Request) {
	script := defaultScript()
	decoder := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxBody))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&script); err != nil {
		http.Error(w, "the script is not valid: "+err.Error(), http.StatusBadRequest)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	session := s.session(r.PathValue("session"))
	session.script, session.failures = script, 0
}

// ask answers one request of an agent to its model.
func (s *stub) ask(w http.ResponseWriter, httpRequest *http.Request, api modelAPI) {
	body, err := io.ReadAll(http.MaxBytesReader(w, httpRequest.Body, maxBody))
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	r, err := api.read(httpRequest, body)
	if err != nil {
		s.record(httpRequest, Entry{Status: http.StatusBadRequest, Bytes: len(body), Answer: err.Error()})
		writeJSON(w, http.StatusBadRequest, api.refusal(http.StatusBadRequest, err.Error()))
		return
	}
	r.key = keyOf(httpRequest)
	script := s.script(httpRequest)
	if script.Key != "" && r.key != script.Key {
		s.record(httpRequest, Entry{Status: http.StatusUnauthorized, Bytes: len(body), Model: r.model})
		writeJSON(w, http.StatusUnauthorized, api.refusal(http.StatusUnauthorized, "the API key does not match the key of this session"))
		return
	}
	if f := s.failure(httpRequest); f != nil {
		s.record(httpRequest, Entry{Status: f.Status, Bytes: len(body), Model: r.model})
		if f.RetryAfterSeconds > 0 {
			w.Header().Set("Retry-After", strconv.Itoa(f.RetryAfterSeconds))
		}
		writeJSON(w, f.Status, api.refusal(f.Status, f.Message))
		return
	}
	a := script.decide(r)
	u := usage{Input: 100 + r.messages, Cached: 40, Output: 20}
	n := s.record(httpRequest, Entry{
		Status: http.StatusOK, Bytes: len(body), Model: r.model,
		Messages: r.messages, Calls: len(r.calls), Results: len(r.answered()), Steps: script.steps(r), Prompts: r.prompts,
		Answer: a.summary(), Aside: a.side, Usage: u,
	})
	select {
	case <-time.After(script.delay(a.step)):
	case <-httpRequest.Context().Done():
		return
	}
	api.write(&writer{ResponseWriter: w}, r, a, n, u)
}

// script returns the script of the request's session.
func (s *stub) script(r *http.Request) Script {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.session(r.PathValue("session")).script
}

// failure returns the error to send instead of an answer; nil for none.
func (s *stub) failure(r *http.Request) *Failure {
	s.mu.Lock()
	defer s.mu.Unlock()
	session := s.session(r.PathValue("session"))
	session.failures++
	return session.script.failure(session.failures - 1)
}

// record logs a request, and returns its number in the session.
func (s *stub) record(r *http.Request, e Entry) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	e.Session = r.PathValue("session")
	session := s.session(e.Session)
	session.requests++
	e.Number, e.Time, e.Path = session.requests, time.Now().UTC(), r.URL.Path
	s.log = append(s.log, e)
	return e.Number
}

// writeLog writes the entries of a session, or of all sessions if it is empty.
func (s *stub) writeLog(w http.ResponseWriter, session string) {
	s.mu.Lock()
	entries := slices.Clone(s.log)
	s.mu.Unlock()
	w.Header().Set("Content-Type", "application/jsonl")
	encoder := json.NewEncoder(w)
	encoder.SetEscapeHTML(false)
	for _, e := range entries {
		if session == "" || e.Session == session {
			_ = encoder.Encode(e)
		}
	}
}

// unknown answers and logs requests that belong to no model API: agents send some of
// those, too.
func (s *stub) unknown(w http.ResponseWriter, r *http.Request) {
	if rest, ok := strings.CutPrefix(r.URL.Path, "/s/"); ok {
		name, _, _ := strings.Cut(rest, "/")
		r.SetPathValue("session", name)
	}
	status := http.StatusNotFound
	if r.Method == http.MethodHead {
		status = http.StatusOK
	}
	s.record(r, Entry{Status: status})
	writeJSON(w, status, map[string]any{"error": map[string]string{"message": fmt.Sprintf("there is no %s %s here", r.Method, r.URL.Path)}})
}

// keyOf returns the API key from any of the headers that agents use.
func keyOf(r *http.Request) string {
	for _, header := range []string{"X-Api-Key", "X-Goog-Api-Key"} {
		if key := r.Header.Get(header); key != "" {
			return key
		}
	}
	return strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")
}

// writeJSON sends a JSON response.
func writeJSON(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v)
}

// writer writes server-sent events.
type writer struct {
	http.ResponseWriter
	begun bool // the headers are sent
}

// event sends one event. Some APIs do not name events.
func (w *writer) event(name string, data any) {
	if !w.begun {
		w.begun = true
		w.Header().Set("Content-Type", "text/event-stream")
		w.Header().Set("Cache-Control", "no-cache")
		w.WriteHeader(http.StatusOK)
	}
	text, ok := data.(string)
	if !ok {
		encoded, err := json.Marshal(data)
		if err != nil {
			return
		}
		text = string(encoded)
	}
	if name != "" {
		fmt.Fprintf(w, "event: %s\n", name)
	}
	fmt.Fprintf(w, "data: %s\n\n", text)
	if f, ok := w.ResponseWriter.(http.Flusher); ok {
		f.Flush()
	}
}

// halves splits a text in two, so that it is streamed in several events.
func halves(text string) []string {
	runes := []rune(text)
	if len(runes) < 2 {
		return []string{text}
	}
	return []string{string(runes[:len(runes)/2]), string(runes[len(runes)/2:])}
}

// encode encodes JSON.
func encode(v any) string {
	encoded, err := json.Marshal(v)
	if err != nil {
		return "{}"
	}
	return string(encoded)
}
