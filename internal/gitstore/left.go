package gitstore

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"

	"github.com/clew-dev/clew/internal/gitstoreapi"
)

// A namespace that is made anew shares the repositories of its name with those that had the name
// before, and may neither read nor delete what these have left. That does not count against its
// quota, as long as it is no more than another quota: otherwise whoever makes and deletes a
// namespace again and again could fill the volume.

const (
	// A measurement is used for leftKept, and for at least leftShare times as long as it took:
	// measuring takes no more than that share of a processor.
	leftKept, leftShare = 10 * time.Minute, 100
	// leftTimeout is how long one measurement may take.
	leftTimeout = 10 * time.Minute
	// leftPatience is how long a request waits for the first measurement. Most take less.
	leftPatience = time.Second
)

// errMeasuring is returned while a measurement goes on.
var errMeasuring = errors.New("how much earlier namespaces of this name have left in its repositories is being measured")

// left is how much other namespaces of a name have left, measured in the background, one at a time: a
// measurement reads all repositories of a name, and many names may be made anew at once. The zero value
// is ready for use.
type left struct {
	mu sync.Mutex
	// measuring are the measurements in progress and those whose turn has yet to come.
	measuring sync.WaitGroup
	stopped   bool
	// turn has room for the one measurement whose turn it is; nil before the first one.
	turn  chan struct{}
	known map[namespaceOf]*leaving
}

// namespaceOf is a namespace for which it is measured what others have left.
type namespaceOf struct{ name, uid string }

// leaving is what others have left to a namespace. measured is zero before the first measurement, and
// running is closed when the one in progress ends; nil if there is none. wanted ends, by drop, when
// nobody asks for the namespace any more.
type leaving struct {
	bytes    int64
	measured time.Time
	until    time.Time
	running  chan struct{}
	wanted   context.Context
	drop     context.CancelFunc
}

// of returns how many bytes others have left. It waits for the first measurement until ctx ends, and
// returns errMeasuring then.
func (l *left) of(ctx context.Context, who namespaceOf, measure func(context.Context) int64) (int64, error) {
	known, running := l.begin(ctx, who, measure)
	if running == nil {
		return l.bytes(known)
	}
	select {
	case <-running:
		return l.bytes(known)
	case <-ctx.Done():
		return 0, errMeasuring
	}
}

// bytes returns what was measured last.
func (l *left) bytes(known *leaving) (int64, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if known.measured.IsZero() {
		return 0, errMeasuring // it was dropped before its turn came, or all were stopped
	}
	return known.bytes, nil
}

// begin returns what is known, and begins a measurement if that is old. It returns what to wait for if
// nothing is known.
func (l *left) begin(ctx context.Context, who namespaceOf, measure func(context.Context) int64) (known *leaving, wait chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.known == nil {
		l.known, l.turn = map[namespaceOf]*leaving{}, make(chan struct{}, 1)
	}
	if known = l.known[who]; known == nil {
		l.drop(who.name)
		known = &leaving{}
		known.wanted, known.drop = context.WithCancel(context.WithoutCancel(ctx))
		l.known[who] = known
	}
	if known.running == nil && !l.stopped && !time.Now().Before(known.until) {
		known.running = make(chan struct{})
		l.measuring.Go(func() { l.measure(known, measure) })
	}
	if known.measured.IsZero() {
		return known, known.running
	}
	return known, nil
}

// drop forgets who had a name before, and asks no more: a measurement for nobody would keep those of
// others waiting. The caller holds the lock.
func (l *left) drop(name string) {
	maps.DeleteFunc(l.known, func(other namespaceOf, known *leaving) bool {
		if other.name == name {
			known.drop()
		}
		return other.name == name
	})
}

// stop ends all measurements, and returns when none of them reads a repository any more. None begins
// afterwards.
func (l *left) stop() {
	l.mu.Lock()
	l.stopped = true
	for _, known := range l.known {
		known.drop()
	}
	l.mu.Unlock()
	l.measuring.Wait()
}

// measure measures what is to be known when it is its turn, unless nobody wants it any more.
func (l *left) measure(known *leaving, measure func(context.Context) int64) {
	var bytes int64
	var began time.Time
	select {
	case l.turn <- struct{}{}:
		ctx, cancel := context.WithTimeout(known.wanted, leftTimeout)
		began, bytes = time.Now(), measure(ctx)
		cancel()
		<-l.turn
	case <-known.wanted.Done():
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if known.wanted.Err() == nil {
		known.bytes, known.measured = bytes, time.Now()
		known.until = known.measured.Add(max(leftKept, leftShare*known.measured.Sub(began)))
	}
	close(known.running)
	known.running = nil
}

// Close ends what requests have begun in the background, and waits until it has ended.
func (h *Handler) Close() {
	h.left.stop()
}

// quota returns how many bytes the repositories of the name may take for the namespace of a call to
// store more; 0 for no limit.
func (h *Handler) quota(c *call) (int64, *gitstoreapi.Refusal) {
	quota := h.limits.NamespaceBytes
	if quota <= 0 {
		return 0, nil
	}
	waiting, cancel := context.WithTimeout(c.request.Context(), leftPatience)
	defer cancel()
	others, err := h.leftTo(waiting, c.log, namespaceOf{c.repository.Namespace, c.caller.NamespaceUID})
	switch {
	case errors.Is(err, errMeasuring):
		// It can allow no more than that. Others whose repositories take long to measure keep nobody
		// from storing what is their own.
		others = quota
	case err != nil:
		return 0, h.unavailable(c, err)
	}
	return quota + min(others, quota), nil
}

// measureLeft measures what namespaces have left that do not exist any more, as far as the server has
// told which those are, for the metrics and for the log.
func (h *Handler) measureLeft(ctx context.Context, log logr.Logger) {
	h.telling.Lock()
	told := h.told
	h.telling.Unlock()
	total := int64(0)
	for name, namespaces := range told {
		waiting, cancel := context.WithTimeout(ctx, h.slotTimeout)
		bytes, err := h.leftByGone(waiting, log, name, namespaces)
		cancel()
		if err != nil && ctx.Err() == nil && !errors.Is(err, errMeasuring) {
			log.Error(err, "what namespaces have left that are gone cannot be measured", "namespace", name)
		}
		if bytes > 0 {
			log.Info("namespaces of this name that are gone have left code", "namespace", name, "bytes", bytes)
		}
		total += bytes
	}
	h.metrics.left.Set(float64(total))
}

// leftByGone returns how many bytes the namespaces of a name have left that are gone.
func (h *Handler) leftByGone(ctx context.Context, log logr.Logger, name string, told []gitstoreapi.Namespace) (int64, error) {
	exists := slices.IndexFunc(told, func(n gitstoreapi.Namespace) bool { return !n.Gone })
	switch {
	case exists >= 0 && len(told) == 1:
		return 0, nil
	case exists >= 0:
		return h.leftTo(ctx, log, namespaceOf{name, told[exists].UID})
	}
	repositories, err := h.store.namespaceRepositories(name)
	if err != nil {
		return 0, err
	}
	return h.usage.namespace(repositories, 0)
}

// leftTo returns how many bytes other namespaces of its name have left to one.
func (h *Handler) leftTo(ctx context.Context, log logr.Logger, who namespaceOf) (int64, error) {
	owned, err := h.store.belongings(who.name, who.uid)
	if errors.Is(err, errNotTold) {
		return 0, nil
	}
	if err != nil || owned.all {
		return 0, err
	}
	return h.left.of(ctx, who, func(ctx context.Context) int64 {
		bytes, err := h.store.leftBy(ctx, who.name, owned)
		if err != nil {
			// Nobody is refused what is its own because something of others is damaged.
			if !errors.Is(ctx.Err(), context.Canceled) {
				log.Error(err, "what earlier namespaces of a name have left cannot be measured", "namespace", who.name)
			}
			return h.limits.NamespaceBytes
		}
		return bytes
	})
}

// leftBy returns how many bytes the objects take that only other namespaces' refs reach.
func (s *Store) leftBy(ctx context.Context, namespace string, owned belongings) (total int64, err error) {
	repositories, err := s.namespaceRepositories(namespace)
	if err != nil {
		return 0, err
	}
	for _, repository := range repositories {
		bytes, err := s.leftIn(ctx, repository, owned)
		if err != nil {
			return 0, fmt.Errorf("the repository %s: %w", repository.Name, err)
		}
		total += bytes
	}
	return total, nil
}

// leftIn is leftBy for one repository.
func (s *Store) leftIn(ctx context.Context, repository Repository, owned belongings) (bytes int64, err error) {
	used, err := repository.use(ctx)
	if err != nil {
		return 0, err
	}
	defer used.Close()
	g := s.gitFor(repository)
	listed, err := g.run(ctx, repository.Path, "--git-dir=.", "for-each-ref", "--format=%(objectname) %(refname)")
	if err != nil {
		return 0, err
	}
	var tips strings.Builder
	others := false
	for line := range strings.Lines(listed) {
		id, ref, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
		if readable(ref, owned, false) != "" {
			tips.WriteString("^")
		} else {
			others = true
		}
		tips.WriteString(id + "\n")
	}
	if !others {
		return 0, nil
	}
	counted, err := g.runWith(ctx, nil, strings.NewReader(tips.String()), repository.Path, "--git-dir=.", "rev-list", "--objects", "--disk-usage", "--stdin")
	if err != nil {
		return 0, err
	}
	if _, err := fmt.Sscan(counted, &bytes); err != nil {
		return 0, fmt.Errorf("git rev-list --disk-usage prints %q: %w", counted, err)
	}
	return bytes, nil
}
