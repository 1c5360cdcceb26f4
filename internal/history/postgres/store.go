// Package postgres stores the history of tasks in PostgreSQL: conversations, checkpoints
// and the timeline.
//
// It promises: every write may be repeated and takes effect once; a task's records are
// stored in the order of their sequence, without gaps; a writer of an older attempt is
// refused (history.ErrFenced). All writes of a task lock its row, in one transaction
// each. Readers never wait for writers. Conversations are not copied: a branch refers to
// a position of its parent. Any bytes that an agent produces can be stored (see
// conversation.CleanText).
//
// Errors wrap those of package history. If PostgreSQL cannot be reached, is starting, or
// goes away in the middle of a call, the error is history.ErrUnavailable and the call may
// simply be repeated.
package postgres

import (
	"cmp"
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/go-logr/logr"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/sync/semaphore"

	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/history/postgres/sqlc"
)

// Channel is the LISTEN/NOTIFY channel for writes. The payload is the task's UID,
// namespace, name and newest attempt, separated by spaces.
const Channel = "clew_history"

const (
	connectTimeout = 5 * time.Second
	// lockTimeout bounds the wait for another writer of the same task; idleTimeout
	// releases the task's row if a server is cut off in mid-transaction.
	lockTimeout      = 10 * time.Second
	idleTimeout      = 30 * time.Second
	statementTimeout = 60 * time.Second

	defaultConnections = 16
	// txAttempts is how often a transaction is tried that conflicts with others.
	txAttempts = 4
)

// Store is the history store. It is safe for concurrent use.
type Store struct {
	pool   *pgxpool.Pool
	log    logr.Logger
	limits *limits
	// importing limits concurrent imports, each of which holds a connection.
	importing *semaphore.Weighted
}

// Pool configures how a Store uses the database. The zero value is for a process with a
// single Store.
type Pool struct {
	// Connections is the maximum number of connections; 16 if zero. If the DSN has
	// pool_max_conns, that is shared by all Stores, and this Store gets Connections/16 of
	// it.
	Connections int32
	// StatementTimeout bounds each statement, unless the DSN does; 60 s if zero.
	StatementTimeout time.Duration
	// Limits bound what is stored.
	Limits Limits
}

// Open returns a Store for the database that the DSN (a URL or key=value pairs) names. It
// does not connect yet: a malformed DSN is an error, an unreachable database is not.
func Open(ctx context.Context, dsn string, log logr.Logger) (*Store, error) {
	return OpenPool(ctx, dsn, log, Pool{})
}

// OpenPool is Open for a process with several Stores, so that users of one cannot exhaust
// the connections of another.
func OpenPool(ctx context.Context, dsn string, log logr.Logger, pool Pool) (*Store, error) {
	config, err := pgxpool.ParseConfig(dsn)
	if err != nil {
		// pgx keeps the password out of its message.
		return nil, fmt.Errorf("the DSN of the history database is malformed: %w", err)
	}
	share := cmp.Or(pool.Connections, defaultConnections)
	if strings.Contains(dsn, "pool_max_conns") {
		share = max(config.MaxConns*share/defaultConnections, 1)
	}
	config.MaxConns = share
	configure(config.ConnConfig, cmp.Or(pool.StatementTimeout, statementTimeout))
	connections, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return nil, fmt.Errorf("open the history database: %w", err)
	}
	return &Store{pool: connections, log: log, limits: newLimits(pool.Limits), importing: semaphore.NewWeighted(maxImports)}, nil
}

// configure sets timeouts that keep one stuck client from blocking the others, unless the
// DSN sets them.
func configure(config *pgx.ConnConfig, statementTimeout time.Duration) {
	if config.ConnectTimeout == 0 || config.ConnectTimeout > time.Minute {
		config.ConnectTimeout = connectTimeout
	}
	defaults := map[string]string{
		"application_name":                    "clew",
		"timezone":                            "UTC",
		"lock_timeout":                        milliseconds(lockTimeout),
		"statement_timeout":                   milliseconds(statementTimeout),
		"idle_in_transaction_session_timeout": milliseconds(idleTimeout),
	}
	for key, value := range defaults {
		if _, set := config.RuntimeParams[key]; !set {
			config.RuntimeParams[key] = value
		}
	}
}

func milliseconds(d time.Duration) string { return fmt.Sprint(d.Milliseconds()) }

// Close closes all connections and waits for those in use.
func (s *Store) Close() { s.pool.Close() }

// Connections returns the number of open connections and how many of them are in use.
func (s *Store) Connections() (open, inUse int32) {
	stat := s.pool.Stat()
	return stat.TotalConns(), stat.AcquiredConns()
}

// Alive reports whether the database answers, whatever it is busy with. Errors: history.ErrUnavailable.
func (s *Store) Alive(ctx context.Context) error {
	return wrap(s.pool.Ping(ctx), "reach the history database")
}

// MaxConnections returns the maximum number of connections.
func (s *Store) MaxConnections() int { return int(s.pool.Config().MaxConns) }

// read returns queries that run outside a transaction.
func (s *Store) read() *sqlc.Queries { return sqlc.New(s.pool) }

// write runs f in a transaction and repeats it if it conflicts with a concurrent one.
// Errors are wrapped with doing, which describes the operation.
func (s *Store) write(ctx context.Context, doing string, f func(*sqlc.Queries) error) error {
	return s.transact(ctx, doing, pgx.TxOptions{}, f)
}

// snapshot runs f on a consistent snapshot of the database.
func (s *Store) snapshot(ctx context.Context, doing string, f func(*sqlc.Queries) error) error {
	return s.transact(ctx, doing, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}, f)
}

func (s *Store) transact(ctx context.Context, doing string, options pgx.TxOptions, f func(*sqlc.Queries) error) error {
	var err error
	for range txAttempts {
		err = pgx.BeginTxFunc(ctx, s.pool, options, func(tx pgx.Tx) error { return f(sqlc.New(tx)) })
		if !conflicted(err) {
			break
		}
	}
	return wrap(err, doing)
}

// notify sends a notification about the task when the transaction commits.
func notify(ctx context.Context, q *sqlc.Queries, task history.Task, attempt int64) error {
	return q.Notify(ctx, strings.Join([]string{task.UID, task.Namespace, task.Name, strconv.FormatInt(attempt, 10)}, " "))
}
