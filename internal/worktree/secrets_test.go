package worktree

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/clew-dev/clew/internal/daemon/mask"
)

const secret = "sk-test-0123456789abcdef"

// withSecrets opens a fixture's repository anew, with these secrets.
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

// inRepository looks for a text in all objects of the repository, also in those
// of the agent's repository, which are compressed once more.
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

// TestSecretsAreNotCaptured puts a secret wherever an agent may leave one.
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
	if want := []string{".env", ".agent/big.bin", ".agent/binary", "big.txt", "link"}; fmt.Sprint(skipped) != fmt.Sprint(want) {
		t.Errorf("skipped %q, want %q", skipped, want)
	}
	if found := f.inRepository(secret); len(found) > 0 {
		t.Errorf("the secret is in %q", found)
	}
	// What is not changed is not read again, and gives the same checkpoint.
	again := f.checkpoint()
	if again.Tree != c.Tree || again.FilesChanged != 0 || again.SkippedCount != c.SkippedCount {
		t.Errorf("%+v, before %+v", again, c)
	}
	drift, err := f.repo.Drift(context.Background(), c.target())
	if must(t, err); !drift.Same() {
		t.Errorf("%+v", drift)
	}
	// A restore leaves the files alone in which there is a secret.
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

// TestSecretsChange takes files out of the next checkpoint when a value in them
// becomes a secret, and in again when it is none any more.
func TestSecretsChange(t *testing.T) {
	f := cloned(t, "")
	f.write("file", secret+"\n")
	f.write("other", "x\n")
	trees := []int64{}
	for _, values := range [][]string{nil, {secret}, {secret}, {"another-secret"}} {
		f.withSecrets(values...)
		trees = append(trees, f.checkpoint().TotalFiles)
	}
	if fmt.Sprint(trees) != "[2 1 1 2]" {
		t.Errorf("files in the checkpoints: %v", trees)
	}
}

// TestAnnotations come back with whatever reads a checkpoint.
func TestAnnotations(t *testing.T) {
	f := cloned(t, "")
	f.write("file", "x")
	want := map[string]string{"session": `{"id":"a\nb"}`}
	c, err := f.repo.Checkpoint(context.Background(), CheckpointRequest{TaskUID: "uid-1", Number: 1, Message: "m\n", Annotations: want})
	must(t, err)
	meta, err := f.repo.ReadMeta(context.Background(), c.State)
	must(t, err)
	res := f.restore(c, ScopeBoth)
	for _, got := range []map[string]string{meta.Annotations, res.Annotations} {
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("%v, want %v", got, want)
		}
	}
	if text, _ := json.Marshal(Meta{}); strings.Contains(string(text), "annotations") {
		t.Error("a checkpoint without annotations is not the same as ever")
	}
}

// TestTextIsTold where a character is cut by a read.
func TestTextIsTold(t *testing.T) {
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
				t.Errorf("%q by %d: %v", tc.text, size, c.done())
			}
		}
	}
}
