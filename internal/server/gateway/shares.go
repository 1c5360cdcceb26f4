package gateway

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"time"

	"connectrpc.com/connect"
	"golang.org/x/time/rate"
	"k8s.io/apimachinery/pkg/util/cache"

	"github.com/clew-dev/clew/internal/podidentity"
	"github.com/clew-dev/clew/internal/server/places"
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
	streamsInAll  = 20_000
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
	requests, streams *places.Places
	bytesPerSecond    int

	mu    sync.Mutex
	paces *cache.LRUExpireCache
}

func newShares(bytesPerSecond int) *shares {
	return &shares{
		requests: places.New(placesInAll), streams: places.New(streamsInAll), bytesPerSecond: bytesPerSecond,
		paces: cache.NewLRUExpireCache(pacesKept),
	}
}

// enter waits until the request may be worked on; release when it is done.
func (s *shares) enter(r *http.Request, id podidentity.Identity) (release func(), err error) {
	ctx, cancel := context.WithTimeout(r.Context(), placeTimeout)
	defer cancel()
	if procedureOf(r) == procedureCommands {
		release, err = s.streams.Take(ctx, places.Share{Of: id.TaskUID, Places: streamsOfTask})
	} else if err = s.pace(id).WaitN(ctx, 0); err == nil {
		release, err = s.requests.Take(ctx,
			places.Share{Of: "task/" + id.TaskUID, Places: placesOfTask},
			places.Share{Of: "namespace/" + id.Namespace, Places: placesOfNamespace})
	}
	if err != nil {
		return nil, connect.NewError(connect.CodeUnavailable, errBusy)
	}
	return release, nil
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
