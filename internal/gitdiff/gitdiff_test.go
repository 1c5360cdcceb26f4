package gitdiff_test

import (
	"bufio"
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/clew-dev/clew/internal/gitdiff"
)

// repository is a git repository with two commits that differ in every way.
type repository struct {
	t   *testing.T
	dir string
}

func (r repository) git(args ...string) []byte {
	r.t.Helper()
	command := exec.CommandContext(r.t.Context(), "git", args...)
	command.Dir = r.dir
	command.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_NOSYSTEM=1",
		"GIT_AUTHOR_NAME=a", "GIT_AUTHOR_EMAIL=a@example.com", "GIT_COMMITTER_NAME=a", "GIT_COMMITTER_EMAIL=a@example.com")
	out, err := command.Output()
	if err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			r.t.Fatalf("git %v: %v\n%s", args, err, exit.Stderr)
		}
		r.t.Fatal(err)
	}
	return out
}

func (r repository) write(files map[string]string) {
	r.t.Helper()
	for name, content := range files {
		path := filepath.Join(r.dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			r.t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			r.t.Fatal(err)
		}
	}
}

func (r repository) commit() {
	r.t.Helper()
	r.git("add", "--all")
	r.git("commit", "--quiet", "--message=m")
}

const quoted = "sp ace/q\"uote\tä"

// newRepository returns a repository whose last commit changed files in every way.
func newRepository(t *testing.T) repository {
	t.Helper()
	r := repository{t, t.TempDir()}
	r.git("init", "--quiet")
	long := strings.Repeat("one line of many\n", 50)
	r.write(map[string]string{
		"binary": "\x00\x01", "changed": "a\nb\nc\n", "deleted": "x\n", "executable": "e\n", "moved": long,
		"no newline": "n", quoted: "q\n", "type": "t\n", "unchanged": "u\n", "- dash\n@@ -1 +1 @@": "d\n",
	})
	r.commit()
	r.write(map[string]string{
		"binary": "\x00\x02", "changed": "a\nB\nc\n", "added\xff": "latin \xe4\n", "empty": "", "moved": long + "and one\n",
		"no newline": "m", quoted: "Q\n", "- dash\n@@ -1 +1 @@": "diff --git a/x b/x\n",
	})
	for _, err := range []error{
		os.Remove(filepath.Join(r.dir, "deleted")), os.Remove(filepath.Join(r.dir, "type")),
		os.Symlink("unchanged", filepath.Join(r.dir, "type")), os.Chmod(filepath.Join(r.dir, "executable"), 0o755),
		os.Rename(filepath.Join(r.dir, "moved"), filepath.Join(r.dir, "moved away")),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	r.commit()
	return r
}

func (r repository) diff(formats ...string) *bufio.Reader {
	r.t.Helper()
	args := append([]string{"diff-tree", "-r", "-M", "-z", "--raw", "--abbrev=40", "--binary", "--full-index"}, formats...)
	return bufio.NewReader(bytes.NewReader(r.git(append(args, "HEAD^", "HEAD")...)))
}

func collect(t *testing.T, in *bufio.Reader) []gitdiff.Entry {
	t.Helper()
	var entries []gitdiff.Entry
	err := gitdiff.Each(in, func(e gitdiff.Entry) error { entries = append(entries, e); return nil })
	if err != nil {
		t.Fatal(err)
	}
	return entries
}

func TestEveryKindOfChangeIsListed(t *testing.T) {
	in := newRepository(t).diff("--numstat")
	entries := collect(t, in)
	if err := gitdiff.Counts(in, entries); err != nil {
		t.Fatal(err)
	}
	file, link, program, none := "100644", "120000", "100755", "000000"
	want := []gitdiff.Entry{
		{Status: 'M', OldMode: file, NewMode: file, Path: "- dash\n@@ -1 +1 @@", Added: 1, Removed: 1},
		{Status: 'A', OldMode: none, NewMode: file, Path: "added\xff", Added: 1},
		{Status: 'M', OldMode: file, NewMode: file, Path: "binary", Binary: true},
		{Status: 'M', OldMode: file, NewMode: file, Path: "changed", Added: 1, Removed: 1},
		{Status: 'D', OldMode: file, NewMode: none, Path: "deleted", Removed: 1},
		{Status: 'A', OldMode: none, NewMode: file, Path: "empty"},
		{Status: 'M', OldMode: file, NewMode: program, Path: "executable"},
		{Status: 'R', OldMode: file, NewMode: file, OldPath: "moved", Path: "moved away", Added: 1},
		{Status: 'M', OldMode: file, NewMode: file, Path: "no newline", Added: 1, Removed: 1},
		{Status: 'M', OldMode: file, NewMode: file, Path: quoted, Added: 1, Removed: 1},
		{Status: 'T', OldMode: file, NewMode: link, Path: "type", Added: 1, Removed: 1},
	}
	for i := range want {
		want[i].Counted = true
		if want[i].OldPath == "" {
			want[i].OldPath = want[i].Path
		}
	}
	if diff := cmp.Diff(want, entries, cmpopts.IgnoreFields(gitdiff.Entry{}, "OldID", "NewID")); diff != "" {
		t.Errorf("entries (-want +got):\n%s", diff)
	}
}

func TestPatchesOfSingleFilesAddUpToTheWhole(t *testing.T) {
	r := newRepository(t)
	in := r.diff("--patch")
	entries := collect(t, in)
	var all []byte
	err := gitdiff.Patches(in, entries, 1<<20, func(_ int, text []byte, size int64) error {
		if int64(len(text)) != size {
			t.Errorf("a patch of %d bytes has the size %d", len(text), size)
		}
		all = append(all, text...)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if whole := r.git("diff-tree", "-r", "-M", "-p", "--binary", "--full-index", "HEAD^", "HEAD"); !bytes.Equal(all, whole) {
		t.Errorf("the patches differ from git's (-git +got):\n%s", cmp.Diff(string(whole), string(all)))
	}
}

func TestALongPatchIsMeasuredAndLeftOut(t *testing.T) {
	r := newRepository(t)
	r.write(map[string]string{"changed": strings.Repeat("x", 1<<20), "last": "l\n"})
	r.commit()
	in := r.diff("--patch")
	entries := collect(t, in)
	sizes, texts := []int64{}, []int{}
	err := gitdiff.Patches(in, entries, 1000, func(_ int, text []byte, size int64) error {
		sizes, texts = append(sizes, size), append(texts, len(text))
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(sizes) != 2 || texts[0] != 0 || sizes[0] < 1<<20 || texts[1] == 0 || int64(texts[1]) != sizes[1] {
		t.Errorf("patches of %v bytes, of which %v are kept", sizes, texts)
	}
}

func TestHunks(t *testing.T) {
	in := newRepository(t).diff("--patch")
	entries := collect(t, in)
	got := map[string][]gitdiff.Hunk{}
	err := gitdiff.Patches(in, entries, 1<<20, func(i int, text []byte, _ int64) error {
		hunks, err := gitdiff.Hunks(text)
		got[entries[i].Path] = hunks
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	one := func(h gitdiff.Hunk) []gitdiff.Hunk { return []gitdiff.Hunk{h} }
	want := map[string][]gitdiff.Hunk{
		"- dash\n@@ -1 +1 @@": one(gitdiff.Hunk{OldStart: 1, OldLines: 1, NewStart: 1, NewLines: 1, Lines: []string{"-d", "+diff --git a/x b/x"}}),
		"added\xff":           one(gitdiff.Hunk{OldStart: 0, OldLines: 0, NewStart: 1, NewLines: 1, Lines: []string{"+latin \uFFFD"}}),
		"binary":              nil,
		"changed":             one(gitdiff.Hunk{OldStart: 1, OldLines: 3, NewStart: 1, NewLines: 3, Lines: []string{" a", "-b", "+B", " c"}}),
		"deleted":             one(gitdiff.Hunk{OldStart: 1, OldLines: 1, Lines: []string{"-x"}}),
		"empty":               nil,
		"executable":          nil,
		"moved away": one(gitdiff.Hunk{OldStart: 48, OldLines: 3, NewStart: 48, NewLines: 4, Section: "one line of many",
			Lines: []string{" one line of many", " one line of many", " one line of many", "+and one"}}),
		"no newline": one(gitdiff.Hunk{OldStart: 1, OldLines: 1, NewStart: 1, NewLines: 1,
			Lines: []string{"-n", `\ No newline at end of file`, "+m", `\ No newline at end of file`}}),
		quoted: one(gitdiff.Hunk{OldStart: 1, OldLines: 1, NewStart: 1, NewLines: 1, Lines: []string{"-q", "+Q"}}),
		"type": {
			{OldStart: 1, OldLines: 1, Lines: []string{"-t"}},
			{NewStart: 1, NewLines: 1, Lines: []string{"+unchanged", `\ No newline at end of file`}},
		},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("hunks (-want +got):\n%s", diff)
	}
}

func TestOutputThatEndsEarlyIsAnError(t *testing.T) {
	r := newRepository(t)
	out := r.git("diff-tree", "-r", "-M", "-z", "--raw", "--abbrev=40", "--patch", "HEAD^", "HEAD")
	list := bytes.Index(out, []byte("diff --git"))
	whole := collect(t, bufio.NewReader(bytes.NewReader(out)))
	for _, end := range []int{list - 3, list} {
		in := bufio.NewReader(bytes.NewReader(out[:end]))
		var entries []gitdiff.Entry
		err := gitdiff.Each(in, func(e gitdiff.Entry) error { entries = append(entries, e); return nil })
		if err == nil {
			err = gitdiff.Patches(in, whole, 1<<20, func(int, []byte, int64) error { return nil })
		}
		if err == nil {
			t.Errorf("output cut off after %d of %d bytes is taken for whole", end, len(out))
		}
	}
}

func FuzzReading(f *testing.F) {
	f.Add([]byte(":100644 100644 a b M\x00p\x001\t1\tp\x00"), []byte("diff --git a b\n@@ -1 +1 @@\n-a\n+b\n"))
	f.Add([]byte(":100644 100644 a b R100\x00p\x00q\x00\x00"), []byte("@@ -1,2 +1 @@ x\n a\n-b\n\\ No\n"))
	f.Fuzz(func(_ *testing.T, list, patch []byte) {
		in, entries := bufio.NewReader(bytes.NewReader(list)), []gitdiff.Entry{}
		if gitdiff.Each(in, func(e gitdiff.Entry) error { entries = append(entries, e); return nil }) == nil {
			_ = gitdiff.Counts(in, entries)
		}
		_ = gitdiff.Patches(bufio.NewReader(bytes.NewReader(patch)), entries, 100, func(_ int, text []byte, _ int64) error {
			_, err := gitdiff.Hunks(text)
			return err
		})
		_, _ = gitdiff.Hunks(patch)
	})
}
