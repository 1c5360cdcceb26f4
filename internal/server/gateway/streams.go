package gateway

import (
	"sync"

	"github.com/clew-dev/clew/internal/history"
)

// Notice takes in a change in the history store: it ends the streams of
// commands of attempts that are over. The server that an attempt begins at
// ends its own streams at once; this one is for the others. Without it they
// find out at the next heartbeat.
func (g *Gateway) Notice(n history.Notification) {
	if n.UID == "" {
		g.streams.lookAll()
		return
	}
	g.streams.fence(n.UID, n.Attempt)
}

// streams knows the open streams of commands. The zero value is ready.
type streams struct {
	mu     sync.Mutex
	byTask map[string]map[*stream]struct{}
}

// stream is an open stream of commands of one attempt.
type stream struct {
	attempt int64
	// fenced gets the number of a newer attempt that has begun.
	fenced chan int64
	// look is for when a newer attempt may have begun unnoticed.
	look chan struct{}
}

// enter adds a stream of an attempt; call leave when it ends.
func (s *streams) enter(taskUID string, attempt int64) (entered *stream, leave func()) {
	entered = &stream{attempt: attempt, fenced: make(chan int64, 1), look: make(chan struct{}, 1)}
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

// fence tells the streams of older attempts of the task that the attempt has begun.
func (s *streams) fence(taskUID string, attempt int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for open := range s.byTask[taskUID] {
		if open.attempt >= attempt {
			continue
		}
		select {
		case open.fenced <- attempt:
		default: // it knows already
		}
	}
}

// lookAll has every stream look for itself.
func (s *streams) lookAll() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, ofTask := range s.byTask {
		for open := range ofTask {
			select {
			case open.look <- struct{}{}:
			default:
			}
		}
	}
}
