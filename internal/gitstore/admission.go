package gitstore

import (
	"errors"

	"github.com/clew-dev/clew/internal/gitstoreapi"
)

// raise records the calling attempt in the task's fence, and returns the newest one. It
// returns 0 for a caller that is not a task.
func (h *Handler) raise(c *call) (int64, *gitstoreapi.Refusal) {
	if c.caller.Task == nil || c.caller.Task.ReadOnly {
		return 0, nil
	}
	fences, err := h.store.fences(c.repository.Namespace)
	if err == nil {
		var newest int64
		if err = h.store.makeRoom(c.request.Context(), fences, *c.caller.Task); err == nil {
			newest, err = fences.raise(c.request.Context(), *c.caller.Task)
		}
		if err == nil {
			return newest, nil
		}
	}
	switch {
	case errors.Is(err, errTaskDeleted):
		return 0, taskDeleted(*c.caller.Task)
	case errors.Is(err, errOtherNamespace):
		return 0, gitstoreapi.New(gitstoreapi.PodGone, "the namespace of the task %s with UID %s does not exist any more, and another one has its name; this pod should stop", c.caller.Task.Name, c.caller.Task.UID)
	case errors.Is(err, errNotTold), errors.Is(err, errMakingRoom), errors.Is(err, errMadeRoom):
		return 0, gitstoreapi.New(gitstoreapi.Unavailable, "%v", err)
	}
	c.log.Error(err, "cannot raise the task's fence")
	return 0, h.storageRefusal(err, "the attempt of the task could not be recorded; try again")
}

// mayPush refuses a push as far as that is possible before its content is read.
func (h *Handler) mayPush(c *call, newest int64) *gitstoreapi.Refusal {
	if c.caller.Task == nil || c.caller.Task.ReadOnly {
		return gitstoreapi.New(gitstoreapi.Forbidden, "only the pod of a task may push; this token gives read access")
	}
	if refused := stale(*c.caller.Task, newest); refused != nil {
		return refused
	}
	if err := h.store.hookReady(); err != nil {
		c.log.Error(err, "the pre-receive hook cannot run; refusing pushes")
		return gitstoreapi.New(gitstoreapi.Unavailable, "the gitstore cannot check pushes at the moment; its log says why")
	}
	return h.checkSpace(c)
}

// ensureRepository makes sure that the repository exists; a task's first access creates it.
func (h *Handler) ensureRepository(c *call) *gitstoreapi.Refusal {
	exists, err := c.repository.exists()
	if err == nil && !exists {
		if c.caller.Task == nil || c.caller.Task.ReadOnly {
			return noRepository(c.repository)
		}
		if refused := h.checkSpace(c); refused != nil {
			return refused
		}
		err = h.store.create(c.request.Context(), c.repository)
	}
	if err != nil {
		c.log.Error(err, "cannot open the repository")
		return h.storageRefusal(err, "the repository could not be opened; try again, and see the gitstore's log")
	}
	return nil
}

// noRepository returns the refusal for a repository in which a reader may see nothing: it does not
// tell whether there is one.
func noRepository(r Repository) *gitstoreapi.Refusal {
	return gitstoreapi.New(gitstoreapi.NotFound, "the namespace %s has no repository %s", r.Namespace, r.Name)
}
