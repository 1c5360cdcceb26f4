package gitstore

import (
	"errors"
	"strings"

	"github.com/clew-dev/clew/internal/gitdiff"
	"github.com/clew-dev/clew/internal/gitstoreapi"
	"github.com/clew-dev/clew/internal/pathmatch"
	"github.com/clew-dev/clew/internal/refname"
)

// unrestored returns the files that differ and that a rewind to the commit leaves alone. A
// checkpoint is restored as it is. Another commit lacks the files that its .gitignore files
// name, and those of nested repositories, so these stay; and where it has a submodule, there is
// nothing to restore.
func (d *differ) unrestored(present string) (pathSet, error) {
	stay := newPathSet()
	ours, err := d.isCheckpoint(d.to)
	if err != nil || ours {
		return stay, err
	}
	ignored, err := d.ignoredFiles(d.to)
	if err != nil {
		return stay, err
	}
	nested, err := d.keptRepositories(present)
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
		if len(stay.hashes) < maxHidden && (submodules[e.Path] || e.Status == 'D' && (ignored.match(e.Path) || within(submodules, e.Path) || within(nested, e.Path))) {
			stay.add(e.Path)
		}
	})
}

// keptRepositories returns the folders of nested repositories at a point, of which the commit To
// has nothing.
func (d *differ) keptRepositories(point string) (map[string]bool, error) {
	nested, err := d.nestedRepositories(point)
	if err != nil || len(nested) == 0 {
		return nested, err
	}
	var names strings.Builder
	folders := make([]string, 0, len(nested))
	for folder := range nested {
		if strings.Contains(folder, "\n") { // no line of a list can name it
			delete(nested, folder)
			continue
		}
		folders = append(folders, folder)
		names.WriteString(d.to + ":" + folder + "\n")
	}
	out, err := d.run(strings.NewReader(names.String()), "cat-file", "--batch-check=%(objecttype)")
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(out) {
		if len(folders) == 0 {
			break
		}
		if !strings.HasSuffix(line, " missing\n") {
			delete(nested, folders[0])
		}
		folders = folders[1:]
	}
	return nested, nil
}

// maxNested bounds the nested repositories that are known.
const maxNested = 1000

// nestedRepositories returns the folders of nested repositories at a point: those that the state
// of a checkpoint has, and those that the commit From names, if it is of the present.
func (d *differ) nestedRepositories(point string) (map[string]bool, error) {
	nested := map[string]bool{}
	if d.from == emptyTree {
		return nested, nil
	}
	message, err := d.run(nil, "log", "--max-count=1", "--format=%B", "--end-of-options", d.from)
	if err != nil {
		return nil, err
	}
	for _, folder := range gitstoreapi.NestedIn(message) {
		nested[folder] = true
	}
	number, isCheckpoint := strings.CutPrefix(point, gitstoreapi.PointCheckpoint)
	if !isCheckpoint {
		return nested, nil
	}
	state := refname.OfTask(d.uid) + "state/" + number + ":nested"
	out, err := d.run(strings.NewReader(state+"\n"), "cat-file", "--batch-check=%(objecttype)")
	if err != nil || strings.TrimSpace(out) != "tree" {
		return nested, err
	}
	err = d.eachEntry(state, func(_ []string, name string) {
		if folder, ok := gitstoreapi.NestedFolder(name); ok && len(nested) < maxNested {
			nested[folder] = true
		}
	})
	if errors.Is(err, errTooManyEntries) {
		err = nil
	}
	return nested, err
}

// unmatched returns the paths that select no file of either commit.
func (d *differ) unmatched(paths []string) ([]string, error) {
	missing := map[string]pathmatch.Set{}
	for _, p := range paths {
		set, err := pathmatch.New([]string{p})
		if err != nil {
			return nil, err
		}
		missing[p] = set
	}
	for _, commit := range []string{d.from, d.to} {
		if len(missing) == 0 {
			return nil, nil
		}
		err := d.eachEntry(commit, func(_ []string, name string) {
			for p, set := range missing {
				if set.Match(name) {
					delete(missing, p)
				}
			}
		})
		if errors.Is(err, errTooManyEntries) {
			return nil, nil // one of those might be it
		}
		if err != nil {
			return nil, err
		}
	}
	var list []string
	for _, p := range paths {
		if _, ok := missing[p]; ok {
			list = append(list, p)
		}
	}
	return list, nil
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
