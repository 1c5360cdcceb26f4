package worktree

import (
	"context"
	"os"
	"path/filepath"
	"testing"
)

// TestCopyFiles: the selected files of a checkpoint are there as they were; nothing else changes.
func TestCopyFiles(t *testing.T) {
	ctx := context.Background()
	f := cloned(t, makeOrigin(t, 1))
	f.write("notes/plan.md", "the plan\n")
	f.write("notes/deep/more.md", "more\n")
	f.write("notes/data.bin", "\x00\x01")
	f.write("src/new.go", "package src\n")
	f.write("src/clash/inner", "x\n")
	must(t, os.Symlink("plan.md", filepath.Join(f.work, "notes/link")))
	c := f.checkpoint()
	must(t, os.RemoveAll(filepath.Join(f.work, "notes")))
	must(t, os.RemoveAll(filepath.Join(f.work, "src")))
	f.write("notes/own.md", "own\n")
	f.write("notes/plan.md", "another plan\n")
	f.write("src/clash", "a file of its own\n")
	head := f.git("rev-parse", "HEAD")
	before := f.git("status", "--porcelain")

	for _, bad := range []string{"nothing/*.md", "/abs", "src/*.rs"} {
		if _, err := f.repo.CopyFiles(ctx, c.Code, []string{"notes/*.md", bad}); ReasonOf(err) != PathNotFound {
			t.Errorf("CopyFiles(%q) gives %v, want %s", bad, err, PathNotFound)
		}
	}
	wantEqual(t, "status after what was refused", before, f.git("status", "--porcelain"))

	for range 2 { // as after a kill
		n, err := f.repo.CopyFiles(ctx, c.Code, []string{"notes/*.md", "notes/deep/", "notes/link"})
		must(t, err)
		wantEqual(t, "number of files", 3, n)
		for name, want := range map[string]string{"notes/plan.md": "the plan\n", "notes/deep/more.md": "more\n", "notes/own.md": "own\n", "src/clash": "a file of its own\n"} {
			got, err := os.ReadFile(filepath.Join(f.work, name))
			must(t, err)
			wantEqual(t, name, want, string(got))
		}
		link, err := os.Readlink(filepath.Join(f.work, "notes/link"))
		must(t, err)
		wantEqual(t, "the link", "plan.md", link)
	}
	if _, err := os.Lstat(filepath.Join(f.work, "notes/data.bin")); err == nil {
		t.Error("notes/data.bin was copied, too")
	}
	wantEqual(t, "HEAD", head, f.git("rev-parse", "HEAD"))

	n, err := f.repo.CopyFiles(ctx, c.Code, []string{"src"})
	must(t, err)
	wantEqual(t, "number of files", 2, n)
	got, err := os.ReadFile(filepath.Join(f.work, "src/clash/inner"))
	must(t, err)
	wantEqual(t, "a folder in place of a file", "x\n", string(got))
	f.write("notes/data.bin/own", "own\n")
	if _, err := f.repo.CopyFiles(ctx, c.Code, []string{"notes"}); ReasonOf(err) != PathBlocked {
		t.Errorf("a file in place of a folder: the error is %v, want %s", err, PathBlocked)
	}
}
