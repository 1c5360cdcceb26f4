package postgres

import (
	"context"
	"slices"

	"github.com/clew-dev/clew/internal/history/postgres/sqlc"
)

// sweepBatch is how many messages or pieces are looked at in a transaction.
const sweepBatch = 200

// swept counts what was removed.
type swept struct{ messages, pieces int64 }

// sweep removes the marked messages and pieces that nothing needs any more, in
// small transactions, until none is left that nobody else holds. What is
// needed again since it was marked stays.
func (s *Store) sweep(ctx context.Context) (swept, error) {
	var total swept
	for {
		var looked int
		var removed int64
		err := s.write(ctx, "remove messages that nothing needs", func(q *sqlc.Queries) error {
			var err error
			looked, removed, err = sweepMessages(ctx, q)
			return err
		})
		if err != nil {
			return total, err
		}
		total.messages += removed
		if looked == 0 {
			break
		}
	}
	for {
		var looked int
		var removed int64
		err := s.write(ctx, "remove pieces of texts that nothing needs", func(q *sqlc.Queries) error {
			var err error
			looked, removed, err = sweepPieces(ctx, q)
			return err
		})
		if err != nil {
			return total, err
		}
		total.pieces += removed
		if looked == 0 {
			return total, nil
		}
	}
}

// sweepMessages decides on one batch of marked messages: it locks them, so
// that no writer can take hold of one, and then looks, in a statement that sees
// what writers have done until then. Those that a writer holds now stay marked
// and do not count.
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

// sweepPieces decides on one batch of marked pieces, as sweepMessages does.
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

// handled are the marked ones that were decided on, or are gone.
func handled(marked, locked, there []int64) []int64 {
	return slices.DeleteFunc(slices.Clone(marked), func(id int64) bool {
		return slices.Contains(there, id) && !slices.Contains(locked, id)
	})
}
