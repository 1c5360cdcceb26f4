// Package spool keeps what a task's daemon has to tell the server until the
// server has it: an append-only log of records on the task's volume.
//
// A record that Append returned for is on disk (fsynced) and will be read again
// after any crash, once, under the same sequence. A batch given to one Append is
// kept whole or not at all, together with the mark that says up to which line
// of the agent's output the log reaches; so a line that is sent again after a
// crash can be told from a new one.
//
// On disk a spool is a folder of segments, each named by the sequence of its
// first record and beginning with the mark that held when it was made.
package spool

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	daemonv1 "github.com/clew-dev/clew/internal/daemonapi/v1"
)

const (
	// segmentBytes is the size from which a new segment is begun.
	segmentBytes = 4 << 20
	// maxEntryBytes bounds one batch; more on disk is damage, not data.
	maxEntryBytes = 64 << 20
)

// Errors that callers tell apart.
var (
	// ErrLocked: another process has the spool open.
	ErrLocked = errors.New("another process has the spool open")
	// ErrCorrupted: a record in the middle of the log is damaged.
	ErrCorrupted = errors.New("the spool is damaged")
	// ErrBroken: the disk failed under the spool; it must be opened anew.
	ErrBroken = errors.New("the spool cannot be written any more")
	// ErrTaken: another process has opened the spool, on storage whose locks do
	// not keep it out. It is an ErrBroken, too.
	ErrTaken = fmt.Errorf("%w: another process has taken it over", ErrBroken)
)

// Mark says how far the log reaches into the output of one run of the agent.
type Mark struct {
	// Session names the run.
	Session string
	// Line is the number of the last line that is in the log; 0 for none.
	Line int64
	// State is whatever the writer must know to go on after that line.
	State string
}

// Spool is an open spool. Its methods are safe for concurrent use.
type Spool struct {
	dir   string
	lock  *os.File
	owner string // what the lock's file says while the spool is this process's

	mu       sync.Mutex
	segments []*segment // oldest first, never empty; the last one is written to
	active   *os.File
	last     int64 // sequence of the newest record
	mark     Mark
	broken   error
	changed  chan struct{} // closed and replaced by each Append
	cursor   cursor        // where the next Read most likely begins
	damaged  int64
}

// segment is one file of the log.
type segment struct {
	path  string
	first int64 // sequence of its first record, or of the one to come
	size  int64 // bytes that are valid
}

// cursor is the offset in a segment at which the entry with sequence next begins.
type cursor struct {
	segment *segment
	offset  int64
	next    int64
}

// Open opens the spool in dir, making it where it is absent. What a crash left
// half written at the end is cut off.
func Open(dir string) (*Spool, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make the spool: %w", err)
	}
	lock, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open the spool: %w", err)
	}
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		lock.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, ErrLocked
		}
		return nil, fmt.Errorf("lock the spool: %w", err)
	}
	s := &Spool{dir: dir, lock: lock, changed: make(chan struct{})}
	err = s.own()
	if err == nil {
		err = s.load()
	}
	if err != nil {
		lock.Close()
		return nil, err
	}
	return s, nil
}

// own writes into the lock's file whose the spool is. Where locks work nobody
// else gets here; where they do not (some network file systems take a lock and
// tell nobody) the file tells the process before that it has been replaced.
func (s *Spool) own() error {
	name := make([]byte, 16)
	if _, err := rand.Read(name); err != nil {
		return fmt.Errorf("name the owner of the spool: %w", err)
	}
	s.owner = hex.EncodeToString(name)
	_, err := s.lock.WriteAt([]byte(s.owner), 0)
	if err == nil {
		err = s.lock.Sync()
	}
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		// A full volume must still be opened. Whoever comes next writes a name.
		found, err := os.ReadFile(s.lock.Name())
		s.owner = string(found)
		return err
	}
	if err != nil {
		return fmt.Errorf("write the owner of the spool: %w", err)
	}
	return nil
}

// Owned returns nil if the spool, and the folder it is in, is still this
// process's; ErrTaken if not. It is to be asked before every write to the
// volume.
func (s *Spool) Owned() error {
	// Opened anew, so that a network file system does not answer from its cache.
	owner, err := os.ReadFile(s.lock.Name())
	if err != nil {
		return fmt.Errorf("look whose the spool is: %w", err)
	}
	if string(owner) != s.owner {
		return ErrTaken
	}
	return nil
}

// Close lets go of the spool.
func (s *Spool) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.lock == nil {
		return nil
	}
	err := errors.Join(s.active.Close(), s.lock.Close())
	s.lock, s.broken = nil, ErrBroken
	return err
}

// Last is the sequence of the newest record, 0 if there never was one.
func (s *Spool) Last() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.last
}

// First is the sequence of the oldest record still kept; it is Last+1 when none is.
func (s *Spool) First() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.segments[0].first
}

// Mark is the newest mark.
func (s *Spool) Mark() Mark {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mark
}

// Damaged is the number of bytes that Open found unreadable at the end of the
// log beyond what one interrupted write explains, and put aside in a file.
func (s *Spool) Damaged() int64 { return s.damaged }

// Append writes records as one batch and returns when they are on disk. It
// gives each its sequence. mark, unless nil, becomes the new mark with them.
//
// After an error nothing of the batch is kept and, unless the error is
// ErrBroken, the same batch may be tried again (a full volume, say).
func (s *Spool) Append(mark *Mark, records ...*daemonv1.Record) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.broken != nil {
		return s.broken
	}
	if len(records) == 0 && mark == nil {
		return nil
	}
	if err := s.Owned(); err != nil {
		return err
	}
	if s.current().size >= segmentBytes {
		if err := s.rotate(s.last); err != nil {
			return err
		}
	}
	newMark := s.mark
	if mark != nil {
		newMark = *mark
	}
	for i, r := range records {
		r.Sequence = s.last + 1 + int64(i)
	}
	entry, err := encode(newMark, records)
	if err != nil {
		return err
	}
	if err := s.write(entry); err != nil {
		return err
	}
	s.last += int64(len(records))
	s.mark = newMark
	close(s.changed)
	s.changed = make(chan struct{})
	return nil
}

func (s *Spool) current() *segment { return s.segments[len(s.segments)-1] }

// write puts an entry at the end of the active segment, on disk.
func (s *Spool) write(entry []byte) error {
	seg := s.current()
	if _, err := s.active.WriteAt(entry, seg.size); err != nil {
		if cut := s.active.Truncate(seg.size); cut != nil {
			s.broken = fmt.Errorf("%w: %w", ErrBroken, cut)
		}
		return fmt.Errorf("write to the spool: %w", err)
	}
	// After a failed fsync the kernel may have dropped the pages: what is on
	// disk is unknown until the file is read anew.
	if err := s.active.Sync(); err != nil {
		s.broken = fmt.Errorf("%w: %w", ErrBroken, err)
		return s.broken
	}
	seg.size += int64(len(entry))
	return nil
}

// Read returns records after the given sequence, oldest first: at least one if
// there is any, and no more than maxRecords or, beyond the first, maxBytes.
func (s *Spool) Read(after int64, maxRecords, maxBytes int) ([]*daemonv1.Record, error) {
	at, end, err := s.seek(after + 1)
	if err != nil || at.segment == nil {
		return nil, err
	}
	f, err := os.Open(at.segment.path)
	if err != nil {
		return nil, fmt.Errorf("read the spool: %w", err)
	}
	defer f.Close()
	var out []*daemonv1.Record
	size := 0
	offset := at.offset
	for offset < end {
		entry, err := readEntry(f, offset, end)
		if err != nil {
			return nil, fmt.Errorf("%w: %s at byte %d: %w", ErrCorrupted, at.segment.path, offset, err)
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

func (s *Spool) remember(seg *segment, offset, next int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cursor = cursor{segment: seg, offset: offset, next: next}
}

// seek finds the segment that holds sequence, an offset at or before it, and
// the end of what may be read there. The segment is nil if there is no such
// record yet.
func (s *Spool) seek(sequence int64) (at cursor, end int64, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.lock == nil {
		return cursor{}, 0, ErrBroken
	}
	if sequence > s.last {
		return cursor{}, 0, nil
	}
	if sequence < s.segments[0].first {
		return cursor{}, 0, fmt.Errorf("record %d is not in the spool any more: it begins with %d", sequence, s.segments[0].first)
	}
	for i := len(s.segments) - 1; i >= 0; i-- {
		seg := s.segments[i]
		if seg.first > sequence {
			continue
		}
		at = cursor{segment: seg}
		if c := s.cursor; c.segment == seg && c.next <= sequence {
			at.offset = c.offset
		}
		return at, seg.size, nil
	}
	return cursor{}, 0, ErrCorrupted
}

// Wait returns when there is a record after the given sequence, or ctx ends.
func (s *Spool) Wait(ctx context.Context, after int64) error {
	for {
		s.mu.Lock()
		last, changed := s.last, s.changed
		s.mu.Unlock()
		if last > after {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// Trim says that the server has everything through the given sequence, so that
// it need not be kept any longer.
func (s *Spool) Trim(through int64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.broken != nil {
		return s.broken
	}
	if err := s.Owned(); err != nil {
		return err
	}
	for len(s.segments) > 1 && s.segments[1].first <= through+1 {
		if err := os.Remove(s.segments[0].path); err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("trim the spool: %w", err)
		}
		s.segments = s.segments[1:]
	}
	return nil
}

// Reset empties the spool; the next record gets sequence last+1. It is for a
// volume that lost or never had its spool, and never goes back. After a crash
// in it the spool holds less, or nothing, and it is to be called again.
func (s *Spool) Reset(last int64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.broken != nil {
		return s.broken
	}
	if err := s.Owned(); err != nil {
		return err
	}
	if last < s.last {
		return fmt.Errorf("the spool reaches to record %d and cannot go back to %d", s.last, last)
	}
	if s.last == last && s.segments[0].first == last+1 {
		return nil
	}
	for _, seg := range s.segments {
		if err := os.Remove(seg.path); err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("empty the spool: %w", err)
		}
	}
	s.active.Close()
	s.active, s.segments, s.mark, s.last = nil, nil, Mark{}, last
	if err := s.rotate(last); err != nil {
		s.broken = fmt.Errorf("%w: %w", ErrBroken, err)
		return s.broken
	}
	return nil
}
