package namespaced

import (
	"context"
	"errors"
	"time"

	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/namespaceid"
)

// lookEvery is the time between two looks which namespaces still exist.
const lookEvery = 10 * time.Minute

// look finds out which of the namespaces that have histories do not exist any more, and how much
// these have left. What cannot be found out stays as it was.
func (g *Grants) look(ctx context.Context) {
	all, err := g.Store.Namespaces(ctx)
	if err != nil {
		g.report(ctx, err)
		return
	}
	existing := map[string]string{} // UIDs by name
	gone := map[string]bool{}
	for _, namespace := range all {
		uid, asked := existing[namespace.Name]
		if !asked {
			found, err := g.Names.Get(ctx, namespace.Name)
			if err != nil && !errors.Is(err, namespaceid.ErrNone) {
				g.report(ctx, err)
				return
			}
			uid = found.UID
			existing[namespace.Name] = uid
		}
		if uid != namespace.UID {
			gone[namespace.UID] = true
		}
	}
	g.gone = gone
	if g.GoneBytes == nil {
		return
	}
	sizes, err := g.Store.KeySizes(ctx)
	if err != nil {
		g.report(ctx, err)
		return
	}
	g.GoneBytes.Set(float64(goneBytes(all, gone, sizes)))
}

func (g *Grants) report(ctx context.Context, err error) {
	if ctx.Err() == nil {
		g.Log.Info("it could not be found out what namespaces have left that are gone; trying again later", "error", err.Error())
	}
}

// goneBytes sums up the keys that only namespaces have which are gone.
func goneBytes(all []history.Namespace, gone map[string]bool, sizes map[string]int64) (total int64) {
	left := map[string]bool{}
	for _, namespace := range all {
		left[namespace.Key] = true
	}
	for _, namespace := range all {
		if !gone[namespace.UID] {
			left[namespace.Key] = false
		}
	}
	for key := range left {
		if left[key] {
			total += sizes[key]
		}
	}
	return total
}
