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
	// merged. Every push adds one.
	defaultMaxPacks = 50
	// maxLooseRefs is how many refs may be files of their own, which take a block each.
	maxLooseRefs = 500
	// startReapTimeout is how long Start waits for git processes that
	// outlived a killed gitstore. They have lost their client and exit soon.
	startReapTimeout = 10 * time.Second
)

// Maintainer keeps repositories small and fast: it merges packs and packs refs, and
// removes what killed processes left behind. It removes no ref, and only objects that no
// ref reaches: those that an interrupted deletion has left, and live files that were replaced
// (see Store.purge). It makes lost indexes of packs again. It may be killed at any
// instant: git only ever replaces a file with a complete one.
type Maintainer struct {
	handler *Handler
	// interval is the time between two passes over all repositories.
	interval time.Duration
	maxPacks int
	log      logr.Logger

	// queued holds repositories to maintain soon; wake is sent to, without blocking, when
	// one is added.
	mu     sync.Mutex
	queued map[string]Repository
	wake   chan struct{}
}

// NewMaintainer returns the maintainer of the handler's repositories. It passes over all
// of them once per interval, and handles a repository at once after a push to it.
func NewMaintainer(handler *Handler, interval time.Duration, maxPacks int, log logr.Logger) *Maintainer {
	if maxPacks <= 0 {
		maxPacks = defaultMaxPacks
	}
	m := &Maintainer{
		handler: handler, interval: interval, maxPacks: maxPacks, log: log,
		queued: map[string]Repository{}, wake: make(chan struct{}, 1),
	}
	handler.onPush = m.enqueue
	return m
}

// enqueue queues a repository for maintenance.
func (m *Maintainer) enqueue(repository Repository) {
	m.mu.Lock()
	m.queued[repository.Path] = repository
	m.mu.Unlock()
	select {
	case m.wake <- struct{}{}:
	default:
	}
}

// Start removes what an earlier process left behind. It must be called before
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
	m.measure(ctx)
	for {
		select {
		case <-ctx.Done():
			return
		case <-m.wake:
			for _, repository := range m.takeQueued() {
				m.maintain(ctx, repository)
			}
		case <-timer.C:
			m.maintainAll(ctx)
		}
	}
}

// takeQueued returns the queued repositories and empties the queue.
func (m *Maintainer) takeQueued() map[string]Repository {
	m.mu.Lock()
	defer m.mu.Unlock()
	taken := m.queued
	m.queued = map[string]Repository{}
	return taken
}

// maintainAll maintains every repository once.
func (m *Maintainer) maintainAll(ctx context.Context) {
	repositories, err := m.handler.store.Repositories()
	if err != nil {
		m.log.Error(err, "cannot list the repositories")
		return
	}
	for _, repository := range repositories {
		if ctx.Err() != nil {
			return
		}
		// Only if the repository is free right now, since pushes wait for the lock.
		once, cancel := context.WithTimeout(ctx, lockPoll)
		m.reap(once, repository)
		cancel()
		m.maintain(ctx, repository)
	}
	m.measure(ctx)
}

// measure updates the sizes in the metrics, also where no quota asks for them.
func (m *Maintainer) measure(ctx context.Context) {
	repositories, err := m.handler.store.Repositories()
	if err != nil {
		m.log.Error(err, "cannot list the repositories")
		return
	}
	for _, repository := range repositories {
		if _, err := m.handler.usage.repository(repository, usageRecheck); err != nil {
			m.log.Error(err, "cannot measure the repository", "namespace", repository.Namespace, "repository", repository.Name)
		}
	}
	m.handler.measureLeft(ctx, m.log)
}

// reap removes leftovers of killed processes from a repository, and logs the outcome.
func (m *Maintainer) reap(ctx context.Context, repository Repository) {
	log := m.log.WithValues("namespace", repository.Namespace, "repository", repository.Name)
	removed, err := repository.reap(ctx)
	switch {
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		log.V(1).Info("leftovers were not removed, since the repository is in use")
	case err != nil:
		log.Error(err, "cannot remove leftovers of killed processes")
	case removed > 0:
		log.Info("removed leftovers of killed processes", "count", removed)
		m.handler.usage.changed(repository)
	}
}

// maintain finishes deletions in a repository, and compacts it if it has too many packs or
// loose refs.
func (m *Maintainer) maintain(ctx context.Context, repository Repository) {
	log := m.log.WithValues("namespace", repository.Namespace, "repository", repository.Name)
	m.finishDeletion(ctx, repository, log)
	if err := m.handler.store.indexPacks(ctx, m.handler.store.gitFor(repository), repository); err != nil && ctx.Err() == nil {
		log.Error(err, "cannot make a pack's missing index")
	}
	packs, err := countPacks(repository)
	if err != nil {
		log.Error(err, "cannot count the packs")
		return
	}
	refs, err := countLooseRefs(repository, maxLooseRefs+1)
	if err != nil {
		log.Error(err, "cannot count the refs")
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

// compact packs refs into one file and merges packs: only as many of the newest as
// needed for each pack to be at least twice as large as the next, so that large packs
// are seldom rewritten.
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

// countPacks returns the number of packs in a repository.
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

// countLooseRefs returns the number of refs that are files, counting up to limit.
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
