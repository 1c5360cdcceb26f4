package crash_test

import (
	"fmt"
	"sync"
	"time"
)

// write names a write of the manager: by what it does, and how many of the kind came before it.
type write struct {
	what string
	nth  int
}

func (w write) String() string { return fmt.Sprintf("%s #%d", w.what, w.nth) }

// moment is when the manager is killed.
type moment string

const (
	// before: the write never leaves the manager.
	before moment = "before"
	// after: the write takes effect, and the manager does not hear so.
	after moment = "after"
)

// strike is a write at which the manager is killed.
type strike struct {
	write
	when moment
}

// striker counts the manager's writes, and kills the manager at one of them.
type striker struct {
	// at is that write; nil for none.
	at *strike

	mu     sync.Mutex
	counts map[string]int
	writes []write
	last   time.Time
	struck bool
}

// next counts a write, and says whether to kill the manager at it.
func (s *striker) next(what string) (moment, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.counts == nil {
		s.counts = map[string]int{}
	}
	s.counts[what]++
	w := write{what, s.counts[what]}
	s.writes, s.last = append(s.writes, w), time.Now()
	if s.struck || s.at == nil || s.at.write != w {
		return "", false
	}
	s.struck = true
	return s.at.when, true
}

// counted returns the writes so far.
func (s *striker) counted() []write {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]write(nil), s.writes...)
}

// hit reports whether the manager was killed.
func (s *striker) hit() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.struck
}

// quiet returns how long the manager has written nothing.
func (s *striker) quiet() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return time.Since(s.last)
}
