package postgres

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/clew-dev/clew/internal/daemonapi"
	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/history/postgres/sqlc"
)

// Rewind returns what is known about the rewind of a task with that id, or about the newest
// completed one if id is empty. A task without records has none: history.ErrNotFound if there is
// no newest one, and otherwise a Rewind that says that it was never heard of.
func (s *Store) Rewind(ctx context.Context, task history.Key, id string) (history.Rewind, error) {
	doing := fmt.Sprintf("read a rewind of the task with UID %s in namespace %s", task.UID, task.Namespace)
	if id == "" {
		newest, err := s.read().NewestOperation(ctx, sqlc.NewestOperationParams{
			TaskUid: task.UID, Namespace: task.Namespace, Pattern: daemonapi.OperationDoneKey(daemonapi.OperationRewind, "%"),
		})
		if err != nil {
			return history.Rewind{}, wrap(err, doing)
		}
		id = rewindID(newest)
	}
	id = clean(id)
	done := daemonapi.OperationDoneKey(daemonapi.OperationRewind, id)
	failed := daemonapi.OperationUndoneKey(daemonapi.OperationRewind, id)
	rows, err := s.read().NamedOperations(ctx, sqlc.NamedOperationsParams{
		TaskUid: task.UID, Namespace: task.Namespace, OperationIds: []string{done, failed},
	})
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return history.Rewind{}, wrap(err, doing)
	}
	r := history.Rewind{ID: id}
	for _, row := range rows {
		switch row.OperationID {
		case failed:
			r.Failed = true
		case done:
			r.Completed = true
			if r.Rewound, err = rewoundOf(row.Details); err != nil {
				return r, fmt.Errorf("%s: %w", doing, err)
			}
		}
	}
	return r, nil
}

// rewindID returns the id of a rewind from the key of its end.
func rewindID(doneKey string) string {
	const mark = "%"
	before, after, _ := strings.Cut(daemonapi.OperationDoneKey(daemonapi.OperationRewind, mark), mark)
	return strings.TrimSuffix(strings.TrimPrefix(doneKey, before), after)
}

// rewoundOf decodes what an operation's row has about a rewind; nil for nothing.
func rewoundOf(details []byte) (*history.Rewound, error) {
	if len(details) == 0 {
		return nil, nil
	}
	r := &history.Rewound{}
	if err := json.Unmarshal(details, r); err != nil {
		return nil, fmt.Errorf("%w: what the rewind has done is not readable: %w", history.ErrCorrupted, err)
	}
	return r, nil
}

// detailsOf encodes what an operation's row has about a rewind.
func detailsOf(r *history.Rewound) ([]byte, error) {
	if r == nil {
		return nil, nil
	}
	kept := *r
	kept.Scope, kept.Paths = clean(r.Scope), nil
	for _, path := range r.Paths {
		kept.Paths = append(kept.Paths, clean(path))
	}
	details, err := json.Marshal(kept)
	if err != nil {
		return nil, fmt.Errorf("encode what a rewind has done: %w", err)
	}
	return details, nil
}
