package spool

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	daemonv1 "github.com/clew-dev/clew/internal/daemonapi/v1"
)

// Read returns records after the given sequence, oldest first: at least one if there is
// any, and no more than maxRecords or, beyond the first, maxBytes. Sequences of records
// that are lost or no longer kept are missing in the result.
func (s *Spool) Read(after int64, maxRecords, maxBytes int) ([]*daemonv1.Record, error) {
	var repaired *segment
	for {
		at, end, err := s.seek(after + 1)
		if err != nil || at.segment == nil {
			return nil, err
		}
		records, err := s.readSegment(at, end, after, maxRecords, maxBytes)
		if errors.Is(err, errNoEntry) && repaired != at.segment {
			repaired = at.segment
			if err := s.repairNow(at.segment); err != nil {
				return nil, err
			}
			continue
		}
		if err != nil || len(records) > 0 {
			return records, err
		}
		// No record is left in this segment: continue with the next one.
		if after = s.endOf(at.segment); after == 0 {
			return nil, nil
		}
	}
}

// repairNow repairs a segment of a spool in use.
func (s *Spool) repairNow(seg *segment) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.broken != nil {
		return s.broken
	}
	if err := s.CheckOwner(); err != nil {
		return err
	}
	s.cursor = cursor{}
	if !slices.Contains(s.kept, seg) && !slices.Contains(s.segments, seg) {
		return nil // it was dropped concurrently
	}
	found, err := s.repair(seg)
	if err != nil || seg != s.current() || found.mark == s.mark {
		return err
	}
	// The end that is lost contained the newest mark, which is now known only here.
	mark, err := encode(s.mark, nil)
	if err != nil {
		return err
	}
	if err = s.withRoom(nil, func() error { return s.write(mark) }); noRoom(err) {
		return nil // the next record contains it
	}
	return err
}

// Record returns the record with the given sequence; nil if it is not kept.
func (s *Spool) Record(sequence int64) (*daemonv1.Record, error) {
	if sequence < 1 {
		return nil, nil
	}
	records, err := s.Read(sequence-1, 1, 0)
	if err != nil || len(records) == 0 || records[0].GetSequence() != sequence {
		return nil, err
	}
	return records[0], nil
}

// readSegment reads from a position in one segment.
func (s *Spool) readSegment(at cursor, end, after int64, maxRecords, maxBytes int) ([]*daemonv1.Record, error) {
	f, err := os.Open(at.segment.path)
	if errors.Is(err, os.ErrNotExist) {
		return nil, errNoEntry
	}
	if err != nil {
		return nil, fmt.Errorf("read the spool: %w", err)
	}
	defer f.Close()
	var out []*daemonv1.Record
	size := 0
	offset := at.offset
	for offset < end {
		entry, err := readEntry(f, offset, end)
		if errors.Is(err, unix.EIO) || errors.Is(err, io.EOF) {
			err = errNoEntry
		}
		if err != nil {
			return nil, fmt.Errorf("read the spool, %s at byte %d: %w", at.segment.path, offset, err)
		}
		for _, r := range entry.records {
			if r.GetSequence() <= after {
				continue
			}
			size += proto.Size(r)
			if len(out) > 0 && (len(out) >= maxRecords || size > maxBytes) {
				s.remember(at.segment, offset, entry.records[0].GetSequence())
				return out, nil
			}
			out = append(out, r)
		}
		offset += entry.size
	}
	if len(out) > 0 {
		s.remember(at.segment, offset, out[len(out)-1].GetSequence()+1)
	}
	return out, nil
}

// endOf returns the sequence before the first one of the next segment; 0 if there is none.
func (s *Spool) endOf(seg *segment) int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := slices.Concat(s.kept, s.segments)
	if i := slices.Index(all, seg); i >= 0 && i+1 < len(all) {
		return all[i+1].first - 1
	}
	return 0
}

func (s *Spool) remember(seg *segment, offset, next int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cursor = cursor{segment: seg, offset: offset, next: next}
}

// seek finds the segment that contains sequence, an offset at or before it, and the end of
// what may be read there. The segment is nil if there is no such record yet.
func (s *Spool) seek(sequence int64) (at cursor, end int64, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.lock == nil {
		return cursor{}, 0, ErrBroken
	}
	if sequence > s.last {
		return cursor{}, 0, nil
	}
	all := slices.Concat(s.kept, s.segments)
	sequence = max(sequence, all[0].first)
	for _, seg := range slices.Backward(all) {
		if seg.first > sequence {
			continue
		}
		at = cursor{segment: seg}
		if c := s.cursor; c.segment == seg && c.next <= sequence {
			at.offset = c.offset
		}
		return at, seg.size, nil
	}
	return cursor{}, 0, nil
}
