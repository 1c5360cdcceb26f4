package namespaced

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/go-logr/logr"

	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/history/postgres"
	"github.com/clew-dev/clew/internal/namespaceid"
)

// grantEvery is how often grants are carried out: the namespace may not exist yet, and a server
// that is being replaced may still write under the former key.
const grantEvery = 10 * time.Second

// Grant gives the histories that an earlier namespace has left to the one that has its name now.
type Grant struct {
	// Namespace is the name of both.
	Namespace string
	// UID is that of the earlier one; postgres.UnknownNamespace if it was not recorded.
	UID string
}

// ParseGrants parses grants that are written as namespace=uid.
func ParseGrants(texts []string) ([]Grant, error) {
	grants := make([]Grant, 0, len(texts))
	for _, text := range texts {
		name, uid, ok := strings.Cut(text, "=")
		if !ok || name == "" || uid == "" || strings.ContainsAny(text, "@ ") {
			return nil, fmt.Errorf("%q is no grant of histories; write it as namespace=uid, with the UID of the earlier namespace", text)
		}
		grants = append(grants, Grant{Namespace: name, UID: uid})
	}
	return grants, nil
}

// Grants carries grants out. All fields are required.
type Grants struct {
	Store  *postgres.Store
	Names  Namespaces
	Grants []Grant
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
func (g *Grants) carryOut(ctx context.Context, grant Grant) {
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
