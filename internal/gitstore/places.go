package gitstore

import (
	"context"

	"github.com/clew-dev/clew/internal/gitstore/refusal"
	"github.com/clew-dev/clew/internal/places"
)

// slots are the places for requests of one kind that git works on at once. One
// namespace gets a quarter of them, and one at least.
type slots struct {
	*places.Places
	ofNamespace int
}

func newSlots(all int) slots { return slots{places.New(all), (all + 3) / 4} }

// keepPace waits until the caller may ask again.
func (h *Handler) keepPace(c *call) *refusal.Refusal {
	ctx, cancel := context.WithTimeout(c.request.Context(), h.slotTimeout)
	defer cancel()
	if err := h.paces.Of(c.whose).Wait(ctx); err != nil {
		return refusal.New(refusal.Unavailable, "%s asks more than %d times a second; try again", c.caller.Name, h.limits.RequestsPerSecond)
	}
	return nil
}

// slot waits for one of the places for requests at work.
func (h *Handler) slot(ctx context.Context, s slots, namespace string) (release func(), refused *refusal.Refusal) {
	ctx, cancel := context.WithTimeout(ctx, h.slotTimeout)
	defer cancel()
	if err := h.store.git.effort.turn(ctx, namespace); err != nil {
		return nil, refusal.New(refusal.Unavailable, "git has worked more for this namespace than for others who have work for it too; try again")
	}
	h.store.git.effort.charge(namespace, requestTime)
	free, err := s.Take(ctx, places.Share{Of: namespace, Places: s.ofNamespace})
	if err != nil {
		return nil, refusal.New(refusal.Unavailable, "too many requests are being served at the moment; try again")
	}
	h.metrics.inFlight.Inc()
	return func() { h.metrics.inFlight.Dec(); free() }, nil
}
