// Package durable writes files that survive a crash.
//
// After a crash or a power cut at any instant, a file that one of its functions replaces
// has either its old content or all of the new content; once they have returned nil, it
// has the new content. A temporary file that a crash leaves behind has a name of its own
// and is never read.
//
// renameio does nearly the same, but does not sync the folder, without which the rename
// itself may be lost.
package durable

import (
	"bufio"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

// Write replaces the file at path. It is for a single writer: it writes path.new and
// renames it, so that crashes leave at most one such file behind.
func Write(path string, content []byte, mode fs.FileMode) error {
	return Stream(path, mode, whole(content))
}

// Stream is Write for content that is produced piece by piece. If write returns an error,
// Stream returns it and the file is unchanged.
func Stream(path string, mode fs.FileMode, write func(io.Writer) error) error {
	file, err := createNew(path, mode)
	if err != nil {
		return err
	}
	return finish(file, path, mode, write)
}

// WriteShared is Write for concurrent writers, of which the last one wins. pattern
// names the temporary file, as in os.CreateTemp.
func WriteShared(path, pattern string, content []byte, mode fs.FileMode) error {
	return StreamShared(path, pattern, mode, whole(content))
}

// StreamShared is Stream for concurrent writers, as WriteShared is Write for them.
func StreamShared(path, pattern string, mode fs.FileMode, write func(io.Writer) error) error {
	file, err := os.CreateTemp(filepath.Dir(path), pattern)
	if err != nil {
		return err
	}
	return finish(file, path, mode, write)
}

// WriteOpen is Write for a caller who goes on using the file, which it returns open for
// reading and writing. It calls sync in place of (*os.File).Sync. The rename becomes
// durable only when the caller calls SyncFolder: should that fail, the file has been
// replaced nevertheless, and the caller must use the new one.
func WriteOpen(path string, content []byte, mode fs.FileMode, sync func(*os.File) error) (*os.File, error) {
	file, err := createNew(path, mode)
	if err != nil {
		return nil, err
	}
	if err := place(file, path, mode, sync, whole(content)); err != nil {
		return nil, err
	}
	return file, nil
}

// createNew creates the temporary file of a single writer.
func createNew(path string, mode fs.FileMode) (*os.File, error) {
	return os.OpenFile(path+".new", os.O_RDWR|os.O_CREATE|os.O_TRUNC, mode)
}

// whole writes all of the content at once.
func whole(content []byte) func(io.Writer) error {
	return func(w io.Writer) error {
		_, err := w.Write(content)
		return err
	}
}

// finish puts the file in its place, closes it and syncs the folder.
func finish(file *os.File, path string, mode fs.FileMode, write func(io.Writer) error) error {
	if err := place(file, path, mode, (*os.File).Sync, write); err != nil {
		return err
	}
	return errors.Join(file.Close(), SyncFolder(filepath.Dir(path)))
}

// place writes and syncs the file and renames it to path. It sets the mode explicitly,
// since the umask may have restricted it. After an error the file is closed and removed.
func place(file *os.File, path string, mode fs.FileMode, sync func(*os.File) error, write func(io.Writer) error) error {
	buffered := bufio.NewWriter(file)
	err := write(buffered)
	if err == nil {
		err = errors.Join(buffered.Flush(), file.Chmod(mode))
	}
	if err == nil {
		err = sync(file)
	}
	if err == nil {
		err = os.Rename(file.Name(), path)
	}
	if err != nil {
		file.Close()
		os.Remove(file.Name())
	}
	return err
}

// SyncFolder makes the directory entries of a folder durable.
func SyncFolder(path string) error {
	folder, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(folder.Sync(), folder.Close())
}
