package postgres_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/google/go-cmp/cmp"

	"github.com/clew-dev/clew/internal/conversation"
	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/testing/cases"
)

func (w *writer) snapshots(after int64) []history.Snapshot {
	w.t.Helper()
	snapshots, err := w.store.SnapshotsAfter(w.t.Context(), w.task.UID, after, 100)
	if err != nil {
		w.t.Fatal(err)
	}
	return snapshots
}

func beginWith(t testing.TB, w *writer, every int64) {
	t.Helper()
	if _, err := w.store.Begin(t.Context(), w.task, w.attempt, nil, history.BeginOptions{SnapshotEveryMessages: every}); err != nil {
		t.Fatal(err)
	}
}

var _ = Describe("Snapshots of a conversation", func() {
	It("snapshots are taken automatically", func() {
		t := GinkgoTB()
		w := begin(t, open(t), taskNamed("a"), 1)
		beginWith(t, w, 3)
		w.append(user("1"), usage(10, 20, 30), checkpoint(1), call("x"))
		// The third message closes no turn, the fourth does.
		w.append(call("y"), result("x"), result("y"), agent("6"), agent("7"))
		w.append(agent("8"))
		got := w.snapshots(0)
		type place struct{ ordinal, position, toolCalls, tokens, checkpoint int64 }
		var places []place
		for _, s := range got {
			places = append(places, place{s.Ordinal, s.Position.Position, s.Position.ToolCalls, s.Totals.InputTokens, s.Checkpoint})
			Expect(s).To(And(
				HaveField("Kind", history.SnapshotAutomatic), HaveField("Position.Branch", "main"),
				HaveField("Time", BeTemporally(">", time.Now().Add(-time.Minute)))))
			whole, err := w.store.Snapshot(t.Context(), w.task.Key(), history.SnapshotQuery{Position: s.Position.Position})
			Expect(err).NotTo(HaveOccurred())
			Expect(whole.Digest).To(Equal(s.Digest), "digest of the snapshot at %d, resolved again", s.Position.Position)
			Expect(whole.Totals).To(Equal(s.Totals), "sums of the snapshot at %d, resolved again", s.Position.Position)
		}
		if d := cmp.Diff([]place{{1, 5, 2, 10, 1}, {2, 6, 2, 10, 1}}, places, cmp.AllowUnexported(place{})); d != "" {
			t.Errorf("snapshots (-want +got):\n%s", d)
		}
		if got := w.snapshots(1); len(got) != 1 || got[0].Ordinal != 2 {
			t.Errorf("after the first: %+v", got)
		}

		// On another branch the numbers continue, and no snapshot is repeated.
		w.move("op", 1)
		w.append(agent("2"), agent("3"))
		Expect(w.snapshots(2)).To(ConsistOf(And(
			HaveField("Ordinal", int64(3)), HaveField("Checkpoint", int64(1)),
			HaveField("Position.Position", int64(3)), HaveField("Position.Branch", "branch-2"))), "on the new branch")
		// Turned off, and on again.
		beginWith(t, w, 0)
		w.append(agent("4"), agent("5"), agent("6"))
		beginWith(t, w, 3)
		w.append(agent("7"), agent("8"), agent("9"))
		if got := w.snapshots(3); len(got) != 1 || got[0].Position.Position != 9 {
			t.Errorf("turned on again: %+v", got)
		}
	})

	It("a snapshot is taken at a position", func() {
		t := GinkgoTB()
		w := begin(t, open(t), taskNamed("a"), 1)
		w.append(user("1"), call("x"), result("x"), checkpoint(1), agent("4"), checkpoint(2), agent("5"))
		want := map[int64]struct{ position, checkpoint int64 }{1: {1, 0}, 2: {1, 0}, 3: {3, 1}, 4: {4, 2}, 5: {5, 2}}
		for asked, tt := range want {
			got, err := w.store.Snapshot(t.Context(), w.task.Key(), history.SnapshotQuery{Position: asked})
			Expect(err).NotTo(HaveOccurred(), "position %d", asked)
			Expect(got).To(And(
				HaveField("Kind", history.SnapshotManual),
				HaveField("Position.Position", tt.position), HaveField("Checkpoint", tt.checkpoint)), "position %d", asked)
		}
		if _, err := w.store.Snapshot(t.Context(), w.task.Key(), history.SnapshotQuery{Position: 6}); !errors.Is(err, history.ErrNotFound) {
			t.Errorf("a position beyond the head: %v", err)
		}
	})

	// A checkpoint carries the sums and the digest of all preceding messages.
	It("checkpoints carry their snapshot", func() {
		t := GinkgoTB()
		w := begin(t, open(t), taskNamed("a"), 1)
		w.append(user("1"), usage(1, 2, 3), call("x"), result("x"), checkpoint(1), usage(4, 5, 6), checkpoint(2))
		want := map[int64]history.Totals{
			1: {Messages: 3, ToolCalls: 1, InputTokens: 1, OutputTokens: 2, CostMicroUSD: 3},
			2: {Messages: 3, ToolCalls: 1, InputTokens: 5, OutputTokens: 7, CostMicroUSD: 9},
		}
		for number, totals := range want {
			c, err := w.store.Checkpoint(t.Context(), w.task.Key(), number)
			if err != nil {
				t.Fatal(err)
			}
			s, err := w.store.Snapshot(t.Context(), w.task.Key(), history.SnapshotQuery{Checkpoint: number})
			Expect(err).NotTo(HaveOccurred(), "snapshot of checkpoint %d", number)
			Expect(s.Digest).To(Equal(c.Digest), "digest of checkpoint %d", number)
			Expect(s.Totals).To(Equal(totals), "sums of checkpoint %d", number)
			if d := cmp.Diff(totals, c.Totals); d != "" {
				t.Errorf("checkpoint %d (-want +got):\n%s", number, d)
			}
		}
	})

	// Whatever part of a conversation was changed, a snapshot reports it.
	Describe("corruption is found", func() {
		tests := map[string]struct{ damage, says string }{
			"another text":      {`UPDATE messages SET body = 'something else' WHERE body = '2'`, "message 2"},
			"another flag":      {`UPDATE messages SET is_error = true WHERE has_result`, "message 4"},
			"another message":   {`UPDATE entries SET message_id = (SELECT min(message_id) FROM entries) WHERE position = 2`, "up to 2"},
			"two changed":       {`UPDATE entries SET position = CASE position WHEN 1 THEN 102 ELSE 101 END WHERE position IN (1, 2); UPDATE entries SET position = position - 100 WHERE position > 100`, "up to 1"},
			"one is missing":    {`DELETE FROM entries WHERE position = 2`, "message 2"},
			"another digest":    {`UPDATE entries SET digest = sha256(digest) WHERE position = 3`, "up to 3"},
			"another last hash": {`UPDATE branches SET head_digest = sha256(head_digest)`, "up to 5"},
		}
		for name, tt := range cases.Sorted(tests) {
			It(name, func() {
				t := GinkgoTB()
				dsn := pg.Database(t)
				w := begin(t, openAt(t, dsn), taskNamed("a"), 1)
				w.append(user("1"), agent("2"), call("x"), result("x"), agent("5"))
				if _, err := w.store.Snapshot(t.Context(), w.task.Key(), history.SnapshotQuery{}); err != nil {
					t.Fatalf("intact: %v", err)
				}
				for statement := range strings.SplitSeq(tt.damage, ";") {
					if _, err := connect(t, dsn).Exec(t.Context(), statement); err != nil {
						t.Fatal(err)
					}
				}
				_, err := w.store.Snapshot(t.Context(), w.task.Key(), history.SnapshotQuery{})
				if !errors.Is(err, history.ErrCorrupted) || !strings.Contains(err.Error(), tt.says) {
					t.Errorf("%v, want a corruption at %s", err, tt.says)
				}
			})
		}
	})

	It("negative usage corrects the sums", func() {
		t := GinkgoTB()
		w := begin(t, open(t), taskNamed("a"), 1)
		w.append(user("1"), usage(1, 1, 100), usage(0, 0, -30), agent("2"))
		if got := w.state().Totals.CostMicroUSD; got != 70 {
			t.Errorf("cost %d, want 70", got)
		}
		w.append(usage(-5, 0, -1000), agent("3"))
		if got := w.state().Totals; got.CostMicroUSD != 0 || got.InputTokens != 1 {
			t.Errorf("cost %d and %d input tokens, want 0 and 1", got.CostMicroUSD, got.InputTokens)
		}
	})

	It("message hashes cover pieces", func() {
		t := GinkgoTB()
		p := &conversation.Pieces{Hashes: [][]byte{conversation.PieceHash("a")}, Bytes: 1}
		one := conversation.Message{Role: conversation.RoleUser, Text: "a", TextPieces: p}
		other := conversation.Message{Role: conversation.RoleUser, Text: "b", TextPieces: p}
		if one.Hash("n") != other.Hash("n") {
			t.Error("the beginning changes the hash")
		}
		if plain := (conversation.Message{Role: conversation.RoleUser, Text: "a"}); plain.Hash("n") == one.Hash("n") {
			t.Error("a cut text and a full one have the same hash")
		}
	})
})
