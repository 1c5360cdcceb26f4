// Package fairshare divides a shared resource fairly between tenants. Slots bounds how
// many requests run at once, Rates how many a second.
//
// A request takes a slot within each of its shares (that of its task, say, and that of its
// namespace) and waits in line while there is none. Slots promises:
//
//   - A request that waits for its own share delays nobody else, however many requests
//     wait with it, and holds no slot while it waits.
//   - The last third of all slots is reserved for tenants that hold none, so a few tenants
//     cannot use up all slots.
//   - Among the requests that may have a slot, the one that came first gets it.
//   - Lines are bounded: a request that would join a long line is refused at once.
//
// Each tenant has its own line, and only the heads of other tenants' lines are examined.
// So the cost of a slot grows with the number of waiting tenants, not of their requests.
package fairshare

import (
	"container/list"
	"context"
	"errors"
	"sync"
)

// waitersPerSlot is how many requests may wait for each slot of a share. If a request takes
// a second, more of them would time out before their turn.
const waitersPerSlot = 16

// ErrBusy is returned when no slot became free in time, or too many requests wait already.
var ErrBusy = errors.New("too many requests of this kind are being served at the moment")

// Slots is a bounded number of slots, safe for concurrent use. Make one with NewSlots.
type Slots struct {
	all, reserve int

	mu sync.Mutex
	// taken counts the slots in use by share; total is their sum.
	taken map[shareKey]int
	total int
	// waiting counts the waiting requests by share.
	waiting map[shareKey]int
	// lines holds a line for each tenant with waiting requests.
	lines   map[string]*line
	arrived uint64
}

// Share bounds how many slots the named group may hold.
type Share struct {
	// Of names the group, within its tenant.
	Of    string
	Slots int
}

// shareKey is a share's name and its tenant's. Two tenants' shares never collide,
// whatever their names are.
type shareKey struct{ tenant, name string }

// line holds the waiting requests of one tenant.
type line struct {
	waiters list.List // of *waiter, in order of arrival
	// next is the first waiter whose shares all have a slot left, nil for none. Only
	// changes in this tenant's shares change it.
	next *waiter
}

// waiter is a request that waits for a slot.
type waiter struct {
	shares []Share
	// arrival orders waiters by when they came.
	arrival uint64
	element *list.Element // in the tenant's line; nil once out of it
	// ready is closed when the waiter has its slot.
	ready chan struct{}
}

// tenant is the name of the widest share.
func (w *waiter) tenant() string {
	if len(w.shares) == 0 {
		return ""
	}
	return w.shares[len(w.shares)-1].Of
}

// NewSlots returns a pool of the given number of slots.
func NewSlots(all int) *Slots {
	return &Slots{all: all, reserve: Reserve(all), taken: map[shareKey]int{}, waiting: map[shareKey]int{}, lines: map[string]*line{}}
}

// Reserve returns how many of all slots are kept for tenants that hold none.
func Reserve(all int) int { return all / 3 }

// Take waits for a slot within every given share. The last share is the widest and names
// the tenant; the others are parts of it. It returns ErrBusy when ctx ends first, or at
// once when the line is full.
func (p *Slots) Take(ctx context.Context, shares ...Share) (release func(), err error) {
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
	return sync.OnceFunc(func() { p.release(w) }), nil
}

// Try is Take without waiting.
func (p *Slots) Try(shares ...Share) (release func(), err error) {
	w := &waiter{shares: shares, ready: make(chan struct{})}
	if !p.enter(w) || p.leave(w) {
		return nil, ErrBusy
	}
	return sync.OnceFunc(func() { p.release(w) }), nil
}

// Contended reports whether a tenant that holds no slot waits because others hold them
// all. A tenant that waits for a second slot is no reason to hurry the others.
func (p *Slots) Contended() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for tenant, l := range p.lines {
		if l.next != nil && p.taken[shareKey{tenant, tenant}] == 0 {
			return true
		}
	}
	return false
}

// enter enqueues the waiter and gives it a slot if it may have one. It returns false,
// with the waiter out of the line, if the line is full.
func (p *Slots) enter(w *waiter) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.queue(w)
	p.grant(w.tenant())
	if w.element != nil && p.crowded(w) {
		p.unqueue(w)
		return false
	}
	return true
}

// leave takes the waiter out of the line. It returns false if it has got a slot meanwhile.
func (p *Slots) leave(w *waiter) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if w.element == nil {
		return false
	}
	p.unqueue(w)
	return true
}

func (p *Slots) release(w *waiter) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.total--
	count(p.taken, w, -1)
	p.grant(w.tenant())
}

// grant gives slots to every waiter that may have one, after a change in the given
// tenant's shares or line.
func (p *Slots) grant(tenant string) {
	p.findNext(tenant)
	for w := p.first(); w != nil; w = p.first() {
		p.total++
		count(p.taken, w, 1)
		p.unqueue(w)
		close(w.ready)
	}
}

// first returns the earliest waiter that may have a slot, nil for none.
func (p *Slots) first() *waiter {
	if p.total >= p.all {
		return nil
	}
	var first *waiter
	for tenant, l := range p.lines {
		if w := l.next; w != nil && p.total < p.limit(tenant) && (first == nil || w.arrival < first.arrival) {
			first = w
		}
	}
	return first
}

// limit is the number of slots in use, of all tenants, from which on the tenant gets no
// further one.
func (p *Slots) limit(tenant string) int {
	if p.taken[shareKey{tenant, tenant}] > 0 {
		return p.all - p.reserve
	}
	return p.all
}

// queue puts the waiter at the end of its tenant's line.
func (p *Slots) queue(w *waiter) {
	tenant := w.tenant()
	if p.lines[tenant] == nil {
		p.lines[tenant] = &line{}
	}
	p.arrived++
	w.arrival = p.arrived
	w.element = p.lines[tenant].waiters.PushBack(w)
	count(p.waiting, w, 1)
}

// unqueue takes the waiter out of its tenant's line.
func (p *Slots) unqueue(w *waiter) {
	tenant := w.tenant()
	p.lines[tenant].waiters.Remove(w.element)
	w.element = nil
	count(p.waiting, w, -1)
	p.findNext(tenant)
}

// findNext finds the next waiter of a tenant's line, after a change in the line or in the
// tenant's shares. It removes an empty line.
func (p *Slots) findNext(tenant string) {
	l := p.lines[tenant]
	if l == nil {
		return
	}
	if l.waiters.Len() == 0 {
		delete(p.lines, tenant)
		return
	}
	l.next = nil
	for e := l.waiters.Front(); e != nil && l.next == nil; e = e.Next() {
		if w := e.Value.(*waiter); p.within(w) {
			l.next = w
		}
	}
}

// within reports whether each of the waiter's shares has a slot left.
func (p *Slots) within(w *waiter) bool {
	for _, share := range w.shares {
		if p.taken[shareKey{w.tenant(), share.Of}] >= share.Slots {
			return false
		}
	}
	return true
}

// crowded reports whether too many waiters are in line for one of the waiter's shares.
func (p *Slots) crowded(w *waiter) bool {
	for _, share := range w.shares {
		if p.waiting[shareKey{w.tenant(), share.Of}] > waitersPerSlot*share.Slots {
			return true
		}
	}
	return false
}

// count adds n to the count of each of the waiter's shares.
func count(counts map[shareKey]int, w *waiter, n int) {
	for _, share := range w.shares {
		key := shareKey{w.tenant(), share.Of}
		if counts[key] += n; counts[key] == 0 {
			delete(counts, key)
		}
	}
}
