package gitstore

import (
	"context"
	"sync"
	"time"
)

// places are for requests that git works on at once. One namespace gets a
// quarter of them, and one at least; and the last third is for namespaces that
// hold none. So whatever a few namespaces do leaves places to the others.
type places struct {
	all, share, reserve int

	mu    sync.Mutex
	taken map[string]int
	total int
	// waiting counts those who would have got a place, had others not taken it.
	waiting int
	// freed is closed, and made anew, when a place becomes free.
	freed chan struct{}
}

func newPlaces(all int) *places {
	return &places{all: all, share: (all + 3) / 4, reserve: all / 3, taken: map[string]int{}, freed: make(chan struct{})}
}

// take waits for a place until ctx is done or the time is over. It returns nil
// if there was none.
func (p *places) take(ctx context.Context, namespace string, timeout time.Duration) (release func()) {
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	for {
		freed, ok := p.try(namespace)
		if ok {
			return func() { p.free(namespace) }
		}
		waits := p.wait(namespace)
		select {
		case <-freed:
			waits()
		case <-timer.C:
			waits()
			return nil
		case <-ctx.Done():
			waits()
			return nil
		}
	}
}

// wait notes that a namespace waits, until done. Who waits for their own share
// waits for nobody else.
func (p *places) wait(namespace string) (done func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.taken[namespace] >= p.share {
		return func() {}
	}
	p.waiting++
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.waiting--
	}
}

// awaited says that others wait for a place.
func (p *places) awaited() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.waiting > 0
}

// try takes a place, or returns a channel that is closed when to try again.
func (p *places) try(namespace string) (freed <-chan struct{}, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	most := p.all
	if p.taken[namespace] > 0 {
		most -= p.reserve
	}
	if p.total >= most || p.taken[namespace] >= p.share {
		return p.freed, false
	}
	p.total++
	p.taken[namespace]++
	return nil, true
}

func (p *places) free(namespace string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.total--
	if p.taken[namespace]--; p.taken[namespace] == 0 {
		delete(p.taken, namespace)
	}
	close(p.freed)
	p.freed = make(chan struct{})
}
