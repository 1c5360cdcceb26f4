package postgres_test

import (
	"context"
	"fmt"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/clew-dev/clew/internal/conversation"
	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/history/postgres"
	"github.com/clew-dev/clew/internal/testing/cases"
	"github.com/clew-dev/clew/internal/toolcall"
)

// dump returns everything that pg_dump finds in the database.
func dump(t testing.TB, dsn string) string {
	GinkgoHelper()
	out, err := exec.CommandContext(t.Context(), pg.Program("pg_dump"), "--inserts", "--dbname", dsn).CombinedOutput()
	Expect(err).NotTo(HaveOccurred(), "pg_dump: %s", out)
	// Pieces are stored as bytes.
	return string(out) + decodeHex(string(out))
}

// fork begins a task from a checkpoint, with its conversation.
func (w *writer) fork(name string, checkpoint int64) *writer {
	GinkgoHelper()
	task := history.Task{Namespace: w.task.Namespace, Name: name, UID: "uid-of-" + name}
	from := &history.Source{TaskUID: w.task.UID, Checkpoint: checkpoint, IncludeConversation: true}
	Expect(w.store.Begin(w.t.Context(), task, 1, from, history.BeginOptions{})).Error().NotTo(HaveOccurred())
	return begin(w.t, w.store, task, 1)
}

func remove(t testing.TB, w *writer) history.Deleted {
	GinkgoHelper()
	deleted, err := w.store.DeleteTask(t.Context(), w.task.UID)
	Expect(err).NotTo(HaveOccurred(), "delete %s", w.task.Name)
	return deleted
}

var _ = Describe("Deleting a history", func() {
	// After a deletion no byte of the task remains that no other task shares.
	It("a deletion is complete", func(ctx SpecContext) {
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
		Expect(store.RecordEvents(ctx, []history.Event{transition(w.task, 1, "TaskStarted", time.Now())})).To(Succeed())
		Expect(store.KeepSpec(ctx, w.task.Key(), history.KeptSpec{Spec: `{"prompt":"victimspec"}`, Variables: []string{"VICTIM"}})).To(Succeed())
		Expect(store.CallTool(ctx, w.task, 1, history.NewToolCall{Tool: "task_create", Key: "victimkey", Arguments: []byte(`{"name":"victimchild"}`)})).Error().NotTo(HaveOccurred())
		called, err := store.CallTool(ctx, w.task, 1, history.NewToolCall{Tool: "task_stop", Arguments: []byte(`{}`)})
		Expect(err).NotTo(HaveOccurred())
		Expect(store.AnswerToolCall(ctx, called.ID, toolcall.Answer{Data: []byte(`{"object":"victimchild","uid":"victimchilduid"}`)})).To(Succeed())
		w.append(reached(called.ID))
		other := begin(t, store, taskNamed("other"), 1)
		other.append(user("shared words"), user(shared))
		index(t, store)
		Expect(strings.Count(dump(t, dsn), "victim")).To(BeNumerically(">=", 20), "how often the task's words occur in the dump")

		By("deleting the task")
		deleted := remove(t, w)
		Expect(deleted.Events).To(BeNumerically(">=", 5), "deleted events")
		deleted.Events = 0
		Expect(deleted).To(Equal(history.Deleted{Task: w.task, Messages: 6, Pieces: 3, Checkpoints: 1}))
		rest := strings.ReplaceAll(dump(t, dsn), "'victim-uid'", "")
		if i := strings.Index(rest, "victim"); i >= 0 { // the whole dump would be too much to show
			Fail("the dump still contains …" + rest[max(0, i-200):min(len(rest), i+100)] + "…")
		}
		for _, table := range []string{"sweep_messages", "sweep_pieces", "pending_pieces", "recorded_transitions"} {
			Expect(count(t, dsn, table)).To(BeZero(), "rows in %s", table)
		}

		By("reading the other task, which shares texts with it")
		Expect(shortened(other.texts())).To(HaveExactElements("U shared words", "U "+shared[:10]))
		Expect(other.text(other.entries()[1].Message.TextPieces)).To(Equal(shared))
		Expect(search(t, store, history.SearchQuery{Text: "shared words"})).NotTo(BeEmpty())
	})

	When("a task is deleted", func() {
		var (
			store *postgres.Store
			w     *writer
			dsn   string
		)
		BeforeEach(func() {
			t := GinkgoTB()
			dsn = pg.Database(t)
			store = openAt(t, dsn)
			w = begin(t, store, taskNamed("a"), 1)
			w.append(user("1"))
			remove(t, w)
		})

		It("nothing more is written for it", func(ctx SpecContext) {
			Expect(store.Append(ctx, w.task, 1, w.number(user("late")))).Error().To(MatchError(history.ErrFenced))
			Expect(store.Begin(ctx, w.task, 2, nil, history.BeginOptions{})).Error().To(MatchError(history.ErrFenced))
			Expect(store.MoveConversation(ctx, w.task, 1, history.MoveOperation{ID: "x"})).Error().To(MatchError(history.ErrFenced))
			Expect(store.RecordEvents(ctx, []history.Event{transition(w.task, 9, "TaskDeleted", time.Now())})).To(Succeed())
			Expect(store.Timeline(ctx, history.TimelineQuery{Namespace: "team", Limit: 5})).To(HaveField("Events", BeEmpty()))
			Expect(store.Tasks(ctx, history.TaskQuery{Namespace: "team", Limit: 5})).To(HaveField("Tasks", BeEmpty()))
			Expect(count(GinkgoTB(), dsn, "recorded_transitions")).To(BeZero(), "transitions noted")
		})

		It("it is not found when it is deleted again, as if it had never been", func(ctx SpecContext) {
			for _, uid := range []string{w.task.UID, "unknown"} {
				Expect(store.DeleteTask(ctx, uid)).Error().To(MatchError(history.ErrNotFound), uid)
			}
		})

		It("a new task of the same name is unrelated", func() {
			again := begin(GinkgoTB(), store, history.Task{Namespace: "team", Name: "a", UID: "another"}, 1)
			again.append(user("1"))
			Expect(again.texts()).To(HaveExactElements("U 1"))
		})
	})

	It("a task that never began can be deleted", func(ctx SpecContext) {
		t := GinkgoTB()
		store := open(t)
		task := taskNamed("a")
		Expect(store.RecordEvents(ctx, []history.Event{transition(task, 1, "TaskFailed", time.Now())})).To(Succeed())
		deleted, err := store.DeleteTask(ctx, task.UID)
		Expect(err).NotTo(HaveOccurred())
		Expect(deleted).To(Equal(history.Deleted{Task: task, Events: 1}))
	})

	// Forks keep what they inherited, and nothing else; when the last of them is deleted,
	// that is deleted too.
	It("forks keep what they inherited", func(ctx SpecContext) {
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
			GinkgoHelper()
			var got string
			Expect(connect(t, dsn).QueryRow(ctx, `SELECT coalesce(string_agg(body, ' ' ORDER BY body COLLATE "C"), '') FROM messages`).Scan(&got)).To(Succeed())
			Expect(strings.Fields(got)).To(HaveExactElements(want), "the messages that are left")
		}
		check := func(w *writer, want ...string) {
			GinkgoHelper()
			Expect(w.texts()).To(HaveExactElements(want), "the conversation of %s", w.task.Name)
			Expect(store.Snapshot(ctx, w.task.Key(), history.SnapshotQuery{})).Error().NotTo(HaveOccurred(), "the snapshot of %s", w.task.Name)
		}
		By("deleting the source")
		remove(t, w)
		left("1", "2", "3", "4", "deep", "deeper", "grandchild", "short")
		check(short, "U 1", "U short")
		check(deep, "U 1", "A 2", "A 3", "A 4", "U deep", "U deeper")
		check(grandchild, "U 1", "A 2", "A 3", "A 4", "U deep", "U grandchild")

		By("deleting the fork that has a fork itself")
		remove(t, deep)
		left("1", "2", "3", "4", "deep", "grandchild", "short")
		check(grandchild, "U 1", "A 2", "A 3", "A 4", "U deep", "U grandchild")

		By("deleting that one's fork")
		remove(t, grandchild)
		left("1", "short")
		check(short, "U 1", "U short")

		By("moving the last fork back to where it began, and continuing from there")
		short.move("op", 0)
		short.append(user("again"))
		check(short, "U 1", "U again")

		By("deleting it")
		remove(t, short)
		left()
		for _, table := range []string{"branches", "entries", "tasks", "checkpoints", "checkpoint_contexts"} {
			Expect(count(t, dsn, table)).To(BeZero(), "rows in %s", table)
		}
	})

	// A fork that begins while its source is deleted either has everything it inherits,
	// or does not begin; when all forks are deleted at once, nothing remains.
	It("a fork made while its source is deleted keeps what it needs", func(ctx SpecContext) {
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
					_, err := store.Begin(ctx, taskNamed(name), 1, from, history.BeginOptions{})
					Expect(err).To(Or(BeNil(), MatchError(history.ErrNotFound)))
					if err == nil {
						mu.Lock()
						names = append(names, name)
						mu.Unlock()
					}
				})
			}
			work.Go(func() {
				defer GinkgoRecover()
				remove(t, source)
			})
			work.Wait()
			for _, name := range names {
				w := begin(t, store, taskNamed(name), 1)
				Expect(store.Snapshot(ctx, w.task.Key(), history.SnapshotQuery{})).Error().NotTo(HaveOccurred(), "the snapshot of %s", name)
				work.Go(func() {
					defer GinkgoRecover()
					remove(t, w)
				})
			}
			work.Wait()
			for _, table := range []string{"branches", "entries", "messages"} {
				Expect(count(t, dsn, table)).To(BeZero(), "rows in %s after round %d", table, round)
			}
		}
	})

	// A sweep that found a row in use unmarks it. If the last user is deleted meanwhile,
	// that deletion waits for the sweep and marks the row again.
	Describe("what loses its last user during a sweep is removed", func() {
		for table, of := range cases.Sorted(map[string]string{"sweep_messages": "messages", "sweep_pieces": "pieces"}) {
			It(of, func(ctx SpecContext) {
				t := GinkgoTB()
				dsn := pg.Database(t)
				w := begin(t, openAt(t, dsn), taskNamed("last"), 1)
				w.append(user(long(40<<10, "words")))
				sweep, watch := connect(t, dsn), connect(t, dsn)
				mustExec := func(statement string) {
					GinkgoHelper()
					Expect(sweep.Exec(ctx, statement)).Error().NotTo(HaveOccurred(), "%s", statement)
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
					err = watch.QueryRow(ctx, "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'").Scan(&blocked)
					return blocked, err
				}).WithTimeout(10*time.Second).WithPolling(5*time.Millisecond).ShouldNot(BeZero(), "the deletion should wait for the sweep")
				mustExec("DELETE FROM " + table)
				mustExec("COMMIT")
				deletion.Wait()
				Expect(count(t, dsn, of)).To(BeZero(), "rows left in %s", of)
			})
		}
	})

	// Tasks with the same messages as one that is being deleted lose nothing.
	It("records appended while their task is deleted leave nothing behind", Label("slow"), func(ctx SpecContext) {
		t := GinkgoTB()
		dsn := pg.Database(t)
		store := openAt(t, dsn)
		during, cancel := context.WithTimeout(ctx, 6*time.Second)
		defer cancel()
		same := func(i int) []history.Record {
			return []history.Record{user(fmt.Sprint("same ", i)), user(long(17<<10, fmt.Sprint("long", i))), agent("same to all")}
		}
		var work sync.WaitGroup
		for n := range 3 {
			work.Go(func() {
				defer GinkgoRecover()
				for round := 0; during.Err() == nil; round++ {
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
				for i := 0; during.Err() == nil; i++ {
					keepers[n].append(same(i % 6)...)
				}
			})
		}
		work.Wait()
		index(t, store)
		for _, w := range keepers {
			Expect(w.state().Totals.Messages).To(And(Equal(w.last), BeNumerically(">=", 30)), "the messages of %s", w.task.Name)
			Expect(store.Snapshot(ctx, w.task.Key(), history.SnapshotQuery{})).Error().NotTo(HaveOccurred(), "the snapshot of %s", w.task.Name)
		}
		Expect(count(t, dsn, "messages")).To(Equal(13), "rows in messages")
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
