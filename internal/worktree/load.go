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

	"github.com/clew-dev/clew/internal/gitpath"
)

// inlineMax is the size of the largest file that is read into memory whole.
const inlineMax = 4 << 20

// readAll reads the given files and links and sets the ids of their entries. If
// always is true, changed content stays in memory even beyond the scan's budget.
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

// read hashes one file or link. If it vanished during the scan, its entry is marked
// as gone; if it cannot be captured, as skipped.
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
		return failIO(err, "read %s in %s", gitpath.Quote(j.path), j.root.path)
	}
	return nil
}

var errGrown = errors.New("the file has grown over the limit")

// readSymlink hashes the target of a symbolic link.
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

// readRegular hashes a regular file and updates the attributes in its entry.
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

// readContent hashes size bytes of a file and keeps them in memory if they are new and
// the budget permits; whole is false if the file turned out to be shorter.
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

// mayKeep takes n bytes from the memory budget and reports whether it permits them; if
// always is true, it permits up to 1 TiB more.
func (s *scanner) mayKeep(n int64, always bool) bool {
	return s.keep.Add(-n) >= 0 || (always && s.keep.Load() > -1<<40)
}

// pausing is a writer that pauses after each write.
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

// hashBlob copies exactly size bytes of f to w and returns the id of the resulting
// blob. If the file has become shorter, the rest is filled with zeros and whole is
// false, since the length has already been announced. Secrets are masked in the
// copy.
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

// sum returns the object id that h has computed.
func sum(h hash.Hash) oid {
	var id oid
	h.Sum(id[:0])
	return id
}

// zeros is an endless reader of zero bytes.
type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

// readFull reads until buf is full or r ends; the end is not an error.
func readFull(r io.Reader, buf []byte) (int, error) {
	n, err := io.ReadFull(r, buf)
	if err == io.EOF || err == io.ErrUnexpectedEOF {
		err = nil
	}
	return n, err
}

// scanHome lists the session state: the included paths below the home, with their
// parent folders marked as partial. It returns the folders that are still to be
// listed.
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
		if err := s.addPath(root, out, path, whole, cached); err != nil {
			return nil, nil, err
		}
	}
	// Jobs point at entries, so they are created only when no entry moves any more.
	l := &lister{s: s}
	l.descendHome(whole)
	s.dirty = append(s.dirty, l.files...)
	return out, l.folders, nil
}

// addPath adds path and its parent folders to out.
func (s *scanner) addPath(root *beneath, out *dir, path string, j *folderJob, cached *dir) error {
	l := &lister{s: s}
	at, parent := out, ""
	for rest := path; ; {
		name, tail, more := strings.Cut(rest, "/")
		st, err := root.lstat(joinPath(parent, name))
		if vanished(err) || skipFor(err) != "" {
			return nil
		}
		if err != nil {
			return failIO(err, "read %s in %s", gitpath.Quote(path), root.path)
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

// descendHome is descend for partial folders, which lead to included paths.
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
