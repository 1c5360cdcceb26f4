package postgres_test

import (
	"testing"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/jackc/pgx/v5"

	"github.com/clew-dev/clew/internal/history"
)

const (
	deepBranches = 1000
	deepMessages = 20_000
)

// deep is a task whose conversation was moved repeatedly, each time after a message, and
// then continued for long: a chain of branches. The positions of its messages equal the
// sequences of their records.
func deep(t testing.TB, dsn string) (conn *pgx.Conn, head int64) {
	t.Helper()
	w := begin(t, openAt(t, dsn), taskNamed("a"), 1)
	w.append(agent("x"))
	conn = connect(t, dsn)
	entry := `message_id, now(), sequence, boundary, 0, 0, 0, 0, 1, 0, '', '', ''`
	for _, statement := range []string{
		`INSERT INTO branches (id, task_uid, number, parent_id, base_position, head_position, head_tool_calls, head_input_tokens,
				head_output_tokens, head_cost_micro_usd, head_boundary, head_settled)
			OVERRIDING SYSTEM VALUE
			SELECT b.id + i, b.task_uid, 1 + i, b.id + i - 1, i, i + 1, 0, 0, 0, 0, i + 1, i + 1
			FROM branches b, generate_series(1, $1) i`,
		`INSERT INTO entries SELECT branch_id + i, position + i, ` + entry + ` FROM (
			SELECT branch_id, position, message_id, sequence + i AS sequence, boundary + i AS boundary, i FROM entries, generate_series(1, $1) i) e`,
	} {
		if _, err := conn.Exec(t.Context(), statement, deepBranches); err != nil {
			t.Fatal(err)
		}
	}
	for _, statement := range []string{
		`INSERT INTO entries SELECT branch_id, position + i, ` + entry + ` FROM (
			SELECT branch_id, position, message_id, sequence + i AS sequence, boundary + i AS boundary, i
			FROM (SELECT * FROM entries ORDER BY position DESC LIMIT 1) last, generate_series(1, $1) i) e`,
		`UPDATE branches SET head_position = head_position + $1 WHERE base_position = (SELECT max(base_position) FROM branches)`,
	} {
		if _, err := conn.Exec(t.Context(), statement, deepMessages); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := conn.Exec(t.Context(), "VACUUM ANALYZE branches, entries", pgx.QueryExecModeExec); err != nil {
		t.Fatal(err)
	}
	if err := conn.QueryRow(t.Context(), "SELECT max(id) FROM branches").Scan(&head); err != nil {
		t.Fatal(err)
	}
	return conn, head
}

var _ = Describe("A conversation of many branches", func() {
	It("the position of a record is found with few reads", func() {
		t := GinkgoTB()
		conn, head := deep(t, pg.Database(t))
		for name, c := range map[string]struct {
			sequence, position int64
			blocks             int
		}{
			"the head":                         {deepBranches + deepMessages + 1, deepBranches + deepMessages + 1, 100},
			"in the middle of the last branch": {deepBranches + 7777, deepBranches + 7777, 100},
			"a branch before":                  {deepBranches - 10, deepBranches - 10, 200},
			"far back":                         {2, 2, 12 * deepBranches},
			"before the first":                 {0, 0, 12 * deepBranches},
			"a record to come":                 {99_999_999, deepBranches + deepMessages + 1, 100},
		} {
			By(name, func() {
				args := pgx.NamedArgs{"branch_id": head, "task_uid": taskNamed("a").UID, "sequence": c.sequence}
				var position int64
				Expect(conn.QueryRow(t.Context(), queryText(t, "PositionAfter"), args).Scan(&position)).To(Succeed())
				Expect(position).To(Equal(c.position))
				p := explain(t, conn, queryText(t, "PositionAfter"), args)
				Expect(p.blocks).To(BeNumerically("<", c.blocks), p.text)
			})
		}
	})

	// The place where it was taken can no longer be found, and nobody looks for it.
	It("a checkpoint that is stored is not placed again", func() {
		t := GinkgoTB()
		dsn := pg.Database(t)
		w := begin(t, openAt(t, dsn), taskNamed("a"), 1)
		sentAgain := func() history.Record {
			r := checkpoint(1)
			r.Checkpoint.AfterSequence = 2
			return r
		}
		w.append(user("1"), call("x"), sentAgain())
		before, err := w.store.Checkpoint(t.Context(), w.task.Key(), 1)
		Expect(err).NotTo(HaveOccurred())
		_, err = connect(t, dsn).Exec(t.Context(), "DELETE FROM entries WHERE position = 1")
		Expect(err).NotTo(HaveOccurred())
		w.append(sentAgain(), sentAgain())
		after, err := w.store.Checkpoint(t.Context(), w.task.Key(), 1)
		Expect(err).NotTo(HaveOccurred())
		Expect(after.Position).To(Equal(before.Position))
	})

	It("the branches of a task are limited", func() {
		t := GinkgoTB()
		dsn := pg.Database(t)
		w := begin(t, openAt(t, dsn), taskNamed("a"), 1)
		w.append(agent("1"), agent("2"), moveRecord(history.MoveOperation{ID: "Rewind/a", Position: 1}), agent("3"))
		_, err := connect(t, dsn).Exec(t.Context(), "UPDATE branches SET number = 9999 WHERE number = 2")
		Expect(err).NotTo(HaveOccurred())
		w.append(moveRecord(history.MoveOperation{ID: "Rewind/b", Position: 1}), agent("4"))
		Expect(w.texts()).To(Equal([]string{"A 1", "A 4"}))

		w.append(moveRecord(history.MoveOperation{ID: "Rewind/c", Position: 1}), agent("5"))
		Expect(w.texts()).To(Equal([]string{"A 1", "A 4", "A 5"}), "it stays where it is, and goes on")
		page, err := w.store.Timeline(t.Context(), history.TimelineQuery{Namespace: "team", Name: "a", Limit: 100})
		Expect(err).NotTo(HaveOccurred())
		Expect(page.Events).To(ContainElement(HaveField("Message", ContainSubstring("10000 branches"))))
		_, err = w.store.MoveConversation(t.Context(), w.task, 1, history.MoveOperation{ID: "Rewind/d", Position: 1})
		Expect(err).To(MatchError(history.ErrLimitReached))
	})
})
