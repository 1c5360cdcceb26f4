package agent_test

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/clew-dev/clew/internal/agent"
)

// outcomeOf parses lines, and checks that a second parser that takes over before the last
// line reaches the same outcome.
func outcomeOf(t *testing.T, kind string, lines ...string) agent.Outcome {
	t.Helper()
	p := adapter(t, kind).NewParser(agent.ParserOptions{})
	var before agent.Outcome
	for _, line := range lines {
		before = p.Outcome()
		p.Line([]byte(line))
	}
	again := adapter(t, kind).NewParser(agent.ParserOptions{Outcome: before})
	again.Line([]byte(lines[len(lines)-1]))
	got, taken := p.Outcome(), again.Outcome()
	if d := cmp.Diff(got, taken); d != "" {
		t.Errorf("%s: outcome of a parser that takes over (-first +second):\n%s", kind, d)
	}
	return got
}

// The programs' output when their model's API fails, recorded with a scripted model and
// reduced to the fields that are read.
func TestFailuresOfTheModelAreRecognized(t *testing.T) {
	const (
		claudeInit = `{"type":"system","subtype":"init","session_id":"s-1","model":"m"}`
		geminiInit = `{"type":"init","session_id":"67b5af93-0000","model":"gemini-2.5-flash"}`
	)
	claude := func(status, kind, text string) []string {
		return []string{claudeInit,
			`{"type":"assistant","message":{"id":"m-1","model":"<synthetic>","role":"assistant","content":[{"type":"text","text":"` + text + `"}]},"error":"` + kind + `","api_error_status":` + status + `}`,
			`{"type":"result","subtype":"success","is_error":true,"api_error_status":` + status + `,"result":"` + text + `"}`}
	}
	codex := func(text string) []string {
		return []string{`{"type":"thread.started","thread_id":"t-1"}`, `{"type":"turn.started"}`,
			`{"type":"error","message":"Reconnecting... 5/5 (` + text + `)"}`, `{"type":"error","message":"` + text + `"}`, `{"type":"turn.failed","error":{"message":"` + text + `"}}`}
	}
	openCode := func(status, text, body, header string) []string {
		return []string{`{"type":"error","sessionID":"ses_1","error":{"name":"APIError","data":{"message":"` + text + `","statusCode":` + status + `,"responseHeaders":{` + header + `},"responseBody":"` + body + `"}}}`}
	}
	qwen := func(text string) []string {
		return []string{`{"type":"system","subtype":"init","session_id":"s-1","model":"m","qwen_code_version":"0.24.4"}`,
			`{"type":"assistant","message":{"id":"m-1","model":"m","role":"assistant","content":[{"type":"text","text":"[API Error: ` + text + `]"}],"usage":{"input_tokens":0,"output_tokens":0}}}`,
			`{"type":"result","subtype":"error_during_execution","is_error":true,"error":{"message":"[API Error: ` + text + `]"}}`}
	}
	gemini := func(error string) []string {
		return []string{geminiInit, `{"type":"result","status":"error","error":{"type":"unknown","message":"` + error + `"},"stats":{}}`}
	}
	for _, tt := range []struct {
		name, kind string
		lines      []string
		cause      agent.Cause
		message    string
		after      time.Duration
	}{
		{"an expired key", "ClaudeCode", claude("401", "authentication_failed", "Failed to authenticate. API Error: 401 the key is expired"),
			agent.CauseUnauthorized, "Failed to authenticate. API Error: 401 the key is expired", 0},
		{"an expired key, reported only by the text", "ClaudeCode", []string{claudeInit, `{"type":"result","subtype":"success","is_error":true,"result":"API Error: 401 expired"}`},
			agent.CauseUnauthorized, "API Error: 401 expired", 0},
		{"no credit", "ClaudeCode", claude("400", "billing_error", "Credit balance is too low"), agent.CauseOutOfCredit, "Credit balance is too low", 0},
		{"a rate limit", "ClaudeCode", claude("429", "rate_limit", "API Error: Request rejected (429)"), agent.CauseRateLimited, "API Error: Request rejected (429)", 0},
		{"an overloaded model", "ClaudeCode", claude("529", "overloaded", "API Error: 529 Overloaded"), agent.CauseModelUnavailable, "API Error: 529 Overloaded", 0},
		{"too many turns", "ClaudeCode", []string{claudeInit, `{"type":"result","subtype":"error_max_turns","is_error":true,"errors":["Reached maximum number of turns (3)"]}`},
			agent.CauseGaveUp, "Reached maximum number of turns (3)", 0},
		{"an expired key", "Codex", codex("unexpected status 401 Unauthorized: the key is expired, url: http://m/v1/responses"),
			agent.CauseUnauthorized, "unexpected status 401 Unauthorized: the key is expired, url: http://m/v1/responses", 0},
		{"no quota", "Codex", codex("Quota exceeded. Check your plan and billing details."), agent.CauseOutOfCredit, "Quota exceeded. Check your plan and billing details.", 0},
		{"a rate limit", "Codex", codex("exceeded retry limit, last status: 429 Too Many Requests"), agent.CauseRateLimited, "exceeded retry limit, last status: 429 Too Many Requests", 0},
		{"a rate limit with a pause", "Codex", codex("rate limit reached, please try again in 1.5s"), agent.CauseRateLimited, "rate limit reached, please try again in 1.5s", 1500 * time.Millisecond},
		{"an overloaded model", "Codex", codex("We’re currently experiencing high demand, which may cause temporary errors."),
			agent.CauseModelUnavailable, "We’re currently experiencing high demand, which may cause temporary errors.", 0},
		{"an expired key", "GeminiCLI", gemini(`[API Error: {\"error\":{\"code\":401,\"message\":\"the key is expired\",\"status\":\"UNAUTHENTICATED\"}}]`),
			agent.CauseUnauthorized, "the key is expired", 0},
		{"a rate limit with a pause", "GeminiCLI", gemini(`[API Error: {\"error\":{\"code\":429,\"message\":\"You exceeded your current quota. Please retry in 34.5s.\",\"status\":\"RESOURCE_EXHAUSTED\"}}]`),
			agent.CauseRateLimited, "You exceeded your current quota. Please retry in 34.5s.", 34500 * time.Millisecond},
		{"a failing model", "GeminiCLI", gemini(`[API Error: {\"error\":{\"code\":500,\"message\":\"on fire\",\"status\":\"INTERNAL\"}}]`), agent.CauseModelUnavailable, "on fire", 0},
		{"a loop, which ends with success", "GeminiCLI", []string{geminiInit, `{"type":"error","severity":"warning","message":"Loop detected, stopping execution"}`, `{"type":"result","status":"success","stats":{}}`},
			agent.CauseGaveUp, "Loop detected, stopping execution", 0},
		{"an expired key", "OpenCode", openCode("401", "the key is expired", "", ""), agent.CauseUnauthorized, "the key is expired", 0},
		{"a rate limit with a pause", "OpenCode", openCode("429", "slow down", "", `"retry-after":"7"`), agent.CauseRateLimited, "slow down", 7 * time.Second},
		{"no quota", "OpenCode", openCode("429", "no more", `{\"error\":{\"code\":\"insufficient_quota\"}}`, ""), agent.CauseOutOfCredit, "no more", 0},
		{"an expired key", "QwenCode", qwen("401 the key is expired"), agent.CauseUnauthorized, "[API Error: 401 the key is expired]", 0},
		{"no credit", "QwenCode", qwen("429 You exceeded your current quota"), agent.CauseOutOfCredit, "[API Error: 429 You exceeded your current quota]", 0},
		{"a failing model", "QwenCode", qwen("500 on fire"), agent.CauseModelUnavailable, "[API Error: 500 on fire]", 0},
	} {
		t.Run(tt.kind+"/"+tt.name, func(t *testing.T) {
			got := outcomeOf(t, tt.kind, tt.lines...)
			want := agent.Outcome{Done: true, Failure: &agent.Failure{Cause: tt.cause, Message: tt.message, RetryAfter: tt.after}}
			if d := cmp.Diff(want, got); d != "" {
				t.Errorf("outcome (-want +got):\n%s", d)
			}
		})
	}
}

// An error that the agent recovered from is not a failure, and neither is an answer.
func TestContinuingAgentHasNotFailed(t *testing.T) {
	for kind, lines := range map[string][]string{
		"ClaudeCode": {`{"type":"system","subtype":"init","session_id":"s-1","model":"m"}`,
			`{"type":"system","subtype":"api_retry","attempt":4,"max_retries":10,"retry_delay_ms":4549,"error_status":529,"error":"overloaded"}`,
			`{"type":"assistant","message":{"id":"m-1","role":"assistant","content":[{"type":"text","text":"DONE"}]}}`,
			`{"type":"result","subtype":"success","is_error":false,"result":"DONE"}`},
		"Codex": {`{"type":"thread.started","thread_id":"t-1"}`, `{"type":"error","message":"Reconnecting... 1/5 (unexpected status 500)"}`,
			`{"type":"item.completed","item":{"id":"item_1","type":"agent_message","text":"DONE"}}`, `{"type":"turn.completed","usage":{"input_tokens":1,"output_tokens":1}}`},
		"GeminiCLI": {`{"type":"error","severity":"warning","message":"Invalid stream, trying again"}`,
			`{"type":"message","role":"assistant","content":"DONE","delta":true}`, `{"type":"result","status":"success","stats":{}}`},
		"OpenCode": {`{"type":"text","sessionID":"ses_1","part":{"type":"text","text":"DONE"}}`, `{"type":"step_finish","sessionID":"ses_1","part":{"reason":"stop"}}`},
		"QwenCode": {`{"type":"assistant","message":{"id":"m-1","role":"assistant","content":[{"type":"text","text":"[API Error: 500 on fire]"}]}}`,
			`{"type":"assistant","message":{"id":"m-2","role":"assistant","content":[{"type":"text","text":"DONE"}]}}`, `{"type":"result","subtype":"success","is_error":false,"result":"DONE"}`},
	} {
		if got := outcomeOf(t, kind, lines...); !got.Done || got.Failure != nil {
			t.Errorf("%s: outcome %+v with failure %+v, want done without a failure", kind, got, got.Failure)
		}
		if got := outcomeOf(t, kind, lines[:len(lines)-1]...); got.Done {
			t.Errorf("%s is done before its last event", kind)
		}
	}
}

// Progress events give neither messages nor lines that were not understood.
func TestClaudeProgressGivesNoItems(t *testing.T) {
	p := adapter(t, "ClaudeCode").NewParser(agent.ParserOptions{})
	for _, line := range []string{
		`{"type":"system","subtype":"task_started","task_id":"b1","tool_use_id":"t-1","description":"sleep 90","task_type":"local_bash"}`,
		`{"type":"tool_progress","tool_use_id":"t-1","tool_name":"Bash","elapsed_time_seconds":30}`,
		`{"type":"system","subtype":"task_notification","task_id":"b1","tool_use_id":"t-1","status":"completed","summary":"done"}`,
	} {
		if items := p.Line([]byte(line)); len(items) != 0 {
			t.Errorf("%s gave %+v, want no items", line, items)
		}
	}
	items := p.Line([]byte(`{"type":"system","subtype":"api_retry","attempt":4,"max_retries":10,"retry_delay_ms":4549,"error_status":401,"error":"authentication_failed"}`))
	want := "the model's API answers with status 401 authentication_failed; Claude Code tries again (4 of 10) after 4549 ms"
	if d := cmp.Diff([]agent.Item{out(want)}, items); d != "" {
		t.Errorf("items of a retry (-want +got):\n%s", d)
	}
	outcome := agent.Outcome{Failure: &agent.Failure{Cause: agent.CauseUnauthorized, Message: "the model's API answers with status 401 authentication_failed"}}
	if d := cmp.Diff(outcome, p.Outcome()); d != "" {
		t.Errorf("outcome of a retry (-want +got):\n%s", d)
	}
}

// The last lines of a program explain its failure if its events do not.
func TestLastLines(t *testing.T) {
	for _, tt := range []struct {
		lines string
		began bool
		want  agent.Cause
	}{
		{"error: unknown option '--no-such'\n", false, agent.CauseInvalidOptions},
		{"error: unexpected argument '--no-such' found\n\nUsage: codex exec [OPTIONS]\n", false, agent.CauseInvalidOptions},
		{"opencode run [message..]\n\nPositionals:\n  message  message to send\n", false, agent.CauseInvalidOptions},
		{"Unknown arguments: no-such, noSuch\n", false, agent.CauseInvalidOptions},
		{"error: unknown option '--no-such' of a tool\n", true, agent.CauseUnknown},
		{"No conversation found with session ID: 7d2cf19c\n", false, agent.CauseSessionUnknown},
		{"Error resuming session: No previous sessions found for this project.\n", false, agent.CauseSessionUnknown},
		{"TypeError: fetch failed\n", true, agent.CauseModelUnavailable},
		{"panic: runtime error\n", false, agent.CauseUnknown},
	} {
		if got := agent.FailureOf(adapter(t, "ClaudeCode"), agent.LastWords{Lines: tt.lines, Began: tt.began}); got.Cause != tt.want || got.Message == "" {
			t.Errorf("%q: got %+v, want cause %q and a message", tt.lines, got, tt.want)
		}
	}
}

// Lines that may come from a tool, a test or a script say nothing about the model's API,
// whatever they contain.
func TestOutputOfToolsIsNotClassified(t *testing.T) {
	for _, lines := range []string{
		"--- FAIL: TestLogin: got 401 Unauthorized, want 200", "npm ERR! HTTP 429 Too Many Requests", "pq: permission_denied for table users",
		"aws: not logged in", "GitHub: rate limit exceeded, try again in 1h", "connect ECONNREFUSED 127.0.0.1:5432", "HTTP 402 Payment Required",
		"Usage: make [target] ...", "error: unknown option '--no-such'", "session not found",
	} {
		for name, got := range map[string]*agent.Failure{
			"Exec":                        agent.FailureOf(adapter(t, "Exec"), agent.LastWords{Lines: lines}),
			"Claude Code, when it worked": agent.FailureOf(adapter(t, "ClaudeCode"), agent.LastWords{Lines: lines, Began: true, Worked: true}),
		} {
			if *got != (agent.Failure{Message: lines}) {
				t.Errorf("%s, %q: got %+v, want no cause and no pause", name, lines, *got)
			}
		}
	}
}

// Exit codes that are an HTTP status modulo 256 are not signals.
func TestExitCodesAreExplained(t *testing.T) {
	for code, want := range map[int]string{
		1: "exited with code 1", 127: "was not found", 126: "cannot be executed", 137: "signal 9 (SIGKILL, exit code 137), perhaps because it ran out of memory",
		143: "signal 15 (SIGTERM", 139: "SIGSEGV", 401 % 256: "exited with code 145", 500 % 256: "exited with code 244",
	} {
		if got := agent.ExitMeaning(code); !strings.Contains(got, want) {
			t.Errorf("ExitMeaning(%d) = %q, want %q in it", code, got, want)
		}
	}
}

// Results of tools whose process was killed, and others.
func TestKilledToolsAreRecognized(t *testing.T) {
	for output, want := range map[string]bool{
		"Exit code 137": true, "Exit code 143\nterminated": true, "line\n[exit code 137]": true, "Output: (empty)\nSignal: 9": true, "Exit Code: 137": true,
		strings.Repeat("x\n", 9000) + "[exit code 143]": true,
		"Exit code 1": false, "Exit code 13": false, "see error 137": false, "": false,
	} {
		if got := agent.WasKilled(output); got != want {
			t.Errorf("WasKilled(%.40q) = %v, want %v", output, got, want)
		}
	}
}

// Each program prints its version in its own way.
func TestVersions(t *testing.T) {
	for _, tt := range []struct {
		executable, printed, want string
		old                       bool
	}{
		{"claude", "2.1.329 (Claude Code)\n", "2.1.329", false},
		{"claude", "2.1.199 (Claude Code)\n", "2.1.199", true},
		{"codex", "WARNING: proceeding without 1.2.3 aliases\ncodex-cli 0.144.6\n", "0.144.6", false},
		{"codex", "codex-cli 0.99.0\n", "0.99.0", true},
		{"gemini", "0.61.0\n", "0.61.0", false},
		{"gemini", "v0.45.1-nightly.20260901\n", "0.45.1", true},
		{"opencode", "1.14.34\n", "1.14.34", true},
		{"opencode", "1.18.3\n", "1.18.3", false},
		{"qwen", "0.23.0\n", "0.23.0", false},
		{"qwen", "0.22.9\n", "0.22.9", true},
		{"my-agent", "0.0.1\n", "0.0.1", false},
	} {
		v, ok := agent.ParseVersion(tt.printed)
		if !ok || v.String() != tt.want {
			t.Errorf("ParseVersion(%q) = %v, %v; want %s", tt.printed, v, ok, tt.want)
		}
		f := agent.TooOld(tt.executable, v)
		if (f != nil) != tt.old {
			t.Errorf("TooOld(%s, %s) = %+v; want a failure: %v", tt.executable, v, f, tt.old)
		}
		if f == nil {
			continue
		}
		if f.Cause != agent.CauseTooOld {
			t.Errorf("TooOld(%s, %s) has the cause %q, want TooOld", tt.executable, v, f.Cause)
		}
		if !strings.Contains(f.Message, tt.want) {
			t.Errorf("the message %q does not contain the version %s", f.Message, tt.want)
		}
	}
	if v, ok := agent.ParseVersion("usage: opencode [command]"); ok {
		t.Errorf("ParseVersion found %v in text without a version", v)
	}
}

// The table for users names the oldest versions.
func TestTheTableNamesTheOldestVersions(t *testing.T) {
	readme, err := os.ReadFile("../../hack/agents/README.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, kind := range []string{"ClaudeCode", "Codex", "GeminiCLI", "OpenCode", "QwenCode"} {
		v, ok := agent.OldestVersion(adapter(t, kind).Executable())
		if !ok {
			t.Errorf("%s has no oldest version", kind)
			continue
		}
		_, row, _ := strings.Cut(string(readme), "| `"+kind+"` | ")
		row, _, _ = strings.Cut(row, "\n")
		if !strings.Contains(row, "| "+v.String()+" |") {
			t.Errorf("%s: the row %q of the table lacks %s", kind, row, v)
		}
		// The image with the oldest version contains exactly that version.
		file := "../../hack/agents/oldest/" + adapter(t, kind).Executable() + "/package.json"
		packages, err := os.ReadFile(file)
		if err != nil {
			t.Error(err)
		} else if !strings.Contains(string(packages), v.String()) {
			t.Errorf("%s lacks version %s", file, v)
		}
	}
}
