package worktree

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// commitVersions commits versions of a file, one of which has the given line, and packs
// them. The file changes little from one commit to the next, so the pack has deltas.
func (f *fixture) commitVersions(line string) {
	f.t.Helper()
	text := strings.Repeat("a line that is the same in each version of the file\n", 200)
	for i := range 5 {
		f.write("file.txt", fmt.Sprintf("%sversion %d\n%s", text, i, text))
		if i == 2 {
			f.write("file.txt", text+line+"\n"+text)
		}
		f.git("add", "-A")
		f.git("commit", "-qm", fmt.Sprint("version ", i))
	}
	f.git("gc", "-q", "--prune=now")
}

// A pack with a secret is skipped, whether the secret is in a whole object or in a
// delta; a pack without one is captured.
func TestPackedSecretsStayOut(t *testing.T) {
	for name, in := range map[string]string{"a packed secret": "KEY=" + secret, "nothing": "KEY=nothing"} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			f.withSecrets(secret)
			o, err := f.repo.Clone(context.Background(), CloneRequest{URL: "file://" + makeOrigin(t, 3)})
			must(t, err)
			f.commitVersions(in)
			c, err := f.repo.Checkpoint(context.Background(), CheckpointRequest{TaskUID: "uid-1", Number: 1, Parent: o.Base, Message: "m"})
			must(t, err)
			skipped := 0
			for _, s := range c.Skipped {
				if strings.HasSuffix(s.Path, ".pack") && s.Reason == SkipHoldsSecret {
					skipped++
				}
			}
			if want := strings.Contains(in, secret); (skipped > 0) != want {
				t.Errorf("%d packs were skipped, the secret is in one: %v; skipped files: %v", skipped, want, c.Skipped)
			}
			if found := f.inRepository(secret); len(found) > 0 {
				t.Errorf("the secret is in %v", found)
			}
		})
	}
}

// Every entry of a pack is scanned, including deltas.
func TestPacksAreScanned(t *testing.T) {
	f := newFixture(t)
	f.withSecrets(secret)
	_, err := f.repo.Clone(context.Background(), CloneRequest{URL: "file://" + makeOrigin(t, 1)})
	must(t, err)
	f.commitVersions("KEY=" + secret)
	packs, err := filepath.Glob(filepath.Join(f.work, ".git/objects/pack/*.pack"))
	must(t, err)
	var withSecret int
	for _, path := range packs {
		content, err := os.ReadFile(path)
		must(t, err)
		s := &scanner{secrets: f.repo.cfg.Secrets}
		if s.packHoldsSecret(strings.NewReader(string(content))) {
			withSecret++
		}
		for _, n := range []int{0, 3, 11, 12, 20, len(content) / 2} {
			s.packHoldsSecret(strings.NewReader(string(content[:n]))) // must return
		}
	}
	if withSecret != 1 {
		t.Errorf("the secret was found in %d of %d packs", withSecret, len(packs))
	}
	if got := string(deltaInserts([]byte("\x90\x4e\x10\x03abc\x91\x01\x02\x02de"))); got != "abc\x00de" {
		t.Errorf("a delta inserts %q", got)
	}
}

// Files and folders whose names contain a secret are skipped, and no name that leaves
// the pod contains it.
func TestNamesWithSecretsStayOut(t *testing.T) {
	f := newFixture(t)
	f.withSecrets(secret)
	o, err := f.repo.Clone(context.Background(), CloneRequest{URL: "file://" + makeOrigin(t, 3)})
	must(t, err)
	f.write("name-"+secret, "x")
	f.write("folder-"+secret+"/file", "x")
	f.write("kept", "x")
	f.git("checkout", "-q", "-b", "b-"+secret)
	c, err := f.repo.Checkpoint(context.Background(), CheckpointRequest{TaskUID: "uid-1", Number: 1, Parent: o.Base, Message: "m"})
	must(t, err)
	reported := fmt.Sprint(c.Agent, c.Files, c.Skipped)
	if strings.Contains(reported, secret) {
		t.Errorf("the checkpoint reports the secret: %s", reported)
	}
	for _, want := range []string{"kept", "name-***"} {
		if !strings.Contains(reported, want) {
			t.Errorf("the checkpoint does not report %q: %s", want, reported)
		}
	}
	if found := f.inRepository(secret); len(found) > 0 {
		t.Errorf("the secret is in %v", found)
	}
	for _, left := range []string{"name-" + secret, "folder-" + secret + "/file"} {
		if got := f.read(filepath.Join(f.work, left)); got != "x" {
			t.Errorf("%s was changed to %q", left, got)
		}
	}
}
