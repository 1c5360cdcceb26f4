package powercut_test

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/clew-dev/clew/internal/testing/powercut"
)

func TestAPowerCutLeavesWhatWasSyncedAndNothingElse(t *testing.T) {
	disk := powercut.New(t, 64<<20)
	write(t, disk.Path(), "synced", true)
	write(t, disk.Path(), "unsynced", false)
	disk.Cut(func() { write(t, disk.Path(), "too-late", true) })
	expect(t, disk.Path(), "synced")

	write(t, disk.Path(), "later", true)
	disk.Cut(func() {})
	expect(t, disk.Path(), "later", "synced")
}

func expect(t *testing.T, folder string, want ...string) {
	t.Helper()
	entries, err := os.ReadDir(folder)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, e := range entries {
		if e.Name() != "lost+found" {
			got = append(got, e.Name())
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("after the power cut the disk has the files %q, want %q", got, want)
	}
}

func write(t *testing.T, folder, name string, synced bool) {
	t.Helper()
	f, err := os.Create(filepath.Join(folder, name))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteString("content"); err != nil {
		t.Fatal(err)
	}
	if !synced {
		return
	}
	if err := f.Sync(); err != nil {
		t.Fatal(err)
	}
	dir, err := os.Open(folder)
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	if err := dir.Sync(); err != nil {
		t.Fatal(err)
	}
}
