package pgtest_test

import (
	"context"
	"os"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/clew-dev/clew/internal/testing/pgtest"
)

var pg *pgtest.Server

func TestMain(m *testing.M) {
	os.Exit(pgtest.Run(m, &pg, func(ctx context.Context, dsn string) error {
		conn, err := pgx.Connect(ctx, dsn)
		if err != nil {
			return err
		}
		defer conn.Close(ctx)
		_, err = conn.Exec(ctx, "CREATE TABLE prepared (n int)")
		return err
	}))
}

func TestDatabasesAreApart(t *testing.T) {
	for range 2 {
		conn, err := pgx.Connect(t.Context(), pg.Database(t))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close(t.Context())
		var rows int
		if err := conn.QueryRow(t.Context(), "SELECT count(*) FROM prepared").Scan(&rows); err != nil || rows != 0 {
			t.Fatalf("%d rows, %v", rows, err)
		}
		if _, err := conn.Exec(t.Context(), "INSERT INTO prepared VALUES (1)"); err != nil {
			t.Fatal(err)
		}
	}
}

func TestRestartKeepsTheData(t *testing.T) {
	server, err := pgtest.Start(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := server.Stop(); err != nil {
			t.Error(err)
		}
	})
	dsn := server.Database(t)
	if err := server.StopNow(); err != nil {
		t.Fatal(err)
	}
	if _, err := pgx.Connect(t.Context(), dsn); err == nil {
		t.Fatal("a stopped server answers")
	}
	if err := server.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	conn, err := pgx.Connect(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	conn.Close(t.Context())
}
