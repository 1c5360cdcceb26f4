package postgres

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// monthsAhead is the number of months after the current one whose tables of events exist
// in advance.
const monthsAhead = 2

// month returns the first moment of the month of t.
func month(t time.Time) time.Time {
	t = t.UTC()
	return time.Date(t.Year(), t.Month(), 1, 0, 0, 0, 0, time.UTC)
}

// partitionName returns the name of the table of a month's events.
func partitionName(month time.Time) string { return month.Format("events_2006_01") }

// makePartitions creates the tables of events for this month and the next ones.
func (s *Store) makePartitions(ctx context.Context, now time.Time) error {
	for i := range monthsAhead + 1 {
		if err := s.makePartition(ctx, month(now).AddDate(0, i, 0)); err != nil {
			return err
		}
	}
	return nil
}

// makePartition creates the table of a month's events, unless it exists, and moves events
// of the month into it that were stored before.
func (s *Store) makePartition(ctx context.Context, first time.Time) error {
	name, next := partitionName(first), first.AddDate(0, 1, 0)
	doing := "make the table " + name
	var exists bool
	if err := s.pool.QueryRow(ctx, "SELECT to_regclass($1) IS NOT NULL", name).Scan(&exists); err != nil || exists {
		return wrap(err, doing)
	}
	table := pgx.Identifier{name}.Sanitize()
	bounds := fmt.Sprintf("FROM ('%s') TO ('%s')", first.Format(time.RFC3339), next.Format(time.RFC3339))
	return wrap(pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
		for _, statement := range []string{
			"LOCK TABLE events IN SHARE ROW EXCLUSIVE MODE",
			fmt.Sprintf("CREATE TABLE IF NOT EXISTS %s (LIKE events INCLUDING ALL)", table),
			fmt.Sprintf("WITH moved AS (DELETE FROM events_default WHERE time >= '%s' AND time < '%s' RETURNING *) INSERT INTO %s SELECT * FROM moved",
				first.Format(time.RFC3339), next.Format(time.RFC3339), table),
			fmt.Sprintf("ALTER TABLE events ATTACH PARTITION %s FOR VALUES %s", table, bounds),
		} {
			if _, err := tx.Exec(ctx, statement); err != nil {
				return err
			}
		}
		return nil
	}), doing)
}

// dropPartitions drops the tables of months that ended before the given time, and removes
// older events from the default table. It returns the number of events removed, by the
// database's estimate for dropped tables.
func (s *Store) dropPartitions(ctx context.Context, before time.Time) (int64, error) {
	rows, err := s.pool.Query(ctx, `SELECT c.relname, greatest(c.reltuples, 0)::bigint FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
		WHERE i.inhparent = 'events'::regclass AND c.relname ~ '^events_\d{4}_\d{2}$' ORDER BY c.relname`)
	if err != nil {
		return 0, wrap(err, "list the tables of events")
	}
	type partition struct {
		Name string
		Rows int64
	}
	partitions, err := pgx.CollectRows(rows, pgx.RowToStructByPos[partition])
	if err != nil {
		return 0, wrap(err, "list the tables of events")
	}
	removed := int64(0)
	for _, p := range partitions {
		first, err := time.Parse("events_2006_01", p.Name)
		if err != nil || first.AddDate(0, 1, 0).After(before) {
			continue
		}
		if _, err := s.pool.Exec(ctx, "DROP TABLE "+pgx.Identifier{p.Name}.Sanitize()); err != nil {
			return removed, wrap(err, "drop the table "+p.Name)
		}
		s.log.Info("dropped a month of events that had exceeded their retention", "table", p.Name, "events", p.Rows)
		removed += p.Rows
	}
	for {
		tag, err := s.pool.Exec(ctx, `DELETE FROM events_default WHERE (id, time) IN (
			SELECT id, time FROM events_default WHERE time < $1 LIMIT $2)`, month(before), int64(sweepBatch))
		removed += tag.RowsAffected()
		if err != nil || tag.RowsAffected() < sweepBatch {
			return removed, wrap(err, "remove old events")
		}
	}
}
