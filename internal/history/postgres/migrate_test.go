package postgres_test

import (
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"

	"github.com/clew-dev/clew/internal/budget"
	"github.com/clew-dev/clew/internal/conversation"
	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/history/postgres"
)

var _ = Describe("Migrating the schema", func() {
	// An installation from before pieces and digests keeps everything it has, and
	// continues.
	It("a migration keeps everything stored", Label("slow"), func(ctx SpecContext) {
		t := GinkgoTB()
		server := ownServer(t)
		dsn := emptyDatabase(t, server.Database(t))
		migrateTo(t, dsn, 2)
		fillOld(t, dsn)
		Expect(postgres.Migrate(ctx, dsn)).To(Succeed())
		store := openAt(t, dsn)
		task := taskNamed("a")
		w := begin(t, store, task, 2)
		Expect(w.last).To(BeEquivalentTo(7), "the last sequence")
		Expect(w.texts()).To(HaveExactElements("U hello", "call 1 Bash", "result 1", "A other way"))
		Expect(w.state().Spent).To(Equal(budget.Amounts{InputTokens: 10, OutputTokens: 20, CostMicroUSD: 30, ToolCalls: 1, Checkpoints: 1}))
		c, err := store.Checkpoint(ctx, task.Key(), 1)
		Expect(err).NotTo(HaveOccurred())
		want := history.Checkpoint{
			TaskUID: task.UID, Number: 1, Attempt: 1, Trigger: "Manual", Time: c.Time, Message: "msg", Commit: strings.Repeat("ab", 20), Tree: "t",
			Parent: "p", Base: "b", StateCommit: "s", FilesChanged: 2, LinesAdded: 3, LinesRemoved: 4, GitHead: "h", GitBranch: "main",
			DirtyFiles: []string{"d"}, DirtyFileCount: 1, Files: 5, Bytes: 6, Skipped: []history.SkippedFile{{Path: "big", Reason: "TooLarge", Bytes: 7}},
			SkippedCount: 1, Durable: true, RequestedByName: "n", RequestedByUID: "u", Position: history.Position{Branch: "main", Position: 3, ToolCalls: 1},
			Totals: history.Totals{Messages: 3, ToolCalls: 1, InputTokens: 10, OutputTokens: 20, CostMicroUSD: 30}, Digest: c.Digest,
			Changes: []history.FileChange{{Path: "f", Action: "Added"}},
		}
		Expect(c).To(BeComparableTo(want))
		for _, query := range []history.SnapshotQuery{{}, {Checkpoint: 1}} {
			s, err := store.Snapshot(ctx, task.Key(), query)
			Expect(err).NotTo(HaveOccurred(), "snapshot %+v", query)
			if query.Checkpoint == 1 {
				Expect(s.Digest).To(Equal(c.Digest), "digest of checkpoint 1")
			}
		}
		page, err := store.Timeline(ctx, history.TimelineQuery{Namespace: "team", Limit: 10})
		Expect(err).NotTo(HaveOccurred())
		Expect(page.Events).To(HaveExactElements(HaveField("Reason", "TaskCompleted"), HaveField("Reason", "FilesChanged"), HaveField("Reason", "CheckpointCreated"),
			HaveField("Reason", "UserMessage"), HaveField("Reason", "TaskStarted")))
		tasks, err := store.Tasks(ctx, history.TaskQuery{Namespace: "team", Tool: "Bash", Limit: 10})
		Expect(err).NotTo(HaveOccurred())
		Expect(tasks.Tasks).To(ConsistOf(And(
			HaveField("State", "Completed"), HaveField("Preview", "hello"), HaveField("Totals.Messages", int64(4)))))
		index(t, store)
		Expect(search(t, store, history.SearchQuery{Text: "other"})).To(HaveLen(1))

		By("continuing the migrated task")
		w.append(agent("goes on"), checkpoint(2))
		Expect(w.moveTo("op2", history.MoveOperation{Checkpoint: 1})).To(HaveField("Position", int64(3)))
		Expect(store.Snapshot(ctx, task.Key(), history.SnapshotQuery{})).Error().NotTo(HaveOccurred())
	})

	// While an installation is upgraded, servers of both versions run.
	It("what servers of the version before read is there", func(ctx SpecContext) {
		conn, err := pgx.Connect(ctx, ownServer(GinkgoTB()).Database(GinkgoTB()))
		Expect(err).NotTo(HaveOccurred())
		defer func() { _ = conn.Close(ctx) }()
		var pending int
		Expect(conn.QueryRow(ctx, "SELECT count(*) FROM adoptions WHERE uid = 'none' AND code_pending").Scan(&pending)).To(Succeed())
	})

	// Older operations have bare ids; their reasons tell their kind.
	It("a migration keys operations by kind", Label("slow"), func(ctx SpecContext) {
		t := GinkgoTB()
		server := ownServer(t)
		dsn := emptyDatabase(t, server.Database(t))
		migrateTo(t, dsn, 7)
		conn := connect(t, dsn)
		task := taskNamed("a")
		rows := []struct{ id, reason, want string }{
			{"1", "resume", "Resume/1"}, {"2", "rewind", "Rewind/2"}, {"2/done", "rewind complete", "Rewind/2/done"},
			{"restore/3", "the volume was lost", "restore/3"}, {"3", "resume", "3"}, {"Resume/3", "resume", "Resume/3"},
			{"Rewind/4/done", "rewind complete", "Rewind/4/done"},
		}
		Expect(conn.Exec(ctx, `SET session_replication_role = replica`)).Error().NotTo(HaveOccurred())
		for _, row := range rows {
			_, err := conn.Exec(ctx, `INSERT INTO operations (task_uid, operation_id, attempt, checkpoint, reason, branch, position, tool_calls)
			VALUES ($1, $2, 1, 1, $3, 'main', 1, 0)`, task.UID, row.id, row.reason)
			Expect(err).NotTo(HaveOccurred())
		}
		Expect(postgres.Migrate(ctx, dsn)).To(Succeed())
		found, err := conn.Query(ctx, `SELECT operation_id FROM operations ORDER BY ordinal`)
		Expect(err).NotTo(HaveOccurred())
		got, err := pgx.CollectRows(found, pgx.RowTo[string])
		Expect(err).NotTo(HaveOccurred())
		Expect(got).To(HaveLen(len(rows)))
		for i, row := range rows {
			Expect(got[i]).To(Equal(row.want), "the operation %s with the reason %q", row.id, row.reason)
		}
	})

	// Tasks of contracts that began in an earlier version are those of the contract in lists, too.
	It("a migration lists the tasks of contracts, and can be taken back", Label("slow"), func(ctx SpecContext) {
		t := GinkgoTB()
		server := ownServer(t)
		dsn := emptyDatabase(t, server.Database(t))
		migrateTo(t, dsn, 48)
		conn := connect(t, dsn)
		for _, row := range []struct{ name, contract string }{{"a", "port"}, {"b", ""}} {
			task := taskNamed(row.name)
			Expect(conn.Exec(ctx, `INSERT INTO task_summaries (uid, namespace, name, created_at, updated_at) VALUES ($1, $2, $3, now(), now())`,
				task.UID, task.Namespace, task.Name)).Error().NotTo(HaveOccurred())
			Expect(conn.Exec(ctx, `INSERT INTO task_specs (uid, namespace, spec, variables, fields, contract) VALUES ($1, $2, '{}', '{}', '{}', $3)`,
				task.UID, task.Namespace, row.contract)).Error().NotTo(HaveOccurred())
		}
		for _, doing := range []string{"migrating", "migrating again, after it was taken back"} {
			By(doing)
			Expect(postgres.Migrate(ctx, dsn)).To(Succeed())
			found, err := conn.Query(ctx, `SELECT name || ' ' || contract FROM task_summaries ORDER BY name`)
			Expect(err).NotTo(HaveOccurred())
			Expect(pgx.CollectRows(found, pgx.RowTo[string])).To(HaveExactElements("a port", "b "))
			migrateDown(t, dsn, 48)
		}
	})

	// The schema counts as older only once it is complete, and Migrate brings it up to
	// date. The newest table may still exist: pg_restore --clean removes only what it
	// restores.
	DescribeTable("a schema of an older backup is detected", func(ctx SpecContext, drop string) {
		t := GinkgoTB()
		dsn := pg.Database(t)
		store, conn := openAt(t, dsn), connect(t, dsn)
		do := func(statement string) {
			GinkgoHelper()
			Expect(conn.Exec(ctx, statement, pgx.QueryExecModeSimpleProtocol)).Error().NotTo(HaveOccurred(), statement)
		}
		Expect(store.SchemaIsOlder(ctx)).To(BeFalse(), "before the restore")

		By("restoring a backup that lacks the last migrations")
		do(drop + "; DELETE FROM goose_db_version WHERE version_id >= 18")
		Expect(store.SchemaIsOlder(ctx)).To(BeTrue())
		if drop != "" {
			Expect(store.Begin(ctx, taskNamed("fork"), 1, from("lost", 7), history.BeginOptions{})).Error().
				To(And(MatchError(history.ErrOldSchema), MatchError(history.ErrUnavailable)))
		}
		expectRestoring := func() {
			GinkgoHelper()
			_, err := store.SchemaIsOlder(ctx)
			Expect(err).To(And(MatchError(history.ErrUnavailable), MatchError(ContainSubstring("being restored"))))
			Expect(postgres.Migrate(ctx, dsn)).To(MatchError(err))
		}
		By("looking before the keys are restored")
		do("ALTER TABLE goose_db_version DROP CONSTRAINT goose_db_version_pkey")
		expectRestoring()
		By("looking while pg_restore is connected")
		do("ALTER TABLE goose_db_version ADD PRIMARY KEY (id); SET application_name = pg_restore")
		expectRestoring()
		By("looking when it has ended")
		do("RESET application_name")
		Expect(store.SchemaIsOlder(ctx)).To(BeTrue())

		By("migrating twice at once")
		var both sync.WaitGroup
		for range 2 {
			both.Go(func() {
				defer GinkgoRecover()
				Expect(postgres.Migrate(ctx, dsn)).To(Succeed())
			})
		}
		both.Wait()
		Expect(store.SchemaIsOlder(ctx)).To(BeFalse())
		Expect(store.Begin(ctx, taskNamed("fork"), 1, from("lost", 7), history.BeginOptions{})).Error().
			To(MatchError(history.ErrNotFound), "it waits for its source")
	},
		Entry("whose newest table is missing", "DROP TABLE awaited_sources"),
		Entry("whose newest table still exists", ""),
	)
})

// emptyDatabase removes the schema from a database.
func emptyDatabase(t testing.TB, dsn string) string {
	GinkgoHelper()
	Expect(connect(t, dsn).Exec(t.Context(), "DROP SCHEMA public CASCADE; CREATE SCHEMA public", pgx.QueryExecModeSimpleProtocol)).Error().NotTo(HaveOccurred())
	return dsn
}

func migrateTo(t testing.TB, dsn string, version int64) {
	GinkgoHelper()
	Expect(migrations(t, dsn).UpTo(t.Context(), version)).Error().NotTo(HaveOccurred())
}

// migrateDown takes back the migrations after a version.
func migrateDown(t testing.TB, dsn string, version int64) {
	GinkgoHelper()
	Expect(migrations(t, dsn).DownTo(t.Context(), version)).Error().NotTo(HaveOccurred())
}

func migrations(t testing.TB, dsn string) *goose.Provider {
	GinkgoHelper()
	config, err := pgx.ParseConfig(dsn)
	Expect(err).NotTo(HaveOccurred())
	db := stdlib.OpenDB(*config)
	t.Cleanup(func() { _ = db.Close() })
	provider, err := goose.NewProvider(goose.DialectPostgres, db, os.DirFS("migrations"))
	Expect(err).NotTo(HaveOccurred())
	return provider
}

// fillOld writes what the store of version 2 would have written: a task that has gone
// back once.
func fillOld(t testing.TB, dsn string) {
	GinkgoHelper()
	conn := connect(t, dsn)
	do := func(statement string, args ...any) {
		GinkgoHelper()
		Expect(conn.Exec(t.Context(), statement, args...)).Error().NotTo(HaveOccurred(), "%s", statement)
	}
	task := taskNamed("a")
	do(`SET session_replication_role = replica`)
	do(`INSERT INTO branches (task_uid, number, parent_id, base_position, base_tool_calls, base_input_tokens, base_output_tokens, base_cost_micro_usd,
			head_position, head_tool_calls, head_input_tokens, head_output_tokens, head_cost_micro_usd, head_boundary, head_settled)
		VALUES ($1, 1, NULL, 0, 0, 0, 0, 0, 4, 1, 10, 20, 30, 4, 0), ($1, 2, 1, 3, 1, 10, 20, 30, 4, 1, 10, 20, 30, 4, 3)`, task.UID)
	do(`INSERT INTO tasks (uid, namespace, name, attempt, last_sequence, active_branch, checkpoint_count, latest_checkpoint)
		VALUES ($1, $2, $3, 1, 7, 2, 1, 1)`, task.UID, task.Namespace, task.Name)
	messages := []conversation.Message{*user("hello").Message, *call("1").Message, *result("1").Message, *agent("left").Message, *agent("other way").Message}
	for i, m := range messages {
		hash := m.Hash(task.Namespace)
		var c conversation.ToolCall
		var r conversation.ToolResult
		if m.ToolCall != nil {
			c = *m.ToolCall
		}
		if m.ToolResult != nil {
			r = *m.ToolResult
		}
		do(`INSERT INTO messages VALUES ($1, $2, $3, $4, '', $5, $6, $7, $8, $9, false, false)`,
			task.Namespace, hash[:], m.Role, m.Text, m.ToolCall != nil, c.Name, c.Input, m.ToolResult != nil, r.Output)
		branch, position := 1, i+1
		if i == 4 {
			branch, position = 2, 4
		}
		do(`INSERT INTO entries VALUES ($1, $2, now(), 1, $3, $4, $5, $6, $7, $8, 10, 20, 30)`,
			branch, position, i+1, hash[:], c.ID, r.CallID, max(position-position%3%2, 1), min(position/3, 1))
	}
	at := time.Now().Add(-time.Hour)
	do(`INSERT INTO checkpoints (task_uid, number, attempt, sequence, trigger, time, message, commit, tree, parent, base, state_commit,
			files_changed, lines_added, lines_removed, git_head, git_branch, dirty_files, dirty_file_count, files, bytes, skipped, skipped_count,
			durable, requested_by_name, requested_by_uid, branch_id, branch_number, position, boundary, tool_calls, input_tokens, output_tokens, cost_micro_usd)
		VALUES ($1, 1, 1, 4, 'Manual', $2, 'msg', $3, 't', 'p', 'b', 's', 2, 3, 4, 'h', 'main', '{d}', 1, 5, 6,
			'[{"path":"big","reason":"TooLarge","bytes":7}]', 1, true, 'n', 'u', 1, 1, 3, 3, 1, 10, 20, 30)`, task.UID, at, strings.Repeat("ab", 20))
	do(`INSERT INTO checkpoint_changes VALUES ($1, 1, '[{"path":"f","action":"Added"}]')`, task.UID)
	for i, reason := range []string{"TaskStarted", "UserMessage", "CheckpointCreated", "TaskCompleted"} {
		number, message := 0, "hello"
		if reason == "CheckpointCreated" {
			number = 1
		}
		do(`INSERT INTO events VALUES ($1, $2, $3, $4, $5, 'task', $6, '', $7, 1, $8)`, history.EventID(task.UID, int64(i)),
			task.Namespace, task.UID, task.Name, at.Add(time.Duration(i-2)*24*time.Hour+time.Minute), reason, message, number)
	}
	do(`SET session_replication_role = DEFAULT`)
}
