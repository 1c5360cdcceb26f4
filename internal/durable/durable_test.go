package durable_test

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/clew-dev/clew/internal/durable"
)

func shared(path string, content []byte, mode fs.FileMode) error {
	return durable.WriteShared(path, "tmp-*", content, mode)
}

func TestAFileIsReplaced(t *testing.T) {
	for name, write := range map[string]func(string, []byte, fs.FileMode) error{"by one writer": durable.Write, "by many": shared} {
		t.Run(name, func(t *testing.T) {
			folder := t.TempDir()
			path := filepath.Join(folder, "file")
			for _, content := range []string{"a longer one", "short", ""} {
				if err := write(path, []byte(content), 0o666); err != nil {
					t.Fatal(err)
				}
				got, err := os.ReadFile(path)
				if err != nil {
					t.Fatal(err)
				}
				if d := cmp.Diff(content, string(got)); d != "" {
					t.Errorf("content (-want +got):\n%s", d)
				}
			}
			info, err := os.Stat(path)
			if err != nil {
				t.Fatal(err)
			}
			if info.Mode() != 0o666 {
				t.Errorf("the mode is %s, want -rw-rw-rw- whatever the umask", info.Mode())
			}
			if d := cmp.Diff([]string{"file"}, names(t, folder)); d != "" {
				t.Errorf("files in the folder (-want +got):\n%s", d)
			}
		})
	}
}

func TestAFolderIsNotReplaced(t *testing.T) {
	for name, write := range map[string]func(string, []byte, fs.FileMode) error{"by one writer": durable.Write, "by many": shared} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "folder")
			if err := os.MkdirAll(filepath.Join(path, "full"), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := write(path, nil, 0o600); err == nil {
				t.Error("a folder was replaced by a file")
			}
			if d := cmp.Diff([]string{"full"}, names(t, path)); d != "" {
				t.Errorf("content of the folder (-want +got):\n%s", d)
			}
			if err := write(filepath.Join(path, "none", "file"), nil, 0o600); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("writing to a folder that does not exist returns %v, want ErrNotExist", err)
			}
		})
	}
}

func TestOneOfManyWritersWins(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	var group sync.WaitGroup
	for i := range byte(8) {
		group.Go(func() {
			if err := shared(path, bytes.Repeat([]byte{'a' + i}, 64<<10), 0o600); err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
	got, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, bytes.Repeat(got[:1], 64<<10)) {
		t.Error("the file mixes the content of several writers")
	}
}

func names(t *testing.T, folder string) (names []string) {
	t.Helper()
	entries, err := os.ReadDir(folder)
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range entries {
		names = append(names, entry.Name())
	}
	return names
}
