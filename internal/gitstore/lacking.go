package gitstore

import (
	"encoding/json"
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"github.com/clew-dev/clew/internal/durable"
	"github.com/clew-dev/clew/internal/gitstoreapi"
)

// maxLacking bounds how many lacking objects a repository remembers for one task.
const maxLacking = 2 * gitstoreapi.MaxDamage

// lacking are the objects of a repository that verifications found missing or damaged, by the
// UID of the task whose checkpoint needs them. Whoever has them may bring them (see heal). They
// are in a file of the repository, which survives a killed process.
type lacking struct{ mu sync.Mutex }

// lackingFile returns the path of the file.
func (r Repository) lackingFile() string { return filepath.Join(r.Path, "clew-lacking") }

// read returns the lacking objects of a repository.
func (l *lacking) read(repository Repository) (map[string][]string, error) {
	known := map[string][]string{}
	content, err := os.ReadFile(repository.lackingFile())
	if errors.Is(err, fs.ErrNotExist) {
		return known, nil
	}
	if err != nil {
		return nil, err
	}
	if json.Unmarshal(content, &known) != nil {
		return map[string][]string{}, nil //nolint:nilerr // the next verification finds the lacking objects again
	}
	return known, nil
}

// change replaces the lacking objects of a repository by what change makes of them.
func (l *lacking) change(repository Repository, change func(map[string][]string)) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	known, err := l.read(repository)
	if err != nil {
		return err
	}
	before := len(known)
	change(known)
	if before == 0 && len(known) == 0 {
		return nil
	}
	if len(known) == 0 {
		if err := os.Remove(repository.lackingFile()); err != nil {
			return ignoreMissing(err)
		}
		return durable.SyncFolder(repository.Path)
	}
	content, err := json.Marshal(known)
	if err != nil {
		return err
	}
	return durable.WriteShared(repository.lackingFile(), temporaryFiles, content, 0o644)
}

// add remembers what a verification found.
func (l *lacking) add(repository Repository, uid string, damage []gitstoreapi.Damage) error {
	if len(damage) == 0 {
		return nil
	}
	return l.change(repository, func(known map[string][]string) {
		for _, d := range damage {
			if isObjectID(d.Object) && !slices.Contains(known[uid], d.Object) && len(known[uid]) < maxLacking {
				known[uid] = append(known[uid], d.Object)
			}
		}
	})
}

// replace forgets objects that are there again, and remembers in their place those that each of
// them needs, and that are lacking as well: nobody could know of these before.
func (l *lacking) replace(repository Repository, healed map[string]bool, below map[string][]string) error {
	return l.change(repository, func(known map[string][]string) {
		for uid, list := range known {
			left := slices.DeleteFunc(slices.Clone(list), func(id string) bool { return healed[id] })
			for _, id := range list {
				for _, needed := range below[id] {
					if !slices.Contains(left, needed) && len(left) < maxLacking {
						left = append(left, needed)
					}
				}
			}
			known[uid] = left
		}
		maps.DeleteFunc(known, func(_ string, list []string) bool { return len(list) == 0 })
	})
}

// of returns the lacking objects of some tasks.
func (l *lacking) of(repository Repository, uids []string) ([]string, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	known, err := l.read(repository)
	var ids []string
	for _, uid := range uids {
		ids = append(ids, known[uid]...)
	}
	slices.Sort(ids)
	return slices.Compact(ids), err
}
