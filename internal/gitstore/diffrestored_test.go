package gitstore

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/clew-dev/clew/internal/gitstoreapi"
)

// A rewind to a commit of the agent's leaves alone what its .gitignore files name and its
// submodules; one to a checkpoint changes every file that differs.
func TestADifferenceToWhatARewindRestores(t *testing.T) {
	server := newTestServer(t, Limits{})
	fix := server.client(taskToken("fix", 1))
	fix.commit("README", "origin\n", ".gitignore", "/build/\n*.log\n!keep.log\n", "lib", "now a file\n")
	fix.git("update-index", "--add", "--cacheinfo", "160000,0123456789012345678901234567890123456789,sub")
	fix.git("commit", "--quiet", "-m", "a submodule")
	base := fix.git("rev-parse", "HEAD")
	fix.git("rm", "--quiet", "--cached", "sub")
	daemon := fix.checkpoints()
	daemon.commit("README", "changed\n", "build/out", "made\n", "trace.log", "made\n", "keep.log", "made\n", "sub/file", "cloned\n", "new.go", "new\n")
	daemon.git("add", "--force", "--all")
	daemon.git("commit", "--quiet", "--amend", "--no-edit")
	daemon.push("HEAD:" + codeRef("fix", 1))
	daemon.git("rm", "--quiet", "trace.log", "build/out", "new.go")
	daemon.commit("README", "again\n")
	daemon.push("HEAD:" + codeRef("fix", 2))

	changes := func(from, to string) (map[string]gitstoreapi.DiffAction, int64) {
		got := server.diff(from, to, "restored", "true")
		actions := map[string]gitstoreapi.DiffAction{}
		for _, f := range got.Files {
			actions[f.Path] = f.Action
		}
		return actions, got.Totals.IgnoredFiles
	}
	got, left := changes("checkpoint/1", "commit/"+base)
	want := map[string]gitstoreapi.DiffAction{"README": gitstoreapi.DiffModified, "keep.log": gitstoreapi.DiffDeleted, "new.go": gitstoreapi.DiffDeleted}
	if diff := cmp.Diff(want, got); diff != "" || left != 4 {
		t.Errorf("the rewind to the commit leaves %d files alone, want 4, and changes (-want +got):\n%s", left, diff)
	}
	got, left = changes("checkpoint/1", "checkpoint/2")
	want = map[string]gitstoreapi.DiffAction{"README": gitstoreapi.DiffModified, "build/out": gitstoreapi.DiffDeleted,
		"trace.log": gitstoreapi.DiffDeleted, "new.go": gitstoreapi.DiffDeleted}
	if diff := cmp.Diff(want, got); diff != "" || left != 0 {
		t.Errorf("the rewind to the checkpoint leaves %d files alone, want 0, and changes (-want +got):\n%s", left, diff)
	}
}
