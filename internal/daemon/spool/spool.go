// Package spool keeps what a task's daemon has to tell the server until the
// server has it, and for a margin longer, in case the server loses it again: an
// append-only log of records on the task's volume.
//
// A record that Append returned for is on disk (fsynced) and will be read again
// after any crash, once, under the same sequence. A batch given to one Append is
// kept whole or not at all, together with the mark that says up to which line
// of the agent's output the log reaches; so a line that is sent again after a
// crash can be told from a new one.
//
// What the disk has damaged costs the records that it held and no others: it is
// put aside in a file, and the sequences of the records around it tell how many
// are lost.
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
	mathrand "math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/clew-dev/clew/internal/broadcast"
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
	kept     []*segment // what is kept of older ones for good, oldest first
	active   *os.File
	last     int64 // sequence of the newest record
	mark     Mark
	broken   error
	appended broadcast.Change
	cursor   cursor // where the next Read most likely begins
	damaged  int64
	margin   Margin
	mostKept int // of how many older segments something is kept

	sync func(*os.File) error
	free func(dir string) (free, total uint64, err error)
	now  func() time.Time
}

// segment is one file of the log.
type segment struct {
	path  string
	first int64 // sequence of its first record, or of the one to come
	size  int64 // bytes that are valid
	// acknowledged is when it was first known that the server has all of it.
	acknowledged time.Time
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
	return open(dir, (*os.File).Sync)
}

func open(dir string, sync func(*os.File) error) (*Spool, error) {
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
	s := &Spool{dir: dir, lock: lock, sync: sync, free: freeSpace, now: time.Now, mostKept: maxKeptFiles}
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
	if noRoom(err) {
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

// First is the sequence from which on all records are still kept; it is Last+1
// when none are. Of those before, some are kept for good.
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

// Damaged is the number of bytes that were found unreadable since Open, beyond
// what an interrupted write explains, and put aside in files.
func (s *Spool) Damaged() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.damaged
}

// Unsure says that the newest records may be lost: nothing must be appended
// until SkipTo was told what the server has.
func (s *Spool) Unsure() bool {
	_, err := os.Stat(s.unsurePath())
	return err == nil
}

func (s *Spool) unsurePath() string { return filepath.Join(s.dir, "end-lost") }

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
		if err := s.withRoom(nil, func() error { return s.rotate(s.last) }); err != nil {
			return err
		}
	}
	newMark := s.mark
	if mark != nil {
		newMark = *mark
	}
	for i, r := range records {
		r.Sequence = s.last + 1 + int64(i)
		if r.GetId() == 0 {
			r.Id = mathrand.Uint64() | 1<<63
		}
	}
	entry, err := encode(newMark, records)
	if err != nil {
		return err
	}
	if err := s.withRoom(nil, func() error { return s.write(entry) }); err != nil {
		return err
	}
	s.last += int64(len(records))
	s.mark = newMark
	s.appended.Announce()
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
	if err := s.sync(s.active); err != nil {
		s.broken = fmt.Errorf("%w: %w", ErrBroken, err)
		return s.broken
	}
	seg.size += int64(len(entry))
	return nil
}

// Wait returns when there is a record after the given sequence, or ctx ends.
func (s *Spool) Wait(ctx context.Context, after int64) error {
	for {
		s.mu.Lock()
		last, appended := s.last, s.appended.Next()
		s.mu.Unlock()
		if last > after {
			return nil
		}
		select {
		case <-appended:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// SkipTo goes on with sequence last+1, so that no sequence is given twice that
// the server has seen. What is kept stays. It does nothing if the spool reaches
// that far itself.
func (s *Spool) SkipTo(last int64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.broken != nil {
		return s.broken
	}
	if err := s.Owned(); err != nil {
		return err
	}
	if last > s.last {
		if err := s.rotate(last); err != nil {
			return err
		}
		s.last = last
	}
	return s.sure()
}

func (s *Spool) sure() error {
	if err := os.Remove(s.unsurePath()); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("note that the end of the spool is known: %w", err)
	}
	return nil
}

// Reset empties the spool; the next record gets sequence last+1. It is for a
// volume that lost or never had its spool, or whose spool is another's. If the
// spool goes beyond what the server has stored, its records are put aside. After a
// crash in it the spool holds less, or nothing, and it is to be called again.
func (s *Spool) Reset(last, stored int64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.broken != nil {
		return s.broken
	}
	if err := s.Owned(); err != nil {
		return err
	}
	if err := s.forgetKept(); err != nil {
		return err
	}
	if s.last == last && s.segments[0].first == last+1 {
		return s.sure()
	}
	for _, seg := range s.segments {
		if err := s.discard(seg, s.last > stored); err != nil {
			return err
		}
	}
	s.active.Close()
	s.active, s.segments, s.mark, s.last, s.cursor = nil, nil, Mark{}, last, cursor{}
	if err := s.rotate(last); err != nil {
		s.broken = fmt.Errorf("%w: %w", ErrBroken, err)
		return s.broken
	}
	return s.sure()
}

// discard removes a segment, or puts it aside.
func (s *Spool) discard(seg *segment, keep bool) error {
	var err error
	if keep {
		err = os.Rename(seg.path, filepath.Join(s.dir, "aside-"+strings.TrimSuffix(filepath.Base(seg.path), ".log")))
	} else {
		err = os.Remove(seg.path)
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("empty the spool: %w", err)
	}
	return nil
}
