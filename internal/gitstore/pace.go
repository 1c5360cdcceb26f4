package gitstore

import (
	"io"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/clew-dev/clew/internal/fairshare"
)

// pace bounds how long a client may hold its slot without moving bytes: it may stall for
// at most patience, and must keep a minimum rate overall. Only the time spent waiting for
// the client counts, not that in which git works. While a namespace without a slot waits
// for one, the minimum rate doubles each time another patience has passed.
type pace struct {
	patience time.Duration
	waited   time.Duration
	moved    int64

	pressure *pressure
	// contended is the time spent waiting for the client while others waited for its slot;
	// behind is how much shorter that would have been at the minimum rate.
	contended, behind time.Duration
}

// The bytes per second that a client must send or accept: initially, and at most, while
// others wait for its slot.
const (
	minRate       = 4 << 10
	contendedRate = 1 << 20
)

// pressure says whether others wait for a slot of the kind that a request holds.
type pressure struct {
	// held are the slots one of which the request holds; nil while it holds none.
	held atomic.Pointer[fairshare.Slots]
}

// contended reports whether a namespace without a slot waits for one.
func (p *pressure) contended() bool {
	if p == nil {
		return false
	}
	held := p.held.Load()
	return held != nil && held.Contended()
}

// left returns how long the next read or write may wait for the client.
func (p *pace) left() time.Duration {
	earned := p.patience + time.Duration(p.moved/minRate)*time.Second
	left := min(p.patience, earned-p.waited)
	if p.pressure.contended() {
		left = min(left, p.patience-p.behind)
	}
	return max(left, time.Millisecond)
}

// rate returns the minimum rate, in bytes per second, while others wait.
func (p *pace) rate() int64 {
	rate := int64(minRate)
	for over := p.contended; over >= p.patience && rate < contendedRate; over -= p.patience {
		rate *= 2
	}
	return rate
}

// count records that moving n bytes took the time since began.
func (p *pace) count(n int, began time.Time) {
	took := time.Since(began)
	p.waited += took
	p.moved += int64(n)
	if p.pressure.contended() {
		needed := time.Duration(float64(n) / float64(p.rate()) * float64(time.Second))
		p.behind = max(0, p.behind+took-needed)
		p.contended += took
	}
}

// pacedBody is a request body that the client must send at its pace.
type pacedBody struct {
	body    io.ReadCloser
	control *http.ResponseController
	// until, if not nil, is the time after which every read fails.
	until atomic.Pointer[time.Time]
	// reading is held during a read: a read for a git that has exited may still be running.
	reading sync.Mutex
	pace    pace
}

// Read implements io.Reader. It clears its deadline afterwards, which would otherwise
// end the connection while git works.
func (b *pacedBody) Read(p []byte) (int, error) {
	b.reading.Lock()
	defer b.reading.Unlock()
	began := time.Now()
	deadline := began.Add(b.pace.left())
	_ = b.control.SetReadDeadline(deadline) // best effort
	if until := b.until.Load(); until != nil && until.Before(deadline) {
		_ = b.control.SetReadDeadline(*until) // endBy may have been called meanwhile
	}
	n, err := b.body.Read(p)
	_ = b.control.SetReadDeadline(time.Time{})
	if until := b.until.Load(); until != nil {
		_ = b.control.SetReadDeadline(*until) // for later reads
	}
	b.pace.count(n, began)
	return n, err
}

// Close implements io.Closer.
func (b *pacedBody) Close() error { return b.body.Close() }

// endBy sets the time after which every read fails. It applies to a running read too,
// which may thereby get more time.
func (b *pacedBody) endBy(t time.Time) {
	b.until.Store(&t)
	_ = b.control.SetReadDeadline(t) // best effort
}
