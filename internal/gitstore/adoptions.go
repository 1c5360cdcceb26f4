package gitstore

import (
	"encoding/json"
	"io"
	"net/http"
	"path/filepath"
	"strconv"

	"github.com/clew-dev/clew/internal/gitstoreapi"
)

// serveAdoptions serves POST /adoptions, by which Clew's server and manager find out which of the
// adoptions that the history has were not carried out here. What says so is stored with the
// checkpoints: a gitstore that was restored from an older copy, or got a newer one back, answers for
// what it has.
func (h *Handler) serveAdoptions(w *statusRecorder, r *http.Request) {
	defer func() {
		h.metrics.requests.WithLabelValues("adoptions", "exchange", strconv.Itoa(w.status)).Inc()
	}()
	c := &call{request: r, log: h.log.WithValues("operation", "adoptions")}
	lacking, refused := h.lackingAdoptions(c)
	h.answerJSON(w, c, lacking, refused)
}

// lackingAdoptions returns those of the adoptions asked about that the store lacks.
func (h *Handler) lackingAdoptions(c *call) (lacking gitstoreapi.Adoptions, refused *gitstoreapi.Refusal) {
	if c.request.Method != http.MethodPost {
		return lacking, gitstoreapi.New(gitstoreapi.BadRequest, "the method must be POST")
	}
	if refused := h.authenticateAdopter(c); refused != nil {
		return lacking, refused
	}
	var asked gitstoreapi.Adoptions
	if err := json.NewDecoder(io.LimitReader(c.request.Body, gitstoreapi.MaxAdoptionsBytes)).Decode(&asked); err != nil {
		return lacking, gitstoreapi.New(gitstoreapi.BadRequest, "the adoptions cannot be read: %v", err)
	}
	if len(asked.Adoptions) > gitstoreapi.MaxAdoptions {
		return lacking, gitstoreapi.New(gitstoreapi.BadRequest, "a request is about at most %d adoptions, not %d", gitstoreapi.MaxAdoptions, len(asked.Adoptions))
	}
	lacking.Adoptions = []gitstoreapi.TaskAdoption{}
	carriedOut := h.store.carriedOut()
	for _, a := range asked.Adoptions {
		if !namespaceName.MatchString(a.Namespace) || !taskUID.MatchString(a.UID) || !taskUID.MatchString(a.Former) {
			return lacking, gitstoreapi.New(gitstoreapi.BadRequest, "an adoption needs the name of a namespace and the UIDs of two tasks")
		}
		if !carriedOut(a) {
			lacking.Adoptions = append(lacking.Adoptions, a)
		}
	}
	return lacking, nil
}

// carriedOut returns what tells whether an adoption was carried out, or need not be: a task that was
// deleted, or is a former one itself, adopts nothing. The record of each task is read once.
func (s *Store) carriedOut() func(gitstoreapi.TaskAdoption) bool {
	type task struct{ namespace, uid string }
	type known struct {
		adopted map[string]bool
		deleted bool
	}
	records := map[task]known{}
	return func(a gitstoreapi.TaskAdoption) bool {
		of := task{a.Namespace, a.UID}
		is, seen := records[of]
		if !seen {
			// A record that cannot be read says nothing; the adoption then says why.
			if record, err := (fences{folder: filepath.Join(s.namespace(a.Namespace), "fences")}).read(a.UID); err == nil {
				is = known{adopted: map[string]bool{}, deleted: record.Deleted}
				for _, former := range record.Adopted {
					is.adopted[former] = true
				}
			}
			records[of] = is
		}
		return is.deleted || is.adopted[a.Former]
	}
}
