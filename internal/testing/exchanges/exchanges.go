// Package exchanges records the latest requests to a handler and its responses, for the
// report of a failed test:
//
//	log := &exchanges.Log{}
//	server := httptest.NewServer(log.Handler(handler))
//	DeferOnFailure(func() { AddReportEntry("requests", log.String()) })
//
// It records no headers, and so no tokens, and of bodies only what a refusal says.
package exchanges

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"

	"github.com/clew-dev/clew/internal/clip"
)

const (
	// kept is the number of exchanges that a log keeps.
	kept = 20
	// tailBytes is how much of a body's end is kept. The last message of a stream of the
	// Connect protocol, which has the error, fits.
	tailBytes = 2 << 10
	// shownBytes is how much of a refusal is shown.
	shownBytes = 1000
)

// Log keeps the latest exchanges of the handlers that it records. It may be used
// concurrently, and its zero value is ready.
type Log struct {
	mu     sync.Mutex
	total  int
	latest []*exchange
}

// exchange is a request and what is known of its response.
type exchange struct {
	method, path string
	code         int // 0 until the handler responds
	ended        bool
	tail         []byte // the last bytes of the response
}

// Handler returns a handler that passes its requests to next, and records them.
func (l *Log) Handler(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		e := l.begin(r)
		defer l.change(func() { e.ended = true })
		next.ServeHTTP(&writer{ResponseWriter: w, log: l, exchange: e}, r)
	})
}

func (l *Log) begin(r *http.Request) *exchange {
	e := &exchange{method: r.Method, path: r.URL.RequestURI()}
	l.change(func() {
		l.total++
		l.latest = append(l.latest[max(0, len(l.latest)-kept+1):], e)
	})
	return e
}

func (l *Log) change(f func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	f()
}

// String lists the latest exchanges, oldest first, one per line.
func (l *Log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	text := &strings.Builder{}
	fmt.Fprintf(text, "the last %d of %d requests:", len(l.latest), l.total)
	for _, e := range l.latest {
		fmt.Fprintf(text, "\n%s %s: %s", e.method, e.path, e.outcome())
	}
	return text.String()
}

func (e *exchange) outcome() string {
	switch {
	case e.code == 0 && e.ended:
		return "ended without a response"
	case e.code == 0:
		return "not answered yet"
	case !e.ended:
		return fmt.Sprintf("%d, not complete yet", e.code)
	}
	return strings.TrimSpace(fmt.Sprintf("%d %s", e.code, e.refusal()))
}

// refusal returns what a response says about an error; "" if there was none. A stream of
// the Connect protocol fails with code 200 and an error in its last message.
func (e *exchange) refusal() string {
	said := e.tail
	if e.code < http.StatusBadRequest {
		said = streamEnd(said)
		at := bytes.LastIndex(said, []byte(`{"error":`))
		if at < 0 {
			return ""
		}
		said = said[at:]
	}
	return clip.Marked(strings.Join(strings.Fields(strings.ToValidUTF8(string(said), "?")), " "), shownBytes)
}

// streamEnd returns the last message of a stream of the Connect protocol, uncompressed, or
// the tail as it is if that does not end with a compressed one. The flags and the length of
// a message take five bytes.
func streamEnd(tail []byte) []byte {
	const compressedEnd = 0b11
	at := bytes.LastIndex(tail, []byte{0x1f, 0x8b})
	if at < 5 || tail[at-5] != compressedEnd {
		return tail
	}
	reader, err := gzip.NewReader(bytes.NewReader(tail[at:]))
	if err != nil {
		return tail
	}
	end, err := io.ReadAll(io.LimitReader(reader, tailBytes))
	if err != nil {
		return tail
	}
	return end
}

// writer is a response that is recorded.
type writer struct {
	http.ResponseWriter
	log      *Log
	exchange *exchange
}

// WriteHeader implements http.ResponseWriter.
func (w *writer) WriteHeader(code int) {
	w.log.change(func() { w.exchange.code = code })
	w.ResponseWriter.WriteHeader(code)
}

// Write implements http.ResponseWriter.
func (w *writer) Write(p []byte) (int, error) {
	w.log.change(func() {
		if w.exchange.code == 0 {
			w.exchange.code = http.StatusOK
		}
		end := append(w.exchange.tail, p[max(0, len(p)-tailBytes):]...)
		w.exchange.tail = append([]byte(nil), end[max(0, len(end)-tailBytes):]...)
	})
	return w.ResponseWriter.Write(p)
}

// Flush implements http.Flusher, which streams need. An error shows in the next write.
func (w *writer) Flush() { _ = http.NewResponseController(w.ResponseWriter).Flush() }

// Unwrap lets http.ResponseController find the real writer.
func (w *writer) Unwrap() http.ResponseWriter { return w.ResponseWriter }
