package gitstore

import (
	"bufio"
	"encoding/json"
	"io"
	"slices"
	"strings"

	"github.com/clew-dev/clew/internal/gitdiff"
	"github.com/clew-dev/clew/internal/gitpath"
	"github.com/clew-dev/clew/internal/gitstoreapi"
	"github.com/clew-dev/clew/internal/refname"
)

const (
	// maxBlocked is how many paths are named that have something in their way.
	maxBlocked = 10
	// maxMetaBytes bounds the description of a checkpoint that is read.
	maxMetaBytes = 4 << 20
)

// blocked returns paths at which a rewind from a point to the commit To would create something,
// and at which something has to stay: a file that checkpoints skip, as far as the one of that
// point or else the newest one names it; a file outside the paths where a folder has to be; and a
// folder, where a file has to be, with files that stay. The rewind fails because of them.
func (d *differ) blocked(q pagedQuery, stay pathSet) ([]string, error) {
	created, err := d.created(q, stay)
	if err != nil || len(created) == 0 {
		return nil, err
	}
	found := map[string]bool{}
	err = d.eachFile(func(e gitdiff.Entry) {
		switch {
		case e.Status != 'D' || len(found) >= maxBlocked:
		case !q.paths.Match(e.Path) && created.below(e.Path):
			found[e.Path] = true
		case stay.has(e.Path):
			created.addAbove(found, e.Path)
		}
	})
	if err != nil {
		return nil, err
	}
	skipped, err := d.skipped(q.From)
	if err != nil {
		return nil, err
	}
	for _, path := range skipped {
		if created.has(path) || created.below(path) {
			found[path] = true
		}
		created.addAbove(found, path)
	}
	list := make([]string, 0, len(found))
	for path := range found {
		list = append(list, gitpath.Quote(path))
	}
	slices.Sort(list)
	return list[:min(len(list), maxBlocked)], nil
}

// created returns the files that the rewind would create, as far as there is room for their paths.
func (d *differ) created(q pagedQuery, stay pathSet) (sortedPaths, error) {
	var created sortedPaths
	size := 0
	err := d.eachFile(func(e gitdiff.Entry) {
		if e.Status != 'A' || !q.paths.Match(e.Path) || stay.has(e.Path) {
			return
		}
		if size += len(e.Path); size <= maxComparedBytes {
			created = append(created, e.Path)
		}
	})
	slices.Sort(created)
	return created, err
}

// skipped returns the files of a point that its checkpoint, or else the newest one, skips and names.
// Named pipes are not among them if the commit To is a checkpoint: a rewind to it replaces them.
func (d *differ) skipped(point string) ([]string, error) {
	state := refname.OfTask(d.uid) + "state/"
	if number, ok := strings.CutPrefix(point, gitstoreapi.PointCheckpoint); ok {
		state += number
	} else {
		newest, err := d.run(nil, "for-each-ref", "--sort=-version:refname", "--count=1", "--format=%(refname)", state)
		if err != nil {
			return nil, err
		}
		if state = strings.TrimSpace(newest); state == "" {
			return nil, nil
		}
	}
	kind, err := d.run(strings.NewReader(state+":meta.json\n"), "cat-file", "--batch-check=%(objecttype)")
	if err != nil || strings.TrimSpace(kind) != "blob" {
		return nil, err
	}
	var meta struct {
		Skipped []struct{ Path, Reason string }
	}
	err = d.stream(func(in *bufio.Reader) error {
		if json.NewDecoder(io.LimitReader(in, maxMetaBytes)).Decode(&meta) != nil {
			meta.Skipped = nil // of an older daemon, or damaged: nothing is known
		}
		return nil
	}, "cat-file", "blob", state+":meta.json")
	if err != nil {
		return nil, err
	}
	toCheckpoint, err := d.isCheckpoint(d.to)
	var paths []string
	for _, s := range meta.Skipped {
		if path, unreadable := gitpath.Unquote(s.Path); unreadable == nil && !(toCheckpoint && s.Reason == "Fifo") {
			paths = append(paths, path)
		}
	}
	return paths, err
}

// sortedPaths are paths in order.
type sortedPaths []string

func (s sortedPaths) has(path string) bool {
	_, found := slices.BinarySearch(s, path)
	return found
}

// below reports whether one of the paths is in the given folder.
func (s sortedPaths) below(folder string) bool {
	i, _ := slices.BinarySearch(s, folder+"/")
	return i < len(s) && strings.HasPrefix(s[i], folder+"/")
}

// addAbove adds those of the paths that are a folder of the given path.
func (s sortedPaths) addAbove(found map[string]bool, path string) {
	for at := folderOf(path); at != ""; at = folderOf(at) {
		if s.has(at) {
			found[at] = true
		}
	}
}
