package worktree

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// committed makes a repository of the agent's whose history holds the secret, and
// a file that changes little from one commit to the next, so that packing it
// makes deltas.
func (f *fixture) committed(secretIn string) {
	f.t.Helper()
	text := strings.Repeat("a line that is the same in each version of the file\n", 200)
	for i := range 5 {
		f.write("file.txt", fmt.Sprintf("%sversion %d\n%s", text, i, text))
		if i == 2 {
			f.write("file.txt", text+secretIn+"\n"+text)
		}
		f.git("add", "-A")
		f.git("commit", "-qm", fmt.Sprint("version ", i))
	}
	f.git("gc", "-q", "--prune=now")
}

// A pack that holds a secret is skipped, whether the secret stands in a file or
// in a delta, and one that holds none is taken.
func TestPackedSecretsStayOut(t *testing.T) {
	for name, in := range map[string]string{"a packed secret": "KEY=" + secret, "nothing": "KEY=nothing"} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			f.withSecrets(secret)
			o, err := f.repo.Clone(context.Background(), CloneRequest{URL: "file://" + makeOrigin(t, 3)})
			must(t, err)
			f.committed(in)
			c, err := f.repo.Checkpoint(context.Background(), CheckpointRequest{TaskUID: "uid-1", Number: 1, Parent: o.Base, Message: "m"})
			must(t, err)
			skipped := 0
			for _, s := range c.Skipped {
				if strings.HasSuffix(s.Path, ".pack") && s.Reason == SkipHoldsSecret {
					skipped++
				}
			}
			if want := strings.Contains(in, secret); (skipped > 0) != want {
				t.Errorf("%d packs were skipped: %v", skipped, c.Skipped)
			}
			if found := f.inRepository(secret); len(found) > 0 {
				t.Errorf("the secret is in %v", found)
			}
		})
	}
}

// Entries of packs are read one by one, also those that are deltas.
func TestPacksAreLookedInto(t *testing.T) {
	f := newFixture(t)
	f.withSecrets(secret)
	_, err := f.repo.Clone(context.Background(), CloneRequest{URL: "file://" + makeOrigin(t, 1)})
	must(t, err)
	f.committed("KEY=" + secret)
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
			s.packHoldsSecret(strings.NewReader(string(content[:n]))) // ends
		}
	}
	if withSecret != 1 {
		t.Errorf("the secret was found in %d of %d packs", withSecret, len(packs))
	}
	if got := string(deltaInserts([]byte("\x90\x4e\x10\x03abc\x91\x01\x02\x02de"))); got != "abc\x00de" {
		t.Errorf("a delta inserts %q", got)
	}
}

// Files and folders whose names hold a secret are skipped, and no name that
// leaves the pod holds it.
func TestNamesThatHoldSecretsStayOut(t *testing.T) {
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
	told := fmt.Sprint(c.Agent, c.Files, c.Skipped)
	if strings.Contains(told, secret) || !strings.Contains(told, "kept") || !strings.Contains(told, "name-***") {
		t.Errorf("%s", told)
	}
	if found := f.inRepository(secret); len(found) > 0 {
		t.Errorf("the secret is in %v", found)
	}
	for _, left := range []string{"name-" + secret, "folder-" + secret + "/file"} {
		if got := f.read(filepath.Join(f.work, left)); got != "x" {
			t.Errorf("%s holds %q", left, got)
		}
	}
}
