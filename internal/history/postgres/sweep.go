package postgres

import (
	"context"
	"slices"

	"github.com/clew-dev/clew/internal/history/postgres/sqlc"
)

// sweepBatch is the number of messages or pieces handled per transaction.
const sweepBatch = 200

// swept counts what was removed.
type swept struct{ messages, pieces int64 }

// sweep removes marked messages and pieces that are no longer referenced, in small
// transactions, until only those remain that others hold. What has been referenced again
// since it was marked is kept.
func (s *Store) sweep(ctx context.Context) (swept, error) {
	var total swept
	for {
		var decided int
		var removed int64
		err := s.write(ctx, "remove messages that nothing needs", func(q *sqlc.Queries) error {
			var err error
			decided, removed, err = sweepMessages(ctx, q)
			return err
		})
		if err != nil {
			return total, err
		}
		total.messages += removed
		if decided == 0 {
			break
		}
	}
	for {
		var decided int
		var removed int64
		err := s.write(ctx, "remove pieces of texts that nothing needs", func(q *sqlc.Queries) error {
			var err error
			decided, removed, err = sweepPieces(ctx, q)
			return err
		})
		if err != nil {
			return total, err
		}
		total.pieces += removed
		if decided == 0 {
			return total, nil
		}
	}
}

// sweepMessages decides on one batch of marked messages. It locks them, so that no writer
// can hold one, and then checks for references in a statement that sees what writers have
// committed until then. Messages that a writer holds stay marked and do not count.
func sweepMessages(ctx context.Context, q *sqlc.Queries) (decided int, removed int64, err error) {
	marked, err := q.MarkedMessages(ctx, sweepBatch)
	if err != nil || len(marked) == 0 {
		return 0, 0, err
	}
	locked, err := q.LockMessages(ctx, marked)
	if err != nil {
		return 0, 0, err
	}
	there, err := q.ExistingMessages(ctx, marked)
	if err != nil {
		return 0, 0, err
	}
	unused, err := q.UnusedMessages(ctx, locked)
	if err != nil {
		return 0, 0, err
	}
	if removed, err = q.DeleteMessages(ctx, unused); err != nil {
		return 0, 0, err
	}
	done := handled(marked, locked, there)
	return len(done), removed, q.UnmarkMessages(ctx, done)
}

// sweepPieces decides on one batch of marked pieces, like sweepMessages.
func sweepPieces(ctx context.Context, q *sqlc.Queries) (decided int, removed int64, err error) {
	marked, err := q.MarkedPieces(ctx, sweepBatch)
	if err != nil || len(marked) == 0 {
		return 0, 0, err
	}
	locked, err := q.LockPieces(ctx, marked)
	if err != nil {
		return 0, 0, err
	}
	there, err := q.ExistingPieces(ctx, marked)
	if err != nil {
		return 0, 0, err
	}
	if removed, err = q.DeleteUnusedPieces(ctx, locked); err != nil {
		return 0, 0, err
	}
	done := handled(marked, locked, there)
	return len(done), removed, q.UnmarkPieces(ctx, done)
}

// handled returns the marked ids that were decided on or no longer exist.
func handled(marked, locked, there []int64) []int64 {
	return slices.DeleteFunc(slices.Clone(marked), func(id int64) bool {
		return slices.Contains(there, id) && !slices.Contains(locked, id)
	})
}
