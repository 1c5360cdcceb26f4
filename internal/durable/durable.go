// Package durable writes files that survive a crash.
//
// After a crash or a power cut at any instant, a file that Write or WriteShared replaces
// has either its old content or all of the new content; once they have returned nil, it
// has the new content. A temporary file that a crash leaves behind has a name of its own
// and is never read.
//
// renameio does nearly the same, but does not sync the folder, without which the rename
// itself may be lost.
package durable

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
)

// Write replaces the file at path. It is for a single writer: it writes path.new and
// renames it, so that crashes leave at most one such file behind.
func Write(path string, content []byte, mode fs.FileMode) error {
	file, err := os.OpenFile(path+".new", os.O_WRONLY|os.O_CREATE|os.O_TRUNC, mode)
	if err != nil {
		return err
	}
	return finish(file, path, content, mode)
}

// WriteShared is Write for concurrent writers, of which the last one wins. pattern
// names the temporary file, as in os.CreateTemp.
func WriteShared(path, pattern string, content []byte, mode fs.FileMode) error {
	file, err := os.CreateTemp(filepath.Dir(path), pattern)
	if err != nil {
		return err
	}
	defer os.Remove(file.Name()) // fails after the rename, as intended
	return finish(file, path, content, mode)
}

// finish writes and syncs the file, renames it to path and syncs the folder. It sets the
// mode explicitly, since the umask may have restricted it.
func finish(file *os.File, path string, content []byte, mode fs.FileMode) error {
	_, err := file.Write(content)
	if err := errors.Join(err, file.Chmod(mode), file.Sync(), file.Close()); err != nil {
		return err
	}
	if err := os.Rename(file.Name(), path); err != nil {
		return err
	}
	return SyncFolder(filepath.Dir(path))
}

// SyncFolder makes the directory entries of a folder durable.
func SyncFolder(path string) error {
	folder, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(folder.Sync(), folder.Close())
}
