package gateway

import (
	"sync"

	"github.com/clew-dev/clew/internal/history"
)

// HandleNotification processes a change in the history store: it ends the command streams
// of attempts that are over. The server at which an attempt begins ends its own streams
// at once; this is for the others, which would otherwise find out at the next heartbeat.
func (g *Gateway) HandleNotification(n history.Notification) {
	if n.UID == "" {
		g.streams.recheckAll()
		return
	}
	g.streams.fence(n.UID, n.Attempt)
}

// streams holds the open command streams. The zero value is ready.
type streams struct {
	mu     sync.Mutex
	byTask map[string]map[*stream]struct{}
}

// stream is an open command stream of one attempt.
type stream struct {
	attempt int64
	// fenced receives the number of a newer attempt that has begun.
	fenced chan int64
	// recheck receives when a newer attempt may have begun unnoticed.
	recheck chan struct{}
}

// enter adds a stream of an attempt; leave must be called when it ends.
func (s *streams) enter(taskUID string, attempt int64) (entered *stream, leave func()) {
	entered = &stream{attempt: attempt, fenced: make(chan int64, 1), recheck: make(chan struct{}, 1)}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.byTask == nil {
		s.byTask = map[string]map[*stream]struct{}{}
	}
	if s.byTask[taskUID] == nil {
		s.byTask[taskUID] = map[*stream]struct{}{}
	}
	s.byTask[taskUID][entered] = struct{}{}
	return entered, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.byTask[taskUID], entered)
		if len(s.byTask[taskUID]) == 0 {
			delete(s.byTask, taskUID)
		}
	}
}

// fence notifies the streams of the task's older attempts that the given attempt has
// begun.
func (s *streams) fence(taskUID string, attempt int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for open := range s.byTask[taskUID] {
		if open.attempt >= attempt {
			continue
		}
		select {
		case open.fenced <- attempt:
		default: // already notified
		}
	}
}

// recheckAll makes every stream check for a newer attempt.
func (s *streams) recheckAll() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, ofTask := range s.byTask {
		for open := range ofTask {
			select {
			case open.recheck <- struct{}{}:
			default:
			}
		}
	}
}
