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
	// usageTTL is how long a measured size is trusted; what is received since is added to
	// it.
	usageTTL = time.Minute
	// usageRecheck is the minimum time between two measurements of one
	// repository, however close the quota is.
	usageRecheck = 2 * time.Second
)

// usage tracks how much disk space each repository takes. It measures rarely and adds
// what is received in between, which errs on the high side.
type usage struct {
	now func() time.Time

	mu    sync.Mutex
	sizes map[string]*repositorySize // by path
	// namespaces holds the same entries by namespace.
	namespaces map[string][]*repositorySize
}

// repositorySize is a repository's size as last measured (bytes), and what the measurement
// does not include: what was received since it began, and what pushes in progress have sent.
type repositorySize struct {
	repository Repository
	measured   time.Time
	bytes      int64
	received   int64
	underWay   int64
}

// total returns the estimated size in bytes.
func (s *repositorySize) total() int64 { return s.bytes + s.received + s.underWay }

func newUsage(now func() time.Time) *usage {
	return &usage{now: now, sizes: map[string]*repositorySize{}, namespaces: map[string][]*repositorySize{}}
}

// begin charges a push in progress with received bytes. It returns false, and charges
// nothing, if the namespace would then exceed limit (0: no limit).
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

// end ends a push that was charged with the given bytes in all.
func (u *usage) end(repository Repository, bytes int64, stored bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	entry := u.entry(repository)
	entry.underWay -= bytes
	if stored {
		entry.received += bytes
	}
}

// changed makes the next request for the repository's size measure it.
func (u *usage) changed(repository Repository) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.entry(repository).measured = time.Time{}
}

// entry returns the repository's entry, creating it if missing. The caller holds the lock.
func (u *usage) entry(repository Repository) *repositorySize {
	size := u.sizes[repository.Path]
	if size == nil {
		size = &repositorySize{repository: repository}
		u.sizes[repository.Path] = size
		u.namespaces[repository.Namespace] = append(u.namespaces[repository.Namespace], size)
	}
	return size
}

// namespace returns the bytes that a namespace's repositories take, in blocks on disk. If
// the estimate reaches limit (0: no limit), it measures again before it returns.
func (u *usage) namespace(repositories []Repository, limit int64) (int64, error) {
	total, err := u.sum(repositories, usageTTL)
	if err != nil || limit <= 0 || total < limit {
		return total, err
	}
	return u.sum(repositories, usageRecheck)
}

// sum adds up the sizes of repositories, from measurements no older than maxAge.
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
		// What arrived during the measurement may or may not be included: keep it.
		entry.received -= size.received
	}
	return entry.total(), nil
}

// known returns the last known sizes without measuring.
func (u *usage) known() []repositorySize {
	u.mu.Lock()
	defer u.mu.Unlock()
	sizes := make([]repositorySize, 0, len(u.sizes))
	for _, size := range u.sizes {
		sizes = append(sizes, *size)
	}
	return sizes
}

// quarantinePrefix begins the names of the folders in which git keeps the objects of a
// push until all of them have arrived and been checked.
const quarantinePrefix = "tmp_objdir-"

// diskUse returns the bytes of the disk blocks that a folder takes, as du does. It leaves
// out what pushes in progress have sent, which is counted as it arrives, and files that
// vanish meanwhile.
func diskUse(folder string) (int64, error) {
	const blockBytes = 512 // the unit of st_blocks on every file system
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

// freeBytes returns how many bytes this process can still write to a folder's volume.
func freeBytes(folder string) (int64, error) {
	var status syscall.Statfs_t
	if err := syscall.Statfs(folder, &status); err != nil {
		return 0, err
	}
	free := int64(status.Bavail) * status.Bsize
	// A volume without free inodes is as full as one without free blocks. Some file
	// systems do not limit their number, and report none.
	const perFile = 16 << 10
	if status.Files > 0 && status.Ffree < uint64(free)/perFile {
		free = int64(status.Ffree) * perFile
	}
	return free, nil
}
