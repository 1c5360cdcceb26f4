package worktree

import (
	"os"
	"strings"
	"testing"
)

func TestPatchesShowEveryFileAndAreCut(t *testing.T) {
	f := cloned(t, "")
	f.write("a.txt", "one\n")
	first := f.checkpoint()
	f.write("a.txt", "two\n")
	f.write("untracked/b.txt", "b\n")
	f.write("-odd [name]", "x\n")
	second := f.checkpoint()
	patch := func(from, to, path string, limit int) (string, bool) {
		t.Helper()
		text, more, err := f.repo.Patch(t.Context(), from, to, path, limit)
		must(t, err)
		return string(text), more
	}
	all, more := patch(first.Code, second.Code, "", 1<<20)
	for _, want := range []string{"3 files changed", "-one\n+two\n", "+++ b/untracked/b.txt\n", "-odd [name]"} {
		if !strings.Contains(all, want) || more {
			t.Errorf("the patch has not %q:\n%s", want, all)
		}
	}
	if got, _ := patch("", second.Code, "", 1<<20); !strings.Contains(got, "+two\n") || strings.Contains(got, "one") {
		t.Errorf("from nothing, the patch is\n%s", got)
	}
	for path, want := range map[string]string{"untracked": "b.txt", "-odd [name]": "+x", "*": "", "nowhere": ""} {
		if got, _ := patch(first.Code, second.Code, path, 1<<20); !strings.Contains(got, want) || want == "" && got != "" || strings.Contains(got, "two") {
			t.Errorf("in %s, the patch is\n%s", path, got)
		}
	}
	if got, more := patch(first.Code, second.Code, "", 100); len(got) != 100 || !more {
		t.Errorf("cut to 100 bytes, the patch has %d, more %v", len(got), more)
	}
	_, _, err := f.repo.Patch(t.Context(), first.Code, strings.Repeat("1", 40), "", 100)
	wantReason(t, err, CheckpointNotFound)
}

func TestTheLineOfCheckpointsFollowsFirstParents(t *testing.T) {
	f := cloned(t, makeOrigin(t, 1))
	base := f.checkpoint()
	f.write("a.txt", "one\n")
	first := f.checkpoint()
	f.write("a.txt", "two\n")
	second := f.checkpoint()
	line, err := f.repo.Line(t.Context(), second.Code, base.Code, 10)
	must(t, err)
	if len(line) != 2 || line[0].Commit != second.Code || line[0].Parent != first.Code || line[1].Commit != first.Code || line[1].Parent != base.Code {
		t.Errorf("the line is %+v", line)
	}
	if line, err = f.repo.Line(t.Context(), second.Code, "", 1); err != nil || len(line) != 1 || line[0].Time.IsZero() || line[0].Message == "" {
		t.Errorf("the line of one commit is %+v, %v", line, err)
	}
}

func TestSameWorkDisregardsTheAgentsHome(t *testing.T) {
	f := cloned(t, makeOrigin(t, 1))
	f.write("a.txt", "one\n")
	c := f.checkpoint()
	same := func(what string, want bool) {
		t.Helper()
		got, err := f.repo.SameWork(t.Context(), c.target())
		must(t, err)
		if got != want {
			t.Errorf("%s, the work is the same: %v, want %v", what, got, want)
		}
	}
	same("at once", true)
	writeFile(t, f.home+"/.agent/session.jsonl", "{}\n", 0o644)
	same("after a change in the home", true)
	f.reopen()
	same("after a restart", true)
	f.git("branch", "kept")
	same("with another branch", false)
	f.git("branch", "-D", "kept")
	c = f.checkpoint()
	must(t, os.Chmod(f.work+"/a.txt", 0o600))
	same("with other permissions", false)
	c = f.checkpoint()
	f.write("a.txt", "two\n")
	same("after a change of a file", false)
}
