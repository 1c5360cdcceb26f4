package gitstore

import (
	"io"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/clew-dev/clew/internal/fairshare"
)

// pace bounds how long a client may keep its place without moving bytes: it may
// stand still for a while, and must keep a least rate on the whole. Only the
// time spent waiting for the client counts, not that in which git works. While a
// namespace that has no place waits for one, the rate that is to be kept doubles with
// each patience.
type pace struct {
	patience time.Duration
	waited   time.Duration
	moved    int64

	pressure *pressure
	// pressed is how long the client was waited for while others waited for its
	// place; behind is how much less it would have taken at the rate it has to keep.
	pressed, behind time.Duration
}

// The bytes a second that a client has to send or take: at first, and at most
// while others wait for its place.
const (
	leastRate   = 4 << 10
	pressedRate = 1 << 20
)

// pressure is what those who wait put on a request that has a place.
type pressure struct {
	held atomic.Pointer[fairshare.Slots]
}

func (p *pressure) on() bool {
	if p == nil {
		return false
	}
	held := p.held.Load()
	return held != nil && held.Contended()
}

// left is how long the client may take now.
func (p *pace) left() time.Duration {
	earned := p.patience + time.Duration(p.moved/leastRate)*time.Second
	left := min(p.patience, earned-p.waited)
	if p.pressure.on() {
		left = min(left, p.patience-p.behind)
	}
	return max(left, time.Millisecond)
}

// rate is what is to be kept while others wait.
func (p *pace) rate() int64 {
	rate := int64(leastRate)
	for over := p.pressed; over >= p.patience && rate < pressedRate; over -= p.patience {
		rate *= 2
	}
	return rate
}

// count notes that moving n bytes took the time since began.
func (p *pace) count(n int, began time.Time) {
	took := time.Since(began)
	p.waited += took
	p.moved += int64(n)
	if p.pressure.on() {
		needed := time.Duration(float64(n) / float64(p.rate()) * float64(time.Second))
		p.behind = max(0, p.behind+took-needed)
		p.pressed += took
	}
}

// pacedBody is a request's body that must keep coming.
type pacedBody struct {
	body    io.ReadCloser
	control *http.ResponseController
	// until, if not nil, is when all reading ends.
	until atomic.Pointer[time.Time]
	// reading is held while it is read: for a git that has ended something may still be.
	reading sync.Mutex
	pace    pace
}

// Read implements io.Reader. The deadline goes again afterwards: it would else
// end the connection while git works.
func (b *pacedBody) Read(p []byte) (int, error) {
	b.reading.Lock()
	defer b.reading.Unlock()
	began := time.Now()
	deadline := began.Add(b.pace.left())
	_ = b.control.SetReadDeadline(deadline) // as good as possible
	if until := b.until.Load(); until != nil && until.Before(deadline) {
		_ = b.control.SetReadDeadline(*until) // it was set meanwhile
	}
	n, err := b.body.Read(p)
	_ = b.control.SetReadDeadline(time.Time{})
	if until := b.until.Load(); until != nil {
		_ = b.control.SetReadDeadline(*until) // for whoever reads on
	}
	b.pace.count(n, began)
	return n, err
}

// Close implements io.Closer.
func (b *pacedBody) Close() error { return b.body.Close() }

// endBy sets when all reading ends, also what is under way, which may so get longer.
func (b *pacedBody) endBy(t time.Time) {
	b.until.Store(&t)
	_ = b.control.SetReadDeadline(t) // as good as possible
}
