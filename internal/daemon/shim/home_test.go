package shim

import (
	"os"
	"path/filepath"
	"testing"
)

// The files that an agent needs in its home are written at each start, and never outside it.
func TestWriteHomeFiles(t *testing.T) {
	home, outside := t.TempDir(), t.TempDir()
	env := []string{"PATH=/bin", "HOME=" + home}
	for _, content := range []string{"one", "two"} {
		if err := writeHomeFiles(env, map[string][]byte{".agent/ext/a.json": []byte(content)}); err != nil {
			t.Fatal(err)
		}
		if got, err := os.ReadFile(filepath.Join(home, ".agent/ext/a.json")); err != nil || string(got) != content {
			t.Fatalf("the file has %q, want %q (%v)", got, content, err)
		}
	}
	if err := os.Symlink(outside, filepath.Join(home, ".linked")); err != nil {
		t.Fatal(err)
	}
	if err := writeHomeFiles(env, map[string][]byte{".linked/a.json": []byte("x")}); err == nil {
		t.Error("a file was written through a link that leads out of the home")
	}
	target := filepath.Join(outside, "kept")
	if err := os.WriteFile(target, []byte("kept"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(target, filepath.Join(home, "b.json")); err != nil {
		t.Fatal(err)
	}
	if err := writeHomeFiles(env, map[string][]byte{"b.json": []byte("new")}); err != nil {
		t.Error(err)
	}
	if got, _ := os.ReadFile(target); string(got) != "kept" {
		t.Errorf("the file behind a link was changed to %q", got)
	}
	if err := writeHomeFiles([]string{"HOME="}, map[string][]byte{"a": nil}); err == nil {
		t.Error("files were written without a home, want an error")
	}
}
