package worktree

import (
	"errors"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// beneath is an open folder whose contents are accessed without ever following
// a symbolic link or leaving the folder, even while others are changing it.
type beneath struct {
	path string
	f    *os.File
	fd   int
	dev  uint64
	slow bool // openat2 is missing from the kernel or blocked by its seccomp filter
}

// openBeneath opens the folder at path. The path itself is trusted.
func openBeneath(path string) (*beneath, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, err
	}
	b := &beneath{path: path, f: f, fd: int(f.Fd())}
	var st unix.Stat_t
	if err := unix.Fstat(b.fd, &st); err != nil {
		f.Close()
		return nil, os.NewSyscallError("fstat", err)
	}
	b.dev = st.Dev
	fd, err := b.open("", unix.O_PATH|unix.O_DIRECTORY)
	if errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EPERM) {
		b.slow = true
	} else if err == nil {
		unix.Close(fd)
	}
	return b, nil
}

func (b *beneath) close() error { return b.f.Close() }

// open opens the slash-separated path below b. It fails with ELOOP or ENOTDIR if
// any element is a symbolic link, and with EXDEV if one is on another file system.
func (b *beneath) open(path string, flags int) (int, error) {
	flags |= unix.O_CLOEXEC | unix.O_NOFOLLOW
	if path == "" {
		path = "."
	}
	if b.slow {
		return b.openSlow(path, flags)
	}
	how := unix.OpenHow{
		Flags:   uint64(flags),
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS | unix.RESOLVE_NO_XDEV,
	}
	for {
		fd, err := unix.Openat2(b.fd, path, &how)
		if err != unix.EINTR && err != unix.EAGAIN {
			return fd, err
		}
	}
}

// openSlow is open without openat2: it opens the path one element at a time.
func (b *beneath) openSlow(path string, flags int) (int, error) {
	at := b.fd
	defer func() {
		if at != b.fd {
			unix.Close(at)
		}
	}()
	for {
		name, rest, more := strings.Cut(path, "/")
		if name == "" || name == ".." {
			return -1, unix.EXDEV
		}
		f := flags
		if more {
			f = unix.O_PATH | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC
		}
		fd, err := openRetry(at, name, f)
		if err != nil {
			return -1, err
		}
		var st unix.Stat_t
		if err := unix.Fstat(fd, &st); err != nil {
			unix.Close(fd)
			return -1, err
		}
		if st.Dev != b.dev {
			unix.Close(fd)
			return -1, unix.EXDEV
		}
		if !more {
			return fd, nil
		}
		if at != b.fd {
			unix.Close(at)
		}
		at, path = fd, rest
	}
}

func openRetry(at int, name string, flags int) (int, error) {
	for {
		fd, err := unix.Openat(at, name, flags, 0)
		if err != unix.EINTR {
			return fd, err
		}
	}
}

// openFolder opens a folder for use with the system calls that end in "at".
func (b *beneath) openFolder(path string) (int, error) {
	return b.open(path, unix.O_RDONLY|unix.O_DIRECTORY)
}

// lstat returns the attributes of path without following a link.
func (b *beneath) lstat(path string) (unix.Stat_t, error) {
	var st unix.Stat_t
	parent, name := splitPath(path)
	fd, err := b.openFolder(parent)
	if err != nil {
		return st, err
	}
	defer unix.Close(fd)
	return st, unix.Fstatat(fd, name, &st, unix.AT_SYMLINK_NOFOLLOW)
}

// openRegular opens the regular file at path for reading. It never blocks, even
// if a FIFO has replaced the file, and returns errNotRegular for anything that is
// not a regular file.
func (b *beneath) openRegular(path string) (*os.File, unix.Stat_t, error) {
	var st unix.Stat_t
	fd, err := b.open(path, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY)
	if err != nil {
		return nil, st, err
	}
	if err := unix.Fstat(fd, &st); err != nil {
		unix.Close(fd)
		return nil, st, err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		unix.Close(fd)
		return nil, st, errNotRegular
	}
	return os.NewFile(uintptr(fd), path), st, nil
}

var errNotRegular = errors.New("not a regular file")

// readFile returns the content of the regular file at path. It fails with EFBIG
// if the file is larger than limit bytes.
func (b *beneath) readFile(path string, limit int64) ([]byte, error) {
	f, st, err := b.openRegular(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if st.Size > limit {
		return nil, unix.EFBIG
	}
	buf := make([]byte, st.Size)
	n, err := readFull(f, buf)
	return buf[:n], err
}

// readLink returns the target of the symbolic link at path.
func (b *beneath) readLink(path string) (string, error) {
	parent, name := splitPath(path)
	fd, err := b.openFolder(parent)
	if err != nil {
		return "", err
	}
	defer unix.Close(fd)
	return readLinkAt(fd, name)
}

func readLinkAt(fd int, name string) (string, error) {
	for size := 256; ; size *= 2 {
		buf := make([]byte, size)
		n, err := unix.Readlinkat(fd, name, buf)
		if err != nil {
			return "", err
		}
		if n < size {
			return string(buf[:n]), nil
		}
	}
}

// vanished reports whether err means that a path was removed or replaced by
// another kind of file.
func vanished(err error) bool {
	return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) ||
		errors.Is(err, unix.ENXIO) || errors.Is(err, unix.EINVAL) || errors.Is(err, errNotRegular) || errors.Is(err, unix.ESTALE)
}

// skipFor returns the reason why an existing path cannot be read, or "" if err
// does not say so.
func skipFor(err error) SkipReason {
	switch {
	case errors.Is(err, unix.EACCES), errors.Is(err, unix.EPERM):
		return SkipUnreadable
	case errors.Is(err, unix.EXDEV):
		return SkipOtherFilesystem
	case errors.Is(err, unix.ENAMETOOLONG):
		return SkipTooDeep
	}
	return ""
}
