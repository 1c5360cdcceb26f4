package gitstore

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// abandonedAfter is how old a temporary file outside repositories must be for nobody to be
// still writing it.
const abandonedAfter = time.Hour

// reap removes what killed git processes left in the repository: lock files, which would
// make every later push to a ref fail, and unfinished packs. It returns the number of files
// and folders removed. It fails if the repository stays in use, here or by an orphaned git
// process, until ctx is done.
func (r Repository) reap(ctx context.Context) (int, error) {
	alone, err := openLocked(ctx, r.useLock(), syscall.LOCK_EX)
	if err != nil {
		return 0, err
	}
	defer alone.Close()
	return r.clear()
}

// clear is reap for a caller that already holds the repository exclusively.
func (r Repository) clear() (int, error) {
	removed := 0
	err := filepath.WalkDir(r.Path, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return ignoreMissing(err)
		}
		leftover, err := r.leftover(path, entry)
		if err != nil || !leftover {
			return err
		}
		if err := os.RemoveAll(path); err != nil {
			return err
		}
		removed++
		if entry.IsDir() {
			return fs.SkipDir
		}
		return nil
	})
	return removed, err
}

// leftover reports whether a file or folder of the repository must have been left by a
// killed process, given that no process is using the repository.
func (r Repository) leftover(path string, entry fs.DirEntry) (bool, error) {
	name := entry.Name()
	inObjects := strings.HasPrefix(path, filepath.Join(r.Path, "objects")+"/")
	switch {
	case entry.IsDir():
		return inObjects && strings.HasPrefix(name, quarantinePrefix), nil
	case strings.HasSuffix(name, ".lock"), name == "packed-refs.new":
		return true, nil
	case !inObjects:
		return false, nil
	case strings.HasPrefix(name, "tmp_"), strings.HasPrefix(name, ".tmp-"), strings.HasSuffix(name, ".keep"):
		// A receiving git marks its pack with .keep so that it is not repacked before refs
		// point to it.
		return true, nil
	case strings.HasSuffix(name, ".pack"):
		// The index is written last: the push of a pack without one was not acknowledged. But
		// the index may also have been lost, so a whole pack stays, see indexPacks.
		if _, err := os.Lstat(strings.TrimSuffix(path, ".pack") + ".idx"); !errors.Is(err, fs.ErrNotExist) {
			return false, err
		}
		whole, err := hasChecksum(func() error { return nil }, path)
		return err == nil && !whole, ignoreMissing(err)
	}
	return false, nil
}

// ignoreMissing returns err, or nil if it says that a file does not exist.
func ignoreMissing(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// reapNamespaces removes repositories whose creation was interrupted, and abandoned
// temporary files of fences.
func (s *Store) reapNamespaces(now time.Time) error {
	var problems []error
	for _, pattern := range []string{"*/.tmp-*", "*/fences/.tmp-*"} {
		paths, err := filepath.Glob(filepath.Join(globEscape(s.root), "namespaces", pattern))
		if err != nil {
			return err
		}
		for _, path := range paths {
			info, err := os.Lstat(path)
			if err == nil && now.Sub(info.ModTime()) > abandonedAfter {
				problems = append(problems, os.RemoveAll(path))
			}
		}
	}
	return errors.Join(problems...)
}
