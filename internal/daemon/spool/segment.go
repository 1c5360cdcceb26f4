package spool

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/clew-dev/clew/internal/durable"
)

// load reads the folder and makes the spool ready for Append.
func (s *Spool) load() error {
	names, err := filepath.Glob(filepath.Join(s.dir, "*.log"))
	if err != nil {
		return fmt.Errorf("read the spool: %w", err)
	}
	slices.Sort(names)
	for _, path := range names {
		first, err := strconv.ParseInt(strings.TrimSuffix(filepath.Base(path), ".log"), 10, 64)
		if err != nil || first < 1 {
			if err := os.Rename(path, filepath.Join(s.dir, "damaged-"+filepath.Base(path))); err != nil {
				return fmt.Errorf("put aside %s, which is not a segment of the spool: %w", path, err)
			}
			continue
		}
		info, err := os.Stat(path)
		if err != nil {
			return fmt.Errorf("read the spool: %w", err)
		}
		s.segments = append(s.segments, &segment{path: path, first: first, size: info.Size()})
	}
	if len(s.segments) == 0 {
		return s.rotate(0)
	}
	if err := s.loadNewest(); err != nil {
		return err
	}
	if s.active, err = os.OpenFile(s.current().path, os.O_RDWR, 0); err != nil {
		return fmt.Errorf("open the spool: %w", err)
	}
	return s.loadKept()
}

// loadNewest reads the active segment as it is on the disk: a killed daemon may have left
// data in the page cache only, and after a failed fsync the cache contains what the disk
// does not.
func (s *Spool) loadNewest() error {
	seg := s.current()
	if err := s.makeDurable(seg.path); err != nil {
		return err
	}
	found, err := s.repair(seg)
	if err != nil {
		return err
	}
	s.last, s.mark = max(seg.first-1, found.last), found.mark
	return nil
}

// markUncertain records on the disk that the newest records may be lost.
func (s *Spool) markUncertain() error {
	if err := os.WriteFile(s.uncertainPath(), nil, 0o600); err != nil {
		return fmt.Errorf("record that the end of the spool is lost: %w", err)
	}
	return durable.SyncFolder(s.dir)
}

// makeDurable writes a file to the disk and drops it from the page cache.
func (s *Spool) makeDurable(path string) error {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return fmt.Errorf("open the spool: %w", err)
	}
	defer f.Close()
	if err := s.sync(f); err != nil {
		return fmt.Errorf("sync the spool: %w", err)
	}
	// This is only advice: where it is ignored, the sync has to be trusted.
	_ = unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED)
	return nil
}

// rotate begins a new segment after sequence last. Its first entry contains the mark, so
// that older segments can be dropped.
func (s *Spool) rotate(last int64) error {
	path := filepath.Join(s.dir, fmt.Sprintf("%020d.log", last+1))
	if s.active != nil && path == s.current().path {
		return nil // only marks so far: continue with it
	}
	header, err := encode(s.mark, nil)
	if err != nil {
		return err
	}
	f, err := s.writeSegment(path, header)
	if err != nil {
		return fmt.Errorf("begin a segment of the spool: %w", err)
	}
	if err := durable.SyncFolder(s.dir); err != nil {
		f.Close()
		return err
	}
	if s.active != nil {
		s.active.Close()
	}
	s.active = f
	s.segments = append(s.segments, &segment{path: path, first: last + 1, size: int64(len(header))})
	return nil
}

// writeSegment creates or replaces a segment, so that it always begins with its mark, and
// returns it open. Callers sync the folder.
func (s *Spool) writeSegment(path string, content []byte) (*os.File, error) {
	return durable.WriteOpen(path, content, 0o600, s.sync)
}
