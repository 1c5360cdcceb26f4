package agent_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"io/fs"
	"strings"
	"testing"
	"testing/fstest"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protopath"
	"google.golang.org/protobuf/reflect/protorange"
	"google.golang.org/protobuf/testing/protocmp"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/agent"
	daemonv1 "github.com/clew-dev/clew/internal/daemonapi/v1"
)

// fuzzParser parses any lines: there is no panic, everything can be stored, and a clone
// that parses the same lines gives the same items.
func fuzzParser(f *testing.F, kind, name string) {
	for _, run := range []string{"-run", "-resume"} {
		lines := stream(f, name+run)
		f.Add(bytes.Join(lines, []byte("\n")), uint(3))
		for _, l := range lines {
			f.Add(l, uint(0))
		}
	}
	f.Fuzz(func(t *testing.T, data []byte, split uint) {
		lines := bytes.Split(data, []byte("\n"))
		from := int(split % uint(len(lines)+1))
		p := adapter(t, kind).NewParser(agent.ParserOptions{Prompt: "p", Run: "1", Model: "gpt-5"})
		for _, l := range lines[:from] {
			check(t, l, p.Line(l), p)
		}
		clone := p.Clone()
		var items []agent.Item
		for _, l := range lines[from:] {
			got := p.Line(l)
			check(t, l, got, p)
			items = append(items, got...)
		}
		items = append(items, p.End()...)
		if p.Pending() {
			t.Error("the parser is pending after the end")
		}
		if d := cmp.Diff(items, read(clone, lines[from:]), protocmp.Transform()); d != "" {
			t.Errorf("items of the clone (-original +clone):\n%s", d)
		}
	})
}

// check checks the items of a line, and the session.
func check(t *testing.T, line []byte, items []agent.Item, p agent.Parser) {
	t.Helper()
	for _, i := range items {
		set := 0
		if m := i.Message; m != nil {
			set++
			if c := m.GetToolCall(); c != nil {
				checkCall(t, line, c.GetName(), c.GetInput())
				if c.GetId() == "" {
					t.Errorf("%q gave the call %v without an id", line, c)
				}
			}
			if r := m.GetToolResult(); r != nil && r.GetCallId() == "" {
				t.Errorf("%q gave the result %v without a call id", line, r)
			}
			checkStorable(t, line, m)
		}
		if u := i.Usage; u != nil {
			set++
			if min(u.GetInputTokens(), u.GetOutputTokens(), u.GetCachedInputTokens()) < 0 {
				t.Errorf("%q gave the negative usage %v", line, u)
			}
			checkStorable(t, line, u)
		}
		if i.Output != nil {
			set++
		}
		if set != 1 {
			t.Errorf("%q gave the item %+v with %d parts, want 1", line, i, set)
		}
	}
	if s := p.Session(); s != nil {
		checkStorable(t, line, s)
	}
}

// checkCall checks that a tool call has a name, and input that is JSON.
func checkCall(t *testing.T, line []byte, name, input string) {
	t.Helper()
	if name == "" {
		t.Errorf("%q gave a call without a name", line)
	}
	if !json.Valid([]byte(input)) {
		t.Errorf("%q gave a call whose input is not JSON: %q", line, input)
	}
}

// checkStorable checks that every text is UTF-8 without NUL.
func checkStorable(t *testing.T, line []byte, m proto.Message) {
	t.Helper()
	err := protorange.Range(m.ProtoReflect(), func(v protopath.Values) error {
		s, _ := v.Index(-1).Value.Interface().(string)
		if !utf8.ValidString(s) || strings.ContainsRune(s, 0) {
			t.Errorf("%q gave a text that cannot be stored: %q", line, s)
		}
		return nil
	})
	if err != nil {
		t.Errorf("%q: %v", line, err)
	}
}

func FuzzClaudeCode(f *testing.F) { fuzzParser(f, "ClaudeCode", "claude") }
func FuzzCodex(f *testing.F)      { fuzzParser(f, "Codex", "codex") }
func FuzzGeminiCLI(f *testing.F)  { fuzzParser(f, "GeminiCLI", "gemini") }
func FuzzOpenCode(f *testing.F)   { fuzzParser(f, "OpenCode", "opencode") }
func FuzzQwenCode(f *testing.F)   { fuzzParser(f, "QwenCode", "qwen") }

// For any line in any parts, the shortened line is JSON and bounded, the pieces can be
// stored and found, and a long text is restored.
func FuzzCutter(f *testing.F) {
	f.Add([]byte(`{"type":"message","text":"X"}`), "a€\\\"", uint16(20_000), uint16(7))
	f.Add([]byte(`{"type":"tool_call","id":"1","name":"X","input":{"a":"X"}}`), "\\ud834\\udd1e\\n", uint16(9000), uint16(1))
	f.Add([]byte(`{"type":"tool_result","id":"X","output":"X`), "\xff\x00", uint16(40_000), uint16(999))
	f.Add([]byte(`plain X`), "x", uint16(65_535), uint16(3))
	f.Fuzz(func(t *testing.T, frame []byte, unit string, times, step uint16) {
		if len(unit) == 0 || len(unit) > 64 {
			return
		}
		if len(frame) > 4096 || bytes.Count(frame, []byte("X")) > 4 {
			return
		}
		line := bytes.ReplaceAll(frame, []byte("X"), []byte(strings.Repeat(unit, int(times))))
		pieces := pieceStore{}
		c := agent.NewCutter(pieces.take(t))
		for rest := line; len(rest) > 0; {
			n := min(len(rest), int(step)+1)
			c.Write(rest[:n])
			rest = rest[n:]
		}
		short, mend := c.Finish()
		if short == nil {
			m := &daemonv1.Message{}
			mend(m)
			pieces.whole(t, m.GetRaw(), m.GetRawPieces())
			return
		}
		beginning := short[:min(len(short), 100)]
		if !json.Valid(short) {
			t.Errorf("the shortened line is not JSON: %q…", beginning)
		}
		if !json.Valid(bytes.TrimSpace(line)) && !bytes.Contains(short, []byte("clew-cut-")) {
			t.Errorf("a line that is not JSON became JSON although nothing was cut out: %q…", beginning)
		}
		item := agent.Exec{}.Parse(short)
		if item.Message == nil {
			return
		}
		want := agent.Exec{}.Parse(line).Message.GetText()
		m := item.Message
		mend(m)
		got := pieces.whole(t, m.GetText(), m.GetTextPieces())
		if want != "" && utf8.Valid(line) {
			if got != want {
				t.Errorf("the text differs: got %d bytes, want %d", len(got), len(want))
			}
		}
	})
}

func FuzzParseHook(f *testing.F) {
	f.Add("ClaudeCode", []byte(`{"tool_name":"Bash","tool_input":{"command":"x"},"tool_use_id":"1"}`))
	f.Add("OpenCode", []byte(`{"tool":"bash","callID":"1","args":{}}`))
	f.Fuzz(func(t *testing.T, kind string, stdin []byte) {
		c, err := agent.ParseHook(v1alpha1.AgentType(kind), stdin)
		if err != nil {
			return
		}
		checkCall(t, stdin, c.Name, c.Input)
		if !utf8.ValidString(c.CallID + c.Name + c.Input) {
			t.Errorf("%q gave %+v, which is not UTF-8", stdin, c)
		}
	})
}

// Any content of the agent's files gives a session or fs.ErrNotExist, and no panic.
func FuzzSession(f *testing.F) {
	f.Add("01-ab", []byte(`{"type":"user","message":{"content":[{"type":"tool_result","tool_use_id":"a"}]}}`))
	f.Add("01-ab", []byte(`{"type":"session_meta","payload":{"id":"01-ab"}}`))
	f.Add("c00d9cd7-9aa2", []byte(`{"sessionId":"c00d9cd7-9aa2"}`+"\n"+`{"type":"gemini","toolCalls":[{"id":"b","result":[{}]}]}`))
	f.Add("ses_1", []byte(`ses_1`))
	f.Fuzz(func(t *testing.T, id string, data []byte) {
		files := fstest.MapFS{}
		for _, name := range []string{claudeFile, codexFile, geminiFile, openCodeFile} {
			files[name] = &fstest.MapFile{Data: data}
		}
		for _, kind := range []string{"ClaudeCode", "Codex", "GeminiCLI", "OpenCode", "QwenCode"} {
			s, err := adapter(t, kind).Session(files, id)
			if err != nil && !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("%s: %v", kind, err)
			}
			for id := range s.Results {
				if !utf8.ValidString(id) || id == "" {
					t.Errorf("%s: the call id %q of a result is empty or not UTF-8", kind, id)
				}
			}
		}
	})
}
