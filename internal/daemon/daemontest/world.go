package daemontest

import (
	"cmp"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/testr"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/budget"
	"github.com/clew-dev/clew/internal/daemon/gatewayclient"
	"github.com/clew-dev/clew/internal/daemon/journal"
	"github.com/clew-dev/clew/internal/daemon/mask"
	"github.com/clew-dev/clew/internal/daemon/prepare"
	"github.com/clew-dev/clew/internal/daemon/volume"
	"github.com/clew-dev/clew/internal/daemonapi"
)

// World is a task with its volume, a server, a gitstore and an origin.
type World struct {
	T      testing.TB
	Server *Server
	Git    *Git
	UID    string
	Prompt string
	Root   string // of the volume
	RunDir string
	Origin string // URL; "" for an empty repository
	Store  string // URL of the task's repository in the gitstore
	// Margin, unless zero, bounds the acknowledged records that daemons keep.
	Margin daemonapi.SpoolMargin
	Policy daemonapi.Policy
	Source *daemonapi.Source
	// SourceWait is how long the client awaits a source that the history has lost.
	SourceWait time.Duration
	// Agent is the agent's type, Exec if empty; Context bounds the conversation that a
	// prompt contains.
	Agent   v1alpha1.AgentType
	Context daemonapi.ContextLimits
	// StatePaths are further paths of its home that checkpoints contain.
	StatePaths []string
	// Tools are those of Clew's tools that the agent gets.
	Tools []v1alpha1.AgentTool
	// Budgets are those that the manager knows when it makes a pod.
	Budgets []budget.Budget
	// Answers are those that the agent is told when it starts.
	Answers []daemonapi.RequestAnswer
	// Mask masks the values of the agent's Secrets.
	Mask *mask.Masker
	// PodUID is the UID of the pods; empty as in pods of older releases.
	PodUID   string
	RetryFor time.Duration
	// OpenWait is how long the sidecar waits for the volume; 0 for its default.
	OpenWait time.Duration
	// CallWait is how long calls of a supervisor's tools wait; 0 for the sidecar's default.
	CallWait time.Duration
	// ReturnWait is how long a hook may be away whose call waits for an answer; 0 for the sidecar's
	// default.
	ReturnWait time.Duration
	// HoldTime is how long the agent stays stopped for a set of checkpoints, BoundaryWait how long that
	// waits for the end of a call; 0 for the sidecar's defaults.
	HoldTime, BoundaryWait time.Duration
	// IdleSeconds is how long an agent may be silent, DoneGrace how long after its final
	// answer; 0 for no limit, and for the sidecar's default.
	IdleSeconds int32
	DoneGrace   time.Duration
	// TellAfter is how long the sidecar lets gitstore and server refuse what it sends
	// before it reports that; 0 for its defaults.
	TellAfter time.Duration
	// ProcessorTime is the processor time that the sidecar measures. It does not advance
	// unless a test sets it: many sidecars share a test's process.
	ProcessorTime func() time.Duration
	Verbose       bool
}

// NewWorld creates a world whose task has an origin with the given files.
func NewWorld(t testing.TB, files map[string]string) *World {
	t.Helper()
	w := &World{T: t, Server: NewServer(t), Git: NewGit(t), UID: "uid-1", Prompt: "Do it.", Root: t.TempDir(), RunDir: shortDir(t), RetryFor: 5 * time.Second,
		ProcessorTime: func() time.Duration { return 0 },
		Context:       daemonapi.ContextLimits{Messages: 200, ToolCalls: 100, ToolResultBytes: 2000, Summary: true, Bytes: 200_000}}
	if files != nil {
		w.Origin = w.Git.NewOrigin(t, files)
	}
	w.Store = w.Git.New(t, "store")
	return w
}

// shortDir creates a folder whose path is short enough for a socket in it.
func shortDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "clew")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// Fork returns another task of the same world, on a volume of its own.
func (w *World) Fork(uid string, source daemonapi.Source) *World {
	w.T.Helper()
	f := *w
	f.UID, f.Source, f.Root, f.RunDir = uid, &source, w.T.TempDir(), shortDir(w.T)
	return &f
}

// Copy returns a world in the same state as this one, independent of it.
func (w *World) Copy(t testing.TB) *World {
	t.Helper()
	c := *w
	c.T, c.Server, c.Git = t, w.Server.copy(t), NewGit(t)
	c.Root, c.RunDir = filepath.Join(t.TempDir(), "volume"), shortDir(t)
	mkdir(t, c.Root)
	for from, to := range map[string]string{w.Root: c.Root, w.Git.Dir: c.Git.Dir} {
		if out, err := exec.Command("cp", "-a", from+"/.", to+"/").CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
	}
	c.Store = strings.Replace(w.Store, w.Git.URL, c.Git.URL, 1)
	c.Origin = strings.Replace(w.Origin, w.Git.URL, c.Git.URL, 1)
	c.clonedFrom(w.Origin)
	return &c
}

// clonedFrom has the journal of a copied volume name the copy of the origin that the volume was
// cloned from.
func (w *World) clonedFrom(origin string) {
	w.T.Helper()
	path := filepath.Join(w.Root, "clew", "journal.json")
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		return // nothing was laid out yet
	}
	j, err := journal.Open(path, nil)
	if err == nil {
		err = j.Update(func(s *journal.State) error {
			if s.Cloned != nil && s.Cloned.URL == origin {
				s.Cloned.URL = w.Origin
			}
			return nil
		})
	}
	if err != nil {
		w.T.Fatal(err)
	}
}

// CopyVolume returns the same world with a copy of the volume as it is now, as after
// SIGKILL, whatever still works on this one.
func (w *World) CopyVolume() *World {
	w.T.Helper()
	c := *w
	c.Root, c.RunDir = filepath.Join(w.T.TempDir(), "volume"), shortDir(w.T)
	mkdir(w.T, c.Root)
	for again := true; again; {
		command := exec.Command("cp", "-a", w.Root+"/.", c.Root+"/")
		command.Env = append(os.Environ(), "LC_ALL=C")
		out, err := command.CombinedOutput()
		// It leaves out a file that a daemon at work replaces meanwhile, of which a kill leaves the one or the other.
		again = err != nil && strings.Contains(string(out), "replaced while being copied")
		if err != nil && !again && !onlyGone(out) {
			w.T.Fatalf("%v\n%s", err, out)
		}
	}
	return &c
}

// onlyGone reports whether cp complains about nothing but files that were deleted while it copied:
// a daemon at work makes and deletes temporary ones.
func onlyGone(out []byte) bool {
	for line := range strings.Lines(string(out)) {
		if !strings.HasSuffix(line, ": No such file or directory\n") {
			return false
		}
	}
	return true
}

func mkdir(t testing.TB, dir string) {
	t.Helper()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
}

// Pod returns the configuration of an attempt's pod.
func (w *World) Pod(attempt int64, op *daemonapi.Operation) daemonapi.Config {
	pod := daemonapi.Config{Namespace: "ns", Task: "task", TaskUID: w.UID, Attempt: attempt, PodUID: w.PodUID, ServerURL: w.Server.URL,
		GitStoreURL: w.Store, Policy: w.Policy, SpoolMargin: cmp.Or(w.Margin, daemonapi.SpoolMargin{Bytes: 64 << 20, Seconds: 3600}), AgentType: cmp.Or(w.Agent, v1alpha1.AgentExec), Context: w.Context, StatePaths: w.StatePaths, Operation: op, Source: w.Source, IdleSeconds: w.IdleSeconds, Tools: w.Tools, Budgets: w.Budgets, Answers: w.Answers}
	if w.Origin != "" {
		pod.Repository = &daemonapi.Repository{URL: w.Origin}
	}
	return pod
}

// Paths returns the paths of the volume.
func (w *World) Paths() volume.Paths {
	return volume.Paths{Worktree: filepath.Join(w.Root, "worktree"), Home: filepath.Join(w.Root, "home"), State: filepath.Join(w.Root, "clew")}
}

// Log returns the test's logger.
func (w *World) Log() logr.Logger {
	if w.Verbose {
		return testr.NewWithInterface(w.T, testr.Options{})
	}
	return logr.Discard()
}

// Client returns a client of the server with the token of an attempt's pod, and the token's
// path.
func (w *World) Client(attempt int64) (*gatewayclient.Client, string) {
	w.T.Helper()
	token := Token(w.T, w.UID, attempt)
	c, err := gatewayclient.New(gatewayclient.Config{URL: w.Server.URL, TokenFile: token, SnapshotEveryMessages: w.Policy.SnapshotEveryMessages, Source: w.Source, SourceWait: w.SourceWait})
	if err != nil {
		w.T.Fatal(err)
	}
	return c, token
}

// PrepareConfig returns prepare's configuration in an attempt's pod.
func (w *World) PrepareConfig(attempt int64, op *daemonapi.Operation) prepare.Config {
	w.T.Helper()
	client, token := w.Client(attempt)
	return prepare.Config{Pod: w.Pod(attempt, op), Prompt: w.Prompt, Paths: w.Paths(), RunDir: w.RunDir, Server: client,
		Remote: volume.Remote(w.Store, token, ""), RetryFor: w.RetryFor, Mask: w.Mask, Log: w.Log()}
}

// Prepare runs prepare for an attempt and expects it to succeed.
func (w *World) Prepare(attempt int64, op *daemonapi.Operation) daemonapi.PrepareResult {
	w.T.Helper()
	r := prepare.Run(w.T.Context(), w.PrepareConfig(attempt, op))
	if r.Reason != "Prepared" {
		w.T.Fatalf("prepare of attempt %d: %+v", attempt, r)
	}
	return r
}

// Path returns a path in the worktree.
func (w *World) Path(name string) string { return filepath.Join(w.Root, "worktree", name) }

// Write writes a file of the worktree, or deletes it if text is "".
func (w *World) Write(name, text string) {
	w.T.Helper()
	path := w.Path(name)
	if text == "" {
		if err := os.RemoveAll(path); err != nil {
			w.T.Fatal(err)
		}
		return
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		w.T.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		w.T.Fatal(err)
	}
}

// Read returns a file of the worktree; "" if it does not exist.
func (w *World) Read(name string) string {
	w.T.Helper()
	data, err := os.ReadFile(w.Path(name))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		w.T.Fatal(err)
	}
	return string(data)
}

// Tree describes every file of the worktree except the agent's .git.
func (w *World) Tree() map[string]string {
	w.T.Helper()
	out := map[string]string{}
	err := filepath.WalkDir(filepath.Join(w.Root, "worktree"), func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := strings.TrimPrefix(path, filepath.Join(w.Root, "worktree")+"/")
		if d.IsDir() {
			if d.Name() == ".git" {
				return fs.SkipDir
			}
			return nil
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		data, err := os.ReadFile(path)
		out[name] = fmt.Sprintf("%v %x", info.Mode(), sha256.Sum256(data))
		return err
	})
	if err != nil {
		w.T.Fatal(err)
	}
	return out
}

// LoseVolume replaces the volume by an empty one.
func (w *World) LoseVolume() {
	w.T.Helper()
	if err := os.RemoveAll(w.Root); err != nil {
		w.T.Fatal(err)
	}
	if err := os.Mkdir(w.Root, 0o755); err != nil {
		w.T.Fatal(err)
	}
}

// Conversation returns the active branch as the agent finds it in its file, one line per
// message.
func (w *World) Conversation() string {
	w.T.Helper()
	data, err := os.ReadFile(filepath.Join(w.RunDir, daemonapi.ConversationFile))
	if err != nil {
		w.T.Fatal(err)
	}
	return string(data)
}

// Lines returns the active branch as the server has it.
func (w *World) Lines() (lines []string) {
	w.Server.Inspect(w.UID, func(t *Task) { lines = t.Lines() })
	return lines
}
