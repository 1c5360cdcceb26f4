package gitstore

import (
	"errors"
	"io"
	"strings"
	"sync"

	"github.com/clew-dev/clew/internal/gitstoreapi"
)

// errIntake ends a push whose content may not come in; the refusal says why.
var errIntake = errors.New("the push was cut off")

// volumeCheckBytes is how much may come in, at most, between two looks at the
// volume.
const volumeCheckBytes = 1 << 20

// intake lets the content of one push in, and counts it before git sees it.
// Every byte is charged to the namespace at once, so that pushes that run side
// by side cannot exceed the quota together.
type intake struct {
	h          *Handler
	repository Repository
	body       io.Reader

	// mu guards what follows: when git has ended, what feeds it may still wait for the
	// client.
	mu sync.Mutex
	// total is what was charged, and allowance what may come in before the next look at
	// the volume.
	total, allowance int64
	// Nothing comes in any more when it has ended, or was refused.
	ended   bool
	refused *gitstoreapi.Refusal
}

// newIntake begins the intake of a push, whose head has been read. finish must
// be called.
func (h *Handler) newIntake(c *call, head pushHead) *intake {
	in := &intake{h: h, repository: c.repository, body: c.request.Body}
	// What git makes of a push beside its pack: an index of about 36 bytes an
	// object, and for each ref a file and its folders.
	const perObject, perFile = 36, 4 << 10
	files := int64(0)
	for _, command := range head.Commands {
		files += max(2, int64(strings.Count(command.Ref, "/"))-2)
	}
	in.take(int64(len(head.Raw)) + perObject*int64(head.Objects) + perFile*files)
	return in
}

// Read implements io.Reader for git.
func (in *intake) Read(p []byte) (int, error) {
	if in.cut() {
		return 0, errIntake
	}
	n, err := in.body.Read(p)
	if n > 0 && !in.take(int64(n)) {
		return 0, errIntake
	}
	return n, err
}

// take reports whether n more bytes come in, which it then has booked.
func (in *intake) take(n int64) bool {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.ended || in.refused != nil {
		return false
	}
	in.refused = in.charge(n)
	return in.refused == nil
}

// charge books n more bytes, or says why they may not come in. The caller holds the lock.
func (in *intake) charge(n int64) *gitstoreapi.Refusal {
	limits := in.h.limits
	if limits.PushBytes > 0 && in.total+n > limits.PushBytes {
		return gitstoreapi.New(gitstoreapi.PushTooLarge, "the push is larger than %d bytes, which is what the gitstore takes at once (--max-push-bytes)", limits.PushBytes)
	}
	if !in.h.usage.begin(in.repository, n, limits.NamespaceBytes) {
		return gitstoreapi.New(gitstoreapi.QuotaExceeded, "the push does not fit into what is left of namespace %s's quota of %d bytes; %s",
			in.repository.Namespace, limits.NamespaceBytes, makeRoom)
	}
	in.total += n
	if n <= in.allowance {
		in.allowance -= n
		return nil
	}
	free, err := in.h.free()
	if err != nil {
		return nil //nolint:nilerr // it was looked at when the push began; git finds out if it is full
	}
	if free-n < limits.FreeBytes {
		return gitstoreapi.New(gitstoreapi.VolumeFull, "the gitstore's volume has %d bytes left, of which %d are kept free, and the push needs more; make it larger or delete what is not needed",
			free, limits.FreeBytes)
	}
	in.allowance = min(volumeCheckBytes, free-limits.FreeBytes-n)
	return nil
}

// cut reports whether the push was cut off.
func (in *intake) cut() bool {
	in.mu.Lock()
	defer in.mu.Unlock()
	return in.refused != nil
}

// finish books what was charged as stored, or gives it back. It returns how much that was,
// and why the rest did not come in, if it did not.
func (in *intake) finish(stored bool) (int64, *gitstoreapi.Refusal) {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.ended = true
	in.h.usage.end(in.repository, in.total, stored)
	return in.total, in.refused
}
