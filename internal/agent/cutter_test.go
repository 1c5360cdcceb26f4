package agent_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"runtime"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/clew-dev/clew/internal/agent"
	daemonv1 "github.com/clew-dev/clew/internal/daemonapi/v1"
)

// pieceStore keeps pieces by their hash, as the history store does.
type pieceStore map[[32]byte]string

// take returns a function that checks and keeps a piece.
func (s pieceStore) take(t testing.TB) func([]byte) {
	return func(piece []byte) {
		if len(piece) == 0 || len(piece) > agent.MaxPiece {
			t.Errorf("a piece has %d bytes; want 1 to %d", len(piece), agent.MaxPiece)
		}
		if !utf8.Valid(piece) || bytes.IndexByte(piece, 0) >= 0 {
			t.Errorf("a piece of %d bytes is not UTF-8 without NUL", len(piece))
		}
		s[sha256.Sum256(piece)] = string(piece)
	}
}

// whole returns the text of a field and its pieces.
func (s pieceStore) whole(t testing.TB, preview string, p *daemonv1.Pieces) string {
	t.Helper()
	if p == nil {
		return preview
	}
	var b strings.Builder
	for _, h := range p.GetHashes() {
		piece, ok := s[[32]byte(h)]
		if !ok {
			t.Fatal("a hash refers to a piece that was never emitted")
		}
		b.WriteString(piece)
	}
	if int64(b.Len()) != p.GetBytes() {
		t.Errorf("the pieces have %d bytes; the field says %d", b.Len(), p.GetBytes())
	}
	if !strings.HasPrefix(b.String(), preview) {
		t.Errorf("the preview of %d bytes is not the beginning of the text", len(preview))
	}
	if least := min(4000, b.Len()); len(preview) < least || len(preview) > 4096 {
		t.Errorf("the preview has %d bytes; want %d to 4096", len(preview), least)
	}
	return b.String()
}

// cut writes a line to a cutter in parts of random sizes, and parses the shortened line.
func cut(t testing.TB, kind, line string, seed uint64) ([]*daemonv1.Message, pieceStore) {
	t.Helper()
	r := rand.New(rand.NewPCG(seed, 1))
	pieces := pieceStore{}
	c := agent.NewCutter(pieces.take(t))
	for rest := []byte(line); len(rest) > 0; {
		n := min(len(rest), 1+r.IntN(50_000))
		if r.IntN(3) == 0 {
			n = min(len(rest), 1+r.IntN(7))
		}
		if written, err := c.Write(rest[:n]); written != n || err != nil {
			t.Fatalf("Write returned %d, %v; want %d, nil", written, err, n)
		}
		rest = rest[n:]
	}
	short, mend := c.Finish()
	if short == nil {
		m := &daemonv1.Message{Role: daemonv1.Role_ROLE_OUTPUT}
		mend(m)
		return []*daemonv1.Message{m}, pieces
	}
	if len(short) > 1<<20+1024 || !json.Valid(short) {
		t.Fatalf("the shortened line has %d bytes, valid JSON: %v", len(short), json.Valid(short))
	}
	var messages []*daemonv1.Message
	for _, item := range adapter(t, kind).NewParser(agent.ParserOptions{}).Line(short) {
		m := item.Message
		if item.Output != nil {
			m = &daemonv1.Message{Role: daemonv1.Role_ROLE_OUTPUT, Raw: *item.Output}
		}
		if m != nil {
			mend(m)
			messages = append(messages, m)
		}
	}
	return messages, pieces
}

func encoded(t testing.TB, v any) string {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

var long = strings.Repeat("aä€𝄞\"\\\n\t\x01/<>", 60_000)

// The long strings of a line are restored exactly, wherever it is split into parts.
func TestCutter(t *testing.T) {
	for seed := range uint64(8) {
		line := fmt.Sprintf(`{"type":"assistant","message":{"id":"m","content":[{"type":"text","text":%s},{"type":"text","text":"short"},{"type":"tool_use","id":"t1","name":"Write","input":{"file_path":"a.txt","content":%s}}]}}`,
			encoded(t, long), encoded(t, long+"2"))
		messages, pieces := cut(t, "ClaudeCode", line, seed)
		if len(messages) != 3 {
			t.Fatalf("got %d messages, want 3", len(messages))
		}
		if got := pieces.whole(t, messages[0].GetText(), messages[0].GetTextPieces()); got != long {
			t.Errorf("the text differs: got %d bytes, want %d", len(got), len(long))
		}
		if messages[1].GetText() != "short" || messages[1].GetTextPieces() != nil {
			t.Errorf("the short text became %v, want it unchanged and without pieces", messages[1])
		}
		var input struct {
			Path    string `json:"file_path"`
			Content string `json:"content"`
		}
		call := messages[2].GetToolCall()
		if err := json.Unmarshal([]byte(pieces.whole(t, call.GetInput(), call.GetInputPieces())), &input); err != nil {
			t.Fatal("the restored input is not JSON:", err)
		}
		if input.Content != long+"2" {
			t.Errorf("the content in the input differs: got %d bytes, want %d", len(input.Content), len(long)+1)
		}
		if input.Path != "a.txt" || call.GetId() != "t1" {
			t.Errorf("got path %q and call id %q, want a.txt and t1", input.Path, call.GetId())
		}
	}
}

func TestCutterOfEachAgent(t *testing.T) {
	tests := []struct{ kind, line string }{
		{"ClaudeCode", `{"type":"user","message":{"content":[{"type":"tool_result","tool_use_id":"1","content":%s}]},"tool_use_result":{"stdout":%[1]s}}`},
		{"ClaudeCode", `{"type":"user","message":{"content":[{"tool_use_id":"1","type":"tool_result","content":[{"type":"text","text":%s}]}]}}`},
		{"Codex", `{"type":"item.completed","item":{"id":"1","type":"command_execution","command":"cat","aggregated_output":%s,"exit_code":0}}`},
		{"GeminiCLI", `{"type":"tool_result","tool_id":"1","status":"success","output":%s}`},
		{"OpenCode", `{"type":"tool_use","sessionID":"s","part":{"type":"tool","tool":"bash","callID":"1","state":{"status":"completed","input":{},"output":%s,"metadata":{"output":%[1]s}}}}`},
		{"Exec", `{"type":"tool_result","id":"1","output":%s}`},
	}
	for _, tt := range tests {
		messages, pieces := cut(t, tt.kind, fmt.Sprintf(tt.line, encoded(t, long)), 3)
		r := messages[len(messages)-1].GetToolResult()
		if got := pieces.whole(t, r.GetOutput(), r.GetOutputPieces()); got != long {
			t.Errorf("%s: the output differs: got %d bytes, want %d", tt.kind, len(got), len(long))
		}
	}
}

// Lines that cannot be shortened are kept byte for byte.
func TestCutterKeepsWhatItCannotCut(t *testing.T) {
	many := `{"a":[` + strings.TrimSuffix(strings.Repeat(`"short",`, 300_000), ",") + `]}`
	for name, line := range map[string]string{
		"not JSON":         strings.Repeat("plain text ä€𝄞 ", 200_000),
		"many short parts": many,
		"cut in a string":  `{"type":"x","foo":"` + strings.Repeat("abc", 500_000),
		"cut after it":     `{"type":"x","foo":"` + strings.Repeat("abc", 500_000) + `"`,
		"text after it":    `{"type":"x","foo":"` + strings.Repeat("abc", 500_000) + `"} and more`,
		"a list":           `["` + strings.Repeat("abc", 500_000) + `"]`,
		"empty":            "",
		"deep":             strings.Repeat(`{"a":`, 20_000) + `"` + strings.Repeat("b", 100_000),
		"many long parts":  `{"a":[` + strings.Repeat(`"`+strings.Repeat("x", 70_000)+`",`, 300) + `"y"]}`,
	} {
		messages, pieces := cut(t, "ClaudeCode", line, 5)
		if got := pieces.whole(t, messages[0].GetRaw(), messages[0].GetRawPieces()); got != line {
			t.Errorf("%s: the line differs: got %d bytes, want %d", name, len(got), len(line))
		}
	}
}

// An unknown event is kept as its original JSON.
func TestCutterKeepsUnknownEvents(t *testing.T) {
	line := fmt.Sprintf(`{"type":"hologram","%s":"key","data":{"beam":%s}}`, strings.Repeat("k", 70_000), encoded(t, long))
	messages, pieces := cut(t, "ClaudeCode", line, 9)
	if got := pieces.whole(t, messages[0].GetRaw(), messages[0].GetRawPieces()); got != line {
		t.Errorf("the line differs: got %d bytes, want %d", len(got), len(line))
	}
}

// Invalid UTF-8 and NUL are escaped as in Text.
func TestCutterCleansText(t *testing.T) {
	bad := strings.Repeat("a\xff\xe2\x82b\\u0000\\ud800x\\udc00\\q", 20_000)
	messages, pieces := cut(t, "Exec", `{"type":"message","text":"`+bad+`"}`, 2)
	got := pieces.whole(t, messages[0].GetText()+messages[0].GetRaw(), messages[0].GetTextPieces())
	if want := strings.Repeat(`a\xff\xe2\x82b\x00`+"\ufffdx\ufffd"+`\q`, 20_000); got != want {
		t.Errorf("the text begins with %q, want %q", got[:60], want[:60])
	}
}

// A line that contains the placeholder of another line's string is not expanded.
func TestCutterMarkerCannotBeForged(t *testing.T) {
	c := agent.NewCutter(func([]byte) {})
	c.Write([]byte(`{"text":"` + strings.Repeat("a", 100_000) + `"}`))
	short, _ := c.Finish()
	var first struct{ Text string }
	if err := json.Unmarshal(short, &first); err != nil {
		t.Fatal(err)
	}
	line := `{"type":"message","text":"` + first.Text + `","more":"` + strings.Repeat("b", 100_000) + `"}`
	messages, _ := cut(t, "Exec", line, 1)
	if m := messages[0]; m.GetText() != first.Text || m.GetTextPieces() != nil {
		t.Errorf("the text became %q with %d bytes of pieces, want %q without pieces", m.GetText(), m.GetTextPieces().GetBytes(), first.Text)
	}
}

// A line of 64 MiB needs only a few MiB of memory.
func TestCutterIsBounded(t *testing.T) {
	for name, head := range map[string]string{
		"a string": `{"type":"message","text":"`, "escapes": `{"type":"tool_call","input":"\n`, "not JSON": "plain ", "strings": `{"a":["`,
	} {
		part := []byte(strings.Repeat("0123456789abcde\\", 4096))
		if name == "strings" {
			part = []byte(strings.Repeat(strings.Repeat("x", 80_000)+`","`, 8))
		}
		var emitted int64
		var most uint64
		c := agent.NewCutter(func(piece []byte) { emitted += int64(len(piece)) })
		c.Write([]byte(head))
		runtime.GC()
		var before runtime.MemStats
		runtime.ReadMemStats(&before)
		for n := 0; n < 64<<20; n += len(part) {
			c.Write(part)
			if n%(8<<20) < len(part) {
				var now runtime.MemStats
				runtime.GC()
				runtime.ReadMemStats(&now)
				most = max(most, now.HeapAlloc)
			}
		}
		c.Finish()
		if most > before.HeapAlloc+6<<20 {
			t.Errorf("%s: the heap grew by %d MiB, want at most 6", name, (most-before.HeapAlloc)>>20)
		}
		if emitted < 30<<20 {
			t.Errorf("%s: %d bytes were emitted, want at least 30 MiB", name, emitted)
		}
	}
}
