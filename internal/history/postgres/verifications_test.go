package postgres_test

import (
	"context"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/jackc/pgx/v5"

	"github.com/clew-dev/clew/internal/history"
)

var _ = Describe("The verification of checkpoints", func() {
	var (
		dsn string
		w   *writer
	)
	BeforeEach(func() {
		dsn = pg.Database(GinkgoTB())
		w = begin(GinkgoTB(), openAt(GinkgoTB(), dsn), taskNamed("a"), 1)
	})
	sql := func(ctx context.Context, statement string) {
		GinkgoHelper()
		conn, err := pgx.Connect(ctx, dsn)
		Expect(err).NotTo(HaveOccurred())
		defer func() { _ = conn.Close(ctx) }()
		Expect(conn.Exec(ctx, statement)).Error().NotTo(HaveOccurred())
	}
	next := func(ctx context.Context) history.Verification {
		GinkgoHelper()
		Expect(w.store.EnrollVerifications(ctx)).Error().NotTo(HaveOccurred())
		v, err := w.store.NextVerification(ctx, "", nil)
		Expect(err).NotTo(HaveOccurred())
		return v
	}
	// verdicts says that all checkpoints of a part are intact, except for the given ones.
	verdicts := func(v history.Verification, damaged map[int64]string) (all []history.Verdict) {
		for _, n := range v.Numbers {
			all = append(all, history.Verdict{Number: n, Damage: damaged[n]})
		}
		return all
	}
	since := time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC)
	integrity := func(ctx context.Context, number int64) history.Integrity {
		GinkgoHelper()
		c, err := w.store.Checkpoint(ctx, w.task.Key(), number)
		Expect(err).NotTo(HaveOccurred())
		return c.Integrity
	}

	It("passes over all durable checkpoints of a task, part by part, once a day", func(ctx SpecContext) {
		Expect(w.store.NextVerification(ctx, "", nil)).Error().To(MatchError(history.ErrNotFound))
		for n := range int64(25) {
			w.append(durable(n + 1))
		}
		w.append(checkpoint(26))
		v := next(ctx)
		Expect(v).To(And(HaveField("Task", w.task), HaveField("Pass", true), HaveField("Conversation", true), HaveField("Numbers", HaveLen(20))))

		By("not giving the same part to two servers")
		Expect(w.store.NextVerification(ctx, "", nil)).Error().To(MatchError(history.ErrNotFound))

		Expect(w.store.RecordVerification(ctx, v, verdicts(v, nil), nil)).To(BeEmpty())
		Expect(integrity(ctx, 1).Verified).To(BeZero(), "the pass is not over")
		v = next(ctx)
		Expect(v).To(And(HaveField("Pass", true), HaveField("Conversation", false), HaveField("Numbers", Equal([]int64{21, 22, 23, 24, 25}))))
		Expect(w.store.RecordVerification(ctx, v, verdicts(v, nil), nil)).To(BeEmpty())
		Expect(integrity(ctx, 25)).To(And(HaveField("Verified", BeTemporally("~", time.Now(), time.Minute)), HaveField("Damage", "")))
		Expect(integrity(ctx, 26).Verified).To(BeZero(), "only the volume has it")
		Expect(w.store.NextVerification(ctx, "", nil)).Error().To(MatchError(history.ErrNotFound))

		By("the next day")
		sql(ctx, "UPDATE verifications SET due = due - interval '1 day', begun = begun - interval '1 day'")
		Expect(next(ctx)).To(And(HaveField("Pass", true), HaveField("Numbers", HaveLen(20))))
	})

	It("goes on where a server that was killed left it", func(ctx SpecContext) {
		w.append(durable(1))
		v := next(ctx)
		sql(ctx, "UPDATE verifications SET due = now()")
		Expect(next(ctx)).To(BeComparableTo(v))
	})

	It("puts a part off that failed, longer each time, but not once it is to be hastened", func(ctx SpecContext) {
		w.append(durable(1))
		due := func() (pause time.Duration) {
			GinkgoHelper()
			conn, err := pgx.Connect(ctx, dsn)
			Expect(err).NotTo(HaveOccurred())
			defer func() { _ = conn.Close(ctx) }()
			Expect(conn.QueryRow(ctx, "SELECT due - now() FROM verifications").Scan(&pause)).To(Succeed())
			return pause
		}
		Expect(w.store.PostponeVerification(ctx, next(ctx))).To(Succeed())
		Expect(w.store.NextVerification(ctx, "", nil)).Error().To(MatchError(history.ErrNotFound))
		Expect(due()).To(BeNumerically("~", time.Minute, 30*time.Second))

		sql(ctx, "UPDATE verifications SET due = now(), begun = begun - interval '40 minutes'")
		v := next(ctx)
		Expect(v).To(And(HaveField("Pass", true), HaveField("Conversation", true), HaveField("Numbers", Equal([]int64{1}))))
		Expect(w.store.PostponeVerification(ctx, v)).To(Succeed())
		Expect(due()).To(BeNumerically("~", 20*time.Minute, 2*time.Minute))

		sql(ctx, "UPDATE verifications SET due = now(), begun = begun - interval '20 hours'")
		v = next(ctx)
		Expect(w.store.PostponeVerification(ctx, v)).To(Succeed())
		Expect(due()).To(BeNumerically("~", time.Hour, time.Minute))

		sql(ctx, "UPDATE verifications SET due = now()")
		Expect(w.store.PostponeVerification(ctx, v)).To(Succeed())
		Expect(next(ctx).Numbers).To(Equal([]int64{1}))
	})

	It("verifies a checkpoint that somebody waits for first, and goes on with the pass then", func(ctx SpecContext) {
		for n := range int64(25) {
			w.append(durable(n + 1))
		}
		begin(GinkgoTB(), w.store, history.Task{Namespace: w.task.Namespace, Name: "other", UID: "other"}, 1).append(durable(1))
		first := next(ctx)
		Expect(w.store.RecordVerification(ctx, first, verdicts(first, nil), nil)).To(BeEmpty())
		sql(ctx, "UPDATE verifications SET due = now() - interval '1 hour'")

		Expect(w.store.RequestVerification(ctx, w.task.Key(), 25, since)).To(Succeed())
		v := next(ctx)
		Expect(v).To(And(HaveField("Task", w.task), HaveField("Requested", true), HaveField("Since", BeTemporally("==", since)),
			HaveField("Pass", false), HaveField("Conversation", true), HaveField("Numbers", Equal([]int64{25}))))

		By("not giving it to two servers, whoever asks again")
		Expect(w.store.RequestVerification(ctx, w.task.Key(), 25, since)).To(Succeed())
		Expect(next(ctx).Requested).To(BeFalse())

		Expect(w.store.RecordVerification(ctx, v, verdicts(v, nil), nil)).To(BeEmpty())
		Expect(integrity(ctx, 25)).To(And(HaveField("Verified", BeTemporally("~", time.Now(), time.Minute)), HaveField("Damage", "")))
		Expect(integrity(ctx, 24).Verified).To(BeZero(), "the pass is not over")
		Expect(next(ctx)).To(And(HaveField("Task", w.task), HaveField("Requested", false), HaveField("Pass", true), HaveField("Numbers", HaveLen(5))))

		By("recording damage as any other verification does")
		Expect(w.store.RequestVerification(ctx, w.task.Key(), 24, since)).To(Succeed())
		v = next(ctx)
		Expect(w.store.RecordVerification(ctx, v, verdicts(v, map[int64]string{24: "a blob is missing"}), nil)).To(ConsistOf(HaveField("Damage", "a blob is missing")))
		Expect(integrity(ctx, 24).Damage).To(Equal("a blob is missing"))
	})

	It("verifies no checkpoint that does not exist, and none of another namespace's task", func(ctx SpecContext) {
		w.append(durable(1))
		Expect(w.store.RequestVerification(ctx, w.task.Key(), 2, since)).To(MatchError(history.ErrNotFound))
		Expect(w.store.RequestVerification(ctx, history.Key{Namespace: "elsewhere", UID: w.task.UID}, 1, since)).To(MatchError(history.ErrNotFound))
	})

	It("tells a request from another one by the time that it names", func(ctx SpecContext) {
		w.append(durable(1), durable(2))
		requests := func(number int64) history.Requests { return integrity(ctx, number).Requests }
		Expect(requests(2)).To(BeZero())
		Expect(w.store.RequestVerification(ctx, w.task.Key(), 2, since)).To(Succeed())
		Expect(requests(2)).To(And(HaveField("Pending", BeTemporally("==", since)), HaveField("Answered", BeZero())))
		Expect(requests(1)).To(BeZero(), "another checkpoint was requested")
		first := next(ctx)

		By("not taking the outcome of one for that of the next")
		later := since.Add(time.Hour)
		Expect(w.store.RequestVerification(ctx, w.task.Key(), 2, later)).To(Succeed())
		Expect(w.store.RecordVerification(ctx, first, verdicts(first, nil), nil)).To(BeEmpty())
		Expect(requests(2)).To(And(HaveField("Pending", BeTemporally("==", later)), HaveField("Answered", BeTemporally("==", since))))
		second := next(ctx)
		Expect(second).To(And(HaveField("Requested", true), HaveField("Since", BeTemporally("==", later))))
		Expect(w.store.RecordVerification(ctx, second, verdicts(second, nil), nil)).To(BeEmpty())
		Expect(requests(2)).To(And(HaveField("Pending", BeZero()), HaveField("Answered", BeTemporally("==", later)), HaveField("Age", BeNumerically("<", time.Minute))))
		Expect(requests(1)).To(BeZero())

		By("saying how long ago it was carried out")
		sql(ctx, "UPDATE verifications SET answered_at = answered_at - interval '3 hours'")
		Expect(requests(2).Age).To(BeNumerically("~", 3*time.Hour, time.Minute))
	})

	It("records what a request has found of other checkpoints as well", func(ctx SpecContext) {
		w.append(durable(1), durable(2), durable(3))
		Expect(w.store.RequestVerification(ctx, w.task.Key(), 3, since)).To(Succeed())
		v := next(ctx)
		found := []history.Verdict{{Number: 3}, {Number: 1, Damage: "the gitstore does not have it"}}
		Expect(w.store.RecordVerification(ctx, v, found, nil)).To(ConsistOf(And(HaveField("Number", int64(1)), HaveField("Damage", "the gitstore does not have it"))))
		Expect(integrity(ctx, 3).Requests.Answered).To(BeTemporally("==", since))
		Expect(integrity(ctx, 1).Damage).To(Equal("the gitstore does not have it"))
		Expect(w.store.DamagedObjects(ctx, w.task.UID)).To(Equal([]int64{1}))

		By("looking at it again soon")
		Expect(next(ctx)).To(And(HaveField("Requested", false), HaveField("Numbers", ContainElement(int64(1)))))
	})

	It("lists the checkpoints that only the volume has, and those that only it may heal", func(ctx SpecContext) {
		w.append(durable(1), checkpoint(2), durable(3), checkpoint(4), durable(5), durable(6))
		Expect(w.store.UnpushedCheckpoints(ctx, w.task.UID)).To(Equal([]int64{2, 4}))
		Expect(w.store.DamagedObjects(ctx, w.task.UID)).To(BeEmpty())
		Expect(w.store.RecordVerdicts(ctx, w.task.Key(), []history.Verdict{{Number: 1, Damage: "a blob is missing"}, {Number: 3, Damage: "a tree is missing"}, {Number: 5}},
			map[int64]string{5: "message 3 is missing"})).Error().NotTo(HaveOccurred())
		Expect(w.store.DamagedObjects(ctx, w.task.UID)).To(Equal([]int64{1, 3}), "a volume has no messages")
		w.append(history.Record{Event: &history.DaemonEvent{Reason: "CheckpointLost", Details: map[string]string{"checkpoint": "3"}}})
		Expect(w.store.DamagedObjects(ctx, w.task.UID)).To(Equal([]int64{1}), "nobody has that any more")
	})

	It("gives each namespace its turn, however long others' tasks are due", func(ctx SpecContext) {
		// The first two are of namespaces that have had one name.
		for _, task := range []history.Task{{Namespace: "ns-b", Name: "1", UID: "b1"}, {Namespace: "ns-b@anew", Name: "2", UID: "b2"}, {Namespace: "ns-c", Name: "1", UID: "c1"}} {
			begin(GinkgoTB(), w.store, task, 1).append(durable(1))
			Expect(w.store.EnrollVerifications(ctx)).To(BeEquivalentTo(1))
		}
		sql(ctx, "UPDATE verifications v SET due = now() - make_interval(hours => v.task_id % 3) FROM tasks t WHERE t.id = v.task_id")
		var turns []string
		for after := ""; len(turns) < 3; {
			v, err := w.store.NextVerification(ctx, after, nil)
			Expect(err).NotTo(HaveOccurred())
			after = v.Turn
			turns = append(turns, after)
		}
		Expect(turns).To(Equal([]string{"ns-b", "ns-c", "ns-b"}))

		By("leaving out those that rest")
		sql(ctx, "UPDATE verifications SET due = now()")
		Expect(w.store.NextVerification(ctx, "", []string{"ns-b"})).To(HaveField("Task.Namespace", "ns-c"))
		Expect(w.store.NextVerification(ctx, "", []string{"ns-b"})).Error().To(MatchError(history.ErrNotFound))
		Expect(w.store.NextVerification(ctx, "", nil)).To(HaveField("Turn", "ns-b"))
	})

	It("goes on where a part was put aside half done", func(ctx SpecContext) {
		w.append(durable(1), durable(2), durable(3))
		v := next(ctx)
		Expect(v.Numbers).To(Equal([]int64{1, 2, 3}))
		v.Numbers, v.More = v.Numbers[:1], true
		Expect(w.store.RecordVerification(ctx, v, verdicts(v, nil), nil)).To(BeEmpty())
		Expect(integrity(ctx, 1)).To(HaveField("Verified", BeZero()), "the pass is not over")
		Expect(next(ctx)).To(And(HaveField("Numbers", []int64{2, 3}), HaveField("Conversation", false)))
	})

	It("names the nearest earlier checkpoint that is intact, until the damage is healed", func(ctx SpecContext) {
		w.append(durable(1), durable(2), durable(3))
		v := next(ctx)
		broken := map[int64]string{2: "a.txt is missing", 3: "b.txt is missing"}
		Expect(w.store.RecordVerification(ctx, v, verdicts(v, broken), nil)).To(ConsistOf(
			And(HaveField("Number", int64(2)), HaveField("Damage", "a.txt is missing")), HaveField("Number", int64(3))))
		Expect(integrity(ctx, 3)).To(And(HaveField("Damage", "b.txt is missing"), HaveField("IntactBefore", int64(1))))
		Expect(integrity(ctx, 1)).To(And(HaveField("Damage", ""), HaveField("IntactBefore", int64(0))))

		By("looking at the damaged ones again soon")
		sql(ctx, "UPDATE verifications SET due = due - interval '2 minutes'")
		v = next(ctx)
		Expect(v).To(And(HaveField("Pass", false), HaveField("Numbers", ConsistOf(int64(2), int64(3)))))
		Expect(w.store.RecordVerification(ctx, v, verdicts(v, map[int64]string{3: "b.txt is missing"}), nil)).To(ConsistOf(
			And(HaveField("Number", int64(2)), HaveField("Damage", ""))))
		Expect(integrity(ctx, 2)).To(And(HaveField("Damage", ""), HaveField("Verified", Not(BeZero()))))
		Expect(integrity(ctx, 3)).To(HaveField("IntactBefore", int64(2)))
	})

	It("verifies the damage that a user of a checkpoint reports, at once", func(ctx SpecContext) {
		w.append(durable(1), durable(2))
		v := next(ctx)
		Expect(w.store.RecordVerification(ctx, v, verdicts(v, nil), nil)).To(BeEmpty())
		Expect(w.store.ReportDamage(ctx, w.task.Key(), 2, "a\x00b")).To(Succeed())
		Expect(integrity(ctx, 2)).To(And(HaveField("Damage", "a␀b"), HaveField("IntactBefore", int64(1))))
		v = next(ctx)
		Expect(v).To(And(HaveField("Pass", false), HaveField("Numbers", Equal([]int64{2}))))
		Expect(w.store.RecordVerification(ctx, v, verdicts(v, nil), nil)).To(ConsistOf(HaveField("Damage", "")))
		Expect(integrity(ctx, 2)).To(HaveField("Damage", ""))

		Expect(w.store.ReportDamage(ctx, w.task.Key(), 9, "x")).To(MatchError(history.ErrNotFound))
		Expect(w.store.ReportDamage(ctx, history.Key{Namespace: "other", UID: w.task.UID}, 2, "x")).To(MatchError(history.ErrNotFound))
	})

	It("records what is found out on demand, also if nothing is wrong", func(ctx SpecContext) {
		w.append(durable(1), durable(2))
		Expect(w.store.RecordVerdicts(ctx, w.task.Key(), []history.Verdict{{Number: 1}}, map[int64]string{2: "message 1 is missing"})).To(BeEmpty())
		Expect(integrity(ctx, 1)).To(And(HaveField("Damage", ""), HaveField("Verified", BeTemporally("~", time.Now(), time.Minute))))
		Expect(integrity(ctx, 2).Verified).To(BeZero())
		Expect(w.store.RecordVerdicts(ctx, w.task.Key(), []history.Verdict{{Number: 2, Damage: "a.txt is missing"}}, map[int64]string{2: "message 1 is missing"})).To(
			ConsistOf(And(HaveField("Number", int64(2)), HaveField("Damage", "a.txt is missing; message 1 is missing"))))
		Expect(integrity(ctx, 2)).To(And(HaveField("Damage", ContainSubstring("a.txt")), HaveField("IntactBefore", int64(1))))

		By("damage of the messages alone")
		Expect(integrity(ctx, 2)).To(HaveField("MessagesOnly", false))
		Expect(w.store.RecordVerdicts(ctx, w.task.Key(), []history.Verdict{{Number: 2}}, map[int64]string{2: "message 1 is missing"})).To(HaveLen(1))
		Expect(integrity(ctx, 2)).To(And(HaveField("Damage", "message 1 is missing"), HaveField("MessagesOnly", true)))

		By("whoever follows learns of both")
		Expect(w.store.VerifiedTasks(ctx, time.Time{}, func(some []history.VerifiedTask) error {
			Expect(some).To(HaveExactElements(And(HaveField("Damaged", []int64{2}), HaveField("Intact", []int64{1}))))
			return nil
		})).To(Succeed())

		By("healing it")
		Expect(w.store.RecordVerdicts(ctx, w.task.Key(), []history.Verdict{{Number: 2}}, nil)).To(ConsistOf(HaveField("Damage", "")))
		Expect(w.store.RecordVerdicts(ctx, history.Key{Namespace: "other", UID: w.task.UID}, []history.Verdict{{Number: 2}}, nil)).Error().To(MatchError(history.ErrNotFound))
	})

	It("finds messages that are missing or changed, at the checkpoints that need them", func(ctx SpecContext) {
		w.append(user("1"), durable(1), agent("2"), durable(2), agent("3"), durable(3))
		Expect(w.store.DamagedConversations(ctx, w.task.Key())).To(BeEmpty())
		sql(ctx, `UPDATE messages SET body = 'something else' WHERE body = '2'`)
		damaged, err := w.store.DamagedConversations(ctx, w.task.Key())
		Expect(err).NotTo(HaveOccurred())
		Expect(damaged).To(And(HaveLen(2), HaveKeyWithValue(int64(2), ContainSubstring("message 2 has changed")), HaveKey(int64(3))))
		v := next(ctx)
		Expect(w.store.RecordVerification(ctx, v, verdicts(v, nil), damaged)).To(HaveLen(2))
		Expect(integrity(ctx, 3)).To(And(HaveField("Damage", ContainSubstring("message 2")), HaveField("IntactBefore", int64(1))))
		Expect(integrity(ctx, 1).Damage).To(BeEmpty())
	})

	DescribeTable("finds a damaged part of a conversation, and names the checkpoint before it", func(ctx SpecContext, bytes int, damage string) {
		w.append(user("1"), durable(1), agent(long(bytes, "text")), durable(2))
		Expect(w.store.DamagedConversations(ctx, w.task.Key())).To(BeEmpty())
		sql(ctx, damage)
		damaged, err := w.store.DamagedConversations(ctx, w.task.Key())
		Expect(err).NotTo(HaveOccurred())
		Expect(damaged).To(And(HaveLen(1), HaveKeyWithValue(int64(2), ContainSubstring("message 2"))))
		Expect(w.store.RecordVerdicts(ctx, w.task.Key(), []history.Verdict{{Number: 2}}, damaged)).To(HaveLen(1))
		Expect(integrity(ctx, 2)).To(And(HaveField("Damage", ContainSubstring("message 2")), HaveField("IntactBefore", int64(1))))
	},
		Entry("a message that is deleted", 100, "SET session_replication_role = replica; DELETE FROM messages WHERE role = 'assistant'"),
		Entry("a message that is truncated", 100, "UPDATE messages SET body = left(body, 10) WHERE role = 'assistant'"),
		Entry("a message with a flipped bit", 100, "UPDATE messages SET body = overlay(body placing chr(ascii(body) # 1) from 1 for 1) WHERE role = 'assistant'"),
		Entry("a piece that is deleted", 40<<10, "DELETE FROM message_pieces; DELETE FROM pieces"),
		Entry("a piece that is truncated", 40<<10, "UPDATE pieces SET data = substring(data for length(data) / 2)"),
		Entry("a piece with a flipped bit", 40<<10, "UPDATE pieces SET data = set_byte(data, 100, get_byte(data, 100) # 64)"),
	)

	It("tells whoever follows it what has changed", func(ctx SpecContext) {
		w.append(durable(1), durable(2))
		changed := func(since time.Time) (all []history.VerifiedTask) {
			GinkgoHelper()
			Expect(w.store.VerifiedTasks(ctx, since, func(some []history.VerifiedTask) error {
				all = append(all, some...)
				return nil
			})).To(Succeed())
			return all
		}
		v := next(ctx)
		Expect(w.store.RecordVerification(ctx, v, verdicts(v, map[int64]string{2: "x"}), nil)).To(HaveLen(1))
		Expect(changed(time.Time{})).To(HaveExactElements(And(
			HaveField("Task", w.task), HaveField("Through", int64(2)), HaveField("Damaged", []int64{2}))))
		Expect(changed(time.Now().Add(2 * time.Minute))).To(BeEmpty())
	})

	It("ends with the task", func(ctx SpecContext) {
		w.append(durable(1))
		v := next(ctx)
		Expect(w.store.DeleteTask(ctx, w.task.UID)).Error().NotTo(HaveOccurred())
		Expect(w.store.RecordVerification(ctx, v, verdicts(v, map[int64]string{1: "x"}), nil)).Error().To(HaveOccurred())
		Expect(w.store.NextVerification(ctx, "", nil)).Error().To(MatchError(history.ErrNotFound))
	})
})
