package postgres

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/clew-dev/clew/internal/history"
)

// liveChannel is the LISTEN/NOTIFY channel of history.LiveMessages, as JSON.
const liveChannel = "clew_live"

// NotifyLive sends a message to every server that listens, this one included. Its texts may
// have 4 KiB.
func (s *Store) NotifyLive(ctx context.Context, m history.LiveMessage) error {
	payload, err := json.Marshal(m)
	if err != nil {
		return fmt.Errorf("encode a message to the servers: %w", err)
	}
	_, err = s.pool.Exec(ctx, "SELECT pg_notify($1, $2)", liveChannel, string(payload))
	return wrap(err, "send a message to the servers")
}

// ListenLive calls back for each message until ctx ends, and returns ctx's error. It has a
// connection of its own and replaces it when it is lost; what is sent meanwhile is missed.
// The callback is called by one goroutine at a time and should be quick.
func (s *Store) ListenLive(ctx context.Context, callback func(history.LiveMessage)) error {
	return s.keepListening(ctx, "lost the connection for messages between servers; reconnecting", func(heard func()) error {
		return s.listenLive(ctx, func(m history.LiveMessage) {
			heard()
			callback(m)
		})
	})
}

// listenLive listens on one connection until it fails.
func (s *Store) listenLive(ctx context.Context, callback func(history.LiveMessage)) error {
	conn, end, err := s.listener(ctx, liveChannel)
	if err != nil {
		return err
	}
	defer end()
	for {
		waiting, cancel := context.WithTimeout(ctx, listenCheck)
		n, err := conn.WaitForNotification(waiting)
		cancel()
		switch {
		case err == nil:
			var m history.LiveMessage
			if json.Unmarshal([]byte(n.Payload), &m) == nil {
				callback(m) // another version's message is none of ours
			}
		case ctx.Err() != nil || !errors.Is(err, context.DeadlineExceeded) || conn.IsClosed():
			return err
		default:
			if err := alive(ctx, conn); err != nil {
				return err
			}
		}
	}
}

// alive returns an error if Postgres does not answer.
func alive(ctx context.Context, conn *pgx.Conn) error {
	timed, cancel := context.WithTimeout(ctx, listenTimeout)
	defer cancel()
	if err := conn.Ping(timed); err != nil {
		return fmt.Errorf("ping: %w", err)
	}
	return nil
}
