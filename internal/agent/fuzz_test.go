package agent_test

import (
	"bytes"
	"crypto/sha256"
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

// Whatever lines an agent prints: no panic, nothing that cannot be stored, and a
// clone that reads the same lines says the same.
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
			t.Error("something is pending after the end")
		}
		if again := read(clone, lines[from:]); !cmp.Equal(items, again, protocmp.Transform()) {
			t.Error(cmp.Diff(items, again, protocmp.Transform()))
		}
	})
}

func check(t *testing.T, line []byte, items []agent.Item, p agent.Parser) {
	t.Helper()
	for _, i := range items {
		set := 0
		if m := i.Message; m != nil {
			set++
			if c := m.GetToolCall(); c != nil && (c.GetId() == "" || c.GetName() == "" || !json.Valid([]byte(c.GetInput()))) {
				t.Errorf("%q gave the call %v", line, c)
			}
			if r := m.GetToolResult(); r != nil && r.GetCallId() == "" {
				t.Errorf("%q gave the result %v", line, r)
			}
			storable(t, line, m)
		}
		if u := i.Usage; u != nil {
			set++
			if u.GetInputTokens() < 0 || u.GetOutputTokens() < 0 || u.GetCachedInputTokens() < 0 {
				t.Errorf("%q gave the usage %v", line, u)
			}
			storable(t, line, u)
		}
		if i.Output != nil {
			set++
		}
		if set != 1 {
			t.Errorf("%q gave %+v", line, i)
		}
	}
	if s := p.Session(); s != nil {
		storable(t, line, s)
	}
}

// storable tells whether every text is UTF-8 without NUL.
func storable(t *testing.T, line []byte, m proto.Message) {
	t.Helper()
	err := protorange.Range(m.ProtoReflect(), func(v protopath.Values) error {
		if s, ok := v.Index(-1).Value.Interface().(string); ok && (!utf8.ValidString(s) || strings.ContainsRune(s, 0)) {
			t.Errorf("%q gave the text %q", line, s)
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

// Whatever line, in whatever parts: what is left is JSON and bounded, the pieces
// can be stored and found, and a long text comes back whole.
func FuzzCutter(f *testing.F) {
	f.Add([]byte(`{"type":"message","text":"X"}`), "a€\\\"", uint16(20_000), uint16(7))
	f.Add([]byte(`{"type":"tool_call","id":"1","name":"X","input":{"a":"X"}}`), "\\ud834\\udd1e\\n", uint16(9000), uint16(1))
	f.Add([]byte(`{"type":"tool_result","id":"X","output":"X`), "\xff\x00", uint16(40_000), uint16(999))
	f.Add([]byte(`plain X`), "x", uint16(65_535), uint16(3))
	f.Fuzz(func(t *testing.T, frame []byte, unit string, times, step uint16) {
		if len(unit) == 0 || len(unit) > 64 || len(frame) > 4096 || bytes.Count(frame, []byte("X")) > 4 {
			return
		}
		line := bytes.ReplaceAll(frame, []byte("X"), []byte(strings.Repeat(unit, int(times))))
		pieces := shop{}
		c := agent.NewCutter(func(p []byte) {
			if len(p) == 0 || len(p) > agent.MaxPiece || !utf8.Valid(p) || bytes.IndexByte(p, 0) >= 0 {
				t.Errorf("a piece of %d bytes", len(p))
			}
			pieces[sha256.Sum256(p)] = string(p)
		})
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
		if !json.Valid(short) || !json.Valid(bytes.TrimSpace(line)) && !bytes.Contains(short, []byte("clew-cut-")) {
			t.Errorf("the short line is %q…", short[:min(len(short), 100)])
		}
		item := agent.Exec{}.Parse(short)
		if item.Message == nil {
			return
		}
		whole := agent.Exec{}.Parse(line).Message
		m := item.Message
		mend(m)
		text := pieces.whole(t, m.GetText(), m.GetTextPieces())
		if whole.GetText() != "" && text != whole.GetText() && utf8.Valid(line) {
			t.Errorf("a text of %d bytes became one of %d", len(whole.GetText()), len(text))
		}
	})
}

func FuzzParseHook(f *testing.F) {
	f.Add("ClaudeCode", []byte(`{"tool_name":"Bash","tool_input":{"command":"x"},"tool_use_id":"1"}`))
	f.Add("OpenCode", []byte(`{"tool":"bash","callID":"1","args":{}}`))
	f.Fuzz(func(t *testing.T, kind string, stdin []byte) {
		c, err := agent.ParseHook(v1alpha1.AgentType(kind), stdin)
		if err == nil && (c.Name == "" || !json.Valid([]byte(c.Input)) || !utf8.ValidString(c.CallID+c.Name+c.Input)) {
			t.Errorf("%q gave %+v", stdin, c)
		}
	})
}

// Whatever the agent wrote to its files: a session, or none, and no panic.
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
					t.Errorf("%s: a result of %q", kind, id)
				}
			}
		}
	})
}
