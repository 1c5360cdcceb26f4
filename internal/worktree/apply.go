package worktree

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// The methods in this file modify the contents of a folder. None follows a link.

// inFolder calls f with a descriptor of path's parent folder and path's last element.
func (b *beneath) inFolder(path string, f func(fd int, name string) error) error {
	parent, name := splitPath(path)
	fd, err := b.open(parent, unix.O_PATH|unix.O_DIRECTORY)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return f(fd, name)
}

// makeFolders creates the folder at path and its parents. It fails if one of
// them exists and is not a folder.
func (b *beneath) makeFolders(path string) error {
	for i := range len(path) + 1 {
		if i < len(path) && path[i] != '/' {
			continue
		}
		if err := b.mkdir(path[:i], 0o755); err != nil && !errors.Is(err, unix.EEXIST) {
			return err
		}
	}
	return nil
}

func (b *beneath) mkdir(path string, perm uint32) error {
	return b.inFolder(path, func(fd int, name string) error { return unix.Mkdirat(fd, name, perm) })
}

// mkfifo creates a named pipe. It fails if something exists at path, a link included.
func (b *beneath) mkfifo(path string) error {
	return b.inFolder(path, func(fd int, name string) error { return unix.Mkfifoat(fd, name, 0o600) })
}

// chmod sets the permission bits of the folder, file or named pipe at path.
func (b *beneath) chmod(path string, perm uint32) error {
	st, err := b.lstat(path)
	if err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT == unix.S_IFLNK {
		return unix.ELOOP
	}
	fd, err := b.open(path, unix.O_PATH)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	// Through /proc, since fchmod rejects an O_PATH descriptor and an unreadable
	// file cannot be opened in any other way.
	return unix.Fchmodat(unix.AT_FDCWD, procPath(fd), perm, 0)
}

func procPath(fd int) string { return "/proc/self/fd/" + strconv.Itoa(fd) }

// replace atomically creates the file at path, replacing a file or link that
// exists. fill writes the content.
func (b *beneath) replace(path string, perm uint32, fill func(f *os.File) error) error {
	return b.inFolder(path, func(dir int, name string) error {
		tmp := tempName()
		fd, err := unix.Openat(dir, tmp, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
		if err != nil {
			return err
		}
		f := os.NewFile(uintptr(fd), path)
		err = fill(f)
		if err == nil {
			err = unix.Fchmod(fd, perm)
		}
		if e := f.Close(); err == nil {
			err = e
		}
		if err == nil {
			err = unix.Renameat(dir, tmp, dir, name)
		}
		if err != nil {
			_ = unix.Unlinkat(dir, tmp, 0)
		}
		return err
	})
}

// replaceLink atomically creates a symbolic link at path, as replace does a file.
func (b *beneath) replaceLink(path, target string) error {
	return b.inFolder(path, func(dir int, name string) error {
		tmp := tempName()
		err := unix.Symlinkat(target, dir, tmp)
		if err == nil {
			if err = unix.Renameat(dir, tmp, dir, name); err != nil {
				_ = unix.Unlinkat(dir, tmp, 0)
			}
		}
		return err
	})
}

// tempPrefix is the prefix of temporary files that a killed restore may leave
// behind. The next restore removes them, as it removes everything that its target
// lacks.
const tempPrefix = ".clew-tmp-"

func tempName() string {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails
	return tempPrefix + hex.EncodeToString(b[:])
}

// unlink removes the file, link or empty folder at path. It is not an error if
// path does not exist.
func (b *beneath) unlink(path string, folder bool) error {
	flags := 0
	if folder {
		flags = unix.AT_REMOVEDIR
	}
	err := b.inFolder(path, func(fd int, name string) error { return unix.Unlinkat(fd, name, flags) })
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	return err
}

// removeAll removes path and everything below it, including folders without
// write permission.
func (b *beneath) removeAll(path string) error {
	st, err := b.lstat(path)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR {
		return b.unlink(path, false)
	}
	if err := b.clear(path, st.Mode&0o7777); err != nil {
		return err
	}
	return b.unlink(path, true)
}

// clear removes the contents of the folder at path, whose permission bits are perm.
func (b *beneath) clear(path string, perm uint32) error {
	if perm&0o700 != 0o700 {
		if err := b.chmod(path, perm|0o700); err != nil {
			return err
		}
	}
	fd, err := b.openFolder(path)
	if err != nil {
		return err
	}
	l := &lister{buf: make([]byte, 16<<10)}
	err = l.readNames(fd, nil)
	unix.Close(fd)
	if err != nil {
		return err
	}
	for _, name := range l.names {
		if err := b.removeAll(joinPath(path, name)); err != nil {
			return err
		}
	}
	return nil
}

// isEmpty reports whether the folder is empty, except for what a file system
// creates on a new volume and temporary files of replace.
func (b *beneath) isEmpty() (bool, error) {
	fd, err := b.openFolder("")
	if err != nil {
		return false, err
	}
	defer unix.Close(fd)
	l := &lister{buf: make([]byte, 16<<10)}
	if err := l.readNames(fd, nil); err != nil {
		return false, err
	}
	for _, name := range l.names {
		if name != "lost+found" && !strings.HasPrefix(name, tempPrefix) {
			return false, nil
		}
	}
	return true, nil
}

// sync makes all data on b's file system durable.
func (b *beneath) sync() error { return unix.Syncfs(b.fd) }
