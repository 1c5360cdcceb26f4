package gitstore

import (
	"errors"
	"io/fs"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"
)

const (
	// usageTTL is how long a measured size is taken for true, given that what
	// was received since is added to it.
	usageTTL = time.Minute
	// usageRecheck is the least time between two measurements of one
	// repository, however close the quota is.
	usageRecheck = 2 * time.Second
)

// usage knows how much of the disk each repository takes. It measures rarely
// and counts what is received in between, which errs on the side of too much.
type usage struct {
	now func() time.Time

	mu    sync.Mutex
	sizes map[string]*repositorySize // by path
	// namespaces holds the same entries by namespace.
	namespaces map[string][]*repositorySize
}

// repositorySize is bytes, as last measured, and what is not in them: what was
// received since the measurement began, and what pushes under way have brought.
type repositorySize struct {
	repository Repository
	measured   time.Time
	bytes      int64
	received   int64
	underWay   int64
}

func (s *repositorySize) total() int64 { return s.bytes + s.received + s.underWay }

func newUsage(now func() time.Time) *usage {
	return &usage{now: now, sizes: map[string]*repositorySize{}, namespaces: map[string][]*repositorySize{}}
}

// begin charges a push under way with bytes that come in, unless the namespace
// would then exceed limit (0: none).
func (u *usage) begin(repository Repository, bytes, limit int64) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	entry := u.entry(repository)
	if limit > 0 {
		total := bytes
		for _, size := range u.namespaces[repository.Namespace] {
			total += size.total()
		}
		if total > limit {
			return false
		}
	}
	entry.underWay += bytes
	return true
}

// end ends a push that was charged with bytes.
func (u *usage) end(repository Repository, bytes int64, stored bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	entry := u.entry(repository)
	entry.underWay -= bytes
	if stored {
		entry.received += bytes
	}
}

// changed makes the next question about the repository measure it.
func (u *usage) changed(repository Repository) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.entry(repository).measured = time.Time{}
}

func (u *usage) entry(repository Repository) *repositorySize {
	size := u.sizes[repository.Path]
	if size == nil {
		size = &repositorySize{repository: repository}
		u.sizes[repository.Path] = size
		u.namespaces[repository.Namespace] = append(u.namespaces[repository.Namespace], size)
	}
	return size
}

// namespace returns the bytes that a namespace's repositories take, in blocks
// on disk. If they seem to be more than limit (0: no limit), it measures again
// before it says so.
func (u *usage) namespace(repositories []Repository, limit int64) (int64, error) {
	total, err := u.sum(repositories, usageTTL)
	if err != nil || limit <= 0 || total < limit {
		return total, err
	}
	return u.sum(repositories, usageRecheck)
}

func (u *usage) sum(repositories []Repository, maxAge time.Duration) (int64, error) {
	var total int64
	for _, repository := range repositories {
		bytes, err := u.repository(repository, maxAge)
		if err != nil {
			return 0, err
		}
		total += bytes
	}
	return total, nil
}

// repository returns the bytes of one repository from a measurement no older
// than maxAge.
func (u *usage) repository(repository Repository, maxAge time.Duration) (int64, error) {
	now := u.now()
	u.mu.Lock()
	size := *u.entry(repository)
	u.mu.Unlock()
	if now.Sub(size.measured) < maxAge {
		return size.total(), nil
	}
	bytes, err := diskUse(repository.Path)
	if err != nil {
		return 0, err
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	entry := u.entry(repository)
	if !entry.measured.After(size.measured) {
		entry.bytes, entry.measured = bytes, now
		// What came in while we measured may or may not be in it: keep it.
		entry.received -= size.received
	}
	return entry.total(), nil
}

// known returns the last sizes without measuring.
func (u *usage) known() []repositorySize {
	u.mu.Lock()
	defer u.mu.Unlock()
	sizes := make([]repositorySize, 0, len(u.sizes))
	for _, size := range u.sizes {
		sizes = append(sizes, *size)
	}
	return sizes
}

// quarantinePrefix is how git calls the folders in which it keeps the objects of
// a push until all of them are there and checked.
const quarantinePrefix = "tmp_objdir-"

// diskUse returns the bytes of the blocks that a folder takes, as du does, but
// for what pushes under way have brought, which is counted as it comes in. Files
// that vanish meanwhile do not count.
func diskUse(folder string) (int64, error) {
	const blockBytes = 512 // the unit of st_blocks, whatever the file system's
	var total int64
	err := filepath.WalkDir(folder, func(_ string, entry fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		if entry.IsDir() && strings.HasPrefix(entry.Name(), quarantinePrefix) {
			return fs.SkipDir
		}
		info, err := entry.Info()
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		if status, ok := info.Sys().(*syscall.Stat_t); ok {
			total += status.Blocks * blockBytes
		}
		return nil
	})
	return total, err
}

// freeBytes returns what the volume of a folder has left for us.
func freeBytes(folder string) (int64, error) {
	var status syscall.Statfs_t
	if err := syscall.Statfs(folder, &status); err != nil {
		return 0, err
	}
	free := int64(status.Bavail) * status.Bsize
	// A volume without room for another file is as full as one without another
	// block. Some file systems do not limit their number, and tell none.
	const perFile = 16 << 10
	if status.Files > 0 && status.Ffree < uint64(free)/perFile {
		free = int64(status.Ffree) * perFile
	}
	return free, nil
}
