package postgres_test

import (
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"runtime"
	"slices"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/jackc/pgx/v5"

	"github.com/clew-dev/clew/internal/conversation"
	"github.com/clew-dev/clew/internal/history"
)

// forged is a hand-written export of a task with that UID.
func forged(uid string, more ...history.ExportLine) iter.Seq2[history.ExportLine, error] {
	GinkgoHelper()
	return forgedNamed("decoy", uid, more...)
}

// forgedNamed is a hand-written export of a task with that name and UID.
func forgedNamed(name, uid string, more ...history.ExportLine) iter.Seq2[history.ExportLine, error] {
	GinkgoHelper()
	now := time.Now().UTC()
	zero := map[string]any{}
	lines := []history.ExportLine{
		exportLine(history.ExportTask, map[string]any{
			"format": history.ExportFormat, "namespace": "other", "name": name, "uid": uid, "attempt": 1, "lastSequence": 0,
			"activeBranch": 1, "checkpoints": 0, "created": now, "updated": now,
		}),
		exportLine(history.ExportBranch, map[string]any{"branch": 1, "created": now, "base": zero, "head": zero, "digest": ""}),
	}
	lines = append(append(lines, more...), exportLine(history.ExportEnd, map[string]any{"lines": map[string]int64{}}))
	return func(yield func(history.ExportLine, error) bool) {
		for _, l := range lines {
			if !yield(l, nil) {
				return
			}
		}
	}
}

func exportLine(kind string, body any) history.ExportLine {
	GinkgoHelper()
	encoded, err := json.Marshal(body)
	Expect(err).NotTo(HaveOccurred())
	return history.ExportLine{Kind: kind, Body: encoded}
}

var _ = Describe("Importing a forged history", func() {
	// The id of a transition derives from the task's UID and its number, so whoever knows
	// the UID can compute it in advance.
	It("an import cannot take the place of an event to come", func(ctx SpecContext) {
		t := GinkgoTB()
		store := open(t)
		victim := history.Task{Namespace: "victim", Name: "v", UID: "11111111-2222-3333-4444-555555555555"}
		at := time.Now().Truncate(time.Microsecond)
		event := exportLine(history.ExportEvent, map[string]any{
			"id": history.EventID(victim.UID, 7), "time": at, "type": "task", "reason": "Nothing", "actor": "alice",
		})
		Expect(store.Import(ctx, "attacker", "mallory", forged("decoy", event))).Error().NotTo(HaveOccurred())

		By("recording the event whose id was taken")
		Expect(store.RecordEvents(ctx, []history.Event{{
			ID: history.EventID(victim.UID, 7), Task: victim, Time: at, Type: history.EventTypeRewind, Reason: "TaskRewound", Actor: "mallory",
		}})).To(Succeed())
		Expect(store.Timeline(ctx, history.TimelineQuery{Namespace: "victim", UID: victim.UID, Limit: 10})).
			To(HaveField("Events", ConsistOf(HaveField("Reason", "TaskRewound"))))
	})

	It("audit events of an import are marked as imported", func(ctx SpecContext) {
		t := GinkgoTB()
		store := open(t)
		event := exportLine(history.ExportEvent, map[string]any{
			"id": "forged", "time": time.Now().Add(-time.Hour), "type": "access", "reason": "HistoryExported", "actor": "system:admin",
		})
		Expect(store.Import(ctx, "attacker", "mallory", forged("decoy", event))).Error().NotTo(HaveOccurred())
		read := func(types ...string) []history.Event {
			page, err := store.Timeline(ctx, history.TimelineQuery{Namespace: "attacker", UID: "decoy", Limit: 10, Types: types})
			Expect(err).NotTo(HaveOccurred())
			return page.Events
		}
		Expect(read(history.EventTypeAccess)).To(BeEmpty())
		Expect(read()).To(ConsistOf(And(
			HaveField("Type", history.EventTypeImported), HaveField("Actor", "system:admin"), HaveField("ImportedBy", "mallory"))))
	})

	// The stored UID is the one in the file, by which the existing Tasks were searched.
	It("an import is stored under the UID in the file", func(ctx SpecContext) {
		t := GinkgoTB()
		store := open(t)
		for _, uid := range []string{"live\x00", "\x00live", "live\u200b\x00"} {
			Expect(store.Import(ctx, "attacker", "mallory", forged(uid))).Error().To(MatchError(history.ErrInvalid))
		}
	})

	// What was deleted in one namespace stays deleted there, whoever imports a history of
	// the same UID into another one and deletes that again.
	It("an import does not lift a deletion in another namespace", func(ctx SpecContext) {
		t := GinkgoTB()
		store := open(t)
		w := begin(t, store, taskNamed("a"), 1)
		w.append(user("secret"))
		remove(t, w)
		Expect(store.Import(ctx, "attacker", "mallory", forged(w.task.UID))).Error().NotTo(HaveOccurred())
		late := history.Event{ID: history.EventID(w.task.UID, 9), Task: w.task, Time: time.Now(), Type: history.EventTypeTask, Reason: "TaskFailed"}
		Expect(store.RecordEvents(ctx, []history.Event{late})).To(Succeed())
		Expect(store.Timeline(ctx, history.TimelineQuery{Namespace: w.task.Namespace, UID: w.task.UID, Limit: 10})).
			To(HaveField("Events", BeEmpty()))
		Expect(store.Begin(ctx, w.task, 2, nil, history.BeginOptions{})).Error().To(MatchError(history.ErrFenced))
	})

	It("deleting an import takes no events of another namespace", func(ctx SpecContext) {
		t := GinkgoTB()
		store := open(t)
		victim := history.Task{Namespace: "victim", Name: "v", UID: "11111111-2222-3333-4444-555555555555"}
		Expect(store.Import(ctx, "attacker", "mallory", forged(victim.UID))).Error().NotTo(HaveOccurred())
		Expect(store.RecordEvents(ctx, []history.Event{{
			ID: history.EventID(victim.UID, 1), Task: victim, Time: time.Now(), Type: history.EventTypeTask, Reason: "TaskCreated",
		}})).To(Succeed())
		Expect(store.DeleteTask(ctx, victim.UID)).Error().NotTo(HaveOccurred())
		Expect(store.Timeline(ctx, history.TimelineQuery{Namespace: "victim", UID: victim.UID, Limit: 10})).
			To(HaveField("Events", HaveLen(1)))
	})

	// A branch from which no branch of the task inherits would belong to nobody, and
	// never be deleted.
	It("a branch that nobody inherits is not imported", func(ctx SpecContext) {
		t := GinkgoTB()
		store := open(t)
		zero := map[string]any{}
		branch := func(number, parent int64) history.ExportLine {
			return exportLine(history.ExportBranch, map[string]any{
				"branch": number, "parent": parent, "number": 1, "created": time.Now(), "base": zero, "head": zero, "digest": "",
			})
		}
		for name, more := range map[string][]history.ExportLine{
			"alone": {branch(-1, 0)}, "two that grow from each other alone": {branch(-1, 0), branch(-2, -1)},
			"a number that none has": {branch(1<<40, 0)},
		} {
			Expect(store.Import(ctx, "team", "mallory", forged(name, more...))).Error().To(MatchError(history.ErrInvalid), name)
		}
	})

	// 32 KB may refer to one piece a thousand times.
	It("a message is no longer than its stated length", func(ctx SpecContext) {
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
		_, err := store.Text(ctx, "team", entries[0].Message.TextPieces)
		runtime.ReadMemStats(&after)
		Expect(err).To(MatchError(history.ErrCorrupted))
		Expect((after.TotalAlloc-before.TotalAlloc)>>20).To(BeNumerically("<", 32), "MiB that were allocated")

		By("importing it elsewhere")
		lines := export(t, store, w.task)
		Expect(open(t).Import(ctx, "team", "mallory", parsed(lines))).Error().To(MatchError(history.ErrInvalid))
	})

	// Lines may arrive slowly. However many imports there are, others find a connection.
	It("slow imports leave connections for others", func(ctx SpecContext) {
		t := GinkgoTB()
		store := open(t)
		w := begin(t, store, taskNamed("a"), 1)
		began, ended := make(chan struct{}, 100), make(chan error, 100)
		importing, cancel := context.WithCancel(ctx)
		for i := range 20 {
			lines := forged(fmt.Sprint("decoy-", i))
			go func() {
				defer GinkgoRecover()
				_, err := store.Import(importing, "hostile", "mallory", func(yield func(history.ExportLine, error) bool) {
					for line := range lines {
						if !yield(line, nil) {
							return
						}
						began <- struct{}{}
						<-importing.Done()
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
	It("no UID locks the timeline of another task", func(ctx SpecContext) {
		t := GinkgoTB()
		dsn := pg.Database(t)
		holder, other := connect(t, dsn), connect(t, dsn)
		// Two of these have the same 32-bit hash.
		var uids []string
		Expect(holder.QueryRow(ctx, `SELECT array_agg(uid) FROM (SELECT 'uid-' || i AS uid FROM generate_series(1, 300000) i) u
		GROUP BY hashtext(uid) HAVING count(*) > 1 LIMIT 1`).Scan(&uids)).To(Succeed())
		tx, err := holder.Begin(ctx)
		Expect(err).NotTo(HaveOccurred())
		defer func() { _ = tx.Rollback(context.Background()) }()
		Expect(tx.Exec(ctx, queryText(t, "LockTimeline"), pgx.NamedArgs{"task_uid": uids[0]})).Error().NotTo(HaveOccurred())
		for uid, refusal := range map[string]OmegaMatcher{
			uids[1]: BeNil(),
			uids[0]: MatchError(ContainSubstring("lock timeout")),
		} {
			Expect(other.Exec(ctx, "SET lock_timeout = '500ms'")).Error().NotTo(HaveOccurred())
			_, err = other.Exec(ctx, queryText(t, "LockTimeline"), pgx.NamedArgs{"task_uid": uid})
			Expect(err).To(refusal)
		}
	})

	// The UID is a key of many rows, and Tasks are looked up by it.
	It("an import needs a valid UID", func(ctx SpecContext) {
		t := GinkgoTB()
		store := open(t)
		for _, uid := range []string{strings.Repeat("u", history.MaxUIDBytes+1), "a\x00b", "a b", "a\nb", "a\u00a0b"} {
			_, err := store.Import(ctx, "team", "ann", forged(uid))
			Expect(err).To(MatchError(history.ErrInvalid))
			Expect(err).To(MatchError(ContainSubstring("no UID has")))
		}
		Expect(store.Import(ctx, "team", "ann", forged(strings.Repeat("u", history.MaxUIDBytes)))).Error().NotTo(HaveOccurred())
	})

	// It is a field of the store's notifications, which spaces part.
	It("an import needs a name that a Task may have", func(ctx SpecContext) {
		t := GinkgoTB()
		store := open(t)
		for _, name := range []string{"a b", "a\nb", "A", strings.Repeat("n", 254)} {
			_, err := store.Import(ctx, "team", "ann", forgedNamed(name, "uid"))
			Expect(err).To(MatchError(history.ErrInvalid))
			Expect(err).To(MatchError(ContainSubstring("the task's name is not one that a Task may have")))
		}
		Expect(store.Import(ctx, "team", "ann", forgedNamed("a.b-c", "uid"))).To(HaveField("Name", "a.b-c"))
	})
})
