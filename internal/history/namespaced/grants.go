package namespaced

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"

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

// Code is the store of the tasks' code, which shows to a namespace what its key says.
type Code interface {
	// TellNamespaces tells which namespaces have which keys, and returns the names of those of
	// which the store has something, and was told no first one.
	TellNamespaces(ctx context.Context, namespaces []history.Namespace) (unclaimed []string, err error)
}

// Grants tells the store of code which namespaces share their key, and carries grants out. What the
// history decides, the store of code writes down: a grant is told before the histories are joined,
// and both are repeated.
type Grants struct {
	Store *postgres.Store
	Names Namespaces
	// Code is nil if there is no store of code.
	Code   Code
	Grants []Grant
	// GoneBytes is set to how much the histories take that namespaces have left which do not exist
	// any more; nil for nothing.
	GoneBytes prometheus.Gauge
	Log       logr.Logger

	// claimed is when the first namespaces of all names were last looked for.
	claimed time.Time
	// gone are the UIDs of namespaces that do not exist any more, as of the time looked.
	gone   map[string]bool
	looked time.Time
}

// claimEvery is how often namespaces are looked for of which the store of code knows only the name:
// those that have not used their histories since UIDs are recorded, and those that are gone.
const claimEvery = time.Minute

// Run carries the grants out, again and again, until ctx ends.
func (g *Grants) Run(ctx context.Context) {
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

// granted is a grant with what the history says about it.
type granted struct {
	Grant
	// now is the namespace that has the name, own its key, and key the one that it shall have.
	now      namespaceid.Namespace
	own, key string
}

// CarryOut tells the store of code what it has to know, and carries each grant out that was not;
// failures are logged.
func (g *Grants) CarryOut(ctx context.Context) {
	if time.Since(g.looked) >= lookEvery {
		g.looked = time.Now()
		g.look(ctx)
	}
	unclaimed, _ := g.tell(ctx, granted{})
	if len(unclaimed) > 0 && time.Since(g.claimed) >= claimEvery {
		g.claimed = time.Now()
		g.claim(ctx, unclaimed)
		g.tell(ctx, granted{})
	}
	for _, grant := range g.Grants {
		admitted, ok := g.admit(ctx, grant)
		if ok && admitted.own != admitted.key {
			_, ok = g.tell(ctx, admitted)
		}
		if ok {
			g.join(ctx, admitted)
		}
	}
}

// admit returns what is to be joined; ok is false if nothing is.
func (g *Grants) admit(ctx context.Context, grant Grant) (a granted, ok bool) {
	log := g.Log.WithValues("namespace", grant.Namespace, "formerUID", grant.UID)
	found, err := g.Names.Get(ctx, grant.Namespace)
	if errors.Is(err, namespaceid.ErrNone) {
		return a, false
	}
	a = granted{Grant: grant, now: found}
	if err == nil {
		a.own, a.key, err = g.Store.GrantedKeys(ctx, grant.Namespace, found.UID, found.Created, grant.UID)
	}
	switch {
	case errors.Is(err, history.ErrNotFound):
		log.Info("no namespace of this name and UID has left histories: correct the grant in historyGrants, or remove it")
	case errors.Is(err, history.ErrExists):
		log.Info("a grant of histories is refused: correct it in historyGrants, or remove it", "error", err.Error())
	case err != nil && ctx.Err() == nil:
		log.Info("a grant of histories could not be carried out; trying again", "error", err.Error())
	}
	return a, err == nil
}

// tell tells the store of code the keys of all namespaces, as they are once a grant is carried out,
// and reports whether it knows them. It returns the names whose first namespace it was not told.
func (g *Grants) tell(ctx context.Context, grant granted) (unclaimed []string, ok bool) {
	if g.Code == nil {
		return nil, true
	}
	all, err := g.Store.Namespaces(ctx)
	for i := range all {
		all[i].Gone = g.gone[all[i].UID]
		if all[i].Name == grant.Namespace && all[i].Key == grant.own {
			all[i].Key = grant.key
		}
	}
	if err == nil {
		unclaimed, err = g.Code.TellNamespaces(ctx, all)
	}
	if err != nil && ctx.Err() == nil {
		g.Log.Info("the gitstore could not be told which namespaces share their histories; trying again", "error", err.Error())
	}
	return unclaimed, err == nil
}

// claim gives each name that the history does not know yet its first namespace, if it exists.
func (g *Grants) claim(ctx context.Context, names []string) {
	for _, name := range names {
		found, err := g.Names.Get(ctx, name)
		if err == nil {
			_, err = g.Store.NamespaceKey(ctx, name, found.UID, found.Created)
		}
		if err != nil && !errors.Is(err, namespaceid.ErrNone) && ctx.Err() == nil {
			g.Log.Info("it could not be found out whose the older histories of a name are; trying again", "namespace", name, "error", err.Error())
		}
	}
}

// join joins the histories of a grant.
func (g *Grants) join(ctx context.Context, grant granted) {
	log := g.Log.WithValues("namespace", grant.Namespace, "formerUID", grant.UID)
	changed, err := g.Store.GrantNamespace(ctx, grant.Namespace, grant.now.UID, grant.now.Created, grant.UID)
	switch {
	case err != nil && ctx.Err() == nil:
		log.Info("a grant of histories could not be carried out; trying again", "error", err.Error())
	case changed:
		log.Info("the histories of an earlier namespace have been given to the namespace that has its name now", "uid", grant.now.UID)
	}
}
