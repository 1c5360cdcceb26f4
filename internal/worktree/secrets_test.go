package worktree

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/clew-dev/clew/internal/daemon/mask"
)

const secret = "sk-test-0123456789abcdef"

// withSecrets reopens a fixture's repository with these secrets.
func (f *fixture) withSecrets(values ...string) {
	f.t.Helper()
	must(f.t, f.repo.Close())
	var list [][]byte
	for _, v := range values {
		list = append(list, []byte(v))
	}
	cfg := f.config()
	cfg.Secrets, cfg.MaxFileBytes = mask.New(list...), 64<<20
	repo, err := Open(context.Background(), cfg)
	must(f.t, err)
	repo.local = true
	f.repo = repo
	f.t.Cleanup(func() { repo.Close() })
}

func (f *fixture) read(path string) string {
	f.t.Helper()
	b, err := os.ReadFile(path)
	must(f.t, err)
	return string(b)
}

// inRepository lists the objects of the repository that contain a text. It also
// searches the agent's own objects, which are compressed a second time.
func (f *fixture) inRepository(text string) []string {
	f.t.Helper()
	list := gitIn(f.t, f.repo.cfg.GitDir, "cat-file", "--batch-all-objects", "--batch-check")
	var found []string
	for line := range strings.Lines(list) {
		id, kind, _ := strings.Cut(line, " ")
		kind, _, _ = strings.Cut(kind, " ")
		out, err := exec.Command("git", "-C", f.repo.cfg.GitDir, "cat-file", kind, id).Output()
		must(f.t, err)
		scratch := &scanner{secrets: mask.New([]byte(text))}
		if scratch.secrets.Holds(out) || scratch.objectHoldsSecret(bytes.NewReader(out)) {
			found = append(found, line)
		}
	}
	return found
}

// TestSecretsAreNotCaptured writes a secret everywhere an agent may leave one.
func TestSecretsAreNotCaptured(t *testing.T) {
	f := cloned(t, "")
	f.withSecrets(secret)
	session := filepath.Join(f.home, ".agent/session.jsonl")
	must(t, os.MkdirAll(filepath.Dir(session), 0o755))
	write := func(path, text string) { must(t, os.WriteFile(path, []byte(text), 0o644)) }
	write(session, `{"output":"the key is `+secret+`"}`+"\n")
	write(filepath.Join(f.home, ".agent/binary"), "\x00"+secret)
	big := strings.Repeat("line of a session\n", inlineMax/18+1)
	write(filepath.Join(f.home, ".agent/big.jsonl"), big+secret+"\n")
	write(filepath.Join(f.home, ".agent/big.bin"), big+"\xff"+secret)
	f.write("plain.txt", "nothing\n")
	f.write(".env", "KEY="+secret+"\n")
	f.write("big.txt", big+secret)
	must(t, os.Symlink(secret, filepath.Join(f.work, "link")))
	f.git("add", ".env", "plain.txt")
	f.git("commit", "-q", "-m", "with a key")
	f.git("remote", "add", "upstream", "https://user:"+secret+"@example.com/x")

	c := f.checkpoint()
	var skipped []string
	for _, s := range c.Skipped {
		if s.Reason == SkipHoldsSecret {
			skipped = append(skipped, strings.TrimPrefix(s.Path, f.home+"/"))
		}
	}
	skipped = slices.DeleteFunc(skipped, func(p string) bool { return strings.HasPrefix(p, ".git/objects/") })
	wantEqual(t, "files skipped because of a secret", []string{".env", ".agent/big.bin", ".agent/binary", "big.txt", "link"}, skipped)
	if found := f.inRepository(secret); len(found) > 0 {
		t.Errorf("the secret is in %q", found)
	}
	// Unchanged files are not read again, and the checkpoint is the same.
	again := f.checkpoint()
	wantEqual(t, "tree of the second checkpoint", c.Tree, again.Tree)
	wantEqual(t, "changed files of the second checkpoint", nil, again.Files)
	wantEqual(t, "number of skipped files of the second checkpoint", c.SkippedCount, again.SkippedCount)
	drift, err := f.repo.Drift(context.Background(), c.target())
	if must(t, err); !drift.Same() {
		t.Errorf("an unchanged worktree has the drift %+v", drift)
	}
	// A restore leaves files with a secret alone.
	write(session, "changed\n")
	f.write("plain.txt", "changed\n")
	f.write(".env", "OTHER="+secret+"\n")
	f.restore(c, ScopeBoth)
	if got := f.read(filepath.Join(f.work, ".env")); got != "OTHER="+secret+"\n" {
		t.Errorf(".env is %q", got)
	}
	if got := f.read(session); got != `{"output":"the key is `+strings.Repeat("*", len(secret))+`"}`+"\n" {
		t.Errorf("the session is %q", got)
	}
	if got := f.read(filepath.Join(f.work, "plain.txt")); got != "nothing\n" {
		t.Errorf("plain.txt is %q", got)
	}
	if _, err := os.Lstat(filepath.Join(f.work, "link")); err != nil {
		t.Error(err)
	}
}

// TestSecretsChange: a file is not in the next checkpoint if a value in it has become
// a secret, and is again once it no longer is.
func TestSecretsChange(t *testing.T) {
	f := cloned(t, "")
	f.write("file", secret+"\n")
	f.write("other", "x\n")
	var files []int64
	for _, values := range [][]string{nil, {secret}, {secret}, {"another-secret"}} {
		f.withSecrets(values...)
		files = append(files, f.checkpoint().TotalFiles)
	}
	wantEqual(t, "number of files in the checkpoints", []int64{2, 1, 1, 2}, files)
}

// TestAnnotations: ReadMeta and Restore return the annotations of a checkpoint.
func TestAnnotations(t *testing.T) {
	f := cloned(t, "")
	f.write("file", "x")
	want := map[string]string{"session": `{"id":"a\nb"}`}
	c, err := f.repo.Checkpoint(context.Background(), CheckpointRequest{TaskUID: "uid-1", Number: 1, Message: "m\n", Annotations: want})
	must(t, err)
	meta, err := f.repo.ReadMeta(context.Background(), c.State)
	must(t, err)
	res := f.restore(c, ScopeBoth)
	wantEqual(t, "annotations from ReadMeta", want, meta.Annotations)
	wantEqual(t, "annotations from Restore", want, res.Annotations)
	if text, _ := json.Marshal(Meta{}); strings.Contains(string(text), "annotations") {
		t.Error("the meta.json of a checkpoint without annotations has changed")
	}
}

// TestTextChecker: text is recognised even if a write ends within a character.
func TestTextChecker(t *testing.T) {
	for _, tc := range []struct {
		text string
		want bool
	}{{"plain", true}, {"ü😀ü", true}, {"", true}, {"a\x00b", false}, {"ü\xff", false}, {"ü"[:1], false}, {"😀"[:3], false}} {
		for size := 1; size < 5; size++ {
			c := &textChecker{}
			for rest := []byte(tc.text); len(rest) > 0; rest = rest[min(size, len(rest)):] {
				_, _ = c.Write(rest[:min(size, len(rest))])
			}
			if c.done() != tc.want {
				t.Errorf("%q in writes of %d bytes: text is %v, want %v", tc.text, size, c.done(), tc.want)
			}
		}
	}
}
