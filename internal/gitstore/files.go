package gitstore

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/clew-dev/clew/internal/durable"
)

// besideFiles names files that are written before they take their place: reap takes
// away those that a crash left.
const besideFiles = ".tmp-*"

// makeFolder creates path and missing parents below root, durably.
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

// syncFolders syncs every folder at and below path. A path that does not exist
// needs no sync.
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
