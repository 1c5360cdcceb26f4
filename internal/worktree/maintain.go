package worktree

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/clew-dev/clew/internal/durable"
	"github.com/clew-dev/clew/internal/gitpath"
)

// Maintenance is the result of Maintain.
type Maintenance struct {
	PacksBefore, PacksAfter int
	Repacked                bool
	Reaped                  int // files left behind by killed processes
}

// dropMarker is the file that records that refs were deleted or replaced, so that the next
// repack drops unreachable objects.
const dropMarker = "drop"

// Maintain keeps the repository small and fast. Once there are Config.MaxPacks
// packs, it joins the small ones, so that their number grows with the logarithm of
// the content, packs the refs, and drops objects that only deleted refs reached. It does
// so earlier if much of what Warm has stored was replaced.
// Call it between checkpoints: with nothing to do it only lists a folder, and
// during a push or fetch it does nothing. It can be killed at any time.
func (r *Repo) Maintain(ctx context.Context) (Maintenance, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var m Maintenance
	var err error
	if m.PacksBefore, err = r.countPacks(); err != nil {
		return m, err
	}
	m.PacksAfter = m.PacksBefore
	drop, err := r.tooMuchReplaced()
	if err != nil {
		return m, err
	}
	if m.PacksBefore < r.cfg.MaxPacks && !drop || !r.packs.TryLock() {
		return m, nil
	}
	defer r.packs.Unlock()
	if drop {
		if err := r.markDrop(); err != nil {
			return m, err
		}
	}
	r.seen.forget()
	if m.Reaped, err = r.reap(); err != nil {
		return m, err
	}
	if err := r.repack(ctx); err != nil {
		return m, err
	}
	if _, err := r.git(ctx, gitCall{args: []string{"pack-refs", "--all"}}); err != nil {
		return m, failGit(err, "pack the refs of %s", r.cfg.GitDir)
	}
	r.synced.Clear() // empty folders of refs were removed
	if err := errors.Join(r.syncRefs("refs/x"), durable.SyncFolder(r.cfg.GitDir)); err != nil {
		return m, failIO(err, "make the packs of %s durable", r.cfg.GitDir)
	}
	m.Repacked = true
	m.PacksAfter, err = r.countPacks()
	return m, err
}

// repack joins the small packs or, if objects are to be dropped, all packs except the origin's.
func (r *Repo) repack(ctx context.Context) error {
	args := []string{"repack", "-d", "-q", "--no-write-bitmap-index"}
	_, err := os.Stat(r.own(dropMarker))
	drop := err == nil
	if drop {
		args = append(args, "-a")
		if r.pristine != nil {
			for _, f := range r.pristine.Files {
				if strings.HasSuffix(f.Path, ".pack") {
					args = append(args, "--keep-pack="+filepath.Base(f.Path))
				}
			}
		}
	} else {
		args = append(args, "--geometric=2")
	}
	if _, err := r.git(ctx, gitCall{args: args}); err != nil {
		return failGit(err, "repack %s", r.cfg.GitDir)
	}
	if drop {
		r.replaced = 0
		return failIO(os.Remove(r.own(dropMarker)), "remove %s", r.own(dropMarker))
	}
	return nil
}

// markDrop makes the next repack drop unreachable objects.
func (r *Repo) markDrop() error {
	return failIO(durable.WriteShared(r.own(dropMarker), tempPattern, nil, 0o600), "write %s", r.own(dropMarker))
}

func (r *Repo) countPacks() (int, error) {
	names, err := filepath.Glob(r.packPattern())
	return len(names), failIO(err, "list the packs of %s", r.cfg.GitDir)
}

func (r *Repo) packPattern() string { return filepath.Join(r.cfg.GitDir, "objects/pack/pack-*.pack") }

// reap removes lock files and unfinished files and returns their number. No process
// can be using them: the caller holds the lock of the repository, which every git
// process of this package inherits, and nothing else in this process is using the
// repository.
func (r *Repo) reap() (int, error) {
	reaped := 0
	err := filepath.WalkDir(r.cfg.GitDir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			if errors.Is(err, fs.ErrNotExist) {
				return nil
			}
			return err
		}
		rel, _ := filepath.Rel(r.cfg.GitDir, path)
		name := d.Name()
		stale := strings.HasPrefix(name, "tmp_") || strings.HasPrefix(name, "fast_import_crash_") ||
			(!d.IsDir() && strings.HasSuffix(name, ".lock")) ||
			(strings.HasPrefix(rel, "objects/pack/") && (strings.HasSuffix(name, ".keep") || strings.HasPrefix(name, ".tmp-")))
		if !stale {
			return nil
		}
		reaped++
		if d.IsDir() {
			if err := os.RemoveAll(path); err != nil {
				return err
			}
			return filepath.SkipDir
		}
		return os.Remove(path)
	})
	return reaped, failIO(err, "remove leftovers in %s", r.cfg.GitDir)
}

// ClearLocks removes the lock files that a killed agent left in its repository
// and in nested ones, and returns their paths. Call it before the agent is started
// again; the agent must not be running.
func (r *Repo) ClearLocks(ctx context.Context) ([]string, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	work, home, err := r.openRoots()
	if err != nil {
		return nil, err
	}
	defer closeRoots(work, home)
	snap, err := r.scanRoots(ctx, work, home, 0, noLimit)
	if err != nil {
		return nil, err
	}
	var removed []string
	for _, path := range locksIn(snap.work, "") {
		if err := work.unlink(path, false); err != nil && !vanished(err) {
			return removed, failIO(err, "remove %s in %s", gitpath.Quote(path), work.path)
		}
		removed = append(removed, gitpath.Quote(path))
	}
	return removed, nil
}

// locksIn lists the lock files inside the .git folders of a scanned tree.
func locksIn(d *dir, path string) (list []string) {
	for i := range d.entries {
		e := &d.entries[i]
		full := joinPath(path, e.name)
		if e.skip == skipTransient && strings.HasSuffix(e.name, ".lock") {
			list = append(list, full)
		} else if e.dir != nil {
			list = append(list, locksIn(e.dir, full)...)
		}
	}
	return list
}
