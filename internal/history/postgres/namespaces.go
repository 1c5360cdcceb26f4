package postgres

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/clew-dev/clew/internal/budget"
	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/history/postgres/sqlc"
)

// A namespace that is made anew under an old name is another one, and the histories of the old one
// are not its own. So all that a Store calls a namespace is a key, which belongs to the UID of a
// namespace; package namespaced translates names to keys and back.

// UnknownNamespace stands for the UID of a namespace that was gone before UIDs were recorded.
const UnknownNamespace = "unknown"

// NamespaceKey returns the key under which the histories of a namespace are stored: its name for
// the first UID that is known under the name. What was stored before UIDs were recorded belongs to
// the namespace that asks first, unless that was created after the newest task of it began.
func (s *Store) NamespaceKey(ctx context.Context, name, uid string, created time.Time) (string, error) {
	doing := fmt.Sprintf("find the histories of the namespace %s with UID %s", name, uid)
	key, err := s.read().NamespaceKey(ctx, sqlc.NamespaceKeyParams{Name: name, Uid: uid})
	if !errors.Is(err, pgx.ErrNoRows) {
		return key, wrap(err, doing)
	}
	err = s.write(ctx, doing, func(q *sqlc.Queries) error {
		key, err = claimNamespace(ctx, q, name, uid, created)
		return err
	})
	return key, err
}

// claimNamespace gives a namespace its key, if it has none.
func claimNamespace(ctx context.Context, q *sqlc.Queries, name, uid string, created time.Time) (string, error) {
	if err := q.LockNamespaces(ctx); err != nil {
		return "", err
	}
	key, err := q.NamespaceKey(ctx, sqlc.NamespaceKeyParams{Name: name, Uid: uid})
	if !errors.Is(err, pgx.ErrNoRows) {
		return key, err
	}
	known, err := q.NamespaceKnown(ctx, name)
	if err != nil {
		return "", err
	}
	key = name
	if !known {
		rows, err := q.NamespaceRows(ctx, name)
		if err != nil {
			return "", err
		}
		if known = rows.AnyRow && rows.Newest.Before(created); known {
			if err := q.InsertNamespace(ctx, sqlc.InsertNamespaceParams{Name: name, Uid: UnknownNamespace, Key: name}); err != nil {
				return "", err
			}
		}
	}
	if known {
		key = name + "@" + uid
	}
	return key, q.InsertNamespace(ctx, sqlc.InsertNamespaceParams{Name: name, Uid: uid, Key: key})
}

// EarlierNamespaces returns the UIDs of other namespaces of a name that have histories of a task,
// which are not those of the given key.
func (s *Store) EarlierNamespaces(ctx context.Context, name, key, task string) ([]string, error) {
	uids, err := s.read().EarlierNamespaces(ctx, sqlc.EarlierNamespacesParams{Name: name, Key: key, Task: task})
	return uids, wrap(err, fmt.Sprintf("find histories of the task %s of earlier namespaces %s", task, name))
}

// KeySizes returns how much the histories of namespaces take, by key and approximately, in bytes.
func (s *Store) KeySizes(ctx context.Context) (map[string]int64, error) {
	rows, err := s.read().KeySizes(ctx)
	sizes := make(map[string]int64, len(rows))
	for _, row := range rows {
		sizes[row.Key] = row.Bytes
	}
	return sizes, wrap(err, "sum up how much the histories of namespaces take")
}

// Namespaces returns all namespaces that are known, of each name the earliest first.
func (s *Store) Namespaces(ctx context.Context) ([]history.Namespace, error) {
	rows, err := s.read().Namespaces(ctx)
	found := make([]history.Namespace, 0, len(rows))
	for _, row := range rows {
		found = append(found, history.Namespace{Name: row.Name, UID: row.Uid, Key: row.Key})
	}
	return found, wrap(err, "list the namespaces")
}

// GrantedKeys returns what GrantNamespace would join: the key of the namespace, and that of the
// former one, which it then has; they are equal if nothing is left to do. Errors are those of
// GrantNamespace.
func (s *Store) GrantedKeys(ctx context.Context, name, uid string, created time.Time, former string) (own, key string, err error) {
	doing := fmt.Sprintf("find the histories of the namespace %s with UID %s, which are granted to the one with UID %s", name, former, uid)
	err = s.write(ctx, doing, func(q *sqlc.Queries) error {
		own, key, err = grantedKeys(ctx, q, name, uid, created, former)
		return err
	})
	return own, key, err
}

// grantedKeys returns the keys of the namespaces of a grant. A grant that stays configured gives
// nothing to a namespace that is made anew later.
func grantedKeys(ctx context.Context, q *sqlc.Queries, name, uid string, created time.Time, former string) (own, key string, err error) {
	if own, err = claimNamespace(ctx, q, name, uid, created); err != nil {
		return "", "", err
	}
	key, err = q.NamespaceKey(ctx, sqlc.NamespaceKeyParams{Name: name, Uid: former})
	if err != nil || own == key {
		return own, key, err
	}
	newest, err := q.NewestNamespace(ctx, key)
	if err == nil && newest != former {
		err = fmt.Errorf("%w: these histories have been given to the namespace with UID %s since, from which they can be taken over", history.ErrExists, newest)
	}
	return own, key, err
}

// GrantNamespace makes the histories of a former namespace those of the namespace of that name with
// the given UID, which keeps its own. It reports whether anything changed, and may be repeated: what
// was written meanwhile by processes that did not know it yet joins then. Errors:
// history.ErrNotFound if the former namespace is unknown; history.ErrExists if its histories have
// been given to another one since, which alone they can be taken over from.
func (s *Store) GrantNamespace(ctx context.Context, name, uid string, created time.Time, former string) (changed bool, err error) {
	doing := fmt.Sprintf("give the histories of the namespace %s with UID %s to the one with UID %s", name, former, uid)
	err = s.write(ctx, doing, func(q *sqlc.Queries) error {
		changed = false
		// Nobody may delete, fork or adopt a history meanwhile.
		if err := q.LockDeletions(ctx); err != nil {
			return err
		}
		own, key, err := grantedKeys(ctx, q, name, uid, created, former)
		if err != nil {
			return err
		}
		if own != key {
			changed = true
			if err := q.JoinNamespaces(ctx, sqlc.JoinNamespacesParams{Key: key, FormerKey: own, Uid: uid}); err != nil {
				return err
			}
		}
		joined, err := q.JoinedKeys(ctx, key)
		for _, former := range joined {
			if err := joinKey(ctx, q, key, former); err != nil {
				return err
			}
		}
		return err
	})
	return changed, err
}

// joinKey moves the rows of a former key to another one. Messages and pieces stay where they are:
// the key is part of the hashes of messages.
func joinKey(ctx context.Context, q *sqlc.Queries, key, former string) error {
	if key == former {
		return nil
	}
	if err := q.JoinTasks(ctx, sqlc.JoinTasksParams{Key: key, FormerKey: former}); err != nil {
		return err
	}
	if err := q.JoinSummaries(ctx, sqlc.JoinSummariesParams{Key: key, FormerKey: former}); err != nil {
		return err
	}
	if err := q.JoinCheckpoints(ctx, sqlc.JoinCheckpointsParams{Key: key, FormerKey: former}); err != nil {
		return err
	}
	if err := q.JoinEvents(ctx, sqlc.JoinEventsParams{Key: key, FormerKey: former}); err != nil {
		return err
	}
	if err := q.JoinDeletedTasks(ctx, sqlc.JoinDeletedTasksParams{Key: key, FormerKey: former}); err != nil {
		return err
	}
	if err := q.JoinAdoptions(ctx, sqlc.JoinAdoptionsParams{Key: key, FormerKey: former}); err != nil {
		return err
	}
	if err := q.JoinBudgets(ctx, sqlc.JoinBudgetsParams{Key: key, FormerKey: former, Most: budget.Most}); err != nil {
		return err
	}
	if err := q.JoinSpecs(ctx, sqlc.JoinSpecsParams{Key: key, FormerKey: former}); err != nil {
		return err
	}
	if err := q.JoinUsage(ctx, sqlc.JoinUsageParams{Key: key, FormerKey: former}); err != nil {
		return err
	}
	if err := q.JoinPublications(ctx, sqlc.JoinPublicationsParams{Key: key, FormerKey: former}); err != nil {
		return err
	}
	if err := q.JoinVerifications(ctx, sqlc.JoinVerificationsParams{Key: key, FormerKey: former}); err != nil {
		return err
	}
	return q.JoinAwaitedSources(ctx, sqlc.JoinAwaitedSourcesParams{Key: key, FormerKey: former})
}

// namespaceWords are the words of the messages of a key, and of those that have joined it, for a
// tsquery.
func (s *Store) namespaceWords(ctx context.Context, key string) (string, error) {
	joined, err := s.read().JoinedKeys(ctx, key)
	words := quoteWord(namespaceWord(key))
	for _, former := range joined {
		words += " | " + quoteWord(namespaceWord(former))
	}
	return words, err
}
