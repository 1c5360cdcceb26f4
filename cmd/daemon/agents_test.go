package main

import (
	"bytes"
	"compress/zlib"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/onsi/gomega"
	"google.golang.org/protobuf/testing/protocmp"

	"github.com/clew-dev/clew/internal/daemon/daemontest"
	"github.com/clew-dev/clew/internal/daemonapi"
	daemonv1 "github.com/clew-dev/clew/internal/daemonapi/v1"
)

// These tests run the containers of a pod with agents that print what the real ones print.

// longBytes is the length of one result of the fake agent.
const longBytes = 64 << 20

// fakeAgent plays a part, with the arguments that the adapter adds.
func fakeAgent(part string, args []string) {
	prompt, _ := io.ReadAll(os.Stdin)
	say := func(line string) { fmt.Println(line) }
	call := func(id, command string) string {
		input, _ := json.Marshal(map[string]string{"command": command})
		say(`{"type":"assistant","message":{"id":"m-` + id + `","role":"assistant","content":[{"type":"tool_use","id":"` + id + `","name":"Bash","input":` + string(input) + `}]}}`)
		return string(input)
	}
	result := func(id, text string) {
		quoted, _ := json.Marshal(text)
		say(`{"type":"user","message":{"role":"user","content":[{"tool_use_id":"` + id + `","type":"tool_result","content":` + string(quoted) + `}]}}`)
	}
	switch part {
	case "deltas":
		say(`{"type":"init","session_id":"g-1","model":"gemini-2.5-flash"}`)
		for i := range 40 {
			say(`{"type":"message","role":"assistant","content":"` + strconv.Itoa(i) + ` ","delta":true}`)
			time.Sleep(20 * time.Millisecond) // the agent's pace
		}
		return
	case "unauthorized":
		text := "API Error: 401 the key " + os.Getenv("THE_KEY") + " is expired"
		say(`{"type":"system","subtype":"init","session_id":"s-1","model":"m"}`)
		say(`{"type":"result","subtype":"success","is_error":true,"api_error_status":401,"result":"` + text + `"}`)
		os.Exit(1)
	case "loop":
		say(`{"type":"init","session_id":"67b5af93-0000","model":"gemini-2.5-flash"}`)
		say(`{"type":"error","severity":"warning","message":"Loop detected, stopping execution"}`)
		say(`{"type":"result","status":"success","stats":{}}`)
		return
	case "options":
		fmt.Fprintln(os.Stderr, "error: unknown option '--no-such'")
		os.Exit(1)
	case "stderr":
		fmt.Fprintln(os.Stderr, "panic: the key "+os.Getenv("THE_KEY")+" is none")
		os.Exit(3)
	case "refused-tool":
		fmt.Fprintln(os.Stderr, "curl: (22) HTTP 429 Too Many Requests")
		os.Exit(22)
	case "worked":
		say(`{"type":"system","subtype":"init","session_id":"s-1","model":"m"}`)
		call("t-1", "make")
		result("t-1", "ok")
		fmt.Fprintln(os.Stderr, "make: 401 Unauthorized")
		os.Exit(2)
	case "well":
		fmt.Fprintln(os.Stderr, "error: this is none")
		say(`{"type":"system","subtype":"init","session_id":"s-1","model":"m"}`)
		say(`{"type":"result","subtype":"success","is_error":false,"result":"DONE"}`)
		return
	case "cut", "killed-tool":
		say(`{"type":"system","subtype":"init","session_id":"s-1","model":"m"}`)
		call("t-1", "make")
		result("t-1", "Exit code 137")
		if part == "cut" {
			os.Exit(137)
		}
		say(`{"type":"assistant","message":{"id":"m-2","role":"assistant","content":[{"type":"text","text":"It was killed."}]}}`)
		say(`{"type":"result","subtype":"success","is_error":false,"result":"It was killed."}`)
		return
	case "opencode", "tokens":
		cutAgent(part, args, say)
		return
	case "long":
		say(`{"type":"system","subtype":"init","session_id":"s-1","model":"m"}`)
		call("t-1", "cat big")
		fmt.Print(`{"type":"user","message":{"role":"user","content":[{"tool_use_id":"t-1","type":"tool_result","content":"`)
		for part := range slices.Chunk(longText(), 1<<20) {
			os.Stdout.Write(part)
			time.Sleep(20 * time.Millisecond) // the agent's pace
		}
		say(`"}]}}`)
	case "risky":
		say(`{"type":"system","subtype":"init","session_id":"s-1","model":"m"}`)
		input := call("t-1", "rm -rf src")
		if err := runHook(args, input); err != nil {
			result("t-1", err.Error())
			return
		}
		os.RemoveAll("src")
		result("t-1", "removed")
	case "secret":
		key := os.Getenv("THE_KEY")
		say(`{"type":"system","subtype":"init","session_id":"s-1","model":"m"}`)
		call("t-1", "echo "+key)
		result("t-1", "the key is "+key+", "+os.Getenv("CLEW_MASK_0"))
		fmt.Println("plain", key)
		fmt.Fprintln(os.Stderr, "error", key)
		os.WriteFile(".env", []byte("KEY="+key), 0o600)
		os.WriteFile("README.md", []byte("nothing"), 0o600)
		session := filepath.Join(os.Getenv("HOME"), ".claude/projects/x/s-1.jsonl")
		os.MkdirAll(filepath.Dir(session), 0o755)
		os.WriteFile(session, []byte(`{"content":"`+key+`"}`+"\n"), 0o600)
		exec.Command("git", "add", "-A").Run()
		exec.Command("git", "-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "with "+key).Run()
	}
	say(`{"type":"assistant","message":{"id":"m-end","role":"assistant","content":[{"type":"text","text":` + strconv.Quote("prompt: "+string(prompt)) + `}]}}`)
}

// runHook runs the hook that the agent's settings have for tools.
func runHook(args []string, input string) error {
	var settings struct {
		Hooks struct {
			PreToolUse []struct {
				Hooks []struct{ Command string }
			}
		}
	}
	data, err := os.ReadFile(args[slices.Index(args, "--settings")+1])
	if err != nil {
		return err
	}
	if err := json.Unmarshal(data, &settings); err != nil {
		return err
	}
	cmd := exec.Command("sh", "-c", settings.Hooks.PreToolUse[0].Hooks[0].Command+" --run-dir "+os.Getenv("FAKE_RUN_DIR"))
	cmd.Stdin = strings.NewReader(`{"hook_event_name":"PreToolUse","tool_use_id":"t-1","tool_name":"Bash","tool_input":` + input + `}`)
	out, err := cmd.CombinedOutput()
	if len(out) > 0 {
		err = fmt.Errorf("%s", out)
	}
	return err
}

// longText returns a text without escapes in JSON and without long repetitions.
func longText() []byte {
	var b bytes.Buffer
	for i := 0; b.Len() < longBytes; i++ {
		fmt.Fprintf(&b, "%d ", i)
	}
	return b.Bytes()[:longBytes]
}

// fakePod prepares a pod whose agent plays a part.
func fakePod(t *testing.T, w *daemontest.World, part string, env ...string) *testPod {
	t.Helper()
	p := &testPod{t: t, w: w, attempt: 1, token: daemontest.Token(t, w.UID, 1), command: []string{os.Args[0], "fake", part},
		env: append(env, "FAKE_RUN_DIR="+w.RunDir)}
	prepared := p.startPrepare()
	<-prepared.done
	if r := p.result(); r.Reason != "Prepared" {
		t.Fatalf("prepare returned %+v, want Prepared\n%s", r, prepared.out.String())
	}
	p.startSidecar()
	p.startAgent()
	return p
}

// end waits for the agent's end and ends the pod.
func (p *testPod) end() {
	p.t.Helper()
	select {
	case <-p.agent.done:
	case <-time.After(2 * time.Minute):
		p.t.Fatalf("the agent did not end within two minutes\n%s", p.sidecar.out.String())
	}
	p.sidecar.cmd.Process.Signal(syscall.SIGTERM)
	p.sidecar.expectExit(p.t, "the sidecar", 0)
	p.agent.expectExit(p.t, "the agent", 0)
}

// peak returns the most memory that a process has had, in MiB; 0 for one that has ended.
func (c *process) peak() int {
	data, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", c.cmd.Process.Pid))
	_, rest, found := strings.Cut(string(data), "VmHWM:")
	if !found {
		return 0
	}
	kb, _ := strconv.Atoi(strings.Fields(rest)[0])
	return kb >> 10
}

// TestLongLineKilled kills the daemon several times while it receives a line of 64 MiB: in
// the end the line is recorded whole, and no daemon has held all of it in memory.
func TestLongLineKilled(t *testing.T) {
	w := daemontest.NewWorld(t, nil)
	w.Agent = "ClaudeCode"
	p := fakePod(t, w, "long")
	peak, shim := 0, 0
	for i := range 4 {
		time.Sleep(time.Duration(100+rand.IntN(400)) * time.Millisecond) // the random instant is the subject
		if peak = max(peak, p.sidecar.peak()); i < 3 {
			p.sidecar.kill()
			p.startSidecar()
		}
	}
	g := gomega.NewWithT(t)
	g.Eventually(func() bool {
		peak, shim = max(peak, p.sidecar.peak()), max(shim, p.agent.peak())
		return p.agent.ended()
	}).WithTimeout(2*time.Minute).Should(gomega.BeTrue(), "the agent does not end")
	p.end()
	t.Logf("the daemon had %d MiB at most, the shim %d MiB", peak, shim)
	measured := gomega.And(gomega.BeNumerically(">", 0), gomega.BeNumerically("<=", 100))
	g.Expect(peak).To(measured, "MiB of the daemon")
	g.Expect(shim).To(measured, "MiB of the shim")
	pieces := map[[sha256.Size]byte][]byte{}
	var result *daemonv1.ToolResult
	w.Server.Inspect(w.UID, func(k *daemontest.Task) {
		for _, r := range k.Records {
			if data := r.GetPiece().GetData(); data != nil {
				pieces[sha256.Sum256(data)] = data
			}
			if found := r.GetMessage().GetToolResult(); found != nil {
				result = found
			}
		}
	})
	var got bytes.Buffer
	for _, hash := range result.GetOutputPieces().GetHashes() {
		got.Write(pieces[[sha256.Size]byte(hash)])
	}
	if !bytes.Equal(got.Bytes(), longText()) {
		t.Errorf("the recorded result differs from the agent's: %d bytes of %d", got.Len(), longBytes)
	}
	if diff := cmp.Diff([]string{"user Do it.", "call t-1", "result t-1", "assistant prompt: Do it."}, w.Lines()); diff != "" {
		t.Errorf("conversation (-want +got):\n%.2000s", diff)
	}
}

// TestDeltasKilled kills the daemon while it receives a message in parts.
func TestDeltasKilled(t *testing.T) {
	w := daemontest.NewWorld(t, nil)
	w.Agent = "GeminiCLI"
	p := fakePod(t, w, "deltas")
	for range 3 {
		time.Sleep(time.Duration(50+rand.IntN(250)) * time.Millisecond) // the random instant is the subject
		p.sidecar.kill()
		p.startSidecar()
	}
	p.end()
	want := "assistant "
	for i := range 40 {
		want += strconv.Itoa(i) + " "
	}
	if diff := cmp.Diff([]string{"user Do it.", want}, w.Lines()); diff != "" {
		t.Errorf("conversation (-want +got):\n%s", diff)
	}
}

// TestRiskyToolOfAnAgent: the agent's own hook holds the tool back until the checkpoint is
// taken.
func TestRiskyToolOfAnAgent(t *testing.T) {
	w := daemontest.NewWorld(t, map[string]string{"src/a": "a", "b": "b"})
	w.Agent = "ClaudeCode"
	w.Policy.RiskyTools = []daemonapi.ToolPattern{{Tool: "^Bash$", Input: `rm\s`}}
	p := fakePod(t, w, "risky")
	p.end()
	w.Server.Inspect(w.UID, func(k *daemontest.Task) {
		got := map[int64]*daemonv1.CheckpointRecord{}
		for n, c := range k.Checkpoints {
			got[n] = &daemonv1.CheckpointRecord{Trigger: c.GetTrigger(), RiskyTool: c.GetRiskyTool(), Files: c.GetFiles(), Durable: c.GetDurable()}
		}
		want := map[int64]*daemonv1.CheckpointRecord{
			1: {Trigger: "BeforeRiskyTool", RiskyTool: &daemonv1.RiskyTool{Name: "Bash", CallId: "t-1", Before: true}, Files: 2, Durable: true},
			2: {Trigger: "Completion", Files: 1, Durable: true},
		}
		if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
			t.Errorf("checkpoints (-want +got):\n%s", diff)
		}
	})
	if diff := cmp.Diff([]string{"user Do it.", "call t-1", "result t-1", "assistant prompt: Do it."}, w.Lines()); diff != "" {
		t.Errorf("conversation (-want +got):\n%s\n%s", diff, p.sidecar.out.String())
	}
	if _, err := os.Stat(w.Path("src")); err == nil {
		t.Error("the tool did not run")
	}
}

// TestSecretStaysInThePod: no log, no record and no object that leaves the pod contains a key
// that the agent prints, writes and commits.
func TestSecretStaysInThePod(t *testing.T) {
	const key = `sk-canary-"0123456789abcdef"/+`
	w := daemontest.NewWorld(t, map[string]string{"a": "a"})
	w.Agent = "ClaudeCode"
	p := fakePod(t, w, "secret", "THE_KEY="+key, "CLEW_MASK_0="+key)
	p.end()
	const canary = "0123456789abcdef"
	if log := p.agent.out.String(); strings.Contains(log, canary) || strings.Count(log, "[masked]") < 4 {
		t.Errorf("the key is in the agent's log, or was not masked there 4 times: %s", log)
	}
	if strings.Contains(p.sidecar.out.String(), canary) {
		t.Error("the key is in the daemon's log")
	}
	w.Server.Inspect(w.UID, func(k *daemontest.Task) {
		for _, r := range k.Records {
			if strings.Contains(fmt.Sprint(r), canary) {
				t.Errorf("the key is in the record %v", r)
			}
		}
		var skipped []string
		for _, s := range k.Latest().GetSkipped() {
			if s.GetReason() == "HoldsSecret" && !strings.HasPrefix(s.GetPath(), ".git/objects/") {
				skipped = append(skipped, s.GetPath())
			}
		}
		if !slices.Equal(skipped, []string{".env"}) {
			t.Errorf("the checkpoint skips %q, want .env", skipped)
		}
	})
	store := filepath.Join(w.Git.Dir, "store.git")
	for _, object := range objects(t, store) {
		if strings.Contains(object, canary) {
			t.Errorf("the key is in an object of the gitstore: %.300q", object)
		}
	}
	if data, _ := os.ReadFile(w.Path(".env")); string(data) != "KEY="+key {
		t.Errorf("the agent's own file was changed to %q", data)
	}
	leftInState(t, w.Paths().State, canary)
}

// objects returns the content of all objects of a repository, and of the objects of the
// agent's repository that they contain.
func objects(t *testing.T, dir string) (out []string) {
	t.Helper()
	list, err := exec.Command("git", "--git-dir", dir, "cat-file", "--batch-all-objects", "--batch-check").Output()
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(list)) {
		f := strings.Fields(line)
		data, err := exec.Command("git", "--git-dir", dir, "cat-file", f[1], f[0]).Output()
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, string(data))
		if plain, err := zlib.NewReader(bytes.NewReader(data)); err == nil {
			text, _ := io.ReadAll(plain)
			out = append(out, string(text))
		}
	}
	if len(out) < 5 {
		t.Fatalf("the repository has %d objects, want 5 at least", len(out))
	}
	return out
}

// leftInState fails the test if a text is in one of the daemon's own files. It does not find
// texts in packs, which are compressed.
func leftInState(t *testing.T, dir, text string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		data, err := os.ReadFile(path)
		if bytes.Contains(data, []byte(text)) {
			t.Errorf("the key is in %s", path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}
