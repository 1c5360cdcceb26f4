package postgres_test

import (
	"strings"
	"testing"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/clew-dev/clew/internal/conversation"
	"github.com/clew-dev/clew/internal/history"
)

func (w *writer) snapshots(after int64) []history.Snapshot {
	GinkgoHelper()
	snapshots, err := w.store.SnapshotsAfter(w.t.Context(), w.task.UID, after, 100)
	Expect(err).NotTo(HaveOccurred())
	return snapshots
}

func beginWith(t testing.TB, w *writer, every int64) {
	GinkgoHelper()
	Expect(w.store.Begin(t.Context(), w.task, w.attempt, nil, history.BeginOptions{SnapshotEveryMessages: every})).Error().NotTo(HaveOccurred())
}

var _ = Describe("A snapshot of a conversation", func() {
	var dsn string
	var w *writer
	BeforeEach(func() {
		dsn = pg.Database(GinkgoTB())
		w = begin(GinkgoTB(), openAt(GinkgoTB(), dsn), taskNamed("a"), 1)
	})

	When("one is to be taken every three messages", func() {
		BeforeEach(func() {
			beginWith(GinkgoTB(), w, 3)
			w.append(user("1"), usage(10, 20, 30), checkpoint(1), call("x"))
			// The third message closes no turn, the fourth does.
			w.append(call("y"), result("x"), result("y"), agent("6"), agent("7"))
			w.append(agent("8"))
		})

		It("is taken where a turn is closed", func() {
			type place struct{ Ordinal, Position, ToolCalls, Tokens, Checkpoint int64 }
			var places []place
			for _, s := range w.snapshots(0) {
				places = append(places, place{s.Ordinal, s.Position.Position, s.Position.ToolCalls, s.Totals.InputTokens, s.Checkpoint})
				Expect(s).To(And(
					HaveField("Kind", history.SnapshotAutomatic), HaveField("Position.Branch", "main"),
					HaveField("Time", BeTemporally(">", time.Now().Add(-time.Minute)))))
			}
			Expect(places).To(HaveExactElements(place{1, 5, 2, 10, 1}, place{2, 6, 2, 10, 1}))
			Expect(w.snapshots(1)).To(HaveExactElements(HaveField("Ordinal", int64(2))), "after the first one")
		})

		It("is the same as one that is taken there later", func(ctx SpecContext) {
			Expect(w.snapshots(0)).NotTo(BeEmpty())
			for _, s := range w.snapshots(0) {
				Expect(w.store.Snapshot(ctx, w.task.Key(), history.SnapshotQuery{Position: s.Position.Position})).To(And(
					HaveField("Digest", s.Digest), HaveField("Totals", s.Totals)), "at %d", s.Position.Position)
			}
		})

		It("is the same for a checkpoint, whether its row is read or its messages are", func(ctx SpecContext) {
			checkpoints, err := w.store.CheckpointsAfter(ctx, w.task.UID, 0, 10)
			Expect(err).NotTo(HaveOccurred())
			Expect(checkpoints).NotTo(BeEmpty())
			for _, c := range checkpoints {
				Expect(w.store.Snapshot(ctx, w.task.Key(), history.SnapshotQuery{Checkpoint: c.Number})).
					To(Equal(history.SnapshotOf(c)), "checkpoint %d", c.Number)
			}
		})

		It("has the next number on another branch, and is not repeated", func() {
			w.move("op", 1)
			w.append(agent("2"), agent("3"))
			Expect(w.snapshots(2)).To(ConsistOf(And(
				HaveField("Ordinal", int64(3)), HaveField("Checkpoint", int64(1)),
				HaveField("Position.Position", int64(3)), HaveField("Position.Branch", "branch-2"))))

			By("turning them off, and on again")
			beginWith(GinkgoTB(), w, 0)
			w.append(agent("4"), agent("5"), agent("6"))
			beginWith(GinkgoTB(), w, 3)
			w.append(agent("7"), agent("8"), agent("9"))
			Expect(w.snapshots(3)).To(ConsistOf(HaveField("Position.Position", int64(9))))
		})
	})

	Describe("that is asked for", func() {
		BeforeEach(func() {
			w.append(user("1"), call("x"), result("x"), checkpoint(1), agent("4"), checkpoint(2), agent("5"))
		})

		DescribeTable("is taken where the last turn was closed", func(ctx SpecContext, asked, position, checkpoint int64) {
			Expect(w.store.Snapshot(ctx, w.task.Key(), history.SnapshotQuery{Position: asked})).To(And(
				HaveField("Kind", history.SnapshotManual),
				HaveField("Position.Position", position), HaveField("Checkpoint", checkpoint)))
		},
			Entry("after a message", int64(1), int64(1), int64(0)),
			Entry("before an open tool call", int64(2), int64(1), int64(0)),
			Entry("after a tool call's result", int64(3), int64(3), int64(1)),
			Entry("after another message", int64(4), int64(4), int64(2)),
			Entry("at the head", int64(5), int64(5), int64(2)),
		)

		It("is not found beyond the head", func(ctx SpecContext) {
			_, err := w.store.Snapshot(ctx, w.task.Key(), history.SnapshotQuery{Position: 6})
			Expect(err).To(MatchError(history.ErrNotFound))
		})
	})

	It("is the same as the one that a checkpoint carries", func(ctx SpecContext) {
		w.append(user("1"), usage(1, 2, 3), call("x"), result("x"), checkpoint(1), usage(4, 5, 6), checkpoint(2))
		for number, totals := range map[int64]history.Totals{
			1: {Messages: 3, ToolCalls: 1, InputTokens: 1, OutputTokens: 2, CostMicroUSD: 3},
			2: {Messages: 3, ToolCalls: 1, InputTokens: 5, OutputTokens: 7, CostMicroUSD: 9},
		} {
			c, err := w.store.Checkpoint(ctx, w.task.Key(), number)
			Expect(err).NotTo(HaveOccurred(), "checkpoint %d", number)
			Expect(c.Totals).To(Equal(totals), "sums of checkpoint %d", number)
			Expect(w.store.Snapshot(ctx, w.task.Key(), history.SnapshotQuery{Checkpoint: number})).To(And(
				HaveField("Digest", c.Digest), HaveField("Totals", totals)), "snapshot of checkpoint %d", number)
		}
	})

	When("a part of the conversation was changed in the database", func() {
		DescribeTable("reports", func(ctx SpecContext, damage, place string) {
			w.append(user("1"), agent("2"), call("x"), result("x"), agent("5"))
			Expect(w.store.Snapshot(ctx, w.task.Key(), history.SnapshotQuery{})).Error().NotTo(HaveOccurred())
			conn := connect(GinkgoTB(), dsn)
			for statement := range strings.SplitSeq(damage, ";") {
				Expect(conn.Exec(ctx, statement)).Error().NotTo(HaveOccurred())
			}
			_, err := w.store.Snapshot(ctx, w.task.Key(), history.SnapshotQuery{})
			Expect(err).To(And(MatchError(history.ErrCorrupted), MatchError(ContainSubstring(place))))
		},
			Entry("another text", `UPDATE messages SET body = 'something else' WHERE body = '2'`, "message 2"),
			Entry("another flag", `UPDATE messages SET is_error = true WHERE has_result`, "message 4"),
			Entry("another message", `UPDATE entries SET message_id = (SELECT min(message_id) FROM entries) WHERE position = 2`, "up to 2"),
			Entry("two messages that changed places", `UPDATE entries SET position = CASE position WHEN 1 THEN 102 ELSE 101 END WHERE position IN (1, 2); UPDATE entries SET position = position - 100 WHERE position > 100`, "up to 1"),
			Entry("a message that is missing", `DELETE FROM entries WHERE position = 2`, "message 2"),
			Entry("another digest", `UPDATE entries SET digest = sha256(digest) WHERE position = 3`, "up to 3"),
			Entry("another digest of the head", `UPDATE branches SET head_digest = sha256(head_digest)`, "up to 5"),
		)
	})
})

var _ = Describe("The sums of a conversation", func() {
	It("are corrected by negative usage, and do not fall below zero", func() {
		w := begin(GinkgoTB(), open(GinkgoTB()), taskNamed("a"), 1)
		w.append(user("1"), usage(1, 1, 100), usage(0, 0, -30), agent("2"))
		Expect(w.state().Totals).To(HaveField("CostMicroUSD", int64(70)))
		w.append(usage(-5, 0, -1000), agent("3"))
		Expect(w.state().Totals).To(And(HaveField("CostMicroUSD", int64(0)), HaveField("InputTokens", int64(1))))
	})
})

var _ = Describe("The hash of a message", func() {
	pieces := &conversation.Pieces{Hashes: [][]byte{conversation.PieceHash("a")}, Bytes: 1}
	cut := conversation.Message{Role: conversation.RoleUser, Text: "a", TextPieces: pieces}

	It("covers the pieces of a text that is cut, and not its beginning", func() {
		other := conversation.Message{Role: conversation.RoleUser, Text: "b", TextPieces: pieces}
		Expect(cut.Hash("n")).To(Equal(other.Hash("n")))
	})
	It("differs between a text that is cut and a full one", func() {
		full := conversation.Message{Role: conversation.RoleUser, Text: "a"}
		Expect(cut.Hash("n")).NotTo(Equal(full.Hash("n")))
	})
})
