package gitstore

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
)

// writeFileSynced replaces the file at path as a whole: after a crash it has
// the old content or the new.
func writeFileSynced(path string, content []byte, mode fs.FileMode) error {
	temporary, err := os.CreateTemp(filepath.Dir(path), ".tmp-*")
	if err != nil {
		return err
	}
	defer os.Remove(temporary.Name()) // fails once renamed, as it should
	_, err = temporary.Write(content)
	err = errors.Join(err, temporary.Chmod(mode), temporary.Sync(), temporary.Close())
	if err != nil {
		return err
	}
	if err := os.Rename(temporary.Name(), path); err != nil {
		return err
	}
	return syncFolder(filepath.Dir(path))
}

// syncFolder makes the names in a folder durable.
func syncFolder(path string) error {
	folder, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(folder.Sync(), folder.Close())
}

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
	return syncFolder(filepath.Dir(path))
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
			if err := syncFolder(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
		}
		return nil
	})
}
