package worktree

import (
	"context"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// snapshot is the result of a scan: the trees on disk, with their real names.
type snapshot struct {
	work *dir
	home *dir // nil if session state is not captured
	read int  // number of files that were read because the cache did not vouch for them
}

// openRoots opens the worktree and, if session state is captured, the home, which
// is nil otherwise.
func (r *Repo) openRoots() (work, home *beneath, err error) {
	work, err = openBeneath(r.cfg.Worktree)
	if err != nil {
		return nil, nil, fail(WorktreeMissing, err, "the worktree %s cannot be opened", r.cfg.Worktree)
	}
	if r.cfg.Home == "" || len(r.cfg.HomeInclude) == 0 {
		return work, nil, nil
	}
	home, err = openBeneath(r.cfg.Home)
	if err != nil {
		work.close()
		return nil, nil, fail(WorktreeMissing, err, "the agent's home %s cannot be opened", r.cfg.Home)
	}
	return work, home, nil
}

func closeRoots(roots ...*beneath) {
	for _, b := range roots {
		if b != nil {
			b.close()
		}
	}
}

// trustBefore returns the current time of root's file system in nanoseconds. Only
// the attributes of a file last changed before it vouch for the content: a file
// changed in the current clock tick could change again without getting a new time.
func (r *Repo) trustBefore(root *beneath) (int64, error) {
	f, err := os.OpenFile(r.own("probe"), os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return 0, failIO(err, "write %s", r.own("probe"))
	}
	defer f.Close()
	if _, err := f.Write([]byte{0}); err != nil {
		return 0, failIO(err, "write %s", r.own("probe"))
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return 0, failIO(err, "read the clock of the volume")
	}
	if st.Dev != root.dev {
		// GitDir is on another file system, whose clock may differ: leave a margin.
		return time.Now().Add(-2 * time.Second).UnixNano(), nil
	}
	return st.Ctim.Nano(), nil
}

// scanRoots scans the worktree and the home, reading the files that the cache does
// not vouch for. Up to keep bytes of changed content stay in memory. It fails with
// TooMuchChanged if there is more to read than limit.
//
// Inside a .git, refs and index are read before the object store is listed, so
// that the objects they name are captured even if the agent commits during the scan.
func (r *Repo) scanRoots(ctx context.Context, work, home *beneath, keep int64, limit readAmount) (*snapshot, error) {
	s := newScanner(ctx, &r.cfg, keep)
	s.limit, s.pause = limit, r.pause
	bound, err := r.trustBefore(work)
	if err != nil {
		return nil, err
	}
	snap := &snapshot{work: &dir{}}
	jobs := []*folderJob{{root: work, limit: r.cfg.MaxFileBytes, bound: bound, cached: r.cache.work, out: snap.work}}
	if home != nil {
		if bound, err = r.trustBefore(home); err != nil {
			return nil, err
		}
		var more []*folderJob
		snap.home, more, err = s.scanHome(home, r.cfg.HomeInclude, max(r.cfg.MaxFileBytes, defaultMaxFileBytes), bound, r.cache.home)
		if err != nil {
			return nil, err
		}
		jobs = append(jobs, more...)
	}
	if err := s.listAll(jobs); err != nil {
		return nil, err
	}
	files, err := s.takeDirty()
	if err != nil {
		return nil, err
	}
	if err := s.scanGit(); err != nil {
		return nil, err
	}
	if err := s.readAll(files, false); err != nil {
		return nil, err
	}
	snap.read = s.amount.files
	snap.work.prune()
	if snap.home != nil {
		snap.home.prune()
	}
	return snap, nil
}

// readAmount is an amount of content to read.
type readAmount struct {
	files int
	bytes int64
}

// noLimit allows any amount.
var noLimit readAmount

// takeDirty returns the files that must be read and removes them from the scanner. It
// fails with TooMuchChanged if they exceed the limit.
func (s *scanner) takeDirty() ([]fileJob, error) {
	files := s.dirty
	s.dirty = nil
	s.amount.files += len(files)
	for i := range files {
		s.amount.bytes += files[i].e.stat.size
	}
	if s.limit.files > 0 && (s.amount.files > s.limit.files || s.amount.bytes > s.limit.bytes) {
		return nil, errTooMuchChanged
	}
	return files, nil
}

// storeTries is how often an object store is listed if git repacks during the scan.
const storeTries = 4

// scanGit lists and reads everything called .git, the object stores last.
func (s *scanner) scanGit() error {
	jobs := s.gitdirs
	s.gitdirs = nil
	if err := s.listAll(jobs); err != nil {
		return err
	}
	files, err := s.takeDirty()
	if err != nil {
		return err
	}
	if err := s.readAll(files, true); err != nil {
		return err
	}
	stores := s.stores
	for try := 1; len(stores) > 0; try++ {
		s.stores = nil
		for _, j := range stores {
			j.out.entries = nil
		}
		if err := s.listAll(slices.Clone(stores)); err != nil {
			return err
		}
		files, err := s.takeDirty()
		if err != nil {
			return err
		}
		if err := s.readAll(files, false); err != nil {
			return err
		}
		// If a pack vanished while it was read, git has replaced it: list again.
		if try == storeTries || !slices.ContainsFunc(files, func(f fileJob) bool { return f.e.gone }) {
			break
		}
	}
	return nil
}

// prune removes the entries that vanished during the scan.
func (d *dir) prune() {
	d.entries = slices.DeleteFunc(d.entries, func(e entry) bool { return e.gone })
	for i := range d.entries {
		if sub := d.entries[i].dir; sub != nil {
			sub.prune()
		}
	}
}

// forget releases the content that was kept for sending.
func (s *snapshot) forget() {
	s.work.forget()
	s.home.forget()
}

func (d *dir) forget() {
	if d == nil {
		return
	}
	d.prune()
	for i := range d.entries {
		d.entries[i].data, d.entries[i].origin = nil, nil
		d.entries[i].dir.forget()
	}
}
