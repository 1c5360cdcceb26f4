package gitstore

import (
	"io"
	"net/http"
	"time"
)

// pace bounds how long a client may keep its place without moving bytes: it may
// stand still for a while, and must keep a least rate on the whole. Only the
// time spent waiting for the client counts, not that in which git works.
type pace struct {
	patience time.Duration
	waited   time.Duration
	moved    int64
}

// leastRate is the bytes a second that a client has to send or take.
const leastRate = 4 << 10

// left is how long the client may take now.
func (p *pace) left() time.Duration {
	earned := p.patience + time.Duration(p.moved/leastRate)*time.Second
	return min(p.patience, max(earned-p.waited, time.Millisecond))
}

// count notes that moving n bytes took the time since began.
func (p *pace) count(n int, began time.Time) {
	p.waited += time.Since(began)
	p.moved += int64(n)
}

// pacedBody is a request's body that must keep coming.
type pacedBody struct {
	io.ReadCloser
	control *http.ResponseController
	pace    pace
}

// Read implements io.Reader. The deadline goes again afterwards: it would else
// end the connection while git works.
func (b *pacedBody) Read(p []byte) (int, error) {
	began := time.Now()
	_ = b.control.SetReadDeadline(began.Add(b.pace.left())) // as good as possible
	n, err := b.ReadCloser.Read(p)
	_ = b.control.SetReadDeadline(time.Time{})
	b.pace.count(n, began)
	return n, err
}
