package spool

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/clew-dev/clew/internal/durable"
)

// sectorBytes is the unit that a disk writes atomically.
const sectorBytes = 512

// contents is the result of reading a segment.
type contents struct {
	mark     Mark
	last     int64 // sequence of the last record, 0 for none
	tailLost bool  // the data after the last entry is damaged, not merely torn
}

// repair reads a whole segment. Unreadable data is put aside in files of its own, and the
// segment is rewritten without it; the sequences of the remaining records then show which
// are lost. A write that a crash interrupted is dropped: it was never reported as being on
// disk.
//
// A segment without any readable entry is rewritten with the mark that holds.
func (s *Spool) repair(seg *segment) (contents, error) {
	data, err := readFile(seg.path)
	if err != nil {
		return contents{}, fmt.Errorf("read the spool: %w", err)
	}
	found, good, err := s.salvage(seg, data)
	if err != nil {
		return found, err
	}
	if len(good) == 0 {
		found.tailLost = true // every segment is created with an entry
		if found.mark, err = s.markFor(seg); err != nil {
			return found, err
		}
		if good, err = encode(found.mark, nil); err != nil {
			return found, err
		}
	}
	// For a spool in use, the segment's size is known.
	shrank := s.active != nil && int64(len(data)) < seg.size
	found.tailLost = found.tailLost || shrank
	if bytes.Equal(good, data) && !shrank {
		return found, nil
	}
	if found.tailLost && seg == s.current() {
		// Before the evidence is removed.
		if err := s.markUncertain(); err != nil {
			return found, err
		}
	}
	if bytes.HasPrefix(data, good) {
		// In place, since writes are torn when the volume is full.
		return found, s.cutOff(seg, int64(len(good)))
	}
	var f *os.File
	err = s.withRoom(seg, func() (err error) {
		f, err = s.writeSegment(seg.path, good)
		return err
	})
	if err != nil {
		return found, fmt.Errorf("write a repaired segment of the spool: %w", err)
	}
	seg.size = int64(len(good))
	if s.active != nil && seg == s.current() {
		s.active, f = f, s.active
	}
	return found, errors.Join(f.Close(), durable.SyncFolder(s.dir))
}

// salvage returns the readable entries of a segment's data, and puts the damaged parts aside.
func (s *Spool) salvage(seg *segment, data []byte) (found contents, good []byte, err error) {
	for at := 0; at < len(data); {
		part := examine(data, at)
		if e := part.entry; e != nil {
			found.mark, found.tailLost = e.mark, false
			if n := len(e.records); n > 0 {
				found.last = e.records[n-1].GetSequence()
			}
			good = append(good, part.encoded(data, at)...)
		} else if !part.torn {
			found.tailLost = true
			if err := s.putAside(seg, data[at:part.next], at, found.last); err != nil {
				return found, nil, err
			}
		}
		at = part.next
	}
	return found, good, nil
}

// markFor returns the mark that holds if a segment has no readable entry: that of a spool
// in use, or the one with which the segment began, taken from the segment before it.
func (s *Spool) markFor(seg *segment) (Mark, error) {
	if s.active != nil && seg == s.current() {
		return s.mark, nil
	}
	i := slices.Index(s.segments, seg)
	if i < 1 {
		return Mark{}, nil // unknown, or a file of permanent records
	}
	older, err := s.repair(s.segments[i-1])
	return older.mark, err
}

// cutOff truncates a segment on disk to its first size bytes.
func (s *Spool) cutOff(seg *segment, size int64) error {
	f, err := os.OpenFile(seg.path, os.O_RDWR, 0)
	if err != nil {
		return fmt.Errorf("truncate a segment of the spool: %w", err)
	}
	defer f.Close()
	if err := f.Truncate(size); err != nil {
		return fmt.Errorf("truncate a segment of the spool: %w", err)
	}
	if err := s.sync(f); err != nil {
		return fmt.Errorf("truncate a segment of the spool: %w", err)
	}
	seg.size = size
	return nil
}

func (s *Spool) putAside(seg *segment, data []byte, at int, last int64) error {
	name := filepath.Join(s.dir, fmt.Sprintf("damaged-%d-%d", max(last+1, seg.first), at))
	err := s.withRoom(seg, func() error { return os.WriteFile(name, data, 0o600) })
	if noRoom(err) {
		// It is unreadable anyway: failing to keep it must not stop the rest.
		err = os.Remove(name)
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("put a damaged part of the spool aside: %w", err)
	}
	s.damaged += int64(len(data))
	return nil
}

// piece is what a segment contains at an offset.
type piece struct {
	entry *entry // nil if it cannot be read
	torn  bool   // it was being written when the daemon or the machine stopped
	next  int    // offset of what follows
}

// encoded returns the piece's entry with the correct length.
func (p piece) encoded(data []byte, at int) []byte {
	out := bytes.Clone(data[at:p.next])
	binary.LittleEndian.PutUint32(out, uint32(len(out)-headerBytes))
	return out
}

// examine returns the piece at an offset.
func examine(data []byte, at int) piece {
	if e, err := parse(data[at:]); err == nil {
		return piece{entry: &e, next: at + int(e.size)}
	}
	next := nextEntry(data, at)
	if next-at > headerBytes {
		// Perhaps only its length is damaged.
		if e, err := parseBody(data[at:], data[at+headerBytes:next]); err == nil {
			return piece{entry: &e, next: next}
		}
	}
	return piece{torn: next == len(data) && torn(data, at), next: next}
}

// nextEntry returns the offset of the first entry after invalid data; the end of the data
// if there is none.
func nextEntry(data []byte, at int) int {
	if rest := data[at:]; len(rest) >= headerBytes {
		if over := int64(at) + headerBytes + int64(binary.LittleEndian.Uint32(rest)); over < int64(len(data)) {
			if _, err := parse(data[over:]); err == nil {
				return int(over)
			}
		}
	}
	for next := at + 1; next < len(data); next++ {
		if _, err := parse(data[next:]); err == nil {
			return next
		}
	}
	return len(data)
}

// torn reports whether an invalid entry is an interrupted write rather than damage: an
// interrupted write ends where the file ends, or where the disk was never written to.
func torn(data []byte, at int) bool {
	rest := data[at:]
	written := bytes.TrimRight(rest, "\x00")
	if len(written) < headerBytes {
		return true
	}
	length := int64(binary.LittleEndian.Uint32(rest))
	if length == 0 || length > maxEntryBytes {
		return false
	}
	if headerBytes+length > int64(len(written)) {
		return true
	}
	empty := make([]byte, sectorBytes)
	for sector := at + sectorBytes - at%sectorBytes; sector+sectorBytes <= len(data); sector += sectorBytes {
		if bytes.Equal(data[sector:sector+sectorBytes], empty) {
			return true
		}
	}
	return false
}

// readFile reads a file, with zeros for blocks that the disk can no longer read.
func readFile(path string) ([]byte, error) {
	data, err := os.ReadFile(path)
	if !errors.Is(err, unix.EIO) {
		return data, err
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	const block = 4096
	data = make([]byte, info.Size())
	for at := int64(0); at < info.Size(); at += block {
		part := data[at:min(at+block, info.Size())]
		if _, err := f.ReadAt(part, at); errors.Is(err, unix.EIO) {
			clear(part)
		} else if err != nil && !errors.Is(err, io.EOF) {
			return nil, err
		}
	}
	return data, nil
}
