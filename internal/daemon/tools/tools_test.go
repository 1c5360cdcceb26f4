package tools_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/daemon/tools"
)

var update = flag.Bool("update", false, "write the golden files")

// answerer answers every call with answer, and counts them.
type answerer struct {
	calls  atomic.Int64
	called []tools.Call // of a supervisor's tools
	answer func(context.Context) (tools.Answer, error)
}

func (a *answerer) call(ctx context.Context) (tools.Answer, error) {
	a.calls.Add(1)
	return a.answer(ctx)
}
func (a *answerer) Checkpoint(ctx context.Context, _ tools.CheckpointInput) (tools.Answer, error) {
	return a.call(ctx)
}
func (a *answerer) Checkpoints(ctx context.Context, _ tools.CheckpointsInput) (tools.Answer, error) {
	return a.call(ctx)
}
func (a *answerer) SearchHistory(ctx context.Context, _ tools.SearchInput) (tools.Answer, error) {
	return a.call(ctx)
}
func (a *answerer) Diff(ctx context.Context, _ tools.DiffInput) (tools.Answer, error) {
	return a.call(ctx)
}
func (a *answerer) Call(ctx context.Context, c tools.Call) (tools.Answer, error) {
	a.called = append(a.called, c)
	return a.call(ctx)
}

// text returns an answerer whose answers have the text.
func text(s string) *answerer {
	return &answerer{answer: func(context.Context) (tools.Answer, error) { return tools.Answer{Text: s}, nil }}
}

func newServer(a tools.Answerer, given ...v1alpha1.AgentTool) *tools.Server {
	return tools.New(tools.Config{Given: given, Answerer: a, Version: "test", Log: logr.Discard(), Called: func(string) {},
		Mask: func(s string) string { return strings.ReplaceAll(s, "canary", "[masked]") }})
}

// serve serves one end of a pipe and returns the other.
func serve(t *testing.T, s *tools.Server) net.Conn {
	t.Helper()
	ours, theirs := net.Pipe()
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.Serve(t.Context(), ours)
	}()
	t.Cleanup(func() {
		theirs.Close()
		<-done
	})
	return theirs
}

// connect begins a session as an agent does.
func connect(t *testing.T, s *tools.Server) *mcp.ClientSession {
	t.Helper()
	c := serve(t, s)
	session, err := mcp.NewClient(&mcp.Implementation{Name: "agent", Version: "1"}, nil).Connect(t.Context(), &mcp.IOTransport{Reader: c, Writer: c}, nil)
	if err != nil {
		t.Fatal(err)
	}
	return session
}

func callTool(t *testing.T, session *mcp.ClientSession, name string, arguments any) *mcp.CallToolResult {
	t.Helper()
	result, err := session.CallTool(t.Context(), &mcp.CallToolParams{Name: name, Arguments: arguments})
	if err != nil {
		t.Fatal(err)
	}
	return result
}

func textOf(result *mcp.CallToolResult) string { return result.Content[0].(*mcp.TextContent).Text }

// TestWhatModelsAreTold compares the tools, as models see them, with the golden files. Run with
// -update to accept a change.
func TestWhatModelsAreTold(t *testing.T) {
	compareTools(t, "tools.json", v1alpha1.DefaultTools())
	compareTools(t, "supervisor.json", v1alpha1.SupervisorTools())
}

func compareTools(t *testing.T, file string, given []v1alpha1.AgentTool) {
	t.Helper()
	list, err := connect(t, newServer(text(""), given...)).ListTools(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	var got bytes.Buffer
	encoder := json.NewEncoder(&got)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	if err := encoder.Encode(list.Tools); err != nil {
		t.Fatal(err)
	}
	golden := filepath.Join("testdata", file)
	if *update {
		if err := os.WriteFile(golden, got.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got.String()); diff != "" {
		t.Errorf("the tools in %s (-want +got):\n%s", file, diff)
	}
}

func TestOnlyGivenToolsExist(t *testing.T) {
	a := text("done")
	session := connect(t, newServer(a, v1alpha1.ToolDiff, "of_a_later_version"))
	list, err := session.ListTools(t.Context(), nil)
	if err != nil || len(list.Tools) != 1 || list.Tools[0].Name != "diff" {
		t.Errorf("the tools are %v, error %v", list, err)
	}
	if _, err := session.CallTool(t.Context(), &mcp.CallToolParams{Name: "checkpoint", Arguments: map[string]string{"message": "x"}}); err == nil {
		t.Error("a tool that was not given was called")
	}
	if got := textOf(callTool(t, session, "diff", nil)); got != "done" || a.calls.Load() != 1 {
		t.Errorf("diff answered %q after %d calls", got, a.calls.Load())
	}
}

func TestWrongInputIsExplained(t *testing.T) {
	a := text("done")
	session := connect(t, newServer(a, v1alpha1.DefaultTools()...))
	for arguments, want := range map[string]string{`{"message":7}`: "message", `{}`: "message", `{"message":"x","branch":"main"}`: "branch"} {
		result := callTool(t, session, "checkpoint", json.RawMessage(arguments))
		if !result.IsError || !strings.Contains(textOf(result), want) {
			t.Errorf("with %s, checkpoint answered %q (error: %v)", arguments, textOf(result), result.IsError)
		}
	}
	if n := a.calls.Load(); n != 0 {
		t.Errorf("%d calls with wrong input were carried out", n)
	}
}

func TestAnswersAreBoundedAndMasked(t *testing.T) {
	long := &answerer{answer: func(context.Context) (tools.Answer, error) {
		return tools.Answer{Text: "canary " + strings.Repeat("x", 1<<20), Data: map[string]string{"key": "canary"}}, nil
	}}
	result := callTool(t, connect(t, newServer(long, v1alpha1.ToolDiff)), "diff", nil)
	if got := textOf(result); len(got) > tools.MaxText+100 || !strings.HasPrefix(got, "[masked] x") || !strings.HasSuffix(got, "[The answer is longer, and was cut here.]") {
		t.Errorf("the answer has %d bytes: %.20s…%s", len(got), got, got[len(got)-60:])
	}
	if data, _ := json.Marshal(result.Meta[tools.DataKey]); string(data) != `{"key":"[masked]"}` {
		t.Errorf("the data are %s", data)
	}
	failing := &answerer{answer: func(context.Context) (tools.Answer, error) {
		return tools.Answer{}, errors.New("git: the canary is broken")
	}}
	result = callTool(t, connect(t, newServer(failing, v1alpha1.ToolDiff)), "diff", nil)
	if got := textOf(result); !result.IsError || got != "Clew could not answer: git: the [masked] is broken. Go on with your work; try again later if you still need it." {
		t.Errorf("a failed call was answered with %q (error: %v)", got, result.IsError)
	}
}

// No call keeps an agent waiting: after a while it is told to go on.
func TestACallThatTakesTooLongIsAnswered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hanging := &answerer{answer: func(ctx context.Context) (tools.Answer, error) {
			<-ctx.Done()
			return tools.Answer{}, ctx.Err()
		}}
		begin := time.Now()
		result := callTool(t, connect(t, newServer(hanging, v1alpha1.ToolDiff)), "diff", nil)
		if took := time.Since(begin); took > time.Minute {
			t.Errorf("the answer took %s", took)
		}
		if got := textOf(result); !result.IsError || !strings.Contains(got, "Go on with your work") {
			t.Errorf("the call was answered with %q", got)
		}
	})
}

func TestTooManyCallsAreRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := text("done")
		s := newServer(a, v1alpha1.ToolDiff)
		session := connect(t, s)
		refused := 0
		for range 60 {
			if result := callTool(t, session, "diff", nil); result.IsError {
				if got := textOf(result); got != "Too many calls of Clew's tools: wait 1 s, then try again." {
					t.Fatalf("a call too many was answered with %q", got)
				}
				refused++
			}
		}
		if refused != 20 || a.calls.Load() != 40 {
			t.Errorf("%d calls were refused and %d let through, want 20 and 40", refused, a.calls.Load())
		}
		time.Sleep(time.Second) // on the fake clock
		if result := callTool(t, session, "diff", nil); result.IsError {
			t.Errorf("a second later, a call was answered with %q", textOf(result))
		}
	})
}

// hostile is what a hostile process in the agent's container sends.
const initialize = `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-03-26","capabilities":{},"clientInfo":{"name":"h","version":"1"}}}` + "\n" +
	`{"jsonrpc":"2.0","method":"notifications/initialized"}` + "\n"

func diffCall(id int) string {
	return fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":"diff","arguments":{}}}`+"\n", id)
}

// endless is a text without end.
type endless struct{ text string }

func (e endless) Read(p []byte) (int, error) {
	n := 0
	for n < len(p) {
		n += copy(p[n:], e.text)
	}
	return n, nil
}

// The connection of a hostile peer ends after a bounded amount of data, and others are served
// as before.
func TestAHostilePeerIsDisconnected(t *testing.T) {
	for name, sends := range map[string]io.Reader{
		"an endless line":         endless{"x"},
		"an endless JSON string":  io.MultiReader(strings.NewReader(initialize+`{"jsonrpc":"2.0","id":1,"method":"`), endless{"x"}),
		"garbage":                 strings.NewReader("\x00\xff\nHELO\n"),
		"nested arrays":           endless{"["},
		"10,000 calls":            io.MultiReader(strings.NewReader(initialize), calls(10_000)),
		"notifications for ever":  io.MultiReader(strings.NewReader(initialize), endless{`{"jsonrpc":"2.0","method":"notifications/initialized"}` + "\n"}),
		"answers to no questions": io.MultiReader(strings.NewReader(initialize), endless{`{"jsonrpc":"2.0","id":7,"result":{}}` + "\n"}),
		"a batch":                 strings.NewReader(initialize + "[" + strings.TrimSuffix(strings.Repeat(`{"jsonrpc":"2.0","id":1,"method":"ping"},`, 1000), ",") + "]\n"),
	} {
		t.Run(name, func(t *testing.T) {
			a := text("done")
			s := newServer(a, v1alpha1.ToolDiff)
			c := serve(t, s)
			go func() { _, _ = io.Copy(io.Discard, c) }()
			sent, err := io.Copy(c, sends)
			if err == nil { // all was sent; nothing more is awaited
				c.Close()
			}
			if sent > 4<<20 {
				t.Errorf("%d bytes were read", sent)
			}
			if n := a.calls.Load(); n > 200 {
				t.Errorf("%d calls were carried out", n)
			}
			if list, err := connect(t, s).ListTools(t.Context(), nil); err != nil || len(list.Tools) != 1 {
				t.Errorf("another peer gets %v, error %v", list, err)
			}
		})
	}
}

func calls(n int) io.Reader {
	var b strings.Builder
	for i := range n {
		b.WriteString(diffCall(i + 1))
	}
	return strings.NewReader(b.String())
}

// A peer that reads no answers has only so many calls carried out for it, and holds only so much
// memory.
func TestAPeerThatDoesNotReadHindersItself(t *testing.T) {
	a := text(strings.Repeat("x", 40<<10))
	s := newServer(a, v1alpha1.ToolDiff)
	c := serve(t, s)
	in := bufio.NewReader(c)
	go func() { _, _ = io.WriteString(c, initialize) }()
	if _, err := in.ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	sent := make(chan int64, 1)
	go func() {
		n, _ := io.Copy(c, calls(10_000))
		sent <- n
	}()
	if list, err := connect(t, s).ListTools(t.Context(), nil); err != nil || len(list.Tools) != 1 {
		t.Errorf("another peer gets %v, error %v", list, err)
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	if grown := int64(after.HeapAlloc) - int64(before.HeapAlloc); grown > 8<<20 {
		t.Errorf("the heap has grown by %d bytes", grown)
	}
	c.Close()
	if n := <-sent; n > 1<<20 {
		t.Errorf("%d bytes of calls were read", n)
	}
	if n := a.calls.Load(); n > 20 {
		t.Errorf("%d calls were carried out", n)
	}
}
