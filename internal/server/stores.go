package server

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/client-go/rest"

	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/history/namespaced"
	"github.com/clew-dev/clew/internal/history/postgres"
	"github.com/clew-dev/clew/internal/namespaceid"
)

// stores are the history store with separate connections for users that must not wait for
// each other: daemons, whose attempts cannot begin otherwise; people, who search; agents that
// search, each in its own task or a child's; and long operations: exports, imports and maintenance.
type stores struct{ daemons, people, agents, archive *postgres.Store }

// The connections of each store; the shares of packages gateway and historyapi are
// derived from them. Those of the archive serve three exports, two imports, and
// maintenance or a deletion.
const (
	daemonConnections  = 14
	peopleConnections  = 6
	agentConnections   = 3
	archiveConnections = 6
)

// agentSearchTimeout bounds a search of an agent's, which can do without what it finds.
const agentSearchTimeout = 5 * time.Second

func openStores(ctx context.Context, dsn string, limits postgres.Limits, log logr.Logger) (s stores, err error) {
	open := func(into **postgres.Store, pool postgres.Pool) {
		store, failed := postgres.OpenPool(ctx, dsn, log, pool)
		*into, err = store, errors.Join(err, failed)
	}
	open(&s.daemons, postgres.Pool{Connections: daemonConnections, StatementTimeout: 30 * time.Second, Limits: limits})
	open(&s.people, postgres.Pool{Connections: peopleConnections, StatementTimeout: 30 * time.Second, Limits: limits})
	open(&s.agents, postgres.Pool{Connections: agentConnections, StatementTimeout: agentSearchTimeout})
	open(&s.archive, postgres.Pool{Connections: archiveConnections, Limits: limits})
	if err != nil {
		s.close()
	}
	return s, err
}

func (s stores) each(f func(*postgres.Store)) {
	for _, store := range []*postgres.Store{s.daemons, s.people, s.agents, s.archive} {
		if store != nil {
			f(store)
		}
	}
}

func (s stores) close() { s.each((*postgres.Store).Close) }

// connections returns the number of open connections and how many of them are in use.
func (s stores) connections() (open, inUse int32) {
	s.each(func(store *postgres.Store) {
		o, u := store.Connections()
		open, inUse = open+o, inUse+u
	})
	return open, inUse
}

// namedStores are the stores for users who name namespaces.
type namedStores struct {
	daemons, people, agents, archive *namespaced.Store
	names                            *namespaceid.Reader
}

// named returns the stores for users who name namespaces, and what carries out grants.
func (s stores) named(config *rest.Config, grants []string, registry prometheus.Registerer, log logr.Logger) (n namedStores, g *namespaced.Grants, err error) {
	names, err := namespaceid.New(config)
	if err != nil {
		return n, nil, err
	}
	parsed, err := namespaced.ParseGrants(grants)
	if err != nil {
		return n, nil, fmt.Errorf("--history-grant: %w", err)
	}
	gone := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "clew_history_gone_namespaces_bytes", Help: "Bytes, approximately, of the histories that namespaces have left which do not exist any more. Each server reports them.",
	})
	if err := registry.Register(gone); err != nil {
		return n, nil, err
	}
	named := func(store *postgres.Store) *namespaced.Store {
		return namespaced.New(store, names, log.WithName("namespaces"))
	}
	n = namedStores{daemons: named(s.daemons), people: named(s.people), agents: named(s.agents), archive: named(s.archive), names: names}
	return n, &namespaced.Grants{Store: s.archive, Names: names, Grants: parsed, GoneBytes: gone, Log: log.WithName("grants")}, nil
}

// searching is the store of daemons, except for searches.
type searching struct {
	*namespaced.Store
	searches *namespaced.Store
}

// forAgents returns the store for daemons, with agents' searches on connections of their own.
func (n namedStores) forAgents() searching { return searching{Store: n.daemons, searches: n.agents} }

// Search implements gateway.Store.
func (s searching) Search(ctx context.Context, query history.SearchQuery) (history.SearchPage, error) {
	return s.searches.Search(ctx, query)
}

// archive is the store of people, except for long operations.
type archive struct {
	*namespaced.Store
	transfers *namespaced.Store
}

// Export implements historyapi.Archive.
func (a archive) Export(ctx context.Context, namespace, name, uid string, write func(history.ExportLine) error) error {
	return a.transfers.Export(ctx, namespace, name, uid, write)
}

// Import implements historyapi.Archive.
func (a archive) Import(ctx context.Context, namespace, by string, lines iter.Seq2[history.ExportLine, error]) (history.Task, error) {
	return a.transfers.Import(ctx, namespace, by, lines)
}

// ClaimDeletion implements historyapi.Archive.
func (a archive) ClaimDeletion(ctx context.Context, uid string) (formers []string, err error) {
	return a.transfers.ClaimDeletion(ctx, uid)
}

// DeleteTask implements historyapi.Archive.
func (a archive) DeleteTask(ctx context.Context, uid string) (history.Deleted, error) {
	return a.transfers.DeleteTask(ctx, uid)
}
