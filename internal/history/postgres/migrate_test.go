package postgres_test

import (
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"

	"github.com/clew-dev/clew/internal/conversation"
	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/history/postgres"
)

var _ = Describe("Migrating the schema", func() {
	// An installation from before pieces and digests keeps everything it has, and
	// continues.
	It("a migration keeps everything stored", func() {
		t := GinkgoTB()
		server := ownServer(t)
		dsn := emptyDatabase(t, server.Database(t))
		migrateTo(t, dsn, 2)
		fillOld(t, dsn)
		if err := postgres.Migrate(t.Context(), dsn); err != nil {
			t.Fatal(err)
		}
		store := openAt(t, dsn)
		task := taskNamed("a")
		w := begin(t, store, task, 2)
		if w.last != 7 {
			t.Errorf("the last sequence is %d", w.last)
		}
		if d := cmp.Diff([]string{"U hello", "call 1 Bash", "result 1", "A other way"}, w.texts()); d != "" {
			t.Errorf("conversation (-want +got):\n%s", d)
		}
		c, err := store.Checkpoint(t.Context(), task.Key(), 1)
		if err != nil {
			t.Fatal(err)
		}
		want := history.Checkpoint{
			TaskUID: task.UID, Number: 1, Attempt: 1, Trigger: "Manual", Time: c.Time, Message: "msg", Commit: strings.Repeat("ab", 20), Tree: "t",
			Parent: "p", Base: "b", StateCommit: "s", FilesChanged: 2, LinesAdded: 3, LinesRemoved: 4, GitHead: "h", GitBranch: "main",
			DirtyFiles: []string{"d"}, DirtyFileCount: 1, Files: 5, Bytes: 6, Skipped: []history.SkippedFile{{Path: "big", Reason: "TooLarge", Bytes: 7}},
			SkippedCount: 1, Durable: true, RequestedByName: "n", RequestedByUID: "u", Position: history.Position{Branch: "main", Position: 3, ToolCalls: 1},
			Totals: history.Totals{Messages: 3, ToolCalls: 1, InputTokens: 10, OutputTokens: 20, CostMicroUSD: 30}, Digest: c.Digest,
			Changes: []history.FileChange{{Path: "f", Action: "Added"}},
		}
		if d := cmp.Diff(want, c); d != "" {
			t.Errorf("checkpoint (-want +got):\n%s", d)
		}
		for _, query := range []history.SnapshotQuery{{}, {Checkpoint: 1}} {
			s, err := store.Snapshot(t.Context(), task.Key(), query)
			Expect(err).NotTo(HaveOccurred(), "snapshot %+v", query)
			if query.Checkpoint == 1 {
				Expect(s.Digest).To(Equal(c.Digest), "digest of checkpoint 1")
			}
		}
		page, err := store.Timeline(t.Context(), history.TimelineQuery{Namespace: "team", Limit: 10})
		var reasons []string
		for _, e := range page.Events {
			reasons = append(reasons, e.Reason)
		}
		if d := cmp.Diff([]string{"TaskCompleted", "CheckpointCreated", "UserMessage", "TaskStarted"}, reasons); d != "" || err != nil {
			t.Errorf("timeline (-want +got):\n%s%v", d, err)
		}
		tasks, err := store.Tasks(t.Context(), history.TaskQuery{Namespace: "team", Tool: "Bash", Limit: 10})
		Expect(err).NotTo(HaveOccurred())
		Expect(tasks.Tasks).To(ConsistOf(And(
			HaveField("State", "Completed"), HaveField("Preview", "hello"), HaveField("Totals.Messages", int64(4)))))
		index(t, store)
		if got := search(t, store, history.SearchQuery{Text: "other"}); len(got) != 1 {
			t.Errorf("found %q", got)
		}
		w.append(agent("goes on"), checkpoint(2))
		if p := w.moveTo("op2", history.MoveOperation{Checkpoint: 1}); p.Position != 3 {
			t.Errorf("moved to %+v", p)
		}
		if _, err := store.Snapshot(t.Context(), task.Key(), history.SnapshotQuery{}); err != nil {
			t.Error(err)
		}
	})

	// Older operations have bare ids; their reasons tell their kind.
	It("a migration keys operations by kind", func() {
		t := GinkgoTB()
		server := ownServer(t)
		dsn := emptyDatabase(t, server.Database(t))
		migrateTo(t, dsn, 7)
		conn := connect(t, dsn)
		task := taskNamed("a")
		rows := [][3]string{
			{"1", "resume", "Resume/1"}, {"2", "rewind", "Rewind/2"}, {"2/done", "rewind complete", "Rewind/2/done"},
			{"restore/3", "the volume was lost", "restore/3"}, {"3", "resume", "3"}, {"Resume/3", "resume", "Resume/3"},
			{"Rewind/4/done", "rewind complete", "Rewind/4/done"},
		}
		if _, err := conn.Exec(t.Context(), `SET session_replication_role = replica`); err != nil {
			t.Fatal(err)
		}
		for _, row := range rows {
			_, err := conn.Exec(t.Context(), `INSERT INTO operations (task_uid, operation_id, attempt, checkpoint, reason, branch, position, tool_calls)
			VALUES ($1, $2, 1, 1, $3, 'main', 1, 0)`, task.UID, row[0], row[1])
			if err != nil {
				t.Fatal(err)
			}
		}
		if err := postgres.Migrate(t.Context(), dsn); err != nil {
			t.Fatal(err)
		}
		found, err := conn.Query(t.Context(), `SELECT operation_id FROM operations ORDER BY ordinal`)
		if err != nil {
			t.Fatal(err)
		}
		got, err := pgx.CollectRows(found, pgx.RowTo[string])
		if err != nil {
			t.Fatal(err)
		}
		for i, row := range rows {
			if got[i] != row[2] {
				t.Errorf("operation %s with the reason %q became %s, want %s", row[0], row[1], got[i], row[2])
			}
		}
	})

	// The schema counts as older only once it is complete, and Migrate brings it up to
	// date. The newest table may still exist: pg_restore --clean removes only what it
	// restores.
	It("a schema of an older backup is detected", func() {
		t := GinkgoTB()
		for _, drop := range []string{"DROP TABLE awaited_sources", ""} {
			dsn := pg.Database(t)
			store, conn := openAt(t, dsn), connect(t, dsn)
			do := func(statement string) {
				_, err := conn.Exec(t.Context(), statement, pgx.QueryExecModeSimpleProtocol)
				Expect(err).NotTo(HaveOccurred(), statement)
			}
			older := func() bool {
				is, err := store.SchemaIsOlder(t.Context())
				Expect(err).NotTo(HaveOccurred())
				return is
			}
			Expect(older()).To(BeFalse())
			do(drop + "; DELETE FROM goose_db_version WHERE version_id = 18")
			Expect(older()).To(BeTrue())
			if drop != "" {
				_, err := store.Begin(t.Context(), taskNamed("fork"), 1, from("lost", 7), history.BeginOptions{})
				Expect(err).To(And(MatchError(history.ErrOldSchema), MatchError(history.ErrUnavailable)))
			}
			restoring := func() {
				t.Helper()
				_, err := store.SchemaIsOlder(t.Context())
				Expect(err).To(And(MatchError(history.ErrUnavailable), MatchError(ContainSubstring("being restored"))))
				Expect(postgres.Migrate(t.Context(), dsn)).To(MatchError(err))
			}
			do("ALTER TABLE goose_db_version DROP CONSTRAINT goose_db_version_pkey")
			restoring()
			do("ALTER TABLE goose_db_version ADD PRIMARY KEY (id); SET application_name = pg_restore")
			restoring()
			do("RESET application_name")
			Expect(older()).To(BeTrue())
			var both sync.WaitGroup
			for range 2 {
				both.Go(func() { Expect(postgres.Migrate(t.Context(), dsn)).To(Succeed()) })
			}
			both.Wait()
			Expect(older()).To(BeFalse())
			_, err := store.Begin(t.Context(), taskNamed("fork"), 1, from("lost", 7), history.BeginOptions{})
			Expect(err).To(MatchError(history.ErrNotFound), "it waits for its source")
		}
	})
})

// emptyDatabase removes the schema from a database.
func emptyDatabase(t testing.TB, dsn string) string {
	t.Helper()
	if _, err := connect(t, dsn).Exec(t.Context(), "DROP SCHEMA public CASCADE; CREATE SCHEMA public", pgx.QueryExecModeSimpleProtocol); err != nil {
		t.Fatal(err)
	}
	return dsn
}

func migrateTo(t testing.TB, dsn string, version int64) {
	t.Helper()
	config, err := pgx.ParseConfig(dsn)
	if err != nil {
		t.Fatal(err)
	}
	db := stdlib.OpenDB(*config)
	defer db.Close()
	provider, err := goose.NewProvider(goose.DialectPostgres, db, os.DirFS("migrations"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := provider.UpTo(t.Context(), version); err != nil {
		t.Fatal(err)
	}
}

// fillOld writes what the store of version 2 would have written: a task that has gone
// back once.
func fillOld(t testing.TB, dsn string) {
	t.Helper()
	conn := connect(t, dsn)
	do := func(statement string, args ...any) {
		t.Helper()
		if _, err := conn.Exec(t.Context(), statement, args...); err != nil {
			t.Fatalf("%v in %s", err, statement)
		}
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
