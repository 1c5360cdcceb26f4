package worktree

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestStartBranch(t *testing.T) {
	ctx := context.Background()
	f := cloned(t, makeOrigin(t, 5))
	f.write("staged", "staged\n")
	f.git("add", "staged")
	f.write("loose", "loose\n")
	head, status := f.git("rev-parse", "HEAD"), f.git("status", "--porcelain")
	for _, test := range []struct {
		name     string
		numbered bool
		want     string
		reason   Reason
	}{
		{"clew/try", true, "clew/try", ""},
		{"clew/try", true, "clew/try-2", ""},
		{"clew/try", true, "clew/try-3", ""},
		{"clew/try", false, "", ReferenceExists},
		{"clew", false, "", ReferenceExists},
		{"clew/try/deeper", false, "", ReferenceExists},
		{"mine/own", false, "mine/own", ""},
		{"a..b", true, "", InvalidReference},
	} {
		got, err := f.repo.StartBranch(ctx, test.name, test.numbered)
		if got != test.want || ReasonOf(err) != test.reason {
			t.Errorf("StartBranch(%q, %v) = %q, %v; want %q, %q", test.name, test.numbered, got, err, test.want, test.reason)
		}
	}
	wantEqual(t, "the branch", "mine/own\n", f.git("symbolic-ref", "--short", "HEAD"))
	wantEqual(t, "the commit", head, f.git("rev-parse", "HEAD"))
	wantEqual(t, "the other branch's commit", head, f.git("rev-parse", "clew/try-3"))
	wantEqual(t, "status", status, f.git("status", "--porcelain"))
	f.git("pack-refs", "--all")
	if _, err := f.repo.StartBranch(ctx, "mine/own", false); ReasonOf(err) != ReferenceExists {
		t.Errorf("a packed branch: the error is %v, want %s", err, ReferenceExists)
	}
	f.git("commit", "-q", "-m", "goes on")
	f.git("fsck", "--full")
}

// TestStartBranchBelowABranch: git can have no branch clew/try beside a branch clew, whether
// its ref is a file or packed. A name that Clew made up gives way; one that a user gave does not.
func TestStartBranchBelowABranch(t *testing.T) {
	ctx := context.Background()
	for name, pack := range map[string]bool{"loose": false, "packed": true} {
		t.Run(name, func(t *testing.T) {
			f := cloned(t, makeOrigin(t, 1))
			f.git("branch", "clew")
			if pack {
				f.git("pack-refs", "--all")
			}
			if _, err := f.repo.StartBranch(ctx, "clew/try", false); ReasonOf(err) != ReferenceExists {
				t.Errorf("a name that a user gave: the error is %v, want %s", err, ReferenceExists)
			}
			for _, want := range []string{"clew-try", "clew-try-2"} {
				got, err := f.repo.StartBranch(ctx, "clew/try", true)
				must(t, err)
				wantEqual(t, "the branch", want, got)
				wantEqual(t, "HEAD", want+"\n", f.git("symbolic-ref", "--short", "HEAD"))
				f.git("commit", "-q", "--allow-empty", "-m", "goes on")
			}
			f.git("fsck", "--full")
		})
	}
}

// TestStartBranchElsewhere: on a detached HEAD the branch begins there; an unborn branch
// stays unborn; without a repository nothing is made.
func TestStartBranchElsewhere(t *testing.T) {
	ctx := context.Background()
	detached := cloned(t, makeOrigin(t, 1))
	detached.git("checkout", "-q", "--detach")
	head := detached.git("rev-parse", "HEAD")
	_, err := detached.repo.StartBranch(ctx, "try", false)
	must(t, err)
	wantEqual(t, "the branch of a detached HEAD", head, detached.git("rev-parse", "try"))

	unborn := cloned(t, "")
	_, err = unborn.repo.StartBranch(ctx, "try", false)
	must(t, err)
	unborn.write("file", "x")
	unborn.git("add", "file")
	unborn.git("commit", "-q", "-m", "first")
	wantEqual(t, "the branch of the first commit", "try\n", unborn.git("symbolic-ref", "--short", "HEAD"))

	none := cloned(t, "")
	must(t, os.RemoveAll(filepath.Join(none.work, ".git")))
	branch, err := none.repo.StartBranch(ctx, "try", false)
	must(t, err)
	if _, statErr := os.Lstat(filepath.Join(none.work, ".git")); branch != "" || statErr == nil {
		t.Errorf("without a repository the branch is %q, and .git exists: %v", branch, statErr == nil)
	}
	must(t, os.WriteFile(filepath.Join(none.work, ".git"), []byte("gitdir: /elsewhere\n"), 0o644))
	branch, err = none.repo.StartBranch(ctx, "try", false)
	must(t, err)
	if content, _ := os.ReadFile(filepath.Join(none.work, ".git")); branch != "" || !strings.HasPrefix(string(content), "gitdir: ") {
		t.Errorf("the branch is %q and .git has the content %q", branch, content)
	}
}

// TestStartBranchDoesNotFollowLinks: the agent may have put links in place of folders of its
// repository.
func TestStartBranchDoesNotFollowLinks(t *testing.T) {
	f := cloned(t, makeOrigin(t, 1))
	outside := t.TempDir()
	must(t, os.RemoveAll(filepath.Join(f.work, ".git/refs/heads")))
	must(t, os.Symlink(outside, filepath.Join(f.work, ".git/refs/heads")))
	_, err := f.repo.StartBranch(context.Background(), "try", false)
	entries, readErr := os.ReadDir(outside)
	must(t, readErr)
	if err == nil || len(entries) != 0 {
		t.Errorf("the error is %v, and the folder outside has %d entries", err, len(entries))
	}
}
