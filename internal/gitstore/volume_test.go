package gitstore

import (
	"context"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/clew-dev/clew/internal/refname"
	"github.com/clew-dev/clew/internal/worktree"
)

// taskVolume is the volume of the task fix, with three checkpoints that the gitstore has as well.
type taskVolume struct {
	t          testing.TB
	server     *testServer
	root       string
	remote     worktree.Remote
	repo       *worktree.Repo
	checkpoint [4]worktree.Target
}

// newTaskVolume returns a volume. Every object is in a file of its own, there and in the gitstore.
func newTaskVolume(t testing.TB) *taskVolume {
	t.Helper()
	server := newTestServer(t, Limits{})
	v := &taskVolume{t: t, server: server, root: t.TempDir(), remote: worktree.Remote{URL: server.url("team", repository), Token: taskToken("fix", 1), CAFile: server.ca}}
	if err := errorsOf(os.Mkdir(v.path("work"), 0o755), os.Mkdir(v.path("home"), 0o755)); err != nil {
		t.Fatal(err)
	}
	v.open()
	if _, err := v.repo.Clone(t.Context(), worktree.CloneRequest{}); err != nil {
		t.Fatal(err)
	}
	for n := int64(1); n <= 3; n++ {
		v.take(n)
	}
	if err := v.repo.Close(); err != nil {
		t.Fatal(err)
	}
	loosen(t, v.path("git"))
	loosen(t, server.bare(repository))
	v.open()
	return v
}

func (v *taskVolume) path(name string) string { return filepath.Join(v.root, name) }

func (v *taskVolume) open() {
	v.t.Helper()
	repo, err := worktree.Open(v.t.Context(), worktree.Config{GitDir: v.path("git"), Worktree: v.path("work"), Home: v.path("home"), HomeInclude: []string{"."}})
	if err != nil {
		v.t.Fatal(err)
	}
	v.repo = repo
	v.t.Cleanup(func() { _ = repo.Close() }) // it may be closed already
}

// copy replaces a folder of the volume by a copy of another one.
func (v *taskVolume) copy(from, to string) {
	v.t.Helper()
	if err := errorsOf(v.repo.Close(), os.RemoveAll(v.path(to)), os.CopyFS(v.path(to), os.DirFS(v.path(from)))); err != nil {
		v.t.Fatal(err)
	}
	v.open()
}

// take takes a checkpoint of a file of the code and of the agent's state, and pushes it.
func (v *taskVolume) take(n int64) {
	v.t.Helper()
	content := strings.Repeat(fmt.Sprintf("content %d\n", n*7919), 60) // enough to be worth damaging
	for _, folder := range []string{"work", "home"} {
		if err := os.WriteFile(filepath.Join(v.path(folder), "a"), []byte(folder+content), 0o600); err != nil {
			v.t.Fatal(err)
		}
	}
	taken, err := v.repo.Checkpoint(v.t.Context(), worktree.CheckpointRequest{TaskUID: "uid-fix", Number: n, Parent: v.checkpoint[n-1].Code, Message: "work"})
	if err == nil {
		err = v.repo.Push(v.t.Context(), v.remote, worktree.RefUpdate{Source: taken.Code, Name: refname.Code("uid-fix", n)},
			worktree.RefUpdate{Source: taken.State, Name: refname.State("uid-fix", n)})
	}
	if err != nil {
		v.t.Fatal(err)
	}
	v.checkpoint[n] = worktree.Target{Code: taken.Code, State: taken.State}
}

// objectsOf3 names the objects that only checkpoint 3 has by their kind.
func (v *taskVolume) objectsOf3() map[string]string {
	v.t.Helper()
	git := func(args ...string) string {
		command := exec.Command("git", append([]string{"--git-dir=" + v.server.bare(repository)}, args...)...)
		command.Env = gitTestEnvironment()
		out, err := command.Output()
		if err != nil {
			v.t.Fatal(err)
		}
		return string(out)
	}
	list := func(commits ...string) string {
		return git(append([]string{"rev-list", "--objects", "--no-object-names"}, commits...)...)
	}
	named, earlier := map[string]string{}, list(v.checkpoint[2].Code, v.checkpoint[2].State)
	for part, commit := range map[string]string{"code": v.checkpoint[3].Code, "agent state": v.checkpoint[3].State} {
		for id := range strings.FieldsSeq(list(commit)) {
			if !strings.Contains(earlier, id) {
				named[strings.TrimSpace(git("cat-file", "-t", id))+" of the "+part+" "+id[:8]] = id
			}
		}
	}
	return named
}

// packed moves objects of the volume into a pack, and returns it.
func (v *taskVolume) packed(objects map[string]string) string {
	v.t.Helper()
	ids := slices.Sorted(maps.Values(objects))
	command := exec.Command("git", "--git-dir="+v.path("git"), "pack-objects", "--quiet", filepath.Join(v.path("git"), "objects", "pack", "pack"))
	command.Env, command.Stdin = gitTestEnvironment(), strings.NewReader(strings.Join(ids, "\n")+"\n")
	name, err := command.Output()
	if err != nil {
		v.t.Fatal(err)
	}
	for _, id := range ids {
		if err := os.Remove(looseFile(v.path("git"), id)); err != nil {
			v.t.Fatal(err)
		}
	}
	return filepath.Join(v.path("git"), "objects", "pack", "pack-"+strings.TrimSpace(string(name))+".pack")
}

// damagedInGitstore checks what follows from damage in the gitstore: it is found, cannot be
// fetched, leaves the earlier checkpoints intact, and is healed from the volume.
func (v *taskVolume) damagedInGitstore(what string) {
	v.t.Helper()
	if found := v.server.verify(3, again()); len(found.Damage) == 0 {
		v.t.Errorf("gitstore, %s: the damage is not found", what)
	}
	other := v.server.client(taskToken("fix", 1))
	if _, _, err := other.try("fetch", other.url, codeRef("fix", 3), stateRef("fix", 3)); err == nil {
		v.t.Errorf("gitstore, %s: the damaged checkpoint was fetched", what)
	}
	v.server.intact(1, 2)
	if _, err := v.repo.Heal(v.t.Context(), v.remote); err != nil {
		v.t.Fatalf("gitstore, %s: %v", what, err)
	}
	v.server.intact(1, 2, 3)
	if _, stderr, err := other.try("fetch", other.url, codeRef("fix", 3), stateRef("fix", 3)); err != nil {
		v.t.Errorf("gitstore, %s: after healing: %v: %s", what, err, stderr)
	}
}

// damagedOnVolume checks what follows from damage on the volume: no byte of the checkpoint is
// restored, the earlier ones are, and the gitstore heals it.
func (v *taskVolume) damagedOnVolume(what string) {
	v.t.Helper()
	ctx := v.t.Context()
	v.restores(ctx, what, 2)
	before := v.files()
	if v.repo.Verify(ctx, v.checkpoint[3]) == nil {
		v.t.Errorf("volume, %s: the damage is not found", what)
	}
	if _, err := v.repo.Restore(ctx, worktree.RestoreRequest{Target: v.checkpoint[3]}); err == nil {
		v.t.Errorf("volume, %s: the damaged checkpoint was restored", what)
	}
	if after := v.files(); after != before {
		v.t.Errorf("volume, %s: the refused restore left %q", what, after)
	}
	if err := v.repo.Refetch(ctx, v.remote, refname.Code("uid-fix", 3), refname.State("uid-fix", 3)); err != nil {
		v.t.Fatalf("volume, %s: %v", what, err)
	}
	v.restores(ctx, what, 3)
}

// restores restores a checkpoint, and checks that it is exact.
func (v *taskVolume) restores(ctx context.Context, what string, n int64) {
	v.t.Helper()
	err := v.repo.Verify(ctx, v.checkpoint[n])
	if err == nil {
		_, err = v.repo.Restore(ctx, worktree.RestoreRequest{Target: v.checkpoint[n]})
	}
	if err != nil {
		v.t.Fatalf("volume, %s: checkpoint %d: %v", what, n, err)
	}
	content := strings.Repeat(fmt.Sprintf("content %d\n", n*7919), 60)
	if got := v.files(); got != "work"+content+"home"+content {
		v.t.Fatalf("volume, %s: after the restore of checkpoint %d: %q", what, n, got)
	}
}

// files returns what the worktree and the agent's home contain.
func (v *taskVolume) files() string {
	v.t.Helper()
	var all string
	for _, folder := range []string{"work", "home"} {
		content, err := os.ReadFile(filepath.Join(v.path(folder), "a"))
		if err != nil {
			v.t.Fatal(err)
		}
		all += string(content)
	}
	return all
}

// TestDamageIsFoundBeforeHarmAndHealed is the matrix of objects and packs, of the ways in which
// they are damaged, and of the places: each damage is found before a wrong byte is restored, the
// earlier checkpoints stay usable, and whoever has the object heals the other.
func TestDamageIsFoundBeforeHarmAndHealed(t *testing.T) {
	for how, damage := range damages {
		t.Run(how, func(t *testing.T) {
			v := newTaskVolume(t)
			if n, err := v.repo.Heal(t.Context(), v.remote); n != 0 || err != nil {
				t.Fatalf("with nothing lacking, Heal returned %d, %v", n, err)
			}
			objects := v.objectsOf3()
			if len(objects) < 6 {
				t.Fatalf("checkpoint 3 has these objects of its own: %v", objects)
			}
			for what, id := range objects {
				if err := damage(looseFile(v.server.bare(repository), id)); err != nil {
					t.Fatal(err)
				}
				v.damagedInGitstore(what)
			}
			v.copy("git", "loose")
			for what, id := range objects {
				v.copy("loose", "git") // what heals is in packs, and replaces all files
				if err := damage(looseFile(v.path("git"), id)); err != nil {
					t.Fatal(err)
				}
				v.damagedOnVolume(what)
			}
			// What healed is in packs, and its damaged files are still there.
			if err := damage(v.server.packOf(v.checkpoint[3].Code)); err != nil {
				t.Fatal(err)
			}
			v.damagedInGitstore("pack")
			v.copy("loose", "git")
			if err := damage(v.packed(objects)); err != nil {
				t.Fatal(err)
			}
			v.damagedOnVolume("pack")
		})
	}
}
