package gitstore

import (
	"errors"
	"io/fs"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"
)

// recordCache keeps the records of the tasks of one namespace in memory: what belongs to whom is
// asked at each fetch, and there may be thousands. It notices what other processes change as well: the
// gitstore that is being replaced, or an administrator who removes a damaged record. A nil cache
// reads all records each time. It is safe for concurrent use.
type recordCache struct {
	mu sync.Mutex
	// as is the state of the folder when it was last listed.
	as      version
	all     *records
	entries map[string]recordFile // by UID
}

// records are the records of the tasks of a namespace at one moment. Nobody changes them.
type records struct {
	found map[string]fenceRecord // by UID
	// damaged are the UIDs of those that cannot be read.
	damaged []string

	mu sync.Mutex
	// owned are the belongings of namespaces that were asked for.
	owned map[ownerKey]belongings
}

// ownerKey says whose belongings they are, and on the ground of which owners.
type ownerKey struct{ uid, told string }

// recordFile is a record as it was read, nil if it is damaged.
type recordFile struct {
	as     version
	record *fenceRecord
}

// version tells apart the states of a file or a folder.
type version struct {
	inode             uint64
	size              int64
	modified, changed syscall.Timespec
}

// settled is how old the last change of a folder has to be before the folder's times tell whether
// there was another one: file systems count time in steps.
const settled = 2 * time.Second

func versionOf(info fs.FileInfo) version {
	v := version{size: info.Size()}
	if s, ok := info.Sys().(*syscall.Stat_t); ok {
		v.inode, v.modified, v.changed = s.Ino, s.Mtim, s.Ctim
	}
	return v
}

// wrote forgets the record of a task, which this process has written.
func (c *recordCache) wrote(uid string) {
	if c == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.entries, uid)
	c.all = nil
}

// of returns the records of the fences.
func (c *recordCache) of(f fences) (*records, error) {
	if c == nil {
		return (&recordCache{}).of(f)
	}
	info, err := os.Stat(f.folder)
	if errors.Is(err, fs.ErrNotExist) {
		return &records{}, nil
	}
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	as := versionOf(info)
	if c.all != nil && as == c.as && time.Since(info.ModTime()) > settled {
		return c.all, nil
	}
	entries, changed, err := c.list(f)
	if err != nil {
		return nil, err
	}
	if c.all == nil || changed {
		c.all = recordsOf(entries)
	}
	c.as, c.entries = as, entries
	return c.all, nil
}

// list lists the folder, and reads the records that have changed.
func (c *recordCache) list(f fences) (entries map[string]recordFile, changed bool, err error) {
	listed, err := os.ReadDir(f.folder)
	if err != nil {
		return nil, false, err
	}
	entries = make(map[string]recordFile, len(c.entries))
	for _, file := range listed {
		uid, isRecord := strings.CutSuffix(file.Name(), recordSuffix)
		if !isRecord {
			continue
		}
		info, err := file.Info()
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, false, err
		}
		e := recordFile{as: versionOf(info)}
		if before, known := c.entries[uid]; known && before.as == e.as && before.record != nil {
			entries[uid] = before
			continue
		}
		changed = true
		if record, err := f.read(uid); err == nil {
			e.record = &record
		}
		entries[uid] = e
	}
	return entries, changed || len(entries) != len(c.entries), nil
}

// recordsOf returns the records of a listing.
func recordsOf(entries map[string]recordFile) *records {
	all := &records{found: make(map[string]fenceRecord, len(entries))}
	for uid, e := range entries {
		if e.record == nil {
			all.damaged = append(all.damaged, uid)
		} else {
			all.found[uid] = *e.record
		}
	}
	return all
}

// records returns the records of all tasks by UID, which must not be changed, and the UIDs of those
// that cannot be read.
func (f fences) records() (found map[string]fenceRecord, damaged []string, err error) {
	all, err := f.cache.of(f)
	if err != nil {
		return nil, nil, err
	}
	return all.found, all.damaged, nil
}

// recordSuffix ends the names of the files with records.
const recordSuffix = ".json"

// belongings returns which tasks belong to the namespace with a UID, on the ground of what was told
// about owners.
func (r *records) belongings(uid string, o owners, told string) (belongings, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	key := ownerKey{uid, told}
	if b, known := r.owned[key]; known {
		return b, nil
	}
	b := belongings{uids: map[string]bool{}, names: map[string]bool{}, owners: o, uid: uid}
	// A record may have been removed, as the message about a damaged one says.
	b.all = len(r.damaged) == 0 && (o.First == "" || o.share(o.First, uid))
	for task, record := range r.found {
		switch {
		case record.Namespace == "" && o.First == "" && record.Deleted: // it has left nothing
		case record.Namespace == "" && o.First == "":
			return b, errNotTold
		case !o.share(record.Namespace, uid):
			b.all = false
		default:
			b.uids[task] = true
			b.names[record.Name] = b.names[record.Name] || record.Attempt > 0 && !record.Displaced
		}
	}
	if r.owned == nil {
		r.owned = map[ownerKey]belongings{}
	}
	r.owned[key] = b
	return b, nil
}

// recordCaches are the caches of all namespaces. The zero value is ready for use.
type recordCaches struct {
	mu sync.Mutex
	of map[string]*recordCache // by the namespace's name
}

// cache returns the cache of a namespace.
func (c *recordCaches) cache(namespace string) *recordCache {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.of == nil {
		c.of = map[string]*recordCache{}
	}
	if c.of[namespace] == nil {
		c.of[namespace] = &recordCache{}
	}
	return c.of[namespace]
}
