package postgres_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/onsi/gomega"

	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/testing/pgtest"
)

// longRestoreIsNoticed: when it has taken the place of what was there, and not before.
// Nobody else's restore comes in between.
func longRestoreIsNoticed(t *testing.T, server *pgtest.Server) {
	g, live, folder := gomega.NewWithT(t), server.Database(t), t.TempDir()
	g.Expect(asWritten(t, server, folder, dumping(t), databaseOfSchema(t, server, versions(t)[len(versions(t))-1]))).To(gomega.ContainSubstring("dump complete"))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	store := openAt(t, live)
	told, ended := make(chan history.Notification, 100), make(chan error, 1)
	go func() { ended <- store.Listen(ctx, func(n history.Notification) { told <- n }) }()
	lookAtAll := gomega.Equal(history.Notification{})
	g.Eventually(told).WithTimeout(time.Minute).Should(gomega.Receive(lookAtAll))

	holder := connect(t, live)
	do := func(statement string) {
		t.Helper()
		_, err := holder.Exec(t.Context(), statement, pgx.QueryExecModeSimpleProtocol)
		g.Expect(err).NotTo(gomega.HaveOccurred())
	}
	do("SELECT pg_advisory_lock(29)")
	said := make(chan string, 1)
	go func() {
		slow := strings.NewReplacer("'10s'", "'5min'", "CREATE SCHEMA public;", "CREATE SCHEMA public; SELECT pg_advisory_lock(29);").Replace(restoring(t))
		out, err := asWritten(t, server, folder, slow, live)
		if err != nil {
			out += err.Error()
		}
		said <- out
	}()
	eventuallySessions(t, live, "wait_event = 'advisory'", 1)
	looks(t, live, 2)
	g.Expect(told).NotTo(gomega.Receive(), "the old tables are still there")

	g.Expect(asWritten(t, server, folder, dumping(t), server.Database(t))).To(gomega.ContainSubstring("dump complete"))
	_, err := asWritten(t, server, folder, strings.Replace(restoring(t), "'10s'", "'50ms'", 1), live)
	g.Expect(err).To(gomega.MatchError(gomega.ContainSubstring("lock timeout")))
	do("SELECT pg_advisory_unlock_all()")
	g.Eventually(said).WithTimeout(time.Minute).Should(gomega.Receive(gomega.HaveSuffix("\nrestored\n")))
	g.Expect(count(t, live, "tasks WHERE uid = 'uid-of-a'")).To(gomega.Equal(1), "it is of the first dump")
	g.Eventually(told).WithTimeout(time.Minute).Should(gomega.Receive(lookAtAll))
	looks(t, live, 2)
	g.Expect(told).NotTo(gomega.Receive(), "once is enough")
	cancel()
	g.Eventually(ended).WithTimeout(time.Minute).Should(gomega.Receive(gomega.MatchError(context.Canceled)))
}

// looks waits until the one who listens has begun so many looks at what tables there are.
func looks(t *testing.T, dsn string, number int) {
	t.Helper()
	conn := connect(t, dsn)
	begun := make(map[time.Time]struct{})
	gomega.NewWithT(t).Eventually(func() (int, error) {
		var last time.Time
		err := conn.QueryRow(t.Context(), `SELECT query_start FROM pg_stat_activity
			WHERE application_name = 'clew' AND query LIKE '%tasks_active_branch%' AND pid <> pg_backend_pid()`).Scan(&last)
		begun[last] = struct{}{}
		return len(begun), err
	}).WithTimeout(time.Minute).Should(gomega.Equal(number + 1))
}
