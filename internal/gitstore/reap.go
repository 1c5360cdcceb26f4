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

// abandonedAfter is how old a temporary file outside of repositories must be,
// before nobody can be about to finish it.
const abandonedAfter = time.Hour

// reap removes what killed git processes left in the repository: lock files,
// which would make every later push of a ref fail, and unfinished packs. It
// returns the number of things removed. It does nothing if someone, here or in
// an orphaned git process, uses the repository and does not stop until ctx is
// done.
func (r Repository) reap(ctx context.Context) (int, error) {
	alone, err := openLocked(ctx, r.useLock(), syscall.LOCK_EX)
	if err != nil {
		return 0, err
	}
	defer alone.Close()
	return r.clear()
}

// clear is reap for whoever has the repository alone.
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

// leftover reports whether a file or folder of the repository can only have
// been left by a process that was killed, given that none is running.
func (r Repository) leftover(path string, entry fs.DirEntry) (bool, error) {
	name := entry.Name()
	inObjects := strings.HasPrefix(path, filepath.Join(r.Path, "objects")+"/")
	switch {
	case entry.IsDir():
		return inObjects && strings.HasPrefix(name, "tmp_objdir-"), nil
	case strings.HasSuffix(name, ".lock"), name == "packed-refs.new":
		return true, nil
	case !inObjects:
		return false, nil
	case strings.HasPrefix(name, "tmp_"), strings.HasPrefix(name, ".tmp-"), strings.HasSuffix(name, ".keep"):
		// Receiving git keeps a pack from being repacked before a ref needs it.
		return true, nil
	case strings.HasSuffix(name, ".pack"):
		// A pack gets its index last: without one it was never part of the
		// repository, and no push of it was acknowledged.
		_, err := os.Lstat(strings.TrimSuffix(path, ".pack") + ".idx")
		return errors.Is(err, fs.ErrNotExist), ignoreMissing(err)
	}
	return false, nil
}

func ignoreMissing(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// reapNamespaces removes repositories that were never finished, and temporary
// files of fences.
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
