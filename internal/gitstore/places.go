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

// slot waits for one of the places for requests at work.
func (h *Handler) slot(ctx context.Context, s slots, namespace string) (release func(), refused *refusal.Refusal) {
	ctx, cancel := context.WithTimeout(ctx, h.slotTimeout)
	defer cancel()
	if err := h.store.git.effort.turn(ctx, namespace); err != nil {
		return nil, refusal.New(refusal.Unavailable, "git has worked more for this namespace than for others who have work for it too; try again")
	}
	free, err := s.Take(ctx, places.Share{Of: namespace, Places: s.ofNamespace})
	if err != nil {
		return nil, refusal.New(refusal.Unavailable, "too many requests are being served at the moment; try again")
	}
	h.metrics.inFlight.Inc()
	return func() { h.metrics.inFlight.Dec(); free() }, nil
}
