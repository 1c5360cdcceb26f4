package worktree

import (
	"context"
	"crypto/sha256"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// fixture is a worktree with its repository and the agent's home.
type fixture struct {
	t    testing.TB
	base string
	work string
	home string
	repo *Repo
	n    int64
	last Checkpoint
}

func (f *fixture) config() Config {
	return Config{
		GitDir:       filepath.Join(f.base, "git"),
		Worktree:     f.work,
		Home:         f.home,
		HomeInclude:  []string{".agent", ".other/sessions"},
		HomeExclude:  []string{".agent/credentials.json"},
		MaxFileBytes: 1 << 20,
		LockWait:     20 * time.Second,
	}
}

// newFixture creates the folders and opens the repository; nothing is cloned.
func newFixture(t testing.TB) *fixture {
	t.Helper()
	base := t.TempDir()
	t.Cleanup(func() { // otherwise folders without write permission could not be removed
		_ = filepath.WalkDir(base, func(path string, d fs.DirEntry, err error) error {
			if d != nil && d.IsDir() {
				_ = os.Chmod(path, 0o700)
			}
			return nil
		})
	})
	f := &fixture{t: t, base: base, work: filepath.Join(base, "work"), home: filepath.Join(base, "home")}
	for _, d := range []string{f.work, f.home} {
		must(t, os.MkdirAll(d, 0o755))
	}
	f.open()
	return f
}

func (f *fixture) open() {
	f.t.Helper()
	repo, err := Open(context.Background(), f.config())
	must(f.t, err)
	repo.local = true
	f.repo = repo
	f.t.Cleanup(func() { repo.Close() })
}

func (f *fixture) reopen() {
	f.t.Helper()
	must(f.t, f.repo.Close())
	f.open()
}

// cloned creates a fixture cloned from an origin, or an empty one for "".
func cloned(t testing.TB, origin string) *fixture {
	t.Helper()
	f := newFixture(t)
	url := ""
	if origin != "" {
		url = "file://" + origin
	}
	o, err := f.repo.Clone(context.Background(), CloneRequest{URL: url})
	must(t, err)
	f.last.Code = o.Base
	return f
}

// checkpoint takes the next checkpoint.
func (f *fixture) checkpoint() Checkpoint {
	f.t.Helper()
	f.n++
	c, err := f.repo.Checkpoint(context.Background(), CheckpointRequest{TaskUID: "uid-1", Number: f.n, Parent: f.last.Code, Message: fmt.Sprintf("Checkpoint %d\n", f.n)})
	must(f.t, err)
	f.last = c
	return c
}

func (c Checkpoint) target() Target { return Target{Code: c.Code, State: c.State} }

func (f *fixture) restore(c Checkpoint, scope Scope) RestoreResult {
	f.t.Helper()
	res, err := f.repo.Restore(context.Background(), RestoreRequest{Target: c.target(), Scope: scope})
	must(f.t, err)
	return res
}

// git runs git in the worktree, as the agent would.
func (f *fixture) git(args ...string) string {
	f.t.Helper()
	return gitIn(f.t, f.work, args...)
}

func gitIn(t testing.TB, dir string, args ...string) string {
	t.Helper()
	out, err := gitTry(dir, args...)
	if err != nil {
		t.Fatalf("git %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return out
}

func gitTry(dir string, args ...string) (string, error) {
	out, err := gitCommand(dir, args...).CombinedOutput()
	return string(out), err
}

func gitCommand(dir string, args ...string) *exec.Cmd {
	cmd := exec.Command("git", args...)
	cmd.Dir = dir
	cmd.Env = []string{
		"PATH=" + os.Getenv("PATH"), "HOME=" + dir, "GIT_CONFIG_NOSYSTEM=1", "GIT_CONFIG_GLOBAL=/dev/null",
		"GIT_AUTHOR_NAME=agent", "GIT_AUTHOR_EMAIL=agent@example.com", "GIT_COMMITTER_NAME=agent", "GIT_COMMITTER_EMAIL=agent@example.com",
	}
	return cmd
}

func (f *fixture) write(name, content string) {
	f.t.Helper()
	writeFile(f.t, filepath.Join(f.work, name), content, 0o644)
}

func writeFile(t testing.TB, path, content string, perm os.FileMode) {
	t.Helper()
	must(t, os.MkdirAll(filepath.Dir(path), 0o755))
	must(t, os.WriteFile(path, []byte(content), perm))
	must(t, os.Chmod(path, perm))
}

// makeOrigin creates a repository with branches, tags and n files, plus run.sh and second.txt.
func makeOrigin(t testing.TB, n int) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "origin")
	must(t, os.MkdirAll(dir, 0o755))
	gitIn(t, dir, "init", "-q", "-b", "trunk")
	gitIn(t, dir, "config", "gc.auto", "0") // it would continue in the background
	for i := range n {
		writeFile(t, filepath.Join(dir, fileName(i)), fmt.Sprintf("file %d\n%s", i, strings.Repeat("some line of text\n", 20)), 0o644)
	}
	writeFile(t, filepath.Join(dir, "run.sh"), "#!/bin/sh\n", 0o755)
	gitIn(t, dir, "add", "-A")
	gitIn(t, dir, "commit", "-q", "-m", "first")
	gitIn(t, dir, "tag", "-a", "v1", "-m", "version 1")
	gitIn(t, dir, "branch", "side/branch")
	writeFile(t, filepath.Join(dir, "second.txt"), "second\n", 0o644)
	gitIn(t, dir, "add", "-A")
	gitIn(t, dir, "commit", "-q", "-m", "second")
	return dir
}

func fileName(i int) string { return fmt.Sprintf("pkg/m%03d/s%d/file_%05d.txt", i/100, i/20%5, i) }

// listing describes everything below a folder, independently of the code under
// test. It leaves out the object stores of repositories.
func listing(t testing.TB, root string) map[string]string {
	t.Helper()
	m := map[string]string{}
	must(t, filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(root, path)
		otherStore := strings.HasSuffix(rel, "/objects") && strings.Contains(rel, ".git/")
		if otherStore || strings.Contains(rel, ".git/objects") {
			if d.IsDir() {
				return filepath.SkipDir
			}
			return nil
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		switch {
		case rel == ".":
		case info.Mode()&fs.ModeSymlink != 0:
			target, err := os.Readlink(path)
			m[rel] = "link " + target
			return err
		case info.IsDir():
			m[rel] = "dir " + info.Mode().Perm().String()
		case info.Mode().IsRegular():
			content, err := os.ReadFile(path)
			m[rel] = fmt.Sprintf("file %s %d %x", info.Mode().Perm(), info.Size(), sha256.Sum256(content))
			return err
		default:
			m[rel] = "special " + info.Mode().String()
		}
		return nil
	}))
	return m
}

// sameListing compares two listings. It ends the test after 20 differences.
func sameListing(t testing.TB, what string, want, got map[string]string) {
	t.Helper()
	differences := 0
	report := func(path, want, got string) {
		t.Helper()
		t.Errorf("%s: %q is %q, want %q", what, path, got, want)
		if differences++; differences > 20 {
			t.FailNow()
		}
	}
	for path, w := range want {
		if g := got[path]; g != w { // no description is ""
			report(path, w, g)
		}
	}
	for path, g := range got {
		if _, ok := want[path]; !ok {
			report(path, "", g)
		}
	}
}

// wantEqual compares a whole value with the expected one.
func wantEqual[T any](t testing.TB, what string, want, got T) {
	t.Helper()
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", what, diff)
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func wantReason(t testing.TB, err error, want Reason) {
	t.Helper()
	if got := ReasonOf(err); got != want {
		t.Fatalf("the error is %v (reason %q), want reason %q", err, got, want)
	}
}
