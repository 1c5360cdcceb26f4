package postgres_test

import (
	"context"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/jackc/pgx/v5"

	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/testing/pgtest"
)

// longRestoreIsNoticed: a restore is noticed once it has replaced the tables, and not
// before. No other test's restore may interfere.
func longRestoreIsNoticed(t testing.TB, server *pgtest.Server) {
	live, folder := server.Database(t), t.TempDir()
	Expect(asWritten(t, server, folder, dumping(), databaseOfSchema(t, server, versions()[len(versions())-1]))).To(ContainSubstring("dump complete"))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	store := openAt(t, live)
	notified, ended := make(chan history.Notification, 100), make(chan error, 1)
	go func() { ended <- store.Listen(ctx, func(n history.Notification) { notified <- n }) }()
	everything := Equal(history.Notification{})
	Eventually(notified).WithTimeout(time.Minute).Should(Receive(everything))

	holder := connect(t, live)
	do := func(statement string) {
		GinkgoHelper()
		Expect(holder.Exec(t.Context(), statement, pgx.QueryExecModeSimpleProtocol)).Error().NotTo(HaveOccurred())
	}
	By("restoring a dump that is held up before it replaces the tables")
	do("SELECT pg_advisory_lock(29)")
	said := make(chan string, 1)
	go func() {
		defer GinkgoRecover()
		slow := strings.NewReplacer("'10s'", "'5min'", "CREATE SCHEMA public;", "CREATE SCHEMA public; SELECT pg_advisory_lock(29);").Replace(restoring())
		out, err := asWritten(t, server, folder, slow, live)
		if err != nil {
			out += err.Error()
		}
		said <- out
	}()
	eventuallySessions(t, live, "wait_event = 'advisory'", 1)
	awaitChecks(t, live, 2)
	Expect(notified).NotTo(Receive(), "the old tables still exist")

	By("restoring another dump meanwhile, which gets no lock")
	Expect(asWritten(t, server, folder, dumping(), server.Database(t))).To(ContainSubstring("dump complete"))
	_, err := asWritten(t, server, folder, strings.Replace(restoring(), "'10s'", "'50ms'", 1), live)
	Expect(err).To(MatchError(ContainSubstring("lock timeout")))

	By("letting the first restore go on")
	do("SELECT pg_advisory_unlock_all()")
	Eventually(said).WithTimeout(time.Minute).Should(Receive(HaveSuffix("\nrestored\n")))
	Expect(count(t, live, "tasks WHERE uid = 'uid-of-a'")).To(Equal(1), "it is of the first dump")
	Eventually(notified).WithTimeout(time.Minute).Should(Receive(everything))
	awaitChecks(t, live, 2)
	Expect(notified).NotTo(Receive(), "once is enough")
	cancel()
	Eventually(ended).WithTimeout(time.Minute).Should(Receive(MatchError(context.Canceled)))
}

// awaitChecks waits until the listener has begun that many checks of the tables.
func awaitChecks(t testing.TB, dsn string, number int) {
	GinkgoHelper()
	conn := connect(t, dsn)
	begun := make(map[time.Time]struct{})
	Eventually(func() (int, error) {
		var last time.Time
		err := conn.QueryRow(t.Context(), `SELECT query_start FROM pg_stat_activity
			WHERE application_name = 'clew' AND query LIKE '%tasks_active_branch%' AND pid <> pg_backend_pid()`).Scan(&last)
		begun[last] = struct{}{}
		return len(begun), err
	}).WithTimeout(time.Minute).Should(Equal(number + 1))
}
