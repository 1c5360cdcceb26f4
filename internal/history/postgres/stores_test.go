package postgres_test

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/google/go-cmp/cmp"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/testing/cases"
)

func moveRecord(op history.MoveOperation) history.Record { return history.Record{Move: &op} }

var _ = Describe("Stores that were put back", func() {
	It("a move is carried out among the records", func() {
		t := GinkgoTB()
		w := begin(t, open(t), taskNamed("a"), 1)
		batch := w.number(user("1"), agent("2"), checkpoint(1), agent("3"), moveRecord(history.MoveOperation{ID: "Rewind/r", Checkpoint: 1}), agent("4"),
			moveRecord(history.MoveOperation{ID: "Resume/r", KeepPosition: true}), user("5"))
		for range 2 {
			if last, err := w.store.Append(t.Context(), w.task, w.attempt, batch); err != nil || last != 8 {
				t.Fatalf("append stored up to %d, %v; want 8", last, err)
			}
			if d := cmp.Diff([]string{"U 1", "A 2", "A 4", "U 5"}, w.texts()); d != "" {
				t.Errorf("conversation (-want +got):\n%s", d)
			}
		}
		want := []history.MoveResult{
			{ID: "Rewind/r", Position: history.Position{Branch: "branch-2", Position: 2}},
			{ID: "Resume/r", Position: history.Position{Branch: "branch-2", Position: 3}},
		}
		if d := cmp.Diff(want, w.state().Moves); d != "" {
			t.Errorf("moves (-want +got):\n%s", d)
		}
	})

	It("a move that leads nowhere is refused and may be requested again", func() {
		t := GinkgoTB()
		w := begin(t, open(t), taskNamed("a"), 1)
		nowhere := history.MoveOperation{ID: "Rewind/r", Checkpoint: 7}
		w.append(user("1"), moveRecord(nowhere), agent("2"))
		state := w.state()
		Expect(state.CompletedOperations).To(BeEmpty())
		Expect(state.Moves).To(ConsistOf(And(HaveField("Refused", Not(BeEmpty())), HaveField("Position.Position", int64(1)))))
		if d := cmp.Diff([]string{"U 1", "A 2"}, w.texts()); d != "" {
			t.Errorf("conversation (-want +got):\n%s", d)
		}
		if got := reasonsOf(t, w); !strings.Contains(got, "ConversationMoveRefused") {
			t.Errorf("timeline %s", got)
		}
		w.append(checkpoint(7), agent("3"), moveRecord(nowhere))
		state = w.state()
		Expect(state.CompletedOperations).To(HaveLen(1))
		Expect(state.Moves).To(ConsistOf(HaveField("Refused", "")))
		if d := cmp.Diff([]string{"U 1", "A 2"}, w.texts()); d != "" {
			t.Errorf("conversation (-want +got):\n%s", d)
		}
	})

	It("a gap is counted and shown", func() {
		t := GinkgoTB()
		w := begin(t, open(t), taskNamed("a"), 1)
		w.append(user("1"))
		gap := w.number(history.Record{Gap: &history.Gap{Through: 30, Reason: v1alpha1.ReasonHistoryStoreWentBack}})
		for range 2 {
			if last, err := w.store.Append(t.Context(), w.task, w.attempt, gap); err != nil || last != 30 {
				t.Fatalf("append stored up to %d, %v; want 30", last, err)
			}
		}
		w.last = 30
		w.append(agent("31"))
		texts := w.texts()
		if len(texts) != 3 || !strings.Contains(texts[1], "29 records (2 to 30) were lost") {
			t.Fatalf("conversation %q, want the gap between two messages", texts)
		}
		if state := w.state(); state.LostRecords != 29 || state.LastSequence != 31 {
			t.Fatalf("%d lost, last %d", state.LostRecords, state.LastSequence)
		}
		if got := reasonsOf(t, w); !strings.Contains(got, "HistoryGap") {
			t.Errorf("timeline %s", got)
		}
	})

	It("another record with the same sequence is refused", func() {
		t := GinkgoTB()
		w := begin(t, open(t), taskNamed("a"), 1)
		stored := w.number(user("1"), agent("2"))
		stored[0].ID, stored[1].ID = 1<<63|1, 1<<63|2
		if _, err := w.store.Append(t.Context(), w.task, 1, stored); err != nil {
			t.Fatal(err)
		}
		if got := w.state().LastRecordID; got != 1<<63|2 {
			t.Fatalf("the last record is %x", got)
		}
		if _, err := w.store.Append(t.Context(), w.task, 1, stored); err != nil {
			t.Fatalf("the same record again: %v", err)
		}
		w.last = 1
		other := w.number(agent("another"), agent("3"))
		other[0].ID = 1<<63 | 3
		if _, err := w.store.Append(t.Context(), w.task, 1, other); !errors.Is(err, history.ErrForeign) {
			t.Fatalf("another: %v", err)
		}
		if d := cmp.Diff([]string{"U 1", "A 2"}, w.texts()); d != "" {
			t.Errorf("conversation (-want +got):\n%s", d)
		}
	})

	// The second message's clock was behind.
	It("a time is resolved across clocks", func() {
		t := GinkgoTB()
		w := begin(t, open(t), taskNamed("a"), 1)
		start := time.Now().Add(-30 * time.Minute)
		minutes := []int{0, 10, -3, 14}
		for _, at := range minutes {
			records := w.number(agent(fmt.Sprint(at)))
			records[0].Time = start.Add(time.Duration(at) * time.Minute)
			if _, err := w.store.Append(t.Context(), w.task, w.attempt, records); err != nil {
				t.Fatal(err)
			}
		}
		for at, want := range map[int]int64{-1: 0, 1: 1, 11: 3, 20: 4} {
			got := w.resolve(history.PositionQuery{Time: start.Add(time.Duration(at) * time.Minute)})
			if got.Position.Position != want {
				t.Errorf("minute %d is at message %d, want %d", at, got.Position.Position, want)
			}
		}
	})

	// Sequences are assigned again after the cluster's objects were restored from an
	// older copy.
	It("transitions of a restored status are recorded", func() {
		t := GinkgoTB()
		w := begin(t, open(t), taskNamed("a"), 1)
		transition := func(n int64, at time.Time, reason string) history.Event {
			e := event(w.task, n, at)
			e.Transition, e.Reason = n, reason
			return e
		}
		hour := time.Now().Add(-time.Hour)
		before := []history.Event{transition(1, hour, "TaskStarted"), transition(2, hour, "TaskCompleted")}
		again := transition(2, time.Now(), "TaskRewound")
		for _, events := range [][]history.Event{before, {again}, {again}, before} {
			if err := w.store.RecordEvents(t.Context(), events); err != nil {
				t.Fatal(err)
			}
		}
		if got := reasonsOf(t, w); got != "TaskRewound TaskCompleted TaskStarted" && got != "TaskRewound TaskStarted TaskCompleted" {
			t.Fatalf("timeline %s", got)
		}
		if n, err := w.store.RecordedTransitions(t.Context(), w.task.Namespace, w.task.UID); n != 2 || err != nil {
			t.Fatalf("%d recorded transitions, %v; want 2", n, err)
		}
	})

	// An older copy lacks some transitions, and later ones are recorded before anybody
	// notices.
	It("transitions count as recorded up to the first that is missing", func() {
		t := GinkgoTB()
		w := begin(t, open(t), taskNamed("a"), 1)
		record := func(oldest int64, numbers ...int64) int64 {
			var events []history.Event
			for _, n := range numbers {
				e := event(w.task, n, time.Now().Add(time.Duration(n)*time.Second-time.Hour))
				e.Transition, e.Oldest = n, n == oldest
				events = append(events, e)
			}
			Expect(w.store.RecordEvents(t.Context(), events)).To(Succeed())
			through, err := w.store.RecordedTransitions(t.Context(), w.task.Namespace, w.task.UID)
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
	It("a deletion in another namespace says nothing about a task", func() {
		t := GinkgoTB()
		dsn := pg.Database(t)
		store := openAt(t, dsn)
		deleted := func(namespace string) {
			_, err := connect(t, dsn).Exec(t.Context(), "INSERT INTO deleted_tasks (uid, namespace) VALUES ($1, $2)", "uid", namespace)
			Expect(err).NotTo(HaveOccurred())
		}
		recorded := func() int64 {
			through, err := store.RecordedTransitions(t.Context(), "team", "uid")
			Expect(err).NotTo(HaveOccurred())
			return through
		}
		deleted("other")
		Expect(recorded()).To(BeZero())
		deleted("team")
		Expect(recorded()).To(BeEquivalentTo(math.MaxInt64))
	})

	// A writer that still has the records sends them again, including moves, and no trace
	// of the older copy remains.
	It("a store that was put back at random recovers what it lost", func() {
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
			if d := cmp.Diff(want, w.texts()); d != "" {
				t.Errorf("seed %d: conversation (-want +got):\n%s", seed, d)
			}
			if d := cmp.Diff(state.Moves, w.state().Moves); d != "" {
				t.Errorf("seed %d: moves (-want +got):\n%s", seed, d)
			}
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
			It(name, func() {
				t := GinkgoTB()
				w := begin(t, open(t), taskNamed("a"), 1)
				w.append(agent("1"), agent("2"))
				c.move.ID = "Rewind/r"
				records := w.number(history.Record{Gap: &history.Gap{Through: 7, Reason: v1alpha1.ReasonHistoryStoreWentBack}})
				w.last = 7
				records = append(records, w.number(agent("8"), agent("9"), agent("10"), agent("11"), agent("12"), moveRecord(c.move), agent("after"))...)
				_, err := w.store.Append(t.Context(), w.task, 1, records)
				Expect(err).NotTo(HaveOccurred())
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
		t := GinkgoTB()
		w := begin(t, open(t), taskNamed("a"), 1)
		w.append(agent("1"), call("x"), history.Record{Gap: &history.Gap{Through: 3, Reason: v1alpha1.ReasonHistoryStoreWentBack}}, agent("4"), agent("5"))
		for message, record := range map[int64]int64{3: 3, 4: 4, 2: 1} {
			found := w.resolve(history.PositionQuery{Message: message})
			Expect(found.AfterSequence).To(Equal(record), "message %d", message)
		}
	})

	// The records around it may be lost.
	It("a checkpoint that is sent again is placed where it was taken", func() {
		t := GinkgoTB()
		sentAgain := func(number, after int64) history.Record {
			r := checkpoint(number)
			r.Checkpoint.AfterSequence = after
			return r
		}
		w := begin(t, open(t), taskNamed("a"), 1)
		w.append(agent("1"), usage(1, 2, 3), agent("3"))
		w.append(history.Record{Gap: &history.Gap{Through: 4, Reason: v1alpha1.ReasonHistoryStoreWentBack}}, agent("5"),
			sentAgain(1, 1), sentAgain(2, 3), sentAgain(3, 4), sentAgain(4, 0), sentAgain(5, 99), agent("11"))
		for number, position := range map[int64]int64{1: 1, 2: 2, 3: 3, 4: 4, 5: 4} {
			c, err := w.store.Checkpoint(t.Context(), w.task.Key(), number)
			Expect(err).NotTo(HaveOccurred())
			Expect(c.Position.Position).To(Equal(position), "checkpoint %d", number)
			if number == 1 {
				Expect(c.Totals.InputTokens).To(BeZero())
			}
		}
		w.move("back", 1)
		Expect(w.texts()).To(Equal([]string{"A 1"}))
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
			It(name, func() {
				t := GinkgoTB()
				store := open(t)
				src := begin(t, store, taskNamed("src"), 1)
				src.append(user("1"), agent("2"), checkpoint(1))
				w := &writer{t: t, store: store, task: taskNamed("a"), attempt: 1}
				var source *history.Source
				if c.fork {
					source = &history.Source{TaskUID: src.task.UID, Checkpoint: 1, IncludeConversation: true}
				}
				_, err := store.Begin(t.Context(), w.task, 1, source, history.BeginOptions{})
				Expect(err).NotTo(HaveOccurred())
				_, err = store.Append(t.Context(), w.task, 1, w.number(history.Record{Gap: &history.Gap{Through: 15, Reason: v1alpha1.ReasonHistoryStoreWentBack}}))
				Expect(err).NotTo(HaveOccurred())
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
			It(name, func() {
				t := GinkgoTB()
				store := open(t)
				src := begin(t, store, taskNamed("src"), 1)
				src.append(user("1"), agent("2"), checkpoint(1))
				w := &writer{t: t, store: store, task: taskNamed("a"), attempt: 1}
				_, err := store.Begin(t.Context(), w.task, 1, &history.Source{TaskUID: src.task.UID, Checkpoint: 1, IncludeConversation: true}, history.BeginOptions{})
				Expect(err).NotTo(HaveOccurred())
				again := checkpoint(4)
				again.Checkpoint.AfterSequence = 1
				w.append(before...)
				w.append(user("Now do something else."), agent("3"), again)
				w.append(moveRecord(history.MoveOperation{ID: "Rewind/r", Checkpoint: 4}))
				Expect(w.texts()).To(Equal([]string{"U 1", "A 2"}))
			})
		}
	})
})

func reasonsOf(t testing.TB, w *writer) string {
	t.Helper()
	page, err := w.store.Timeline(t.Context(), history.TimelineQuery{Namespace: w.task.Namespace, UID: w.task.UID, Limit: 100})
	if err != nil {
		t.Fatal(err)
	}
	var reasons []string
	for _, e := range page.Events {
		reasons = append(reasons, e.Reason)
	}
	return strings.Join(reasons, " ")
}

// sendAgain sends records again from the sequence that the store reports.
func (w *writer) sendAgain(records []history.Record) {
	w.t.Helper()
	state, err := w.store.Begin(w.t.Context(), w.task, w.attempt, nil, history.BeginOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
	if _, err := w.store.Append(w.t.Context(), w.task, w.attempt, records[state.LastSequence:]); err != nil {
		w.t.Fatal(err)
	}
}
