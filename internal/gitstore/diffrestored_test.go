package gitstore

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/clew-dev/clew/internal/gitstoreapi"
	"github.com/clew-dev/clew/internal/refname"
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

// Nor does it change nested repositories where it has nothing: those that the state of a
// checkpoint has, or that the files of the present are said to have.
func TestARewindToACommitLeavesNestedRepositoriesAlone(t *testing.T) {
	server := newTestServer(t, Limits{})
	fix := server.client(taskToken("fix", 1))
	base := fix.commit("README", "origin\n", "mixed/a", "a\n")
	daemon := fix.checkpoints()
	daemon.commit("README", "changed\n", "tools/100%/n.go", "n\n", "tools/100%/deep/x", "x\n", "mixed/b", "b\n", "other/c", "c\n")
	code := daemon.git("rev-parse", "HEAD")
	daemon.push("HEAD:" + codeRef("fix", 1))
	daemon.git("rm", "-r", "--quiet", "--cached", ".")
	state := daemon.commit("nested/tools/100%/%2e676974/HEAD", "ref\n", "nested/mixed/%2e676974/HEAD", "ref\n")
	daemon.push(state + ":" + stateRef("fix", 1))
	daemon.git("checkout", "--quiet", "--force", code)
	daemon.git("commit", "--quiet", "--allow-empty", "--message", gitstoreapi.WithNested("Stored", []string{"other", "mixed"}))
	daemon.push("HEAD:" + refname.Live("uid-fix"))

	for from, stays := range map[string][]string{"checkpoint/1": {"tools/100%/n.go", "tools/100%/deep/x"}, "live": {"other/c"}} {
		want := map[string]gitstoreapi.DiffAction{"README": gitstoreapi.DiffModified}
		for _, path := range []string{"tools/100%/n.go", "tools/100%/deep/x", "mixed/b", "other/c"} {
			if !slices.Contains(stays, path) {
				want[path] = gitstoreapi.DiffDeleted
			}
		}
		answer := server.diff(from, "commit/"+base, "restored", "true")
		got := map[string]gitstoreapi.DiffAction{}
		for _, f := range answer.Files {
			got[f.Path] = f.Action
		}
		if diff := cmp.Diff(want, got); diff != "" || answer.Totals.IgnoredFiles != int64(len(stays)) {
			t.Errorf("the rewind from %s leaves %d files alone, want %d, and changes (-want +got):\n%s", from, answer.Totals.IgnoredFiles, len(stays), diff)
		}
	}
}

// A path that selects nothing is told, whether or not other paths do.
func TestPathsThatSelectNoFile(t *testing.T) {
	server := newTestServer(t, Limits{})
	fix := server.client(taskToken("fix", 1))
	base := fix.commit("README", "origin\n", "old/a", "a\n")
	daemon := fix.checkpoints()
	daemon.git("rm", "--quiet", "old/a")
	daemon.commit("new/b.go", "b\n")
	daemon.push("HEAD:" + codeRef("fix", 1))
	got := server.diff("checkpoint/1", "commit/"+base, "restored", "true", "path", "old/", "path", "n*", "path", "docs", "path", "README", "path", "**/*.txt").Unmatched
	if diff := cmp.Diff([]string{"docs", "**/*.txt"}, got); diff != "" {
		t.Errorf("paths that select no file (-want +got):\n%s", diff)
	}
}

// What has to stay where the target has something is told: the worktree's rewind fails with
// PathBlocked, or because files are in the way that are in no checkpoint.
func TestPathsAtWhichSomethingHasToStay(t *testing.T) {
	server := newTestServer(t, Limits{})
	fix := server.client(taskToken("fix", 1))
	base := fix.commit(".gitignore", "*.log\n", "README", "origin\n", "was-folder/file", "one\n", "here", "one\n", "pipe", "a file\n", "dir", "a file\n", "logs", "a file\n")
	daemon := fix.checkpoints()
	daemon.commit()
	daemon.push("HEAD:" + codeRef("fix", 1))
	daemon.git("rm", "--quiet", "was-folder/file", "here", "pipe", "dir", "logs")
	daemon.commit("was-folder", "two\n", "dir/x", "two\n", "logs/x", "two\n", "logs/a.log", "ignored\n")
	daemon.git("add", "--force", "--all")
	daemon.git("commit", "--quiet", "--amend", "--no-edit")
	code := daemon.git("rev-parse", "HEAD")
	daemon.push("HEAD:" + codeRef("fix", 2))
	daemon.git("rm", "-r", "--quiet", "--cached", ".")
	state := daemon.commit("meta.json", `{"skipped": [{"path": "here", "reason": "TooLarge"}, {"path": "pipe", "reason": "Fifo"}, {"path": "dir/socket", "reason": "Socket"}, {"path": "elsewhere", "reason": "Socket"}]}`)
	daemon.push(state + ":" + stateRef("fix", 2))
	daemon.push(code + ":" + refname.Live("uid-fix"))

	for _, c := range []struct {
		from, to string
		paths    []string
		blocked  []string
	}{
		{"checkpoint/2", "checkpoint/1", nil, []string{"dir", "here"}},
		{"live", "checkpoint/1", nil, []string{"dir", "here"}},
		{"checkpoint/2", "commit/" + base, nil, []string{"dir", "here", "logs", "pipe"}},
		{"checkpoint/2", "checkpoint/1", []string{"was-folder/file"}, []string{"was-folder"}},
		{"checkpoint/2", "checkpoint/1", []string{"was-folder", "logs"}, nil},
		{"checkpoint/2", "checkpoint/1", []string{"README"}, nil},
		{"checkpoint/1", "checkpoint/2", nil, nil},
	} {
		args := []string{"restored", "true"}
		for _, path := range c.paths {
			args = append(args, "path", path)
		}
		got := server.diff(c.from, c.to, args...).Blocked
		if diff := cmp.Diff(c.blocked, got, cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("from %s to %s, paths %v (-want +got):\n%s", c.from, c.to, c.paths, diff)
		}
	}
}
