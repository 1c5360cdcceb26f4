package gitstore

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/clew-dev/clew/internal/durable"
)

// temporaryFiles is the name pattern of temporary files that are renamed once they are
// complete. reap removes those that a crash left behind.
const temporaryFiles = ".tmp-*"

// makeFolder durably creates path and its missing parents below root.
func makeFolder(root, path string) error {
	if path == root {
		return nil
	}
	err := os.Mkdir(path, 0o755)
	if errors.Is(err, fs.ErrNotExist) {
		if err := makeFolder(root, filepath.Dir(path)); err != nil {
			return err
		}
		err = os.Mkdir(path, 0o755)
	}
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return durable.SyncFolder(filepath.Dir(path))
}

// syncFolders syncs path and every folder below it. A path that does not exist is not an
// error.
func syncFolders(path string) error {
	return filepath.WalkDir(path, func(name string, entry fs.DirEntry, err error) error {
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return nil
		case err != nil:
			return err
		case entry.IsDir():
			if err := durable.SyncFolder(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
		}
		return nil
	})
}
