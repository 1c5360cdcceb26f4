// Package places keeps each tenant to a share of what all of them use. Whoever
// wants to work takes a place first, within each of the shares that are theirs
// (of their task, say, and of their namespace), and waits in line while there is
// none:
//
//   - Who waits for a share of their own keeps nobody else waiting, however many
//     requests wait with them, and takes no place meanwhile.
//   - The last third of all places is for those who have none. So whatever a few
//     tenants do leaves places to the others.
//   - Among those who may have a place, who came first gets it.
package places

import (
	"container/list"
	"context"
	"errors"
	"sync"
)

// ErrBusy says that no place became free in time.
var ErrBusy = errors.New("too many requests of this kind are being served at the moment")

// Places is a number of places. It is safe for concurrent use. Make one with New.
type Places struct {
	all, reserve int

	mu sync.Mutex
	// taken counts the places by the names of the shares, total all of them.
	taken map[string]int
	total int
	line  list.List // of *waiter, in the order of their arrival
	// kept counts those in line who have no place because others have taken all.
	kept int
}

// Share is how many of the places may be taken by whatever has that name.
type Share struct {
	Of     string
	Places int
}

// waiter is one who waits for a place.
type waiter struct {
	shares []Share
	// ready is closed when the place is theirs.
	ready chan struct{}
	// kept says that they have no place at all because others have taken them.
	kept bool
}

// New returns so many places.
func New(all int) *Places {
	return &Places{all: all, reserve: Reserve(all), taken: map[string]int{}}
}

// Reserve is how many of all places are for those who have none.
func Reserve(all int) int { return all / 3 }

// Take waits for a place within all of the shares; ErrBusy if ctx ends before. The
// last share is the widest: by its name is known who has no place.
func (p *Places) Take(ctx context.Context, shares ...Share) (release func(), err error) {
	w := &waiter{shares: shares, ready: make(chan struct{})}
	place := p.enter(w)
	select {
	case <-w.ready:
	case <-ctx.Done():
		if p.leave(w, place) {
			return nil, ErrBusy
		}
	}
	return sync.OnceFunc(func() { p.free(w) }), nil
}

// Awaited says that somebody waits who has no place at all, because others have taken
// them. Who has one, and waits for another, is not a reason to hurry those others.
func (p *Places) Awaited() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.kept > 0
}

// enter gives a place, or one in line.
func (p *Places) enter(w *waiter) *list.Element {
	p.mu.Lock()
	defer p.mu.Unlock()
	place := p.line.PushBack(w)
	p.look(place)
	return place
}

// leave takes one who does not wait any longer out of the line; false if they got
// a place in the meantime.
func (p *Places) leave(w *waiter, place *list.Element) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-w.ready:
		return false
	default:
	}
	p.keep(w, false)
	p.line.Remove(place)
	return true
}

func (p *Places) free(w *waiter) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.total--
	for _, share := range w.shares {
		if p.taken[share.Of]--; p.taken[share.Of] == 0 {
			delete(p.taken, share.Of)
		}
	}
	for place := p.line.Front(); place != nil; {
		next := place.Next()
		p.look(place)
		place = next
	}
}

// look gives one in line a place if they may have one, and else notes what they
// wait for.
func (p *Places) look(place *list.Element) {
	w := place.Value.(*waiter)
	if !p.within(w) {
		p.keep(w, false)
		return
	}
	if p.total >= p.most(w) {
		p.keep(w, !p.has(w))
		return
	}
	p.keep(w, false)
	p.line.Remove(place)
	p.total++
	for _, share := range w.shares {
		p.taken[share.Of]++
	}
	close(w.ready)
}

func (p *Places) keep(w *waiter, kept bool) {
	if w.kept == kept {
		return
	}
	if w.kept = kept; kept {
		p.kept++
	} else {
		p.kept--
	}
}

// within says whether each share has a place left.
func (p *Places) within(w *waiter) bool {
	for _, share := range w.shares {
		if p.taken[share.Of] >= share.Places {
			return false
		}
	}
	return true
}

// most is how many places may be taken, at most, for this one to be given another.
func (p *Places) most(w *waiter) int {
	if p.has(w) {
		return p.all - p.reserve
	}
	return p.all
}

// has says whether they have a place already.
func (p *Places) has(w *waiter) bool {
	n := len(w.shares)
	return n > 0 && p.taken[w.shares[n-1].Of] > 0
}
