package worktree

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// homeFiles lists the files below the home of a fixture.
func homeFiles(t *testing.T, f *fixture) string {
	t.Helper()
	var out []string
	must(t, filepath.WalkDir(f.home, func(path string, d os.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			out = append(out, strings.TrimPrefix(path, f.home+"/"))
		}
		return err
	}))
	return strings.Join(out, " ")
}

// TestSessionStateByPattern: files that match are captured, restored, and removed
// again; all others are left alone.
func TestSessionStateByPattern(t *testing.T) {
	f := cloned(t, "")
	f.repo.cfg.HomeInclude = []string{".db/*.db", ".tmp/*/chats", ".nothing/*"}
	home := func(name, text string) {
		t.Helper()
		path := filepath.Join(f.home, name)
		must(t, os.MkdirAll(filepath.Dir(path), 0o700))
		must(t, os.WriteFile(path, []byte(text), 0o600))
	}
	home(".db/a.db", "a")
	home(".db/secret.json", "s")
	home(".tmp/one/chats/1", "1")
	home(".tmp/one/log", "l")
	must(t, os.Symlink("/etc", filepath.Join(f.home, ".tmp", "evil")))
	first := f.checkpoint()

	must(t, os.Remove(filepath.Join(f.home, ".db/a.db")))
	home(".db/b.db", "b")
	home(".tmp/one/chats/2", "2")
	home(".tmp/two/chats/3", "3")
	home(".tmp/two/log", "l")
	second := f.checkpoint()

	f.restore(first, ScopeBoth)
	if got, want := homeFiles(t, f), ".db/a.db .db/secret.json .tmp/evil .tmp/one/chats/1 .tmp/one/log .tmp/two/log"; got != want {
		t.Fatalf("the home has the files %s, want %s", got, want)
	}
	must(t, os.RemoveAll(f.home))
	must(t, os.Mkdir(f.home, 0o700))
	f.restore(second, ScopeBoth)
	if got, want := homeFiles(t, f), ".db/b.db .tmp/one/chats/1 .tmp/one/chats/2 .tmp/two/chats/3"; got != want {
		t.Fatalf("the home has the files %s, want %s", got, want)
	}
	must(t, f.repo.Close())
	cfg := f.config()
	cfg.HomeInclude = []string{".db/[a"}
	if _, err := Open(t.Context(), cfg); err == nil {
		t.Error("Open accepts an invalid pattern")
	}
}
