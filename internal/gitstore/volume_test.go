package gitstore

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/clew-dev/clew/internal/refname"
	"github.com/clew-dev/clew/internal/worktree"
)

// A task's volume heals the gitstore, and the gitstore the volume.
func TestAVolumeAndTheGitstoreHealEachOther(t *testing.T) {
	server := newTestServer(t, Limits{})
	root := t.TempDir()
	work, home := filepath.Join(root, "work"), filepath.Join(root, "home")
	if err := errorsOf(os.Mkdir(work, 0o755), os.Mkdir(home, 0o755)); err != nil {
		t.Fatal(err)
	}
	repo, err := worktree.Open(t.Context(), worktree.Config{GitDir: filepath.Join(root, "git"), Worktree: work, Home: home, HomeInclude: []string{"."}})
	if err != nil {
		t.Fatal(err)
	}
	defer repo.Close()
	remote := worktree.Remote{URL: server.url("team", repository), Token: taskToken("fix", 1), CAFile: server.ca}
	if _, err := repo.Clone(t.Context(), worktree.CloneRequest{}); err != nil {
		t.Fatal(err)
	}
	parent, state := "", ""
	for n := int64(1); n <= 3; n++ {
		for _, folder := range []string{work, home} {
			if err := os.WriteFile(filepath.Join(folder, "a"), fmt.Appendf(nil, "content %d\n", n), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		taken, err := repo.Checkpoint(t.Context(), worktree.CheckpointRequest{TaskUID: "uid-fix", Number: n, Parent: parent, Message: "work"})
		if err != nil {
			t.Fatal(err)
		}
		parent, state = taken.Code, taken.State
		err = repo.Push(t.Context(), remote, worktree.RefUpdate{Source: taken.Code, Name: refname.Code("uid-fix", n)},
			worktree.RefUpdate{Source: taken.State, Name: refname.State("uid-fix", n)})
		if err != nil {
			t.Fatal(err)
		}
	}
	if n, err := repo.Heal(t.Context(), remote); n != 0 || err != nil {
		t.Fatalf("with nothing lacking, Heal returned %d, %v", n, err)
	}

	pack := server.packOf(parent)
	if err := damages["truncated"](pack); err != nil {
		t.Fatal(err)
	}
	for range 4 {
		if len(server.verify(3, again()).Damage) == 0 {
			break
		}
		if _, err := repo.Heal(t.Context(), remote); err != nil {
			t.Fatal(err)
		}
	}
	server.intact(1, 2, 3)

	packs, err := filepath.Glob(filepath.Join(root, "git", "objects", "pack", "*.pack"))
	if err != nil || len(packs) == 0 {
		t.Fatalf("no packs: %v", err)
	}
	for _, pack := range packs {
		if err := damages["deleted"](pack); err != nil {
			t.Fatal(err)
		}
	}
	target := worktree.Target{Code: parent, State: state}
	if repo.Verify(t.Context(), target) == nil {
		t.Fatal("the damage was not found")
	}
	if err := repo.Refetch(t.Context(), remote, refname.Code("uid-fix", 3), refname.State("uid-fix", 3)); err != nil {
		t.Fatal(err)
	}
	if err := repo.Verify(t.Context(), target); err != nil {
		t.Errorf("after fetching it again: %v", err)
	}
}
