package postgres_test

import (
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/history/postgres"
)

var _ = Describe("A history that another task continues", func() {
	first := history.Task{Namespace: "team", Name: "fix", UID: "first-uid"}
	second := history.Task{Namespace: "team", Name: "fix", UID: "second-uid"}
	var store *postgres.Store
	var dsn string
	var w *writer
	BeforeEach(func(ctx SpecContext) {
		dsn = pg.Database(GinkgoTB())
		store = openAt(GinkgoTB(), dsn)
		w = begin(GinkgoTB(), store, first, 3)
		Expect(store.RecordEvents(ctx, []history.Event{transition(first, 1, "TaskStarted", time.Now())})).To(Succeed())
		w.append(user("do it"), agent("on it"), checkpoint(1), checkpoint(2))
		Expect(store.MoveConversation(ctx, first, 3, history.MoveOperation{ID: "Rewind/r1", Checkpoint: 1})).Error().NotTo(HaveOccurred())
	})

	It("belongs to the new UID, with everything that was recorded", func(ctx SpecContext) {
		Expect(store.Adoption(ctx, second)).To(Equal(history.Adoption{Former: "first-uid"}))
		texts := w.texts()
		for range 2 { // it may be repeated
			Expect(store.Adopt(ctx, second, "first-uid")).To(Succeed())
			Expect(store.Adoption(ctx, second)).To(Equal(history.Adoption{Former: "first-uid", Done: true}))
		}
		Expect(store.TaskState(ctx, "first-uid")).Error().To(MatchError(history.ErrNotFound))
		next := begin(GinkgoTB(), store, second, 4)
		Expect(next.last).To(BeEquivalentTo(4), "records go on where they ended")
		Expect(next.state()).To(SatisfyAll(HaveField("Latest.Number", int64(2)), HaveField("CompletedOperations", ContainElement("Rewind/r1"))))
		next.append(checkpoint(3))
		Expect(next.texts()).To(Equal(texts))
		Expect(store.Checkpoint(ctx, second.Key(), 1)).To(HaveField("Commit", "c1"))
		Expect(reasonsOf(GinkgoTB(), next)).To(ContainSubstring("TaskStarted"))

		By("numbering the transitions of the new task from 1")
		Expect(store.RecordedTransitions(ctx, "team", "second-uid")).To(BeZero())
		Expect(store.RecordEvents(ctx, []history.Event{transition(second, 1, "TaskResumed", time.Now())})).To(Succeed())
		page, err := store.Tasks(ctx, history.TaskQuery{Namespace: "team", Limit: 10})
		Expect(err).NotTo(HaveOccurred())
		Expect(page.Tasks).To(HaveExactElements(SatisfyAll(HaveField("UID", "second-uid"), HaveField("State", "Running"))))
	})

	It("is of the contract of the task that continues it", func(ctx SpecContext) {
		of := func(contract string) history.EventPage {
			GinkgoHelper()
			page, err := store.Timeline(ctx, history.TimelineQuery{Namespace: "team", Contract: contract, Limit: 100})
			Expect(err).NotTo(HaveOccurred())
			return page
		}
		Expect(store.KeepSpec(ctx, first.Key(), history.KeptSpec{Membership: history.Membership{Contract: "port"}})).To(Succeed())
		Expect(of("port").Events).NotTo(BeEmpty())
		Expect(store.Adopt(ctx, second, "first-uid")).To(Succeed())
		Expect(store.Clean(ctx, postgres.MaintenanceOptions{})).To(Succeed())
		Expect(of("port").Events).To(BeEmpty())
		Expect(store.KeepSpec(ctx, second.Key(), history.KeptSpec{Membership: history.Membership{Contract: "harbour"}})).To(Succeed())
		Expect(of("harbour").Events).NotTo(BeEmpty())

		By("keeping the spec of a task of none, and cleaning the store")
		Expect(store.KeepSpec(ctx, second.Key(), history.KeptSpec{})).To(Succeed())
		Expect(store.Clean(ctx, postgres.MaintenanceOptions{})).To(Succeed())
		Expect(of("harbour").Events).To(BeEmpty())
	})

	It("is written to by the former task no more, and is found by what starts from that", func(ctx SpecContext) {
		Expect(store.Adopt(ctx, second, "first-uid")).To(Succeed())
		Expect(store.Append(ctx, first, 3, w.number(user("late")))).Error().To(MatchError(history.ErrFenced))
		Expect(store.Begin(ctx, first, 9, nil, history.BeginOptions{})).Error().To(MatchError(history.ErrFenced))
		fork := taskNamed("fork")
		Expect(store.Begin(ctx, fork, 1, &history.Source{TaskUID: "first-uid", Checkpoint: 2, IncludeConversation: true}, history.BeginOptions{})).
			To(HaveField("Position.Position", int64(2)))
	})

	It("is adopted by one task after the other, and deleted with the last", func(ctx SpecContext) {
		third := history.Task{Namespace: "team", Name: "fix", UID: "third-uid"}
		Expect(store.Adopt(ctx, second, "first-uid")).To(Succeed())
		Expect(store.FormerTasks(ctx, "second-uid")).To(Equal([]history.FormerTask{{UID: "first-uid"}}))
		Expect(store.Adopt(ctx, third, "second-uid")).To(Succeed())
		Expect(store.Adoption(ctx, third)).To(Equal(history.Adoption{Former: "second-uid", Done: true}))
		Expect(store.FormerTasks(ctx, "third-uid")).To(Equal([]history.FormerTask{{UID: "first-uid"}, {UID: "second-uid"}}))
		ofThird := func(former string) history.TaskAdoption {
			return history.TaskAdoption{Task: history.Key{Namespace: "team", UID: "third-uid"}, Former: history.FormerTask{UID: former}}
		}
		Expect(store.Adoptions(ctx, "", 1)).To(Equal([]history.TaskAdoption{ofThird("first-uid")}))
		Expect(store.Adoptions(ctx, "first-uid", 9)).To(Equal([]history.TaskAdoption{ofThird("second-uid")}))

		Expect(store.DeleteTask(ctx, "third-uid")).Error().NotTo(HaveOccurred())
		for _, task := range []history.Task{first, second, third} {
			Expect(store.Begin(ctx, task, 9, nil, history.BeginOptions{})).Error().To(MatchError(history.ErrFenced), task.UID)
		}
		Expect(store.Adoption(ctx, history.Task{Namespace: "team", Name: "fix", UID: "fourth-uid"})).To(BeZero())
	})

	It("is not taken by a task that has its own, nor by one of another name or namespace", func(ctx SpecContext) {
		for _, other := range []history.Task{{Namespace: "team", Name: "other", UID: "o"}, {Namespace: "elsewhere", Name: "fix", UID: "o"}} {
			Expect(store.Adoption(ctx, other)).To(BeZero())
			Expect(store.Adopt(ctx, other, "first-uid")).To(MatchError(history.ErrNotFound))
		}
		begin(GinkgoTB(), store, second, 1)
		Expect(store.Adoption(ctx, second)).To(BeZero())
		Expect(store.Adopt(ctx, second, "first-uid")).To(MatchError(history.ErrExists))
		Expect(store.Adopt(ctx, second, "none")).To(MatchError(history.ErrNotFound))
		Expect(w.state()).To(HaveField("UID", "first-uid"))
	})

	It("keeps where it started, whatever is known of the task that continues it", func(ctx SpecContext) {
		start := history.Start{Fork: "try", From: "task source", TaskUID: "source-uid", Checkpoint: 5, Commit: "c5", Position: 12}
		keep := func(task history.Task, spec string, start history.Start) {
			GinkgoHelper()
			Expect(store.KeepSpec(ctx, task.Key(), history.KeptSpec{Spec: spec, Start: start, OperatingMode: "Suspended"})).To(Succeed())
			Expect(store.KeptSpec(ctx, task.Key())).To(HaveField("Spec", spec))
		}
		keep(first, "{}", history.Start{})
		keep(first, "{}", start)
		Expect(store.Adoption(ctx, second)).To(Equal(history.Adoption{Former: "first-uid", Start: start}))
		keep(second, `{"by":"itself"}`, history.Start{})
		Expect(store.Adopt(ctx, second, "first-uid")).To(Succeed())
		Expect(store.Adoption(ctx, second)).To(Equal(history.Adoption{Former: "first-uid", Done: true, Start: start}))
		keep(second, "{}", history.Start{Fork: "other", TaskUID: "other-uid"})
		Expect(store.KeptSpec(ctx, second.Key())).To(HaveField("Start", start))
		Expect(store.ForkedTasks(ctx, "team", "try")).To(HaveExactElements(history.ForkedTask{Name: "fix", UID: "second-uid", Start: start, OperatingMode: "Suspended"}))
		Expect(store.ForkedTasks(ctx, "team", "other")).To(BeEmpty())
		Expect(store.ForkedTasks(ctx, "team", "")).To(BeEmpty())
		Expect(store.ForkedTasks(ctx, "elsewhere", "try")).To(BeEmpty())
	})

	It("is not given to a task whose own history was deleted, nor is one that was imported under its UID", func(ctx SpecContext) {
		lines := export(GinkgoTB(), store, first)
		Expect(store.Adopt(ctx, second, "first-uid")).To(Succeed())
		Expect(store.DeleteTask(ctx, "second-uid")).Error().NotTo(HaveOccurred())
		Expect(importing(ctx, store, lines)).To(Succeed())
		Expect(store.Adopt(ctx, history.Task{Namespace: "team", Name: "fix", UID: "third-uid"}, "first-uid")).To(MatchError(history.ErrInvalid))
		Expect(connect(GinkgoTB(), dsn).Exec(ctx, "DELETE FROM events")).Error().NotTo(HaveOccurred())
		Expect(store.Adopt(ctx, second, "first-uid")).To(MatchError(history.ErrExists))
	})

	It("is found by the UIDs of all whom it was recorded for", func(ctx SpecContext) {
		Expect(store.ContinuedBy(ctx, first.Key())).To(BeEmpty())
		Expect(store.Adopt(ctx, second, "first-uid")).To(Succeed())
		Expect(store.Adopt(ctx, history.Task{Namespace: "team", Name: "fix", UID: "third-uid"}, "second-uid")).To(Succeed())
		for _, former := range []history.Task{first, second} {
			Expect(store.ContinuedBy(ctx, former.Key())).To(Equal("third-uid"))
		}
		Expect(store.ContinuedBy(ctx, history.Key{Namespace: "elsewhere", UID: "first-uid"})).To(BeEmpty())
	})

	Describe("with checkpoints that Checkpoint objects stand for", func() {
		named := func(name, uid string, number int64) history.NamedCheckpoint {
			return history.NamedCheckpoint{Name: name, UID: uid, Number: number}
		}
		names := []string{"again", "asked", "lost", "never"}
		BeforeEach(func(ctx SpecContext) {
			asked := checkpoint(3)
			asked.Checkpoint.RequestedByName, asked.Checkpoint.RequestedByUID = "asked", "asked-uid"
			w.append(asked, checkpoint(4))
			Expect(store.NameCheckpoint(ctx, first.Key(), named("again", "old-uid", 1))).To(Succeed())
			Expect(store.NameCheckpoint(ctx, first.Key(), named("again", "again-uid", 2))).To(Succeed())
			Expect(store.NameCheckpoint(ctx, first.Key(), named("lost", "lost-uid", 9))).To(Succeed())
		})

		It("lets the first object of each name stand for the same one", func(ctx SpecContext) {
			Expect(store.NamedCheckpoints(ctx, first.Key(), names, nil)).To(BeEmpty(), "before it is continued")
			Expect(store.ClaimCheckpoint(ctx, first.Key(), "again", "new-uid")).Error().To(MatchError(history.ErrNotFound))
			Expect(store.Adopt(ctx, second, "first-uid")).To(Succeed())
			Expect(store.NamedCheckpoints(ctx, second.Key(), names, nil)).To(HaveExactElements(named("again", "", 2), named("asked", "", 3)))
			for range 2 { // it may be repeated
				Expect(store.ClaimCheckpoint(ctx, second.Key(), "again", "new-uid")).To(BeEquivalentTo(2))
			}
			Expect(store.ClaimCheckpoint(ctx, second.Key(), "again", "later-uid")).Error().To(MatchError(history.ErrNotFound))
			Expect(store.ClaimCheckpoint(ctx, second.Key(), "asked", "asks-uid")).To(BeEquivalentTo(3))
			Expect(store.ClaimCheckpoint(ctx, second.Key(), "lost", "new-uid")).Error().To(MatchError(history.ErrNotFound), "no such checkpoint is recorded")
			Expect(store.NamedCheckpoints(ctx, second.Key(), names, []string{"new-uid", "later-uid"})).To(HaveExactElements(named("again", "new-uid", 2)))
		})

		It("answers for the names that are asked for", func(ctx SpecContext) {
			Expect(store.Adopt(ctx, second, "first-uid")).To(Succeed())
			Expect(store.NamedCheckpoints(ctx, second.Key(), []string{"asked"}, nil)).To(HaveExactElements(named("asked", "", 3)))
			Expect(store.NamedCheckpoints(ctx, second.Key(), nil, []string{"again-uid"})).To(BeEmpty())
		})

		It("forgets the name of an object that was deleted, and no other's of the same name", func(ctx SpecContext) {
			for _, gone := range []history.NamedCheckpoint{named("again", "old-uid", 1), named("asked", "asked-uid", 3)} {
				Expect(store.ForgetCheckpointName(ctx, first.Key(), gone)).To(Succeed())
			}
			Expect(store.ForgetCheckpointName(ctx, history.Key{Namespace: "elsewhere", UID: "first-uid"}, named("again", "again-uid", 2))).To(MatchError(history.ErrNotFound))
			Expect(store.Adopt(ctx, second, "first-uid")).To(Succeed())
			Expect(store.NamedCheckpoints(ctx, second.Key(), names, nil)).To(HaveExactElements(named("again", "", 2)))

			By("deleting the object that stands for it in its turn")
			Expect(store.ForgetCheckpointName(ctx, second.Key(), named("again", "again-uid", 2))).To(Succeed())
			Expect(store.ClaimCheckpoint(ctx, second.Key(), "again", "new-uid")).To(BeEquivalentTo(2), "that of the former task was deleted with it")
			Expect(store.ForgetCheckpointName(ctx, second.Key(), named("again", "new-uid", 2))).To(Succeed())
			Expect(store.ClaimCheckpoint(ctx, second.Key(), "again", "newer-uid")).Error().To(MatchError(history.ErrNotFound))
		})

		It("keeps the newest thousand, as part of what the task has stored", func(ctx SpecContext) {
			stored := func() (bytes int64) {
				GinkgoHelper()
				Expect(connect(GinkgoTB(), dsn).QueryRow(ctx, "SELECT stored_bytes FROM tasks WHERE uid = 'first-uid'").Scan(&bytes)).To(Succeed())
				return bytes
			}
			before := stored()
			_, err := connect(GinkgoTB(), dsn).Exec(ctx, `INSERT INTO checkpoint_names (task_id, name, number, object_uid, named_at)
				SELECT t.id, 'older-' || n, 1, 'uid-' || n, now() - interval '1 hour' FROM tasks t, generate_series(1, 1500) n WHERE t.uid = 'first-uid'`)
			Expect(err).NotTo(HaveOccurred())
			Expect(store.NameCheckpoint(ctx, first.Key(), named("newest", "newest-uid", 1))).To(Succeed())
			Expect(count(GinkgoTB(), dsn, "checkpoint_names")).To(Equal(1000))
			Expect(stored()).To(BeNumerically("<", before), "rows that were never counted went")

			full := stored()
			Expect(store.NameCheckpoint(ctx, first.Key(), named(strings.Repeat("n", 253), "long-uid", 1))).To(Succeed())
			Expect(stored() - full).To(BeNumerically("~", 253-len("older-1500"), 10))
			Expect(store.Adopt(ctx, second, "first-uid")).To(Succeed())
			Expect(count(GinkgoTB(), dsn, "checkpoint_names")).To(Equal(1000))
			Expect(store.ClaimCheckpoint(ctx, second.Key(), "newest", "uid")).To(BeEquivalentTo(1))
		})

		It("knows none in another namespace, nor of a task without a history, and none when it is deleted", func(ctx SpecContext) {
			elsewhere := history.Key{Namespace: "elsewhere", UID: "first-uid"}
			Expect(store.NameCheckpoint(ctx, elsewhere, named("a", "uid", 1))).To(MatchError(history.ErrNotFound))
			Expect(store.NameCheckpoint(ctx, history.Key{Namespace: "team", UID: "none"}, named("a", "uid", 1))).To(MatchError(history.ErrNotFound))
			Expect(store.NamedCheckpoints(ctx, elsewhere, names, []string{"again-uid"})).To(BeEmpty())
			Expect(store.ClaimCheckpoint(ctx, elsewhere, "again", "again-uid")).Error().To(MatchError(history.ErrNotFound))
			Expect(count(GinkgoTB(), dsn, "checkpoint_names")).To(Equal(2))
			Expect(store.DeleteTask(ctx, "first-uid")).Error().NotTo(HaveOccurred())
			Expect(count(GinkgoTB(), dsn, "checkpoint_names")).To(BeZero())
		})
	})
})
