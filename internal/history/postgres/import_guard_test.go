package postgres_test

import (
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/jackc/pgx/v5"

	"github.com/clew-dev/clew/internal/conversation"
	"github.com/clew-dev/clew/internal/history"
)

// forged is a hand-written export of a task with that UID.
func forged(t testing.TB, uid string, more ...history.ExportLine) iter.Seq2[history.ExportLine, error] {
	t.Helper()
	now := time.Now().UTC()
	zero := map[string]any{}
	lines := []history.ExportLine{
		exportLine(t, history.ExportTask, map[string]any{
			"format": history.ExportFormat, "namespace": "other", "name": "decoy", "uid": uid, "attempt": 1, "lastSequence": 0,
			"activeBranch": 1, "checkpoints": 0, "created": now, "updated": now,
		}),
		exportLine(t, history.ExportBranch, map[string]any{"branch": 1, "created": now, "base": zero, "head": zero, "digest": ""}),
	}
	lines = append(append(lines, more...), exportLine(t, history.ExportEnd, map[string]any{"lines": map[string]int64{}}))
	return func(yield func(history.ExportLine, error) bool) {
		for _, l := range lines {
			if !yield(l, nil) {
				return
			}
		}
	}
}

func exportLine(t testing.TB, kind string, body any) history.ExportLine {
	t.Helper()
	encoded, err := json.Marshal(body)
	if err != nil {
		t.Fatal(err)
	}
	return history.ExportLine{Kind: kind, Body: encoded}
}

var _ = Describe("Importing a forged history", func() {
	// The id of a transition derives from the task's UID and its number, so whoever knows
	// the UID can compute it in advance.
	It("an import cannot take the place of an event to come", func() {
		t := GinkgoTB()
		store := open(t)
		victim := history.Task{Namespace: "victim", Name: "v", UID: "11111111-2222-3333-4444-555555555555"}
		at := time.Now().Truncate(time.Microsecond)
		_, err := store.Import(t.Context(), "attacker", "mallory", forged(t, "decoy", exportLine(t, history.ExportEvent, map[string]any{
			"id": history.EventID(victim.UID, 7), "time": at, "type": "task", "reason": "Nothing", "actor": "alice",
		})))
		Expect(err).NotTo(HaveOccurred())
		Expect(store.RecordEvents(t.Context(), []history.Event{{
			ID: history.EventID(victim.UID, 7), Task: victim, Time: at, Type: history.EventTypeRewind, Reason: "TaskRewound", Actor: "mallory",
		}})).To(Succeed())
		page, err := store.Timeline(t.Context(), history.TimelineQuery{Namespace: "victim", UID: victim.UID, Limit: 10})
		Expect(err).NotTo(HaveOccurred())
		Expect(page.Events).To(ConsistOf(HaveField("Reason", "TaskRewound")))
	})

	It("audit events of an import are marked as imported", func() {
		t := GinkgoTB()
		store := open(t)
		_, err := store.Import(t.Context(), "attacker", "mallory", forged(t, "decoy", exportLine(t, history.ExportEvent, map[string]any{
			"id": "forged", "time": time.Now().Add(-time.Hour), "type": "access", "reason": "HistoryExported", "actor": "system:admin",
		})))
		Expect(err).NotTo(HaveOccurred())
		read := func(types ...string) []history.Event {
			page, err := store.Timeline(t.Context(), history.TimelineQuery{Namespace: "attacker", UID: "decoy", Limit: 10, Types: types})
			Expect(err).NotTo(HaveOccurred())
			return page.Events
		}
		Expect(read(history.EventTypeAccess)).To(BeEmpty())
		Expect(read()).To(ConsistOf(And(
			HaveField("Type", history.EventTypeImported), HaveField("Actor", "system:admin"), HaveField("ImportedBy", "mallory"))))
	})

	// The stored UID is the one in the file, by which the existing Tasks were searched.
	It("an import is stored under the UID in the file", func() {
		t := GinkgoTB()
		store := open(t)
		for _, uid := range []string{"live\x00", "\x00live", "live\u200b\x00"} {
			_, err := store.Import(t.Context(), "attacker", "mallory", forged(t, uid))
			Expect(err).To(MatchError(history.ErrInvalid))
		}
	})

	// What was deleted in one namespace stays deleted there, whoever imports a history of
	// the same UID into another one and deletes that again.
	It("an import does not lift a deletion in another namespace", func() {
		t := GinkgoTB()
		store := open(t)
		w := begin(t, store, taskNamed("a"), 1)
		w.append(user("secret"))
		remove(t, w)
		_, err := store.Import(t.Context(), "attacker", "mallory", forged(t, w.task.UID))
		Expect(err).NotTo(HaveOccurred())
		late := history.Event{ID: history.EventID(w.task.UID, 9), Task: w.task, Time: time.Now(), Type: history.EventTypeTask, Reason: "TaskFailed"}
		Expect(store.RecordEvents(t.Context(), []history.Event{late})).To(Succeed())
		page, err := store.Timeline(t.Context(), history.TimelineQuery{Namespace: w.task.Namespace, UID: w.task.UID, Limit: 10})
		Expect(err).NotTo(HaveOccurred())
		Expect(page.Events).To(BeEmpty())
		_, err = store.Begin(t.Context(), w.task, 2, nil, history.BeginOptions{})
		Expect(err).To(MatchError(history.ErrFenced))
	})

	It("deleting an import takes no events of another namespace", func() {
		t := GinkgoTB()
		store := open(t)
		victim := history.Task{Namespace: "victim", Name: "v", UID: "11111111-2222-3333-4444-555555555555"}
		_, err := store.Import(t.Context(), "attacker", "mallory", forged(t, victim.UID))
		Expect(err).NotTo(HaveOccurred())
		Expect(store.RecordEvents(t.Context(), []history.Event{{
			ID: history.EventID(victim.UID, 1), Task: victim, Time: time.Now(), Type: history.EventTypeTask, Reason: "TaskCreated",
		}})).To(Succeed())
		_, err = store.DeleteTask(t.Context(), victim.UID)
		Expect(err).NotTo(HaveOccurred())
		page, err := store.Timeline(t.Context(), history.TimelineQuery{Namespace: "victim", UID: victim.UID, Limit: 10})
		Expect(err).NotTo(HaveOccurred())
		Expect(page.Events).To(HaveLen(1))
	})

	// A branch from which no branch of the task inherits would belong to nobody, and
	// never be deleted.
	It("a branch that nobody inherits is not imported", func() {
		t := GinkgoTB()
		store := open(t)
		zero := map[string]any{}
		branch := func(number, parent int64) history.ExportLine {
			return exportLine(t, history.ExportBranch, map[string]any{
				"branch": number, "parent": parent, "number": 1, "created": time.Now(), "base": zero, "head": zero, "digest": "",
			})
		}
		for name, more := range map[string][]history.ExportLine{
			"alone": {branch(-1, 0)}, "two that grow from each other alone": {branch(-1, 0), branch(-2, -1)},
			"a number that none has": {branch(1<<40, 0)},
		} {
			_, err := store.Import(t.Context(), "team", "mallory", forged(t, name, more...))
			Expect(err).To(MatchError(history.ErrInvalid), name)
		}
	})

	// 32 KB may refer to one piece a thousand times.
	It("a message is no longer than its stated length", func() {
		t := GinkgoTB()
		store := open(t)
		w := begin(t, store, taskNamed("a"), 1)
		data := strings.Repeat("x", conversation.MaxPiece)
		p := &conversation.Pieces{Bytes: 10, Hashes: slices.Repeat([][]byte{conversation.PieceHash(data)}, 1000)}
		Expect(p.Plausible()).To(BeFalse())
		w.append(piece(data), history.Record{Message: &conversation.Message{Role: conversation.RoleUser, Text: "hi", TextPieces: p}})
		entries := w.entries()
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, err := store.Text(t.Context(), "team", entries[0].Message.TextPieces)
		runtime.ReadMemStats(&after)
		Expect(err).To(MatchError(history.ErrCorrupted))
		Expect((after.TotalAlloc-before.TotalAlloc)>>20).To(BeNumerically("<", 32), "MiB were allocated")

		lines := export(t, store, w.task)
		_, err = open(t).Import(t.Context(), "team", "mallory", parsed(lines))
		Expect(err).To(MatchError(history.ErrInvalid))
	})

	// Lines may arrive slowly. However many imports there are, others find a connection.
	It("slow imports leave connections for others", func() {
		t := GinkgoTB()
		store := open(t)
		w := begin(t, store, taskNamed("a"), 1)
		began, ended := make(chan struct{}, 100), make(chan error, 100)
		ctx, cancel := context.WithCancel(t.Context())
		for i := range 20 {
			lines := forged(t, fmt.Sprint("decoy-", i))
			go func() {
				defer GinkgoRecover()
				_, err := store.Import(ctx, "hostile", "mallory", func(yield func(history.ExportLine, error) bool) {
					for line := range lines {
						if !yield(line, nil) {
							return
						}
						began <- struct{}{}
						<-ctx.Done()
					}
				})
				ended <- err
			}()
		}
		for range 2 {
			Eventually(began, "20s").Should(Receive())
		}
		w.append(user("hello"))
		cancel()
		for range 20 {
			Eventually(ended, "20s").Should(Receive(HaveOccurred()))
		}
	})

	// Importers choose the UID, and hold the lock of its timeline meanwhile.
	It("no UID locks the timeline of another task", func() {
		t := GinkgoTB()
		dsn := pg.Database(t)
		holder, other := connect(t, dsn), connect(t, dsn)
		// Two of these have the same 32-bit hash.
		var uids []string
		Expect(holder.QueryRow(t.Context(), `SELECT array_agg(uid) FROM (SELECT 'uid-' || i AS uid FROM generate_series(1, 300000) i) u
		GROUP BY hashtext(uid) HAVING count(*) > 1 LIMIT 1`).Scan(&uids)).To(Succeed())
		tx, err := holder.Begin(t.Context())
		Expect(err).NotTo(HaveOccurred())
		defer func() { _ = tx.Rollback(context.Background()) }()
		_, err = tx.Exec(t.Context(), queryText(t, "LockTimeline"), pgx.NamedArgs{"task_uid": uids[0]})
		Expect(err).NotTo(HaveOccurred())
		for uid, refusal := range map[string]OmegaMatcher{
			uids[1]: BeNil(),
			uids[0]: MatchError(ContainSubstring("lock timeout")),
		} {
			_, err = other.Exec(t.Context(), "SET lock_timeout = '500ms'")
			Expect(err).NotTo(HaveOccurred())
			_, err = other.Exec(t.Context(), queryText(t, "LockTimeline"), pgx.NamedArgs{"task_uid": uid})
			Expect(err).To(refusal)
		}
	})

	// The UID is a key of many rows, and Tasks are looked up by it.
	It("an import needs a valid UID", func() {
		t := GinkgoTB()
		store := open(t)
		for _, uid := range []string{strings.Repeat("u", history.MaxUIDBytes+1), "a\x00b"} {
			_, err := store.Import(t.Context(), "team", "ann", forged(t, uid))
			Expect(err).To(MatchError(history.ErrInvalid))
			Expect(err).To(MatchError(ContainSubstring("no UID has")))
		}
		_, err := store.Import(t.Context(), "team", "ann", forged(t, strings.Repeat("u", history.MaxUIDBytes)))
		Expect(err).NotTo(HaveOccurred())
	})
})
