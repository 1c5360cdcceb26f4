package spool

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/protobuf/proto"

	daemonv1 "github.com/clew-dev/clew/internal/daemonapi/v1"
	"github.com/clew-dev/clew/internal/durable"
)

// The margin bounds what can be sent again. But the conversation's position, which checkpoints
// can be restored, and which calls wait for a person depend on few and small records: those of
// checkpoints, of moves, of the agent's end, that everything is stored, and of requests and their
// ends. These are kept permanently: when a segment is dropped, they are written to a file of its name that ends in ".kept". A server that lost more than
// the margin contains is sent these in their places, with gaps around them.

// maxKeptFiles is the maximum number of such files: more than the number of checkpoints in
// a task's history by default. An agent that makes checkpoints without end must not make
// the spool slower without end.
const maxKeptFiles = 4096

// maxKeptBytes is the size above which a checkpoint's record is kept without its lists of
// files.
const maxKeptBytes = 4 << 10

// lasting returns the part of a record that is kept permanently; nil for none.
func lasting(r *daemonv1.Record) *daemonv1.Record {
	switch r.GetBody().(type) {
	case *daemonv1.Record_Move, *daemonv1.Record_AgentEnd, *daemonv1.Record_Stored,
		*daemonv1.Record_ToolRequest, *daemonv1.Record_ToolRequestEnd:
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

// lastingOf encodes the records of a segment that are kept permanently; it is empty if
// there are none. Unreadable parts of the segment are lost.
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

// keep writes the permanent records of a segment to a file.
func (s *Spool) keep(seg *segment, content []byte) error {
	if len(content) == 0 {
		return nil
	}
	f, err := s.writeSegment(keptPath(seg), content)
	if err == nil {
		err = errors.Join(f.Close(), durable.SyncFolder(s.dir))
	}
	if err != nil {
		return fmt.Errorf("keep records of the spool: %w", err)
	}
	s.kept = append(s.kept, &segment{path: keptPath(seg), first: seg.first, size: int64(len(content))})
	return nil
}

func keptPath(seg *segment) string { return strings.TrimSuffix(seg.path, ".log") + ".kept" }

// keepInPlace is keep for a volume without room for another file, because the agent takes
// all space that becomes free: the segment itself becomes the file.
func (s *Spool) keepInPlace(seg *segment, content []byte) error {
	kept := &segment{path: keptPath(seg), first: seg.first, size: seg.size}
	if err := os.Rename(seg.path, kept.path); err != nil {
		return fmt.Errorf("keep records of the spool: %w", err)
	}
	s.segments, s.kept = s.segments[1:], append(s.kept, kept)
	if err := durable.SyncFolder(s.dir); err != nil {
		return err
	}
	return s.shrink(kept, content)
}

// fillerBytes is the size of what precedes the state in an entry that has no session and no
// records.
const fillerBytes = headerBytes + 8 + 1 + 4

// shrink reduces a file to the records that are kept permanently. They are written over the
// file's beginning, in blocks that it already has; the rest of the file becomes the state
// of an entry without records, until it is truncated. So a kill leaves the old content or
// the new one, both valid, and shrink must be called again. A power cut during that one
// write may tear it, which costs the permanent records of this segment.
func (s *Spool) shrink(kept *segment, content []byte) error {
	f, err := os.OpenFile(kept.path, os.O_RDWR, 0)
	if err != nil {
		return fmt.Errorf("keep records of the spool: %w", err)
	}
	defer f.Close()
	old, err := io.ReadAll(f)
	if err != nil {
		return fmt.Errorf("keep records of the spool: %w", err)
	}
	rest := len(content) + fillerBytes
	if rest >= len(old) || len(old) > maxEntryBytes {
		return nil // already as small, or too large for one entry
	}
	filler, err := encode(Mark{State: string(old[rest:])}, nil)
	if err != nil {
		return err
	}
	if _, err := f.WriteAt(slices.Concat(content, filler[:fillerBytes]), 0); err != nil {
		_, undone := f.WriteAt(old[:rest], 0) // copy-on-write storage needs room for this, too
		return fmt.Errorf("keep records of the spool: %w", errors.Join(err, undone))
	}
	if err := s.sync(f); err != nil {
		return fmt.Errorf("keep records of the spool: %w", err)
	}
	return s.cutOff(kept, int64(len(content)))
}

// loadKept finds the files of permanent records.
func (s *Spool) loadKept() error {
	names, err := filepath.Glob(filepath.Join(s.dir, "*.kept"))
	if err != nil {
		return fmt.Errorf("read the spool: %w", err)
	}
	slices.Sort(names)
	for _, path := range names {
		first, err := strconv.ParseInt(strings.TrimSuffix(filepath.Base(path), ".kept"), 10, 64)
		if err != nil || first < 1 || first >= s.segments[0].first {
			continue // not one of our files, or its segment still exists
		}
		info, err := os.Stat(path)
		if err != nil {
			return fmt.Errorf("read the spool: %w", err)
		}
		seg := &segment{path: path, first: first, size: info.Size()}
		s.kept = append(s.kept, seg)
		if seg.size < segmentBytes {
			continue
		}
		// A whole segment: shrink was interrupted by a kill.
		content, err := lastingOf(seg)
		if err == nil {
			err = s.shrink(seg, content)
		}
		if err != nil && !noRoom(err) {
			return err
		}
	}
	return nil
}

// forgetOldest removes the oldest files of permanent records beyond the maximum.
func (s *Spool) forgetOldest() error {
	for len(s.kept) > s.maxKept {
		if err := s.discard(s.kept[0], false); err != nil {
			return err
		}
		s.kept = s.kept[1:]
	}
	return nil
}

// forgetKept removes all permanent records.
func (s *Spool) forgetKept() error {
	for _, seg := range s.kept {
		if err := s.discard(seg, false); err != nil {
			return err
		}
	}
	s.kept = nil
	return nil
}
