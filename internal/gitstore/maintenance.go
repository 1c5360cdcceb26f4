package gitstore

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"
)

const (
	// defaultMaxPacks is how many packs a repository may have before they are
	// joined. Every push adds one.
	defaultMaxPacks = 50
	// maxLooseRefs is how many refs may be files of their own, a block each.
	maxLooseRefs = 500
	// startReapTimeout is how long the start waits for git processes that
	// outlived a killed gitstore. They have lost their client and end soon.
	startReapTimeout = 10 * time.Second
)

// Maintainer keeps repositories small and quick: it joins packs and refs, and
// clears away what killed processes left. It removes no ref, and no object but
// those that a deletion has left over (see Store.purge). It
// may be killed at any instant: git replaces files only by finished ones.
type Maintainer struct {
	handler *Handler
	// interval between looks at all repositories.
	interval time.Duration
	maxPacks int
	log      logr.Logger

	// pushed holds repositories to look at soon; wake has room for one word.
	mu     sync.Mutex
	pushed map[string]Repository
	wake   chan struct{}
}

// NewMaintainer returns the maintainer of the handler's repositories. interval
// is the time between looks at all of them; a push makes it look at once.
func NewMaintainer(handler *Handler, interval time.Duration, maxPacks int, log logr.Logger) *Maintainer {
	if maxPacks <= 0 {
		maxPacks = defaultMaxPacks
	}
	m := &Maintainer{
		handler: handler, interval: interval, maxPacks: maxPacks, log: log,
		pushed: map[string]Repository{}, wake: make(chan struct{}, 1),
	}
	handler.pushed = m.notice
	return m
}

// notice has a repository looked at soon.
func (m *Maintainer) notice(repository Repository) {
	m.mu.Lock()
	m.pushed[repository.Path] = repository
	m.mu.Unlock()
	select {
	case m.wake <- struct{}{}:
	default:
	}
}

// Start clears away what an earlier process left. It is to be called before
// requests are served, which would fail on stale locks.
func (m *Maintainer) Start(ctx context.Context) error {
	if err := m.handler.store.reapNamespaces(time.Now()); err != nil {
		return err
	}
	repositories, err := m.handler.store.Repositories()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, startReapTimeout)
	defer cancel()
	for _, repository := range repositories {
		m.reap(ctx, repository)
	}
	return nil
}

// Run maintains repositories, one at a time, until ctx is done.
func (m *Maintainer) Run(ctx context.Context) {
	timer := time.NewTicker(max(m.interval, time.Second))
	defer timer.Stop()
	m.measure()
	for {
		select {
		case <-ctx.Done():
			return
		case <-m.wake:
			for _, repository := range m.takePushed() {
				m.maintain(ctx, repository)
			}
		case <-timer.C:
			m.all(ctx)
		}
	}
}

func (m *Maintainer) takePushed() map[string]Repository {
	m.mu.Lock()
	defer m.mu.Unlock()
	taken := m.pushed
	m.pushed = map[string]Repository{}
	return taken
}

func (m *Maintainer) all(ctx context.Context) {
	repositories, err := m.handler.store.Repositories()
	if err != nil {
		m.log.Error(err, "the repositories cannot be listed")
		return
	}
	for _, repository := range repositories {
		if ctx.Err() != nil {
			return
		}
		// Only if nobody is there right now: pushes wait for it.
		once, cancel := context.WithTimeout(ctx, lockPoll)
		m.reap(once, repository)
		cancel()
		m.maintain(ctx, repository)
	}
	m.measure()
}

// measure keeps the sizes in the metrics true, also without a quota.
func (m *Maintainer) measure() {
	repositories, err := m.handler.store.Repositories()
	if err != nil {
		m.log.Error(err, "the repositories cannot be listed")
		return
	}
	for _, repository := range repositories {
		if _, err := m.handler.usage.repository(repository, usageRecheck); err != nil {
			m.log.Error(err, "the repository cannot be measured", "namespace", repository.Namespace, "repository", repository.Name)
		}
	}
}

func (m *Maintainer) reap(ctx context.Context, repository Repository) {
	log := m.log.WithValues("namespace", repository.Namespace, "repository", repository.Name)
	removed, err := repository.reap(ctx)
	switch {
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		log.V(1).Info("the repository is in use and was not cleared of leftovers")
	case err != nil:
		log.Error(err, "leftovers of killed processes cannot be removed")
	case removed > 0:
		log.Info("removed leftovers of killed processes", "count", removed)
		m.handler.usage.changed(repository)
	}
}

// maintain does what a repository needs, if anything.
func (m *Maintainer) maintain(ctx context.Context, repository Repository) {
	log := m.log.WithValues("namespace", repository.Namespace, "repository", repository.Name)
	m.finishDeletion(ctx, repository, log)
	packs, err := countPacks(repository)
	if err != nil {
		log.Error(err, "the packs cannot be counted")
		return
	}
	refs, err := countLooseRefs(repository, maxLooseRefs+1)
	if err != nil {
		log.Error(err, "the refs cannot be counted")
		return
	}
	if packs <= m.maxPacks && refs <= maxLooseRefs {
		return
	}
	started := time.Now()
	if err := m.handler.store.compact(ctx, repository); err != nil {
		if ctx.Err() == nil {
			m.handler.metrics.maintenance.WithLabelValues("failed").Inc()
			log.Error(err, "maintenance failed")
		}
		return
	}
	m.handler.usage.changed(repository)
	m.handler.metrics.maintenance.WithLabelValues("done").Inc()
	log.Info("maintenance done", "packs", packs, "looseRefs", refs, "seconds", time.Since(started).Seconds())
}

// compact joins refs into one file and packs into few: only as many of the
// newest as are needed for each pack to be at least twice as large as the next
// one, so that large packs are seldom written again.
func (s *Store) compact(ctx context.Context, repository Repository) error {
	used, err := repository.use(ctx)
	if err != nil {
		return err
	}
	defer used.Close()
	for _, args := range [][]string{
		{"pack-refs", "--all"},
		{"repack", "-d", "--geometric=2", "--quiet"},
		{"commit-graph", "write", "--reachable", "--split", "--no-progress"},
	} {
		args = append([]string{"--git-dir=."}, args...)
		if _, err := s.gitFor(repository).runHolding(ctx, []*os.File{used}, repository.Path, args...); err != nil {
			return err
		}
	}
	return syncFolders(filepath.Join(repository.Path, "objects"))
}

func countPacks(repository Repository) (int, error) {
	entries, err := os.ReadDir(filepath.Join(repository.Path, "objects", "pack"))
	if err != nil {
		return 0, ignoreMissing(err)
	}
	count := 0
	for _, entry := range entries {
		if strings.HasSuffix(entry.Name(), ".pack") {
			count++
		}
	}
	return count, nil
}

// countLooseRefs counts refs that are files, up to limit.
func countLooseRefs(repository Repository, limit int) (int, error) {
	count := 0
	err := filepath.WalkDir(filepath.Join(repository.Path, "refs"), func(_ string, entry fs.DirEntry, err error) error {
		if err != nil {
			return ignoreMissing(err)
		}
		if !entry.IsDir() {
			count++
		}
		if count >= limit {
			return fs.SkipAll
		}
		return nil
	})
	return count, err
}
