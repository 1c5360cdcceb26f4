// Package spool keeps the records that a task's daemon sends to the server: until the
// server has them, and for a margin longer, in case the server loses them again. It is an
// append-only log on the task's volume.
//
// When Append returns without an error its records are on disk (fsynced) and will be read
// again after any crash, once, under the same sequence. A batch given to one Append is kept
// completely or not at all, together with the mark, which says up to which line of the
// agent's output the log reaches; so a line that is sent again after a crash can be told
// from a new one.
//
// Damage to the disk costs the records in the damaged place and no others: the damaged data
// is put aside in a file, and the sequences of the records around it show how many are
// lost.
//
// On disk a spool is a folder of segments, each named by the sequence of its first record
// and beginning with the mark that held when it was created.
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
	// segmentBytes is the size above which a new segment is begun.
	segmentBytes = 4 << 20
	// maxEntryBytes bounds one batch; anything larger on disk is damage, not data.
	maxEntryBytes = 64 << 20
)

// Errors that callers distinguish.
var (
	// ErrLocked: another process has the spool open.
	ErrLocked = errors.New("another process has the spool open")
	// ErrBroken: the disk failed under the spool; it must be reopened.
	ErrBroken = errors.New("the spool can no longer be written")
	// ErrTaken: another process has opened the spool, on storage whose locks do not prevent
	// that. It is also an ErrBroken.
	ErrTaken = fmt.Errorf("%w: another process has taken it over", ErrBroken)
)

// Mark is how far the log reaches into the output of one run of the agent.
type Mark struct {
	// Session names the run.
	Session string
	// Line is the number of the last line that is in the log; 0 for none.
	Line int64
	// State is what the writer needs to know to continue after that line.
	State string
}

// Spool is an open spool. Its methods are safe for concurrent use.
type Spool struct {
	dir   string
	lock  *os.File
	owner string // the content of the lock file while the spool is this process's

	mu       sync.Mutex
	segments []*segment // oldest first, never empty; the last one is active
	kept     []*segment // files of permanent records, oldest first
	active   *os.File
	last     int64 // sequence of the newest record
	mark     Mark
	broken   error
	appended broadcast.Change
	cursor   cursor // where the next Read most likely begins
	damaged  int64
	margin   Margin
	maxKept  int // maximum length of kept
	observe  func([]*daemonv1.Record)

	sync func(*os.File) error
	free func(dir string) (free, total uint64, err error)
	now  func() time.Time
}

// segment is one file of the log.
type segment struct {
	path  string
	first int64 // sequence of its first record, or of the one to come
	size  int64 // bytes that are valid
	// acknowledged is when the server was first known to have all of it; zero if it does
	// not.
	acknowledged time.Time
}

// cursor is the offset in a segment at which the entry with sequence next begins.
type cursor struct {
	segment *segment
	offset  int64
	next    int64
}

// Open opens the spool in dir, creating it if it does not exist. A partial write that a
// crash left at the end is dropped.
func Open(dir string) (*Spool, error) {
	return open(dir, (*os.File).Sync)
}

func open(dir string, sync func(*os.File) error) (*Spool, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("create the spool: %w", err)
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
	s := &Spool{dir: dir, lock: lock, sync: sync, free: freeSpace, now: time.Now, maxKept: maxKeptFiles}
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

// own writes a new owner to the lock file. Where locks work no other process gets here;
// where they do not (some network file systems accept every lock) the file shows the
// previous process that it has been replaced.
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
		// A full volume must still open. Whoever opens the spool next writes a new owner.
		found, err := os.ReadFile(s.lock.Name())
		s.owner = string(found)
		return err
	}
	if err != nil {
		return fmt.Errorf("write the owner of the spool: %w", err)
	}
	return nil
}

// CheckOwner returns nil if the spool, and the folder it is in, still belongs to this
// process; ErrTaken if not. It must be called before every write to the volume.
func (s *Spool) CheckOwner() error {
	// The file is reopened, so that a network file system does not answer from its cache.
	owner, err := os.ReadFile(s.lock.Name())
	if err != nil {
		return fmt.Errorf("read the owner of the spool: %w", err)
	}
	if string(owner) != s.owner {
		return ErrTaken
	}
	return nil
}

// Close closes the spool and releases its lock.
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

// Last returns the sequence of the newest record, 0 if there never was one.
func (s *Spool) Last() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.last
}

// First returns the sequence from which on all records are still kept; it is Last+1 if none
// are. Of earlier ones, some are kept permanently.
func (s *Spool) First() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.segments[0].first
}

// Mark returns the newest mark.
func (s *Spool) Mark() Mark {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mark
}

// DamagedBytes returns the number of bytes found unreadable since Open, beyond what an
// interrupted write explains, and put aside in files.
func (s *Spool) DamagedBytes() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.damaged
}

// EndUncertain reports that the newest records may be lost: nothing may be appended until
// SkipTo is told what the server has.
func (s *Spool) EndUncertain() bool {
	_, err := os.Stat(s.uncertainPath())
	return err == nil
}

func (s *Spool) uncertainPath() string { return filepath.Join(s.dir, "end-lost") }

// Append writes records as one batch, giving each its sequence, and returns when they are
// on disk. mark, unless nil, becomes the new mark with them.
//
// After an error nothing of the batch is kept and, unless the error is ErrBroken, the same
// batch may be tried again (the volume may have been full).
func (s *Spool) Append(mark *Mark, records ...*daemonv1.Record) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.broken != nil {
		return s.broken
	}
	if len(records) == 0 && mark == nil {
		return nil
	}
	if err := s.CheckOwner(); err != nil {
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
	if s.observe != nil && len(records) > 0 {
		s.observe(records)
	}
	s.appended.Announce()
	return nil
}

// Observe has f called with the records of each Append from now on, once they are on disk and before
// Append returns. f must be quick, and must not use the spool.
func (s *Spool) Observe(f func(records []*daemonv1.Record)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.observe = f
}

func (s *Spool) current() *segment { return s.segments[len(s.segments)-1] }

// write puts an entry at the end of the active segment, on disk.
func (s *Spool) write(entry []byte) error {
	seg := s.current()
	if _, err := s.active.WriteAt(entry, seg.size); err != nil {
		if undo := s.active.Truncate(seg.size); undo != nil {
			s.broken = fmt.Errorf("%w: %w", ErrBroken, undo)
		}
		return fmt.Errorf("write to the spool: %w", err)
	}
	// After a failed fsync the kernel may have dropped the pages: what is on disk is
	// unknown until the file is read again.
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

// SkipTo makes the next record get sequence last+1, so that no sequence that the server has
// seen is given twice. Existing records stay. It only clears EndUncertain if the spool
// already reaches that far.
func (s *Spool) SkipTo(last int64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.broken != nil {
		return s.broken
	}
	if err := s.CheckOwner(); err != nil {
		return err
	}
	if last > s.last {
		if err := s.rotate(last); err != nil {
			return err
		}
		s.last = last
	}
	return s.markCertain()
}

func (s *Spool) markCertain() error {
	if err := os.Remove(s.uncertainPath()); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("record that the end of the spool is known: %w", err)
	}
	return nil
}

// Reset empties the spool; the next record gets sequence last+1. It is for a volume that
// lost or never had its spool, or whose spool is another's. If the spool goes beyond
// stored, the last sequence that the server has, its records are put aside. After a crash
// during Reset the spool contains less, or nothing, and Reset must be called again.
func (s *Spool) Reset(last, stored int64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.broken != nil {
		return s.broken
	}
	if err := s.CheckOwner(); err != nil {
		return err
	}
	if err := s.forgetKept(); err != nil {
		return err
	}
	if s.last == last && s.segments[0].first == last+1 {
		return s.markCertain()
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
	return s.markCertain()
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
