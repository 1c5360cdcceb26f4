package gitstore

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strconv"
	"time"

	"github.com/clew-dev/clew/internal/gitstoreapi"
)

// refuse answers with a refusal.
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
	case !h.refuseInside(w, c, refused):
		h.answer(w, c, func() { writeRefusal(w, refused) })
	}
}

func writeRefusal(w http.ResponseWriter, refused *gitstoreapi.Refusal) {
	header := w.Header()
	header.Set("Content-Type", "text/plain; charset=utf-8")
	header.Set("X-Content-Type-Options", "nosniff")
	// What is refused before it is known whose it is, or in no time, has no pace but that
	// of new connections.
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

// statusOf is the HTTP status of a refusal.
func statusOf(reason gitstoreapi.Reason) int {
	switch reason {
	case gitstoreapi.Unauthenticated:
		return http.StatusUnauthorized
	case gitstoreapi.NotFound:
		return http.StatusNotFound
	case gitstoreapi.StaleAttempt, gitstoreapi.PodGone:
		return http.StatusConflict
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

// refuseInside refuses a push whose content is on its way, and reports whether it did. Git
// shows nothing of a failed request's body, so that this is a good answer with an error in
// it: on the error band, which ends the client with the sentence.
func (h *Handler) refuseInside(w http.ResponseWriter, c *call, refused *gitstoreapi.Refusal) bool {
	if !c.push() || c.advertise || c.caller.Task == nil {
		return false
	}
	if !c.begun {
		c.body.endBy(time.Now().Add(h.drainTime + h.graceTime))
		if _, unread := h.begin(w, c); unread != nil {
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

// writeWhole writes all of an answer, or the end of one that has begun. Git's client stops
// sending when it has read all of an answer after which the connection ends.
func writeWhole(w http.ResponseWriter, content []byte) error {
	w.Header().Set("Content-Length", strconv.Itoa(len(content))) // without effect if it has begun
	_, err := w.Write(content)
	return err
}

// errorPacket is a refusal on the error band, which ends a client.
func errorPacket(refused *gitstoreapi.Refusal) []byte {
	const errorBand = 3
	return packet(append([]byte{errorBand}, refused.Error()+"\n"...))
}

// acknowledge sends git's report of a push, which is durable now if it was not refused.
func (h *Handler) acknowledge(w http.ResponseWriter, c *call) {
	h.answer(w, c, func() {
		if err := writeWhole(w, c.answer); err != nil {
			c.log.Info("the client did not wait for the report", "error", err.Error())
		}
	})
}

// defaultDrainTime is less than the minute after which git gives up a connection that
// stands still.
const defaultDrainTime = 30 * time.Second

// answer lets a call be answered once the client has sent all of its push, since many a
// client reads no answer while it sends. Where that takes too long it is answered all the
// same, and given time to see it: on a connection that breaks off, what was not read of an
// answer is lost. The call keeps no place and no locks meanwhile.
func (h *Handler) answer(w http.ResponseWriter, c *call, write func()) {
	drained := make(chan struct{})
	go func() { // all along: a body of which a read was given up can be read no more
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

// drain reads what a client still sends of a push, for as long as given, and reports
// whether it came to the end of it. A namespace that uses more than its part is read from
// slowly.
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
			err = effort.turn(ctx, namespace)
		}
	}
	if !errors.Is(err, io.EOF) {
		c.log.Info("a push was not read to its end", "bytes", n, "error", err)
	}
	return errors.Is(err, io.EOF)
}

// statusRecorder remembers the status that was answered, 0 before any was, and
// expects the client to take what it is sent.
type statusRecorder struct {
	http.ResponseWriter
	status  int
	control *http.ResponseController
	pace    pace
}

func (s *statusRecorder) WriteHeader(status int) {
	if s.status == 0 {
		s.status = status
	}
	s.ResponseWriter.WriteHeader(status)
}

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

// paced moves bytes to the client, which must take them.
func (s *statusRecorder) paced(move func() int) {
	began := time.Now()
	_ = s.control.SetWriteDeadline(began.Add(s.pace.left())) // as good as possible
	s.pace.count(move(), began)
}

// Unwrap lets http.ResponseController find the real writer.
func (s *statusRecorder) Unwrap() http.ResponseWriter { return s.ResponseWriter }
