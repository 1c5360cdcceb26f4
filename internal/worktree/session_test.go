package worktree

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestClearSession: the session state that a checkpoint holds is deleted and nothing
// else, and a restore brings it back.
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
	for range 2 { // the second call has nothing to do
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
	wantEqual(t, "tree of the next checkpoint", c.Tree, cleared.Tree)
	if cleared.State == c.State {
		t.Error("the next checkpoint has the same state commit, though the session was cleared")
	}
	f.restore(c, ScopeConversation)
	sameListing(t, "the home, restored", home, listing(t, f.home))
	f.restore(cleared, ScopeConversation)
	if _, err := os.Lstat(filepath.Join(f.home, ".agent/latest")); !os.IsNotExist(err) {
		t.Errorf("restoring a checkpoint without a session did not delete the session: %v", err)
	}
}

// TestClearSessionWithoutSessionState: if session state is not captured, it is not
// deleted either.
func TestClearSessionWithoutSessionState(t *testing.T) {
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
