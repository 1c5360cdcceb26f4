package worktree

import (
	"bytes"
	"compress/zlib"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/clew-dev/clew/internal/refname"
)

// commit commits everything in the worktree, as the agent would, and returns the commit.
func (f *fixture) commit(message string) string {
	f.t.Helper()
	f.git("add", "-A")
	f.git("commit", "-q", "-m", message)
	return strings.TrimSpace(f.git("rev-parse", "HEAD"))
}

// storeHead takes a checkpoint and stores its HEAD.
func (f *fixture) storeHead() error {
	f.t.Helper()
	c := f.checkpoint()
	return f.repo.StoreHead(context.Background(), HeadRequest{TaskUID: "uid-1", Commit: c.Agent.Head, State: c.State})
}

// wantHead checks that a clone of the repository has a commit whole, by its ref.
func (f *fixture) wantHead(commit string) {
	f.t.Helper()
	ref := refname.Head("uid-1", commit)
	if got := strings.TrimSpace(gitIn(f.t, f.config().GitDir, "rev-parse", ref)); got != commit {
		f.t.Errorf("%s is %s", ref, got)
	}
	dir := f.t.TempDir()
	gitIn(f.t, dir, "init", "-q")
	gitIn(f.t, dir, "fetch", "-q", "file://"+f.config().GitDir, ref)
	gitIn(f.t, dir, "fsck", "--full", "--strict")
	if got := strings.TrimSpace(gitIn(f.t, dir, "rev-parse", "FETCH_HEAD")); got != commit {
		f.t.Errorf("fetched %s, want %s", got, commit)
	}
}

// loosePath returns the file of a loose object of the agent.
func (f *fixture) loosePath(id string) string {
	return filepath.Join(f.work, ".git/objects", id[:2], id[2:])
}

// wantNotStored checks that a HEAD was refused with a sentence, and left nothing behind.
func (f *fixture) wantNotStored(err error, says string) {
	f.t.Helper()
	wantReason(f.t, err, HeadNotStored)
	if !strings.Contains(err.Error(), says) {
		f.t.Errorf("the error is %q and should contain %q", err, says)
	}
	if refs := gitIn(f.t, f.config().GitDir, "for-each-ref", refname.Heads("uid-1")); refs != "" {
		f.t.Errorf("a ref was made: %s", refs)
	}
	if left, _ := filepath.Glob(filepath.Join(f.config().GitDir, "clew/tmp_*")); len(left) > 0 {
		f.t.Errorf("left behind: %v", left)
	}
}

// TestTheAgentsCommitsAreStored: whatever git made of the agent's objects, its HEAD can be
// fetched whole.
func TestTheAgentsCommitsAreStored(t *testing.T) {
	for name, commits := range map[string]func(f *fixture){
		"none": func(*fixture) {},
		"one": func(f *fixture) {
			f.write("new", "new\n")
			f.commit("one")
		},
		"many, with a merge": func(f *fixture) {
			f.git("checkout", "-q", "-b", "side")
			f.write("side", "side\n")
			f.commit("side")
			f.git("checkout", "-q", "trunk")
			for i := range 20 {
				f.write("count", fmt.Sprint(i))
				f.commit(fmt.Sprint(i))
			}
			f.git("merge", "-q", "-m", "merge", "side")
		},
		"packed": func(f *fixture) {
			f.write("new", "new\n")
			f.commit("one")
			f.git("gc", "-q", "--prune=now")
		},
		"packed, then more": func(f *fixture) {
			f.write("new", "new\n")
			f.commit("one")
			f.git("gc", "-q", "--prune=now")
			f.write("new", "newer\n")
			f.commit("two")
		},
		"of an orphan": func(f *fixture) {
			f.git("checkout", "-q", "--orphan", "lonely")
			f.commit("lonely")
		},
		"detached": func(f *fixture) { f.git("checkout", "-q", "--detach", "v1") },
		"taken back to what the origin had once": func(f *fixture) {
			f.git("revert", "--no-edit", "HEAD")
			f.git("revert", "--no-edit", "HEAD")
		},
		"with a file that an earlier state has": func(f *fixture) {
			writeFile(f.t, filepath.Join(f.home, ".agent/notes"), "the same", 0o644)
			f.checkpoint()
			f.write("notes", "the same")
			f.commit("one")
		},
		"packed, with a file that an earlier state has": func(f *fixture) {
			writeFile(f.t, filepath.Join(f.home, ".agent/notes"), "the same", 0o644)
			f.checkpoint()
			f.write("notes", "the same")
			f.commit("one")
			f.git("gc", "-q", "--prune=now")
			f.write("more", "more")
			f.commit("two")
			f.git("rm", "-q", "notes")
			f.commit("three")
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := cloned(t, makeOrigin(t, 20))
			commits(f)
			must(t, f.storeHead())
			head := strings.TrimSpace(f.git("rev-parse", "HEAD"))
			f.wantHead(head)
			must(t, f.storeHead()) // once more changes nothing
			f.wantHead(head)
			f.write("later", "later\n")
			head = f.commit("later")
			must(t, f.storeHead())
			f.wantHead(head)
		})
	}
}

func TestAnAgentsFirstCommitsInAnEmptyRepositoryAreStored(t *testing.T) {
	f := cloned(t, "")
	f.write("first", "first\n")
	head := f.commit("first")
	must(t, f.storeHead())
	f.wantHead(head)
}

// TestHeadsThatAreNotStored: what a checkpoint leaves out, no commit brings in.
func TestHeadsThatAreNotStored(t *testing.T) {
	for name, c := range map[string]struct {
		make func(f *fixture)
		says string
	}{
		"a secret in a file of an earlier commit": {func(f *fixture) {
			f.write("key", secret)
			f.commit("with a key")
			f.write("key", "gone")
			f.commit("without")
		}, "is not in the checkpoint"},
		"a secret in a message": {func(f *fixture) { f.write("a", "a"); f.commit("the key is " + secret) }, "is not in the checkpoint"},
		"a missing file": {func(f *fixture) {
			f.write("a", "a missing file")
			f.commit("one")
			must(f.t, os.Remove(f.loosePath(strings.TrimSpace(f.git("rev-parse", "HEAD:a")))))
			f.write("a", "the checkpoint has another one")
		}, "is not in the checkpoint"},
		"a file of another object": {func(f *fixture) {
			f.write("a", "this")
			f.commit("one")
			path := f.loosePath(strings.TrimSpace(f.git("rev-parse", "HEAD:a")))
			must(f.t, os.Remove(path))
			writeFile(f.t, path, string(deflated("blob 4\x00that")), 0o444)
			f.write("a", "the checkpoint has another one")
		}, "is not in the checkpoint"},
		"a blob": {func(f *fixture) {
			id := strings.TrimSpace(f.git("rev-parse", "HEAD:run.sh"))
			writeFile(f.t, filepath.Join(f.work, ".git/HEAD"), id+"\n", 0o644)
		}, "is a blob, not a commit"},
		"nothing": {func(f *fixture) {
			writeFile(f.t, filepath.Join(f.work, ".git/HEAD"), strings.Repeat("a", 40)+"\n", 0o644)
		}, "is not in the checkpoint"},
		"objects of another repository": {func(f *fixture) {
			other := makeOrigin(f.t, 3)
			writeFile(f.t, filepath.Join(other, "a"), "other\n", 0o644)
			gitIn(f.t, other, "add", "-A")
			gitIn(f.t, other, "commit", "-q", "-m", "other")
			writeFile(f.t, filepath.Join(f.work, ".git/objects/info/alternates"), filepath.Join(other, ".git/objects")+"\n", 0o644)
			f.git("reset", "-q", "--hard", strings.TrimSpace(gitIn(f.t, other, "rev-parse", "HEAD")))
		}, "is not in the checkpoint"},
	} {
		t.Run(name, func(t *testing.T) {
			f := cloned(t, makeOrigin(t, 3))
			f.withSecrets(secret)
			c.make(f)
			f.wantNotStored(f.storeHead(), c.says)
		})
	}
}

// commitRaw makes a commit of a given tree and parent the agent's HEAD, whatever the agent's
// repository has of them.
func (f *fixture) commitRaw(tree, parent string) string {
	f.t.Helper()
	raw := "tree " + tree + "\n" + parent + "author a <a@b> 1700000000 +0000\ncommitter a <a@b> 1700000000 +0000\n\nx\n"
	writeFile(f.t, filepath.Join(f.work, ".git/raw"), raw, 0o600)
	id := strings.TrimSpace(f.git("hash-object", "-w", "-t", "commit", ".git/raw"))
	writeFile(f.t, filepath.Join(f.work, ".git/HEAD"), id+"\n", 0o644)
	return id
}

// TestNoHeadBringsInAState: the ids of states are no secret, and what they hold is. Whoever may
// read code may read the agent's commits.
func TestNoHeadBringsInAState(t *testing.T) {
	for name, head := range map[string]func(f *fixture, state string){
		"as HEAD": func(f *fixture, state string) {
			writeFile(f.t, filepath.Join(f.work, ".git/HEAD"), state+"\n", 0o644)
		},
		"as the parent of a commit": func(f *fixture, state string) {
			f.commitRaw(strings.TrimSpace(f.git("rev-parse", "HEAD^{tree}")), "parent "+state+"\n")
		},
		"as the tree of a commit": func(f *fixture, state string) {
			f.commitRaw(strings.TrimSpace(gitIn(f.t, f.config().GitDir, "rev-parse", state+"^{tree}")), "")
		},
		"by a file of it in a tree": func(f *fixture, state string) {
			file := strings.TrimSpace(gitIn(f.t, f.config().GitDir, "rev-parse", state+":home/.agent/talk"))
			make := gitCommand(f.work, "mktree", "--missing")
			make.Stdin = strings.NewReader("100644 blob " + file + "\ttalk\n")
			tree, err := make.Output()
			must(f.t, err)
			f.commitRaw(strings.TrimSpace(string(tree)), "")
		},
	} {
		t.Run(name, func(t *testing.T) {
			source := cloned(t, makeOrigin(t, 3))
			writeFile(t, filepath.Join(source.home, ".agent/talk"), "what was said", 0o644)
			of := source.checkpoint()
			f := cloned(t, makeOrigin(t, 3))
			writeFile(t, filepath.Join(f.home, ".agent/talk"), "what I said", 0o644)
			own := f.checkpoint()
			refs := []string{refname.Code("uid-2", 1), refname.State("uid-2", 1)}
			gitIn(t, source.config().GitDir, "update-ref", refs[0], of.Code)
			gitIn(t, source.config().GitDir, "update-ref", refs[1], of.State)
			must(t, f.repo.Fetch(context.Background(), Remote{URL: "file://" + source.config().GitDir}, refs...))
			for whose, state := range map[string]string{"own": own.State, "another's": of.State} {
				head(f, state)
				c := f.checkpoint()
				if c.Agent.Head == "" {
					t.Fatal("the checkpoint has no HEAD")
				}
				err := f.repo.StoreHead(context.Background(), HeadRequest{TaskUID: "uid-1", Commit: c.Agent.Head, State: c.State})
				if err == nil {
					t.Fatalf("%s state was stored with a commit of the agent", whose)
				}
				f.wantNotStored(err, "is not in the checkpoint")
			}
		})
	}
}

func TestACommitsFilesAreBoundedInSize(t *testing.T) {
	f := cloned(t, makeOrigin(t, 3)) // MaxFileBytes is 1 MiB
	f.write("large", strings.Repeat("x", 1<<20+1))
	f.commit("large")
	const says = "has a file of 1048577 bytes, and checkpoints hold files up to 1048576"
	f.wantNotStored(f.storeHead(), says)
	f.git("gc", "-q", "--prune=now")
	f.wantNotStored(f.storeHead(), says)
	// The object that unpacks to a thousand times its size is not unpacked whole.
	if holdsObject(bytes.NewReader(deflated("blob 99999999\x00"+strings.Repeat("x", 99999999))), noOID, 1<<20) {
		t.Error("a bomb was taken for an object")
	}
}

func TestAPackedSecretIsNotStored(t *testing.T) {
	f := cloned(t, makeOrigin(t, 3))
	f.write("key", secret)
	f.commit("with a key")
	c := f.checkpoint() // before the task had the secret
	f.withSecrets(secret)
	err := f.repo.StoreHead(context.Background(), HeadRequest{TaskUID: "uid-1", Commit: c.Agent.Head, State: c.State})
	f.wantNotStored(err, "holds a value of one of the task's Secrets")
}

// TestHeadsAreStoredFromARestoredCheckpoint: a repository that was restored from its
// checkpoints alone has the agent's commits in their states.
func TestHeadsAreStoredFromARestoredCheckpoint(t *testing.T) {
	f := cloned(t, makeOrigin(t, 3))
	f.write("a", "a\n")
	head := f.commit("one")
	c := f.checkpoint()
	g := newFixture(t)
	must(t, g.repo.Fetch(context.Background(), Remote{URL: "file://" + f.config().GitDir}, c.CodeRef, c.StateRef))
	must(t, g.repo.StoreHead(context.Background(), HeadRequest{TaskUID: "uid-1", Commit: head, State: c.StateRef}))
	g.wantHead(head)
}

func deflated(text string) []byte {
	var b bytes.Buffer
	z := zlib.NewWriter(&b)
	_, _ = z.Write([]byte(text)) // a buffer takes everything
	_ = z.Close()
	return b.Bytes()
}
