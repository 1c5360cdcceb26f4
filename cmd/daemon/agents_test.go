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

	"github.com/clew-dev/clew/internal/daemon/daemontest"
	"github.com/clew-dev/clew/internal/daemonapi"
	daemonv1 "github.com/clew-dev/clew/internal/daemonapi/v1"
)

// These tests run the containers of a pod with agents that print what the real
// ones print.

// longBytes is how much one result of the fake agent holds.
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
			time.Sleep(20 * time.Millisecond)
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
			time.Sleep(20 * time.Millisecond)
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

// runHook does what the settings say is to be done before a tool.
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
	if err == nil && len(out) > 0 {
		err = fmt.Errorf("%s", out)
	}
	return err
}

// longText needs no escapes in JSON and is never the same for long.
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
		t.Fatalf("%+v\n%s", r, prepared.out.String())
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
		p.t.Fatalf("the agent does not end\n%s", p.sidecar.out.String())
	}
	p.sidecar.cmd.Process.Signal(syscall.SIGTERM)
	<-p.sidecar.done
	if code := p.sidecar.cmd.ProcessState.ExitCode(); code != 0 || p.agent.cmd.ProcessState.ExitCode() != 0 {
		p.t.Fatalf("%d, the agent %v\n%.3000s\n%s", code, p.agent.cmd.ProcessState, p.agent.out.String(), p.sidecar.out.String())
	}
}

// peak is the most memory a process ever had, in MiB; 0 of one that has ended.
func (c *process) peak() int {
	data, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", c.cmd.Process.Pid))
	_, rest, found := strings.Cut(string(data), "VmHWM:")
	if !found {
		return 0
	}
	kb, _ := strconv.Atoi(strings.Fields(rest)[0])
	return kb >> 10
}

// TestLongLineKilled kills the daemon while a line of 64 MiB comes, again and
// again: in the end it is recorded whole, and no daemon ever held it.
func TestLongLineKilled(t *testing.T) {
	w := daemontest.NewWorld(t, nil)
	w.Agent = "ClaudeCode"
	p := fakePod(t, w, "long")
	peak, shim := 0, 0
	for i := range 4 {
		time.Sleep(time.Duration(100+rand.IntN(400)) * time.Millisecond)
		if peak = max(peak, p.sidecar.peak()); i < 3 {
			p.sidecar.kill()
			p.startSidecar()
		}
	}
	for !p.agent.ended() {
		time.Sleep(10 * time.Millisecond)
		peak, shim = max(peak, p.sidecar.peak()), max(shim, p.agent.peak())
	}
	p.end()
	t.Logf("the daemon had %d MiB at most, the shim %d MiB", peak, shim)
	if peak == 0 || shim == 0 || peak > 100 || shim > 100 {
		t.Errorf("the daemon had %d MiB, the shim %d MiB", peak, shim)
	}
	pieces := map[[sha256.Size]byte][]byte{}
	var result *daemonv1.ToolResult
	w.Server.Look(w.UID, func(k *daemontest.Task) {
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
		t.Errorf("the text is another one: %d bytes of %d", got.Len(), longBytes)
	}
	if d := w.Lines(); len(d) != 4 || d[1] != "call t-1" || d[2] != "result t-1" || d[3] != "assistant prompt: Do it." {
		t.Errorf("%.500q", d)
	}
}

// TestDeltasKilled kills the daemon while a message comes in parts.
func TestDeltasKilled(t *testing.T) {
	w := daemontest.NewWorld(t, nil)
	w.Agent = "GeminiCLI"
	p := fakePod(t, w, "deltas")
	for range 3 {
		time.Sleep(time.Duration(50+rand.IntN(250)) * time.Millisecond)
		p.sidecar.kill()
		p.startSidecar()
	}
	p.end()
	want := "assistant "
	for i := range 40 {
		want += strconv.Itoa(i) + " "
	}
	if got := w.Lines(); len(got) != 2 || got[1] != want {
		t.Errorf("%q", got)
	}
}

// TestRiskyToolOfAnAgent: the agent's own hook holds the tool back until the
// checkpoint is taken.
func TestRiskyToolOfAnAgent(t *testing.T) {
	w := daemontest.NewWorld(t, map[string]string{"src/a": "a", "b": "b"})
	w.Agent = "ClaudeCode"
	w.Policy.RiskyTools = []daemonapi.ToolPattern{{Tool: "^Bash$", Input: `rm\s`}}
	p := fakePod(t, w, "risky")
	p.end()
	w.Server.Look(w.UID, func(k *daemontest.Task) {
		c, end := k.Checkpoints[1], k.Checkpoints[2]
		if c.GetTrigger() != "BeforeRiskyTool" || !c.GetRiskyTool().GetBefore() || c.GetRiskyTool().GetCallId() != "t-1" || c.GetFiles() != 2 || !c.GetDurable() {
			t.Errorf("%v", c)
		}
		if end.GetFiles() != 1 || end.GetTrigger() != "Completion" {
			t.Errorf("%v", end)
		}
	})
	if got := w.Lines(); !slices.Equal(got, []string{"user Do it.", "call t-1", "result t-1", "assistant prompt: Do it."}) {
		t.Errorf("%q\n%s", got, p.sidecar.out.String())
	}
	if _, err := os.Stat(w.Path("src")); err == nil {
		t.Error("the tool did not run")
	}
}

// TestSecretStaysInThePod: a key that the agent prints, writes and commits is in
// no log, no record and no object that leaves the pod.
func TestSecretStaysInThePod(t *testing.T) {
	const key = `sk-canary-"0123456789abcdef"/+`
	w := daemontest.NewWorld(t, map[string]string{"a": "a"})
	w.Agent = "ClaudeCode"
	p := fakePod(t, w, "secret", "THE_KEY="+key, "CLEW_MASK_0="+key)
	p.end()
	const canary = "0123456789abcdef"
	if log := p.agent.out.String(); strings.Contains(log, canary) || strings.Count(log, "[masked]") < 4 {
		t.Errorf("the agent's log: %s", log)
	}
	if strings.Contains(p.sidecar.out.String(), canary) {
		t.Error("the key is in the daemon's log")
	}
	w.Server.Look(w.UID, func(k *daemontest.Task) {
		for _, r := range k.Records {
			if strings.Contains(fmt.Sprint(r), canary) {
				t.Errorf("%v", r)
			}
		}
		var skipped []string
		for _, s := range k.Latest().GetSkipped() {
			if s.GetReason() == "HoldsSecret" && !strings.HasPrefix(s.GetPath(), ".git/objects/") {
				skipped = append(skipped, s.GetPath())
			}
		}
		if !slices.Equal(skipped, []string{".env"}) {
			t.Errorf("skipped: %q", skipped)
		}
	})
	store := filepath.Join(w.Git.Dir, "store.git")
	for _, object := range objects(t, store) {
		if strings.Contains(object, canary) {
			t.Errorf("in the gitstore: %.300q", object)
		}
	}
	if data, _ := os.ReadFile(w.Path(".env")); string(data) != "KEY="+key {
		t.Errorf("the agent's own file is %q", data)
	}
	leftInState(t, w.Paths().State, canary)
}

// objects are all objects of a repository, with those inside that are objects of
// the agent's repository.
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
		t.Fatalf("%d objects", len(out))
	}
	return out
}

// leftInState looks for a text in the daemon's own files but the packs.
func leftInState(t *testing.T, dir, text string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		data, err := os.ReadFile(path)
		if bytes.Contains(data, []byte(text)) {
			t.Errorf("it is in %s", path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}
