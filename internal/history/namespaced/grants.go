package namespaced

import (
	"context"
	"errors"
	"time"

	"github.com/go-logr/logr"

	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/history/postgres"
	"github.com/clew-dev/clew/internal/namespaceid"
)

// grantEvery is how often grants are carried out: the namespace may not exist yet, and a server
// that is being replaced may still write under the former key.
const grantEvery = 10 * time.Second

// Grants carries grants out. All fields are required.
type Grants struct {
	Store  *postgres.Store
	Names  Namespaces
	Grants []namespaceid.Grant
	Log    logr.Logger
}

// Run carries the grants out, again and again, until ctx ends.
func (g *Grants) Run(ctx context.Context) {
	if len(g.Grants) == 0 {
		return
	}
	ticks := time.NewTicker(grantEvery)
	defer ticks.Stop()
	for {
		g.CarryOut(ctx)
		select {
		case <-ctx.Done():
			return
		case <-ticks.C:
		}
	}
}

// CarryOut carries each grant out that was not; failures are logged.
func (g *Grants) CarryOut(ctx context.Context) {
	for _, grant := range g.Grants {
		g.carryOut(ctx, grant)
	}
}

// carryOut carries one grant out.
func (g *Grants) carryOut(ctx context.Context, grant namespaceid.Grant) {
	log := g.Log.WithValues("namespace", grant.Namespace, "formerUID", grant.UID)
	found, err := g.Names.Get(ctx, grant.Namespace)
	if errors.Is(err, namespaceid.ErrNone) {
		return
	}
	changed := false
	if err == nil {
		changed, err = g.Store.GrantNamespace(ctx, grant.Namespace, found.UID, found.Created, grant.UID)
	}
	switch {
	case errors.Is(err, history.ErrNotFound):
		log.Info("no namespace of this name and UID has left histories: correct the grant in historyGrants, or remove it")
	case errors.Is(err, history.ErrExists):
		log.Info("a grant of histories is refused: correct it in historyGrants, or remove it", "error", err.Error())
	case err != nil && ctx.Err() == nil:
		log.Info("a grant of histories could not be carried out; trying again", "error", err.Error())
	case changed:
		log.Info("the histories of an earlier namespace have been given to the namespace that has its name now", "uid", found.UID)
	}
}
