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

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/agent"
	"github.com/clew-dev/clew/internal/daemon/daemontest"
	"github.com/clew-dev/clew/internal/daemon/launchplan"
	"github.com/clew-dev/clew/internal/daemon/mask"
	"github.com/clew-dev/clew/internal/daemon/prepare"
	"github.com/clew-dev/clew/internal/daemonapi"
)

// plan reads the launch plan.
func plan(w *daemontest.World) launchplan.Plan {
	w.T.Helper()
	p, err := launchplan.Read(w.RunDir)
	if err != nil {
		w.T.Fatal(err)
	}
	return p
}

// expectPlan expects a kind of memory, and a prompt that contains some texts and lacks others.
func expectPlan(t *testing.T, w *daemontest.World, memory v1alpha1.AgentMemory, contains, lacks []string) {
	t.Helper()
	p := plan(w)
	expect(t, "memory", p.Memory, memory)
	expectTexts(t, p.Prompt, contains, lacks)
}

func expectTexts(t *testing.T, prompt string, contains, lacks []string) {
	t.Helper()
	for _, text := range contains {
		if !strings.Contains(prompt, text) {
			t.Errorf("the prompt lacks %q:\n%.5000s", text, prompt)
		}
	}
	for _, text := range lacks {
		if strings.Contains(prompt, text) {
			t.Errorf("the prompt contains %q:\n%.5000s", text, prompt)
		}
	}
}

const continuePrompt = "Continue the task where you left off."

func TestStart(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("0123456789 Ä\n", 16<<10) // 200 KB
	rewind := func(scope string, position, checkpoint, current int64) *daemonapi.Operation {
		op := toPosition(position, checkpoint, current)
		op.Scope = v1alpha1.RewindScope(scope)
		return op
	}
	thirdStep := []action{call(3), result(3), sessionSaved, endsCleanly}
	tests := []struct {
		name string
		// first is what the first attempt does after two steps; then the task is
		// arranged, and the second attempt is given op.
		first   []action
		arrange func(*testing.T, *daemontest.World) *daemontest.World
		op      *daemonapi.Operation
		memory  v1alpha1.AgentMemory
		// prompt is the end of the prompt; contains and lacks are what else it contains,
		// and what it must not contain.
		prompt          string
		contains, lacks []string
	}{
		{name: "intact session", first: []action{endsCleanly}, memory: "Session", prompt: continuePrompt, lacks: []string{"output of"}},
		{name: "killed, session intact", first: []action{call(3), result(3), sessionSaved}, memory: "Session", prompt: continuePrompt, lacks: []string{"output of"}},
		{name: "session lacks the last result", first: []action{call(3), result(3)}, memory: "Session", prompt: continuePrompt, contains: []string{"step 3", "output of 3"}, lacks: []string{"output of 2"}},
		{name: "interrupted call", first: []action{call(3)}, memory: "Session", prompt: continuePrompt, contains: []string{"step 3", "interrupted"}, lacks: []string{"output of 2"}},
		{name: "resume with a prompt", first: []action{endsCleanly}, op: &daemonapi.Operation{Kind: "Resume", ID: "r", Prompt: "More."}, memory: "Session", prompt: "More.", lacks: []string{continuePrompt, "output of"}},
		{name: "resume with a long prompt", first: []action{endsCleanly}, op: &daemonapi.Operation{Kind: "Resume", ID: "r", Prompt: long}, memory: "Session", prompt: long},
		{name: "lost volume", first: []action{call(3), result(3), sessionSaved}, memory: "Session", prompt: continuePrompt, lacks: []string{"output of"},
			arrange: func(t *testing.T, w *daemontest.World) *daemontest.World { w.LoseVolume(); return w }},
		{name: "session file gone", first: []action{endsCleanly}, memory: "Rendered", prompt: continuePrompt, contains: []string{"Do it.", "step 1", "output of 1", "output of 2"},
			arrange: func(t *testing.T, w *daemontest.World) *daemontest.World {
				name, _ := sessionFile[w.Agent](nil)
				if err := os.Remove(filepath.Join(w.Root, "home", name)); err != nil {
					t.Fatal(err)
				}
				return w
			}},
		{name: "session file is a pipe", memory: "Rendered", prompt: continuePrompt, contains: []string{"output of 2"},
			arrange: func(t *testing.T, w *daemontest.World) *daemontest.World {
				name, _ := sessionFile[w.Agent](nil)
				pipe(t, filepath.Join(w.Root, "home", name))
				return w
			}},
		{name: "refused session", first: []action{sessionRefused, endsCleanly}, memory: "Rendered", prompt: continuePrompt, contains: []string{"output of 2"}},
		{name: "refused session, lost volume", first: []action{sessionRefused, endsCleanly}, memory: "Rendered", prompt: continuePrompt, contains: []string{"output of 2"},
			arrange: func(t *testing.T, w *daemontest.World) *daemontest.World { w.LoseVolume(); return w }},
		{name: "rewind of both", first: thirdStep, op: rewind("Both", 0, 1, 3), memory: "Session", prompt: continuePrompt, lacks: []string{"output of"}},
		{name: "rewind of the code", first: thirdStep, op: rewind("Code", 0, 1, 3), memory: "Session", prompt: continuePrompt, lacks: []string{"output of"}},
		{name: "rewind to a position, exact", first: thirdStep, op: rewind("Conversation", 3, 1, 3), memory: "Session", prompt: continuePrompt, lacks: []string{"output of"}},
		{name: "rewind to a position after the checkpoint", first: thirdStep, op: rewind("Conversation", 6, 1, 3), memory: "Session", prompt: continuePrompt,
			contains: []string{"one", "step 2", "output of 2"}, lacks: []string{"output of 1", "output of 3"}},
		{name: "rewind to before any checkpoint", first: thirdStep, op: rewind("Conversation", 3, 0, 0), memory: "Rendered", prompt: continuePrompt,
			contains: []string{"Do it.", "step 1", "output of 1"}, lacks: []string{"step 2", "output of 2", "output of 3", "Assistant"}},
		{name: "rewind to the prompt", first: thirdStep, op: rewind("Conversation", 1, 0, 0), memory: "New", prompt: "Do it.", lacks: []string{"step 1", "output of", continuePrompt}},
		{name: "fork", first: []action{endsCleanly}, memory: "Session", prompt: "Do it another way.", lacks: []string{"output of"},
			arrange: fork("", true)},
		{name: "fork of another kind", first: []action{endsCleanly}, memory: "Rendered", prompt: "Do it another way.", contains: []string{"Do it.", "output of 1"}, lacks: []string{"output of 2", continuePrompt},
			arrange: fork("OpenCode", true)},
		{name: "fork without the conversation", first: []action{endsCleanly}, memory: "New", prompt: "Do it another way.", lacks: []string{"output of", continuePrompt, "Do it."},
			arrange: fork("", false)},
	}
	for agentType := range sessionFile {
		t.Run(string(agentType), func(t *testing.T) {
			t.Parallel()
			started := map[string]*daemontest.World{}
			for _, tt := range tests {
				key := names(tt.first)
				if started[key] == nil {
					started[key] = begun(t, agentType, tt.first...)
				}
				first := started[key]
				t.Run(tt.name, func(t *testing.T) {
					t.Parallel()
					w := first.Copy(t)
					if tt.arrange != nil {
						w = tt.arrange(t, w)
					}
					r := w.Prepare(2, tt.op)
					p := plan(w)
					want := launchplan.Plan{AgentType: w.Agent, Memory: tt.memory, Prompt: p.Prompt}
					if tt.memory == v1alpha1.AgentMemorySession {
						want.Session = sessionID
					}
					if d := cmp.Diff(want, p); d != "" {
						t.Fatalf("plan (-want +got), with the reason %q:\n%.5000s", r.MemoryMessage, d)
					}
					if r.Memory != tt.memory {
						t.Errorf("the result's memory is %s, want %s", r.Memory, tt.memory)
					}
					if !strings.HasSuffix(p.Prompt, tt.prompt) {
						t.Errorf("the prompt does not end in %q:\n%.5000s", tt.prompt, p.Prompt)
					}
					expectTexts(t, p.Prompt, tt.contains, nil)
					expectTexts(t, strings.TrimSuffix(p.Prompt, tt.prompt), nil, tt.lacks)
					// The same again in the same pod, and then in the next one.
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
					t.Fatalf("the workspace is not prepared for a new session: %+v", r)
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
			t.Fatalf("the memory is %q, want none: %+v", r.Memory, r)
		}
		if _, err := launchplan.Read(w.RunDir); !errors.Is(err, fs.ErrNotExist) {
			t.Fatalf("there is a plan for an agent of type Exec (%v)", err)
		}
	})
}

// TestStartsFollowEachOther: what was in one prompt is not in the next, and what was
// rendered is not part of the session that began then.
func TestStartsFollowEachOther(t *testing.T) {
	t.Parallel()
	w := begun(t, "ClaudeCode", call(3), result(3)) // the session lacks 3
	w.Prepare(2, nil)
	if p := plan(w); !strings.Contains(p.Prompt, "output of 3") {
		t.Fatalf("the prompt lacks the result that the session lacks: %s", p.Prompt)
	}
	play(w, 2, call(4), result(4), sessionSaved, call(5), result(5)) // now it lacks 5, and still 3
	name, _ := sessionFile["ClaudeCode"](nil)
	_, text := sessionFile["ClaudeCode"]([]string{"1", "2", "4"})
	if err := os.WriteFile(filepath.Join(w.Root, "home", name), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	w.Prepare(3, nil)
	expectPlan(t, w, "Session", []string{"output of 5"}, []string{"output of 3"})
	play(w, 3, sessionRefused)
	w.Prepare(4, nil)
	expectPlan(t, w, "Rendered", []string{"output of 3"}, nil)
	if n := len(slices.DeleteFunc(w.Lines(), func(l string) bool { return l != "user "+continuePrompt })); n != 2 {
		t.Fatalf("the agent was told to go on %d times:\n%s", n, strings.Join(w.Lines(), "\n"))
	}
}

// TestRestoredOnceMore: a rewind whose last checkpoint is restored to a new volume
// gives the same plan.
func TestRestoredOnceMore(t *testing.T) {
	t.Parallel()
	w := begun(t, "ClaudeCode", call(3), result(3), sessionSaved, endsCleanly)
	op := toPosition(6, 1, 3)
	w.Prepare(2, op)
	want := plan(w)
	w.LoseVolume()
	w.Prepare(3, op)
	expect(t, "plan", plan(w), want)
}

// TestLimitsOfTheOperation: a resume may set limits other than the task's.
func TestLimitsOfTheOperation(t *testing.T) {
	t.Parallel()
	w := begun(t, "ClaudeCode", sessionRefused, endsCleanly)
	w.Prepare(2, &daemonapi.Operation{Kind: "Resume", ID: "r", Prompt: "More.", Context: &daemonapi.ContextLimits{Messages: 10, Bytes: 10_000}})
	expectPlan(t, w, "Rendered", []string{"Do it."}, []string{"output of"})
}

// TestOnlyTheSessionIsKept: checkpoints of an agent of known type contain its sessions and
// what the user names of its home; not the credentials.
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
	play(w, 1, call(1), result(1), sessionSaved, endsCleanly)
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
	w.Server.Inspect(w.UID, func(k *daemontest.Task) {
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
	lost := begun(t, "ClaudeCode", call(3), result(3))
	rewound := begun(t, "ClaudeCode", call(3), result(3), sessionSaved, endsCleanly)
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

// pipe replaces a file by a named pipe.
func pipe(t *testing.T, path string) {
	t.Helper()
	if err := errors.Join(os.Remove(path), unix.Mkfifo(path, 0o600)); err != nil {
		t.Fatal(err)
	}
}

// TestPromptsAreMasked: no Secret reaches the history through a prompt, and a prompt that
// contains one is still recorded once.
func TestPromptsAreMasked(t *testing.T) {
	t.Parallel()
	w := daemontest.NewWorld(t, nil)
	w.Agent = "ClaudeCode"
	w.Prompt = "Log in with hunter2hunter2."
	cfg := w.PrepareConfig(1, nil)
	cfg.Mask = mask.New([]byte("hunter2hunter2"))
	for range 2 {
		if r := prepare.Run(t.Context(), cfg); r.Reason != "Prepared" {
			t.Fatalf("the reason is %v, want Prepared: %+v", r.Reason, r)
		}
		expect(t, "conversation", w.Lines(), []string{"user Log in with [masked]."})
		expect(t, "prompt", plan(w).Prompt, "Log in with [masked].")
	}
}
