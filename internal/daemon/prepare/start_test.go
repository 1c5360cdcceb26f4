package prepare_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/agent"
	taking "github.com/clew-dev/clew/internal/daemon/checkpoint"
	"github.com/clew-dev/clew/internal/daemon/daemontest"
	"github.com/clew-dev/clew/internal/daemon/journal"
	"github.com/clew-dev/clew/internal/daemon/launchplan"
	"github.com/clew-dev/clew/internal/daemon/mask"
	"github.com/clew-dev/clew/internal/daemon/prepare"
	"github.com/clew-dev/clew/internal/daemon/ship"
	"github.com/clew-dev/clew/internal/daemon/volume"
	"github.com/clew-dev/clew/internal/daemonapi"
	daemonv1 "github.com/clew-dev/clew/internal/daemonapi/v1"
)

const sessionID = "d4a342ce-945f-430c-8aa6-839a0c27b5c3"

// sessionFile is where an agent keeps the session, and what it writes there when
// it holds the results of calls.
var sessionFile = map[v1alpha1.AgentType]func(results []string) (name, text string){
	"ClaudeCode": func(results []string) (string, string) {
		lines := []string{`{"type":"user","message":{"role":"user","content":"Do it."},"uuid":"u0","sessionId":"` + sessionID + `"}`}
		for _, id := range results {
			lines = append(lines,
				`{"type":"assistant","message":{"role":"assistant","content":[{"type":"tool_use","id":"`+id+`","name":"Bash","input":{}}]},"uuid":"a`+id+`"}`,
				`{"type":"user","message":{"role":"user","content":[{"tool_use_id":"`+id+`","type":"tool_result","content":"ok"}]},"uuid":"u`+id+`"}`)
		}
		return ".claude/projects/-workspace/" + sessionID + ".jsonl", strings.Join(lines, "\n") + "\n{\"type\":\"user\",\"mess"
	},
	"GeminiCLI": func(results []string) (string, string) {
		lines := []string{`{"sessionId":"` + sessionID + `","projectHash":"p"}`, `{"id":"0","type":"user","content":"Do it."}`}
		for _, id := range results {
			lines = append(lines, `{"id":"m`+id+`","type":"gemini","content":"","toolCalls":[{"id":"`+id+`","name":"x","result":[{"functionResponse":{"id":"`+id+`"}}]}]}`)
		}
		return ".gemini/tmp/workspace/chats/session-2026-11-21T01-36-" + sessionID[:8] + ".jsonl", strings.Join(lines, "\n") + "\n"
	},
}

// play does what agent and daemon do in an attempt, a word each: c1 is a call, r1
// its result, a:text is said by the agent, F writes the session's file with all
// results so far, K takes a checkpoint, R says that the agent refused the session,
// E ends well: without it the pod is killed there.
func play(w *daemontest.World, attempt int64, words string) {
	t := w.T
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	client, token := w.Client(attempt)
	v, err := volume.Open(t.Context(), w.Paths(), w.Pod(attempt, nil), nil)
	must(err)
	defer v.Close()
	must(v.Journal.Update(func(s *journal.State) error {
		s.Clean, s.Final = nil, nil
		if s.RunningSession() == nil {
			return s.SetAgentSession(&daemonv1.AgentSession{Agent: string(w.Agent), Id: sessionID, Version: "1"})
		}
		return s.SetAgentSession(s.RunningSession())
	}))
	taker := &taking.Taker{Repo: v.Repo, Journal: v.Journal, Spool: v.Spool, Remote: volume.Remote(w.Store, token, ""), TaskUID: w.UID, Attempt: attempt, Log: w.Log()}
	say := func(m *daemonv1.Message) {
		must(v.Spool.Append(nil, &daemonv1.Record{Time: timestamppb.Now(), Attempt: attempt, Body: &daemonv1.Record_Message{Message: m}}))
	}
	name, _ := sessionFile[w.Agent](nil)
	name = filepath.Join(w.Root, "home", name)
	var results []string
	if old, err := os.ReadFile(name); err == nil {
		for _, id := range []string{"1", "2", "3", "4", "5", "6"} {
			if strings.Contains(string(old), `id":"`+id+`"`) {
				results = append(results, id)
			}
		}
	}
	for _, word := range strings.Fields(words) {
		id := word[1:]
		switch word[0] {
		case 'c':
			say(&daemonv1.Message{Role: daemonv1.Role_ROLE_ASSISTANT, ToolCall: &daemonv1.ToolCall{Id: id, Name: "shell", Input: `{"command":"step ` + id + `"}`}})
		case 'r':
			w.Write("step", id)
			results = append(results, id)
			say(&daemonv1.Message{Role: daemonv1.Role_ROLE_TOOL, ToolResult: &daemonv1.ToolResult{CallId: id, Output: "output of " + id}})
		case 'a':
			say(&daemonv1.Message{Role: daemonv1.Role_ROLE_ASSISTANT, Text: id[1:]})
		case 'F':
			_, text := sessionFile[w.Agent](results)
			must(os.MkdirAll(filepath.Dir(name), 0o700))
			must(os.WriteFile(name, []byte(text), 0o600))
		case 'K', 'E':
			_, err := taker.Take(t.Context(), taking.Request{Trigger: "ToolCalls", Also: func(s *journal.State, p journal.Point) {
				if word == "E" {
					s.Clean = &p
				}
			}})
			must(err)
			must(taker.Push(t.Context()))
		case 'R':
			must(v.Journal.Update(func(s *journal.State) error { s.SessionRefused = sessionID; return nil }))
		}
	}
	must(ship.New(client, v.Spool, w.Log()).Drain(t.Context()))
}

// plan is what the agent is to be started with.
func plan(w *daemontest.World) launchplan.Plan {
	w.T.Helper()
	p, err := launchplan.Read(w.RunDir)
	if err != nil {
		w.T.Fatal(err)
	}
	return p
}

// begun is a task whose first attempt did two steps, with a checkpoint after each
// (at positions 3 and 6), and then what the words say.
func begun(t *testing.T, agentType v1alpha1.AgentType, words string) *daemontest.World {
	t.Helper()
	w := daemontest.NewWorld(t, files)
	w.Agent = agentType
	w.Prepare(1, nil)
	play(w, 1, "c1 r1 F K a:one c2 r2 F K "+words)
	return w
}

const goOn = "Go on with the task where you left off."

func TestStart(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("0123456789 Ä\n", 16<<10) // 200 KB
	rewind := func(scope string, position, checkpoint, stands int64) *daemonapi.Operation {
		op := toPosition(position, checkpoint, stands)
		op.Scope = v1alpha1.RewindScope(scope)
		return op
	}
	tests := []struct {
		name string
		// words are what the first attempt did after two steps; then the task is
		// arranged, and the second attempt is asked for op.
		words   string
		arrange func(*testing.T, *daemontest.World) *daemontest.World
		op      *daemonapi.Operation
		memory  v1alpha1.AgentMemory
		// prompt is how the prompt ends, told and untold what is in it and is not.
		prompt       string
		told, untold []string
	}{
		{name: "intact session", words: "E", memory: "Session", prompt: goOn, untold: []string{"output of"}},
		{name: "killed, session intact", words: "c3 r3 F", memory: "Session", prompt: goOn, untold: []string{"output of"}},
		{name: "session lacks the last result", words: "c3 r3", memory: "Session", prompt: goOn, told: []string{"step 3", "output of 3"}, untold: []string{"output of 2"}},
		{name: "interrupted call", words: "c3", memory: "Session", prompt: goOn, told: []string{"step 3", "interrupted"}, untold: []string{"output of 2"}},
		{name: "resume with a prompt", words: "E", op: &daemonapi.Operation{Kind: "Resume", ID: "r", Prompt: "More."}, memory: "Session", prompt: "More.", untold: []string{goOn, "output of"}},
		{name: "resume with a long prompt", words: "E", op: &daemonapi.Operation{Kind: "Resume", ID: "r", Prompt: long}, memory: "Session", prompt: long},
		{name: "lost volume", words: "c3 r3 F", memory: "Session", prompt: goOn, untold: []string{"output of"},
			arrange: func(t *testing.T, w *daemontest.World) *daemontest.World { w.LoseVolume(); return w }},
		{name: "session file gone", words: "E", memory: "Rendered", prompt: goOn, told: []string{"Do it.", "step 1", "output of 1", "output of 2"},
			arrange: func(t *testing.T, w *daemontest.World) *daemontest.World {
				name, _ := sessionFile[w.Agent](nil)
				if err := os.Remove(filepath.Join(w.Root, "home", name)); err != nil {
					t.Fatal(err)
				}
				return w
			}},
		{name: "session file is a pipe", words: "", memory: "Rendered", prompt: goOn, told: []string{"output of 2"},
			arrange: func(t *testing.T, w *daemontest.World) *daemontest.World {
				name, _ := sessionFile[w.Agent](nil)
				pipe(t, filepath.Join(w.Root, "home", name))
				return w
			}},
		{name: "refused session", words: "R E", memory: "Rendered", prompt: goOn, told: []string{"output of 2"}},
		{name: "refused session, lost volume", words: "R E", memory: "Rendered", prompt: goOn, told: []string{"output of 2"},
			arrange: func(t *testing.T, w *daemontest.World) *daemontest.World { w.LoseVolume(); return w }},
		{name: "rewind of both", words: "c3 r3 F E", op: rewind("Both", 0, 1, 3), memory: "Session", prompt: goOn, untold: []string{"output of"}},
		{name: "rewind of the code", words: "c3 r3 F E", op: rewind("Code", 0, 1, 3), memory: "Session", prompt: goOn, untold: []string{"output of"}},
		{name: "rewind to a position, exact", words: "c3 r3 F E", op: rewind("Conversation", 3, 1, 3), memory: "Session", prompt: goOn, untold: []string{"output of"}},
		{name: "rewind to a position after the checkpoint", words: "c3 r3 F E", op: rewind("Conversation", 6, 1, 3), memory: "Session", prompt: goOn,
			told: []string{"one", "step 2", "output of 2"}, untold: []string{"output of 1", "output of 3"}},
		{name: "rewind to before any checkpoint", words: "c3 r3 F E", op: rewind("Conversation", 3, 0, 0), memory: "Rendered", prompt: goOn,
			told: []string{"Do it.", "step 1", "output of 1"}, untold: []string{"step 2", "output of 2", "output of 3", "Assistant"}},
		{name: "rewind to the prompt", words: "c3 r3 F E", op: rewind("Conversation", 1, 0, 0), memory: "New", prompt: "Do it.", untold: []string{"step 1", "output of", goOn}},
		{name: "fork", words: "E", memory: "Session", prompt: "Do it another way.", untold: []string{"output of"},
			arrange: fork("", true)},
		{name: "fork of another kind", words: "E", memory: "Rendered", prompt: "Do it another way.", told: []string{"Do it.", "output of 1"}, untold: []string{"output of 2", goOn},
			arrange: fork("OpenCode", true)},
		{name: "fork without the conversation", words: "E", memory: "New", prompt: "Do it another way.", untold: []string{"output of", goOn, "Do it."},
			arrange: fork("", false)},
	}
	for agentType := range sessionFile {
		t.Run(string(agentType), func(t *testing.T) {
			t.Parallel()
			started := map[string]*daemontest.World{}
			for _, tt := range tests {
				if started[tt.words] == nil {
					started[tt.words] = begun(t, agentType, tt.words)
				}
				first := started[tt.words]
				t.Run(tt.name, func(t *testing.T) {
					t.Parallel()
					w := first.Copy(t)
					if tt.arrange != nil {
						w = tt.arrange(t, w)
					}
					r := w.Prepare(2, tt.op)
					p := plan(w)
					if p.Memory != tt.memory || r.Memory != tt.memory || !strings.HasSuffix(p.Prompt, tt.prompt) || p.AgentType != w.Agent {
						t.Fatalf("%s (%s), session %s, prompt %.5000q", p.Memory, r.MemoryMessage, p.Session, p.Prompt)
					}
					if (p.Session == sessionID) != (tt.memory == v1alpha1.AgentMemorySession) {
						t.Fatalf("session %q", p.Session)
					}
					for _, text := range tt.told {
						if !strings.Contains(p.Prompt, text) {
							t.Errorf("the prompt lacks %q:\n%.5000s", text, p.Prompt)
						}
					}
					for _, text := range tt.untold {
						if strings.Contains(strings.TrimSuffix(p.Prompt, tt.prompt), text) {
							t.Errorf("the prompt has %q:\n%.5000s", text, p.Prompt)
						}
					}
					// Once more in the same pod, and then in the next one.
					lines := w.Lines()
					for n := int64(2); n < 4; n++ {
						w.Prepare(n, tt.op)
						if d := cmp.Diff(p, plan(w)); d != "" {
							t.Fatalf("attempt %d (-first +again):\n%s", n, d)
						}
						expect(t, "conversation", w.Lines(), lines)
					}
				})
			}
		})
	}
}

// fork makes a fork of checkpoint 1.
func fork(agentType v1alpha1.AgentType, conversation bool) func(*testing.T, *daemontest.World) *daemontest.World {
	return func(t *testing.T, w *daemontest.World) *daemontest.World {
		f := w.Fork("fork", daemonapi.Source{TaskUID: w.UID, Checkpoint: 1, IncludeConversation: conversation})
		f.Prompt = "Do it another way."
		if agentType != "" {
			f.Agent = agentType
		}
		return f
	}
}

// TestFirstStartIsPlanned: the prompt, and the settings of the agent.
func TestFirstStartIsPlanned(t *testing.T) {
	t.Parallel()
	for _, agentType := range []v1alpha1.AgentType{v1alpha1.AgentClaudeCode, v1alpha1.AgentCodex, v1alpha1.AgentGeminiCLI, v1alpha1.AgentOpenCode, v1alpha1.AgentQwenCode} {
		t.Run(string(agentType), func(t *testing.T) {
			t.Parallel()
			w := daemontest.NewWorld(t, nil)
			w.Agent = agentType
			w.Prompt = strings.Repeat("Do it. ", 30_000)
			cfg := w.PrepareConfig(1, nil)
			cfg.Pod.Model = "a-model"
			want := launchplan.Plan{AgentType: agentType, Memory: "New", Model: "a-model", Prompt: w.Prompt}
			for range 2 {
				if r := prepare.Run(t.Context(), cfg); r.Reason != "Prepared" || r.Memory != "New" {
					t.Fatalf("%+v", r)
				}
				expect(t, "plan", plan(w), want)
			}
			adapter, err := agent.For(agentType)
			if err != nil {
				t.Fatal(err)
			}
			dir := filepath.Join(w.RunDir, launchplan.FilesDir)
			request := agent.FilesRequest{Dir: dir, Hook: []string{filepath.Join(w.RunDir, "bin/clew-daemon"), "hook"}}
			for name, content := range adapter.Files(request) {
				data, err := os.ReadFile(filepath.Join(dir, name))
				if err != nil {
					t.Fatal(err)
				}
				expect(t, name, string(data), string(content))
			}
		})
	}
	t.Run("Exec", func(t *testing.T) {
		w := daemontest.NewWorld(t, nil)
		if r := w.Prepare(1, nil); r.Memory != "" {
			t.Fatalf("%+v", r)
		}
		if _, err := launchplan.Read(w.RunDir); !errors.Is(err, fs.ErrNotExist) {
			t.Fatalf("%v", err)
		}
	})
}

// TestStartsFollowEachOther: what was told once is not told again, and what was
// rendered is no part of the session that began then.
func TestStartsFollowEachOther(t *testing.T) {
	t.Parallel()
	w := begun(t, "ClaudeCode", "c3 r3") // the session lacks 3
	w.Prepare(2, nil)
	if p := plan(w); !strings.Contains(p.Prompt, "output of 3") {
		t.Fatalf("%s", p.Prompt)
	}
	play(w, 2, "c4 r4 F c5 r5") // it lacks 5 now; and 3 still
	name, _ := sessionFile["ClaudeCode"](nil)
	_, text := sessionFile["ClaudeCode"]([]string{"1", "2", "4"})
	if err := os.WriteFile(filepath.Join(w.Root, "home", name), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	w.Prepare(3, nil)
	if p := plan(w); p.Memory != "Session" || !strings.Contains(p.Prompt, "output of 5") || strings.Contains(p.Prompt, "output of 3") {
		t.Fatalf("%+v", p)
	}
	play(w, 3, "R")
	w.Prepare(4, nil)
	if p := plan(w); p.Memory != "Rendered" || !strings.Contains(p.Prompt, "output of 3") {
		t.Fatalf("%+v", p)
	}
	if n := len(slices.DeleteFunc(w.Lines(), func(l string) bool { return l != "user "+goOn })); n != 2 {
		t.Fatalf("the agent was told to go on %d times:\n%s", n, strings.Join(w.Lines(), "\n"))
	}
}

// TestRestoredOnceMore: a rewind whose last checkpoint is restored to a new volume
// gives the same plan.
func TestRestoredOnceMore(t *testing.T) {
	t.Parallel()
	w := begun(t, "ClaudeCode", "c3 r3 F E")
	op := toPosition(6, 1, 3)
	w.Prepare(2, op)
	want := plan(w)
	w.LoseVolume()
	w.Prepare(3, op)
	expect(t, "plan", plan(w), want)
}

// TestLimitsOfTheOperation: a resume may tell more or less than the task says.
func TestLimitsOfTheOperation(t *testing.T) {
	t.Parallel()
	w := begun(t, "ClaudeCode", "R E")
	w.Prepare(2, &daemonapi.Operation{Kind: "Resume", ID: "r", Prompt: "More.", Context: &daemonapi.ContextLimits{Messages: 10, Bytes: 10_000}})
	if p := plan(w); p.Memory != "Rendered" || !strings.Contains(p.Prompt, "Do it.") || strings.Contains(p.Prompt, "output of") {
		t.Fatalf("%+v", p)
	}
}

// TestOnlyTheSessionIsKept: of the home of an agent whose kind is known its
// sessions are part of a checkpoint, and what the user names; not the credentials.
func TestOnlyTheSessionIsKept(t *testing.T) {
	t.Parallel()
	w := daemontest.NewWorld(t, nil)
	w.Agent = "GeminiCLI"
	w.Prepare(1, nil)
	for _, name := range []string{".gemini/oauth_creds.json", "notes/mine", "other"} {
		path := filepath.Join(w.Root, "home", name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte("x"), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	w.StatePaths = []string{"notes"}
	play(w, 1, "c1 r1 F E")
	w.LoseVolume()
	w.Prepare(2, nil)
	var got []string
	err := filepath.WalkDir(filepath.Join(w.Root, "home"), func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			got = append(got, strings.TrimPrefix(path, filepath.Join(w.Root, "home")+"/"))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	name, _ := sessionFile["GeminiCLI"](nil)
	expect(t, "home", got, []string{name, "notes/mine"})
}

func TestSnapshotsAreAskedFor(t *testing.T) {
	t.Parallel()
	w := daemontest.NewWorld(t, nil)
	w.Policy.SnapshotEveryMessages = 50
	w.Prepare(1, nil)
	w.Server.Look(w.UID, func(k *daemontest.Task) {
		if k.SnapshotEvery != 50 {
			t.Errorf("a snapshot every %d messages", k.SnapshotEvery)
		}
	})
}

// TestStartKilledAtEveryStep: killed anywhere, the next prepare plans the same
// start, and each prompt is recorded once.
func TestStartKilledAtEveryStep(t *testing.T) {
	if testing.Short() {
		t.Skip("kills at every step: make test runs it")
	}
	t.Parallel()
	lost := begun(t, "ClaudeCode", "c3 r3")
	rewound := begun(t, "ClaudeCode", "c3 r3 F E")
	scenarios := []struct {
		name string
		from *daemontest.World
		op   *daemonapi.Operation
	}{
		{"session", lost, nil},
		{"resume", lost, &daemonapi.Operation{Kind: "Resume", ID: "r", Prompt: "More."}},
		{"rewind to a position", rewound, toPosition(6, 1, 3)},
		{"rewind to before any checkpoint", rewound, toFloor(3)},
	}
	for _, sc := range scenarios {
		t.Run(sc.name, func(t *testing.T) {
			t.Parallel()
			undisturbed := sc.from.Copy(t)
			undisturbed.Prepare(2, sc.op)
			want, lines := plan(undisturbed), undisturbed.Lines()
			for at := 1; ; at += stride(2) {
				w := sc.from.Copy(t)
				where, done := prepareCrashing(t, w, 2, sc.op, &crashing{at: at})
				if done {
					t.Logf("%d steps", at-1)
					return
				}
				if _, err := launchplan.Read(w.RunDir); !errors.Is(err, fs.ErrNotExist) {
					t.Fatalf("killed %s: there is a plan (%v)", where, err)
				}
				w.Prepare(3, sc.op)
				if d := cmp.Diff(want, plan(w)); d != "" {
					t.Fatalf("killed %s (-want +got):\n%s", where, d)
				}
				expect(t, fmt.Sprintf("conversation after a kill %s", where), w.Lines(), lines)
			}
		})
	}
}

// pipe puts a named pipe in the place of a file.
func pipe(t *testing.T, path string) {
	t.Helper()
	if err := errors.Join(os.Remove(path), unix.Mkfifo(path, 0o600)); err != nil {
		t.Fatal(err)
	}
}

// TestPromptsAreMasked: no Secret gets into the history by a prompt, and a prompt
// with one in it is still recorded once.
func TestPromptsAreMasked(t *testing.T) {
	t.Parallel()
	w := daemontest.NewWorld(t, nil)
	w.Agent = "ClaudeCode"
	w.Prompt = "Log in with hunter2hunter2."
	cfg := w.PrepareConfig(1, nil)
	cfg.Mask = mask.New([]byte("hunter2hunter2"))
	for range 2 {
		if r := prepare.Run(t.Context(), cfg); r.Reason != "Prepared" {
			t.Fatalf("%+v", r)
		}
		expect(t, "conversation", w.Lines(), []string{"user Log in with [masked]."})
		expect(t, "prompt", plan(w).Prompt, "Log in with [masked].")
	}
}
