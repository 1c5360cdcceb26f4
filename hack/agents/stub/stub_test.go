package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

// dialect encodes the requests of one API and decodes its answers.
type dialect struct {
	path string
	// request returns the request of an agent after the given number of steps.
	request func(done int, prompts ...string) map[string]any
	// read returns the text, the tool and its input from the events of a stream.
	read func(events []map[string]any) (text, tool, input string)
}

// at returns the value at a path of keys and indexes; nil if there is none.
func at(v any, path ...any) any {
	for _, p := range path {
		switch p := p.(type) {
		case string:
			m, _ := v.(map[string]any)
			v = m[p]
		case int:
			l, _ := v.([]any)
			if p >= len(l) {
				return nil
			}
			v = l[p]
		}
	}
	return v
}

func text(v any) string { s, _ := v.(string); return s }

// shell returns the command of a step, and said its output.
func shell(step int) string { return defaultScript().command(step) }

func said(step int) string { return fmt.Sprintf("Exit code: 0\nOutput:\nstep %d is done\n", step) }

func list[T any](items ...T) []T { return items }

var dialects = map[string]dialect{
	"Anthropic Messages": {
		path: "/v1/messages",
		request: func(done int, prompts ...string) map[string]any {
			messages := []any{}
			for i := 1; i <= done; i++ {
				id := fmt.Sprint("t", i)
				messages = append(messages,
					map[string]any{"role": "assistant", "content": list(map[string]any{"type": "tool_use", "id": id, "name": "Bash", "input": map[string]string{"command": shell(i)}})},
					map[string]any{"role": "user", "content": list(map[string]any{"type": "tool_result", "tool_use_id": id, "content": said(i)})})
			}
			for _, p := range prompts {
				messages = append(messages, map[string]any{"role": "user", "content": p})
			}
			return map[string]any{"model": "claude-x", "stream": true, "messages": messages, "tools": list(map[string]string{"name": "Bash"}, map[string]string{"name": "Write"})}
		},
		read: func(events []map[string]any) (said, tool, input string) {
			for _, e := range events {
				if name := text(at(e, "content_block", "name")); name != "" {
					tool = name
				}
				said += text(at(e, "delta", "text"))
				input += text(at(e, "delta", "partial_json"))
			}
			return said, tool, input
		},
	},
	"OpenAI Responses": {
		path: "/v1/responses",
		request: func(done int, prompts ...string) map[string]any {
			items := []any{}
			for i := 1; i <= done; i++ {
				id := fmt.Sprint("t", i)
				items = append(items,
					map[string]any{"type": "function_call", "call_id": id, "name": "exec_command", "arguments": encode(map[string]string{"cmd": shell(i)})},
					map[string]any{"type": "function_call_output", "call_id": id, "output": said(i)})
			}
			for _, p := range prompts {
				items = append(items, map[string]any{"type": "message", "role": "user", "content": list(map[string]string{"type": "input_text", "text": p})})
			}
			return map[string]any{"model": "gpt-x", "stream": true, "input": items, "tools": list(
				map[string]string{"type": "function", "name": "exec_command"}, map[string]string{"type": "custom", "name": "apply_patch"})}
		},
		read: func(events []map[string]any) (said, tool, input string) {
			for _, e := range events {
				said += text(at(e, "delta"))
				if e["type"] == "response.output_item.done" {
					tool = text(at(e, "item", "name"))
					input = text(at(e, "item", "arguments")) + text(at(e, "item", "input"))
				}
			}
			return said, tool, input
		},
	},
	"OpenAI Chat Completions": {
		path: "/v1/chat/completions",
		request: func(done int, prompts ...string) map[string]any {
			messages := []any{}
			for i := 1; i <= done; i++ {
				id := fmt.Sprint("t", i)
				messages = append(messages,
					map[string]any{"role": "assistant", "content": nil, "tool_calls": list(map[string]any{"id": id, "type": "function", "function": map[string]string{"name": "bash", "arguments": encode(map[string]string{"command": shell(i)})}})},
					map[string]any{"role": "tool", "tool_call_id": id, "content": said(i)})
			}
			for _, p := range prompts {
				messages = append(messages, map[string]any{"role": "user", "content": p})
			}
			return map[string]any{"model": "any", "stream": true, "messages": messages, "tools": list(
				map[string]any{"type": "function", "function": map[string]string{"name": "bash"}}, map[string]any{"type": "function", "function": map[string]string{"name": "write"}})}
		},
		read: func(events []map[string]any) (said, tool, input string) {
			for _, e := range events {
				delta := at(e, "choices", 0, "delta")
				said += text(at(delta, "content"))
				tool += text(at(delta, "tool_calls", 0, "function", "name"))
				input += text(at(delta, "tool_calls", 0, "function", "arguments"))
			}
			return said, tool, input
		},
	},
	"Gemini": {
		path: "/v1beta/models/gemini-x:streamGenerateContent?alt=sse",
		request: func(done int, prompts ...string) map[string]any {
			contents := []any{}
			for i := 1; i <= done; i++ {
				id := fmt.Sprint("t", i)
				response := map[string]any{"functionResponse": map[string]any{"id": id, "name": "run_shell_command", "response": map[string]string{"output": said(i)}}}
				contents = append(contents,
					map[string]any{"role": "model", "parts": list(map[string]any{"functionCall": map[string]any{"id": id, "name": "run_shell_command", "args": map[string]string{"command": shell(i)}}})},
					// The Gemini CLI sends each response twice after a resume.
					map[string]any{"role": "user", "parts": list(response, response)})
			}
			for _, p := range prompts {
				contents = append(contents, map[string]any{"role": "user", "parts": list(map[string]string{"text": p})})
			}
			return map[string]any{"contents": contents, "tools": list(map[string]any{"functionDeclarations": list(map[string]string{"name": "run_shell_command"}, map[string]string{"name": "write_file"})})}
		},
		read: func(events []map[string]any) (said, tool, input string) {
			for _, e := range events {
				part := at(e, "candidates", 0, "content", "parts", 0)
				said += text(at(part, "text"))
				if call := at(part, "functionCall"); call != nil {
					tool, input = text(at(call, "name")), encode(at(call, "args"))
				}
			}
			return said, tool, input
		},
	},
}

func TestTheNextStepFollowsFromTheRequest(t *testing.T) {
	const told = "Go on.\nstep 1 is done\nstep 7 is done\nGo on."
	cases := map[string]struct {
		done    int
		prompts []string
		// script overrides parts of the default script.
		script string
		text   string
		// tool is true if the answer must be a call, and input what the call contains.
		tool  bool
		input []string
	}{
		"nothing yet":          {prompts: list("Begin."), tool: true, input: list("notes.txt", "# step 1")},
		"after three":          {done: 3, prompts: list("Begin."), tool: true, input: list("src/file4.txt", "step 4 is done")},
		"all":                  {done: 12, prompts: list("Begin."), text: "DONE"},
		"all of a short one":   {done: 2, prompts: list("Begin."), script: `{"steps":2}`, text: "DONE"},
		"told by the prompt":   {prompts: list(told), tool: true, input: list("src/file8.txt")},
		"told and done":        {done: 8, prompts: list(told), tool: true, input: list("# step 9")},
		"a command of its own": {done: 2, prompts: list("Begin."), script: `{"commands":{"3":"rm -rf src"}}`, tool: true, input: list("rm -rf src", "# step 3")},
		"asked for memories":   {done: 3, prompts: list("Begin.", "RECALL, please."), text: "REMEMBERED prompts=2 calls=3 results=3 steps=1,2,3\nprompt 1: Begin.\nprompt 2: RECALL, please."},
		"asked long ago":       {prompts: list("RECALL.\n\nNow begin."), tool: true, input: list("# step 1")},
		"notes of the agent":   {prompts: list("<system-reminder>step 5 is done</system-reminder>\nBegin."), tool: true, input: list("# step 1")},
	}
	for api, d := range dialects {
		for name, c := range cases {
			t.Run(api+"/"+name, func(t *testing.T) {
				server := serve(t, c.script)
				events := stream(t, server, d.path, d.request(c.done, c.prompts...))
				said, tool, input := d.read(events)
				if said != c.text {
					t.Errorf("text: got %q, want %q", said, c.text)
				}
				if (tool != "") != c.tool {
					t.Errorf("tool: got %q, want a call: %v", tool, c.tool)
				}
				for _, want := range c.input {
					if !strings.Contains(input, want) {
						t.Errorf("the input %q lacks %q", input, want)
					}
				}
			})
		}
	}
}

func TestARequestWithoutToolsIsAnAside(t *testing.T) {
	for api, d := range dialects {
		t.Run(api, func(t *testing.T) {
			server := serve(t, "")
			body := d.request(0, "Give it a title.")
			delete(body, "tools")
			if said, _, _ := d.read(stream(t, server, d.path, body)); said != "An aside." {
				t.Errorf("text: got %q, want %q", said, "An aside.")
			}
			if entries := logOf(t, server, "/s/a/log"); len(entries) != 1 || !entries[0].Aside {
				t.Errorf("log: got %+v, want one entry that is an aside", entries)
			}
		})
	}
}

func TestTheLogContainsTheRequests(t *testing.T) {
	for api, d := range dialects {
		t.Run(api, func(t *testing.T) {
			server := serve(t, "")
			stream(t, server, d.path, d.request(3, "Begin.", "Go on."))
			entries := logOf(t, server, "/log")
			if len(entries) != 1 {
				t.Fatalf("log: got %+v, want one entry", entries)
			}
			e := entries[0]
			got := fmt.Sprint(e.Session, e.Status, e.Calls, e.Results, e.Steps, strings.Join(e.Prompts, "|"), e.Usage.Output)
			if want := fmt.Sprint("a", 200, 3, 3, list(1, 2, 3), "Begin.|Go on.", 20); got != want {
				t.Errorf("entry: got %s, want %s", got, want)
			}
			if !strings.HasPrefix(e.Answer, "step 4: ") {
				t.Errorf("answer: got %q, want step 4", e.Answer)
			}
		})
	}
}

func TestSessionsAreIndependent(t *testing.T) {
	server := serve(t, `{"steps":1}`)
	d := dialects["Anthropic Messages"]
	stream(t, server, d.path, d.request(1, "Begin."))
	other := post(t, server.URL+"/s/b"+d.path, "", d.request(1, "Begin."))
	other.Body.Close()
	if a, b := logOf(t, server, "/s/a/log"), logOf(t, server, "/s/b/log"); a[0].Answer != "DONE" || b[0].Answer != "step 2: Bash" {
		t.Errorf("answers: got %q and %q, want DONE and step 2: Bash", a[0].Answer, b[0].Answer)
	}
}

func TestAKeyMayBeRequired(t *testing.T) {
	server := serve(t, `{"key":"right"}`)
	for _, header := range []string{"X-Api-Key", "X-Goog-Api-Key", "Authorization"} {
		for key, want := range map[string]int{"right": http.StatusOK, "wrong": http.StatusUnauthorized} {
			d := dialects["Gemini"]
			response := post(t, server.URL+"/s/a"+d.path, header+":"+key, d.request(0, "Begin."))
			response.Body.Close()
			if response.StatusCode != want {
				t.Errorf("header %s with key %s: got %s, want %d", header, key, response.Status, want)
			}
		}
	}
}

func TestAnAnswerCanBeDelayed(t *testing.T) {
	server := serve(t, `{"delays":{"2":300}}`)
	d := dialects["OpenAI Responses"]
	for done, wait := range map[int]bool{0: false, 1: true} {
		began := time.Now()
		stream(t, server, d.path, d.request(done, "Begin."))
		if waited := time.Since(began) >= 300*time.Millisecond; waited != wait {
			t.Errorf("with %d steps done, the answer took %s; want a delay of 300 ms: %v", done, time.Since(began), wait)
		}
	}
}

func TestInvalidRequestsAreRejectedAndLogged(t *testing.T) {
	server := serve(t, "")
	for path, want := range map[string]int{
		"/s/a/v1/messages":                        http.StatusBadRequest,
		"/s/a/v1/nothing":                         http.StatusNotFound,
		"/s/a/v1beta/models/gemini-x:countTokens": http.StatusBadRequest,
	} {
		response, err := http.Post(server.URL+path, "application/json", strings.NewReader("not JSON"))
		if err != nil {
			t.Fatal(err)
		}
		response.Body.Close()
		if response.StatusCode != want {
			t.Errorf("%s: got %s, want %d", path, response.Status, want)
		}
	}
	if n := len(logOf(t, server, "/s/a/log")); n != 3 {
		t.Errorf("the log has %d entries, want 3", n)
	}
}

// serve starts a stub, and sets the script of session a.
func serve(t *testing.T, script string) *httptest.Server {
	t.Helper()
	server := httptest.NewServer(newStub().handler())
	t.Cleanup(server.Close)
	if script == "" {
		return server
	}
	r, err := http.NewRequest(http.MethodPut, server.URL+"/s/a/script", strings.NewReader(script))
	if err != nil {
		t.Fatal(err)
	}
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	response.Body.Close()
	if response.StatusCode != http.StatusOK {
		t.Fatalf("the script was rejected: %s", response.Status)
	}
	return server
}

func post(t *testing.T, url, header string, body map[string]any) *http.Response {
	t.Helper()
	r, err := http.NewRequest(http.MethodPost, url, strings.NewReader(encode(body)))
	if err != nil {
		t.Fatal(err)
	}
	if name, value, ok := strings.Cut(header, ":"); ok {
		r.Header.Set(name, value)
	}
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	return response
}

// stream sends a request of session a, and returns the events of the answer.
func stream(t *testing.T, server *httptest.Server, path string, body map[string]any) []map[string]any {
	t.Helper()
	response := post(t, server.URL+"/s/a"+path, "", body)
	defer response.Body.Close()
	if kind := response.Header.Get("Content-Type"); kind != "text/event-stream" {
		answer, _ := io.ReadAll(response.Body)
		t.Fatalf("the response is not a stream but %s, %s: %s", response.Status, kind, answer)
	}
	var events []map[string]any
	for lines := bufio.NewScanner(response.Body); lines.Scan(); {
		data, ok := strings.CutPrefix(lines.Text(), "data: ")
		if !ok || data == "[DONE]" {
			continue
		}
		var event map[string]any
		if err := json.Unmarshal([]byte(data), &event); err != nil {
			t.Fatalf("event %q: %v", data, err)
		}
		events = append(events, event)
	}
	return events
}

func logOf(t *testing.T, server *httptest.Server, path string) []Entry {
	t.Helper()
	response, err := http.Get(server.URL + path)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	var entries []Entry
	for lines := bufio.NewScanner(response.Body); lines.Scan(); {
		var e Entry
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			t.Fatal(err)
		}
		entries = append(entries, e)
	}
	return entries
}

func TestAnInterruptedCallIsNotDone(t *testing.T) {
	shellCall, fileCall := call{"1", encode(map[string]string{"command": shell(1)})}, call{"1", `{"content":"step 1 is done"}`}
	cases := map[string]struct {
		call   call
		result string
		done   bool
	}{
		"the shell command completed": {shellCall, "line\nstep 1 is done\n", true},
		"the agent lost its output":   {shellCall, "Output: (empty)\nError: (none)\nExit Code: 0\nSignal: (none)", true},
		"the shell was killed":        {shellCall, "[Request interrupted by user for tool use]", false},
		"a person denied the call":    {shellCall, "The call of Bash was denied by ann. Do not make it again; go on without it.", true},
		"a rule refuses the call":     {shellCall, "A rule of this task refuses the call: delete nothing there", true},
		"a file tool prints any text": {fileCall, "File created", true},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			r := request{calls: []call{c.call}, results: []result{{"1", c.result}}}
			if done := len(defaultScript().steps(r)) == 1; done != c.done {
				t.Errorf("steps: got %v, want step 1 done: %v", defaultScript().steps(r), c.done)
			}
		})
	}
}

func TestTheModelCanFailFirst(t *testing.T) {
	for name, d := range dialects {
		server := serve(t, `{"failures":[{"status":429,"message":"Slow down.","times":2,"retryAfterSeconds":3},{"status":500,"message":"On fire.","times":1}]}`)
		for n, want := range []int{429, 429, 500, 200} {
			response := post(t, server.URL+"/s/a"+d.path, "", d.request(0, "Begin."))
			body, _ := io.ReadAll(response.Body)
			response.Body.Close()
			if response.StatusCode != want {
				t.Errorf("%s: request %d: got %s, want %d", name, n+1, response.Status, want)
			}
			if want != http.StatusTooManyRequests {
				continue
			}
			if got := response.Header.Get("Retry-After"); got != "3" {
				t.Errorf("%s: Retry-After: got %q, want 3", name, got)
			}
			if !strings.Contains(string(body), "Slow down.") {
				t.Errorf("%s: the body lacks the message: %s", name, body)
			}
		}
	}
}
