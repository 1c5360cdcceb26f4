package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/google/go-cmp/cmp"

	"github.com/clew-dev/clew/internal/conversation"
	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/testing/cases"
)

// dump returns everything that pg_dump finds in the database.
func dump(t testing.TB, dsn string) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), pg.Program("pg_dump"), "--inserts", "--dbname", dsn).CombinedOutput()
	if err != nil {
		t.Fatalf("pg_dump: %v\n%s", err, out)
	}
	// Pieces are stored as bytes.
	return string(out) + decodeHex(string(out))
}

// fork begins a task from a checkpoint, with its conversation.
func (w *writer) fork(name string, checkpoint int64) *writer {
	w.t.Helper()
	task := history.Task{Namespace: w.task.Namespace, Name: name, UID: "uid-of-" + name}
	from := &history.Source{TaskUID: w.task.UID, Checkpoint: checkpoint, IncludeConversation: true}
	if _, err := w.store.Begin(w.t.Context(), task, 1, from, history.BeginOptions{}); err != nil {
		w.t.Fatal(err)
	}
	return begin(w.t, w.store, task, 1)
}

func remove(t testing.TB, w *writer) history.Deleted {
	t.Helper()
	deleted, err := w.store.DeleteTask(t.Context(), w.task.UID)
	if err != nil {
		t.Fatalf("delete: %v", err)
	}
	return deleted
}

var _ = Describe("Deleting a history", func() {
	// After a deletion no byte of the task remains that no other task shares.
	It("a deletion is complete", func() {
		t := GinkgoTB()
		dsn := pg.Database(t)
		store := openAt(t, dsn)
		w := begin(t, store, history.Task{Namespace: "team", Name: "victim-name", UID: "victim-uid"}, 1)
		beginWith(t, w, 1)
		shared := long(30<<10, "sharedlong")
		w.append(user("victimword one"), user("shared words"), user(long(40<<10, "victimlong")), user(shared),
			call("victimcall"), piece(long(2<<10, "victimpiece")), piece("victimlost "+long(1<<10, "victimlost")),
			cutResult("victimcall", long(2<<10, "victimpiece")),
			history.Record{Event: &history.DaemonEvent{Reason: "Note", Message: "victimevent", Details: map[string]string{"k": "victimdetail"}}},
			history.Record{Checkpoint: &history.Checkpoint{Number: 1, Commit: "victimcommit", GitBranch: "victimbranch", Message: "victimmessage",
				Changes: []history.FileChange{{Path: "victimpath"}}, Session: &history.AgentSession{ID: "victimsession"}}},
			history.Record{Usage: &history.Usage{Model: "victimmodel", InputTokens: 1}},
			history.Record{Message: &conversation.Message{Role: conversation.RoleAssistant, ToolCall: &conversation.ToolCall{ID: "v", Name: "victimtool", Input: "victiminput"}}})
		w.moveTo("victimop", history.MoveOperation{Checkpoint: 1})
		w.append(agent("victimword on another branch"))
		if err := store.RecordEvents(t.Context(), []history.Event{transition(w.task, 1, "TaskStarted", time.Now())}); err != nil {
			t.Fatal(err)
		}
		other := begin(t, store, taskNamed("other"), 1)
		other.append(user("shared words"), user(shared))
		index(t, store)
		if got := dump(t, dsn); strings.Count(got, "victim") < 20 {
			t.Fatalf("the test's words occur %d times, want at least 20", strings.Count(got, "victim"))
		}

		deleted := remove(t, w)
		Expect(deleted.Events).To(BeNumerically(">=", 5), "deleted events")
		deleted.Events = 0
		want := history.Deleted{Task: w.task, Messages: 6, Pieces: 3, Checkpoints: 1}
		if d := cmp.Diff(want, deleted); d != "" {
			t.Errorf("deleted (-want +got):\n%s", d)
		}
		rest := strings.ReplaceAll(dump(t, dsn), "'victim-uid'", "")
		if i := strings.Index(rest, "victim"); i >= 0 {
			t.Errorf("the dump still contains …%s…", rest[max(0, i-200):min(len(rest), i+100)])
		}
		if d := cmp.Diff([]string{"U shared words", "U " + shared[:10]}, shortened(other.texts())); d != "" {
			t.Errorf("the other task (-want +got):\n%s", d)
		}
		if got := other.text(other.entries()[1].Message.TextPieces); got != shared {
			t.Errorf("the other task's long text has %d bytes", len(got))
		}
		if got := search(t, store, history.SearchQuery{Text: "shared words"}); len(got) == 0 {
			t.Error("shared messages are no longer found")
		}
		for _, table := range []string{"sweep_messages", "sweep_pieces", "pending_pieces"} {
			if n := count(t, dsn, table); n != 0 {
				t.Errorf("%d rows in %s", n, table)
			}
		}
	})

	It("nothing is written for a deleted task", func() {
		t := GinkgoTB()
		store := open(t)
		w := begin(t, store, taskNamed("a"), 1)
		w.append(user("1"))
		remove(t, w)
		late := w.number(user("late"))
		if _, err := store.Append(t.Context(), w.task, 1, late); !errors.Is(err, history.ErrFenced) {
			t.Errorf("append: %v", err)
		}
		if _, err := store.Begin(t.Context(), w.task, 2, nil, history.BeginOptions{}); !errors.Is(err, history.ErrFenced) {
			t.Errorf("begin: %v", err)
		}
		if _, err := store.MoveConversation(t.Context(), w.task, 1, history.MoveOperation{ID: "x"}); !errors.Is(err, history.ErrFenced) {
			t.Errorf("move: %v", err)
		}
		if err := store.RecordEvents(t.Context(), []history.Event{transition(w.task, 9, "TaskDeleted", time.Now())}); err != nil {
			t.Errorf("events: %v", err)
		}
		if page, err := store.Timeline(t.Context(), history.TimelineQuery{Namespace: "team", Limit: 5}); err != nil || len(page.Events) != 0 {
			t.Errorf("timeline after the deletion: %+v, %v; want it empty", page.Events, err)
		}
		if page, err := store.Tasks(t.Context(), history.TaskQuery{Namespace: "team", Limit: 5}); err != nil || len(page.Tasks) != 0 {
			t.Errorf("tasks after the deletion: %+v, %v; want none", page.Tasks, err)
		}
		for _, uid := range []string{w.task.UID, "unknown"} {
			if _, err := store.DeleteTask(t.Context(), uid); !errors.Is(err, history.ErrNotFound) {
				t.Errorf("delete %s again: %v", uid, err)
			}
		}
		// A new task of the same name is unrelated.
		again := begin(t, store, history.Task{Namespace: "team", Name: "a", UID: "another"}, 1)
		again.append(user("1"))
		if d := cmp.Diff([]string{"U 1"}, again.texts()); d != "" {
			t.Errorf("conversation (-want +got):\n%s", d)
		}
	})

	It("a task that never began can be deleted", func() {
		t := GinkgoTB()
		store := open(t)
		task := taskNamed("a")
		if err := store.RecordEvents(t.Context(), []history.Event{transition(task, 1, "TaskFailed", time.Now())}); err != nil {
			t.Fatal(err)
		}
		deleted, err := store.DeleteTask(t.Context(), task.UID)
		Expect(err).NotTo(HaveOccurred())
		Expect(deleted).To(Equal(history.Deleted{Task: task, Events: 1}))
	})

	// Forks keep what they inherited, and nothing else; when the last of them is deleted,
	// that is deleted too.
	It("forks keep what they inherited", func() {
		t := GinkgoTB()
		dsn := pg.Database(t)
		store := openAt(t, dsn)
		w := begin(t, store, taskNamed("source"), 1)
		w.append(user("1"), checkpoint(1), agent("2"), checkpoint(2), agent("left"))
		w.move("op", 2)
		w.append(agent("3"), checkpoint(3), agent("4"), checkpoint(4), agent("own"))
		short, deep := w.fork("short", 1), w.fork("deep", 4)
		short.append(user("short"))
		deep.append(user("deep"), checkpoint(1), user("deeper"))
		grandchild := deep.fork("grandchild", 1)
		grandchild.append(user("grandchild"))

		left := func(want ...string) {
			t.Helper()
			var got string
			err := connect(t, dsn).QueryRow(t.Context(), `SELECT coalesce(string_agg(body, ' ' ORDER BY body COLLATE "C"), '') FROM messages`).Scan(&got)
			if err != nil || got != strings.Join(want, " ") {
				t.Errorf("messages %q, want %q, %v", got, want, err)
			}
		}
		check := func(w *writer, want ...string) {
			t.Helper()
			if d := cmp.Diff(want, w.texts()); d != "" {
				t.Errorf("%s (-want +got):\n%s", w.task.Name, d)
			}
			if _, err := store.Snapshot(t.Context(), w.task.Key(), history.SnapshotQuery{}); err != nil {
				t.Errorf("%s: %v", w.task.Name, err)
			}
		}
		remove(t, w)
		left("1", "2", "3", "4", "deep", "deeper", "grandchild", "short")
		check(short, "U 1", "U short")
		check(deep, "U 1", "A 2", "A 3", "A 4", "U deep", "U deeper")
		check(grandchild, "U 1", "A 2", "A 3", "A 4", "U deep", "U grandchild")

		remove(t, deep)
		left("1", "2", "3", "4", "deep", "grandchild", "short")
		check(grandchild, "U 1", "A 2", "A 3", "A 4", "U deep", "U grandchild")
		remove(t, grandchild)
		left("1", "short")
		check(short, "U 1", "U short")
		// It can go back to where it began, and continue from there.
		short.move("op", 0)
		short.append(user("again"))
		check(short, "U 1", "U again")
		remove(t, short)
		left()
		for _, table := range []string{"branches", "entries", "tasks", "checkpoints", "checkpoint_contexts"} {
			if n := count(t, dsn, table); n != 0 {
				t.Errorf("%d rows in %s", n, table)
			}
		}
	})

	// A fork that begins while its source is deleted either has everything it inherits,
	// or does not begin; when all forks are deleted at once, nothing remains.
	It("a fork made while its source is deleted keeps what it needs", func() {
		t := GinkgoTB()
		dsn := pg.Database(t)
		store := openAt(t, dsn)
		for round := range 15 {
			source := begin(t, store, taskNamed(fmt.Sprint("source", round)), 1)
			source.append(user("1"), agent(fmt.Sprint("long", round)), checkpoint(1), agent("2"), checkpoint(2), agent("3"))
			source.fork(fmt.Sprint("early", round), 1)
			names := []string{fmt.Sprint("early", round)}
			var work sync.WaitGroup
			var mu sync.Mutex
			for n := range 3 {
				work.Go(func() {
					defer GinkgoRecover()
					name := fmt.Sprintf("fork-%d-%d", round, n)
					from := &history.Source{TaskUID: source.task.UID, Checkpoint: 2, IncludeConversation: true}
					_, err := store.Begin(t.Context(), taskNamed(name), 1, from, history.BeginOptions{})
					if err != nil && !errors.Is(err, history.ErrNotFound) {
						t.Errorf("fork: %v", err)
					}
					if err == nil {
						mu.Lock()
						names = append(names, name)
						mu.Unlock()
					}
				})
			}
			work.Go(func() { remove(t, source) })
			work.Wait()
			for _, name := range names {
				w := begin(t, store, taskNamed(name), 1)
				if _, err := store.Snapshot(t.Context(), w.task.Key(), history.SnapshotQuery{}); err != nil {
					t.Errorf("%s: %v", name, err)
				}
				work.Go(func() { remove(t, w) })
			}
			work.Wait()
			for _, table := range []string{"branches", "entries", "messages"} {
				if n := count(t, dsn, table); n != 0 {
					t.Fatalf("%d rows in %s after round %d", n, table, round)
				}
			}
		}
	})

	// A sweep that found a row in use unmarks it. If the last user is deleted meanwhile,
	// that deletion waits for the sweep and marks the row again.
	Describe("what loses its last user during a sweep is removed", func() {
		for table, of := range cases.Sorted(map[string]string{"sweep_messages": "messages", "sweep_pieces": "pieces"}) {
			It(of, func() {
				t := GinkgoTB()
				dsn := pg.Database(t)
				w := begin(t, openAt(t, dsn), taskNamed("last"), 1)
				w.append(user(long(40<<10, "words")))
				sweep, watch := connect(t, dsn), connect(t, dsn)
				mustExec := func(statement string) {
					t.Helper()
					if _, err := sweep.Exec(t.Context(), statement); err != nil {
						t.Fatalf("%s: %v", statement, err)
					}
				}
				mustExec("INSERT INTO " + table + " SELECT id FROM " + of)
				mustExec("BEGIN")
				mustExec("SELECT FROM " + table + " FOR UPDATE")
				var deletion sync.WaitGroup
				deletion.Go(func() {
					defer GinkgoRecover()
					remove(t, w)
				})
				Eventually(func() (blocked int, err error) {
					err = watch.QueryRow(t.Context(), "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'").Scan(&blocked)
					return blocked, err
				}).WithTimeout(10*time.Second).WithPolling(5*time.Millisecond).ShouldNot(BeZero(), "the deletion should wait for the sweep")
				mustExec("DELETE FROM " + table)
				mustExec("COMMIT")
				deletion.Wait()
				if n := count(t, dsn, of); n != 0 {
					t.Errorf("%d rows are left in %s", n, of)
				}
			})
		}
	})

	// Tasks with the same messages as one that is being deleted lose nothing.
	It("records appended while their task is deleted leave nothing behind", func() {
		t := GinkgoTB()
		dsn := pg.Database(t)
		store := openAt(t, dsn)
		ctx, cancel := context.WithTimeout(t.Context(), 6*time.Second)
		defer cancel()
		same := func(i int) []history.Record {
			return []history.Record{user(fmt.Sprint("same ", i)), user(long(17<<10, fmt.Sprint("long", i))), agent("same to all")}
		}
		var work sync.WaitGroup
		for n := range 3 {
			work.Go(func() {
				defer GinkgoRecover()
				for round := 0; ctx.Err() == nil; round++ {
					w := begin(t, store, taskNamed(fmt.Sprintf("victim-%d-%d", n, round)), 1)
					for i := range 6 {
						w.append(same(i)...)
					}
					remove(t, w)
				}
			})
		}
		keepers := make([]*writer, 2)
		for n := range keepers {
			keepers[n] = begin(t, store, taskNamed(fmt.Sprint("keeper", n)), 1)
			work.Go(func() {
				defer GinkgoRecover()
				for i := 0; ctx.Err() == nil; i++ {
					keepers[n].append(same(i % 6)...)
				}
			})
		}
		work.Wait()
		index(t, store)
		for _, w := range keepers {
			if got := w.state().Totals.Messages; got != w.last || got < 30 {
				t.Errorf("%d messages of %d", got, w.last)
			}
			if _, err := store.Snapshot(t.Context(), w.task.Key(), history.SnapshotQuery{}); err != nil {
				t.Errorf("%s: %v", w.task.Name, err)
			}
		}
		if got := count(t, dsn, "messages"); got != 13 {
			t.Errorf("%d messages are left, want 13", got)
		}
	})
})

func shortened(texts []string) []string {
	for i, text := range texts {
		texts[i] = text[:min(len(text), 14)]
		if strings.HasPrefix(text, "U sharedlong") {
			texts[i] = text[:12]
		}
	}
	return texts
}
