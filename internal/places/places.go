// Package places keeps each tenant to a share of what all of them use. Whoever
// wants to work takes a place first, within each of the shares that are theirs
// (of their task, say, and of their namespace), and waits in line while there is
// none:
//
//   - Who waits for a share of their own keeps nobody else waiting, however many
//     requests come with them, and takes no place meanwhile.
//   - The last third of all places is for those who have none. So whatever a few
//     tenants do leaves places to the others.
//   - Among those who may have a place, who came first gets it.
//   - The lines are bounded: who would have to wait where many do already is told
//     at once that there is no place.
//
// Each tenant has a line of its own, and of another's nothing is looked at but who is
// next. So what a place costs grows with the tenants who wait, not with their requests.
package places

import (
	"container/list"
	"context"
	"errors"
	"sync"
)

// waitingForEach is how many may wait for each of a share's places. Where requests
// take a second, more would hardly have their turn before their time is over.
const waitingForEach = 16

// ErrBusy says that no place became free in time, or that too many wait already.
var ErrBusy = errors.New("too many requests of this kind are being served at the moment")

// Places is a number of places. It is safe for concurrent use. Make one with New.
type Places struct {
	all, reserve int

	mu sync.Mutex
	// taken counts the places by the shares, total all of them.
	taken map[shareOf]int
	total int
	// waiting counts those in line by the shares.
	waiting map[shareOf]int
	// lines are by the names of the widest shares. Empty ones are removed.
	lines   map[string]*line
	arrived uint64
}

// Share is how many of the places may be taken by whatever has that name.
type Share struct {
	Of     string
	Places int
}

// shareOf is a share by its name and that of the widest, of which it is a part: those
// of two tenants are two, whatever their names are. So what happens in one line changes
// nothing in another.
type shareOf struct{ widest, name string }

// line is of those who wait and whose widest share is the same.
type line struct {
	waiters list.List // of *waiter, in the order of their arrival
	// next is the first of them whose shares have a place left, so that only others
	// keep them waiting; nil for none. Nothing outside of the line's share changes it.
	next *waiter
}

// waiter is one who waits for a place.
type waiter struct {
	shares []Share
	// arrival grows with the time at which they came.
	arrival uint64
	element *list.Element // in their line; nil when they have left it
	// ready is closed when the place is theirs.
	ready chan struct{}
}

// widest is the name by which is known who has no place.
func (w *waiter) widest() string {
	if len(w.shares) == 0 {
		return ""
	}
	return w.shares[len(w.shares)-1].Of
}

// New returns so many places.
func New(all int) *Places {
	return &Places{all: all, reserve: Reserve(all), taken: map[shareOf]int{}, waiting: map[shareOf]int{}, lines: map[string]*line{}}
}

// Reserve is how many of all places are for those who have none.
func Reserve(all int) int { return all / 3 }

// Take waits for a place within all of the shares; ErrBusy if ctx ends before, or at
// once if too many wait. The last share is the widest, of which the others are parts: by
// its name is known who has no place.
func (p *Places) Take(ctx context.Context, shares ...Share) (release func(), err error) {
	w := &waiter{shares: shares, ready: make(chan struct{})}
	if !p.enter(w) {
		return nil, ErrBusy
	}
	select {
	case <-w.ready:
	case <-ctx.Done():
		if p.leave(w) {
			return nil, ErrBusy
		}
	}
	return sync.OnceFunc(func() { p.free(w) }), nil
}

// Try is Take for whoever does not wait.
func (p *Places) Try(shares ...Share) (release func(), err error) {
	w := &waiter{shares: shares, ready: make(chan struct{})}
	if !p.enter(w) || p.leave(w) {
		return nil, ErrBusy
	}
	return sync.OnceFunc(func() { p.free(w) }), nil
}

// Awaited says that somebody waits who has no place at all, because others have taken
// them. Who has one, and waits for another, is not a reason to hurry those others.
func (p *Places) Awaited() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for of, l := range p.lines {
		if l.next != nil && p.taken[shareOf{of, of}] == 0 {
			return true
		}
	}
	return false
}

// enter gives a place, or one in line; false if there is neither.
func (p *Places) enter(w *waiter) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.queue(w)
	p.settle(w.widest())
	if w.element != nil && p.crowded(w) {
		p.unqueue(w)
		return false
	}
	return true
}

// leave takes one who does not wait any longer out of the line; false if they got
// a place in the meantime.
func (p *Places) leave(w *waiter) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if w.element == nil {
		return false
	}
	p.unqueue(w)
	return true
}

func (p *Places) free(w *waiter) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.total--
	count(p.taken, w, -1)
	p.settle(w.widest())
}

// settle gives places to all who may have one, after a change in the shares or the
// line of that name.
func (p *Places) settle(of string) {
	p.renew(of)
	for w := p.first(); w != nil; w = p.first() {
		p.total++
		count(p.taken, w, 1)
		p.unqueue(w)
		close(w.ready)
	}
}

// first is who came first of those who may have a place; nil if nobody may.
func (p *Places) first() *waiter {
	if p.total >= p.all {
		return nil
	}
	var first *waiter
	for of, l := range p.lines {
		if w := l.next; w != nil && p.total < p.most(of) && (first == nil || w.arrival < first.arrival) {
			first = w
		}
	}
	return first
}

// most is how many places may be taken, at most, for another to be given to whoever
// has that name.
func (p *Places) most(of string) int {
	if p.taken[shareOf{of, of}] > 0 {
		return p.all - p.reserve
	}
	return p.all
}

// queue puts somebody at the end of their line.
func (p *Places) queue(w *waiter) {
	of := w.widest()
	if p.lines[of] == nil {
		p.lines[of] = &line{}
	}
	p.arrived++
	w.arrival = p.arrived
	w.element = p.lines[of].waiters.PushBack(w)
	count(p.waiting, w, 1)
}

// unqueue takes somebody out of their line.
func (p *Places) unqueue(w *waiter) {
	of := w.widest()
	p.lines[of].waiters.Remove(w.element)
	w.element = nil
	count(p.waiting, w, -1)
	p.renew(of)
}

// renew finds out who is next in a line, after a change in its shares or in itself.
func (p *Places) renew(of string) {
	l := p.lines[of]
	if l == nil {
		return
	}
	if l.waiters.Len() == 0 {
		delete(p.lines, of)
		return
	}
	l.next = nil
	for e := l.waiters.Front(); e != nil && l.next == nil; e = e.Next() {
		if w := e.Value.(*waiter); p.within(w) {
			l.next = w
		}
	}
}

// within says whether each share has a place left.
func (p *Places) within(w *waiter) bool {
	for _, share := range w.shares {
		if p.taken[shareOf{w.widest(), share.Of}] >= share.Places {
			return false
		}
	}
	return true
}

// crowded says whether more are in line for one of the shares than may be.
func (p *Places) crowded(w *waiter) bool {
	for _, share := range w.shares {
		if p.waiting[shareOf{w.widest(), share.Of}] > waitingForEach*share.Places {
			return true
		}
	}
	return false
}

// count adds n for each of somebody's shares.
func count(counts map[shareOf]int, w *waiter, n int) {
	for _, share := range w.shares {
		of := shareOf{w.widest(), share.Of}
		if counts[of] += n; counts[of] == 0 {
			delete(counts, of)
		}
	}
}
