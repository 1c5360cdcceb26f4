package gitstore

import (
	"errors"
	"io"
	"strings"
	"sync"

	"github.com/clew-dev/clew/internal/gitstoreapi"
)

// errIntake ends a push whose content is not accepted; intake.refused says why.
var errIntake = errors.New("the push was cut off")

// volumeCheckBytes is how much is accepted at most between two checks of the volume's
// free space.
const volumeCheckBytes = 1 << 20

// intake reads the content of one push and counts it before git sees it. Every byte is
// charged to the namespace at once, so that concurrent pushes cannot exceed the quota
// together.
type intake struct {
	h          *Handler
	repository Repository
	body       io.Reader
	// quota is how much the repositories of the namespace may take; 0 for no limit.
	quota int64

	// mu guards the fields below: after git has exited, the goroutine that feeds it may
	// still wait for the client.
	mu sync.Mutex
	// total is what was charged, and allowance what may be accepted before the next check
	// of the volume.
	total, allowance int64
	// Nothing more is accepted once ended or refused is set.
	ended   bool
	refused *gitstoreapi.Refusal
}

// newIntake begins the intake of a push whose head has been read. The caller must call
// finish.
func (h *Handler) newIntake(c *call, head pushHead) *intake {
	in := &intake{h: h, repository: c.repository, body: c.request.Body, quota: c.quota}
	// Beside the pack, git stores an index of about 36 bytes per object, and for each ref
	// a file and its folders.
	const perObject, perFile = 36, 4 << 10
	files := int64(0)
	for _, command := range head.Commands {
		files += max(2, int64(strings.Count(command.Ref, "/"))-2)
	}
	in.accept(int64(len(head.Raw)) + perObject*int64(head.Objects) + perFile*files)
	return in
}

// Read implements io.Reader for git.
func (in *intake) Read(p []byte) (int, error) {
	if in.cut() {
		return 0, errIntake
	}
	n, err := in.body.Read(p)
	if n > 0 && !in.accept(int64(n)) {
		return 0, errIntake
	}
	return n, err
}

// accept charges n more bytes, and reports whether they are accepted.
func (in *intake) accept(n int64) bool {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.ended || in.refused != nil {
		return false
	}
	in.refused = in.charge(n)
	return in.refused == nil
}

// charge charges n more bytes, or returns why they are not accepted. The caller holds the
// lock.
func (in *intake) charge(n int64) *gitstoreapi.Refusal {
	limits := in.h.limits
	if limits.PushBytes > 0 && in.total+n > limits.PushBytes {
		return gitstoreapi.New(gitstoreapi.PushTooLarge, "the push is larger than %d bytes, the most that the gitstore accepts in one push (--max-push-bytes)", limits.PushBytes)
	}
	if !in.h.usage.begin(in.repository, n, in.quota) {
		return gitstoreapi.New(gitstoreapi.QuotaExceeded, "the push does not fit into the rest of namespace %s's quota of %d bytes%s; %s",
			in.repository.Namespace, limits.NamespaceBytes, in.h.beside(in.quota), quotaAdvice)
	}
	in.total += n
	if n <= in.allowance {
		in.allowance -= n
		return nil
	}
	free, err := in.h.free()
	if err != nil {
		return nil //nolint:nilerr // there was space when the push began; git fails if the volume is full now
	}
	if free-n < limits.FreeBytes {
		return gitstoreapi.New(gitstoreapi.VolumeFull, "the gitstore's volume has %d bytes free, of which %d are reserved, and the push needs more; enlarge the volume or delete histories that are not needed",
			free, limits.FreeBytes)
	}
	in.allowance = min(volumeCheckBytes, free-limits.FreeBytes-n)
	return nil
}

// cut reports whether the push was cut off.
func (in *intake) cut() bool { return in.refusal() != nil }

// refusal returns why the push was cut off; nil if it was not.
func (in *intake) refusal() *gitstoreapi.Refusal {
	in.mu.Lock()
	defer in.mu.Unlock()
	return in.refused
}

// finish ends the intake: it keeps the charge if the push was stored, and refunds it
// otherwise. It returns how much was charged, and why the rest was refused, if it was.
func (in *intake) finish(stored bool) (int64, *gitstoreapi.Refusal) {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.ended = true
	in.h.usage.end(in.repository, in.total, stored)
	return in.total, in.refused
}
