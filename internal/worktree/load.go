package worktree

import (
	"crypto/sha1"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"
	"strings"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// inlineMax is the size up to which a file is read into memory at once.
const inlineMax = 4 << 20

// readAll reads the given files and links and sets their entries' ids. Files
// of which always is true keep their content in memory.
func (s *scanner) readAll(jobs []fileJob, always bool) error {
	var next atomic.Int64
	var wg sync.WaitGroup
	var once sync.Once
	var failed error
	work := func() {
		buf := make([]byte, 128<<10)
		for {
			i := int(next.Add(1)) - 1
			if i >= len(jobs) {
				return
			}
			err := s.ctx.Err()
			if err == nil {
				err = s.read(&jobs[i], always, &buf)
				s.pause()
			}
			if err != nil {
				once.Do(func() { failed = err })
				next.Store(int64(len(jobs)))
				return
			}
		}
	}
	if len(jobs) < 8 {
		work()
		return failed
	}
	for range scanWorkers {
		wg.Go(work)
	}
	wg.Wait()
	return failed
}

// read hashes one file or link. What vanished meanwhile is marked gone; what
// cannot be read is marked skipped.
func (s *scanner) read(j *fileJob, always bool, buf *[]byte) error {
	var err error
	if j.e.mode == modeLink {
		err = s.readSymlink(j)
	} else {
		err = s.readRegular(j, always, buf)
	}
	switch {
	case err == nil:
		return nil
	case vanished(err):
		j.e.gone = true
	case errors.Is(err, errGrown):
		j.e.skip = SkipTooLarge
	case errors.Is(err, errSecret):
		j.e.skip = SkipHoldsSecret
	case skipFor(err) != "":
		j.e.skip = skipFor(err)
	default:
		return failIO(err, "read %s in %s", quotePath(j.path), j.root.path)
	}
	return nil
}

var errGrown = errors.New("the file has grown beyond the limit")

func (s *scanner) readSymlink(j *fileJob) error {
	target, err := j.root.readLink(j.path)
	if err != nil {
		return err
	}
	st, err := j.root.lstat(j.path)
	if err != nil {
		return err
	}
	if s.secrets != nil && s.secrets.Holds([]byte(target)) {
		return errSecret
	}
	j.e.oid = hashObject("blob", []byte(target))
	j.e.data = []byte(target)
	j.e.trusted = st.Mode&unix.S_IFMT == unix.S_IFLNK && statOf(&st) == j.e.stat && j.e.stat.ctime < j.bound
	return nil
}

func (s *scanner) readRegular(j *fileJob, always bool, buf *[]byte) error {
	f, st, err := j.root.openRegular(j.path)
	if err != nil {
		return err
	}
	defer f.Close()
	if st.Size > j.limit {
		return errGrown
	}
	j.e.stat, j.e.perm = statOf(&st), st.Mode&0o7777
	j.e.mode = modeFile
	if st.Mode&0o100 != 0 {
		j.e.mode = modeExec
	}
	whole, err := s.readContent(j, f, st.Size, always, buf)
	if err != nil && !errors.Is(err, errSecret) {
		return err
	}
	var after unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &after); err != nil {
		return err
	}
	j.e.trusted = whole && statOf(&after) == j.e.stat && j.e.stat.ctime < j.bound
	return err
}

// readContent hashes size bytes of a file and keeps them if it may.
func (s *scanner) readContent(j *fileJob, f *os.File, size int64, always bool, buf *[]byte) (whole bool, err error) {
	if size > inlineMax {
		j.e.oid, whole, err = s.hashLarge(j, f, size)
		return whole, err
	}
	if int64(len(*buf)) < size {
		*buf = make([]byte, size)
	}
	n, err := readFull(f, (*buf)[:size])
	if err != nil {
		return false, err
	}
	content, err := s.withoutSecrets(j, (*buf)[:n])
	if err != nil {
		return int64(n) == size, err
	}
	j.e.oid = hashObject("blob", content)
	if j.e.oid != j.was && s.mayKeep(int64(n), always) {
		j.e.data = append(make([]byte, 0, n), content...)
	}
	return int64(n) == size, nil
}

func (s *scanner) mayKeep(n int64, always bool) bool {
	return s.keep.Add(-n) >= 0 || (always && s.keep.Load() > -1<<40)
}

// pausing pauses after each part of a large file that is written to it.
type pausing struct {
	io.Writer
	pause func()
}

// Write implements io.Writer.
func (w pausing) Write(p []byte) (int, error) {
	n, err := w.Writer.Write(p)
	w.pause()
	return n, err
}

// hashBlob copies exactly size bytes of f to w and returns the id of the blob
// they make. If the file has become shorter, zeros stand for what is missing
// and whole is false: a reader that promised a length must keep it. Secrets,
// if there are any, are replaced on the way.
func hashBlob(w io.Writer, f *os.File, size int64, secrets Secrets) (id oid, whole bool, err error) {
	h := sha1.New()
	fmt.Fprintf(h, "blob %d\x00", size)
	out := io.MultiWriter(h, w)
	var n int64
	if secrets == nil {
		n, err = io.Copy(out, io.LimitReader(f, size))
	} else {
		n, _, err = secrets.CopySame(out, io.LimitReader(f, size))
	}
	if err != nil {
		return id, false, err
	}
	if n < size {
		if _, err := io.CopyN(out, zeros{}, size-n); err != nil {
			return id, false, err
		}
	}
	return sum(h), n == size, nil
}

func sum(h hash.Hash) oid {
	var id oid
	h.Sum(id[:0])
	return id
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

// readFull reads until buf is full or the file ends.
func readFull(r io.Reader, buf []byte) (int, error) {
	n, err := io.ReadFull(r, buf)
	if err == io.EOF || err == io.ErrUnexpectedEOF {
		err = nil
	}
	return n, err
}

// scanHome lists the session state: the included paths below the home, with
// the folders that lead to them marked partial.
func (s *scanner) scanHome(root *beneath, include []string, limit, bound int64, cached *dir) (*dir, []*folderJob, error) {
	out := &dir{partial: true}
	whole := &folderJob{root: root, limit: limit, bound: bound, cached: cached, out: out, home: true}
	include, err := expandPaths(include, root.names)
	if err != nil {
		return nil, nil, err
	}
	for _, path := range include {
		if path == "." {
			out.partial = false
			return out, []*folderJob{whole}, nil
		}
		if err := s.leadTo(root, out, path, whole, cached); err != nil {
			return nil, nil, err
		}
	}
	// Only now that no entry moves any more can jobs point at them.
	l := &lister{s: s}
	l.descendHome(whole)
	s.dirty = append(s.dirty, l.files...)
	return out, l.folders, nil
}

// leadTo adds path, and the folders on the way to it, to out.
func (s *scanner) leadTo(root *beneath, out *dir, path string, j *folderJob, cached *dir) error {
	l := &lister{s: s}
	at, parent := out, ""
	for rest := path; ; {
		name, tail, more := strings.Cut(rest, "/")
		st, err := root.lstat(joinPath(parent, name))
		if vanished(err) || skipFor(err) != "" {
			return nil
		}
		if err != nil {
			return failIO(err, "read %s in %s", quotePath(path), root.path)
		}
		here := &folderJob{root: root, limit: j.limit, bound: j.bound, path: parent, cached: cached, out: at, home: true}
		e := at.find(name)
		if e == nil {
			e = at.put(l.classify(here, name, &st, cached.find(name)))
			if e.dir != nil {
				e.dir.partial = more
			}
		}
		if e.dir == nil || !e.dir.partial {
			return nil
		}
		if !more {
			e.dir.partial = false
			return nil
		}
		if c := cached.find(name); c != nil {
			cached = c.dir
		} else {
			cached = nil
		}
		at, parent, rest = e.dir, joinPath(parent, name), tail
	}
}

// descendHome is descend for the folders that lead to included paths.
func (l *lister) descendHome(j *folderJob) {
	if !j.out.partial {
		l.folders = append(l.folders, j)
		return
	}
	sub := &lister{s: l.s}
	known := make([]*entry, len(j.out.entries))
	for i := range known {
		known[i] = j.cached.find(j.out.entries[i].name)
	}
	sub.descend(j, known)
	l.files = append(l.files, sub.files...)
	for _, f := range sub.folders {
		l.descendHome(f)
	}
}
