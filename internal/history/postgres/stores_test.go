package postgres_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/history/postgres"
	"github.com/clew-dev/clew/internal/testing/cases"
)

func moveRecord(op history.MoveOperation) history.Record { return history.Record{Move: &op} }

var _ = Describe("Stores that were put back", func() {
	var (
		store *postgres.Store
		w     *writer
	)
	BeforeEach(func() {
		t := GinkgoTB()
		store = open(t)
		w = begin(t, store, taskNamed("a"), 1)
	})

	It("a move is carried out among the records", func(ctx SpecContext) {
		batch := w.number(user("1"), agent("2"), checkpoint(1), agent("3"), moveRecord(history.MoveOperation{ID: "Rewind/r", Checkpoint: 1}), agent("4"),
			moveRecord(history.MoveOperation{ID: "Resume/r", KeepPosition: true}), user("5"))
		for range 2 {
			Expect(store.Append(ctx, w.task, w.attempt, batch)).To(BeEquivalentTo(8), "the last sequence stored")
			Expect(w.texts()).To(HaveExactElements("U 1", "A 2", "A 4", "U 5"))
		}
		Expect(w.state().Moves).To(HaveExactElements(
			history.MoveResult{ID: "Rewind/r", Position: history.Position{Branch: "branch-2", Position: 2}},
			history.MoveResult{ID: "Resume/r", Position: history.Position{Branch: "branch-2", Position: 3}},
		))
	})

	It("a move that leads nowhere is refused and may be requested again", func() {
		nowhere := history.MoveOperation{ID: "Rewind/r", Checkpoint: 7}
		w.append(user("1"), moveRecord(nowhere), agent("2"))
		state := w.state()
		Expect(state.CompletedOperations).To(BeEmpty())
		Expect(state.Moves).To(ConsistOf(And(HaveField("Refused", Not(BeEmpty())), HaveField("Position.Position", int64(1)))))
		Expect(w.texts()).To(HaveExactElements("U 1", "A 2"))
		Expect(reasonsOf(GinkgoTB(), w)).To(ContainSubstring("ConversationMoveRefused"), "the timeline")

		By("requesting it again once its checkpoint exists")
		w.append(checkpoint(7), agent("3"), moveRecord(nowhere))
		state = w.state()
		Expect(state.CompletedOperations).To(HaveLen(1))
		Expect(state.Moves).To(ConsistOf(HaveField("Refused", "")))
		Expect(w.texts()).To(HaveExactElements("U 1", "A 2"))
	})

	It("a gap is counted and shown", func(ctx SpecContext) {
		w.append(user("1"))
		gap := w.number(history.Record{Gap: &history.Gap{Through: 30, Reason: v1alpha1.ReasonHistoryStoreWentBack}})
		for range 2 {
			Expect(store.Append(ctx, w.task, w.attempt, gap)).To(BeEquivalentTo(30), "the last sequence stored")
		}
		w.last = 30
		w.append(agent("31"))
		Expect(w.texts()).To(HaveExactElements("U 1", ContainSubstring("29 records (2 to 30) were lost"), "A 31"))
		state := w.state()
		Expect(state.LostRecords).To(BeEquivalentTo(29))
		Expect(state.LastSequence).To(BeEquivalentTo(31))
		Expect(reasonsOf(GinkgoTB(), w)).To(ContainSubstring("HistoryGap"), "the timeline")
	})

	It("another record with the same sequence is refused", func(ctx SpecContext) {
		stored := w.number(user("1"), agent("2"))
		stored[0].ID, stored[1].ID = 1<<63|1, 1<<63|2
		Expect(store.Append(ctx, w.task, 1, stored)).Error().NotTo(HaveOccurred())
		Expect(w.state().LastRecordID).To(Equal(uint64(1<<63 | 2)))
		Expect(store.Append(ctx, w.task, 1, stored)).Error().NotTo(HaveOccurred(), "the same records again")
		w.last = 1
		other := w.number(agent("another"), agent("3"))
		other[0].ID = 1<<63 | 3
		Expect(store.Append(ctx, w.task, 1, other)).Error().To(MatchError(history.ErrForeign))
		Expect(w.texts()).To(HaveExactElements("U 1", "A 2"))
	})

	// The second message's clock was behind.
	It("a time is resolved across clocks", func(ctx SpecContext) {
		start := time.Now().Add(-30 * time.Minute)
		minutes := []int{0, 10, -3, 14}
		for _, at := range minutes {
			records := w.number(agent(fmt.Sprint(at)))
			records[0].Time = start.Add(time.Duration(at) * time.Minute)
			Expect(store.Append(ctx, w.task, w.attempt, records)).Error().NotTo(HaveOccurred())
		}
		for at, want := range map[int]int64{-1: 0, 1: 1, 11: 3, 20: 4} {
			got := w.resolve(history.PositionQuery{Time: start.Add(time.Duration(at) * time.Minute)})
			Expect(got.Position.Position).To(Equal(want), "the message at minute %d", at)
		}
	})

	// Sequences are assigned again after the cluster's objects were restored from an
	// older copy.
	It("transitions of a restored status are recorded", func(ctx SpecContext) {
		transition := func(n int64, at time.Time, reason string) history.Event {
			e := event(w.task, n, at)
			e.Transition, e.Reason = n, reason
			return e
		}
		hour := time.Now().Add(-time.Hour)
		before := []history.Event{transition(1, hour, "TaskStarted"), transition(2, hour, "TaskCompleted")}
		again := transition(2, time.Now(), "TaskRewound")
		for _, events := range [][]history.Event{before, {again}, {again}, before} {
			Expect(store.RecordEvents(ctx, events)).To(Succeed())
		}
		Expect(reasonsOf(GinkgoTB(), w)).To(Or(Equal("TaskRewound TaskCompleted TaskStarted"), Equal("TaskRewound TaskStarted TaskCompleted")))
		Expect(store.RecordedTransitions(ctx, w.task.Namespace, w.task.UID)).To(BeEquivalentTo(2))
	})

	// An older copy lacks some transitions, and later ones are recorded before anybody
	// notices.
	It("transitions count as recorded up to the first that is missing", func(ctx SpecContext) {
		record := func(oldest int64, numbers ...int64) int64 {
			var events []history.Event
			for _, n := range numbers {
				e := event(w.task, n, time.Now().Add(time.Duration(n)*time.Second-time.Hour))
				e.Transition, e.Oldest = n, n == oldest
				events = append(events, e)
			}
			Expect(store.RecordEvents(ctx, events)).To(Succeed())
			through, err := store.RecordedTransitions(ctx, w.task.Namespace, w.task.UID)
			Expect(err).NotTo(HaveOccurred())
			return through
		}
		Expect(record(0, 3)).To(BeEquivalentTo(0))
		Expect(record(0, 1, 2)).To(BeEquivalentTo(2))
		Expect(record(0, 6, 7)).To(BeEquivalentTo(2))
		Expect(record(0, 3, 4, 5, 6, 7)).To(BeEquivalentTo(7))
		Expect(record(0, 5)).To(BeEquivalentTo(7))
		Expect(record(20, 20, 21)).To(BeEquivalentTo(21), "nobody has those before number 20 any more")
	})

	// An import chooses its UID.
	It("a deletion in another namespace says nothing about a task", func(ctx SpecContext) {
		t := GinkgoTB()
		dsn := pg.Database(t)
		store := openAt(t, dsn)
		deleted := func(namespace string) {
			GinkgoHelper()
			Expect(connect(t, dsn).Exec(ctx, "INSERT INTO deleted_tasks (uid, namespace) VALUES ($1, $2)", "uid", namespace)).
				Error().NotTo(HaveOccurred())
		}
		deleted("other")
		Expect(store.RecordedTransitions(ctx, "team", "uid")).To(BeZero())
		deleted("team")
		Expect(store.RecordedTransitions(ctx, "team", "uid")).To(BeEquivalentTo(math.MaxInt64), "nothing is missing")
	})

	// A writer that still has the records sends them again, including moves, and no trace
	// of the older copy remains.
	It("a store that was put back at random recovers what it lost", Label("slow"), func() {
		t := GinkgoTB()
		for seed := range uint64(3) {
			random := rand.New(rand.NewPCG(seed, 11))
			dsn := pg.Database(t)
			store := openAt(t, dsn)
			w := begin(t, store, taskNamed("a"), 1)
			var sent []history.Record
			checkpoints := int64(0)
			step := func() {
				var r history.Record
				switch n := random.IntN(6); {
				case n == 0 || checkpoints == 0:
					checkpoints++
					r = checkpoint(checkpoints)
				case n == 1:
					r = moveRecord(history.MoveOperation{ID: fmt.Sprint("Rewind/", w.last), Checkpoint: 1 + random.Int64N(checkpoints), Reason: "rewind"})
				default:
					r = agent(fmt.Sprint(w.last))
				}
				w.append(r)
				r.Sequence, r.Attempt, r.Time = w.last, 1, time.Now()
				sent = append(sent, r)
			}
			for range 10 + random.IntN(10) {
				step()
			}
			store.Close()
			older := pg.Copy(t, dsn)
			w.store = openAt(t, dsn)
			for range 10 {
				step()
			}
			want, state := w.texts(), w.state()
			w.store = openAt(t, older)
			w.sendAgain(sent)
			Expect(w.texts()).To(BeComparableTo(want), "the conversation with seed %d", seed)
			Expect(w.state().Moves).To(BeComparableTo(state.Moves), "the moves with seed %d", seed)
		}
	})

	// The store has lost records of which the volume keeps only the newest, with moves
	// among them.
	Describe("a move leads to the same message behind a gap", func() {
		for name, c := range cases.Sorted(map[string]struct {
			move history.MoveOperation
			want []string
		}{
			"a message":                              {history.MoveOperation{Position: 9, AfterSequence: 9}, []string{"A 1", "A 2", "gap", "A 8", "A 9", "A after"}},
			"a message that is lost":                 {history.MoveOperation{Position: 5, AfterSequence: 5}, []string{"A 1", "A 2", "gap", "A after"}},
			"a message before the loss":              {history.MoveOperation{Position: 1, AfterSequence: 1}, []string{"A 1", "A after"}},
			"a checkpoint that is unknown":           {history.MoveOperation{Checkpoint: 7, AfterSequence: 6}, []string{"A 1", "A 2", "gap", "A after"}},
			"a checkpoint of a history that is gone": {history.MoveOperation{Checkpoint: 7, AfterSequence: 13}, []string{"A 1", "A 2", "gap", "A 8", "A 9", "A 10", "A 11", "A 12", "A after"}},
			"a checkpoint of no known place":         {history.MoveOperation{Checkpoint: 7}, []string{"A 1", "A 2", "gap", "A 8", "A 9", "A 10", "A 11", "A 12", "A after"}},
		}) {
			It(name, func(ctx SpecContext) {
				w.append(agent("1"), agent("2"))
				c.move.ID = "Rewind/r"
				records := w.number(history.Record{Gap: &history.Gap{Through: 7, Reason: v1alpha1.ReasonHistoryStoreWentBack}})
				w.last = 7
				records = append(records, w.number(agent("8"), agent("9"), agent("10"), agent("11"), agent("12"), moveRecord(c.move), agent("after"))...)
				Expect(store.Append(ctx, w.task, 1, records)).Error().NotTo(HaveOccurred())
				got := w.texts()
				for i, text := range got {
					if strings.Contains(text, "5 records (3 to 7) were lost") {
						got[i] = "gap"
					}
				}
				Expect(got).To(Equal(c.want))
			})
		}
	})

	// The result of a call may be among the lost records; it must not turn everything
	// that follows into one turn, into which nobody could go back.
	It("a loss ends the turn", func() {
		w.append(agent("1"), call("x"), history.Record{Gap: &history.Gap{Through: 3, Reason: v1alpha1.ReasonHistoryStoreWentBack}}, agent("4"), agent("5"))
		for message, record := range map[int64]int64{3: 3, 4: 4, 2: 1} {
			found := w.resolve(history.PositionQuery{Message: message})
			Expect(found.AfterSequence).To(Equal(record), "message %d", message)
		}
	})

	// The records around it may be lost.
	It("a checkpoint that is sent again is placed where it was taken", func(ctx SpecContext) {
		sentAgain := func(number, after int64) history.Record {
			r := checkpoint(number)
			r.Checkpoint.AfterSequence = after
			return r
		}
		w.append(agent("1"), usage(1, 2, 3), agent("3"))
		w.append(history.Record{Gap: &history.Gap{Through: 4, Reason: v1alpha1.ReasonHistoryStoreWentBack}}, agent("5"),
			sentAgain(1, 1), sentAgain(2, 3), sentAgain(3, 4), sentAgain(4, 0), sentAgain(5, 99), agent("11"))
		for number, position := range map[int64]int64{1: 1, 2: 2, 3: 3, 4: 4, 5: 4} {
			c, err := store.Checkpoint(ctx, w.task.Key(), number)
			Expect(err).NotTo(HaveOccurred())
			Expect(c.Position.Position).To(Equal(position), "checkpoint %d", number)
			if number == 1 {
				Expect(c.Totals.InputTokens).To(BeZero(), "it was taken before the usage was counted")
			}
		}

		By("going back to the first")
		w.move("back", 1)
		Expect(w.texts()).To(HaveExactElements("A 1"))
	})

	// All records before the prompt are lost, and nobody says it again.
	Describe("a checkpoint of a lost history keeps the prompt", func() {
		for name, c := range cases.Sorted(map[string]struct {
			fork bool
			own  []history.Record
			want []string
		}{
			"of a task":                       {own: []history.Record{user("Do it."), agent("3")}, want: []string{"U Do it."}},
			"of a fork":                       {fork: true, own: []history.Record{user("Do it."), agent("3")}, want: []string{"U 1", "A 2", "U Do it."}},
			"of a fork that inherited it":     {fork: true, own: []history.Record{agent("3")}, want: []string{"U 1", "A 2"}},
			"of a fork that has said nothing": {fork: true, want: []string{"U 1", "A 2"}},
		}) {
			It(name, func(ctx SpecContext) {
				t := GinkgoTB()
				src := begin(t, store, taskNamed("src"), 1)
				src.append(user("1"), agent("2"), checkpoint(1))
				w := &writer{t: t, store: store, task: taskNamed("b"), attempt: 1}
				var source *history.Source
				if c.fork {
					source = &history.Source{TaskUID: src.task.UID, Checkpoint: 1, IncludeConversation: true}
				}
				Expect(store.Begin(ctx, w.task, 1, source, history.BeginOptions{})).Error().NotTo(HaveOccurred())
				gap := w.number(history.Record{Gap: &history.Gap{Through: 15, Reason: v1alpha1.ReasonHistoryStoreWentBack}})
				Expect(store.Append(ctx, w.task, 1, gap)).To(BeEquivalentTo(15), "the last sequence stored")
				w.last = 15
				again := checkpoint(4)
				again.Checkpoint.AfterSequence = 13
				w.append(moveRecord(history.MoveOperation{ID: "Restore/2"}))
				w.append(append(c.own, again)...)
				w.append(moveRecord(history.MoveOperation{ID: "Rewind/r", Checkpoint: 4}))
				Expect(w.texts()).To(Equal(c.want))
			})
		}
	})

	// The fork inherited its prompt, and was resumed with another one.
	Describe("a checkpoint from before a fork's first message stays there", func() {
		for name, before := range cases.Sorted(map[string][]history.Record{
			"at once": {usage(1, 2, 3)},
			"after it was rewound to where it began": {checkpoint(2), agent("other"), moveRecord(history.MoveOperation{ID: "Rewind/first", Checkpoint: 2}),
				moveRecord(history.MoveOperation{ID: "Rewind/first/done", KeepPosition: true})},
			"after it started over, its prompt being inherited": {usage(1, 2, 3), agent("other"), moveRecord(history.MoveOperation{ID: "Restore/2"})},
		}) {
			It(name, func(ctx SpecContext) {
				t := GinkgoTB()
				src := begin(t, store, taskNamed("src"), 1)
				src.append(user("1"), agent("2"), checkpoint(1))
				w := &writer{t: t, store: store, task: taskNamed("b"), attempt: 1}
				source := &history.Source{TaskUID: src.task.UID, Checkpoint: 1, IncludeConversation: true}
				Expect(store.Begin(ctx, w.task, 1, source, history.BeginOptions{})).Error().NotTo(HaveOccurred())
				again := checkpoint(4)
				again.Checkpoint.AfterSequence = 1
				w.append(before...)
				w.append(user("Now do something else."), agent("3"), again)
				w.append(moveRecord(history.MoveOperation{ID: "Rewind/r", Checkpoint: 4}))
				Expect(w.texts()).To(HaveExactElements("U 1", "A 2"))
			})
		}
	})
})

// reasonsOf returns the reasons of the task's events, the newest first.
func reasonsOf(t testing.TB, w *writer) string {
	GinkgoHelper()
	page, err := w.store.Timeline(t.Context(), history.TimelineQuery{Namespace: w.task.Namespace, UID: w.task.UID, Limit: 100})
	Expect(err).NotTo(HaveOccurred())
	var reasons []string
	for _, e := range page.Events {
		reasons = append(reasons, e.Reason)
	}
	return strings.Join(reasons, " ")
}

// sendAgain sends records again from the sequence that the store reports.
func (w *writer) sendAgain(records []history.Record) {
	GinkgoHelper()
	state, err := w.store.Begin(w.t.Context(), w.task, w.attempt, nil, history.BeginOptions{})
	Expect(err).NotTo(HaveOccurred())
	Expect(w.store.Append(w.t.Context(), w.task, w.attempt, records[state.LastSequence:])).Error().NotTo(HaveOccurred())
}
