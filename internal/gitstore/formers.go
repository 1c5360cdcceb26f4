package gitstore

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"slices"
	"strconv"

	"github.com/clew-dev/clew/internal/gitstoreapi"
)

// serveFormers serves POST /{namespace}/tasks/{uid}/formers, which precedes the deletion of a task: it
// says which former tasks that one has adopted, so that what they have goes with it. It shuts the
// task's fence. There may be more of them than one request can name, so each request adds to them.
func (h *Handler) serveFormers(w *statusRecorder, r *http.Request, namespace, uid string) {
	log := h.log.WithValues("namespace", namespace, "uid", uid, "operation", "formers")
	defer func() {
		h.metrics.requests.WithLabelValues("formers", "exchange", strconv.Itoa(w.status)).Inc()
	}()
	c := &call{request: r, log: log}
	h.answerJSON(w, c, struct{}{}, h.formers(c, namespace, uid))
}

// formers checks what is said about former tasks, and records it.
func (h *Handler) formers(c *call, namespace, uid string) *gitstoreapi.Refusal {
	if c.request.Method != http.MethodPost {
		return gitstoreapi.New(gitstoreapi.BadRequest, "the method must be POST")
	}
	if refused := h.authenticateServer(c); refused != nil {
		return refused
	}
	var told gitstoreapi.Formers
	if err := json.NewDecoder(io.LimitReader(c.request.Body, gitstoreapi.MaxFormersBytes)).Decode(&told); err != nil {
		return gitstoreapi.New(gitstoreapi.BadRequest, "the former tasks cannot be read: %v", err)
	}
	if len(told.Formers) > gitstoreapi.MaxFormers {
		return gitstoreapi.New(gitstoreapi.BadRequest, "a request names at most %d former tasks, not %d", gitstoreapi.MaxFormers, len(told.Formers))
	}
	if refused := checkFormers(told.Formers); refused != nil {
		return refused
	}
	release, refused := h.slot(c.request.Context(), h.fetches, "")
	if refused != nil {
		return refused
	}
	defer release()
	fences, err := h.store.fences(namespace)
	if err == nil {
		err = fences.addFormers(c.request.Context(), uid, told.Formers)
	}
	if err != nil {
		c.log.Error(err, "the former tasks could not be recorded")
		return h.storageRefusal(err, "the former tasks could not be recorded; try again, and see the gitstore's log")
	}
	return nil
}

// checkFormers refuses what cannot be the UIDs of former tasks.
func checkFormers(formers []string) *gitstoreapi.Refusal {
	if slices.ContainsFunc(formers, func(former string) bool { return !taskUID.MatchString(former) }) {
		return gitstoreapi.New(gitstoreapi.BadRequest, "each former must be the UID of a task")
	}
	return nil
}

// addFormers shuts the fence of a task that is to be deleted, and records former tasks that it has
// adopted: the record may be an older copy, and have none of them.
func (f fences) addFormers(ctx context.Context, uid string, formers []string) error {
	if _, err := f.shut(ctx, uid); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, raiseTimeout)
	defer cancel()
	return f.change(ctx, uid, func(record *fenceRecord) {
		record.Formers = slices.Compact(slices.Sorted(slices.Values(append(record.Formers, formers...))))
	})
}
