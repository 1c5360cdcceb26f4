package postgres

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/clew-dev/clew/internal/history"
)

// wrap maps a database error to one of package history; errors that already are one pass
// through.
func wrap(err error, doing string) error {
	switch {
	case err == nil:
		return nil
	case isHistory(err):
		return err
	case oldSchema(err):
		return fmt.Errorf("%w: %s: %w", history.ErrOldSchema, doing, err)
	case slow(err):
		return fmt.Errorf("%w: %s: %w", history.ErrSlow, doing, err)
	case unavailable(err):
		return fmt.Errorf("%w: %s: %w", history.ErrUnavailable, doing, err)
	case errors.Is(err, pgx.ErrNoRows):
		return fmt.Errorf("%w: %s", history.ErrNotFound, doing)
	default:
		return fmt.Errorf("%s: %w", doing, err)
	}
}

func isHistory(err error) bool {
	return errors.Is(err, history.ErrNotFound) || errors.Is(err, history.ErrFenced) ||
		errors.Is(err, history.ErrGap) || errors.Is(err, history.ErrUnavailable) ||
		errors.Is(err, history.ErrCorrupted) || errors.Is(err, history.ErrInvalid) || errors.Is(err, history.ErrLimitReached) || errors.Is(err, history.ErrExists) ||
		errors.Is(err, history.ErrTooSoon) || errors.Is(err, history.ErrUnanswered)
}

// conflicted reports whether the transaction failed only because of a concurrent one.
func conflicted(err error) bool {
	var pg *pgconn.PgError
	return errors.As(err, &pg) && (pg.Code == "40001" || pg.Code == "40P01")
}

// oldSchema reports whether a table or column does not exist, yet or any more.
func oldSchema(err error) bool {
	var pg *pgconn.PgError
	return errors.As(err, &pg) && (pg.Code == "42P01" || pg.Code == "42703")
}

// lockTimedOut reports whether the wait for a lock timed out.
func lockTimedOut(err error) bool {
	var pg *pgconn.PgError
	return errors.As(err, &pg) && pg.Code == "55P03"
}

// slow reports whether the call took too long, or stood in the way of others, which says nothing about
// the database: a statement or the wait for a lock timed out, or a deadline has passed.
func slow(err error) bool {
	var pg *pgconn.PgError
	if errors.As(err, &pg) {
		return pg.Code == "55P03" || pg.Code == "57014" || conflicted(err)
	}
	var connect *pgconn.ConnectError
	return !errors.As(err, &connect) && (errors.Is(err, context.DeadlineExceeded) || pgconn.Timeout(err))
}

// unavailable reports whether the same call may succeed later, unchanged.
func unavailable(err error) bool {
	if errors.Is(err, context.Canceled) {
		return false
	}
	var pg *pgconn.PgError
	if errors.As(err, &pg) {
		return unavailableCode(pg.Code)
	}
	var connect *pgconn.ConnectError
	var network net.Error
	return errors.As(err, &connect) || errors.As(err, &network) ||
		errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, net.ErrClosed) ||
		errors.Is(err, context.DeadlineExceeded) || errors.Is(err, pgx.ErrTxCommitRollback) ||
		errors.Is(err, pgx.ErrTxClosed) || pgconn.SafeToRetry(err) || pgconn.Timeout(err)
}

func unavailableCode(code string) bool {
	if len(code) != 5 {
		return false
	}
	switch code[:2] {
	case "08", // connection
		"28", // authorization: the password may be in rotation
		"40", // conflicts with other transactions
		"53", // memory, disk or connections exhausted
		"57", // shut down, starting, recovering, canceled
		"58": // system errors
		return true
	}
	switch code {
	case "25006", // read-only: a standby, in a failover
		"25P03", // idle in transaction for too long
		"3D000", // the database does not exist yet
		"55P03": // waited too long for a lock
		return true
	}
	return false
}
