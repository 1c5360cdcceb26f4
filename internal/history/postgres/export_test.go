package postgres_test

import (
	"context"
	"encoding/json"
	"errors"
	"iter"
	"slices"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/clew-dev/clew/internal/budget"
	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/history/postgres"
)

func export(t testing.TB, store *postgres.Store, task history.Task) []string {
	GinkgoHelper()
	var lines []string
	Expect(store.Export(t.Context(), task.Namespace, task.Name, task.UID, func(line history.ExportLine) error {
		encoded, err := json.Marshal(line)
		lines = append(lines, string(encoded))
		return err
	})).To(Succeed())
	return lines
}

func parsed(lines []string) iter.Seq2[history.ExportLine, error] {
	return func(yield func(history.ExportLine, error) bool) {
		for _, text := range lines {
			var line history.ExportLine
			err := json.Unmarshal([]byte(text), &line)
			if !yield(line, err) {
				return
			}
		}
	}
}

// eventful is a fork with everything that a history can contain.
func eventful(t testing.TB, store *postgres.Store) *writer {
	GinkgoHelper()
	source := begin(t, store, taskNamed("source"), 1)
	source.append(user("1"), usage(1, 2, 3), checkpoint(1), agent("left"))
	source.move("op", 1)
	source.append(agent(long(20<<10, "inherited")), checkpoint(2), agent("own"))
	w := source.fork("a", 2)
	beginWith(t, w, 2)
	huge := []string{long(250<<10, "h1"), long(250<<10, "h2"), long(250<<10, "h3"), long(250<<10, "h4"), long(250<<10, "h5")}
	w.append(user("Do it"), call("x"), piece("\x00\xff no text"), piece(huge[0]), piece(huge[1]))
	w.append(piece(huge[2]), piece(huge[3]), piece(huge[4]), cutResult("x", huge...),
		history.Record{Usage: &history.Usage{InputTokens: 5, OutputTokens: 6, CostMicroUSD: 7, CachedInputTokens: 1, Model: "sonnet"}},
		history.Record{Checkpoint: &history.Checkpoint{
			Number: 1, Trigger: "BeforeRiskyTool", Time: time.Now(), Message: "msg", Commit: strings.Repeat("ab", 20), Tree: "t", Parent: "p",
			Base: "b", StateCommit: "s", FilesChanged: 1, LinesAdded: 2, LinesRemoved: 3, GitHead: "h", GitBranch: "main", DirtyFiles: []string{"d"},
			DirtyFileCount: 1, Files: 5, Bytes: 6, Skipped: []history.SkippedFile{{Path: "big"}}, SkippedCount: 1, RequestedByName: "n", RequestedByUID: "u",
			RiskyTool: &history.RiskyTool{Name: "Bash"}, Session: &history.AgentSession{ID: "id"}, Changes: []history.FileChange{{Path: "f", Action: "Added"}},
		}},
		history.Record{Event: &history.DaemonEvent{Reason: "CheckpointRefused", Message: "full", Details: map[string]string{"checkpoint": "1", "k": "v"}}},
		user(long(50<<10, "cut")), cutResult("y", "a piece that never came, and more"), call("open"))
	w.moveTo("op", history.MoveOperation{Position: 3})
	w.append(agent("another way"), checkpoint(2), interrupted("z"), agent("at the end"))
	Expect(store.RecordEvents(t.Context(), []history.Event{
		transition(w.task, 1, "TaskStarted", time.Now().AddDate(-3, 0, 0)), transition(w.task, 2, "TaskCompleted", time.Now()),
	})).To(Succeed())
	return w
}

var _ = Describe("An export of a history", func() {
	It("is the same by name and by UID", func() {
		store := open(GinkgoTB())
		w := eventful(GinkgoTB(), store)
		Expect(export(GinkgoTB(), store, history.Task{Namespace: "team", Name: "a"})).To(BeComparableTo(export(GinkgoTB(), store, w.task)))
	})

	It("contains full texts, and nothing of the source alone", func() {
		store := open(GinkgoTB())
		w := eventful(GinkgoTB(), store)
		whole := strings.Join(export(GinkgoTB(), store, w.task), "\n")
		for _, text := range []string{long(20<<10, "inherited"), long(50<<10, "cut"), long(250<<10, "h3"), "Do it", "another way"} {
			encoded, err := json.Marshal(text)
			Expect(err).NotTo(HaveOccurred())
			Expect(strings.Contains(whole, strings.Trim(string(encoded), `"`))).To(BeTrue(), "%.20q… is completely in the export", text)
		}
		for _, text := range []string{"left", "own"} {
			Expect(strings.Contains(whole, `"`+text+`"`)).To(BeFalse(), "%q is of the source alone", text)
		}
	})

	DescribeTable("is not found", func(ctx SpecContext, task history.Task) {
		store := open(GinkgoTB())
		begin(GinkgoTB(), store, taskNamed("a"), 1)
		Expect(store.Export(ctx, task.Namespace, task.Name, task.UID, nil)).To(MatchError(history.ErrNotFound))
	},
		Entry("for an unknown name", history.Task{Namespace: "team", Name: "b"}),
		Entry("for a name of another namespace", history.Task{Namespace: "elsewhere", Name: "a"}),
		Entry("for a UID of another namespace", history.Task{Namespace: "elsewhere", UID: taskNamed("a").UID}),
		Entry("for a UID with another's name", history.Task{Namespace: "team", Name: "b", UID: taskNamed("a").UID}),
	)
})

var _ = Describe("An import of an export", func() {
	var store *postgres.Store
	var w *writer
	var lines []string
	BeforeEach(func() {
		store = open(GinkgoTB())
		w = eventful(GinkgoTB(), store)
		lines = export(GinkgoTB(), store, w.task)
	})

	It("is refused while the task exists", func(ctx SpecContext) {
		Expect(importing(ctx, store, lines)).To(MatchError(history.ErrExists))
	})

	DescribeTable("gives an equal export, and a history that continues where it was", func(ctx SpecContext, target func() *postgres.Store) {
		state, texts := w.state(), w.texts()
		state.ActiveAt, state.WorkedAt, state.AgentSince, state.AgentAttempt = time.Time{}, time.Time{}, time.Time{}, 0 // an imported history has no active agent
		// What it cost was spent elsewhere, or is counted already.
		state.Spent = budget.Amounts{Checkpoints: state.CheckpointCount}
		remove(GinkgoTB(), w)
		into := target()

		Expect(into.Import(ctx, "team", "bob", parsed(lines))).To(Equal(w.task))
		Expect(export(GinkgoTB(), into, w.task)).To(BeComparableTo(lines))
		again := begin(GinkgoTB(), into, w.task, 1)
		Expect(again.state()).To(BeComparableTo(state, cmpopts.EquateEmpty()))
		Expect(again.texts()).To(BeComparableTo(texts))

		again.append(agent("goes on"))
		Expect(again.moveTo("op2", history.MoveOperation{Position: 2})).To(HaveField("Position", int64(2)))
		index(GinkgoTB(), into)
		Expect(search(GinkgoTB(), into, history.SearchQuery{Text: "another way", Task: "a"})).To(HaveLen(1))
		Expect(importing(ctx, into, lines)).To(MatchError(history.ErrExists), "the second time")
	},
		Entry("in the same database, after a deletion", func() *postgres.Store { return store }),
		Entry("in another database", func() *postgres.Store { return open(GinkgoTB()) }),
	)

	It("may go into another namespace", func(ctx SpecContext) {
		other := open(GinkgoTB())
		task, err := other.Import(ctx, "elsewhere", "bob", parsed(lines))
		Expect(err).NotTo(HaveOccurred())
		Expect(task.Namespace).To(Equal("elsewhere"))
		Expect(other.Snapshot(ctx, task.Key(), history.SnapshotQuery{})).Error().NotTo(HaveOccurred())
	})
})

var _ = Describe("An export that is incomplete or was changed", Ordered, ContinueOnFailure, func() {
	var dsn string
	var empty *postgres.Store
	var lines []string
	BeforeAll(func() {
		dsn = pg.Database(GinkgoTB())
		empty = openAt(GinkgoTB(), dsn)
		store := open(GinkgoTB())
		lines = export(GinkgoTB(), store, eventful(GinkgoTB(), store).task)
	})
	AfterEach(func() {
		for _, table := range []string{"tasks", "task_summaries", "branches", "messages", "pieces", "events"} {
			Expect(count(GinkgoTB(), dsn, table)).To(BeZero(), "rows in %s, where nothing may be left behind", table)
		}
	})

	without := func(lines []string, n int) []string { return slices.Delete(slices.Clone(lines), n, n+1) }
	replaced := func(old, with string) func([]string) []string {
		return func(lines []string) []string {
			GinkgoHelper()
			whole := strings.Join(lines, "\n")
			Expect(strings.Contains(whole, old)).To(BeTrue(), "%q is in the export", old)
			return strings.Split(strings.ReplaceAll(whole, old, with), "\n")
		}
	}

	DescribeTable("cannot be imported", func(ctx SpecContext, change func(lines []string) []string, want error) {
		Expect(importing(ctx, empty, change(lines))).To(MatchError(want))
	},
		Entry("without any line", func([]string) []string { return nil }, history.ErrInvalid),
		Entry("without its end", func(lines []string) []string { return lines[:len(lines)-1] }, history.ErrInvalid),
		Entry("without its beginning", func(lines []string) []string { return lines[1:] }, history.ErrInvalid),
		Entry("without a branch", func(lines []string) []string { return without(lines, 1) }, history.ErrInvalid),
		Entry("without an event", func(lines []string) []string { return without(lines, len(lines)-2) }, history.ErrInvalid),
		Entry("with lines after the end", func(lines []string) []string { return append(slices.Clone(lines), lines[0]) }, history.ErrInvalid),
		Entry("with two tasks", func(lines []string) []string { return append([]string{lines[0]}, lines...) }, history.ErrInvalid),
		Entry("in another format", replaced("clew-history/1", "clew-history/9"), history.ErrInvalid),
		Entry("with a line of an unknown kind", replaced(`{"kind":"operation"`, `{"kind":"poem"`), history.ErrInvalid),
		Entry("with a value of another type", replaced(`"position":2,`, `"position":"two",`), history.ErrInvalid),
		Entry("with another text", replaced(`another way`, `another word`), history.ErrCorrupted),
		Entry("with another piece", replaced(`h3 line 7 `, `h3 line 8 `), history.ErrCorrupted),
	)

	It("is refused at the line at which its reader fails", func(ctx SpecContext) {
		failing := func(yield func(history.ExportLine, error) bool) {
			for line, err := range parsed(lines[:3]) {
				if !yield(line, err) {
					return
				}
			}
			yield(history.ExportLine{}, errors.New("the reader broke"))
		}
		_, err := empty.Import(ctx, "team", "bob", failing)
		Expect(err).To(MatchError(ContainSubstring("line 4: the reader broke")))
	})
})

// importing imports lines into the namespace of the task that was exported.
func importing(ctx context.Context, store *postgres.Store, lines []string) error {
	_, err := store.Import(ctx, "team", "bob", parsed(lines))
	return err
}
