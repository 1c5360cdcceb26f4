package crash_test

import (
	"net"
	"net/url"
	"path/filepath"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5/pgproto3"
)

// pgProxy stands between a manager and Postgres. It counts and strikes the statements that
// write, and the commits of transactions that wrote.
type pgProxy struct {
	*striker
	kill func()
	// network and address are where Postgres listens.
	network, address string
}

// startPGProxy returns the DSN of a proxy to the database that dsn names. It ends with the test.
func startPGProxy(t testing.TB, dsn string, s *striker, kill func()) string {
	t.Helper()
	u, err := url.Parse(dsn)
	if err != nil {
		t.Fatal(err)
	}
	p := &pgProxy{striker: s, kill: kill, network: "tcp", address: u.Host}
	if folder := u.Query().Get("host"); folder != "" {
		p.network, p.address = "unix", filepath.Join(folder, ".s.PGSQL.5432")
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			connection, err := listener.Accept()
			if err != nil {
				return
			}
			go p.serve(connection)
		}
	}()
	if u.User == nil {
		u.User = url.User(u.Query().Get("user"))
	}
	u.Host, u.RawQuery = listener.Addr().String(), "sslmode=disable"
	return u.String()
}

// session is one connection of the manager.
type session struct {
	*pgProxy
	client *pgproto3.Backend
	server *pgproto3.Frontend
	// statements are those that were prepared, by their names; portals those that were bound.
	statements, portals map[string]string
	// wrote: the transaction has written.
	wrote bool
	// deaf: the manager is killed when the server has answered.
	deaf atomic.Bool
}

func (p *pgProxy) serve(connection net.Conn) {
	defer connection.Close()
	upstream, err := net.Dial(p.network, p.address)
	if err != nil {
		return
	}
	defer upstream.Close()
	s := &session{
		pgProxy: p, client: pgproto3.NewBackend(connection, connection), server: pgproto3.NewFrontend(upstream, upstream),
		statements: map[string]string{}, portals: map[string]string{},
	}
	start, err := s.client.ReceiveStartupMessage()
	if err != nil {
		return
	}
	s.server.Send(start)
	if s.server.Flush() != nil {
		return
	}
	go func() {
		defer connection.Close()
		defer upstream.Close()
		s.answer()
	}()
	s.ask()
}

// ask passes on what the manager sends.
func (s *session) ask() {
	for {
		message, err := s.client.Receive()
		if err != nil {
			return
		}
		if what := s.what(message); what != "" {
			when, now := s.next("SQL " + what)
			if now && when == before {
				s.kill()
				return
			}
			s.deaf.Store(now)
		}
		s.server.Send(message)
		if s.server.Flush() != nil {
			return
		}
	}
}

// answer passes on what the server answers.
func (s *session) answer() {
	for {
		message, err := s.server.Receive()
		if err != nil {
			return
		}
		if s.deaf.Load() {
			if _, all := message.(*pgproto3.ReadyForQuery); all {
				s.kill()
				return
			}
			continue
		}
		s.client.Send(message)
		if s.client.Flush() != nil {
			return
		}
	}
}

// what names the write that a message makes; "" for none.
func (s *session) what(message pgproto3.FrontendMessage) string {
	sql := ""
	switch m := message.(type) {
	case *pgproto3.Parse:
		s.statements[m.Name] = m.Query
	case *pgproto3.Bind:
		s.portals[m.DestinationPortal] = s.statements[m.PreparedStatement]
	case *pgproto3.Execute:
		sql = s.portals[m.Portal]
	case *pgproto3.Query:
		sql = m.String
	}
	switch text := strings.ToLower(strings.TrimSpace(sql)); {
	case strings.HasPrefix(text, "begin"):
		s.wrote = false
	case strings.HasPrefix(text, "commit") && s.wrote:
		s.wrote = false
		return "commit"
	case writes.MatchString(text):
		s.wrote = true
		if name := named.FindStringSubmatch(sql); name != nil {
			return name[1]
		}
		return strings.Join(strings.Fields(text)[:2], " ")
	}
	return ""
}

var (
	writes = regexp.MustCompile(`\b(insert\s+into|delete\s+from|pg_notify|update\s+\w+(\s+\w+)?\s+set)\b`)
	// named matches the name that a query has in its first line.
	named = regexp.MustCompile(`^-- name: (\w+)`)
)
