package worktree

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

func TestGitRefuses(t *testing.T) {
	for name, want := range map[string]bool{
		".git": true, ".GIT": true, ".Git": true, "git~1": true, "GIT~1": true, ".git ": true, ".git.": true, ".git. .": true,
		".git:x": true, "git~1::$INDEX": true, "a\\.git": true, ".git\\a": true, ".g\u200cit": true, "\u200e.git": true, ".gi\u206at": true,
		".gitx": false, ".gitignore": false, "git": false, "git~2": false, "a.git": false, ".gi": false, "git~10": false, ".gitmodules": false, "x\\y": false,
	} {
		if got := gitRefuses(name, false); got != want {
			t.Errorf("gitRefuses(%q) is %v, want %v", name, got, want)
		}
		if back, err := decodeName(encodeName(name, false)); err != nil || back != name {
			t.Errorf("decodeName(encodeName(%q)) is %q, %v, want the name", name, back, err)
		}
	}
	if !gitRefuses(".gitmodules", true) || !gitRefuses(".GitModules", true) {
		t.Error("a link called .gitmodules is not refused")
	}
	for _, bad := range []string{"%", "%zz", "%2f", "%2e", "%2e2e", "%00", "%612f62"} {
		if got, err := decodeName(bad); err == nil {
			t.Errorf("decodeName(%q) is %q, want an error", bad, got)
		}
	}
}

func TestCheckRefName(t *testing.T) {
	for _, good := range []string{"main", "refs/heads/a/b", "v1.2.3", "feature/ünï", strings.Repeat("a", 40), "a-b", "a@b", "a/-b"} {
		if err := checkRefName(good); err != nil {
			t.Errorf("%q is refused: %v", good, err)
		}
	}
	for _, bad := range []string{"", "-x", "--upload-pack=x", "a..b", "a b", "a\nb", "a\x00", "a~1", "a^", "a:b", "a?", "a*", "a[", `a\b`, "a.lock", "a.lock/b", ".a", "a/.b", "a//b", "/a", "a/", "a.", "@", "a@{1}", "\xff", strings.Repeat("a", 2000)} {
		if checkRefName(bad) == nil {
			t.Errorf("%q is accepted", bad)
		}
	}
}

func TestCleanURL(t *testing.T) {
	for in, want := range map[string]string{
		"https://host/path.git":        "https://host/path.git",
		"http://host:8080/a/b":         "http://host:8080/a/b",
		"ssh://git@host/path.git":      "ssh://git@host/path.git",
		"ssh://me@host:2222/~me/x":     "ssh://me@host:2222/~me/x",
		"ssh://git@[::1]:22/path.git":  "ssh://git@[::1]:22/path.git",
		"git@host:team/repository.git": "git@host:team/repository.git",
		"git@host:/srv/repository.git": "git@host:/srv/repository.git",
	} {
		if got, err := cleanURL(in, false); err != nil || got != want {
			t.Errorf("cleanURL(%q) is %q, %v, want %q", in, got, err, want)
		}
	}
	for _, bad := range []string{"", "/etc", "file:///etc", "ext::sh -c x", "ext::sh", "git://host/x", "https://user:pw@host/x", "https://token@host/x", "ssh://a:b@host/x", "https:///x", "https://-x/y", "ssh://-oProxyCommand=x/y", "ssh://-u@h/y", "host:path", "https://h/x?y", "https://h/x#y", "https://h/x\ny", "-x", "a@b@c:d", "fd::1", "x@y::z",
		"ssh://host/path.git", "ssh://git@-oProxyCommand=x/y", "ssh://git@host:-oProxyCommand=x/y", "ssh://%2doProxyCommand=x@host/y", "ssh://git@%2dx/y", "ssh://git@host/x%0ay", "ssh://git@host", "ssh://git@host/x?y",
		"git@-oProxyCommand=x:y", "-oProxyCommand=x@host:y", "git@host:-oProxyCommand=x", "git@$(id):x", "git@host;id:x", "git@[host:22]:x", "git@host:a://b", "ssh+git://git@host/x"} {
		_, err := cleanURL(bad, false)
		if ReasonOf(err) != InvalidURL {
			t.Errorf("cleanURL(%q) returns the error %v, want InvalidURL", bad, err)
		}
	}
	if _, err := cleanURL("https://user:pw@host/x", false); strings.Contains(err.Error(), "pw") {
		t.Errorf("the error contains the password: %v", err)
	}
}

// TestCountLines compares countLines with git on random texts.
func TestCountLines(t *testing.T) {
	dir := t.TempDir()
	rng := rand.New(rand.NewPCG(1, 2))
	text := func(lines int) string {
		var b strings.Builder
		for range lines {
			fmt.Fprintf(&b, "line %d\n", rng.IntN(12))
		}
		s := b.String()
		if rng.IntN(4) == 0 {
			s = strings.TrimSuffix(s, "\n")
		}
		return s
	}
	for range 30 {
		a, b := text(rng.IntN(25)), text(rng.IntN(25))
		writeFile(t, filepath.Join(dir, "a"), a, 0o644)
		writeFile(t, filepath.Join(dir, "b"), b, 0o644)
		out, _ := gitTry(dir, "diff", "--no-index", "--minimal", "--numstat", "a", "b")
		var wantAdded, wantRemoved int64
		_, _ = fmt.Sscan(out, &wantAdded, &wantRemoved)
		added, removed := countLines([]byte(a), []byte(b))
		if added != wantAdded || removed != wantRemoved {
			t.Errorf("from %q to %q: +%d -%d, git says %q", a, b, added, removed, out)
		}
	}
	long := strings.Repeat("a\n", 3000)
	if added, removed := countLines([]byte(long), []byte(strings.Repeat("b\n", 4000)+"a\n")); added != 4000 || removed != 2999 {
		t.Errorf("the estimate is +%d -%d, want +4000 -2999", added, removed)
	}
}

// TestIgnoreRules compares the untracked files with those of git status.
func TestIgnoreRules(t *testing.T) {
	f := cloned(t, "")
	f.write(".gitignore", "*.log\n!keep.log\nbuild/\n/rooted\nsub/inner\n**/deep/x\na/**/z\nabc/**\n# comment\n\\#hash\nspace\\ \ntrailing   \n[ab]c\n[!q]d\nq?e\nünï*\n*.tmp/\nfoo/*\n!foo/bar\n")
	f.write("nested/.gitignore", "!special.log\n/only\n")
	names := []string{"x.log", "keep.log", "d/x.log", "d/keep.log", "build", "build/x", "d/build/x", "rooted", "d/rooted", "sub/inner", "d/sub/inner", "deep/x", "p/deep/x", "p/q/deep/x", "a/z", "a/b/z", "a/b/c/z", "abc/x", "abc/d/e", "#hash", "space ", "trailing", "ac", "bc", "cc", "qd", "rd", "qxe", "qe", "ünïx", "d/x.tmp/y", "x.tmp", "foo/baz", "foo/bar", "nested/special.log", "nested/d/special.log", "nested/only", "nested/d/only", "nested/other.log"}
	for _, n := range names {
		if n == "build" || n == "x.tmp" {
			continue // exists as a folder
		}
		f.write(n, n)
	}
	out := f.git("status", "--porcelain", "-z", "--untracked-files=all")
	want := map[string]bool{}
	for line := range strings.SplitSeq(out, "\x00") {
		if path, ok := strings.CutPrefix(line, "?? "); ok {
			want[path] = true
		}
	}
	// An empty repository has no index file yet, and without one nothing is listed.
	f.git("add", ".gitignore")
	delete(want, ".gitignore")
	c := f.checkpoint()
	got := map[string]bool{}
	for _, d := range c.Agent.Dirty {
		if d.State == "Untracked" {
			got[d.Path] = true
		}
	}
	for path := range want {
		if !got[path] {
			t.Errorf("%q is not listed, though git lists it", path)
		}
	}
	for path := range got {
		if !want[path] {
			t.Errorf("%q is listed, though git does not list it", path)
		}
	}
}

func TestParseIndex(t *testing.T) {
	f := cloned(t, makeOrigin(t, 60))
	for _, version := range []string{"2", "3", "4"} {
		f.git("update-index", "--index-version", version)
		if version != "2" {
			f.git("update-index", "--skip-worktree", "second.txt")
		}
		raw, err := os.ReadFile(filepath.Join(f.work, ".git/index"))
		must(t, err)
		list, err := parseIndex(raw)
		must(t, err)
		var b strings.Builder
		for _, e := range list {
			fmt.Fprintf(&b, "%o %s %d\t%s\n", e.mode, e.oid, e.stage, e.path)
		}
		if want := f.git("ls-files", "-s"); b.String() != want {
			t.Errorf("version %s reads as\n%s\nwant\n%s", version, b.String(), want)
		}
		// Damaged input must only cause an error.
		for i := range 200 {
			bad := bytes.Clone(raw)
			bad[i*len(bad)/200] ^= 0xff
			_, _ = parseIndex(bad)
			_, _ = parseIndex(raw[:i*len(raw)/200])
		}
	}
}

// TestTreeIDs compares computed tree ids with git's, for names that git does not sort
// by their bytes.
func TestTreeIDs(t *testing.T) {
	f := cloned(t, "")
	for _, name := range []string{"a.b", "a/b", "a0", "a-", "ab", "b/c/d", "b.c", "b/c.d", "\xff", "é"} {
		f.write(name, name)
	}
	c := f.checkpoint()
	f.git("add", "-A")
	if got := strings.TrimSpace(f.git("write-tree")); got != c.Tree {
		t.Errorf("the tree is %s, git says %s", c.Tree, got)
	}
}

func TestStatCacheIsReloaded(t *testing.T) {
	f := cloned(t, makeOrigin(t, 50))
	f.fillOddly()
	f.checkpoint()
	f.checkpoint()
	want, base := f.repo.cache, f.repo.base
	base.summary = nil // not stored in the cache
	f.repo.unsaved = 1
	f.reopen()
	got := f.repo.cache
	if f.repo.base != base {
		t.Errorf("the baseline is %+v, want %+v", f.repo.base, base)
	}
	sameTree := cmp.Options{cmp.AllowUnexported(dir{}, entry{}, fileStat{}), cmpopts.EquateEmpty()}
	if diff := cmp.Diff(want.work, got.work, sameTree); diff != "" {
		t.Errorf("worktree in the cache (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(want.home, got.home, sameTree); diff != "" {
		t.Errorf("home in the cache (-want +got):\n%s", diff)
	}
	// A damaged cache is ignored, which only costs time.
	must(t, f.repo.Close())
	raw, err := os.ReadFile(f.repo.own("stat-cache"))
	must(t, err)
	raw[len(raw)/2] ^= 1
	must(t, os.WriteFile(f.repo.own("stat-cache"), raw, 0o600))
	f.open()
	if f.repo.cache.work != nil {
		t.Error("a damaged cache is not ignored")
	}
	if c := f.checkpoint(); c.FilesChanged != 0 {
		t.Errorf("the changed files are %+v, want none", c.Files)
	}
}

// TestWithoutOpenat2 opens paths as on a kernel without the system call.
func TestWithoutOpenat2(t *testing.T) {
	dir := t.TempDir()
	writeFile(t, filepath.Join(dir, "in/a/b/file"), "x", 0o644)
	writeFile(t, filepath.Join(dir, "out/file"), "x", 0o644)
	must(t, os.Symlink("../out", filepath.Join(dir, "in/link")))
	must(t, os.Symlink("b", filepath.Join(dir, "in/a/link")))
	for _, slow := range []bool{false, true} {
		b, err := openBeneath(filepath.Join(dir, "in"))
		must(t, err)
		b.slow = slow
		if _, err := b.readFile("a/b/file", 10); err != nil {
			t.Errorf("slow %v: %v", slow, err)
		}
		for _, bad := range []string{"link/file", "a/link/file", "a/link", "../out/file", "a/../../out/file", "/etc/passwd", "none"} {
			if text, err := b.readFile(bad, 1<<20); err == nil {
				t.Errorf("slow %v: %s reads as %q", slow, bad, text)
			}
		}
		must(t, b.close())
	}
}

func TestFilesThatChangeDuringAScan(t *testing.T) {
	// Files that grow and shrink while they are read must never result in a
	// checkpoint that does not verify.
	f := cloned(t, "")
	stop := make(chan struct{})
	done := make(chan struct{})
	go func() {
		defer close(done)
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			name := filepath.Join(f.work, fmt.Sprintf("race%d", i%5))
			switch i % 3 {
			case 0:
				_ = os.WriteFile(name, bytes.Repeat([]byte("x"), i*37%9000), 0o644)
			case 1:
				_ = os.Truncate(name, int64(i%100))
			default:
				_ = os.Remove(name)
			}
		}
	}()
	for range 20 {
		c := f.checkpoint()
		must(t, f.repo.Verify(context.Background(), c.target()))
	}
	close(stop)
	<-done
	c := f.checkpoint()
	f.restore(c, ScopeBoth)
}

func TestReasons(t *testing.T) {
	full := &gitError{command: "fast-import", stderr: "fatal: write error: No space left on device", err: errors.New("exit status 128")}
	for want, err := range map[Reason]error{
		StorageFull: failIO(&os.PathError{Op: "write", Path: "x", Err: syscall.ENOSPC}, "write %s", "x"),
		GitFailed:   failIO(errors.New("odd"), "write %s", "x"),
		InUse:       failIO(fail(InUse, nil, "in use"), "open"),
		"":          nil,
		Unreachable: failRemote(&gitError{stderr: "fatal: unable to access 'http://x/': Could not resolve host: x"}, "http://x"),
		RefNotFound: failRemote(&gitError{stderr: "fatal: couldn't find remote ref refs/heads/x"}, "http://x"),
		Rejected:    failRemote(&gitError{stderr: "! refs/x:refs/x [remote rejected] (denied)\nerror: failed to push some refs"}, "http://x"),
		InvalidURL:  fmt.Errorf("outer: %w", fail(InvalidURL, nil, "bad")),
	} {
		if got := ReasonOf(err); got != want {
			t.Errorf("the reason of %v is %q, want %q", err, got, want)
		}
	}
	short := &gitError{stderr: "fatal: Out of memory, malloc failed (tried to allocate 9 bytes)\nfatal: early EOF"}
	if got := ReasonOf(failRemote(short, "http://x")); got != MemoryExceeded {
		t.Errorf("the reason of %v is %q, want MemoryExceeded", short, got)
	}
	jgit := &gitError{stderr: "fatal: remote error: want 32e00c5142228eefd0ff028b1e377a0561575122 not valid"}
	if got := ReasonOf(failRemote(jgit, "http://x")); got != RefNotFound {
		t.Errorf("the reason of %v is %q, want RefNotFound", jgit, got)
	}
	for _, err := range []error{failGit(full, "write"), (&Repo{}).failCorrupt(full, "read"), failRemote(full, "http://x")} {
		if got := ReasonOf(err); got != StorageFull || !errors.Is(err, error(full)) {
			t.Errorf("the reason of %v is %q, want StorageFull and the original error", err, got)
		}
	}
	if failGit(nil, "x") != nil || failIO(nil, "x") != nil {
		t.Error("failGit or failIO of a nil error is not nil")
	}
	if err := failGit(context.Canceled, "x"); !errors.Is(err, context.Canceled) {
		t.Errorf("a cancelled context became %v", err)
	}
}

// TestALongChainOfDeltasHidesNoLackOfMemory: git lists each delta between the cause of its
// failure and its conclusion.
func TestALongChainOfDeltasHidesNoLackOfMemory(t *testing.T) {
	stderr := &endsBuffer{}
	pack := "/workspace/state/git/objects/pack/pack-" + strings.Repeat("5", 40) + ".pack"
	fmt.Fprintln(stderr, "error: Out of memory, malloc failed (tried to allocate 12000003 bytes)")
	for i := range 4095 { // the longest chain that git creates
		fmt.Fprintf(stderr, "error: failed to read delta base object %040d at offset %d from %s\n", i, i, pack)
		err := &gitError{stderr: stderr.String() + "fatal: packed object " + strings.Repeat("3", 40) + " (stored in " + pack + ") is corrupt\n"}
		if !interrupted(err) {
			t.Fatalf("after %d deltas the lack of memory is lost: %s", i, stderr)
		}
		if unreadObject.FindString(stderrOf(err)) == "" {
			t.Fatalf("after %d deltas the conclusion is lost: %s", i, stderr)
		}
		if n := len(stderr.String()); n > 2*maxStderr {
			t.Fatalf("after %d deltas %d bytes are kept, want at most %d", i, n, 2*maxStderr)
		}
	}
}
