package worktree

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
)

// replacedParts is the inverse of the share of all packs that replaced files may take:
// dropping them rewrites all packs but the origin's.
const replacedParts = 10

// countReplaced counts what is stored until count is called as a replacement, if Warm has
// stored something since the last checkpoint: for each file that has changed since then, there
// is one more version now, of which nothing reaches the older one. A checkpoint of the same
// files stores nothing and counts nothing.
func (r *Repo) countReplaced() (count func(), err error) {
	if r.ahead == nil {
		return func() {}, nil
	}
	before, err := r.packBytes()
	return func() {
		// Without it, the older versions only stay for longer.
		if after, err := r.packBytes(); err == nil {
			r.replaced += max(0, after-before)
		}
	}, err
}

// tooMuchReplaced reports whether so much was replaced that Maintain should drop it.
func (r *Repo) tooMuchReplaced() (bool, error) {
	if r.replaced == 0 {
		return false, nil
	}
	all, err := r.packBytes()
	return r.replaced > max(r.cfg.MaxReplacedBytes, all/replacedParts), err
}

// packBytes returns the size of all packs.
func (r *Repo) packBytes() (total int64, err error) {
	names, err := filepath.Glob(r.packPattern())
	for _, name := range names {
		info, statErr := os.Lstat(name)
		switch {
		case errors.Is(statErr, fs.ErrNotExist): // a fetch has just renamed it
		case statErr != nil:
			return 0, failIO(statErr, "read the size of %s", name)
		default:
			total += info.Size()
		}
	}
	return total, failIO(err, "list the packs of %s", r.cfg.GitDir)
}
