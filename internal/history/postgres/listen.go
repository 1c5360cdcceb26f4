package postgres

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/clew-dev/clew/internal/backoff"
	"github.com/clew-dev/clew/internal/history"
)

const (
	// listenCheck is how often a listener looks whether its connection still lives, and
	// whether the tables are still those of before.
	listenCheck = 5 * time.Second
	// listenAnswer is how long Postgres may take to answer the listener. One that is slow,
	// as under a restore, is no reason to connect again; one that is away is.
	listenAnswer = 30 * time.Second
	// The first and the longest wait before connecting again.
	minReconnect = 100 * time.Millisecond
	maxReconnect = 5 * time.Second
)

// Listen calls back for each change of a task until ctx ends, whose error it
// then returns. It has a connection of its own and makes a new one when that
// is lost. After each connect it calls back with an empty Notification, since
// changes may have been missed before: look at everything. So it does when other
// tables have taken the place of those of before, as when a backup was restored.
// The callback is called by one goroutine at a time and should be quick.
func (s *Store) Listen(ctx context.Context, callback func(history.Notification)) error {
	wait := backoff.Backoff{Min: minReconnect, Max: maxReconnect}
	for {
		err := s.listen(ctx, func(n history.Notification) {
			wait.Reset()
			callback(n)
		})
		if ctx.Err() != nil {
			return ctx.Err()
		}
		s.log.Info("lost the connection that listens for changes of the history; connecting again", "error", err.Error())
		if err := wait.Wait(ctx); err != nil {
			return err
		}
	}
}

// listen listens on one connection until it fails.
func (s *Store) listen(ctx context.Context, callback func(history.Notification)) error {
	config := s.pool.Config().ConnConfig
	conn, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return err
	}
	defer func() {
		closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		_ = conn.Close(closing)
	}()
	if err := subscribe(ctx, conn); err != nil {
		return err
	}
	tables, err := tablesOf(ctx, conn)
	if err != nil {
		return err
	}
	callback(history.Notification{})
	look := time.Now().Add(listenCheck)
	for {
		n, err := next(ctx, conn, look)
		if err != nil {
			return err
		}
		if n != nil {
			callback(*n)
		}
		if time.Now().Before(look) {
			continue
		}
		found, err := tablesOf(ctx, conn)
		if err != nil {
			return err
		}
		if found != none && found != tables {
			s.log.Info("the tables of the history are others than before, as after a restore of a backup; all tasks are looked at")
			tables = found
			callback(history.Notification{})
		}
		look = time.Now().Add(listenCheck)
	}
}

// subscribe has Postgres send the notifications.
func subscribe(ctx context.Context, conn *pgx.Conn) error {
	asking, cancel := context.WithTimeout(ctx, listenAnswer)
	defer cancel()
	if _, err := conn.Exec(asking, "LISTEN "+Channel); err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	return nil
}

// copyOfTables says which tables those of the history are: a restore makes others.
type copyOfTables uint32

// none is while there are no tables, or not all yet.
const none copyOfTables = 0

// tablesOf looks which tables there are. It waits for nobody's lock, and so sees the old
// ones until the transaction that replaces them commits.
func tablesOf(ctx context.Context, conn *pgx.Conn) (tables copyOfTables, err error) {
	looking, cancel := context.WithTimeout(ctx, listenAnswer)
	defer cancel()
	if err := conn.QueryRow(looking, tablesQuery).Scan(&tables); err != nil {
		return none, fmt.Errorf("look which tables there are: %w", err)
	}
	return tables, nil
}

// notification reads what notify wrote. One that cannot be read comes out as
// empty, which makes listeners look at everything.
func notification(payload string) *history.Notification {
	fields := strings.Split(payload, " ")
	if len(fields) != 4 {
		return &history.Notification{}
	}
	attempt, err := strconv.ParseInt(fields[3], 10, 64)
	if err != nil {
		return &history.Notification{}
	}
	return &history.Notification{Task: history.Task{UID: fields[0], Namespace: fields[1], Name: fields[2]}, Attempt: attempt}
}

// next waits for one notification; nil if there was none until then.
func next(ctx context.Context, conn *pgx.Conn, until time.Time) (*history.Notification, error) {
	waiting, cancel := context.WithDeadline(ctx, until)
	defer cancel()
	n, err := conn.WaitForNotification(waiting)
	if err == nil {
		return notification(n.Payload), nil
	}
	if ctx.Err() != nil || !errors.Is(err, context.DeadlineExceeded) || conn.IsClosed() {
		return nil, err
	}
	return nil, nil
}
