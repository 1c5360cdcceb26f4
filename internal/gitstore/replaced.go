package gitstore

import (
	"slices"
	"sync"

	"github.com/clew-dev/clew/internal/durable"
	"github.com/clew-dev/clew/internal/refname"
)

const (
	// leastReplaced is how many bytes of replaced files a repository may always keep, and
	// replacedParts the inverse of the share of its size that they may take beyond that:
	// removing them rewrites all of it.
	leastReplaced = 64 << 20
	replacedParts = 10
)

// replaced counts the bytes that pushes have put in place of a task's live files since
// unreachable objects were last removed from each repository. It errs on the high side: some
// of the objects may be those of checkpoints as well.
type replaced struct {
	least int64

	mu    sync.Mutex
	bytes map[string]int64 // by the repository's path
}

// add counts the bytes of a push, and reports whether the repository, which takes size bytes,
// has too many that were replaced.
func (r *replaced) add(repository Repository, bytes, size int64) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.bytes[repository.Path] += bytes
	return r.bytes[repository.Path] > max(r.least, size/replacedParts)
}

// removed notes that the repository has no unreachable objects any more.
func (r *replaced) removed(repository Repository) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.bytes, repository.Path)
}

// countReplaced counts a stored push that replaced live files, and marks the repository for a
// purge when they have become too many. Otherwise the files of everybody who ever asked for
// them would stay for as long as the repository.
func (h *Handler) countReplaced(c *call, head pushHead, bytes int64) {
	live := refname.Live(c.caller.Task.UID)
	if !slices.ContainsFunc(head.Commands, func(command Command) bool { return command.Ref == live && !isZero(command.Old) }) {
		return
	}
	size, err := h.usage.repository(c.repository, usageTTL)
	if err == nil && h.replaced.add(c.repository, bytes, size) {
		err = durable.WriteShared(c.repository.mark(), temporaryFiles, nil, 0o644)
	}
	if err != nil {
		c.log.Error(err, "objects that no ref reaches stay in the repository for now")
	}
}
