package gateway

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"time"

	"connectrpc.com/connect"
	"golang.org/x/sync/semaphore"
	"golang.org/x/time/rate"
	"k8s.io/apimachinery/pkg/util/cache"

	"github.com/clew-dev/clew/internal/podidentity"
)

// How many requests of daemons are worked on at once. They are less than the
// connections to the history store for daemons, so that a namespace alone, or a
// task alone, cannot take them all. The rest waits in line for its own.
const (
	placesInAll       = 32
	placesOfNamespace = 8
	placesOfTask      = 2
	// streamsOfTask is how many streams of commands one task may hold: one, and
	// those of which the server has not noticed yet that they were cut.
	streamsOfTask = 8
	// placeTimeout is how long a request waits for its turn.
	placeTimeout = 15 * time.Second
)

const (
	defaultTaskBytesPerSecond = 4 << 20
	// paceBurst is for how many seconds a task may have saved up.
	paceBurst = 8
	// recordCost is what a record costs the store besides its bytes.
	recordCost = 1 << 10
	// pacesKept is how many tasks' paces are remembered, and paceKept how long:
	// afterwards nothing is owed any more.
	pacesKept = 16384
	paceKept  = time.Minute
)

// procedureCommands is the procedure whose calls last.
const procedureCommands = "Commands"

// errBusy is what a request is told that waited for too long.
var errBusy = errors.New("too many requests of this task or namespace are being served at the moment; try again")

// shares keeps each task and namespace to its part of the server.
type shares struct {
	total          *semaphore.Weighted
	bytesPerSecond int
	paces          *cache.LRUExpireCache

	mu     sync.Mutex
	queues map[string]*queue
}

// queue is where the requests of one task or namespace take turns.
type queue struct {
	places *semaphore.Weighted
	users  int
}

func newShares(bytesPerSecond int) *shares {
	return &shares{
		total: semaphore.NewWeighted(placesInAll), bytesPerSecond: bytesPerSecond,
		paces: cache.NewLRUExpireCache(pacesKept), queues: map[string]*queue{},
	}
}

// enter waits until the request may be worked on; release when it is done.
func (s *shares) enter(r *http.Request, id podidentity.Identity) (release func(), err error) {
	ctx, cancel := context.WithTimeout(r.Context(), placeTimeout)
	defer cancel()
	if procedureOf(r) == procedureCommands {
		return s.take(ctx, "streams/"+id.TaskUID, streamsOfTask)
	}
	if err := s.pace(id).WaitN(ctx, 0); err != nil {
		return nil, busy()
	}
	var taken []func()
	release = func() {
		for _, give := range taken {
			give()
		}
	}
	// The narrowest first: who waits there takes nothing of the others'.
	for _, share := range []struct {
		of     string
		places int64
	}{{"task/" + id.TaskUID, placesOfTask}, {"namespace/" + id.Namespace, placesOfNamespace}} {
		give, err := s.take(ctx, share.of, share.places)
		if err != nil {
			release()
			return nil, err
		}
		taken = append(taken, give)
	}
	if s.total.Acquire(ctx, 1) != nil {
		release()
		return nil, busy()
	}
	taken = append(taken, func() { s.total.Release(1) })
	return release, nil
}

// take waits for one of the places of whatever has that name.
func (s *shares) take(ctx context.Context, name string, places int64) (release func(), err error) {
	s.mu.Lock()
	q := s.queues[name]
	if q == nil {
		q = &queue{places: semaphore.NewWeighted(places)}
		s.queues[name] = q
	}
	q.users++
	s.mu.Unlock()
	leave := func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if q.users--; q.users == 0 {
			delete(s.queues, name)
		}
	}
	if q.places.Acquire(ctx, 1) != nil {
		leave()
		return nil, busy()
	}
	return func() { q.places.Release(1); leave() }, nil
}

// spend notes what a task has sent. Who has sent more than their pace allows
// waits for it before the next request is read.
func (s *shares) spend(id podidentity.Identity, bytes, records int) {
	pace := s.pace(id)
	pace.ReserveN(time.Now(), min(bytes+records*recordCost, pace.Burst()))
}

func (s *shares) pace(id podidentity.Identity) *rate.Limiter {
	s.mu.Lock()
	defer s.mu.Unlock()
	pace, ok := s.paces.Get(id.TaskUID)
	if !ok {
		pace = rate.NewLimiter(rate.Limit(s.bytesPerSecond), s.bytesPerSecond*paceBurst)
	}
	s.paces.Add(id.TaskUID, pace, paceKept)
	return pace.(*rate.Limiter)
}

func busy() error { return connect.NewError(connect.CodeUnavailable, errBusy) }
