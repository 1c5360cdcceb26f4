// Package places keeps each tenant to a share of what all of them use: whoever
// wants to work takes a place of their own share first, and one of all then.
// Those who wait wait in line for their own, so that a tenant with many requests
// keeps nobody else waiting.
package places

import (
	"context"
	"errors"
	"sync"

	"golang.org/x/sync/semaphore"
)

// ErrBusy says that no place became free in time.
var ErrBusy = errors.New("too many requests of this kind are being served at the moment")

// Places is a number of places. It is safe for concurrent use. Make one with New.
type Places struct {
	total *semaphore.Weighted

	mu     sync.Mutex
	queues map[string]*queue
}

// Share is how many of the places may be taken by whatever has that name.
type Share struct {
	Of     string
	Places int64
}

// queue is where the requests of one name take turns.
type queue struct {
	places *semaphore.Weighted
	users  int
}

// New returns so many places.
func New(total int64) *Places {
	return &Places{total: semaphore.NewWeighted(total), queues: map[string]*queue{}}
}

// Take waits for a place within each of the shares, and then for one of all;
// ErrBusy if ctx ends before. The narrowest share should come first: who waits
// there takes nothing of the others'.
func (p *Places) Take(ctx context.Context, shares ...Share) (release func(), err error) {
	var taken []func()
	release = func() {
		for _, give := range taken {
			give()
		}
	}
	for _, share := range shares {
		give, err := p.takeOf(ctx, share)
		if err != nil {
			release()
			return nil, err
		}
		taken = append(taken, give)
	}
	if p.total.Acquire(ctx, 1) != nil {
		release()
		return nil, ErrBusy
	}
	taken = append(taken, func() { p.total.Release(1) })
	return release, nil
}

func (p *Places) takeOf(ctx context.Context, share Share) (release func(), err error) {
	q := p.enter(share)
	if q.places.Acquire(ctx, 1) != nil {
		p.leave(share, q)
		return nil, ErrBusy
	}
	return func() { q.places.Release(1); p.leave(share, q) }, nil
}

func (p *Places) enter(share Share) *queue {
	p.mu.Lock()
	defer p.mu.Unlock()
	q := p.queues[share.Of]
	if q == nil {
		q = &queue{places: semaphore.NewWeighted(share.Places)}
		p.queues[share.Of] = q
	}
	q.users++
	return q
}

func (p *Places) leave(share Share, q *queue) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if q.users--; q.users == 0 {
		delete(p.queues, share.Of)
	}
}
