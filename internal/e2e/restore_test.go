//go:build e2e

package e2e

import (
	"encoding/json"
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"

	clewv1 "github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/worktree"
)

// durables are the checkpoints that were seen to be durable, by number.
type durables map[int64]clewv1.Checkpoint

// add notes the checkpoints of a task that are durable now. One that was
// durable before must still be, and hold the same.
func (d durables) add(w *world, task string) {
	w.Helper()
	now := durables{}
	for _, c := range w.checkpoints(task) {
		if !meta.IsStatusConditionTrue(c.Status.Conditions, clewv1.CheckpointDurable) {
			continue
		}
		if twin, is := now[c.Status.Number]; is {
			w.Fatalf("checkpoint %d of task %s is doubled: %s and %s", c.Status.Number, task, twin.Name, c.Name)
		}
		now[c.Status.Number] = c
	}
	for number, was := range d {
		is, there := now[number]
		if !there {
			w.Fatalf("checkpoint %s was durable and is lost", was.Name)
		}
		if is.Name != was.Name || is.Status.Commit != was.Status.Commit || is.Status.Tree != was.Status.Tree || is.Status.StateCommit != was.Status.StateCommit {
			w.Fatalf("checkpoint %s was durable and changed:\n%+v\n%+v", was.Name, was.Status, is.Status)
		}
	}
	maps.Copy(d, now)
}

// expectDurableCheckpointsExact restores each durable checkpoint of tasks, whose
// agent replays so many calls, from the gitstore alone: some onto an empty
// volume, as after the loss of one, the others onto what the one before left
// there, as a rewind does. It expects the files of
// its tree, that they are what the agent's calls leave, and the agent's own
// state of the same moment.
func (w *world) expectDurableCheckpointsExact(calls int, tasks ...string) {
	w.Helper()
	var ckpts []clewv1.Checkpoint
	for _, task := range tasks {
		w.untilListed(task)
		durable := durables{}
		durable.add(w, task)
		if len(durable) == 0 {
			w.Fatalf("task %s has no durable checkpoint", task)
		}
		for _, number := range slices.Sorted(maps.Keys(durable)) {
			ckpts = append(ckpts, durable[number])
		}
	}
	begin := time.Now()
	repository := w.fetchCheckpoints(ckpts)
	fetched := time.Since(begin)
	script := w.replayed(ckpts[0].Status.Base, calls)
	replayed := time.Since(begin) - fetched
	for volume := range slices.Chunk(ckpts, onOneVolume) {
		w.expectRestoredOnto(w.inMemory(), repository, volume, script)
	}
	w.tell(len(ckpts), "durable checkpoints restored and found exact")
	w.Logf("%s: %d durable checkpoints restored and compared in %s (the fetch %s, the agent's calls %s more)", strings.Join(tasks, " and "), len(ckpts),
		(time.Since(begin) - fetched - replayed).Round(time.Millisecond), fetched.Round(time.Millisecond), replayed.Round(time.Millisecond))
}

// fetchCheckpoints gets checkpoints out of the gitstore into a new repository,
// as the prepare step does, but all at once.
func (w *world) fetchCheckpoints(ckpts []clewv1.Checkpoint) (repository string) {
	w.Helper()
	w.inGitstore("git -c safe.directory='*' --git-dir " + w.repository() + " fsck --full --no-dangling")
	folder := w.inMemory()
	repository = filepath.Join(folder, "git")
	remote, repo := w.gitstoreRemote(), w.openVolume(repository, folder)
	defer repo.Close()
	var refs []string
	for _, c := range ckpts {
		refs = append(refs, worktree.CodeRef(c.Status.TaskUID, c.Status.Number), worktree.StateRef(c.Status.TaskUID, c.Status.Number))
	}
	if err := repo.Fetch(w.ctx, remote, refs...); err != nil {
		w.Fatalf("fetch the checkpoints from the gitstore: %v", err)
	}
	w.git(repository, "fsck", "--full", "--no-dangling")
	return repository
}

// openVolume opens a task's volume on this machine: the daemon's repository,
// and in a folder the worktree and the agent's home.
func (w *world) openVolume(repository, volume string) *worktree.Repo {
	w.Helper()
	config := worktree.Config{
		GitDir: repository, Worktree: filepath.Join(volume, "worktree"),
		Home: filepath.Join(volume, "home"), HomeInclude: []string{"."}, MaxFileBytes: 100 << 20,
	}
	repo, err := worktree.Open(w.ctx, config)
	if err = errors.Join(err, os.MkdirAll(config.Worktree, 0o755), os.MkdirAll(config.Home, 0o700)); err != nil {
		w.Fatal(err)
	}
	return repo
}

// inMemory makes a folder for the time of the test. Each restore ends by syncing
// its whole file system, which takes seconds where others write to the same disk.
func (w *world) inMemory() string {
	w.Helper()
	folder, err := os.MkdirTemp("/dev/shm", "clew-e2e-")
	if errors.Is(err, fs.ErrNotExist) {
		return w.TempDir()
	}
	if err != nil {
		w.Fatal(err)
	}
	w.Cleanup(func() { os.RemoveAll(folder) })
	return folder
}

// onOneVolume is how many checkpoints are restored one after the other.
const onOneVolume = 8

// expectRestoredOnto restores checkpoints of a repository onto an empty folder,
// one after the other.
func (w *world) expectRestoredOnto(volume, repository string, ckpts []clewv1.Checkpoint, script []string) {
	w.Helper()
	defer os.RemoveAll(volume) // each is large
	w.git(volume, "clone", "--quiet", "--mirror", "--local", repository, filepath.Join(volume, "git"))
	known := hasher{}
	for i, c := range ckpts {
		w.expectRestored(volume, known, c, script)
		fsck := []string{"fsck", "--no-dangling", "--connectivity-only"}
		if i == 0 {
			fsck = []string{"fsck", "--no-dangling", "--full"} // takes half a second
		}
		w.git(filepath.Join(volume, "worktree"), fsck...)
	}
}

// expectRestored restores a checkpoint onto a volume and looks at what is there
// then.
func (w *world) expectRestored(volume string, known hasher, c clewv1.Checkpoint, script []string) {
	w.Helper()
	repo := w.openVolume(filepath.Join(volume, "git"), volume)
	defer repo.Close()
	refs, err := repo.Refs(w.ctx, "refs/clew/"+c.Status.TaskUID+"/")
	if err != nil {
		w.Fatal(err)
	}
	code, state := worktree.CodeRef(c.Status.TaskUID, c.Status.Number), worktree.StateRef(c.Status.TaskUID, c.Status.Number)
	if refs[code] != c.Status.Commit || refs[state] != c.Status.StateCommit {
		w.Fatalf("checkpoint %s: the gitstore has %s and %s, its status says %s and %s", c.Name, refs[code], refs[state], c.Status.Commit, c.Status.StateCommit)
	}
	result, err := repo.Restore(w.ctx, worktree.RestoreRequest{Target: worktree.Target{Code: refs[code], State: refs[state]}})
	if err != nil || len(result.Kept)+len(result.Conflicts) > 0 {
		w.Fatalf("checkpoint %s cannot be restored: %v; kept %v, conflicts %v", c.Name, err, result.Kept, result.Conflicts)
	}
	tree := w.treeOf(known, filepath.Join(volume, "worktree"))
	if tree != c.Status.Tree {
		w.Fatalf("checkpoint %s: the restored files are the tree %s, its status says %s", c.Name, tree, c.Status.Tree)
	}
	w.expectReplayed(c, tree, filepath.Join(volume, "home"), script)
	w.expectAgentGit(c, filepath.Join(volume, "worktree"))
}

// ahead is how many calls the files may be ahead of the conversation. The agent
// does a call, counts it in its home, and then says its result: what it does
// between two results that Clew has on disk is one call; and when the shim is
// killed with a result it has not handed on, the agent may be one call further.
const ahead = 2

// expectReplayed expects the tree, and the count in the agent's home, of as many
// calls as the conversation of the checkpoint answers, or of up to two more.
func (w *world) expectReplayed(c clewv1.Checkpoint, tree, home string, script []string) {
	w.Helper()
	after := func(calls int) string { return script[min(calls, len(script)-1)] }
	answered := int(c.Status.Conversation.ToolCalls)
	counted := w.countedCalls(home)
	if counted < answered || counted > answered+ahead || counted >= len(script) {
		w.Fatalf("checkpoint %s: the conversation answers %d calls, the agent's state counts %d", c.Name, answered, counted)
	}
	// A call that was done but not counted yet leaves its files all the same.
	if tree != after(counted) && (counted == answered+ahead || tree != after(counted+1)) {
		w.Fatalf("checkpoint %s: its files are not those of %d calls, which its agent counts: they are those of %v calls, its conversation answers %d",
			c.Name, counted, callsOf(tree, script), answered)
	}
}

// callsOf says how many calls leave a tree; staging and committing change none.
func callsOf(tree string, script []string) (calls []int) {
	for n, t := range script {
		if t == tree {
			calls = append(calls, n)
		}
	}
	return calls
}

// countedCalls is how many calls the replaying agent counts in its home.
func (w *world) countedCalls(home string) int {
	w.Helper()
	data, err := os.ReadFile(filepath.Join(home, ".replay", "state.json"))
	if errors.Is(err, fs.ErrNotExist) {
		return 0
	}
	var state struct{ Calls int }
	if err = errors.Join(err, json.Unmarshal(data, &state)); err != nil {
		w.Fatalf("the agent's state was not restored: %v: %s", err, data)
	}
	return state.Calls
}

// expectAgentGit expects the agent's own repository as the checkpoint's status
// describes it, by what git itself says.
func (w *world) expectAgentGit(c clewv1.Checkpoint, workspace string) {
	w.Helper()
	want := c.Status.Git
	head, branch := w.git(workspace, "rev-parse", "HEAD"), w.git(workspace, "symbolic-ref", "--short", "HEAD")
	if head != want.Head || branch != want.Branch {
		w.Fatalf("checkpoint %s: the agent's repository is at %s on %s, its status says %s on %s", c.Name, head, branch, want.Head, want.Branch)
	}
	var dirty []string
	for line := range strings.SplitSeq(w.git(workspace, "status", "--porcelain", "--no-renames", "--untracked-files=all", "-z"), "\x00") {
		if len(line) > 3 && line[1] != ' ' { // the second letter is about the files, the first about what is staged
			dirty = append(dirty, line[3:])
		}
	}
	slices.Sort(dirty)
	if len(dirty) != int(want.DirtyFileCount) || !slices.Equal(dirty, want.DirtyFiles) {
		w.Fatalf("checkpoint %s: the agent's repository has the dirty files %v, its status says %v", c.Name, dirty, want.DirtyFiles)
	}
}
