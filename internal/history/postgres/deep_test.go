package postgres_test

import (
	"testing"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/jackc/pgx/v5"

	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/testing/cases"
)

const (
	deepBranches = 1000
	deepMessages = 20_000
)

// deep is a task whose conversation was moved repeatedly, each time after a message, and
// then continued for long: a chain of branches. The positions of its messages equal the
// sequences of their records.
func deep(t testing.TB, dsn string) (conn *pgx.Conn, head int64) {
	GinkgoHelper()
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
		Expect(conn.Exec(t.Context(), statement, deepBranches)).Error().NotTo(HaveOccurred())
	}
	for _, statement := range []string{
		`INSERT INTO entries SELECT branch_id, position + i, ` + entry + ` FROM (
			SELECT branch_id, position, message_id, sequence + i AS sequence, boundary + i AS boundary, i
			FROM (SELECT * FROM entries ORDER BY position DESC LIMIT 1) last, generate_series(1, $1) i) e`,
		`UPDATE branches SET head_position = head_position + $1 WHERE base_position = (SELECT max(base_position) FROM branches)`,
	} {
		Expect(conn.Exec(t.Context(), statement, deepMessages)).Error().NotTo(HaveOccurred())
	}
	Expect(conn.Exec(t.Context(), "VACUUM ANALYZE branches, entries", pgx.QueryExecModeExec)).Error().NotTo(HaveOccurred())
	Expect(conn.QueryRow(t.Context(), "SELECT max(id) FROM branches").Scan(&head)).To(Succeed())
	return conn, head
}

var _ = Describe("A conversation of many branches", func() {
	Describe("the position of a record is found with few reads", Ordered, ContinueOnFailure, func() {
		var conn *pgx.Conn
		var head int64
		BeforeAll(func() {
			t := GinkgoTB()
			conn, head = deep(t, pg.Database(t))
		})

		for name, c := range cases.Sorted(map[string]struct {
			sequence, position int64
			blocks             int
		}{
			"at the head":                      {deepBranches + deepMessages + 1, deepBranches + deepMessages + 1, 100},
			"in the middle of the last branch": {deepBranches + 7777, deepBranches + 7777, 100},
			"on a branch before":               {deepBranches - 10, deepBranches - 10, 200},
			"far back":                         {2, 2, 12 * deepBranches},
			"for one before the first":         {0, 0, 12 * deepBranches},
			"for a record to come":             {99_999_999, deepBranches + deepMessages + 1, 100},
		}) {
			It(name, func(ctx SpecContext) {
				args := pgx.NamedArgs{"branch_id": head, "task_uid": taskNamed("a").UID, "sequence": c.sequence}
				query := queryText(GinkgoTB(), "PositionAfter")
				var position int64
				Expect(conn.QueryRow(ctx, query, args).Scan(&position)).To(Succeed())
				Expect(position).To(Equal(c.position))
				p := explain(GinkgoTB(), conn, query, args)
				Expect(p.blocks).To(BeNumerically("<", c.blocks), p.text)
			})
		}
	})

	When("a checkpoint of it is sent again", func() {
		It("is not searched for the checkpoint's position, which it may no longer have", func(ctx SpecContext) {
			t := GinkgoTB()
			dsn := pg.Database(t)
			w := begin(t, openAt(t, dsn), taskNamed("a"), 1)
			sentAgain := func() history.Record {
				r := checkpoint(1)
				r.Checkpoint.AfterSequence = 2
				return r
			}
			w.append(user("1"), call("x"), sentAgain())
			before, err := w.store.Checkpoint(ctx, w.task.Key(), 1)
			Expect(err).NotTo(HaveOccurred())
			Expect(connect(t, dsn).Exec(ctx, "DELETE FROM entries WHERE position = 1")).Error().NotTo(HaveOccurred())
			w.append(sentAgain(), sentAgain())
			Expect(w.store.Checkpoint(ctx, w.task.Key(), 1)).To(HaveField("Position", before.Position))
		})
	})

	When("it has as many branches as it may have", func() {
		var w *writer
		BeforeEach(func(ctx SpecContext) {
			t := GinkgoTB()
			dsn := pg.Database(t)
			w = begin(t, openAt(t, dsn), taskNamed("a"), 1)
			w.append(agent("1"), agent("2"), moveRecord(history.MoveOperation{ID: "Rewind/a", Position: 1}), agent("3"))
			Expect(connect(t, dsn).Exec(ctx, "UPDATE branches SET number = 9999 WHERE number = 2")).Error().NotTo(HaveOccurred())
			w.append(moveRecord(history.MoveOperation{ID: "Rewind/b", Position: 1}), agent("4"))
			Expect(w.texts()).To(HaveExactElements("A 1", "A 4"), "the last branch can still be made")
		})

		It("continues on the last one after a recorded move, and the refusal is reported", func(ctx SpecContext) {
			w.append(moveRecord(history.MoveOperation{ID: "Rewind/c", Position: 1}), agent("5"))
			Expect(w.texts()).To(HaveExactElements("A 1", "A 4", "A 5"))
			Expect(w.store.Timeline(ctx, history.TimelineQuery{Namespace: "team", Name: "a", Limit: 100})).To(
				HaveField("Events", ContainElement(HaveField("Message", ContainSubstring("10000 branches")))))
		})

		It("refuses a requested move", func(ctx SpecContext) {
			_, err := w.store.MoveConversation(ctx, w.task, 1, history.MoveOperation{ID: "Rewind/d", Position: 1})
			Expect(err).To(MatchError(history.ErrLimitReached))
		})
	})
})
