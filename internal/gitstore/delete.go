package gitstore

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/go-logr/logr"

	"github.com/clew-dev/clew/internal/clip"
	"github.com/clew-dev/clew/internal/gitstoreapi"
)

const (
	// purgeWait is how long a deletion waits for pushes and fetches under way;
	// new ones wait for it meanwhile.
	purgeWait = 30 * time.Second
	// purgeMemory is how long after a deletion a push may still build on objects
	// that were listed to it before: as long as one takes at most.
	purgeMemory = 30 * time.Minute
)

// serveDeletion answers DELETE /{namespace}/tasks/{uid}?name=<task>: it shuts
// the task's fence, deletes its refs in all repositories of the namespace, and
// removes the objects that nobody reaches then. All of it may be repeated: it
// goes on where it was interrupted.
func (h *Handler) serveDeletion(w *statusRecorder, r *http.Request, namespace, uid string) {
	log := h.log.WithValues("namespace", namespace, "uid", uid, "operation", "delete")
	defer func() {
		h.metrics.requests.WithLabelValues("delete-task", "exchange", strconv.Itoa(w.status)).Inc()
	}()
	c := &call{request: r, log: log}
	deletion, refused := h.deletion(c, namespace, uid)
	if refused != nil {
		h.refuse(w, c, refused)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	if err := json.NewEncoder(w).Encode(deletion); err != nil {
		log.Info("the client did not wait for the answer", "error", err.Error())
	}
}

func (h *Handler) deletion(c *call, namespace, uid string) (gitstoreapi.Deletion, *gitstoreapi.Refusal) {
	r := c.request
	if r.Method != http.MethodDelete {
		return gitstoreapi.Deletion{}, gitstoreapi.New(gitstoreapi.BadRequest, "the method must be DELETE")
	}
	if refused := h.authenticateServer(c); refused != nil {
		return gitstoreapi.Deletion{}, refused
	}
	name := r.URL.Query().Get("name")
	if name != "" && !taskName.MatchString(name) {
		return gitstoreapi.Deletion{}, gitstoreapi.New(gitstoreapi.BadRequest, "%q is not the name of a task", clip.Marked(name, maxShown))
	}
	release, refused := h.slot(r.Context(), h.fetches, "")
	if refused != nil {
		return gitstoreapi.Deletion{}, refused
	}
	defer release()
	started := time.Now()
	deletion, err := h.deleteTask(r.Context(), namespace, uid, name)
	var busy *busyError
	switch {
	case errors.As(err, &busy):
		h.metrics.deletions.WithLabelValues("failed").Inc()
		c.log.Info("the deletion is not finished", "error", err.Error())
		return deletion, gitstoreapi.New(gitstoreapi.Unavailable, "%v", err)
	case err != nil:
		h.metrics.deletions.WithLabelValues("failed").Inc()
		c.log.Error(err, "the deletion failed")
		return deletion, h.storageRefusal(err, "what the task stored could not be deleted as a whole; try again, and see the gitstore's log")
	}
	h.metrics.deletions.WithLabelValues("done").Inc()
	c.log.Info("deleted what a task had stored", "refs", deletion.Refs, "repositories", deletion.Repositories,
		"bytes", deletion.Bytes, "seconds", time.Since(started).Seconds())
	return deletion, nil
}

func (h *Handler) authenticateServer(c *call) *gitstoreapi.Refusal {
	token := tokenOf(c.request)
	if token == "" {
		return gitstoreapi.New(gitstoreapi.Unauthenticated, "a token is needed, as bearer token or as password of Basic authentication")
	}
	ctx, cancel := context.WithTimeout(c.request.Context(), authenticationTimeout)
	defer cancel()
	caller, err := h.authenticator.AuthenticateServer(ctx, token)
	if err != nil {
		c.log.Info("authentication failed", "error", err.Error())
		return refuseServer(err)
	}
	c.caller, c.log = caller, c.log.WithValues("caller", caller.Name)
	knowCaller(c.request, "", "server")
	return nil
}

// busyError: a repository did not become free.
type busyError struct{ repository Repository }

func (e *busyError) Error() string {
	return fmt.Sprintf("the task's refs are deleted, but the repository %s is in use, and its objects are removed once it is not; ask again to see it done", e.repository.Name)
}

// deleteTask deletes what a task has stored in a namespace.
func (h *Handler) deleteTask(ctx context.Context, namespace, uid, name string) (gitstoreapi.Deletion, error) {
	var deletion gitstoreapi.Deletion
	fences, err := h.store.fences(namespace)
	if err != nil {
		return deletion, err
	}
	known, err := fences.shut(ctx, uid)
	if err != nil {
		return deletion, err
	}
	task := taskRefs{uid: uid, name: name}
	if task.name == "" {
		task.name = known
	}
	if task.shared, err = fences.othersNamed(task.name, uid); err != nil {
		return deletion, err
	}
	repositories, err := h.store.namespaceRepositories(namespace)
	if err != nil {
		return deletion, err
	}
	// The refs of all first: what is on its way out must not be fetched any more.
	for _, repository := range repositories {
		refs, err := h.store.deleteRefs(ctx, repository, task)
		if err != nil {
			return deletion, fmt.Errorf("refs of the repository %s: %w", repository.Name, err)
		}
		deletion.Refs += refs
	}
	for _, repository := range repositories {
		freed, purged, err := h.purge(ctx, repository)
		if err != nil {
			h.pushed(repository) // the maintainer goes on with it
			return deletion, err
		}
		if purged {
			deletion.Repositories++
			deletion.Bytes += freed
		}
	}
	return deletion, nil
}

// purge purges a repository if it is marked, and tells how many bytes less it
// takes.
func (h *Handler) purge(ctx context.Context, repository Repository) (freed int64, purged bool, err error) {
	marked, err := repository.marked()
	if err != nil || !marked {
		return 0, false, err
	}
	before, err := diskUse(repository.Path)
	if err != nil {
		return 0, false, err
	}
	waiting, cancel := context.WithTimeout(ctx, purgeWait)
	defer cancel()
	h.purges.note(repository, time.Now())
	err = h.store.purge(ctx, waiting, repository)
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
		return 0, false, &busyError{repository}
	}
	if err != nil {
		return 0, false, fmt.Errorf("objects of the repository %s: %w", repository.Name, err)
	}
	h.purges.note(repository, time.Now())
	h.usage.changed(repository)
	after, err := diskUse(repository.Path)
	return max(0, before-after), true, err
}

// finishDeletion goes on with a deletion that was interrupted.
func (m *Maintainer) finishDeletion(ctx context.Context, repository Repository, log logr.Logger) {
	freed, purged, err := m.handler.purge(ctx, repository)
	switch {
	case err != nil && ctx.Err() == nil:
		log.Info("objects of deleted tasks could not be removed yet", "error", err.Error())
	case purged:
		log.Info("removed objects of deleted tasks", "bytes", freed)
	}
}

// purges remembers when objects were removed from repositories.
type purges struct {
	mu   sync.Mutex
	last map[string]time.Time
}

func (p *purges) note(repository Repository, at time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.last[repository.Path] = at
}

// recent tells whether a push may have been told, before it was sent, of
// objects that are gone since.
func (p *purges) recent(repository Repository) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	at, ok := p.last[repository.Path]
	return ok && time.Since(at) < purgeMemory
}

// overtaken returns what to answer instead to a push that git refused for want
// of objects, if a deletion may have taken them between the two requests of
// the push. The same push, made again, brings them along.
func (h *Handler) overtaken(c *call, head pushHead, report []byte) []byte {
	wanting := bytes.Contains(report, []byte("missing necessary objects")) || !unpacked(report)
	if len(head.Commands) == 0 || !head.SideBand || stored(report) || !wanting || !h.purges.recent(c.repository) {
		return report
	}
	refused := gitstoreapi.New(gitstoreapi.Unavailable, "objects that this push builds on have just been deleted with another task; push again")
	return errorPacket(refused)
}
