package agent

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// FindSession reads a session from the agent's home.
func FindSession(adapter Adapter, home, id string) (Session, error) {
	root, err := os.OpenRoot(home)
	if err != nil {
		return Session{}, err
	}
	defer root.Close()
	return adapter.Session(homeFS{root}, id)
}

// homeFS reads the agent's home, which is untrusted: links cannot lead outside of it, and
// only regular files and folders are opened, so that a named pipe cannot block the
// reader.
type homeFS struct{ root *os.Root }

// Open implements fs.FS.
func (h homeFS) Open(name string) (fs.File, error) {
	if !fs.ValidPath(name) {
		return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrInvalid}
	}
	f, err := h.root.OpenFile(filepath.FromSlash(name), os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() && !info.IsDir() {
		err = &fs.PathError{Op: "open", Path: name, Err: errors.New("neither a file nor a folder")}
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}
