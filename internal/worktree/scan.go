package worktree

import (
	"context"
	"encoding/binary"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/clew-dev/clew/internal/gitpath"
)

// SkipReason says why a checkpoint does not contain a path.
type SkipReason string

// The reasons why a path is skipped.
const (
	// SkipTooLarge: the file exceeds Config.MaxFileBytes or MaxGitFileBytes.
	SkipTooLarge SkipReason = "TooLarge"
	// SkipSocket: it is a socket.
	SkipSocket SkipReason = "Socket"
	// SkipFifo: it is a named pipe. A restore makes it again.
	SkipFifo SkipReason = "Fifo"
	// SkipDevice: it is a device, or another special file.
	SkipDevice SkipReason = "Device"
	// SkipUnreadable: permissions deny reading it.
	SkipUnreadable SkipReason = "Unreadable"
	// SkipOtherFilesystem: it is on another file system than its root.
	SkipOtherFilesystem SkipReason = "OtherFilesystem"
	// SkipTooDeep: its path is longer than the kernel accepts.
	SkipTooDeep SkipReason = "TooDeep"
	// SkipHoldsSecret: its name, or content that cannot be masked, contains a secret.
	SkipHoldsSecret SkipReason = "HoldsSecret"

	// skipExcluded marks session state that the configuration excludes. It is not
	// reported.
	skipExcluded SkipReason = "Excluded"
	// skipTransient marks files inside a .git that are not state, such as locks. It
	// is not reported, and a restore removes these files.
	skipTransient SkipReason = "Transient"
)

// scanWorkers is the number of goroutines that list folders and read files. More
// than two gain little, since the kernel's directory cache is the bottleneck.
const scanWorkers = 2

// folderJob is a folder to be listed.
type folderJob struct {
	root   *beneath
	limit  int64 // size of the largest file that is captured
	bound  int64 // files changed at or after this time (ns) are not trusted by the next scan; see trustBefore
	path   string
	cached *dir
	same   bool // the folder has the same names as cached
	out    *dir
	self   *entry // the folder's own entry, nil for a root
	git    bool   // inside something called .git
	rel    string // path inside that .git
	home   bool
}

// fileJob is a file or link to be read.
type fileJob struct {
	root  *beneath
	limit int64
	bound int64
	path  string
	e     *entry
	was   oid  // id in the cache
	state bool // part of the state tree, not of the code
}

// scanner lists folders and reads the files that have changed since the cache was
// filled. It is used for one scan.
type scanner struct {
	ctx      context.Context
	maxFiles int64
	gitLimit int64           // size of the largest file that is captured inside a .git
	exclude  map[string]bool // paths below the home that are not captured
	secrets  Secrets         // nil if there are none
	pause    func()          // called between files, and between parts of large ones
	keep     atomic.Int64    // remaining memory budget for changed content, in bytes

	mu      sync.Mutex
	cond    *sync.Cond
	queue   []*folderJob
	busy    int
	err     error
	dirty   []fileJob
	gitdirs []*folderJob // folders called .git, listed after all others
	stores  []*folderJob // object stores, listed after the refs have been read
	count   atomic.Int64
	amount  readAmount // what has to be read
	limit   readAmount // the most that may be read; zero means no limit
}

func newScanner(ctx context.Context, cfg *Config, keep int64) *scanner {
	s := &scanner{ctx: ctx, maxFiles: int64(cfg.MaxFiles), gitLimit: cfg.MaxGitFileBytes, exclude: map[string]bool{}, secrets: cfg.Secrets}
	s.cond = sync.NewCond(&s.mu)
	s.keep.Store(keep)
	for _, p := range cfg.HomeExclude {
		s.exclude[p] = true
	}
	return s
}

// listAll lists the given folders recursively.
func (s *scanner) listAll(jobs []*folderJob) error {
	s.queue = append(s.queue, jobs...)
	var wg sync.WaitGroup
	for range scanWorkers {
		wg.Go(s.listWorker)
	}
	wg.Wait()
	return s.err
}

// listWorker lists folders from the queue until all are done or one fails.
func (s *scanner) listWorker() {
	l := &lister{s: s, buf: make([]byte, 64<<10)}
	for {
		s.mu.Lock()
		for len(s.queue) == 0 && s.busy > 0 && s.err == nil {
			s.cond.Wait()
		}
		if len(s.queue) == 0 || s.err != nil {
			s.mu.Unlock()
			s.cond.Broadcast()
			return
		}
		j := s.queue[len(s.queue)-1]
		s.queue = s.queue[:len(s.queue)-1]
		s.busy++
		s.mu.Unlock()

		err := l.list(j)
		if err == nil {
			err = s.ctx.Err()
		}

		s.mu.Lock()
		s.busy--
		if err != nil && s.err == nil {
			s.err = err
		}
		s.queue = append(s.queue, l.folders...)
		s.dirty = append(s.dirty, l.files...)
		s.gitdirs = append(s.gitdirs, l.gitdirs...)
		s.stores = append(s.stores, l.stores...)
		s.mu.Unlock()
		s.cond.Broadcast()
		l.folders, l.files, l.gitdirs, l.stores = l.folders[:0], l.files[:0], l.gitdirs[:0], l.stores[:0]
	}
}

// lister is the state of one worker.
type lister struct {
	s       *scanner
	buf     []byte
	names   []string
	known   []*entry // the cached entries of the entries made, nil if there is none
	folders []*folderJob
	gitdirs []*folderJob
	stores  []*folderJob
	files   []fileJob
}

// list reads one folder and fills j.out.
func (l *lister) list(j *folderJob) error {
	fd, err := j.root.openFolder(j.path)
	if err == nil {
		defer unix.Close(fd)
		err = l.listNames(fd, j)
	}
	if err != nil {
		return l.cannotList(j, err)
	}
	if n := l.s.count.Add(int64(len(l.names))); n > l.s.maxFiles {
		return fail(TooManyFiles, nil, "the worktree holds more than %d files and folders; remove some, or raise the limit", l.s.maxFiles)
	}
	j.out.entries = make([]entry, 0, len(l.names))
	l.known = l.known[:0]
	for _, name := range l.names {
		c := l.cachedEntry(j.cached, name)
		var st unix.Stat_t
		if err := unix.Fstatat(fd, name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
			if vanished(err) {
				continue
			}
			if skip := skipFor(err); skip != "" {
				j.out.entries, l.known = append(j.out.entries, entry{name: name, skip: skip}), append(l.known, nil)
				continue
			}
			return failIO(err, "read the attributes of %s in %s", gitpath.Quote(joinPath(j.path, name)), j.root.path)
		}
		j.out.entries, l.known = append(j.out.entries, l.classify(j, name, &st, c)), append(l.known, c)
	}
	l.descend(j, l.known)
	return nil
}

// cachedEntry returns the cached entry of the next name, or nil. Names come in order.
func (l *lister) cachedEntry(cached *dir, name string) *entry {
	if cached == nil {
		return nil
	}
	i := len(l.known) // its index if the folder is unchanged
	if i < len(cached.entries) && cached.entries[i].name == name {
		return &cached.entries[i]
	}
	return cached.find(name)
}

// listNames puts the sorted names in a folder into l.names. An unchanged folder still
// has the cached names.
func (l *lister) listNames(fd int, j *folderJob) error {
	if !j.same {
		err := l.readNames(fd, j.cached)
		slices.Sort(l.names)
		return err
	}
	l.names = l.names[:0]
	for i := range j.cached.entries {
		l.names = append(l.names, j.cached.entries[i].name)
	}
	return nil
}

// cannotList marks a folder that vanished or cannot be captured; any other err is an error
// of the scan.
func (l *lister) cannotList(j *folderJob, err error) error {
	skip := skipFor(err)
	switch {
	case j.self != nil && vanished(err):
		j.self.gone = true
	case j.self != nil && skip != "":
		j.self.skip, j.self.dir = skip, nil
	default:
		return failIO(err, "list the folder %s", joinPath(j.root.path, gitpath.Quote(j.path)))
	}
	return nil
}

// readNames puts the names in a folder into l.names, reusing the strings of the
// cache.
func (l *lister) readNames(fd int, cached *dir) error {
	l.names = l.names[:0]
	for {
		n, err := unix.ReadDirent(fd, l.buf)
		if err == unix.EINTR {
			continue
		}
		if err != nil || n <= 0 {
			return err
		}
		for b := l.buf[:n]; len(b) > 19; {
			size := int(binary.NativeEndian.Uint16(b[16:]))
			name := b[19:size]
			if i := slices.Index(name, 0); i >= 0 {
				name = name[:i]
			}
			b = b[size:]
			if string(name) == "." || string(name) == ".." {
				continue
			}
			l.names = append(l.names, cached.nameOf(name))
		}
	}
}

// nameOf returns name as a string, the cached one if there is one.
func (d *dir) nameOf(name []byte) string {
	if d == nil {
		return string(name)
	}
	i, ok := slices.BinarySearchFunc(d.entries, name, func(e entry, n []byte) int { return strings.Compare(e.name, string(n)) })
	if ok {
		return d.entries[i].name
	}
	return string(name)
}

// classify makes an entry from a name and its attributes. It takes the object id
// from the cached entry c if the attributes vouch for it.
func (l *lister) classify(j *folderJob, name string, st *unix.Stat_t, c *entry) entry {
	e := entry{name: name, perm: st.Mode & 0o7777, stat: statOf(st)}
	link := st.Mode&unix.S_IFMT == unix.S_IFLNK
	e.hidden = !j.git && gitRefuses(name, link)
	if j.home && l.s.exclude[joinPath(j.path, name)] {
		e.skip = skipExcluded
		return e
	}
	if l.s.secrets != nil && l.s.secrets.Holds([]byte(name)) {
		e.skip = SkipHoldsSecret
		return e
	}
	if j.git && st.Mode&unix.S_IFMT != unix.S_IFDIR && isTransient(joinPath(j.rel, name)) {
		e.skip = skipTransient
		return e
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFDIR:
		e.mode = modeDir
		e.dir = &dir{}
		e.trusted = e.stat.ctime < j.bound
		if st.Dev != j.root.dev {
			e.skip, e.dir = SkipOtherFilesystem, nil
		}
		return e
	case unix.S_IFREG:
		e.mode = modeFile
		if st.Mode&0o100 != 0 {
			e.mode = modeExec
		}
		if st.Size > l.s.limitFor(j, e.hidden) {
			e.skip = SkipTooLarge
			return e
		}
	case unix.S_IFLNK:
		e.mode = modeLink
	default:
		e.skip = skipSpecial(st.Mode)
		return e
	}
	if c != nil && c.trusted && c.stat == e.stat && (c.skip == "" || c.skip == SkipHoldsSecret) && c.mode == e.mode {
		e.oid, e.skip, e.trusted = c.oid, c.skip, true
	}
	return e
}

// limitFor returns the size of the largest file in a folder that is captured. A file
// called .git has the same limit as the files in a folder called .git.
func (s *scanner) limitFor(j *folderJob, hidden bool) int64 {
	if hidden || j.git {
		return s.gitLimit
	}
	return j.limit
}

// isTransient reports whether a file inside a .git is not state: a lock, a file
// that git is still writing, or an index of the object store. Git recreates such an
// index, which would name packs that a restore writes under other names.
func isTransient(rel string) bool {
	_, name := splitPath(rel)
	if strings.HasSuffix(name, ".lock") || strings.HasPrefix(name, tempPrefix) {
		return true
	}
	return inStore(rel) && (strings.HasPrefix(name, "tmp_") || strings.HasPrefix(name, "multi-pack-index") ||
		strings.HasPrefix(name, "commit-graph") || strings.HasSuffix(name, ".graph") || strings.HasSuffix(name, ".keep"))
}

// inStore reports whether a path inside a .git is in an object store. It excludes
// refs and logs, since a branch may be called objects.
func inStore(rel string) bool {
	for part := range strings.SplitSeq(rel, "/") {
		switch part {
		case "refs", "logs":
			return false
		case "objects":
			return !strings.HasSuffix(rel, "/objects") && rel != "objects"
		}
	}
	return false
}

// skipSpecial returns the reason for which a special file is skipped.
func skipSpecial(mode uint32) SkipReason {
	switch mode & unix.S_IFMT {
	case unix.S_IFSOCK:
		return SkipSocket
	case unix.S_IFIFO:
		return SkipFifo
	}
	return SkipDevice
}

func statOf(st *unix.Stat_t) fileStat {
	return fileStat{size: st.Size, mtime: st.Mtim.Nano(), ctime: st.Ctim.Nano(), ino: st.Ino}
}

// descend creates the jobs for the folders in j.out and for the files without an
// id. known has the cached entry of each entry.
func (l *lister) descend(j *folderJob, known []*entry) {
	store := j.git && !inStore(j.rel+"/") && isRepository(j.out)
	for i := range j.out.entries {
		e := &j.out.entries[i]
		if e.skip != "" || (e.dir == nil && e.trusted) {
			continue
		}
		path, c := joinPath(j.path, e.name), known[i]
		if e.dir == nil {
			f := fileJob{root: j.root, limit: l.s.limitFor(j, e.hidden), bound: j.bound, path: path, e: e, state: j.home || j.git || e.hidden}
			if c != nil {
				f.was = c.oid
			}
			l.files = append(l.files, f)
			continue
		}
		sub := &folderJob{root: j.root, limit: j.limit, bound: j.bound, path: path, out: e.dir, self: e, git: j.git, home: j.home}
		if j.git {
			sub.rel = joinPath(j.rel, e.name)
		}
		if c != nil {
			sub.cached = c.dir
			sub.same = c.dir != nil && !c.dir.partial && c.trusted && c.stat == e.stat
		}
		switch {
		case e.hidden && !j.home:
			sub.git = true
			l.gitdirs = append(l.gitdirs, sub)
		case store && e.name == "objects":
			sub.same = false // it may change before it is listed
			l.stores = append(l.stores, sub)
		default:
			l.folders = append(l.folders, sub)
		}
	}
}

// isRepository reports whether a folder inside a .git looks like a repository, so
// that its folder "objects" is an object store.
func isRepository(d *dir) bool {
	head, objects, refs := d.find("HEAD"), d.find("objects"), d.find("refs")
	return head != nil && objects != nil && objects.dir != nil && refs != nil && refs.dir != nil
}
