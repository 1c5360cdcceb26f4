package gitstore

import (
	"strings"

	"github.com/clew-dev/clew/internal/gitdiff"
)

// unrestored returns the files that differ and that a rewind to the commit leaves alone. A
// checkpoint is restored as it is. Another commit lacks the files that its .gitignore files
// name, so these stay; and where it has a submodule, there is nothing to restore.
func (d *differ) unrestored() (pathSet, error) {
	stay := newPathSet()
	ours, err := d.isCheckpoint(d.to)
	if err != nil || ours {
		return stay, err
	}
	ignored, err := d.ignoredFiles(d.to)
	if err != nil {
		return stay, err
	}
	submodules := map[string]bool{}
	err = d.eachFile(func(e gitdiff.Entry) {
		if e.NewMode == nestedRepository && len(submodules) < maxHidden {
			submodules[e.Path] = true
		}
	})
	if err != nil {
		return stay, err
	}
	return stay, d.eachFile(func(e gitdiff.Entry) {
		if len(stay.hashes) < maxHidden && (submodules[e.Path] || e.Status == 'D' && (ignored.match(e.Path) || within(submodules, e.Path))) {
			stay.add(e.Path)
		}
	})
}

// within reports whether a path is in one of the folders.
func within(folders map[string]bool, path string) bool {
	for at := folderOf(path); len(folders) > 0 && at != ""; at = folderOf(at) {
		if folders[at] {
			return true
		}
	}
	return false
}

// isCheckpoint reports whether a commit is a checkpoint of some task.
func (d *differ) isCheckpoint(commit string) (bool, error) {
	if commit == emptyTree {
		return false, nil
	}
	maker, err := d.run(nil, "log", "--max-count=1", "--format=%ce", "--end-of-options", commit)
	return strings.TrimSpace(maker) == checkpointCommitter, err
}
