package gitstore

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strconv"
	"time"

	"github.com/clew-dev/clew/internal/gitstoreapi"
)

// refuse answers a request with a refusal. c is nil for a request that could not be parsed.
func (h *Handler) refuse(w http.ResponseWriter, c *call, refused *gitstoreapi.Refusal) {
	h.metrics.refusals.WithLabelValues(string(refused.Reason)).Inc()
	log := h.log
	if c != nil {
		log = c.log
	}
	log.Info("refused", "reason", refused.Reason, "message", refused.Message)
	w.Header().Set("Cache-Control", "no-store")
	switch {
	case c == nil:
		writeRefusal(w, refused)
	case !h.refuseInBand(w, c, refused):
		h.answer(w, c, func() { writeRefusal(w, refused) })
	}
}

// answerJSON answers a request of Clew's own programs with a document, or with the refusal
// unless that is nil.
func (h *Handler) answerJSON(w http.ResponseWriter, c *call, document any, refused *gitstoreapi.Refusal) {
	if refused != nil {
		h.refuse(w, c, refused)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	if err := json.NewEncoder(w).Encode(document); err != nil {
		c.log.Info("the client disconnected before the answer was sent", "error", err.Error())
	}
}

// writeRefusal writes the refusal as a plain-text HTTP response.
func writeRefusal(w http.ResponseWriter, refused *gitstoreapi.Refusal) {
	header := w.Header()
	header.Set("Content-Type", "text/plain; charset=utf-8")
	header.Set("X-Content-Type-Options", "nosniff")
	// A request refused before authentication, or at once, is throttled only by the rate of
	// new connections.
	header.Set("Connection", "close")
	switch refused.Reason {
	case gitstoreapi.Unauthenticated:
		header.Set("WWW-Authenticate", `Basic realm="clew gitstore", charset="UTF-8"`)
	case gitstoreapi.Unavailable:
		header.Set("Retry-After", "5")
	}
	content := refused.Error() + "\n"
	header.Set("Content-Length", strconv.Itoa(len(content)))
	w.WriteHeader(statusOf(refused.Reason))
	_, _ = io.WriteString(w, content) // the client may be gone
}

// statusOf returns the HTTP status for a refusal's reason.
func statusOf(reason gitstoreapi.Reason) int {
	switch reason {
	case gitstoreapi.Unauthenticated:
		return http.StatusUnauthorized
	case gitstoreapi.NotFound:
		return http.StatusNotFound
	case gitstoreapi.StaleAttempt, gitstoreapi.PodGone:
		return http.StatusConflict
	case gitstoreapi.Moved:
		return http.StatusGone
	case gitstoreapi.Damaged:
		return http.StatusInternalServerError
	case gitstoreapi.QuotaExceeded, gitstoreapi.VolumeFull:
		return http.StatusInsufficientStorage
	case gitstoreapi.PushTooLarge:
		return http.StatusRequestEntityTooLarge
	case gitstoreapi.BadRequest:
		return http.StatusBadRequest
	case gitstoreapi.Unavailable:
		return http.StatusServiceUnavailable
	default:
		return http.StatusForbidden
	}
}

// refuseInBand refuses a push within a successful response, and reports whether it did. Git
// does not show the body of a failed request, so the refusal travels on the error band of a
// 200 response, which makes the client print it and exit.
func (h *Handler) refuseInBand(w http.ResponseWriter, c *call, refused *gitstoreapi.Refusal) bool {
	if !c.push() || c.advertise || c.caller.Task == nil {
		return false
	}
	if !c.headRead {
		c.body.endBy(time.Now().Add(h.drainTime + h.graceTime))
		if _, unread := h.readHead(w, c); unread != nil {
			return false
		}
	}
	if !c.sideBand {
		return false
	}
	h.answer(w, c, func() {
		w.Header().Set("Content-Type", "application/x-git-receive-pack-result")
		_ = writeWhole(w, errorPacket(refused)) // the client may be gone
	})
	return true
}

// writeWhole writes a whole response, or the end of one that has begun. Git's client stops
// sending once it has read a complete response that closes the connection.
func writeWhole(w http.ResponseWriter, content []byte) error {
	w.Header().Set("Content-Length", strconv.Itoa(len(content))) // no effect once the response has begun
	_, err := w.Write(content)
	return err
}

// errorPacket returns a refusal as a packet on the error band, which makes a client exit.
func errorPacket(refused *gitstoreapi.Refusal) []byte {
	const errorBand = 3
	return packet(append([]byte{errorBand}, refused.Error()+"\n"...))
}

// acknowledge sends git's report of a push. Unless the push was refused, it is durable by now.
func (h *Handler) acknowledge(w http.ResponseWriter, c *call) {
	h.answer(w, c, func() {
		if err := writeWhole(w, c.answer); err != nil {
			c.log.Info("the client disconnected before the report was sent", "error", err.Error())
		}
	})
}

// defaultDrainTime is less than the minute after which git gives up on a stalled
// connection.
const defaultDrainTime = 30 * time.Second

// answer calls write once the client has sent its whole push, since many clients read no
// response while they send. After drainTime it writes anyway and keeps draining for
// graceTime: when a connection is reset, the unread part of a response is lost. The call
// holds no slot and no locks meanwhile.
func (h *Handler) answer(w http.ResponseWriter, c *call, write func()) {
	drained := make(chan struct{})
	go func() { // in one go: a body can no longer be read after a read that was abandoned
		defer close(drained)
		h.drain(c, h.drainTime+h.graceTime)
	}()
	defer func() { <-drained }()
	select {
	case <-drained:
		write()
	case <-time.After(h.drainTime):
		write()
		_ = http.NewResponseController(w).Flush() // the client may be gone
	}
}

// drain reads and discards the rest of a push for at most the given time, and reports
// whether it reached the end. A namespace that uses more than its share of processor time
// is read slowly.
func (h *Handler) drain(c *call, atMost time.Duration) (whole bool) {
	const limit = 1 << 30
	if !c.duplex {
		return true
	}
	ctx, cancel := context.WithTimeout(c.request.Context(), atMost)
	defer cancel()
	until, _ := ctx.Deadline()
	c.body.endBy(until)
	effort, namespace := h.store.git.effort, c.repository.Namespace
	buffer := make([]byte, 32<<10)
	var n int64
	var err error
	for err == nil && n < limit {
		reads := 0
		for ; err == nil && reads < drainStep; reads++ {
			var read int
			read, err = c.body.Read(buffer)
			n += int64(read)
		}
		effort.charge(namespace, time.Duration(reads)*readTime)
		if err == nil {
			err = effort.await(ctx, namespace)
		}
	}
	if !errors.Is(err, io.EOF) {
		c.log.Info("the rest of a push was not read", "bytes", n, "error", err)
	}
	return errors.Is(err, io.EOF)
}

// statusRecorder records the status of the response, 0 before one is written, and bounds
// how long the client may take to accept the response.
type statusRecorder struct {
	http.ResponseWriter
	status  int
	control *http.ResponseController
	pace    pace
}

// WriteHeader implements http.ResponseWriter.
func (s *statusRecorder) WriteHeader(status int) {
	if s.status == 0 {
		s.status = status
	}
	s.ResponseWriter.WriteHeader(status)
}

// Write implements io.Writer.
func (s *statusRecorder) Write(p []byte) (n int, err error) {
	if s.status == 0 {
		s.status = http.StatusOK
	}
	s.paced(func() int { n, err = s.ResponseWriter.Write(p); return n })
	return n, err
}

// FlushError is what http.ResponseController calls.
func (s *statusRecorder) FlushError() (err error) {
	s.paced(func() int { err = s.control.Flush(); return 0 })
	return err
}

// paced calls move, which sends bytes to the client and returns their number, within the
// client's write deadline.
func (s *statusRecorder) paced(move func() int) {
	began := time.Now()
	_ = s.control.SetWriteDeadline(began.Add(s.pace.left())) // best effort
	s.pace.count(move(), began)
}

// Unwrap lets http.ResponseController find the real writer.
func (s *statusRecorder) Unwrap() http.ResponseWriter { return s.ResponseWriter }
