// Package durable writes files that have to be there after a crash.
//
// It promises that a file that Write or WriteShared replaces holds, after a crash or a
// power cut at any instant, either what it held before or all of the new content; and,
// once they have returned nil, the new. What a crash leaves beside it has a name of its
// own and is never read.
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

// Write replaces the file at path, for a single writer: it writes path.new and renames
// it, so that a crash leaves one such file and no more.
func Write(path string, content []byte, mode fs.FileMode) error {
	beside, err := os.OpenFile(path+".new", os.O_WRONLY|os.O_CREATE|os.O_TRUNC, mode)
	if err != nil {
		return err
	}
	return finish(beside, path, content, mode)
}

// WriteShared is Write for several writers at once, of whom the last one wins. beside
// names the files that it writes first, as os.CreateTemp has it.
func WriteShared(path, beside string, content []byte, mode fs.FileMode) error {
	file, err := os.CreateTemp(filepath.Dir(path), beside)
	if err != nil {
		return err
	}
	defer os.Remove(file.Name()) // fails once renamed, as it should
	return finish(file, path, content, mode)
}

// finish sets the mode, which may have to be wider than the umask allows.
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

// SyncFolder makes the names in a folder durable.
func SyncFolder(path string) error {
	folder, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(folder.Sync(), folder.Close())
}
