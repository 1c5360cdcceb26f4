// Package entries tells those who follow timelines which entries these have got.
//
// It promises that whoever follows the timelines of a namespace is told of every entry that is added from
// then on, once and in the order in which they were stored, or is told that it has come to an end: entries
// may have been missed then, and it has to read again, and to follow anew.
package entries

import (
	"context"
	"sync"

	"github.com/clew-dev/clew/internal/history"
)

// maxWaiting is how many entries wait for one who follows and does not read them.
const maxWaiting = 10_000

// Feed passes on what the store says of new entries. Create one with New; its methods are safe for
// concurrent use.
type Feed struct {
	mu        sync.Mutex
	followers map[*follower]struct{}
	closed    bool
}

// follower is one who follows the timelines of a namespace.
type follower struct {
	namespace string
	waiting   []history.NewEntry
	ended     bool
	// news receives when something waits, or it has ended.
	news chan struct{}
}

// New returns a Feed. Handle must be called for each new entry.
func New() *Feed { return &Feed{followers: map[*follower]struct{}{}} }

// Handle passes on a new entry. An empty one ends all who follow.
func (f *Feed) Handle(n history.NewEntry) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for one := range f.followers {
		switch {
		case n.Task.UID == "" || one.namespace == n.Task.Namespace && len(one.waiting) == maxWaiting:
			f.end(one)
		case one.namespace == n.Task.Namespace:
			one.waiting = append(one.waiting, n)
			one.tell()
		}
	}
}

// Close ends all who follow, now and later.
func (f *Feed) Close() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.closed = true
	for one := range f.followers {
		f.end(one)
	}
}

// end ends a follower. The caller holds mu.
func (f *Feed) end(one *follower) {
	one.ended, one.waiting = true, nil
	delete(f.followers, one)
	one.tell()
}

// tell wakes a follower.
func (one *follower) tell() {
	select {
	case one.news <- struct{}{}:
	default: // it was woken already
	}
}

// Follow begins to follow the timelines of a namespace, until leave is called. next waits for new entries
// and returns them, up to most at once; none if that has come to an end, or ctx has.
func (f *Feed) Follow(namespace string) (next func(ctx context.Context, most int) []history.NewEntry, leave func()) {
	one := &follower{namespace: namespace, news: make(chan struct{}, 1)}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.followers[one] = struct{}{}
	if f.closed {
		f.end(one)
	}
	next = func(ctx context.Context, most int) []history.NewEntry {
		for {
			if found, done := f.take(one, most); len(found) > 0 || done {
				return found
			}
			select {
			case <-ctx.Done():
				return nil
			case <-one.news:
			}
		}
	}
	return next, func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		delete(f.followers, one)
	}
}

// take returns what waits for a follower, up to most, and whether it has ended.
func (f *Feed) take(one *follower, most int) (found []history.NewEntry, done bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := min(most, len(one.waiting))
	found, one.waiting = one.waiting[:n:n], one.waiting[n:]
	return found, one.ended
}
