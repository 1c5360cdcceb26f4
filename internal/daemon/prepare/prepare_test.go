package prepare_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/daemon/daemontest"
	"github.com/clew-dev/clew/internal/daemon/journal"
	"github.com/clew-dev/clew/internal/daemon/prepare"
	"github.com/clew-dev/clew/internal/daemon/wire"
	"github.com/clew-dev/clew/internal/daemonapi"
	daemonv1 "github.com/clew-dev/clew/internal/daemonapi/v1"
	"github.com/clew-dev/clew/internal/refname"
)

var files = map[string]string{"a.txt": "a\n", "dir/b.txt": "b\n", ".gitignore": "ignored\n"}

// attempt runs an agent in a prepared pod to its end.
func attempt(w *daemontest.World, n int64, work func(*daemontest.Shim)) {
	w.T.Helper()
	d := w.Start(n)
	a := w.Dial(fmt.Sprintf("session-%d", n))
	work(a)
	a.Send(wire.TypeExit, wire.Exit{Code: 0})
	a.Next(wire.TypeRelease)
	d.End()
}

// step makes one call that writes a file, and waits for the checkpoint after it.
func step(w *daemontest.World, a *daemontest.Shim, id, file, text string) {
	w.T.Helper()
	w.Write(file, text)
	home(w, id)
	a.Call(id)
	a.Recorded()
	a.Next(wire.TypeThaw)
}

// home sets the agent's state.
func home(w *daemontest.World, text string) {
	w.T.Helper()
	if err := os.WriteFile(filepath.Join(w.Root, "home", "session"), []byte(text), 0o600); err != nil {
		w.T.Fatal(err)
	}
}

func readHome(w *daemontest.World) string {
	data, _ := os.ReadFile(filepath.Join(w.Root, "home", "session"))
	return string(data)
}

// three is a task that made three calls with a checkpoint after each, and one at its end:
// number 4, equal to number 3.
func three(t *testing.T) *daemontest.World {
	t.Helper()
	w := daemontest.NewWorld(t, files)
	w.Policy.EveryToolCalls = 1
	w.Prepare(1, nil)
	attempt(w, 1, func(a *daemontest.Shim) {
		step(w, a, "1", "one.txt", "1\n")
		step(w, a, "2", "a.txt", "changed by 2\n")
		w.Write("dir", "")
		step(w, a, "3", "three/ignored", "3\n")
	})
	return w
}

var callsOfThree = []string{"user Do it.", "call 1", "result 1", "call 2", "result 2", "call 3", "result 3"}

func expect[T any](t *testing.T, what string, got, want T) {
	t.Helper()
	if d := cmp.Diff(want, got); d != "" {
		t.Fatalf("%s (-want +got):\n%s", what, d)
	}
}

func state(t *testing.T, w *daemontest.World) journal.State {
	t.Helper()
	j, err := journal.Open(filepath.Join(w.Root, "clew", "journal.json"), nil)
	if err != nil {
		t.Fatal(err)
	}
	return j.State()
}

// expectCheckpoint compares a checkpoint's number, trigger and durability.
func expectCheckpoint(t *testing.T, got, want *daemonv1.CheckpointRecord) {
	t.Helper()
	found := &daemonv1.CheckpointRecord{Number: got.GetNumber(), Trigger: got.GetTrigger(), Durable: got.GetDurable()}
	if d := cmp.Diff(want, found, protocmp.Transform()); d != "" {
		t.Fatalf("checkpoint (-want +got):\n%s", d)
	}
}

func checkpointRecord(w *daemontest.World, n int64) (c *daemonv1.CheckpointRecord) {
	w.Server.Inspect(w.UID, func(k *daemontest.Task) { c = k.Checkpoints[n] })
	return c
}

func latest(w *daemontest.World) (c *daemonv1.CheckpointRecord) {
	w.Server.Inspect(w.UID, func(k *daemontest.Task) { c = k.Latest() })
	return c
}

func rewindTo(n int64, scope, preserve string) *daemonapi.Operation {
	return &daemonapi.Operation{Kind: daemonapi.OperationRewind, ID: fmt.Sprintf("rewind-%d-%s", n, scope), Checkpoint: n, Scope: v1alpha1.RewindScope(scope), Preserve: v1alpha1.PreserveMode(preserve)}
}

func TestFirstStart(t *testing.T) {
	t.Parallel()
	w := daemontest.NewWorld(t, files)
	for range 2 {
		w.Prepare(1, nil)
	}
	w.Prepare(2, nil)
	expect(t, "conversation", w.Lines(), []string{"user Do it."})
	expect(t, "a file", w.Read("dir/b.txt"), "b\n")
	if !strings.Contains(w.Conversation(), `{"type":"message","role":"user","text":"Do it."`) {
		t.Fatalf("the agent finds %s", w.Conversation())
	}
	s := state(t, w)
	if s.Base == "" {
		t.Error("the journal has no base")
	}
	expect(t, "parent", s.Parent, s.Base)
	expect(t, "attempt", s.Attempt, 2)
}

func TestEmptyRepository(t *testing.T) {
	t.Parallel()
	w := daemontest.NewWorld(t, nil)
	w.Prepare(1, nil)
	expect(t, "branch", w.Git.Run(t, w.Path(""), "symbolic-ref", "HEAD"), "refs/heads/main")
}

func TestFailures(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name      string
		arrange   func(*daemontest.World, *prepare.Config)
		reason    string
		permanent bool
	}{
		{"no repository", func(w *daemontest.World, c *prepare.Config) { c.Pod.Repository.URL += "x" }, "RepositoryNotFound", true},
		{"no ref", func(w *daemontest.World, c *prepare.Config) { c.Pod.Repository.Ref = "nowhere" }, "RefNotFound", true},
		{"bad ref", func(w *daemontest.World, c *prepare.Config) { c.Pod.Repository.Ref = "--upload-pack=x" }, "RefNotFound", true},
		{"no Secret", func(w *daemontest.World, c *prepare.Config) {
			c.Pod.Repository.CredentialsSecret, c.CredentialsDir = "git-credentials", t.TempDir()
		}, "CredentialsNotFound", true},
		{"half a Secret", func(w *daemontest.World, c *prepare.Config) {
			c.Pod.Repository.CredentialsSecret, c.CredentialsDir = "git-credentials", secret(t, map[string]string{"username": "me"})
		}, "CredentialsNotFound", true},
		{"repository down", func(w *daemontest.World, c *prepare.Config) { w.Git.SetDown(true) }, "RepositoryUnreachable", false},
		{"server down", func(w *daemontest.World, c *prepare.Config) { w.Server.SetDown(true) }, "ServerUnreachable", false},
		{"no source", func(w *daemontest.World, c *prepare.Config) {
			c.Pod.Source = &daemonapi.Source{TaskUID: "nobody", Checkpoint: 3}
		}, "CheckpointNotFound", true},
		{"unknown operation", func(w *daemontest.World, c *prepare.Config) {
			c.Pod.Operation = &daemonapi.Operation{Kind: "Dance", ID: "x"}
		}, "PrepareFailed", true},
		{"another task's volume", func(w *daemontest.World, c *prepare.Config) {
			w.Prepare(1, nil)
			c.Pod.TaskUID = "uid-2"
		}, "PrepareFailed", true},
		{"unknown agent", func(w *daemontest.World, c *prepare.Config) { c.Pod.AgentType = "HAL" }, "PrepareFailed", true},
		{"newer attempt", func(w *daemontest.World, c *prepare.Config) { w.Prepare(2, nil) }, "Fenced", false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			w := daemontest.NewWorld(t, files)
			w.RetryFor = 300 * time.Millisecond
			cfg := w.PrepareConfig(1, nil)
			tt.arrange(w, &cfg)
			r := prepare.Run(t.Context(), cfg)
			expect(t, "reason", r.Reason, tt.reason)
			expect(t, "permanent", r.Permanent, tt.permanent)
			if r.Message == "" {
				t.Error("there is no message")
			}
			t.Log(r.Message)
		})
	}
}

// TestACorrectedRepository: a clone that failed goes on with the repository that the task names
// by then; a workspace that is laid out stays as it is.
func TestACorrectedRepository(t *testing.T) {
	t.Parallel()
	for name, mistake := range map[string]func(*daemonapi.Repository){
		"another repository": func(r *daemonapi.Repository) { r.URL += "x" },
		"another ref":        func(r *daemonapi.Repository) { r.Ref = "nowhere" },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := daemontest.NewWorld(t, files)
			wrong := w.PrepareConfig(1, nil)
			mistake(wrong.Pod.Repository)
			if r := prepare.Run(t.Context(), wrong); !r.Permanent {
				t.Fatalf("the wrong repository: %+v", r)
			}
			w.Prepare(2, nil)
			expect(t, "a.txt", w.Read("a.txt"), files["a.txt"])

			wrong = w.PrepareConfig(3, nil)
			mistake(wrong.Pod.Repository)
			r := prepare.Run(t.Context(), wrong)
			expect(t, "reason", r.Reason, v1alpha1.ReasonRepositoryMismatch)
			expect(t, "permanent", r.Permanent, true)
			w.Prepare(4, nil)
			expect(t, "a.txt", w.Read("a.txt"), files["a.txt"])
		})
	}
}

// secret creates a folder like a Secret mounted by the kubelet.
func secret(t *testing.T, keys map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for key, value := range keys {
		if err := os.WriteFile(filepath.Join(dir, key), []byte(value), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestCredentials(t *testing.T) {
	t.Parallel()
	for name, keys := range map[string]map[string]string{"token": {"token": "x\n"}, "password": {"username": "me", "password": "x"}} {
		t.Run(name, func(t *testing.T) {
			w := daemontest.NewWorld(t, files)
			cfg := w.PrepareConfig(1, nil)
			cfg.Pod.Repository.CredentialsSecret, cfg.CredentialsDir = "git-credentials", secret(t, keys)
			if r := prepare.Run(t.Context(), cfg); r.Reason != "Prepared" {
				t.Fatalf("the reason is %v, want Prepared: %+v", r.Reason, r)
			}
			// A volume that is laid out does not need them any more.
			cfg.CredentialsDir = t.TempDir()
			if r := prepare.Run(t.Context(), cfg); r.Reason != "Prepared" {
				t.Fatalf("the reason is %v, want Prepared: %+v", r.Reason, r)
			}
		})
	}
}

// TestWaitsForTheServer: an outage shorter than RetryFor does no harm.
func TestWaitsForTheServer(t *testing.T) {
	t.Parallel()
	w := daemontest.NewWorld(t, files)
	w.Server.SetDown(true)
	w.Git.SetDown(true)
	time.AfterFunc(500*time.Millisecond, func() { w.Server.SetDown(false) })
	time.AfterFunc(900*time.Millisecond, func() { w.Git.SetDown(false) })
	w.Prepare(1, nil)
}

func TestLostVolume(t *testing.T) {
	t.Parallel()
	w := three(t)
	want := w.Tree()
	w.LoseVolume()
	r := w.Prepare(2, nil)
	if !r.Restored {
		t.Fatalf("the result does not say that the workspace was restored: %+v", r)
	}
	expect(t, "tree", w.Tree(), want)
	expect(t, "home", readHome(w), "3")
	expect(t, "conversation", w.Lines(), callsOfThree)
	expect(t, "newest checkpoint", latest(w).GetNumber(), 4)
	attempt(w, 2, func(a *daemontest.Shim) { step(w, a, "4", "four", "4") })
	c := checkpointRecord(w, 5)
	expect(t, "parent", c.GetParent(), checkpointRecord(w, 4).GetCommit())
	expect(t, "base", c.GetBase(), checkpointRecord(w, 1).GetBase())
	expect(t, "files changed", c.GetFilesChanged(), 1)
}

// TestLostVolumeLosesWhatWasNotDurable: files and agent state go back together.
func TestLostVolumeLosesWhatWasNotDurable(t *testing.T) {
	t.Parallel()
	w := daemontest.NewWorld(t, files)
	w.Policy.EveryToolCalls = 1
	w.Prepare(1, nil)
	d := w.Start(1)
	a := w.Dial("s")
	step(w, a, "1", "one", "1")
	w.Server.Until(t, "it is durable", w.UID, func(k *daemontest.Task) bool { return k.Checkpoints[1].GetDurable() })
	w.Git.SetDown(true)
	step(w, a, "2", "two", "2")
	a.Say(`{"type":"tool_call","id":"3","name":"x"}`)
	a.Recorded()
	w.Server.Until(t, "the server knows of it all", w.UID, func(k *daemontest.Task) bool { return len(k.Active) == 6 && k.Latest().GetNumber() == 2 })
	lost := *w
	lost.Root, lost.RunDir = t.TempDir(), t.TempDir()
	w.Git.SetDown(false)
	w.Git.Fence(2) // the old pod must not come first
	defer d.End()

	lost.Git = w.Git
	r := lost.Prepare(2, nil)
	if !r.Restored {
		t.Fatalf("the result does not say that the workspace was restored: %+v", r)
	}
	expect(t, "one", lost.Read("one"), "1")
	expect(t, "two", lost.Read("two"), "")
	expect(t, "conversation", lost.Lines(), []string{"user Do it.", "call 1", "result 1"})
	c := latest(&lost)
	expect(t, "number", c.GetNumber(), 3)
	expect(t, "trigger", c.GetTrigger(), "Rewound")
	expect(t, "tree", c.GetTree(), checkpointRecord(&lost, 1).GetTree())
}

// TestLostVolumeBeforeAnyCheckpoint: the task starts over, with its prompt.
func TestLostVolumeBeforeAnyCheckpoint(t *testing.T) {
	t.Parallel()
	w := daemontest.NewWorld(t, files)
	w.Prepare(1, nil)
	d := w.Start(1)
	a := w.Dial("s")
	a.Call("1", "2")
	a.Recorded()
	w.Server.Until(t, "the server has it", w.UID, func(k *daemontest.Task) bool { return len(k.Active) == 5 })
	lost := *w
	lost.Root, lost.RunDir = t.TempDir(), t.TempDir()
	for range 2 {
		lost.Prepare(2, nil)
	}
	expect(t, "conversation", lost.Lines(), []string{"user Do it."})
	expect(t, "a file", lost.Read("a.txt"), "a\n")
	d.End()
}

func TestOpenCallsAreAnswered(t *testing.T) {
	t.Parallel()
	w := daemontest.NewWorld(t, nil)
	w.Prepare(1, nil)
	d := w.Start(1)
	a := w.Dial("s")
	a.Say(`{"type":"tool_call","id":"1","name":"x"}`, `{"type":"tool_call","id":"2","name":"x"}`, `{"type":"tool_result","id":"2"}`)
	a.Recorded()
	killed := w.CopyVolume()
	for range 2 {
		killed.Prepare(2, nil)
	}
	expect(t, "conversation", killed.Lines(), []string{"user Do it.", "call 1", "call 2", "result 2", "interrupted 1"})
	if !strings.Contains(killed.Conversation(), `"interrupted":true`) {
		t.Fatal(killed.Conversation())
	}
	d.End()
}

func TestResumePromptOnce(t *testing.T) {
	t.Parallel()
	w := three(t)
	op := &daemonapi.Operation{Kind: daemonapi.OperationResume, ID: "r1", Prompt: "And now the rest."}
	for n := int64(2); n < 5; n++ {
		if r := w.Prepare(n, op); r.Operation != "r1" {
			t.Fatalf("the operation is %v, want r1: %+v", r.Operation, r)
		}
	}
	w.LoseVolume()
	// Everything after the newest checkpoint is lost with the volume, prompts included: the
	// server remembers that the operation was carried out.
	w.Prepare(5, op)
	w.Server.Inspect(w.UID, func(k *daemontest.Task) {
		n := 0
		for _, r := range k.Records {
			if r.GetMessage().GetText() == op.Prompt {
				n++
			}
		}
		if n != 1 {
			t.Errorf("the prompt is recorded %d times", n)
		}
	})
}

func TestFork(t *testing.T) {
	t.Parallel()
	source := three(t)
	for _, include := range []bool{true, false} {
		t.Run(fmt.Sprint(include), func(t *testing.T) {
			w := source.Fork(fmt.Sprintf("fork-%v", include), daemonapi.Source{TaskUID: source.UID, Checkpoint: 2,
				Commit: checkpointRecord(source, 2).GetCommit(), IncludeConversation: include})
			w.Prompt = "Do it."
			for range 2 {
				w.Prepare(1, nil)
			}
			expect(t, "a.txt", w.Read("a.txt"), "changed by 2\n")
			expect(t, "dir/b.txt", w.Read("dir/b.txt"), "b\n")
			want, wantHome, wantState := []string{"user Do it."}, "", ""
			if include {
				want, wantHome, wantState = callsOfThree[:5], "2", checkpointRecord(source, 2).GetStateCommit()
			}
			expect(t, "the source's states on the volume", statesOf(t, w, source.UID), wantState)
			expect(t, "conversation", w.Lines(), want)
			expect(t, "home", readHome(w), wantHome)
			attempt(w, 1, func(a *daemontest.Shim) { step(w, a, "f1", "f", "f") })
			c := checkpointRecord(w, 1)
			expect(t, "parent", c.GetParent(), checkpointRecord(source, 2).GetCommit())
			expect(t, "base", c.GetBase(), checkpointRecord(source, 1).GetBase())
			expect(t, "files changed", c.GetFilesChanged(), 1)
			w.LoseVolume()
			w.Prepare(2, nil)
			expect(t, "f", w.Read("f"), "f")
		})
	}
	t.Run("another prompt", func(t *testing.T) {
		w := source.Fork("fork-prompt", daemonapi.Source{TaskUID: source.UID, Checkpoint: 1, IncludeConversation: true})
		w.Prompt = "Do something else."
		w.Prepare(1, nil)
		w.LoseVolume() // before it has any checkpoint
		w.Prepare(2, nil)
		expect(t, "conversation", w.Lines(), append(slices.Clone(callsOfThree[:3]), "user Do something else."))
	})
	t.Run("wrong commit", func(t *testing.T) {
		w := source.Fork("fork-wrong", daemonapi.Source{TaskUID: source.UID, Checkpoint: 1, Commit: checkpointRecord(source, 2).GetCommit()})
		if r := prepare.Run(t.Context(), w.PrepareConfig(1, nil)); r.Reason != "CheckpointCorrupted" {
			t.Fatalf("the reason is %v, want CheckpointCorrupted: %+v", r.Reason, r)
		}
	})
}

func TestDrift(t *testing.T) {
	t.Parallel()
	drifted := func(t *testing.T) *daemontest.World {
		w := three(t)
		w.Write("one.txt", "edited by hand\n")
		w.Write("new", "by hand\n")
		return w
	}
	t.Run("fail", func(t *testing.T) {
		w := drifted(t)
		store := filepath.Join(w.Git.Dir, "store.git")
		for _, op := range []*daemonapi.Operation{nil, {Kind: daemonapi.OperationResume, ID: "r", Prompt: "go", OnDrift: "Fail"}, rewindTo(1, "Both", "Discard")} {
			r := prepare.Run(t.Context(), w.PrepareConfig(2, op))
			expect(t, "result", r, daemonapi.PrepareResult{Reason: "DriftDetected", Permanent: true, Message: r.Message,
				DriftCount: 2, DriftedFiles: []string{"new", "one.txt"}, DriftedActions: "AM", DriftFrom: latest(w).GetNumber(), DriftCommit: r.DriftCommit})
			expect(t, "the drifted file in the gitstore", strings.TrimSpace(w.Git.Run(t, store, "show", refname.Live(w.UID)+":one.txt")), "edited by hand")
			expect(t, "the commit in the gitstore", strings.TrimSpace(w.Git.Run(t, store, "rev-parse", refname.Live(w.UID))), r.DriftCommit)
		}
		expect(t, "one.txt", w.Read("one.txt"), "edited by hand\n")
		expect(t, "conversation", w.Lines(), callsOfThree)
	})
	t.Run("preserve", func(t *testing.T) {
		w := drifted(t)
		r := w.Prepare(2, &daemonapi.Operation{Kind: daemonapi.OperationResume, ID: "r", Prompt: "go", OnDrift: "Preserve"})
		if r.DriftCount != 2 || r.DriftedActions != "AM" || r.DriftCommit != "" {
			t.Fatalf("the result is %+v, want 2 drifted files, and no commit beside the checkpoint", r)
		}
		expect(t, "one.txt", w.Read("one.txt"), "edited by hand\n")
		expect(t, "trigger", latest(w).GetTrigger(), "Drift")
		expect(t, "files changed", latest(w).GetFilesChanged(), 2)
		w.Prepare(3, nil)
	})
	t.Run("a HEAD that was moved is a warning", func(t *testing.T) {
		w := three(t)
		before := gitIn(t, w, "rev-parse", "HEAD")
		branch := gitIn(t, w, "symbolic-ref", "--short", "HEAD")
		gitIn(t, w, "switch", "--quiet", "-c", "by-hand")
		r := w.Prepare(2, &daemonapi.Operation{Kind: daemonapi.OperationResume, ID: "r", OnDrift: "Fail"})
		expect(t, "files", r.DriftCount, 0)
		expect(t, "HEAD", *r.MovedHead, daemonapi.MovedHead{FromBranch: branch, FromCommit: before, Branch: "by-hand", Commit: before})
		expect(t, "the agent's branch", gitIn(t, w, "symbolic-ref", "--short", "HEAD"), "by-hand")
	})
	t.Run("override", func(t *testing.T) {
		w := drifted(t)
		r := w.Prepare(2, &daemonapi.Operation{Kind: daemonapi.OperationResume, ID: "r", OnDrift: "Override"})
		expect(t, "the files that drifted", r.DriftedFiles, []string{"new", "one.txt"})
		expect(t, "one.txt", w.Read("one.txt"), "1\n")
		expect(t, "new", w.Read("new"), "")
	})
	t.Run("not after a kill", func(t *testing.T) {
		w := three(t)
		d := w.Start(1) // it is restarted in the hold: still clean
		d.End()
		w.Prepare(2, nil)
		d = w.Start(2)
		w.Write("one.txt", "by the agent\n")
		killed := w.CopyVolume()
		killed.Prepare(3, nil)
		d.End()
	})
}

func TestStaleVolume(t *testing.T) {
	t.Parallel()
	w := daemontest.NewWorld(t, files)
	w.Policy.EveryToolCalls = 1
	w.Prepare(1, nil)
	old := filepath.Join(t.TempDir(), "old")
	if err := os.CopyFS(old, os.DirFS(w.Root)); err != nil {
		t.Fatal(err)
	}
	attempt(w, 1, func(a *daemontest.Shim) { step(w, a, "1", "one", "1") })
	want := w.Tree()
	w.Root = old
	w.Write("precious", "x")
	if r := w.Prepare(2, nil); !r.Restored {
		t.Fatalf("the result does not say that the workspace was restored: %+v", r)
	}
	expect(t, "tree", w.Tree(), want)
	if c := checkpointRecord(w, 3); c.GetTrigger() != "Drift" {
		t.Fatalf("the trigger is %v, want Drift: %+v", c.GetTrigger(), c)
	}
}

func TestEncodeFitsTheTerminationMessage(t *testing.T) {
	t.Parallel()
	r := daemonapi.PrepareResult{Reason: "DriftDetected", Message: strings.Repeat("ä\"", 3000), DriftCount: 9999}
	for i := range 3000 {
		r.DriftedFiles = append(r.DriftedFiles, fmt.Sprintf("some/quite/long/path/of/file/%d", i))
	}
	b, err := prepare.Encode(r)
	if err != nil {
		t.Fatal(err)
	}
	if len(b) > 4096 || len(b) < 2000 {
		t.Fatalf("the result has %d bytes, want 2000 to 4096", len(b))
	}
}
