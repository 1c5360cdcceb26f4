// Package namespaced gives each namespace its own histories: those of its UID, and not those that
// an earlier namespace of its name has left.
//
// The store below it keeps histories under keys, where its users have names of namespaces. Store
// translates on each call, from a name to the key of the namespace that has the name now, and in
// what is returned from keys to names. If it cannot be found out which namespace that is, nothing
// is read or written: the error is history.ErrUnavailable, or history.ErrNotFound if there is none.
package namespaced

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/util/cache"

	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/history/postgres"
	"github.com/clew-dev/clew/internal/namespaceid"
)

const (
	// keyKept is how long a key is kept, since a grant changes it; keysKept is how many are.
	keyKept  = 5 * time.Second
	keysKept = 4096
	// loggedFor is how long it is not logged again that a task asks for a history of an earlier
	// namespace: waiting tasks ask again and again.
	loggedFor = 10 * time.Minute
)

// Namespaces tells which namespace has a name; see package namespaceid.
type Namespaces interface {
	Get(ctx context.Context, name string) (namespaceid.Namespace, error)
}

// byUID are the calls about a task by its UID alone, which need no translation. Their callers have
// the UID from a Task object, or from the answer to a call that was translated.
type byUID interface {
	FormerTasks(ctx context.Context, taskUID string) ([]history.FormerTask, error)
	CheckpointsAfter(ctx context.Context, taskUID string, after int64, limit int) ([]history.Checkpoint, error)
	ResolvePosition(ctx context.Context, taskUID string, query history.PositionQuery) (history.Resolved, error)
	Conversation(ctx context.Context, taskUID string, after int64, limit int) ([]history.Entry, error)
	SnapshotsAfter(ctx context.Context, taskUID string, afterOrdinal int64, limit int) ([]history.Snapshot, error)
	PushedCheckpoints(ctx context.Context, taskUID string) (durable, lost []int64, err error)
	UnpushedCheckpoints(ctx context.Context, taskUID string) ([]int64, error)
	DamagedObjects(ctx context.Context, taskUID string) ([]int64, error)
	Attempt(ctx context.Context, taskUID string) (int64, error)
}

// Store is a history store for users who name namespaces. Its methods promise what those of
// postgres.Store do.
type Store struct {
	byUID
	keyed *postgres.Store
	names Namespaces
	keys  *cache.LRUExpireCache
	log   logr.Logger
	// logged are the tasks of which it was logged that they ask for what is not granted.
	logged *cache.LRUExpireCache
}

// New returns a Store that keeps histories in the given one.
func New(keyed *postgres.Store, names Namespaces, log logr.Logger) *Store {
	return &Store{byUID: keyed, keyed: keyed, names: names, keys: cache.NewLRUExpireCache(keysKept), log: log, logged: cache.NewLRUExpireCache(keysKept)}
}

// key returns the key of the namespace that has the name now.
func (s *Store) key(ctx context.Context, name string) (string, error) {
	found, err := find(ctx, s.names, name)
	if err != nil {
		return "", err
	}
	if key, ok := s.keys.Get(found.UID); ok {
		return key.(string), nil
	}
	key, err := s.keyed.NamespaceKey(ctx, name, found.UID, found.Created)
	if err == nil {
		s.keys.Add(found.UID, key, keyKept)
	}
	return key, err
}

// Namespace returns the namespace that has the name now. Its key is as the history has it at this moment.
func (s *Store) Namespace(ctx context.Context, name string) (history.Namespace, error) {
	found, err := find(ctx, s.names, name)
	if err != nil {
		return history.Namespace{}, err
	}
	key, err := s.keyed.NamespaceKey(ctx, name, found.UID, found.Created)
	return history.Namespace{Name: name, UID: found.UID, Key: key}, err
}

// find returns the namespace of a name.
func find(ctx context.Context, names Namespaces, name string) (namespaceid.Namespace, error) {
	found, err := names.Get(ctx, name)
	switch {
	case errors.Is(err, namespaceid.ErrNone):
		return found, fmt.Errorf("%w: there is no namespace %s", history.ErrNotFound, name)
	case err != nil:
		return found, fmt.Errorf("%w: it cannot be found out whose histories those of the namespace %s are: %w", history.ErrUnavailable, name, err)
	}
	return found, nil
}

// keyOf returns a task's key with the key of its namespace.
func (s *Store) keyOf(ctx context.Context, task history.Key) (history.Key, error) {
	key, err := s.key(ctx, task.Namespace)
	return history.Key{Namespace: key, UID: task.UID}, err
}

// task returns a task with the key of its namespace.
func (s *Store) task(ctx context.Context, task history.Task) (history.Task, error) {
	key, err := s.key(ctx, task.Namespace)
	return history.Task{Namespace: key, Name: task.Name, UID: task.UID}, err
}

// Name returns the name of the namespace of a key.
func Name(key string) string {
	name, _, _ := strings.Cut(key, "@")
	return name
}

// named returns a task with the name of its namespace.
func named(task history.Task) history.Task {
	task.Namespace = Name(task.Namespace)
	return task
}

// EarlierNamespace reports whether an earlier namespace of that name has a history of a task, which
// is not of the namespace that has the name now. Which one that is, and how its histories are
// granted, is told to administrators, in the log.
func (s *Store) EarlierNamespace(ctx context.Context, namespace, task string) (bool, error) {
	key, err := s.key(ctx, namespace)
	if err != nil {
		return false, err
	}
	uids, err := s.keyed.EarlierNamespaces(ctx, namespace, key, task)
	asks := namespace + "/" + task
	if _, logged := s.logged.Get(asks); len(uids) > 0 && !logged {
		s.logged.Add(asks, true, loggedFor)
		s.log.Info("an earlier namespace of this name has a history that a task asks for; to give its histories to the namespace of today, add the grant to historyGrants in the values of Clew's chart",
			"task", task, "grants", grantsOf(namespace, uids))
	}
	return len(uids) > 0, err
}

// grantsOf returns the grants of the histories of former namespaces, as in the chart's values.
func grantsOf(namespace string, uids []string) []string {
	grants := make([]string, 0, len(uids))
	for _, uid := range uids {
		grants = append(grants, fmt.Sprintf("{namespace: %s, uid: %s}", namespace, uid))
	}
	return grants
}
