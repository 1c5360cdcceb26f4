package postgres_test

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	. "github.com/onsi/ginkgo/v2"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/clew-dev/clew/internal/conversation"
	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/testing/filled"
)

var _ = Describe("Appending records", func() {
	It("appended records are read back", func() {
		t := GinkgoTB()
		w := begin(t, open(t), taskNamed("a"), 1)
		w.append(user("hello"), call("1"), result("1"), usage(10, 20, 30), agent("bye"), checkpoint(1))

		if d := cmp.Diff([]string{"U hello", "call 1 Bash", "result 1", "A bye"}, w.texts()); d != "" {
			t.Errorf("conversation (-want +got):\n%s", d)
		}
		state := w.state()
		if state.Latest == nil {
			t.Fatal("no latest checkpoint")
		}
		want := history.TaskState{
			Task: w.task, Attempt: 1, LastSequence: 6,
			Position:        history.Position{Branch: "main", Position: 4, ToolCalls: 1},
			Totals:          history.Totals{Messages: 4, ToolCalls: 1, InputTokens: 10, OutputTokens: 20, CostMicroUSD: 30},
			CheckpointCount: 1, Latest: state.Latest, ActiveAt: state.ActiveAt,
		}
		if state.ActiveAt.IsZero() {
			t.Error("the agent was never heard of")
		}
		if d := cmp.Diff(want, state, cmpopts.EquateEmpty()); d != "" {
			t.Errorf("state (-want +got):\n%s", d)
		}
		if d := cmp.Diff(want.Position, state.Latest.Position); d != "" {
			t.Errorf("position of the checkpoint (-want +got):\n%s", d)
		}
	})

	It("a checkpoint is stored completely", func() {
		t := GinkgoTB()
		w := begin(t, open(t), taskNamed("a"), 3)
		var given history.Checkpoint
		filled.In(&given) // includes new fields
		given.Number = 7
		want := given
		// These are set by the store; AfterSequence matters only while the checkpoint is
		// stored.
		want.TaskUID, want.Attempt, want.Position = w.task.UID, 3, history.Position{Branch: "main"}
		want.Totals, want.Digest = history.Totals{}, strings.Repeat("0", 64)
		want.Refused, want.Lost, want.AfterSequence = "", false, 0
		w.append(history.Record{Checkpoint: &given})
		got, err := w.store.Checkpoint(t.Context(), w.task.Key(), 7)
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(want, got, cmpopts.EquateApproxTime(0)); d != "" {
			t.Errorf("checkpoint (-want +got):\n%s", d)
		}
		elsewhere := open(t)
		task, err := elsewhere.Import(t.Context(), "team", "bob", parsed(export(t, w.store, w.task)))
		if err != nil {
			t.Fatal(err)
		}
		got, err = elsewhere.Checkpoint(t.Context(), task.Key(), 7)
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(want, got, cmpopts.EquateApproxTime(0)); d != "" {
			t.Errorf("checkpoint that was exported and imported (-want +got):\n%s", d)
		}
		if _, err := w.store.Checkpoint(t.Context(), history.Key{Namespace: "elsewhere", UID: w.task.UID}, 7); !errors.Is(err, history.ErrNotFound) {
			t.Errorf("from another namespace: %v", err)
		}
		if _, err := w.store.Checkpoint(t.Context(), w.task.Key(), 8); !errors.Is(err, history.ErrNotFound) {
			t.Errorf("a checkpoint that is not there: %v", err)
		}
	})

	It("a checkpoint becomes durable", func() {
		t := GinkgoTB()
		w := begin(t, open(t), taskNamed("a"), 1)
		w.append(checkpoint(1), user("x"))
		again := checkpoint(1)
		again.Checkpoint.Durable = true
		other := checkpoint(1)
		other.Checkpoint.Commit = "other"
		w.append(again, other)

		list, err := w.store.CheckpointsAfter(t.Context(), w.task.UID, 0, 10)
		if err != nil || len(list) != 1 {
			t.Fatalf("%d checkpoints, %v", len(list), err)
		}
		want := history.Checkpoint{Durable: true, Commit: "c1"}
		got := history.Checkpoint{Durable: list[0].Durable, Commit: list[0].Commit, Position: history.Position{Position: list[0].Position.Position}}
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("checkpoint (-want +got):\n%s", d)
		}
		if got := w.state().CheckpointCount; got != 1 {
			t.Errorf("checkpoint count %d", got)
		}
	})

	It("checkpoints after a number are read in order", func() {
		t := GinkgoTB()
		w := begin(t, open(t), taskNamed("a"), 1)
		for n := range int64(5) {
			w.append(checkpoint(n + 1))
		}
		list, err := w.store.CheckpointsAfter(t.Context(), w.task.UID, 2, 2)
		if err != nil {
			t.Fatal(err)
		}
		var numbers []int64
		for _, c := range list {
			numbers = append(numbers, c.Number)
		}
		if d := cmp.Diff([]int64{3, 4}, numbers); d != "" {
			t.Errorf("numbers of the checkpoints (-want +got):\n%s", d)
		}
	})

	It("duplicates are left out and gaps are refused", func() {
		t := GinkgoTB()
		w := begin(t, open(t), taskNamed("a"), 1)
		first := w.number(user("1"), user("2"), user("3"))
		for range 2 {
			if last, err := w.store.Append(t.Context(), w.task, 1, first); err != nil || last != 3 {
				t.Fatalf("last %d, %v", last, err)
			}
		}
		more := w.number(user("4"), user("5"), user("6"))
		overlap := append([]history.Record{first[2]}, more[:1]...)
		if last, err := w.store.Append(t.Context(), w.task, 1, overlap); err != nil || last != 4 {
			t.Fatalf("overlapping: last %d, %v", last, err)
		}
		last, err := w.store.Append(t.Context(), w.task, 1, more[2:])
		var gap *history.GapError
		if last != 4 {
			t.Errorf("gap: last %d, want 4", last)
		}
		if !errors.As(err, &gap) || !errors.Is(err, history.ErrGap) {
			t.Fatalf("gap: %v", err)
		}
		if d := cmp.Diff(history.GapError{Last: 4, First: 6}, *gap); d != "" {
			t.Errorf("gap (-want +got):\n%s", d)
		}
		holed := []history.Record{more[1], {Sequence: 7}}
		if last, err = w.store.Append(t.Context(), w.task, 1, holed); !errors.Is(err, history.ErrGap) || last != 4 {
			t.Fatalf("gap within a batch: last %d, %v", last, err)
		}
		if last, err = w.store.Append(t.Context(), w.task, 1, nil); err != nil || last != 4 {
			t.Fatalf("empty batch: last %d, %v", last, err)
		}
		if d := cmp.Diff([]string{"U 1", "U 2", "U 3", "U 4"}, w.texts()); d != "" {
			t.Errorf("conversation (-want +got):\n%s", d)
		}
	})

	It("records of an unknown kind are counted", func() {
		t := GinkgoTB()
		w := begin(t, open(t), taskNamed("a"), 1)
		w.append(history.Record{}, user("x"))
		if d := cmp.Diff([]string{"U x"}, w.texts()); d != "" {
			t.Errorf("conversation (-want +got):\n%s", d)
		}
	})

	// Many writers send the same records at the same time, in overlapping batches: each
	// record is stored once, in order.
	It("the same records, appended at once, are stored once", func() {
		t := GinkgoTB()
		store := open(t)
		w := begin(t, store, taskNamed("a"), 1)
		const records = 120
		all := make([]history.Record, 0, records)
		for i := range records {
			all = append(all, w.number(user(fmt.Sprint(i)))...)
		}
		var senders sync.WaitGroup
		for sender := range 8 {
			senders.Go(func() {
				defer GinkgoRecover()
				for from := 0; from < records; {
					to := min(from+3+sender, records)
					last, err := store.Append(t.Context(), w.task, 1, all[max(0, from-sender):to])
					if err != nil && !errors.Is(err, history.ErrGap) {
						t.Errorf("append: %v", err)
						return
					}
					from = int(last)
				}
			})
		}
		senders.Wait()
		texts := w.texts()
		if len(texts) != records {
			t.Fatalf("%d messages, want %d", len(texts), records)
		}
		for i, text := range texts {
			if text != "U "+fmt.Sprint(i) {
				t.Fatalf("message %d is %q", i, text)
			}
		}
	})

	// Tasks of one namespace with the same messages in different orders do not block each
	// other.
	It("concurrent tasks share messages", func() {
		t := GinkgoTB()
		store := open(t)
		var tasks sync.WaitGroup
		for n := range 6 {
			w := begin(t, store, taskNamed(fmt.Sprint("t", n)), 1)
			tasks.Go(func() {
				defer GinkgoRecover()
				for round := range 10 {
					var records []history.Record
					for i := range 20 {
						if n%2 == 0 {
							i = 19 - i
						}
						records = append(records, user(fmt.Sprint(round, "/", i)))
					}
					w.append(records...)
				}
			})
		}
		tasks.Wait()
	})

	It("an older attempt is fenced", func() {
		t := GinkgoTB()
		store := open(t)
		old := begin(t, store, taskNamed("a"), 1)
		old.append(user("1"))
		begin(t, store, taskNamed("a"), 2)

		if _, err := store.Append(t.Context(), old.task, 1, old.number(user("2"))); !errors.Is(err, history.ErrFenced) {
			t.Errorf("append of an old attempt: %v", err)
		}
		if _, err := store.Begin(t.Context(), old.task, 1, nil, history.BeginOptions{}); !errors.Is(err, history.ErrFenced) {
			t.Errorf("begin of an old attempt: %v", err)
		}
		if _, err := store.MoveConversation(t.Context(), old.task, 1, history.MoveOperation{ID: "x", KeepPosition: true}); !errors.Is(err, history.ErrFenced) {
			t.Errorf("move of an old attempt: %v", err)
		}
		state, err := store.Begin(t.Context(), old.task, 2, nil, history.BeginOptions{})
		if err != nil {
			t.Fatalf("begin again: %v", err)
		}
		if state.Attempt != 2 || state.LastSequence != 1 {
			t.Errorf("begin again: attempt %d with records up to %d, want 2 and 1", state.Attempt, state.LastSequence)
		}
		// An attempt that never called Begin fences as well.
		if _, err := store.Append(t.Context(), old.task, 3, []history.Record{{Sequence: 2, Message: user("2").Message}}); err != nil {
			t.Errorf("append of a newer attempt: %v", err)
		}
		if _, err := store.Append(t.Context(), old.task, 2, nil); !errors.Is(err, history.ErrFenced) {
			t.Errorf("append after that: %v", err)
		}
	})

	It("others' tasks are not found", func() {
		t := GinkgoTB()
		store := open(t)
		w := begin(t, store, taskNamed("a"), 1)
		stranger := w.task
		stranger.Namespace = "elsewhere"
		if _, err := store.Begin(t.Context(), stranger, 9, nil, history.BeginOptions{}); !errors.Is(err, history.ErrNotFound) {
			t.Errorf("begin: %v", err)
		}
		if _, err := store.Append(t.Context(), stranger, 9, w.number(user("x"))); !errors.Is(err, history.ErrNotFound) {
			t.Errorf("append: %v", err)
		}
		if _, err := store.Append(t.Context(), taskNamed("unknown"), 1, nil); !errors.Is(err, history.ErrNotFound) {
			t.Errorf("append to a task that has not begun: %v", err)
		}
		if _, err := store.TaskState(t.Context(), "unknown"); !errors.Is(err, history.ErrNotFound) {
			t.Errorf("state: %v", err)
		}
		if got := w.state().Attempt; got != 1 {
			t.Errorf("the stranger raised the fence to %d", got)
		}
	})

	It("tool calls are open until they are answered", func() {
		t := GinkgoTB()
		store := open(t)
		w := begin(t, store, taskNamed("a"), 1)
		w.append(call("1"), call("2"), result("1"))
		state, err := store.Begin(t.Context(), w.task, 2, nil, history.BeginOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff([]string{"2"}, state.OpenToolCalls); d != "" {
			t.Errorf("open calls (-want +got):\n%s", d)
		}
		w = begin(t, store, w.task, 2)
		w.append(interrupted("2"))
		state = w.state()
		if len(state.OpenToolCalls) != 0 || state.Position.ToolCalls != 1 {
			t.Errorf("open calls %q and %d answered calls, want none and 1", state.OpenToolCalls, state.Position.ToolCalls)
		}
	})

	It("any bytes can be stored", func() {
		t := GinkgoTB()
		w := begin(t, open(t), taskNamed("a"), 1)
		odd := "a\x00b\xffc"
		large := strings.Repeat("0123456789abcdef", 1<<16)
		w.append(
			history.Record{Message: &conversation.Message{Role: conversation.RoleOutput, Text: odd, Raw: odd}},
			history.Record{Message: &conversation.Message{Role: conversation.RoleAssistant, ToolCall: &conversation.ToolCall{ID: odd, Name: odd, Input: odd}}},
			history.Record{Message: &conversation.Message{Role: conversation.RoleTool, ToolResult: &conversation.ToolResult{CallID: odd, Output: large}}},
			history.Record{Event: &history.DaemonEvent{Reason: odd, Message: odd, Details: map[string]string{odd: odd}}},
			history.Record{Checkpoint: &history.Checkpoint{
				Number: 1, Message: odd, Commit: odd, GitBranch: odd, DirtyFiles: []string{odd},
				Skipped: []history.SkippedFile{{Path: odd}}, Changes: []history.FileChange{{Path: odd}},
			}},
		)
		entries, err := w.store.Conversation(t.Context(), w.task.UID, 0, 10)
		if err != nil {
			t.Fatal(err)
		}
		const want = "a\u2400b\uFFFDc"
		if got := entries[0].Message.Text; got != want {
			t.Errorf("text %q, want %q", got, want)
		}
		if got, err := w.store.Text(t.Context(), "team", entries[2].Message.ToolResult.OutputPieces); err != nil || got != large {
			t.Errorf("a large output was returned with %d bytes, %v", len(got), err)
		}
		if open := w.state().OpenToolCalls; len(open) != 0 {
			t.Errorf("open calls %q: ids are no longer the same", open)
		}
		c, err := w.store.Checkpoint(t.Context(), w.task.Key(), 1)
		if err != nil {
			t.Fatal(err)
		}
		got := []string{c.Skipped[0].Path, c.Changes[0].Path, c.DirtyFiles[0]}
		if d := cmp.Diff([]string{want, want, want}, got); d != "" {
			t.Errorf("paths of the checkpoint (-want +got):\n%s", d)
		}
	})

	It("large pages end early", func() {
		t := GinkgoTB()
		w := begin(t, open(t), taskNamed("a"), 1)
		var records []history.Record
		for i := range 2000 {
			records = append(records, user(fmt.Sprint(10_000+i)+strings.Repeat("x", 12<<10)))
		}
		w.append(records...)
		var pages []int
		for after := int64(0); ; {
			entries, err := w.store.Conversation(t.Context(), w.task.UID, after, 5000)
			if err != nil {
				t.Fatal(err)
			}
			if len(entries) == 0 {
				break
			}
			pages = append(pages, len(entries))
			after = entries[len(entries)-1].Position
		}
		if d := cmp.Diff([]int{342, 342, 342, 342, 342, 290}, pages); d != "" {
			t.Errorf("messages per page (-want +got):\n%s", d)
		}
	})

	It("wrong clocks do not produce implausible times", func() {
		t := GinkgoTB()
		w := begin(t, open(t), taskNamed("a"), 1)
		records := w.number(user("zero"), user("future"))
		records[0].Time = time.Time{}
		records[1].Time = time.Now().AddDate(100, 0, 0)
		if _, err := w.store.Append(t.Context(), w.task, 1, records); err != nil {
			t.Fatal(err)
		}
		entries, err := w.store.Conversation(t.Context(), w.task.UID, 0, 10)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			if age := time.Since(e.Time); age < -time.Minute || age > time.Minute {
				t.Errorf("%q is at %s", e.Message.Text, e.Time)
			}
		}
	})
})
