package gitignore_test

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/clew-dev/clew/internal/gitignore"
)

// Rules of a folder's file are judged by git itself.
func TestRulesMatchAsGitDoes(t *testing.T) {
	paths := []string{"1.txt", "abc.txt", "]", "[", "a/b", "a", "a.log", "b/a.log", "b/c/a.log", "build/x", "src/build/x", "b/keep.log", "x/y/z", "x/z", "doc/a.txt", "doc/b/a.txt", "ü.txt", "a b", "[x]", "deep/er/tmp"}
	for _, text := range []string{
		"*.log", "/a", "a", "build/", "/build/", "*.log\n!keep.log\n", "x/**/z", "**/a.txt", "doc/*.txt", "doc/**", "b/**/a.log", "?", "[ab]", "[!ab]",
		"\\[x]", "# comment\n", "a\\ b", "a b   ", "ü*", "deep/er", "!a\na", "tmp/", "", "/", "*\n!*/\n!*.txt",
		"*.txt\n![[:alpha:]]*.txt\n", "[[:digit:]]*", "[]x]", "[!]a]", "[^ab]", "[a-c]", "[a", "[[x]",
	} {
		dir := t.TempDir()
		git(t, dir, "", "init", "--quiet")
		if err := os.WriteFile(filepath.Join(dir, ".gitignore"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		want := map[string]bool{}
		for path := range strings.SplitSeq(git(t, dir, strings.Join(paths, "\x00"), "check-ignore", "--no-index", "-z", "--stdin"), "\x00") {
			want[path] = true
		}
		rules := (*gitignore.Rules)(nil).With("", gitignore.Parse([]byte(text)))
		for _, path := range paths {
			if got := ignored(rules, path); got != want[path] {
				t.Errorf("%q ignores %q: %t, git says %t", text, path, got, want[path])
			}
		}
	}
}

// ignored applies rules to a file: a file of an ignored folder is ignored as well.
func ignored(rules *gitignore.Rules, path string) bool {
	for i := range path {
		if path[i] == '/' && rules.Match(path[:i], true) {
			return true
		}
	}
	return rules.Match(path, false)
}

// git runs git with standard input; its exit code says whether anything is ignored.
func git(t *testing.T, dir, stdin string, args ...string) string {
	t.Helper()
	command := exec.CommandContext(t.Context(), "git", args...)
	command.Dir, command.Stdin = dir, strings.NewReader(stdin)
	command.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_NOSYSTEM=1")
	out, err := command.Output()
	if err != nil && command.ProcessState.ExitCode() != 1 {
		t.Fatalf("git %v: %v", args, err)
	}
	return string(out)
}

func TestRulesOfInnerFoldersDecide(t *testing.T) {
	outer := (*gitignore.Rules)(nil).With("", gitignore.Parse([]byte("*.log\n")))
	inner := outer.With("sub", gitignore.Parse([]byte("!keep.log\n/only\n")))
	for path, want := range map[string]bool{"sub/a.log": true, "sub/keep.log": false, "sub/only": true, "sub/x/only": false} {
		if got := inner.Match(path, false); got != want {
			t.Errorf("%q is ignored: %t, want %t", path, got, want)
		}
	}
}

// A line that is left out might say that a file is not ignored.
func TestNothingIsIgnoredByRulesThatCannotBeRead(t *testing.T) {
	outer := (*gitignore.Rules)(nil).With("", gitignore.Parse([]byte("*.log\n")))
	for name, file := range map[string]*gitignore.File{
		"too large": gitignore.Parse(bytes.Repeat([]byte("x\n"), gitignore.MaxBytes)), "unreadable": gitignore.Unreadable(),
		"a class with a slash": gitignore.Parse([]byte("*.log\n!a[.-0]b\n")),
		"a long line":          gitignore.Parse([]byte("*.log\n!" + strings.Repeat("a", 2000) + "\n")),
	} {
		if outer.With("sub", file).Match("sub/a.log", false) {
			t.Errorf("with a file that is %s, a file is ignored", name)
		}
	}
	if !outer.Match("a.log", false) {
		t.Error("outside of the folder it is not ignored")
	}
}

// An agent writes the patterns, and each byte of them takes a hundred bytes of memory.
func TestPatternsTakeBoundedMemory(t *testing.T) {
	heap := func() int64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc) //nolint:gosec // far below the limit
	}
	for name, text := range map[string]string{
		"long lines":       strings.Repeat(strings.Repeat("?", 1000)+"\n", 60),
		"many lines":       strings.Repeat("a*b?\n", 1900),
		"longer than read": strings.Repeat("?\n", gitignore.MaxBytes),
	} {
		before := heap()
		var rules *gitignore.Rules
		path := ""
		for range 20 {
			rules = rules.With(path, gitignore.Parse([]byte(text)))
			path = strings.TrimPrefix(path+"/d", "/")
		}
		if grown := heap() - before; grown > 32<<20 {
			t.Errorf("%s: the patterns of 20 nested folders take %d MiB", name, grown>>20)
		}
		runtime.KeepAlive(rules)
	}
}
