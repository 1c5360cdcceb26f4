package postgres_test

import (
	"errors"
	"fmt"
	"sync"

	. "github.com/onsi/ginkgo/v2"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/clew-dev/clew/internal/conversation"
	"github.com/clew-dev/clew/internal/history"
)

func (w *writer) move(id string, checkpoint int64) history.Position {
	w.t.Helper()
	p, err := w.store.MoveConversation(w.t.Context(), w.task, w.attempt, history.MoveOperation{ID: id, Checkpoint: checkpoint, Reason: "Rewind"})
	if err != nil {
		w.t.Fatalf("move: %v", err)
	}
	return p
}

var _ = Describe("Branches of a conversation", func() {
	It("a move makes a branch", func() {
		t := GinkgoTB()
		w := begin(t, open(t), taskNamed("a"), 1)
		w.append(user("1"), usage(1, 2, 3), checkpoint(1), call("x"), result("x"), usage(10, 20, 30), checkpoint(2), agent("4"))

		got := w.move("op", 1)
		if d := cmp.Diff(history.Position{Branch: "branch-2", Position: 1}, got); d != "" {
			t.Errorf("position (-want +got):\n%s", d)
		}
		w.append(user("other"), checkpoint(3))
		if d := cmp.Diff([]string{"U 1", "U other"}, w.texts()); d != "" {
			t.Errorf("after the move (-want +got):\n%s", d)
		}
		state := w.state()
		if d := cmp.Diff(history.Totals{Messages: 2, InputTokens: 1, OutputTokens: 2, CostMicroUSD: 3}, state.Totals); d != "" {
			t.Errorf("totals (-want +got):\n%s", d)
		}

		// Repeated: the same answer, and nothing moves.
		if d := cmp.Diff(got, w.move("op", 1)); d != "" {
			t.Errorf("the second time (-want +got):\n%s", d)
		}
		if d := cmp.Diff(state.Position, w.state().Position); d != "" {
			t.Errorf("the second time moved (-want +got):\n%s", d)
		}

		// Back to the branch that was left, and from there to the newer one.
		w.move("op2", 2)
		if d := cmp.Diff([]string{"U 1", "call x Bash", "result x"}, w.texts()); d != "" {
			t.Errorf("after the second move (-want +got):\n%s", d)
		}
		if d := cmp.Diff(history.Totals{Messages: 3, ToolCalls: 1, InputTokens: 11, OutputTokens: 22, CostMicroUSD: 33}, w.state().Totals); d != "" {
			t.Errorf("totals (-want +got):\n%s", d)
		}
		w.move("op3", 3)
		if d := cmp.Diff([]string{"U 1", "U other"}, w.texts()); d != "" {
			t.Errorf("after the third move (-want +got):\n%s", d)
		}
		if d := cmp.Diff([]string{"op", "op2", "op3"}, w.state().CompletedOperations); d != "" {
			t.Errorf("operations (-want +got):\n%s", d)
		}
	})

	// A task that starts over says the prompt again, so it must not be stored already.
	It("a move may go to the beginning", func() {
		t := GinkgoTB()
		w := begin(t, open(t), taskNamed("a"), 1)
		w.append(user("prompt"), usage(1, 2, 3), agent("1"), checkpoint(1), call("x"))
		for range 2 {
			if d := cmp.Diff(history.Position{Branch: "branch-2"}, w.move("restore/2", 0)); d != "" {
				t.Errorf("position (-want +got):\n%s", d)
			}
		}
		state := w.state()
		if d := cmp.Diff(history.Totals{}, state.Totals); d != "" {
			t.Errorf("totals (-want +got):\n%s", d)
		}
		if len(state.OpenToolCalls) != 0 || len(w.texts()) != 0 {
			t.Errorf("something remains: %+v, %q", state, w.texts())
		}
		w.append(user("prompt"), agent("2"), checkpoint(2))
		if d := cmp.Diff([]string{"U prompt", "A 2"}, w.texts()); d != "" {
			t.Errorf("after the move (-want +got):\n%s", d)
		}
		// A second loss; what was left can still be gone back to.
		w.move("restore/3", 0)
		w.append(user("prompt"))
		if d := cmp.Diff([]string{"U prompt"}, w.texts()); d != "" {
			t.Errorf("after the second move (-want +got):\n%s", d)
		}
		w.move("op", 1)
		if d := cmp.Diff([]string{"U prompt", "A 1"}, w.texts()); d != "" {
			t.Errorf("back on the first branch (-want +got):\n%s", d)
		}
	})

	It("a move may go to the beginning of a fork", func() {
		t := GinkgoTB()
		store := open(t)
		source := begin(t, store, taskNamed("source"), 1)
		source.append(user("1"), usage(1, 2, 3), call("x"), result("x"), checkpoint(1), user("later"))
		for name, tt := range map[string]struct {
			inherits bool
			position history.Position
			totals   history.Totals
			texts    []string
		}{
			"with-conversation": {true, history.Position{Branch: "branch-2", Position: 3, ToolCalls: 1},
				history.Totals{Messages: 3, ToolCalls: 1, InputTokens: 1, OutputTokens: 2, CostMicroUSD: 3},
				[]string{"U 1", "call x Bash", "result x", "U prompt"}},
			"without-conversation": {false, history.Position{Branch: "branch-2"}, history.Totals{}, []string{"U prompt"}},
		} {
			By(name, func() {
				fork := taskNamed(name)
				from := &history.Source{TaskUID: source.task.UID, Checkpoint: 1, IncludeConversation: tt.inherits}
				if _, err := store.Begin(t.Context(), fork, 1, from, history.BeginOptions{}); err != nil {
					t.Fatal(err)
				}
				w := begin(t, store, fork, 1)
				w.append(user("prompt"), usage(10, 20, 30), agent("2"))
				if d := cmp.Diff(tt.position, w.move("restore/2", 0)); d != "" {
					t.Errorf("position (-want +got):\n%s", d)
				}
				if d := cmp.Diff(tt.totals, w.state().Totals); d != "" {
					t.Errorf("totals (-want +got):\n%s", d)
				}
				w.append(user("prompt"))
				if d := cmp.Diff(tt.texts, w.texts()); d != "" {
					t.Errorf("after the move (-want +got):\n%s", d)
				}
			})
		}
	})

	It("a move may keep the position", func() {
		t := GinkgoTB()
		w := begin(t, open(t), taskNamed("a"), 1)
		w.append(checkpoint(1), user("1"))
		got, err := w.store.MoveConversation(t.Context(), w.task, 1, history.MoveOperation{ID: "op", Checkpoint: 1, KeepPosition: true})
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(history.Position{Branch: "main", Position: 1}, got); d != "" {
			t.Errorf("messages (-want +got):\n%s", d)
		}
		if d := cmp.Diff([]string{"op"}, w.state().CompletedOperations); d != "" {
			t.Errorf("operations (-want +got):\n%s", d)
		}
	})

	It("a move to an unknown place is refused", func() {
		t := GinkgoTB()
		w := begin(t, open(t), taskNamed("a"), 1)
		for _, number := range []int64{9, -1} {
			if _, err := w.store.MoveConversation(t.Context(), w.task, 1, history.MoveOperation{ID: "op", Checkpoint: number}); !errors.Is(err, history.ErrNotFound) {
				t.Errorf("checkpoint %d: %v", number, err)
			}
		}
		if got := w.state().CompletedOperations; len(got) != 0 {
			t.Errorf("recorded as completed: %q", got)
		}
	})

	It("an operation that moves twice at once moves once", func() {
		t := GinkgoTB()
		w := begin(t, open(t), taskNamed("a"), 1)
		w.append(user("1"), checkpoint(1), user("2"))
		var movers sync.WaitGroup
		for range 6 {
			movers.Go(func() {
				defer GinkgoRecover()
				if p := w.move("op", 1); p.Branch != "branch-2" {
					t.Errorf("moved to %+v", p)
				}
			})
		}
		movers.Wait()
		if got := w.state().Position.Branch; got != "branch-2" {
			t.Errorf("on %s", got)
		}
	})

	// A checkpoint taken while a tool was running goes back to before the call.
	It("positions snap to turns", func() {
		t := GinkgoTB()
		w := begin(t, open(t), taskNamed("a"), 1)
		w.append(user("1"), call("a"), result("a"), call("b"), call("c"), result("c"), checkpoint(1), result("b"))
		c, err := w.store.Checkpoint(t.Context(), w.task.Key(), 1)
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(history.Position{Branch: "main", Position: 6, ToolCalls: 2}, c.Position); d != "" {
			t.Errorf("the checkpoint's own position (-want +got):\n%s", d)
		}
		if d := cmp.Diff(history.Position{Branch: "branch-2", Position: 3, ToolCalls: 1}, w.move("op", 1)); d != "" {
			t.Errorf("where it goes back to (-want +got):\n%s", d)
		}
		state := w.state()
		if len(state.OpenToolCalls) != 0 || state.Position.ToolCalls != 1 {
			t.Errorf("open calls %q and %d answered calls, want none and 1", state.OpenToolCalls, state.Position.ToolCalls)
		}
		// A checkpoint at the base of a branch that was itself cut.
		w.append(call("d"), checkpoint(2))
		if p := w.move("op2", 2); p.Position != 3 || p.ToolCalls != 1 {
			t.Errorf("went back to %+v", p)
		}
	})

	It("a fork inherits its source's conversation, or none", func() {
		t := GinkgoTB()
		store := open(t)
		source := begin(t, store, taskNamed("source"), 1)
		source.append(user("1"), usage(1, 1, 1), checkpoint(1), user("2"))
		source.move("op", 1)
		source.append(user("3"), checkpoint(2), user("4"))
		before := source.state()

		fork := taskNamed("fork")
		from := &history.Source{TaskUID: source.task.UID, Checkpoint: 2, IncludeConversation: true}
		for range 2 {
			if _, err := store.Begin(t.Context(), fork, 1, from, history.BeginOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		w := begin(t, store, fork, 1)
		if w.last != 0 {
			t.Errorf("the fork begins at sequence %d", w.last)
		}
		w.append(user("5"), checkpoint(1))
		if d := cmp.Diff([]string{"U 1", "U 3", "U 5"}, w.texts()); d != "" {
			t.Errorf("fork (-want +got):\n%s", d)
		}
		state := w.state()
		if d := cmp.Diff(history.Position{Branch: "main", Position: 3}, state.Position); d != "" {
			t.Errorf("position (-want +got):\n%s", d)
		}
		if d := cmp.Diff(history.Totals{Messages: 3, InputTokens: 1, OutputTokens: 1, CostMicroUSD: 1}, state.Totals); d != "" {
			t.Errorf("totals (-want +got):\n%s", d)
		}
		entries, err := store.Conversation(t.Context(), fork.UID, 1, 2)
		if err != nil {
			t.Fatal(err)
		}
		if entries[0].Branch != "uid-of-source/branch-2" || entries[1].Branch != "main" {
			t.Errorf("branches %q, %q", entries[0].Branch, entries[1].Branch)
		}
		if d := cmp.Diff(before, source.state()); d != "" {
			t.Errorf("the source changed (-before +after):\n%s", d)
		}
		// The fork goes back to before its own first message.
		w.append(user("6"))
		w.move("op", 1)
		if d := cmp.Diff([]string{"U 1", "U 3", "U 5"}, w.texts()); d != "" {
			t.Errorf("conversation (-want +got):\n%s", d)
		}
	})

	It("a fork may leave the conversation out", func() {
		t := GinkgoTB()
		store := open(t)
		source := begin(t, store, taskNamed("source"), 1)
		source.append(user("1"), checkpoint(1))
		state, err := store.Begin(t.Context(), taskNamed("fork"), 1, &history.Source{TaskUID: source.task.UID, Checkpoint: 1}, history.BeginOptions{})
		if err != nil || state.Position.Position != 0 {
			t.Errorf("begin without the conversation: position %d, %v; want 0", state.Position.Position, err)
		}
	})

	It("a fork of an unknown checkpoint is refused", func() {
		t := GinkgoTB()
		store := open(t)
		w := begin(t, store, history.Task{Namespace: "elsewhere", Name: "source", UID: "other"}, 1)
		w.append(user("secret"), checkpoint(1))
		for _, source := range []history.Source{
			{TaskUID: "none", Checkpoint: 1, IncludeConversation: true},
			{TaskUID: "other", Checkpoint: 1, IncludeConversation: true},
		} {
			if _, err := store.Begin(t.Context(), taskNamed("fork"), 1, &source, history.BeginOptions{}); !errors.Is(err, history.ErrNotFound) {
				t.Errorf("source %+v: %v", source, err)
			}
		}
		if _, err := store.TaskState(t.Context(), taskNamed("fork").UID); !errors.Is(err, history.ErrNotFound) {
			t.Errorf("a failed begin left a record: %v", err)
		}
	})

	It("a snapshot is what was written", func() {
		t := GinkgoTB()
		store := open(t)
		w := begin(t, store, taskNamed("a"), 1)
		records := []history.Record{user("1"), call("x"), result("x"), user("4")}
		var sum conversation.Digest
		var digests []string
		for _, r := range records {
			sum = sum.Add(r.Message.Hash("team"))
			digests = append(digests, sum.String())
		}
		w.append(records[0], usage(1, 2, 3), records[1], checkpoint(1), records[2], checkpoint(2), records[3])

		tests := []struct {
			checkpoint int64
			want       history.Snapshot
		}{
			{1, history.Snapshot{Position: history.Position{Branch: "main", Position: 1}, Totals: history.Totals{Messages: 1}, Digest: digests[0]}},
			{2, history.Snapshot{
				Position: history.Position{Branch: "main", Position: 3, ToolCalls: 1},
				Totals:   history.Totals{Messages: 3, ToolCalls: 1, InputTokens: 1, OutputTokens: 2, CostMicroUSD: 3}, Digest: digests[2],
			}},
			{0, history.Snapshot{
				Position: history.Position{Branch: "main", Position: 4, ToolCalls: 1},
				Totals:   history.Totals{Messages: 4, ToolCalls: 1, InputTokens: 1, OutputTokens: 2, CostMicroUSD: 3}, Digest: digests[3],
			}},
		}
		for _, tt := range tests {
			got, err := store.Snapshot(t.Context(), w.task.Key(), history.SnapshotQuery{Checkpoint: tt.checkpoint})
			if err != nil {
				t.Fatal(err)
			}
			tt.want.Checkpoint = max(tt.checkpoint, got.Checkpoint)
			if d := cmp.Diff(tt.want, got, cmpopts.IgnoreFields(history.Snapshot{}, "Kind", "Time")); d != "" {
				t.Errorf("checkpoint %d (-want +got):\n%s", tt.checkpoint, d)
			}
		}
		w.move("op", 2)
		got, err := store.Snapshot(t.Context(), w.task.Key(), history.SnapshotQuery{Checkpoint: 0})
		if err != nil {
			t.Fatal(err)
		}
		if got.Digest != digests[2] || got.Position.Branch != "branch-2" {
			t.Errorf("on the new branch: %+v, want branch-2 with the digest %s", got, digests[2])
		}
		for _, key := range []history.Key{w.task.Key(), {Namespace: w.task.Namespace, UID: "unknown"}} {
			if _, err := store.Snapshot(t.Context(), key, history.SnapshotQuery{Checkpoint: 99}); !errors.Is(err, history.ErrNotFound) {
				t.Errorf("unknown: %v", err)
			}
		}
		if _, err := store.Snapshot(t.Context(), history.Key{Namespace: "elsewhere", UID: w.task.UID}, history.SnapshotQuery{Checkpoint: 1}); !errors.Is(err, history.ErrNotFound) {
			t.Errorf("from another namespace: %v", err)
		}
	})

	// Storage grows with the messages, not with the branches over them.
	It("branches copy nothing", func() {
		t := GinkgoTB()
		dsn := pg.Database(t)
		w := begin(t, openAt(t, dsn), taskNamed("a"), 1)
		var records []history.Record
		for i := range 500 {
			records = append(records, user(fmt.Sprint(i)))
		}
		w.append(append(records, checkpoint(1))...)
		for i := range 50 {
			w.move(fmt.Sprint("op", i), 1)
			w.append(user("next"), checkpoint(int64(i+2)))
		}
		if got := count(t, dsn, "entries"); got != 550 {
			t.Errorf("%d entries", got)
		}
		if got := count(t, dsn, "messages"); got != 501 {
			t.Errorf("%d messages", got)
		}
		if got := len(w.texts()); got != 501 {
			t.Errorf("%d messages on the active branch", got)
		}
	})
})
