package gitstore

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/go-logr/logr"

	"github.com/clew-dev/clew/internal/clip"
	"github.com/clew-dev/clew/internal/gitstoreapi"
)

const (
	// purgeWait is how long a deletion waits for pushes and fetches in progress;
	// new ones wait for the deletion.
	purgeWait = 30 * time.Second
	// purgeWindow is how long after a deletion a push may still build on objects
	// that were advertised to it before: the longest time that a push takes.
	purgeWindow = 30 * time.Minute
)

// serveDeletion serves DELETE /{namespace}/tasks/{uid}?name=<task>&former=<uid>: it shuts
// the task's fence, deletes its refs in all repositories of the namespace, and
// removes the objects that no ref reaches any more. The same goes for the former tasks that the
// task has adopted: those that are recorded (see serveFormers), and those given, as an older server
// does. The request may be repeated: it continues where it was interrupted.
func (h *Handler) serveDeletion(w *statusRecorder, r *http.Request, namespace, uid string) {
	log := h.log.WithValues("namespace", namespace, "uid", uid, "operation", "delete")
	defer func() {
		h.metrics.requests.WithLabelValues("delete-task", "exchange", strconv.Itoa(w.status)).Inc()
	}()
	c := &call{request: r, log: log}
	deletion, refused := h.deletion(c, namespace, uid)
	h.answerJSON(w, c, deletion, refused)
}

// deletion checks a deletion request and carries it out.
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
		return gitstoreapi.Deletion{}, gitstoreapi.New(gitstoreapi.BadRequest, "%q is not a valid task name", clip.Marked(name, maxShown))
	}
	formers := r.URL.Query()["former"]
	if refused := checkFormers(formers); refused != nil {
		return gitstoreapi.Deletion{}, refused
	}
	release, refused := h.slot(r.Context(), h.fetches, "")
	if refused != nil {
		return gitstoreapi.Deletion{}, refused
	}
	defer release()
	started := time.Now()
	deletion, err := h.deleteTask(r.Context(), namespace, uid, name, formers)
	var busy *busyError
	switch {
	case errors.As(err, &busy):
		h.metrics.deletions.WithLabelValues("failed").Inc()
		c.log.Info("the deletion is incomplete", "error", err.Error())
		return deletion, gitstoreapi.New(gitstoreapi.Unavailable, "%v", err)
	case err != nil:
		h.metrics.deletions.WithLabelValues("failed").Inc()
		c.log.Error(err, "the deletion failed")
		return deletion, h.storageRefusal(err, "not everything that the task stored could be deleted; try again, and see the gitstore's log")
	}
	h.metrics.deletions.WithLabelValues("done").Inc()
	c.log.Info("deleted what a task had stored", "refs", deletion.Refs, "repositories", deletion.Repositories,
		"bytes", deletion.Bytes, "seconds", time.Since(started).Seconds())
	return deletion, nil
}

// authenticateServer refuses every caller but Clew's server.
func (h *Handler) authenticateServer(c *call) *gitstoreapi.Refusal {
	return h.authenticateAs(c, "server", h.authenticator.AuthenticateServer)
}

// authenticateAs refuses every caller but one of Clew's own programs.
func (h *Handler) authenticateAs(c *call, program string, authenticate func(context.Context, string) (Caller, error)) *gitstoreapi.Refusal {
	token := tokenOf(c.request)
	if token == "" {
		return gitstoreapi.New(gitstoreapi.Unauthenticated, "a token is needed, as bearer token or as password of Basic authentication")
	}
	ctx, cancel := context.WithTimeout(c.request.Context(), authenticationTimeout)
	defer cancel()
	caller, err := authenticate(ctx, token)
	if err != nil {
		c.log.Info("authentication failed", "error", err.Error())
		return refuseServer(err)
	}
	c.caller, c.log = caller, c.log.WithValues("caller", caller.Name)
	identifyConnection(c.request, "", program)
	return nil
}

// busyError is returned when a repository stayed in use for purgeWait.
type busyError struct{ repository Repository }

func (e *busyError) Error() string {
	return fmt.Sprintf("the task's refs are deleted, but the repository %s is in use, and its objects will be removed once it is not; repeat the request to confirm", e.repository.Name)
}

// deleteTask deletes everything that a task, and the former ones that it has adopted, have stored in
// a namespace.
func (h *Handler) deleteTask(ctx context.Context, namespace, uid, name string, formers []string) (gitstoreapi.Deletion, error) {
	var deletion gitstoreapi.Deletion
	tasks, err := h.shutFences(ctx, namespace, uid, name, formers)
	if err != nil {
		return deletion, err
	}
	repositories, err := h.store.namespaceRepositories(namespace)
	if err != nil {
		return deletion, err
	}
	// Delete the refs in all repositories first: objects about to be removed must not be
	// fetched any more.
	for _, repository := range repositories {
		for _, task := range tasks {
			refs, err := h.store.deleteRefs(ctx, repository, task)
			if err != nil {
				return deletion, fmt.Errorf("refs of the repository %s: %w", repository.Name, err)
			}
			deletion.Refs += refs
		}
	}
	for _, repository := range repositories {
		freed, purged, err := h.purge(ctx, repository)
		if err != nil {
			h.onPush(repository) // the maintainer finishes it
			return deletion, err
		}
		if purged {
			deletion.Repositories++
			deletion.Bytes += freed
		}
	}
	return deletion, nil
}

// shutFences shuts the fences of a task that is being deleted, and of the former ones that it has
// adopted, and returns whose refs go with it.
func (h *Handler) shutFences(ctx context.Context, namespace, uid, name string, formers []string) ([]taskRefs, error) {
	fences, err := h.store.fences(namespace)
	if err != nil {
		return nil, err
	}
	known, err := fences.shut(ctx, uid)
	if err != nil {
		return nil, err
	}
	record, err := fences.read(uid)
	if err != nil {
		return nil, err
	}
	// They are shut already, unless the store was restored from a copy that is older than the adoption:
	// then the former tasks must neither push any more nor count as others that have the name.
	formers = slices.Compact(slices.Sorted(slices.Values(append(formers, record.Formers...))))
	for _, former := range formers {
		if _, err := fences.shut(ctx, former); err != nil {
			return nil, err
		}
	}
	task := taskRefs{uid: uid, name: cmp.Or(name, known)}
	if record.Displaced {
		task.name = "" // the branches of its name are not its own
	}
	if task.shared, err = fences.nameInUse(task.name, uid); err != nil {
		return nil, err
	}
	task.shared = task.shared || record.Displacing
	if task.displaced, err = fences.displacedWith(uid, record.Namespace, cmp.Or(name, known)); err != nil {
		return nil, err
	}
	tasks := []taskRefs{task}
	for _, former := range formers {
		tasks = append(tasks, taskRefs{uid: former})
	}
	return tasks, nil
}

// purge removes unreachable objects from a repository that is marked for it, and returns
// how many bytes smaller the repository is afterwards.
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
	h.purges.record(repository, time.Now())
	err = h.store.purge(ctx, waiting, repository)
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
		return 0, false, &busyError{repository}
	}
	if err != nil {
		return 0, false, fmt.Errorf("objects of the repository %s: %w", repository.Name, err)
	}
	h.purges.record(repository, time.Now())
	h.usage.changed(repository)
	h.replaced.removed(repository)
	after, err := diskUse(repository.Path)
	return max(0, before-after), true, err
}

// finishDeletion removes the objects of a marked repository that no ref reaches: those of an
// interrupted deletion, and of files that were replaced.
func (m *Maintainer) finishDeletion(ctx context.Context, repository Repository, log logr.Logger) {
	freed, purged, err := m.handler.purge(ctx, repository)
	switch {
	case err != nil && ctx.Err() == nil:
		log.Info("objects that no ref reaches could not be removed yet", "error", err.Error())
	case purged:
		log.Info("removed objects that no ref reached", "bytes", freed)
	}
}

// purges records when objects were last removed from each repository.
type purges struct {
	mu   sync.Mutex
	last map[string]time.Time
}

// record records a purge of the repository at the given time.
func (p *purges) record(repository Repository, at time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.last[repository.Path] = at
}

// recent reports whether a push may have been advertised objects that have been removed
// since.
func (p *purges) recent(repository Repository) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	at, ok := p.last[repository.Path]
	return ok && time.Since(at) < purgeWindow
}

// overtaken returns the response to a push. If git refused it because objects are
// missing, and a deletion may have removed them between the two requests of the push,
// the response asks to push again: the repeated push contains the objects.
func (h *Handler) overtaken(c *call, head pushHead, report []byte) []byte {
	lacking := bytes.Contains(report, []byte("missing necessary objects")) || !unpacked(report)
	if len(head.Commands) == 0 || !head.SideBand || stored(report) || !lacking || !h.purges.recent(c.repository) {
		return report
	}
	refused := gitstoreapi.New(gitstoreapi.Unavailable, "objects that this push builds on have just been removed, since no ref reached them; push again")
	return errorPacket(refused)
}
