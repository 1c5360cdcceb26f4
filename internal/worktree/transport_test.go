package worktree

import (
	"context"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/clew-dev/clew/internal/refname"
)

// countingGit creates a git that logs each of its starts to a file.
func countingGit(t *testing.T) (git, log string) {
	t.Helper()
	dir := t.TempDir()
	git, log = filepath.Join(dir, "git"), filepath.Join(dir, "log")
	writeFile(t, git, "#!/bin/sh\necho . >>'"+log+"'\nexec git \"$@\"\n", 0o755)
	return git, log
}

func TestAPushOfManyRefsStartsFewProcesses(t *testing.T) {
	f := cloned(t, makeOrigin(t, 3))
	c := f.checkpoint()
	must(t, f.repo.Close())
	config := f.config()
	var log string
	config.Git, log = countingGit(t)
	repo, err := Open(context.Background(), config)
	must(t, err)
	defer repo.Close()
	repo.local = true
	store := filepath.Join(t.TempDir(), "store.git")
	gitIn(t, t.TempDir(), "init", "-q", "--bare", store)
	var updates []RefUpdate
	for i := range 300 {
		updates = append(updates, RefUpdate{Source: c.Code, Name: fmt.Sprintf("refs/heads/b%d", i)}, RefUpdate{Source: c.StateRef, Name: refname.State("uid-1", int64(i+1))})
	}
	before, _ := os.ReadFile(log)
	must(t, repo.Push(context.Background(), Remote{URL: "file://" + store}, updates...))
	after, err := os.ReadFile(log)
	must(t, err)
	if started := strings.Count(string(after), ".") - strings.Count(string(before), "."); started > 10 {
		t.Errorf("a push of %d refs started git %d times, want at most 10", len(updates), started)
	}
	refs, err := repo.RemoteRefs(context.Background(), Remote{URL: "file://" + store}, "refs/clew/uid-1/")
	if err != nil || len(refs) != 300 {
		t.Errorf("the remote has %d checkpoints (error: %v), want 300", len(refs), err)
	}
}

func TestLargeFilesArePushedWithoutDeltas(t *testing.T) {
	f := cloned(t, makeOrigin(t, 3))
	store := filepath.Join(t.TempDir(), "store.git")
	gitIn(t, t.TempDir(), "init", "-q", "--bare", store)
	var updates []RefUpdate
	for i := range 3 {
		// A sparse file in the agent's own repository, with small changes.
		f.write(".git/large", fmt.Sprintf("%d", i))
		must(t, os.Truncate(filepath.Join(f.work, ".git/large"), 24<<20))
		c := f.checkpoint()
		updates = append(updates, RefUpdate{Source: c.Code, Name: c.CodeRef}, RefUpdate{Source: c.State, Name: c.StateRef})
	}
	must(t, f.repo.Push(context.Background(), Remote{URL: "file://" + store}, updates...))
	objects := gitIn(t, store, "cat-file", "--batch-all-objects", "--batch-check=%(objectsize) %(deltabase)")
	large := 0
	for line := range strings.Lines(objects) {
		size, base, _ := strings.Cut(strings.TrimSpace(line), " ")
		if len(size) < 8 { // below 10 MB
			continue
		}
		if large++; strings.Trim(base, "0") != "" {
			t.Errorf("a file of %s bytes was sent as a delta", size)
		}
	}
	if large != 3 {
		t.Errorf("%d large files arrived, want 3", large)
	}
}

// starts returns how often a countingGit was started during f.
func starts(t *testing.T, log string, f func()) int {
	t.Helper()
	before, _ := os.ReadFile(log)
	f()
	after, _ := os.ReadFile(log)
	return len(after)/2 - len(before)/2
}

// A running agent is checked, checkpointed and pushed after each of its steps, on a node
// with many others, so every git process counts.
func TestAStepOfAnAgentStartsFewProcesses(t *testing.T) {
	f := cloned(t, makeOrigin(t, 3))
	var log string
	f.repo.cfg.Git, log = countingGit(t)
	store := filepath.Join(t.TempDir(), "store.git")
	gitIn(t, t.TempDir(), "init", "-q", "--bare", store)
	step := func() (c Checkpoint) {
		f.write("step", fmt.Sprint(f.n))
		c = f.checkpoint()
		must(t, f.repo.Push(context.Background(), Remote{URL: "file://" + store}, RefUpdate{Source: c.Code, Name: c.CodeRef}, RefUpdate{Source: c.State, Name: c.StateRef}))
		return c
	}
	step()
	c := step()
	var d Drift
	drift := func() {
		var err error
		d, err = f.repo.Drift(context.Background(), c.target())
		must(t, err)
	}
	if n := starts(t, log, drift); n > 0 {
		t.Errorf("Drift of an unchanged worktree started git %d times, want 0", n)
	}
	if !d.Same() {
		t.Errorf("an unchanged worktree has the drift %+v", d)
	}
	f.write("another", "x")
	if n := starts(t, log, drift); n > 0 {
		t.Errorf("Drift of a changed worktree started git %d times, want 0", n)
	}
	if d.Clean() {
		t.Errorf("a changed worktree has the drift %+v", d)
	}
	if n := starts(t, log, func() { f.checkpoint() }); n > 1 {
		t.Errorf("a checkpoint started git %d times, want at most once", n)
	}
	if n := starts(t, log, func() { step() }); n > 3 {
		t.Errorf("a checkpoint and its push started git %d times, want at most 3", n)
	}
}

// The state that the remote is known to have may be a commit whose refs were deleted:
// once Maintain drops its objects, no push may build on it.
func TestADroppedStateIsNotBuiltOn(t *testing.T) {
	ctx := context.Background()
	f := cloned(t, makeOrigin(t, 3))
	f.repo.cfg.MaxPacks = 1
	store := filepath.Join(t.TempDir(), "store.git")
	gitIn(t, t.TempDir(), "init", "-q", "--bare", store)
	push := func() (c Checkpoint) {
		f.write("step", fmt.Sprint(f.n))
		c = f.checkpoint()
		must(t, f.repo.Push(ctx, Remote{URL: "file://" + store}, RefUpdate{Source: c.Code, Name: c.CodeRef}, RefUpdate{Source: c.State, Name: c.StateRef}))
		return c
	}
	first := push()
	for range 3 {
		last := push()
		must(t, f.repo.DeleteRefs(ctx, last.CodeRef, last.StateRef))
	}
	m, err := f.repo.Maintain(ctx)
	if err != nil || !m.Repacked {
		t.Fatalf("Maintain did not repack: %+v, %v", m, err)
	}
	f.last = first
	push()
	gitIn(t, store, "fsck", "--strict", "--no-dangling")
}

// The refusals of a push that lacks objects are spelled out as git and gitstores of all
// versions write them: whatever words this version uses, Push recognises them and sends
// everything.
func TestAPushThatLacksObjectsIsRepeatedWithAll(t *testing.T) {
	ctx := context.Background()
	for name, test := range map[string]struct {
		refusal  string
		repeated bool
	}{
		"git":               {"error: remote unpack failed: missing necessary objects", true},
		"the gitstore":      {"clew: ObjectsRefused: the push refers to objects that it does not bring and that no ref of the task reaches; push all of them", true},
		"an older gitstore": {"clew: ObjectsRefused: the push names objects that it does not bring and that no ref of the task leads to; push all of them", true},
		"another refusal":   {"clew: ObjectsRefused: the gitstore refused objects of the push as corrupt, missing or dangerous", false},
	} {
		t.Run(name, func(t *testing.T) {
			f := cloned(t, makeOrigin(t, 3))
			store := filepath.Join(t.TempDir(), "store.git")
			gitIn(t, t.TempDir(), "init", "-q", "--bare", store)
			push := func() error {
				f.write("step", fmt.Sprint(f.n))
				c := f.checkpoint()
				return f.repo.Push(ctx, Remote{URL: "file://" + store}, RefUpdate{Source: c.Code, Name: c.CodeRef}, RefUpdate{Source: c.State, Name: c.StateRef})
			}
			must(t, push())
			// Of the pushes that build on the first one, the next is refused.
			hook := fmt.Sprintf("#!/bin/sh\ntest -e refused && exit 0\ntouch refused\necho %q >&2\nexit 1\n", test.refusal)
			writeFile(t, filepath.Join(store, "hooks/pre-receive"), hook, 0o755)
			err := push()
			if test.repeated {
				must(t, err)
			} else {
				wantReason(t, err, Rejected)
			}
		})
	}
}

// Git also trusts the system's authorities unless GIT_SSL_CAPATH is a folder without any.
func TestGitTrustsOnlyTheGivenAuthorities(t *testing.T) {
	f := cloned(t, makeOrigin(t, 1))
	must(t, f.repo.Close())
	config := f.config()
	seen := filepath.Join(t.TempDir(), "seen")
	config.Git = filepath.Join(t.TempDir(), "git")
	writeFile(t, config.Git, "#!/bin/sh\necho \"$GIT_SSL_CAPATH\" >>'"+seen+"'\nexec git \"$@\"\n", 0o755)
	repo, err := Open(context.Background(), config)
	must(t, err)
	defer repo.Close()
	server := httptest.NewTLSServer(http.NotFoundHandler())
	defer server.Close()
	bundle := filepath.Join(t.TempDir(), "ca.pem")
	writeFile(t, bundle, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})), 0o644)
	wantReason(t, repo.CheckPush(context.Background(), Remote{URL: server.URL + "/team/r.git", CAFile: bundle}), RepositoryNotFound)
	folders, err := os.ReadFile(seen)
	must(t, err)
	if !strings.Contains(string(folders), os.DevNull) {
		t.Errorf("GIT_SSL_CAPATH is %q, want %s", folders, os.DevNull)
	}
}
