package ship

import (
	"context"
	"sync"

	"github.com/clew-dev/clew/internal/broadcast"
)

// progress is a number whose growth others can wait for.
type progress struct {
	mu      sync.Mutex
	value   int64
	changed broadcast.Change
}

func newProgress(value int64) *progress {
	return &progress{value: value}
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
	p.changed.Announce()
}

func (p *progress) wait(ctx context.Context, value int64) error {
	for {
		p.mu.Lock()
		now, changed := p.value, p.changed.Next()
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
