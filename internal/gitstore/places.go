package gitstore

import (
	"context"

	"github.com/clew-dev/clew/internal/fairshare"
	"github.com/clew-dev/clew/internal/gitstoreapi"
)

// slots are the places for requests of one kind that git works on at once. One
// namespace gets a quarter of them, and one at least.
type slots struct {
	*fairshare.Slots
	ofNamespace int
}

func newSlots(all int) slots { return slots{fairshare.NewSlots(all), (all + 3) / 4} }

// turn waits until it is a call's turn: for the caller's pace, and for a place.
func (h *Handler) turn(c *call, s slots) (release func(), refused *gitstoreapi.Refusal) {
	ctx, cancel := context.WithTimeout(c.request.Context(), h.slotTimeout)
	defer cancel()
	if refused := h.keepPace(ctx, c); refused != nil {
		return nil, refused
	}
	return h.slot(ctx, s, c.repository.Namespace)
}

// keepPace waits until the caller may ask again. Whoever would have to wait for longer
// than ctx lasts is refused at its end, not before: a refusal at once is an invitation to
// ask again at once.
func (h *Handler) keepPace(ctx context.Context, c *call) *gitstoreapi.Refusal {
	if err := h.paces.Of(c.whose).Wait(ctx); err != nil {
		<-ctx.Done()
		if err := c.request.Context().Err(); err != nil {
			return h.unavailable(c, err)
		}
		return gitstoreapi.New(gitstoreapi.Unavailable, "%s asks more than %d times a second; try again", c.caller.Name, h.limits.RequestsPerSecond)
	}
	// Not before: one task that asks and breaks off without end would have all others of
	// its namespace wait.
	h.store.git.effort.charge(c.repository.Namespace, requestTime)
	return nil
}

// slot waits for one of the places for requests at work.
func (h *Handler) slot(ctx context.Context, s slots, namespace string) (release func(), refused *gitstoreapi.Refusal) {
	ctx, cancel := context.WithTimeout(ctx, h.slotTimeout)
	defer cancel()
	if err := h.store.git.effort.turn(ctx, namespace); err != nil {
		return nil, gitstoreapi.New(gitstoreapi.Unavailable, "git has worked more for this namespace than for others who have work for it too; try again")
	}
	free, err := s.Take(ctx, fairshare.Share{Of: namespace, Slots: s.ofNamespace})
	if err != nil {
		return nil, gitstoreapi.New(gitstoreapi.Unavailable, "too many requests are being served at the moment; try again")
	}
	h.metrics.inFlight.Inc()
	return func() { h.metrics.inFlight.Dec(); free() }, nil
}
