package historyapi

import (
	"context"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/clew-dev/clew/internal/places"
)

// How many costly requests are served at once, of one namespace and in all.
const (
	searchesOfNamespace, searchesInAll = 2, 4
	exportsOfNamespace, exportsInAll   = 1, 3
	uploadsOfNamespace, uploadsInAll   = 1, 4
	// patience is how long a request waits for a place.
	patience = 10 * time.Second
)

// shares are the places for what costs the history store much.
type shares struct{ searches, exports, uploads *places.Places }

func newShares() shares {
	return shares{
		searches: places.New(searchesInAll), exports: places.New(exportsInAll),
		uploads: places.New(uploadsInAll),
	}
}

// enter waits for a place for a request, of so many for its namespace.
func (a *api) enter(c *call, among *places.Places, ofNamespace int) (release func(), err error) {
	ctx, cancel := context.WithTimeout(c.Context(), patience)
	defer cancel()
	release, err = among.Take(ctx, places.Share{Of: c.access.Namespace, Places: ofNamespace})
	if err != nil {
		return nil, busy()
	}
	return release, nil
}

func busy() error {
	return apierrors.NewTooManyRequests("too many searches, exports or imports are under way, in this namespace or in all; try again when they are done", retryAfter)
}
