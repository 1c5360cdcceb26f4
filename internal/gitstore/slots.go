package gitstore

import (
	"context"

	"github.com/clew-dev/clew/internal/fairshare"
	"github.com/clew-dev/clew/internal/gitstoreapi"
)

// slots bound how many requests of one kind git serves at once. One namespace may hold a
// quarter of them, and at least one.
type slots struct {
	*fairshare.Slots
	perNamespace int
}

// newSlots returns the given number of slots.
func newSlots(all int) slots { return slots{fairshare.NewSlots(all), (all + 3) / 4} }

// admit waits until the caller's rate limit admits the call, and then for a slot. Until it is
// released, the client has to hurry while others wait for it.
func (h *Handler) admit(c *call, s slots) (release func(), refused *gitstoreapi.Refusal) {
	ctx, cancel := context.WithTimeout(c.request.Context(), h.slotTimeout)
	defer cancel()
	if refused := h.waitRate(ctx, c); refused != nil {
		return nil, refused
	}
	free, refused := h.slot(ctx, s, c.repository.Namespace)
	if refused != nil {
		return nil, refused
	}
	c.pressure.held.Store(s.Slots)
	return func() { c.pressure.held.Store(nil); free() }, nil
}

// waitRate waits until the caller's rate limit admits another request. A caller who would
// have to wait beyond ctx's deadline is refused at the deadline and not earlier: an immediate
// refusal would invite an immediate retry.
func (h *Handler) waitRate(ctx context.Context, c *call) *gitstoreapi.Refusal {
	if err := h.rates.Of(c.callerKey).Wait(ctx); err != nil {
		<-ctx.Done()
		if err := c.request.Context().Err(); err != nil {
			return h.unavailable(c, err)
		}
		return gitstoreapi.New(gitstoreapi.Unavailable, "%s makes more than %d requests per second; try again", c.caller.Name, h.limits.RequestsPerSecond)
	}
	// Charged only now: otherwise one task that endlessly sends requests and drops them
	// would make all others of its namespace wait.
	h.store.git.effort.charge(c.repository.Namespace, requestTime)
	return nil
}

// slot waits until the namespace's use of processor time and a free slot admit a request.
func (h *Handler) slot(ctx context.Context, s slots, namespace string) (release func(), refused *gitstoreapi.Refusal) {
	ctx, cancel := context.WithTimeout(ctx, h.slotTimeout)
	defer cancel()
	if err := h.store.git.effort.await(ctx, namespace); err != nil {
		return nil, overShare()
	}
	free, err := s.Take(ctx, fairshare.Share{Of: namespace, Slots: s.perNamespace})
	return h.inSlot(free, err)
}

// slotNow is slot without waiting.
func (h *Handler) slotNow(s slots, namespace string) (release func(), refused *gitstoreapi.Refusal) {
	if h.store.git.effort.wait(namespace) > 0 {
		return nil, overShare()
	}
	free, err := s.Try(fairshare.Share{Of: namespace, Slots: s.perNamespace})
	return h.inSlot(free, err)
}

// inSlot counts a request that has a slot, or refuses it.
func (h *Handler) inSlot(free func(), err error) (release func(), refused *gitstoreapi.Refusal) {
	if err != nil {
		return nil, gitstoreapi.New(gitstoreapi.Unavailable, "too many requests are in progress; try again")
	}
	h.metrics.inFlight.Inc()
	return func() { h.metrics.inFlight.Dec(); free() }, nil
}

// overShare refuses a request of a namespace that has used much processor time.
func overShare() *gitstoreapi.Refusal {
	return gitstoreapi.New(gitstoreapi.Unavailable, "git has used more than this namespace's share of processor time while others wait for it; try again")
}
