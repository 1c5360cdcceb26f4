package worktree

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestClearSession: what a checkpoint holds of the home goes, nothing else does,
// and a checkpoint brings it back.
func TestClearSession(t *testing.T) {
	f := cloned(t, makeOrigin(t, 3))
	f.write("work.txt", "work\n")
	for path, content := range map[string]string{
		".agent/sessions/1/log": "said", ".agent/locked/state": "x", ".agent/credentials.json": "secret",
		".other/sessions/2": "said", ".other/settings": "mine", "notes": "mine",
	} {
		writeFile(t, filepath.Join(f.home, path), content, 0o600)
	}
	must(t, os.Symlink("sessions", filepath.Join(f.home, ".agent/latest")))
	must(t, os.Chmod(filepath.Join(f.home, ".agent/locked"), 0o500))
	c := f.checkpoint()
	work, home := listing(t, f.work), listing(t, f.home)
	for range 2 { // the second time there is nothing to do
		_, err := f.repo.ClearSession(context.Background())
		must(t, err)
		kept := listing(t, f.home)
		for path, is := range kept {
			if strings.HasPrefix(is, "dir") {
				delete(kept, path)
			}
		}
		want := map[string]string{}
		for _, path := range []string{".agent/credentials.json", ".other/settings", "notes"} {
			want[path] = home[path]
		}
		sameListing(t, "the home", want, kept)
		sameListing(t, "the worktree", work, listing(t, f.work))
	}
	cleared := f.checkpoint()
	if cleared.Tree != c.Tree || cleared.State == c.State {
		t.Errorf("the checkpoint after it: %+v", cleared)
	}
	f.restore(c, ScopeConversation)
	sameListing(t, "the home, restored", home, listing(t, f.home))
	f.restore(cleared, ScopeConversation)
	if _, err := os.Lstat(filepath.Join(f.home, ".agent/latest")); !os.IsNotExist(err) {
		t.Errorf("a checkpoint without a session restores one: %v", err)
	}
}

// TestClearSessionWithoutAny: no state is kept, so none is taken away.
func TestClearSessionWithoutAny(t *testing.T) {
	f := newFixture(t)
	must(t, f.repo.Close())
	config := f.config()
	config.HomeInclude = nil
	repo, err := Open(context.Background(), config)
	must(t, err)
	t.Cleanup(func() { repo.Close() })
	writeFile(t, filepath.Join(f.home, ".agent/log"), "said", 0o600)
	_, err = repo.ClearSession(context.Background())
	must(t, err)
	if _, err := os.Stat(filepath.Join(f.home, ".agent/log")); err != nil {
		t.Error(err)
	}
}
