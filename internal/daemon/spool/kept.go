package spool

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/protobuf/proto"

	daemonv1 "github.com/clew-dev/clew/internal/daemonapi/v1"
)

// The margin bounds what can be sent again. But where the conversation stands,
// and what can be gone back to, hangs on few and small records: those of
// checkpoints, of moves, and of the agent's end. They are kept for good: when a
// segment goes, they go into a file of its name that ends in ".kept". A server
// that lost more than the margin holds is so told of what it lost with these in
// their places, and the gaps are around them.

// maxKeptBytes is the size from which a checkpoint's record is kept without its
// lists of files.
const maxKeptBytes = 4 << 10

// lasting is what is kept of a record for good; nil for nothing.
func lasting(r *daemonv1.Record) *daemonv1.Record {
	switch r.GetBody().(type) {
	case *daemonv1.Record_Move, *daemonv1.Record_AgentEnd:
		return r
	case *daemonv1.Record_Checkpoint:
		if proto.Size(r) > maxKeptBytes {
			c := r.GetCheckpoint()
			c.Changes, c.DirtyFiles, c.Skipped = nil, nil, nil
		}
		return r
	}
	return nil
}

// lastingOf encodes what is kept of a segment for good; it is empty for nothing.
// What cannot be read of the segment is lost.
func lastingOf(seg *segment) ([]byte, error) {
	data, err := readFile(seg.path)
	if err != nil {
		return nil, fmt.Errorf("read the spool: %w", err)
	}
	var records []*daemonv1.Record
	for at := 0; at < len(data); {
		part := examine(data, at)
		at = part.next
		if part.entry == nil {
			continue
		}
		for _, r := range part.entry.records {
			if r = lasting(r); r != nil {
				records = append(records, r)
			}
		}
	}
	if len(records) == 0 {
		return nil, nil
	}
	return encode(Mark{}, records)
}

// keep writes what is kept of a segment for good.
func (s *Spool) keep(seg *segment, content []byte) error {
	if len(content) == 0 {
		return nil
	}
	path := strings.TrimSuffix(seg.path, ".log") + ".kept"
	f, err := s.writeSegment(path, content)
	if err != nil {
		return fmt.Errorf("keep records of the spool: %w", err)
	}
	s.kept = append(s.kept, &segment{path: path, first: seg.first, size: int64(len(content))})
	return errors.Join(f.Close(), syncDir(s.dir))
}

// loadKept finds the files of what is kept for good.
func (s *Spool) loadKept() error {
	names, err := filepath.Glob(filepath.Join(s.dir, "*.kept"))
	if err != nil {
		return fmt.Errorf("read the spool: %w", err)
	}
	slices.Sort(names)
	for _, path := range names {
		first, err := strconv.ParseInt(strings.TrimSuffix(filepath.Base(path), ".kept"), 10, 64)
		if err != nil || first < 1 || first >= s.segments[0].first {
			continue // no file of ours, or its segment is still there
		}
		info, err := os.Stat(path)
		if err != nil {
			return fmt.Errorf("read the spool: %w", err)
		}
		s.kept = append(s.kept, &segment{path: path, first: first, size: info.Size()})
	}
	return nil
}

// forgetKept removes what is kept for good.
func (s *Spool) forgetKept() error {
	for _, seg := range s.kept {
		if err := s.discard(seg, false); err != nil {
			return err
		}
	}
	s.kept = nil
	return nil
}
