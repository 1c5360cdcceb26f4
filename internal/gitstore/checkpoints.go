package gitstore

import (
	"errors"
	"net/http"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/clew-dev/clew/internal/gitstoreapi"
	"github.com/clew-dev/clew/internal/refname"
)

// serveCheckpoints serves GET /{namespace}/tasks/{uid}/checkpoints: which checkpoints of a task there
// are, for Clew's server. It reads refs alone. There are none of a task that has stored nothing.
func (h *Handler) serveCheckpoints(w *statusRecorder, r *http.Request, namespace, uid string) {
	log := h.log.WithValues("namespace", namespace, "uid", uid, "operation", "checkpoints")
	defer func() {
		h.metrics.requests.WithLabelValues("checkpoints", "exchange", strconv.Itoa(w.status)).Inc()
	}()
	c := &call{request: r, log: log}
	listed, refused := h.checkpoints(c, namespace, uid)
	h.answerJSON(w, c, listed, refused)
}

// checkpoints checks a request for a list of checkpoints and carries it out.
func (h *Handler) checkpoints(c *call, namespace, uid string) (listed gitstoreapi.Checkpoints, refused *gitstoreapi.Refusal) {
	if c.request.Method != http.MethodGet {
		return listed, gitstoreapi.New(gitstoreapi.BadRequest, "the method must be GET")
	}
	if refused := h.authenticateServer(c); refused != nil {
		return listed, refused
	}
	release, refused := h.slot(c.request.Context(), h.fetches, namespace)
	if refused != nil {
		return listed, refused
	}
	defer release()
	repository, err := h.store.repositoryOf(namespace, uid)
	if refusal := (*gitstoreapi.Refusal)(nil); errors.As(err, &refusal) {
		if refusal.Reason == gitstoreapi.NotFound {
			return listed, nil // an answer: only a gitstore that does not know the question refuses it
		}
		return listed, refusal
	}
	if err != nil {
		return listed, h.unavailable(c, err)
	}
	refs, err := h.store.gitFor(*repository).run(c.request.Context(), repository.Path, "--git-dir=.", "for-each-ref", "--format=%(refname)", refname.OfTask(uid))
	if err != nil {
		return listed, h.unavailable(c, err)
	}
	return gitstoreapi.Checkpoints{Numbers: wholeCheckpoints(strings.Fields(refs), uid)}, nil
}

// wholeCheckpoints returns the numbers of the checkpoints of a task that have both refs, in order.
func wholeCheckpoints(refs []string, uid string) (numbers []int64) {
	there := map[string]bool{}
	for _, ref := range refs {
		there[ref] = true
	}
	for _, ref := range refs {
		number, err := strconv.ParseInt(path.Base(ref), 10, 64)
		if err == nil && ref == refname.Code(uid, number) && there[refname.State(uid, number)] {
			numbers = append(numbers, number)
		}
	}
	slices.Sort(numbers)
	return numbers
}
