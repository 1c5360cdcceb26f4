package postgres_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/jackc/pgx/v5"

	"github.com/clew-dev/clew/internal/history"
)

// opened lists the databases in which the current spec has opened a store.
var opened databases

type databases struct {
	mu   sync.Mutex
	dsns []string
}

func (d *databases) add(dsn string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !slices.Contains(d.dsns, dsn) {
		d.dsns = append(d.dsns, dsn)
	}
}

// take returns the databases and forgets them.
func (d *databases) take() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	dsns := d.dsns
	d.dsns = nil
	return dsns
}

// reportedDatabases limits the report of a spec that uses a database for each of its rounds.
const reportedDatabases = 4

// A spec that failed shows what its databases hold, before they are dropped. One that
// passed has only kept their names.
var _ = JustAfterEach(func() {
	dsns := opened.take()
	if !CurrentSpecReport().Failed() {
		return
	}
	for _, dsn := range dsns[max(0, len(dsns)-reportedDatabases):] {
		name, text := contents(context.Background(), dsn)
		AddReportEntry("The database "+name, text, ReportEntryVisibilityFailureOrVerbose)
	}
})

// reported are the statements of a report. Each is sent alone: an older schema lacks some
// of the tables.
var reported = []struct{ title, statement string }{
	{"tasks", `SELECT namespace || '/' || name || ' (' || uid || '): attempt ' || attempt || ', records up to ' || last_sequence
		|| ', ' || checkpoint_count || ' checkpoints up to ' || latest_checkpoint || ', active branch ' || active_branch
		FROM tasks ORDER BY updated_at DESC LIMIT 20`},
	{"deleted tasks", `SELECT uid FROM deleted_tasks ORDER BY uid LIMIT 20`},
	{"rows of messages", `SELECT count(*)::text FROM messages`},
	{"rows of entries", `SELECT count(*)::text FROM entries`},
	{"rows of pieces", `SELECT count(*)::text FROM pieces`},
	{"rows of checkpoints", `SELECT count(*)::text FROM checkpoints`},
	{"rows of events", `SELECT count(*)::text FROM events`},
	{"last events", `SELECT concat_ws(' ', to_char(time AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS.MS'), task_name, type, reason,
		'attempt ' || attempt, CASE WHEN checkpoint > 0 THEN 'checkpoint ' || checkpoint END, left(message, 200))
		FROM events ORDER BY time DESC LIMIT 10`},
}

// contents returns the name of a database and a summary of what it holds. It reports errors
// as part of the text: a spec may have failed because the database is gone or locked.
func contents(ctx context.Context, dsn string) (name, text string) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	config, err := pgx.ParseConfig(dsn)
	if err != nil {
		return dsn, err.Error()
	}
	// A lock that the spec still holds must not hold up its report.
	config.RuntimeParams["lock_timeout"] = "1s"
	config.RuntimeParams["statement_timeout"] = "5s"
	conn, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return config.Database, err.Error()
	}
	defer conn.Close(ctx)
	var b strings.Builder
	for _, r := range reported {
		rows, _ := conn.Query(ctx, r.statement) // CollectRows returns its error
		lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
		switch {
		case err != nil:
			fmt.Fprintf(&b, "%s: %v\n", r.title, err)
		case len(lines) == 1:
			fmt.Fprintf(&b, "%s: %s\n", r.title, lines[0])
		default:
			fmt.Fprintf(&b, "%s: %d\n", r.title, len(lines))
			for _, line := range lines {
				fmt.Fprintf(&b, "  %s\n", line)
			}
		}
	}
	return config.Database, b.String()
}

var _ = Describe("The report of a spec that failed", func() {
	It("shows the tasks, the counts and the last events of its database", func(ctx SpecContext) {
		t := GinkgoTB()
		dsn := pg.Database(t)
		store := openAt(t, dsn)
		w := begin(t, store, taskNamed("a"), 3)
		w.append(user("1"), agent("2"), checkpoint(1))
		begin(t, store, taskNamed("b"), 1).append(user("other"))
		failed := transition(w.task, 1, "TaskFailed", time.Now())
		failed.Message = "out of memory"
		Expect(store.RecordEvents(ctx, []history.Event{failed})).To(Succeed())

		_, text := contents(ctx, dsn)
		Expect(strings.Split(text, "\n")).To(ContainElements(
			"tasks: 2",
			MatchRegexp(`^  team/a \(uid-of-a\): attempt 3, records up to 3, 1 checkpoints up to 1, active branch \d+$`),
			MatchRegexp(`^  team/b \(uid-of-b\): attempt 1, records up to 1, 0 checkpoints up to 0, active branch \d+$`),
			"deleted tasks: 0",
			"rows of messages: 3",
			"rows of checkpoints: 1",
			MatchRegexp(`^  .* a task TaskFailed attempt 1 out of memory$`),
		))
	})

	It("shows the error when the database is gone", func(ctx SpecContext) {
		name, text := contents(ctx, pg.Database(GinkgoTB())+"gone")
		Expect(text).To(ContainSubstring("does not exist"), name)
	})
})
