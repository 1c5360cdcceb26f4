//go:build e2e

package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/google/go-cmp/cmp/cmpopts"
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/api/meta"

	clewv1 "github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/refname"
	"github.com/clew-dev/clew/internal/worktree"
)

// durables holds the checkpoints that were durable when they were read, by number.
type durables map[int64]clewv1.Checkpoint

// content is the part of a durable checkpoint that never changes.
type content struct{ name, commit, tree, stateCommit string }

func contentOf(c clewv1.Checkpoint) content {
	return content{c.Name, c.Status.Commit, c.Status.Tree, c.Status.StateCommit}
}

// add records the checkpoints of a task that are durable now. One that was durable before
// must still be durable, with the same content.
func (d durables) add(ctx context.Context, w *world, task string) {
	GinkgoHelper()
	now := durables{}
	for _, c := range w.checkpoints(ctx, task) {
		if !meta.IsStatusConditionTrue(c.Status.Conditions, clewv1.CheckpointDurable) {
			continue
		}
		Expect(now).NotTo(HaveKey(c.Status.Number), "task %s has two checkpoints with the same number: %s and %s", task, now[c.Status.Number].Name, c.Name)
		now[c.Status.Number] = c
	}
	for number, was := range d {
		Expect(now).To(HaveKey(number), "checkpoint %s was durable and is lost", was.Name)
		Expect(contentOf(now[number])).To(Equal(contentOf(was)), "checkpoint %s was durable and has changed", was.Name)
	}
	maps.Copy(d, now)
}

// expectDurableCheckpointsExact restores each durable checkpoint of tasks whose agent
// replays a number of calls, from the gitstore alone: some onto an empty volume, as after
// the loss of one, the others over the files of the previous one, as a rewind does. It
// expects the files of its tree, that they are the result of the agent's calls, and the
// agent's own state of the same moment.
func (w *world) expectDurableCheckpointsExact(ctx context.Context, calls int, tasks ...string) {
	GinkgoHelper()
	var ckpts []clewv1.Checkpoint
	for _, task := range tasks {
		w.untilListed(ctx, task)
		durable := durables{}
		durable.add(ctx, w, task)
		Expect(durable).NotTo(BeEmpty(), "task %s has no durable checkpoint", task)
		for _, number := range slices.Sorted(maps.Keys(durable)) {
			ckpts = append(ckpts, durable[number])
		}
	}
	begin := time.Now()
	repository := w.fetchCheckpoints(ctx, ckpts)
	fetched := time.Since(begin)
	script := w.replayed(ctx, ckpts[0].Status.Base, calls)
	replayed := time.Since(begin) - fetched
	for volume := range slices.Chunk(ckpts, onOneVolume) {
		w.expectRestoredOnto(ctx, inMemory(), repository, volume, script)
	}
	reportCount(len(ckpts), "durable checkpoints restored and found exact")
	GinkgoWriter.Printf("%s: %d durable checkpoints restored and compared in %s (the fetch %s, the agent's calls %s more)\n", strings.Join(tasks, " and "), len(ckpts),
		(time.Since(begin) - fetched - replayed).Round(time.Millisecond), fetched.Round(time.Millisecond), replayed.Round(time.Millisecond))
}

// fetchCheckpoints fetches checkpoints from the gitstore into a new repository, as prepare
// does, but all at once.
func (w *world) fetchCheckpoints(ctx context.Context, ckpts []clewv1.Checkpoint) (repository string) {
	GinkgoHelper()
	w.inGitstore(ctx, "git -c safe.directory='*' --git-dir "+w.repository()+" fsck --full --no-dangling")
	folder := inMemory()
	repository = filepath.Join(folder, "git")
	remote, repo := w.gitstoreRemote(ctx), w.openVolume(ctx, repository, folder)
	defer repo.Close()
	var refs []string
	for _, c := range ckpts {
		refs = append(refs, refname.Code(c.Status.TaskUID, c.Status.Number), refname.State(c.Status.TaskUID, c.Status.Number))
	}
	Expect(repo.Fetch(ctx, remote, refs...)).To(Succeed(), "fetch the checkpoints from the gitstore")
	git(repository, "fsck", "--full", "--no-dangling")
	return repository
}

// openVolume opens a task's volume on this machine: the sidecar's repository, and in a
// folder the worktree and the agent's home.
func (w *world) openVolume(ctx context.Context, repository, volume string) *worktree.Repo {
	GinkgoHelper()
	config := worktree.Config{
		GitDir: repository, Worktree: filepath.Join(volume, "worktree"),
		Home: filepath.Join(volume, "home"), HomeInclude: []string{"."}, MaxFileBytes: 100 << 20,
	}
	Expect(os.MkdirAll(config.Worktree, 0o755)).To(Succeed())
	Expect(os.MkdirAll(config.Home, 0o700)).To(Succeed())
	repo, err := worktree.Open(ctx, config)
	Expect(err).NotTo(HaveOccurred())
	return repo
}

// inMemory makes a folder in memory that is removed after the spec. Each restore ends by
// syncing its whole file system, which takes seconds on a disk that others use.
func inMemory() string {
	GinkgoHelper()
	folder, err := os.MkdirTemp("/dev/shm", "clew-e2e-")
	if errors.Is(err, fs.ErrNotExist) {
		return GinkgoT().TempDir()
	}
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(os.RemoveAll, folder)
	return folder
}

// onOneVolume is how many checkpoints are restored onto one volume, one after another.
const onOneVolume = 8

// expectRestoredOnto restores checkpoints of a repository onto one folder, which is empty
// at first, one after another.
func (w *world) expectRestoredOnto(ctx context.Context, volume, repository string, ckpts []clewv1.Checkpoint, script []string) {
	GinkgoHelper()
	defer os.RemoveAll(volume) // each is large
	git(volume, "clone", "--quiet", "--mirror", "--local", repository, filepath.Join(volume, "git"))
	known := hasher{}
	for i, c := range ckpts {
		w.expectRestored(ctx, volume, known, c, script)
		fsck := []string{"fsck", "--no-dangling", "--connectivity-only"}
		if i == 0 {
			fsck = []string{"fsck", "--no-dangling", "--full"} // takes half a second
		}
		git(filepath.Join(volume, "worktree"), fsck...)
	}
}

// expectRestored restores a checkpoint onto a volume and checks its files, the agent's
// state and the agent's repository.
func (w *world) expectRestored(ctx context.Context, volume string, known hasher, c clewv1.Checkpoint, script []string) {
	GinkgoHelper()
	repo := w.openVolume(ctx, filepath.Join(volume, "git"), volume)
	defer repo.Close()
	refs, err := repo.Refs(ctx, "refs/clew/"+c.Status.TaskUID+"/")
	Expect(err).NotTo(HaveOccurred())
	code, state := refname.Code(c.Status.TaskUID, c.Status.Number), refname.State(c.Status.TaskUID, c.Status.Number)
	target := worktree.Target{Code: refs[code], State: refs[state]}
	Expect(target).To(Equal(worktree.Target{Code: c.Status.Commit, State: c.Status.StateCommit}), "checkpoint %s: the commits in the gitstore, beside those in its status", c.Name)
	result, err := repo.Restore(ctx, worktree.RestoreRequest{Target: target})
	Expect(err).NotTo(HaveOccurred(), "restore checkpoint %s", c.Name)
	Expect(result.Kept).To(BeEmpty(), "checkpoint %s: files that its restore kept", c.Name)
	Expect(result.Conflicts).To(BeEmpty(), "checkpoint %s: conflicts of its restore", c.Name)
	tree := treeOf(known, filepath.Join(volume, "worktree"))
	Expect(tree).To(Equal(c.Status.Tree), "checkpoint %s: the tree of the restored files, beside that in its status", c.Name)
	expectReplayed(c, tree, filepath.Join(volume, "home"), script)
	expectAgentGit(c, filepath.Join(volume, "worktree"))
}

// ahead is how many calls the files may be ahead of the conversation. The agent makes a
// call, counts it in its home, and then prints its result: between two results that Clew
// has on disk it makes one call; and when the shim is killed with a result that it has not
// passed on, the agent may be one call further.
const ahead = 2

// expectReplayed expects the tree, and the count in the agent's home, after as many calls
// as the checkpoint's conversation has results, or up to two more.
func expectReplayed(c clewv1.Checkpoint, tree, home string, script []string) {
	GinkgoHelper()
	after := func(calls int) string { return script[min(calls, len(script)-1)] }
	answered := int(c.Status.Conversation.ToolCalls)
	counted := countedCalls(home)
	Expect(counted).To(SatisfyAll(BeNumerically(">=", answered), BeNumerically("<=", answered+ahead), BeNumerically("<", len(script))),
		"checkpoint %s: the calls that the agent's state counts; the conversation answers %d", c.Name, answered)
	trees := []string{after(counted)}
	if counted < answered+ahead { // a call that was made but not counted yet has changed files already
		trees = append(trees, after(counted+1))
	}
	Expect(trees).To(ContainElement(tree), "checkpoint %s: its files are those of %v calls; its agent counts %d calls, its conversation answers %d",
		c.Name, callsOf(tree, script), counted, answered)
}

// callsOf returns the numbers of calls after which the files are a tree. Several numbers
// may be, since staging and committing change no file.
func callsOf(tree string, script []string) (calls []int) {
	for n, t := range script {
		if t == tree {
			calls = append(calls, n)
		}
	}
	return calls
}

// countedCalls returns the number of calls that the replaying agent counts in its home.
func countedCalls(home string) int {
	GinkgoHelper()
	data, err := os.ReadFile(filepath.Join(home, ".replay", "state.json"))
	if errors.Is(err, fs.ErrNotExist) {
		return 0
	}
	Expect(err).NotTo(HaveOccurred(), "the agent's state was not restored")
	var state struct{ Calls int }
	Expect(json.Unmarshal(data, &state)).To(Succeed(), "the agent's state was not restored: %s", data)
	return state.Calls
}

// agentGit describes the agent's repository, as git and a checkpoint's status report it.
type agentGit struct {
	Head, Branch string
	DirtyCount   int
	Dirty        []string
}

// expectAgentGit expects the agent's repository to be as the checkpoint's status describes it.
func expectAgentGit(c clewv1.Checkpoint, workspace string) {
	GinkgoHelper()
	var dirty []string
	for line := range strings.SplitSeq(git(workspace, "status", "--porcelain", "--no-renames", "--untracked-files=all", "-z"), "\x00") {
		if len(line) > 3 && line[1] != ' ' { // the second letter is about the files, the first about what is staged
			dirty = append(dirty, line[3:])
		}
	}
	slices.Sort(dirty)
	actual := agentGit{git(workspace, "rev-parse", "HEAD"), git(workspace, "symbolic-ref", "--short", "HEAD"), len(dirty), dirty}
	status := c.Status.Git
	Expect(actual).To(BeComparableTo(agentGit{status.Head, status.Branch, int(status.DirtyFileCount), status.DirtyFiles}, cmpopts.EquateEmpty()),
		"checkpoint %s: the agent's repository and what its status says about it", c.Name)
}
