package postgres

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/clew-dev/clew/internal/backoff"
	"github.com/clew-dev/clew/internal/history"
)

const (
	// listenCheck is how often a listener checks that its connection is alive and that
	// the tables have not been replaced.
	listenCheck = 5 * time.Second
	// listenTimeout bounds how long Postgres may take to answer the listener. A slow
	// server, as during a restore, is no reason to reconnect; an unreachable one is.
	listenTimeout = 30 * time.Second
	// minReconnect and maxReconnect are the first and the longest wait before
	// reconnecting.
	minReconnect = 100 * time.Millisecond
	maxReconnect = 5 * time.Second
)

// Listen calls back for each change of a task until ctx ends, and returns ctx's error. It
// has a connection of its own and replaces it when it is lost. After each connect it
// calls back with an empty Notification, which means that any task may have changed,
// since changes may have been missed. It does the same when the tables have been
// replaced, as by the restore of a backup. The callback is called by one goroutine at a
// time and should be quick.
func (s *Store) Listen(ctx context.Context, callback func(history.Notification)) error {
	return s.keepListening(ctx, "lost the connection that listens for history changes; reconnecting", func(heard func()) error {
		return s.listen(ctx, Channel, func(payload string) {
			heard()
			callback(notification(payload))
		})
	})
}

// keepListening calls listen again, after a wait, when it fails, until ctx ends, and returns
// ctx's error. listen calls heard for what it receives, which shows that its connection works;
// lost is logged when that is gone.
func (s *Store) keepListening(ctx context.Context, lost string, listen func(heard func()) error) error {
	wait := backoff.Backoff{Min: minReconnect, Max: maxReconnect}
	for {
		err := listen(wait.Reset)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		s.log.Info(lost, "error", err.Error())
		if err := wait.Wait(ctx); err != nil {
			return err
		}
	}
}

// listener returns a connection of its own that receives a channel's notifications; end closes
// it.
func (s *Store) listener(ctx context.Context, channel string) (conn *pgx.Conn, end func(), err error) {
	conn, err = pgx.ConnectConfig(ctx, s.pool.Config().ConnConfig)
	if err != nil {
		return nil, nil, err
	}
	end = func() {
		closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		_ = conn.Close(closing)
	}
	if err := subscribe(ctx, conn, channel); err != nil {
		end()
		return nil, nil, err
	}
	return conn, end, nil
}

// listen listens for a channel's payloads on one connection until it fails. An empty one means that
// any may have been missed.
func (s *Store) listen(ctx context.Context, channel string, callback func(payload string)) error {
	conn, end, err := s.listener(ctx, channel)
	if err != nil {
		return err
	}
	defer end()
	tables, err := tablesOf(ctx, conn)
	if err != nil {
		return err
	}
	callback("")
	check := time.Now().Add(listenCheck)
	for {
		payload, err := next(ctx, conn, check)
		if err != nil {
			return err
		}
		if payload != "" {
			callback(payload)
		}
		if time.Now().Before(check) {
			continue
		}
		found, err := tablesOf(ctx, conn)
		if err != nil {
			return err
		}
		if found != none && found != tables {
			s.log.Info("the tables of the history were replaced, as by a restore of a backup; all tasks are checked", "channel", channel)
			tables = found
			callback("")
		}
		check = time.Now().Add(listenCheck)
	}
}

// subscribe makes Postgres send a channel's notifications on the connection.
func subscribe(ctx context.Context, conn *pgx.Conn, channel string) error {
	timed, cancel := context.WithTimeout(ctx, listenTimeout)
	defer cancel()
	if _, err := conn.Exec(timed, "LISTEN "+channel); err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	return nil
}

// copyOfTables identifies a set of the history's tables: a restore creates a new set.
type copyOfTables uint32

// none is returned while there are no tables, or not all of them.
const none copyOfTables = 0

// tablesOf returns the current set of tables. It does not wait for locks, so it sees the
// old tables until the transaction that replaces them commits.
func tablesOf(ctx context.Context, conn *pgx.Conn) (tables copyOfTables, err error) {
	timed, cancel := context.WithTimeout(ctx, listenTimeout)
	defer cancel()
	if err := conn.QueryRow(timed, tablesQuery).Scan(&tables); err != nil {
		return none, fmt.Errorf("identify the history's tables: %w", err)
	}
	return tables, nil
}

// fieldsOf returns the n fields of a payload, which spaces part; nil if it has not as many. Of these, the one
// at the index uid is a task's UID and never empty: what is too much belongs to it, since UIDs that older
// releases have imported may have spaces, and no other field has.
func fieldsOf(payload string, n, uid int) []string {
	parts := strings.Split(payload, " ")
	end := len(parts) - (n - 1 - uid)
	if end <= uid {
		return nil
	}
	whole := strings.Join(parts[uid:end], " ")
	if whole == "" {
		return nil
	}
	return slices.Concat(parts[:uid], []string{whole}, parts[end:])
}

// notification parses a payload written by notify. A malformed one becomes an empty
// Notification, which makes listeners check everything.
func notification(payload string) history.Notification {
	fields := fieldsOf(payload, 4, 0)
	if fields == nil {
		return history.Notification{}
	}
	attempt, err := strconv.ParseInt(fields[3], 10, 64)
	if err != nil {
		return history.Notification{}
	}
	return history.Notification{Task: history.Task{UID: fields[0], Namespace: fields[1], Name: fields[2]}, Attempt: attempt}
}

// next waits for one notification, and returns its payload; "" if none arrived until then.
func next(ctx context.Context, conn *pgx.Conn, until time.Time) (payload string, err error) {
	waiting, cancel := context.WithDeadline(ctx, until)
	defer cancel()
	n, err := conn.WaitForNotification(waiting)
	if err == nil {
		return n.Payload, nil
	}
	if ctx.Err() != nil || !errors.Is(err, context.DeadlineExceeded) || conn.IsClosed() {
		return "", err
	}
	return "", nil
}
