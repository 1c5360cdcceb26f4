package durable_test

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/clew-dev/clew/internal/durable"
)

// writers are the functions that replace a file, by name.
var writers = map[string]func(path string, content []byte, mode fs.FileMode) error{
	"by one writer": durable.Write,
	"by many":       shared,
	"streamed": func(path string, content []byte, mode fs.FileMode) error {
		return durable.Stream(path, mode, bytewise(content))
	},
	"streamed by many": func(path string, content []byte, mode fs.FileMode) error {
		return durable.StreamShared(path, "tmp-*", mode, bytewise(content))
	},
	"kept open": func(path string, content []byte, mode fs.FileMode) error {
		file, err := durable.WriteOpen(path, content, mode, (*os.File).Sync)
		if err != nil {
			return err
		}
		return file.Close()
	},
}

func shared(path string, content []byte, mode fs.FileMode) error {
	return durable.WriteShared(path, "tmp-*", content, mode)
}

// bytewise writes the content one byte at a time.
func bytewise(content []byte) func(io.Writer) error {
	return func(w io.Writer) error {
		for i := range content {
			if _, err := w.Write(content[i : i+1]); err != nil {
				return err
			}
		}
		return nil
	}
}

func TestAFileIsReplaced(t *testing.T) {
	for name, write := range writers {
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
	for name, write := range writers {
		t.Run(name, func(t *testing.T) {
			parent := t.TempDir()
			path := filepath.Join(parent, "folder")
			if err := os.MkdirAll(filepath.Join(path, "full"), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := write(path, nil, 0o600); err == nil {
				t.Error("a folder was replaced by a file")
			}
			if d := cmp.Diff([]string{"full"}, names(t, path)); d != "" {
				t.Errorf("content of the folder (-want +got):\n%s", d)
			}
			if d := cmp.Diff([]string{"folder"}, names(t, parent)); d != "" {
				t.Errorf("files beside the folder (-want +got):\n%s", d)
			}
			if err := write(filepath.Join(path, "none", "file"), nil, 0o600); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("writing to a folder that does not exist returns %v, want ErrNotExist", err)
			}
		})
	}
}

func TestAFileOutlivesAFailureToReplaceIt(t *testing.T) {
	failed := errors.New("failed")
	half := func(w io.Writer) error {
		_, err := w.Write(bytes.Repeat([]byte("new"), 64<<10))
		return errors.Join(err, failed)
	}
	for name, replace := range map[string]func(path string) error{
		"the writer":          func(path string) error { return durable.Stream(path, 0o600, half) },
		"the writer, of many": func(path string) error { return durable.StreamShared(path, "tmp-*", 0o600, half) },
		"the sync": func(path string) error {
			_, err := durable.WriteOpen(path, []byte("new"), 0o600, func(*os.File) error { return failed })
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			folder := t.TempDir()
			path := filepath.Join(folder, "file")
			if err := os.WriteFile(path, []byte("old"), 0o600); err != nil {
				t.Fatal(err)
			}
			if err := replace(path); !errors.Is(err, failed) {
				t.Errorf("the error is %v, want that of %s", err, name)
			}
			if got, err := os.ReadFile(path); err != nil || string(got) != "old" {
				t.Errorf("the file contains %.20q (%v), want the old content", got, err)
			}
			if d := cmp.Diff([]string{"file"}, names(t, folder)); d != "" {
				t.Errorf("files in the folder (-want +got):\n%s", d)
			}
		})
	}
}

func TestAnOpenFileIsTheOneInPlace(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	var synced []string
	file, err := durable.WriteOpen(path, []byte("begun"), 0o600, func(f *os.File) error {
		synced = append(synced, filepath.Base(f.Name()))
		return f.Sync()
	})
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if d := cmp.Diff([]string{"file.new"}, synced); d != "" {
		t.Errorf("synced files (-want +got):\n%s", d)
	}
	if _, err := file.WriteAt([]byte(" and continued"), 5); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(path); err != nil || string(got) != "begun and continued" {
		t.Errorf("the file contains %q (%v), want what was written to it", got, err)
	}
	if got, err := io.ReadAll(file); err != nil || string(got) == "" {
		t.Errorf("the open file reads as %q (%v), want the rest after what was written at first", got, err)
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
