package worktree

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// Maintenance says what Maintain did.
type Maintenance struct {
	PacksBefore, PacksAfter int
	Repacked                bool
	Reaped                  int // files that killed processes had left
}

// Maintain keeps the repository small and quick: from Config.MaxPacks packs on
// it joins the small ones, so that their number grows with the logarithm of the
// content, and packs refs. Call it between checkpoints; with nothing to do it
// only lists a folder. It can be killed at any time.
func (r *Repo) Maintain(ctx context.Context) (Maintenance, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var m Maintenance
	var err error
	if m.PacksBefore, err = r.countPacks(); err != nil {
		return m, err
	}
	m.PacksAfter = m.PacksBefore
	if m.PacksBefore < r.cfg.MaxPacks {
		return m, nil
	}
	if m.Reaped, err = r.reap(); err != nil {
		return m, err
	}
	if _, err := r.git(ctx, gitCall{args: []string{"-c", "pack.threads=1", "repack", "--geometric=2", "-d", "-q", "--no-write-bitmap-index"}}); err != nil {
		return m, failGit(err, "join the packs of %s", r.cfg.GitDir)
	}
	if _, err := r.git(ctx, gitCall{args: []string{"pack-refs", "--all"}}); err != nil {
		return m, failGit(err, "pack the refs of %s", r.cfg.GitDir)
	}
	if err := r.syncRefs("refs"); err != nil {
		return m, failIO(err, "make the packs of %s durable", r.cfg.GitDir)
	}
	m.Repacked = true
	m.PacksAfter, err = r.countPacks()
	return m, err
}

func (r *Repo) countPacks() (int, error) {
	names, err := filepath.Glob(filepath.Join(r.cfg.GitDir, "objects/pack/pack-*.pack"))
	return len(names), failIO(err, "list the packs of %s", r.cfg.GitDir)
}

// reap removes locks and unfinished files. No process can be using them: the
// caller has the lock of the repository, which every git process of ours holds
// as long as it lives.
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
