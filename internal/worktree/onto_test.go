package worktree

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/clew-dev/clew/internal/pathmatch"
)

// mixed is the listing that a restore of paths has to end with: that of now, with the
// selected entries of then. It is computed independently of the code under test.
func mixed(t *testing.T, now, then map[string]string, paths ...string) map[string]string {
	t.Helper()
	set, err := pathmatch.New(paths)
	must(t, err)
	ofRepository := func(p string) bool {
		return slices.ContainsFunc(strings.Split(p, "/"), func(name string) bool {
			return strings.EqualFold(name, ".git") || name == "git~1" || name == ".gitmodules" && strings.HasPrefix(now[p]+then[p], "link")
		})
	}
	taken := func(p string) bool {
		return !ofRepository(p) && p != "big.bin" && set.Match(p)
	}
	want := maps.Clone(now)
	maps.DeleteFunc(want, func(p, _ string) bool { return taken(p) })
	add := func(p string) { want[p] = then[p] }
	for p := range then {
		if taken(p) {
			add(p)
		}
	}
	for p := range maps.Clone(want) { // each is in a folder
		for parent := filepath.Dir(p); parent != "."; parent = filepath.Dir(parent) {
			if want[parent] == "" && strings.HasPrefix(now[parent], "dir") {
				want[parent] = now[parent]
			} else if want[parent] == "" {
				add(parent)
			}
		}
	}
	return want
}

func (f *fixture) restorePaths(from Target, onto Checkpoint, paths ...string) RestoreResult {
	f.t.Helper()
	res, err := f.repo.Restore(context.Background(), RestoreRequest{Target: from, Onto: onto.target(), Paths: paths})
	must(f.t, err)
	return res
}

func TestOnlyPathsAreRestored(t *testing.T) {
	f := cloned(t, makeOrigin(t, 30))
	f.fillOddly()
	one, then := f.checkpoint(), listing(t, f.work)
	f.disturb()
	f.git("rm", "-q", "--cached", "run.sh") // a changed index
	two, now, home := f.checkpoint(), listing(t, f.work), listing(t, f.home)
	status := f.git("status", "--porcelain=v2", "--branch")
	for _, paths := range [][]string{
		{"binary.bin"},
		{"modes"},
		{"modes/m600", "link-out", "crlf.txt"},
		{"kind"},
		{"kind/*-dir", "kind/dir-*"},
		{"kind/pipe-to-file", "kind/dir-to-pipe"},
		{"pipes"},
		{"pipes/*", "fifo", "kind/*-pipe"},
		{"pipes/later"},
		{"ignored/", "a.log"},
		{"ignored/deep/file"},
		{"empty/inner"},
		{"private-empty"},
		{"modcache/mod"},
		{"modcache/mod/more.go"},
		{"nested"},
		{"modules/sub"},
		{"added"},
		{"**/*.go", "*.txt"},
		{"odd"},
		{"**"},
		{"pkg/m000/s0/*"},
	} {
		t.Run(strings.ReplaceAll(strings.Join(paths, " "), "/", "|"), func(t *testing.T) {
			must(t, f.repo.CheckPaths(t.Context(), RestoreRequest{Target: one.target(), Paths: paths}))
			res := f.restorePaths(one.target(), two, paths...)
			sameListing(t, "worktree", mixed(t, now, then, paths...), listing(t, f.work))
			sameListing(t, "home", home, listing(t, f.home))
			if again := f.restorePaths(one.target(), two, paths...); again.Written+again.Removed > 0 || again.Tree != res.Tree {
				t.Errorf("the same restore again changes something: %+v", again)
			}
			// It is a worktree like any other: a checkpoint holds it.
			three := f.checkpoint()
			if three.Tree != res.Tree {
				t.Errorf("the checkpoint's tree is %s, the restore's %s", three.Tree, res.Tree)
			}
			f.restore(two, ScopeBoth)
			sameListing(t, "undone", now, listing(t, f.work))
			f.last = two
		})
	}
	if got := f.git("status", "--porcelain=v2", "--branch"); got != status {
		t.Errorf("git status prints\n%s\nwant\n%s", got, status)
	}
}

func TestPathsThatCannotBeRestored(t *testing.T) {
	f := cloned(t, makeOrigin(t, 10))
	f.write("was-folder/file", "one")
	f.write("here", "one")
	one := f.checkpoint()
	must(t, os.RemoveAll(filepath.Join(f.work, "was-folder")))
	f.write("was-folder", "two")
	f.write("here", strings.Repeat("too large", 1<<20))
	two := f.checkpoint()
	now := listing(t, f.work)
	for _, c := range []struct {
		path   string
		reason Reason
		text   string
	}{
		{"no/such", PathNotFound, `the path "no/such" selects nothing`},
		{"*.nothing", PathNotFound, `the path "*.nothing" selects nothing`},
		{"../up", PathNotFound, `leaves the worktree`},
		{".git/config", PathNotFound, `part of a git repository`},
		{"was-folder/file", PathBlocked, `the target has was-folder where the worktree has something that has to stay`},
		{"here", PathBlocked, `the target has here where`},
	} {
		req := RestoreRequest{Target: one.target(), Paths: []string{"second.txt", c.path}}
		err := f.repo.CheckPaths(t.Context(), req)
		wantReason(t, err, c.reason)
		if !strings.Contains(err.Error(), c.text) {
			t.Errorf("the error is %q, want %q", err, c.text)
		}
		if req.Onto = two.target(); c.path == "was-folder/file" {
			_, err = f.repo.Restore(t.Context(), req)
			wantReason(t, err, c.reason)
		}
	}
	sameListing(t, "worktree", now, listing(t, f.work))
}

// TestTheFilesOfACommit: the agent's repository stays, and so does what the commit does not
// know of: ignored files, nested repositories, empty folders, permission bits.
func TestTheFilesOfACommit(t *testing.T) {
	origin := makeOrigin(t, 10)
	f := cloned(t, origin)
	f.write(".gitignore", "*.log\n/build/\n")
	f.write("keep/.gitignore", "!kept.log\n")
	f.write("keep/kept.log", "tracked")
	f.write("build/tracked", "tracked")
	f.git("add", "-f", ".")
	f.git("commit", "-q", "-m", "ignore")
	one := f.checkpoint()
	base := strings.TrimSpace(f.git("rev-parse", "HEAD~2"))
	f.write("run.sh", "changed")
	must(t, os.Chmod(filepath.Join(f.work, "run.sh"), 0o700))
	f.write("a.log", "ignored")
	f.write("build/out/a", "ignored with its folder")
	f.write("keep/gone.log", "ignored")
	f.write("keep/more/kept.log", "not ignored")
	f.write("more/file", "unknown to the commit")
	must(t, os.MkdirAll(filepath.Join(f.work, "nothing/in/it"), 0o755))
	f.write("vendor/lib/code.go", "of another repository")
	gitIn(t, filepath.Join(f.work, "vendor/lib"), "init", "-q")
	two := f.checkpoint()
	now, head := listing(t, f.work), f.git("status", "--porcelain=v2", "--branch", "-uno")

	expect := func(what string, gone []string, changed map[string]string) {
		t.Helper()
		want := maps.Clone(now)
		for _, p := range gone {
			delete(want, p)
		}
		maps.Copy(want, changed)
		sameListing(t, what, want, listing(t, f.work))
		f.restore(two, ScopeBoth)
	}
	then := map[string]string{}
	f.restore(one, ScopeBoth)
	maps.Copy(then, listing(t, f.work))
	f.restore(two, ScopeBoth)

	// A commit of the origin, from before there was a .gitignore.
	f.restorePaths(Target{Code: base}, two)
	expect("the origin's commit", []string{".gitignore", "a.log", "build", "build/out", "build/out/a", "build/tracked", "keep", "keep/.gitignore",
		"keep/gone.log", "keep/kept.log", "keep/more", "keep/more/kept.log", "more", "more/file", "second.txt"},
		map[string]string{"run.sh": strings.Replace(then["run.sh"], "rwxr-xr-x", "rwx------", 1)})

	// The agent's own commit is no object of this repository yet, but a copy of it can be.
	bundle := filepath.Join(t.TempDir(), "bundle")
	f.git("bundle", "create", "-q", bundle, "HEAD")
	own := strings.TrimSpace(f.git("rev-parse", "HEAD"))
	gitIn(t, f.config().GitDir, "fetch", "-q", bundle, "HEAD:refs/clew/uid-1/head/1")
	f.restorePaths(Target{Code: own}, two)
	expect("the agent's commit", []string{"keep/more", "keep/more/kept.log", "more", "more/file"},
		map[string]string{"run.sh": strings.Replace(then["run.sh"], "rwxr-xr-x", "rwx------", 1)})
	f.restorePaths(Target{Code: own}, two, "keep", "build")
	expect("paths of the agent's commit", []string{"keep/more", "keep/more/kept.log"}, nil)

	// A checkpoint's commit holds ignored files as well.
	f.restorePaths(Target{Code: one.Code}, two)
	expect("a checkpoint's commit", []string{"a.log", "build/out", "build/out/a", "keep/gone.log", "keep/more", "keep/more/kept.log", "more", "more/file", "vendor/lib/code.go"},
		map[string]string{"run.sh": strings.Replace(then["run.sh"], "rwxr-xr-x", "rwx------", 1)})
	if got := f.git("status", "--porcelain=v2", "--branch", "-uno"); got != head {
		t.Errorf("git status prints\n%s\nwant\n%s", got, head)
	}
}

func TestKilledRestoreOfPathsEndsExact(t *testing.T) {
	if testing.Short() {
		t.Skip("kills many processes: make test runs it")
	}
	rounds, changed := 10, 300
	if soak() {
		rounds, changed = 40, 2000
	}
	f := cloned(t, makeOrigin(t, changed+200))
	f.fillOddly()
	one, then := f.checkpoint(), listing(t, f.work)
	f.disturb()
	for i := range changed {
		f.write(fileName(i), fmt.Sprintf("changed %d\n", i))
	}
	for _, dir := range []string{"pkg/m000/s1", "pkg/m001"} { // its bits must survive a kill
		must(t, os.Chmod(filepath.Join(f.work, dir), 0o555))
	}
	two, now := f.checkpoint(), listing(t, f.work)
	paths := []string{"pkg/m000", "pkg/m001/s?/file_*.txt", "modes", "modcache", "kind", "pipes", "ignored", "odd", "*.txt"}
	want := mixed(t, now, then, paths...)
	there := RestoreRequest{Target: one.target(), Onto: two.target(), Paths: paths}
	back := RestoreRequest{Target: two.target()}
	must(t, f.repo.Close())
	whole := func(req RestoreRequest) time.Duration {
		out, took := runAndKill(t, job{Config: f.config(), Restore: &req}, time.Minute)
		if !strings.Contains(out, "done") {
			t.Fatal("a restore takes more than a minute")
		}
		return took
	}
	took, killed := whole(there), 0
	whole(back)
	for i := range rounds {
		for kills := 1 + rand.IntN(2); kills > 0; kills-- {
			out, ended := runAndKill(t, job{Config: f.config(), Restore: &there}, time.Duration(rand.Int64N(int64(took))))
			if strings.Contains(out, "done") {
				took = min(took, ended)
				continue
			}
			killed++
		}
		whole(there)
		sameListing(t, fmt.Sprintf("round %d", i), want, listing(t, f.work))
		whole(back)
		sameListing(t, fmt.Sprintf("round %d, undone", i), now, listing(t, f.work))
	}
	t.Logf("%d restores killed, a complete one takes %v", killed, took)
}
