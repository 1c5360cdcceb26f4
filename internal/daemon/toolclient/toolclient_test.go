package toolclient_test

import (
	"bytes"
	"encoding/json"
	"io"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/onsi/gomega"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/daemon/daemontest"
	"github.com/clew-dev/clew/internal/daemon/socket"
	"github.com/clew-dev/clew/internal/daemon/toolclient"
	"github.com/clew-dev/clew/internal/daemon/wire"
)

// world is a task whose agent has the given tools and is at work. Its shim answers freezes.
func world(t *testing.T, tools ...v1alpha1.AgentTool) (*daemontest.World, *daemontest.Sidecar) {
	t.Helper()
	w := daemontest.NewWorld(t, map[string]string{"a.txt": "one\n"})
	w.Tools = tools
	w.Prepare(1, nil)
	d := w.Start(1)
	serveShim(w)
	return w, d
}

func serveShim(w *daemontest.World) {
	a := w.Dial("s")
	go func() {
		for {
			f, err := wire.Read(a.Reader)
			if err != nil {
				return
			}
			if f.Type == wire.TypeFreeze {
				var z wire.Freeze
				if f.Decode(&z) != nil || wire.Write(a, wire.TypeFrozen, z) != nil {
					return
				}
			}
		}
	}()
}

// clew runs the program.
func clew(t *testing.T, w *daemontest.World, args ...string) (out string, err error) {
	t.Helper()
	cmd := toolclient.NewCommand(filepath.Join(w.RunDir, socket.Name), "test")
	var b bytes.Buffer
	cmd.SetOut(&b)
	cmd.SetErr(&b)
	cmd.SetArgs(args)
	err = cmd.ExecuteContext(t.Context())
	return b.String(), err
}

func expectOutput(t *testing.T, w *daemontest.World, want string, args ...string) {
	t.Helper()
	if out, err := clew(t, w, args...); err != nil || !strings.Contains(out, want) {
		t.Errorf("clew %v printed, with error %v,\n%s\nwant %q", args, err, out, want)
	}
}

func expectError(t *testing.T, w *daemontest.World, want string, args ...string) {
	t.Helper()
	if out, err := clew(t, w, args...); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("clew %v printed, with error %v,\n%s\nwant an error with %q", args, err, out, want)
	}
}

func TestTheProgramCallsTheTools(t *testing.T) {
	w, d := world(t, v1alpha1.DefaultTools()...)
	defer d.End()
	w.Write("a.txt", "two\n")
	expectOutput(t, w, "Checkpoint 1 is taken: 1 file changed", "checkpoint", "-m", "by hand")
	expectOutput(t, w, "Agent  by hand\n", "checkpoints")
	expectOutput(t, w, "-one\n+two", "diff", "0", "1", "--path", "a.txt")
	expectOutput(t, w, "No message", "history", "search", "no", "such", "words")
	expectOutput(t, w, "clew checkpoint -m", "--help")
	expectError(t, w, "Say in message what this state is", "checkpoint")
	expectError(t, w, "no checkpoint 9", "diff", "9")
	expectError(t, w, `"latest" is not the number of a checkpoint`, "diff", "latest")

	out, err := clew(t, w, "checkpoint", "-m", "again", "--json")
	var answer struct {
		Checkpoint int64
		Taken      bool
	}
	if err != nil || json.Unmarshal([]byte(out), &answer) != nil || answer.Checkpoint != 1 || answer.Taken {
		t.Errorf("as JSON, the answer is %s, error %v", out, err)
	}
}

func TestTheProgramSaysWhichToolsThereAre(t *testing.T) {
	w, d := world(t, v1alpha1.ToolDiff)
	expectError(t, w, "this task does not give its agent the tool checkpoint, but diff: spec.tools of the Task says which", "checkpoint", "-m", "x")
	d.End()
	without, d := world(t)
	defer d.End()
	expectError(t, without, "this task gives its agent none of Clew's tools", "diff")
}

// bridge starts the bridge as an agent does, and begins a session.
func bridge(t *testing.T, w *daemontest.World) *mcp.ClientSession {
	t.Helper()
	toBridge, fromAgent := io.Pipe()
	toAgent, fromBridge := io.Pipe()
	ended := make(chan error, 1)
	go func() {
		defer fromBridge.Close()
		ended <- toolclient.Bridge(t.Context(), w.ToolClient(), toBridge, fromBridge)
	}()
	session, err := mcp.NewClient(&mcp.Implementation{Name: "agent", Version: "1"}, nil).Connect(t.Context(), &mcp.IOTransport{Reader: toAgent, Writer: fromAgent}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		session.Close()
		if err := <-ended; err != nil {
			t.Errorf("the bridge ended with %v after its agent", err)
		}
	})
	return session
}

// An agent has the same tools over the bridge, and keeps them when the daemon is restarted.
func TestTheBridgeOutlivesTheDaemon(t *testing.T) {
	w, d := world(t, v1alpha1.DefaultTools()...)
	session := bridge(t, w)
	if got := session.InitializeResult().Instructions; !strings.HasPrefix(got, "Checkpoints of this task's files") {
		t.Errorf("the instructions are %q", got)
	}
	list, err := session.ListTools(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	direct, _, err := w.ToolClient().Tools(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	want, _ := json.Marshal(direct)
	got, _ := json.Marshal(list.Tools)
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Errorf("the tools over the bridge (-daemon +bridge):\n%s", diff)
	}
	call := func(message string) string {
		t.Helper()
		result, err := session.CallTool(t.Context(), &mcp.CallToolParams{Name: "checkpoint", Arguments: map[string]any{"message": message}})
		if err != nil {
			t.Fatal(err)
		}
		return toolclient.TextOf(result)
	}
	if got := call("first"); !strings.HasPrefix(got, "Checkpoint 1 is taken") {
		t.Errorf("the answer is %q", got)
	}
	d.End()
	w.Write("b.txt", "b\n")
	answer := make(chan string, 1)
	go func() { answer <- call("after a restart") }() // waits for the daemon
	d = w.Start(1)
	defer d.End()
	serveShim(w)
	if got := <-answer; got == "" || strings.Contains(got, "cannot be reached") {
		t.Errorf("after a restart, the answer is %q", got)
	}
}

// A flood of connections is refused, and hinders neither the session of the shim nor, once it has
// ended, other calls.
func TestAFloodOfConnectionsIsRefused(t *testing.T) {
	w, d := world(t, v1alpha1.ToolDiff)
	defer d.End()
	var open []net.Conn
	refused := 0
	for range 4 * socket.MaxTools {
		c, err := net.Dial("unix", filepath.Join(w.RunDir, socket.Name))
		if err != nil {
			t.Fatal(err)
		}
		open = append(open, c)
		_ = c.SetDeadline(time.Now().Add(30 * time.Second))
		if err := wire.Write(c, wire.TypeTools, nil); err != nil {
			t.Fatal(err)
		}
		var opened wire.ToolsOpened
		f, err := wire.Read(c)
		if err == nil {
			err = f.Decode(&opened)
		}
		if err != nil {
			t.Fatal(err)
		}
		if opened.Refused != "" {
			refused++
		}
	}
	if want := 3 * socket.MaxTools; refused != want {
		t.Errorf("%d connections were refused, want %d", refused, want)
	}
	if err := socket.Ready(w.RunDir); err != nil {
		t.Errorf("the daemon does not answer others: %v", err)
	}
	expectError(t, w, "wait until they have ended, then try again", "diff")
	for _, c := range open {
		c.Close()
	}
	gomega.NewWithT(t).Eventually(func() error { _, err := clew(t, w, "diff"); return err }, 10*time.Second).Should(gomega.Succeed())
}
