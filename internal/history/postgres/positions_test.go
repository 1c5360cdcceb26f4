package postgres_test

import (
	"errors"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/google/go-cmp/cmp"

	"github.com/clew-dev/clew/internal/history"
)

func (w *writer) resolve(q history.PositionQuery) history.Resolved {
	w.t.Helper()
	r, err := w.store.ResolvePosition(w.t.Context(), w.task.UID, q)
	if err != nil {
		w.t.Fatalf("resolve %+v: %v", q, err)
	}
	return r
}

var _ = Describe("Positions in a conversation", func() {
	It("a position is resolved", func() {
		t := GinkgoTB()
		w := begin(t, open(t), taskNamed("a"), 1)
		w.append(user("1"), checkpoint(1), call("x"), result("x"), usage(1, 2, 3), checkpoint(2), agent("4"))
		between := time.Now()
		// PostgreSQL stores microseconds: the next message must have a later time.
		Eventually(func() time.Duration { return time.Since(between) }).Should(BeNumerically(">", time.Millisecond))
		w.append(call("y"), call("z"), result("z"), result("y"), checkpoint(3), agent("9"))

		type outcome struct {
			position, asked, toolCalls, checkpoint int64
			snapped                                bool
		}
		tests := map[string]struct {
			query history.PositionQuery
			want  outcome
		}{
			"first message":    {history.PositionQuery{Message: 1}, outcome{1, 1, 0, 1, false}},
			"a call":           {history.PositionQuery{Message: 2}, outcome{1, 2, 0, 1, true}},
			"its result":       {history.PositionQuery{Message: 3}, outcome{3, 3, 1, 2, false}},
			"within two calls": {history.PositionQuery{Message: 7}, outcome{4, 7, 1, 2, true}},
			"the head":         {history.PositionQuery{Message: 9}, outcome{9, 9, 3, 3, false}},
			"one back":         {history.PositionQuery{Back: 1}, outcome{8, 8, 3, 3, false}},
			"three back":       {history.PositionQuery{Back: 3}, outcome{4, 6, 1, 2, true}},
			"all back":         {history.PositionQuery{Back: 9}, outcome{0, 0, 0, 0, false}},
			"a time":           {history.PositionQuery{Time: between}, outcome{4, 4, 1, 2, false}},
			"now":              {history.PositionQuery{Time: time.Now().Add(time.Minute)}, outcome{9, 9, 3, 3, false}},
			"before it all":    {history.PositionQuery{Time: between.Add(-time.Hour)}, outcome{0, 0, 0, 0, false}},
		}
		for name, tt := range tests {
			By(name, func() {
				got := w.resolve(tt.query)
				number := int64(0)
				if got.Checkpoint != nil {
					number = got.Checkpoint.Number
				}
				if d := cmp.Diff(tt.want, outcome{got.Position.Position, got.Asked, got.Position.ToolCalls, number, got.Snapped}, cmp.AllowUnexported(outcome{})); d != "" {
					t.Errorf("(-want +got):\n%s", d)
				}
				if got.Totals.Messages != tt.want.position || got.Totals.ToolCalls != tt.want.toolCalls {
					t.Errorf("totals %+v", got.Totals)
				}
			})
		}
		for _, q := range []history.PositionQuery{{Message: 10}, {Back: 10}} {
			if _, err := w.store.ResolvePosition(t.Context(), w.task.UID, q); !errors.Is(err, history.ErrNotFound) {
				t.Errorf("%+v: %v", q, err)
			}
		}
		for _, q := range []history.PositionQuery{{}, {Message: -1}, {Message: 1, Back: 1}, {Back: 1, Time: between}} {
			if _, err := w.store.ResolvePosition(t.Context(), w.task.UID, q); !errors.Is(err, history.ErrInvalid) {
				t.Errorf("%+v: %v", q, err)
			}
		}
		if _, err := w.store.ResolvePosition(t.Context(), "unknown", history.PositionQuery{Back: 1}); !errors.Is(err, history.ErrNotFound) {
			t.Errorf("unknown task: %v", err)
		}
	})

	It("a move goes to a position", func() {
		t := GinkgoTB()
		w := begin(t, open(t), taskNamed("a"), 1)
		w.append(user("1"), usage(1, 2, 3), call("x"), result("x"), checkpoint(1), agent("4"), user("5"))
		want := history.Position{Branch: "branch-2", Position: 4, ToolCalls: 1}
		for range 2 {
			if d := cmp.Diff(want, w.moveTo("op", history.MoveOperation{Checkpoint: 1, Position: 4})); d != "" {
				t.Errorf("position (-want +got):\n%s", d)
			}
		}
		w.append(user("other"))
		if d := cmp.Diff([]string{"U 1", "call x Bash", "result x", "A 4", "U other"}, w.texts()); d != "" {
			t.Errorf("after the move (-want +got):\n%s", d)
		}
		// An inherited position, on the branch that holds it; it snaps.
		if p := w.moveTo("op2", history.MoveOperation{Position: 2}); p.Position != 1 || p.Branch != "branch-3" {
			t.Errorf("moved to %+v", p)
		}
		w.append(agent("new"))
		if d := cmp.Diff([]string{"U 1", "A new"}, w.texts()); d != "" {
			t.Errorf("after the second move (-want +got):\n%s", d)
		}
		if _, err := w.store.Snapshot(t.Context(), w.task.Key(), history.SnapshotQuery{}); err != nil {
			t.Errorf("the digest does not go on over branches: %v", err)
		}
		if _, err := w.store.MoveConversation(t.Context(), w.task, 1, history.MoveOperation{ID: "op3", Position: 99}); !errors.Is(err, history.ErrNotFound) {
			t.Errorf("a position beyond the head: %v", err)
		}
		if d := cmp.Diff([]string{"op", "op2"}, w.state().CompletedOperations); d != "" {
			t.Errorf("operations (-want +got):\n%s", d)
		}
	})

	// Checkpoints of the branch that was left do not count on the new one; those before
	// the point where it was left do, and those of a fork's source do not.
	It("the newest checkpoint before a position is returned", func() {
		t := GinkgoTB()
		store := open(t)
		w := begin(t, store, taskNamed("a"), 1)
		w.append(user("1"), checkpoint(1), agent("2"), checkpoint(2), agent("3"), checkpoint(3))
		w.moveTo("op", history.MoveOperation{Position: 2})
		w.append(agent("other"), agent("4"))
		if got := w.resolve(history.PositionQuery{Message: 4}); got.Checkpoint.Number != 2 {
			t.Errorf("checkpoint %d", got.Checkpoint.Number)
		}
		w.append(checkpoint(4))
		if got := w.resolve(history.PositionQuery{Message: 4}); got.Checkpoint.Number != 4 {
			t.Errorf("checkpoint %d", got.Checkpoint.Number)
		}
		fork := taskNamed("fork")
		from := &history.Source{TaskUID: w.task.UID, Checkpoint: 4, IncludeConversation: true}
		if _, err := store.Begin(t.Context(), fork, 1, from, history.BeginOptions{}); err != nil {
			t.Fatal(err)
		}
		f := begin(t, store, fork, 1)
		f.append(user("5"))
		if got := f.resolve(history.PositionQuery{Message: 5}); got.Checkpoint != nil || got.Position.Position != 5 {
			t.Errorf("in the fork: %+v", got)
		}
		if got := f.resolve(history.PositionQuery{Message: 3}); got.Position.Position != 3 {
			t.Errorf("in the fork: %+v", got)
		}
		if p := f.moveTo("op", history.MoveOperation{Position: 3}); p.Position != 3 {
			t.Errorf("the fork moved to %+v", p)
		}
		if d := cmp.Diff([]string{"U 1", "A 2", "A other"}, f.texts()); d != "" {
			t.Errorf("the fork (-want +got):\n%s", d)
		}
	})
})

func (w *writer) moveTo(id string, op history.MoveOperation) history.Position {
	w.t.Helper()
	op.ID, op.Reason = id, "Rewind"
	p, err := w.store.MoveConversation(w.t.Context(), w.task, w.attempt, op)
	if err != nil {
		w.t.Fatalf("move: %v", err)
	}
	return p
}
