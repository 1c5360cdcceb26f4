package worktree

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// plant adds everything to a worktree that could make git run a program, and returns
// the path of a file that exists once one has run.
func (f *fixture) plant() (proof string) {
	f.t.Helper()
	proof = filepath.Join(f.base, "proof")
	script := filepath.Join(f.base, "evil.sh")
	writeFile(f.t, script, "#!/bin/sh\necho ran \"$0\" \"$@\" >> "+proof+"\ncat\n", 0o755)
	config := fmt.Sprintf(hostileConfig, script, f.work)
	f.plantFiles(script, config)
	// Where git looks for configuration by the environment and the home.
	writeFile(f.t, filepath.Join(f.home, ".gitconfig"), config, 0o644)
	writeFile(f.t, filepath.Join(f.home, ".agent/.gitconfig"), config, 0o644)
	f.t.Setenv("HOME", f.home)
	f.t.Setenv("XDG_CONFIG_HOME", f.home)
	f.t.Setenv("GIT_CONFIG_COUNT", "1")
	f.t.Setenv("GIT_CONFIG_KEY_0", "core.fsmonitor")
	f.t.Setenv("GIT_CONFIG_VALUE_0", script)
	f.t.Setenv("GIT_EXTERNAL_DIFF", script)
	f.t.Setenv("GIT_SSH_COMMAND", script)
	return proof
}

// hostileConfig is a git configuration with all settings that run a program. %[1]s is the
// program, %[2]s the worktree.
const hostileConfig = `[core]
	repositoryformatversion = 0
	fsmonitor = %[1]s
	hooksPath = %[2]s/hooks
	pager = %[1]s
	editor = %[1]s
	sshCommand = %[1]s
	askPass = %[1]s
	attributesFile = %[2]s/.gitattributes
[filter "evil"]
	clean = %[1]s
	smudge = %[1]s
	process = %[1]s
	required = true
[diff "evil"]
	command = %[1]s
	textconv = %[1]s
[diff]
	external = %[1]s
[merge "evil"]
	driver = %[1]s
[gpg]
	program = %[1]s
[credential]
	helper = "!%[1]s"
[uploadpack]
	packObjectsHook = %[1]s
[alias]
	status = "!%[1]s"
[hook "evil"]
	command = %[1]s
	event = post-index-change
`

// plantFiles adds the configuration, attributes, hooks and submodules to the worktree.
func (f *fixture) plantFiles(script, config string) {
	f.t.Helper()
	writeFile(f.t, filepath.Join(f.work, ".git/config"), config, 0o644)
	writeFile(f.t, filepath.Join(f.work, ".gitattributes"), "* filter=evil diff=evil merge=evil\n", 0o644)
	writeFile(f.t, filepath.Join(f.work, ".git/info/attributes"), "* filter=evil diff=evil merge=evil\n", 0o644)
	for _, hook := range []string{"post-index-change", "reference-transaction", "pre-commit", "post-checkout", "post-commit", "pre-push", "pre-auto-gc", "post-rewrite", "update", "pre-receive"} {
		for _, dir := range []string{"hooks", ".git/hooks", "sub/.git/hooks"} {
			writeFile(f.t, filepath.Join(f.work, dir, hook), "#!/bin/sh\nexec "+script+"\n", 0o755)
		}
	}
	writeFile(f.t, filepath.Join(f.work, "sub/.git/HEAD"), "ref: refs/heads/main\n", 0o644)
	writeFile(f.t, filepath.Join(f.work, "sub/.git/config"), config, 0o644)
	must(f.t, os.MkdirAll(filepath.Join(f.work, "sub/.git/objects"), 0o755))
	must(f.t, os.MkdirAll(filepath.Join(f.work, "sub/.git/refs"), 0o755))
	f.write("sub/file", "in a nested repository\n")
	f.write(".gitmodules", "[submodule \"x\"]\n\tpath = sub\n\turl = ext::"+script+"\n\tupdate = !"+script+"\n")
}

func TestNoProgramOfTheAgentRuns(t *testing.T) {
	f := cloned(t, makeOrigin(t, 20))
	proof := f.plant()
	ctx := context.Background()
	one, want := f.checkpoint(), listing(t, f.work)
	f.write(fileName(1), "changed\n")
	must(t, os.RemoveAll(filepath.Join(f.work, "sub")))
	two := f.checkpoint()
	_, err := f.repo.Drift(ctx, two.target())
	must(t, err)
	f.restore(one, ScopeBoth)
	sameListing(t, "worktree", want, listing(t, f.work))
	for _, mode := range []PreserveMode{PreserveBranch, PreserveStash} {
		_, err := f.repo.Preserve(ctx, PreserveRequest{Mode: mode, Name: "kept", From: two.target(), Message: "m"})
		must(t, err)
	}
	must(t, f.repo.Verify(ctx, one.target()))
	f.repo.cfg.MaxPacks = 1
	_, err = f.repo.Maintain(ctx)
	must(t, err)
	if text, err := os.ReadFile(proof); err == nil {
		t.Errorf("a program of the agent has run: %s", text)
	}
	// A plain git does run the program, so the test would notice.
	_, _ = gitTry(f.work, "status")
	if _, err := os.Stat(proof); err != nil {
		t.Error("git status did not run the program, so the test proves nothing")
	}
}

func TestFifoDoesNotHang(t *testing.T) {
	f := cloned(t, "")
	must(t, syscall.Mkfifo(filepath.Join(f.work, "pipe.txt"), 0o644))
	for _, name := range []string{".git/HEAD", ".git/index", ".git/packed-refs", ".git/refs/heads/main", ".gitignore"} {
		path := filepath.Join(f.work, name)
		must(t, os.RemoveAll(path))
		must(t, syscall.Mkfifo(path, 0o644))
	}
	done := make(chan Checkpoint, 1)
	go func() { done <- f.checkpoint() }()
	select {
	case c := <-done:
		if c.SkippedCount != 6 {
			t.Errorf("the skipped files are %v, want 6", c.Skipped)
		}
	case <-time.After(20 * time.Second):
		t.Fatal("a checkpoint hangs on a FIFO")
	}
}

// TestSwappedForLinks takes checkpoints and restores while the agent replaces folders
// and files by links to the outside, and back, as fast as it can.
func TestSwappedForLinks(t *testing.T) {
	f := cloned(t, "")
	outside := filepath.Join(f.base, "outside")
	writeFile(t, filepath.Join(outside, "secret"), "outside secret", 0o644)
	writeFile(t, filepath.Join(outside, "deep/secret"), "outside secret", 0o644)
	before := listing(t, outside)
	for i := range 30 {
		f.write(fmt.Sprintf("d%d/secret", i), "inside")
		f.write(fmt.Sprintf("d%d/deep/secret", i), "inside")
	}
	good := f.checkpoint()
	stop := make(chan struct{})
	var wg sync.WaitGroup
	swap := func(i int, name, target string) {
		path := filepath.Join(f.work, fmt.Sprintf("d%d", i), name)
		aside := path + ".aside"
		_ = os.Rename(path, aside)
		_ = os.Symlink(target, path)
		_ = os.Remove(path)
		_ = os.Rename(aside, path)
	}
	wg.Go(func() {
		for i := 0; ; i = (i + 1) % 30 {
			select {
			case <-stop:
				return
			default:
			}
			swap(i, "deep", filepath.Join(outside, "deep"))
			swap(i, "secret", filepath.Join(outside, "secret"))
			path := filepath.Join(f.work, fmt.Sprintf("d%d", i))
			_ = os.Rename(path, path+".aside")
			_ = os.Symlink(outside, path)
			_ = os.Remove(path)
			_ = os.Rename(path+".aside", path)
		}
	})
	ctx := context.Background()
	for i := range 40 {
		f.write(fmt.Sprintf("new%d", i), "new")
		c := f.checkpoint()
		if i%4 == 0 {
			// A concurrent change may make it fail, which is correct.
			_, _ = f.repo.Restore(ctx, RestoreRequest{Target: good.target()})
		}
		if patch := gitIn(t, f.config().GitDir, "diff-tree", "-r", "-p", good.Code, c.Code); strings.Contains(patch, "outside secret") {
			t.Fatal("a checkpoint contains a file from outside the worktree")
		}
	}
	close(stop)
	wg.Wait()
	sameListing(t, "outside", before, listing(t, outside))
	f.restore(good, ScopeBoth)
}

// TestPlantedLinks restores a worktree that has links to the outside where the
// checkpoint has folders.
func TestPlantedLinks(t *testing.T) {
	f := cloned(t, makeOrigin(t, 20))
	f.write("a/b/c", "inside")
	good, want := f.checkpoint(), listing(t, f.work)
	outside := filepath.Join(f.base, "outside")
	writeFile(t, filepath.Join(outside, "b/c"), "outside", 0o644)
	writeFile(t, filepath.Join(outside, "HEAD"), "outside", 0o644)
	before := listing(t, outside)
	for _, name := range []string{"a", "pkg", ".git/refs/heads", ".git/logs", ".git/objects/pack", ".git/hooks"} {
		must(t, os.RemoveAll(filepath.Join(f.work, name)))
		must(t, os.Symlink(outside, filepath.Join(f.work, name)))
	}
	must(t, os.RemoveAll(filepath.Join(f.home, ".agent")))
	must(t, os.Symlink(outside, filepath.Join(f.home, ".agent")))
	f.restore(good, ScopeBoth)
	sameListing(t, "worktree", want, listing(t, f.work))
	sameListing(t, "outside", before, listing(t, outside))
	f.git("fsck", "--full")

	must(t, os.RemoveAll(filepath.Join(f.work, ".git/refs")))
	must(t, os.Symlink(outside, filepath.Join(f.work, ".git/refs")))
	if _, err := f.repo.Preserve(context.Background(), PreserveRequest{Mode: PreserveBranch, Name: "x", From: good.target()}); err == nil {
		t.Error("a branch was written through a link")
	}
	must(t, os.RemoveAll(filepath.Join(f.work, ".git")))
	must(t, os.Symlink(outside, filepath.Join(f.work, ".git")))
	c := f.checkpoint()
	if c.Agent.Head != "" {
		t.Errorf("HEAD has been read through a link: %+v", c.Agent)
	}
	f.restore(good, ScopeBoth)
	sameListing(t, "worktree", want, listing(t, f.work))
	sameListing(t, "outside", before, listing(t, outside))
}

func TestDamageIsFoundBeforeFilesAreChanged(t *testing.T) {
	for _, kind := range []string{"missing", "truncated", "flipped"} {
		t.Run(kind, func(t *testing.T) {
			f := cloned(t, makeOrigin(t, 20))
			ctx := context.Background()
			f.write("victim", "precious content\n")
			one := f.checkpoint()
			blob := strings.TrimSpace(gitIn(t, f.config().GitDir, "rev-parse", one.Code+":victim"))
			f.write("victim", "other\n")
			f.write("more", "more\n")
			two := f.checkpoint()
			// Unpack all objects, so that a single one can be damaged.
			loosen(t, f.config().GitDir)
			damageObject(t, f.config().GitDir, blob, kind)
			want := listing(t, f.work)
			_, err := f.repo.Restore(ctx, RestoreRequest{Target: one.target()})
			wantReason(t, err, CheckpointCorrupted)
			if !strings.Contains(err.Error(), blob) {
				t.Errorf("the error does not name the object %s: %v", blob, err)
			}
			sameListing(t, "worktree", want, listing(t, f.work))
			err = f.repo.Verify(ctx, one.target())
			wantReason(t, err, CheckpointCorrupted)
			must(t, f.repo.Verify(ctx, two.target()))
			f.restore(two, ScopeBoth)

			_, err = f.repo.Restore(ctx, RestoreRequest{Target: Target{Code: strings.Repeat("12", 20)}})
			wantReason(t, err, CheckpointNotFound)
			tree := strings.TrimSpace(gitIn(t, f.config().GitDir, "rev-parse", two.Code+":pkg"))
			damageObject(t, f.config().GitDir, tree, kind)
			_, err = f.repo.Restore(ctx, RestoreRequest{Target: two.target()})
			wantReason(t, err, CheckpointCorrupted)
			damageObject(t, f.config().GitDir, one.Code, kind)
			_, err = f.repo.Restore(ctx, RestoreRequest{Target: Target{Code: one.CodeRef}})
			wantReason(t, err, CheckpointCorrupted)
		})
	}
}

// loosen unpacks all packs of a repository.
func loosen(t *testing.T, gitDir string) {
	t.Helper()
	packs, err := filepath.Glob(filepath.Join(gitDir, "objects/pack/pack-*"))
	must(t, err)
	aside := t.TempDir()
	for _, p := range packs {
		must(t, os.Rename(p, filepath.Join(aside, filepath.Base(p))))
	}
	for _, p := range packs {
		if strings.HasSuffix(p, ".pack") {
			in, err := os.Open(filepath.Join(aside, filepath.Base(p)))
			must(t, err)
			cmd := gitCommand(gitDir, "unpack-objects", "-q")
			cmd.Stdin = in
			out, err := cmd.CombinedOutput()
			in.Close()
			if err != nil {
				t.Fatalf("unpack-objects: %v %s", err, out)
			}
		}
	}
}

// damageObject deletes, truncates or replaces the file of a loose object.
func damageObject(t *testing.T, gitDir, id, kind string) {
	t.Helper()
	path := filepath.Join(gitDir, "objects", id[:2], id[2:])
	raw, err := os.ReadFile(path)
	must(t, err)
	must(t, os.Remove(path))
	switch kind {
	case "truncated":
		must(t, os.WriteFile(path, raw[:len(raw)/2], 0o444))
	case "flipped":
		other := gitIn(t, gitDir, "hash-object", "-w", "--stdin", "--path=x")
		from := filepath.Join(gitDir, "objects", other[:2], strings.TrimSpace(other[2:]))
		content, err := os.ReadFile(from)
		must(t, err)
		must(t, os.WriteFile(path, content, 0o444))
	}
}
