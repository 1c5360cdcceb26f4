package ship

import (
	"context"
	"sync"
)

// progress is a number that others can wait for.
type progress struct {
	mu      sync.Mutex
	value   int64
	changed chan struct{}
}

func newProgress(value int64) *progress {
	return &progress{value: value, changed: make(chan struct{})}
}

func (p *progress) get() int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.value
}

func (p *progress) set(value int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.value = value
	close(p.changed)
	p.changed = make(chan struct{})
}

func (p *progress) wait(ctx context.Context, value int64) error {
	for {
		p.mu.Lock()
		now, changed := p.value, p.changed
		p.mu.Unlock()
		if now >= value {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
