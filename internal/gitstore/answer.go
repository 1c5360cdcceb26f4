package gitstore

import (
	"io"
	"net/http"
	"time"

	"github.com/clew-dev/clew/internal/gitstore/refusal"
)

// refuse answers with a refusal.
func (h *Handler) refuse(w http.ResponseWriter, c *call, refused *refusal.Refusal) {
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

func writeRefusal(w http.ResponseWriter, refused *refusal.Refusal) {
	header := w.Header()
	header.Set("Content-Type", "text/plain; charset=utf-8")
	header.Set("X-Content-Type-Options", "nosniff")
	// What is refused before it is known whose it is, or in no time, has no pace but that
	// of new connections.
	header.Set("Connection", "close")
	switch refused.Reason {
	case refusal.Unauthenticated:
		header.Set("WWW-Authenticate", `Basic realm="clew gitstore", charset="UTF-8"`)
	case refusal.Unavailable:
		header.Set("Retry-After", "5")
	}
	w.WriteHeader(statusOf(refused.Reason))
	_, _ = io.WriteString(w, refused.Error()+"\n") // the client may be gone
}

// statusOf is the HTTP status of a refusal.
func statusOf(reason refusal.Reason) int {
	switch reason {
	case refusal.Unauthenticated:
		return http.StatusUnauthorized
	case refusal.NotFound:
		return http.StatusNotFound
	case refusal.StaleAttempt, refusal.PodGone:
		return http.StatusConflict
	case refusal.QuotaExceeded, refusal.VolumeFull:
		return http.StatusInsufficientStorage
	case refusal.PushTooLarge:
		return http.StatusRequestEntityTooLarge
	case refusal.BadRequest:
		return http.StatusBadRequest
	case refusal.Unavailable:
		return http.StatusServiceUnavailable
	default:
		return http.StatusForbidden
	}
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
