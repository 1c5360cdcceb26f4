package postgres_test

import (
	"encoding/hex"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr/testr"
	"github.com/onsi/gomega"

	"github.com/clew-dev/clew/internal/conversation"
	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/history/postgres"
)

// limited is a store of the same database with other limits.
func limited(t *testing.T, dsn string, limits postgres.Limits) *postgres.Store {
	t.Helper()
	store, err := postgres.OpenPool(t.Context(), dsn, testr.New(t), postgres.Pool{Connections: 2, Limits: limits})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(store.Close)
	return store
}

func noise(kibibytes int) history.Record { return agent(strings.Repeat("noise\n", kibibytes<<10/6)) }

func TestATaskHasItsLimit(t *testing.T) {
	g := gomega.NewWithT(t)
	dsn := pg.Database(t)
	w := begin(t, limited(t, dsn, postgres.Limits{TaskBytes: 64 << 10}), taskNamed("a"), 1)
	w.append(user("do it"), noise(30))
	flood := w.number(noise(60), checkpoint(1))
	_, err := w.store.Append(t.Context(), w.task, 1, flood)
	g.Expect(err).To(gomega.MatchError(history.ErrLimitReached))
	state := w.state()
	g.Expect(state.LastSequence).To(gomega.BeEquivalentTo(2), "what was acknowledged stands, and nothing after it")
	g.Expect(state.Problem.Reason).To(gomega.Equal("HistoryLimitReached"))
	g.Expect(state.Problem.Message).To(gomega.ContainSubstring("historyLimits.taskBytes in the values of Clew's chart, --task-history-bytes of its server): have it raised"))

	// The limit is raised in time: nothing is lost.
	raised := limited(t, dsn, postgres.Limits{TaskBytes: 1 << 20})
	last, err := raised.Append(t.Context(), w.task, 1, flood)
	g.Expect(err).NotTo(gomega.HaveOccurred())
	g.Expect(last).To(gomega.BeEquivalentTo(4))
	g.Expect(w.state().Problem).To(gomega.BeNil())
}

func TestOutputIsLeftOutWhenNobodyRaisesTheLimit(t *testing.T) {
	g := gomega.NewWithT(t)
	dsn := pg.Database(t)
	w := begin(t, limited(t, dsn, postgres.Limits{TaskBytes: 64 << 10, Grace: time.Nanosecond}), taskNamed("a"), 1)
	w.append(user("do it"), noise(60))
	waiting := w.number(noise(60))
	_, err := w.store.Append(t.Context(), w.task, 1, waiting)
	g.Expect(err).To(gomega.MatchError(history.ErrLimitReached))
	_, err = w.store.Append(t.Context(), w.task, 1, waiting)
	g.Expect(err).NotTo(gomega.HaveOccurred())
	for range 20 {
		w.append(noise(60), noise(60))
	}
	w.append(checkpoint(1))
	before := time.Now()
	w.append(noise(60))
	state := w.state()
	g.Expect(state.CheckpointCount).To(gomega.BeEquivalentTo(1))
	g.Expect(state.Problem.Message).To(gomega.ContainSubstring("left out"))
	g.Expect(state.LeftOutRecords).To(gomega.BeEquivalentTo(42))
	g.Expect(state.ActiveAt).To(gomega.BeTemporally("~", before, time.Minute), "an agent whose output is left out works all the same")
	g.Expect(state.ActiveAt).To(gomega.BeTemporally(">=", before.Truncate(time.Microsecond)))
	g.Expect(w.texts()).To(gomega.HaveLen(3), "one place tells where output is left out from")
	g.Expect(w.texts()[2]).To(gomega.ContainSubstring("Output is left out of the history from here on: the history of this task has reached its limit"))

	raised := limited(t, dsn, postgres.Limits{TaskBytes: 1 << 20, Grace: time.Nanosecond})
	_, err = raised.Append(t.Context(), w.task, 1, w.number(user("go on"), agent("well")))
	g.Expect(err).NotTo(gomega.HaveOccurred())
	texts := w.texts()
	g.Expect(texts).To(gomega.HaveLen(6))
	g.Expect(texts[3]).To(gomega.ContainSubstring("complete again from here on. So far the history lacks 42 records, "))
	g.Expect(texts[4]).To(gomega.ContainSubstring("go on"))
	g.Expect(w.state().LeftOutRecords).To(gomega.BeEquivalentTo(42))
	g.Expect(w.state().Problem).To(gomega.BeNil())
}

func TestANamespaceHasItsLimit(t *testing.T) {
	g := gomega.NewWithT(t)
	dsn := pg.Database(t)
	limits := postgres.Limits{NamespaceBytes: 100 << 10}
	for i, name := range []string{"a", "b"} {
		w := begin(t, limited(t, dsn, limits), taskNamed(name), 1)
		_, err := w.store.Append(t.Context(), w.task, 1, w.number(noise(60)))
		if i == 0 {
			g.Expect(err).NotTo(gomega.HaveOccurred())
		} else {
			g.Expect(err).To(gomega.MatchError(gomega.ContainSubstring("historyLimits.namespaceBytes in the values of Clew's chart, --namespace-history-bytes of its server)")))
		}
	}
	other := begin(t, limited(t, dsn, limits), history.Task{Namespace: "elsewhere", Name: "c", UID: "uid-c"}, 1)
	other.append(noise(60))
}

func TestAnImportCountsForItsNamespace(t *testing.T) {
	g := gomega.NewWithT(t)
	source := open(t)
	w := begin(t, source, taskNamed("a"), 1)
	w.append(noise(60))
	lines := export(t, source, w.task)
	dsn := pg.Database(t)
	_, err := limited(t, dsn, postgres.Limits{NamespaceBytes: 50 << 10}).Import(t.Context(), "team", "bob", parsed(lines))
	g.Expect(err).To(gomega.MatchError(history.ErrLimitReached))
	into := limited(t, dsn, postgres.Limits{NamespaceBytes: 100 << 10})
	_, err = into.Import(t.Context(), "team", "bob", parsed(lines))
	g.Expect(err).NotTo(gomega.HaveOccurred())
	again := begin(t, into, taskNamed("b"), 1)
	_, err = into.Append(t.Context(), again.task, 1, again.number(noise(60)))
	g.Expect(err).To(gomega.MatchError(history.ErrLimitReached))
}

// An agent, or whoever holds a task's token, says long things in whatever place of
// a record: the tables hold no more than the limit and what is beside it.
func TestNoKindOfRecordGoesBeyondTheLimit(t *testing.T) {
	const limit = 1 << 20
	long := func(n int) string { return strings.Repeat("long ", n/5) }
	random := rand.NewChaCha8([32]byte{})
	unlike := func(n int) string { // that no compression makes short
		b := make([]byte, n/2)
		_, _ = random.Read(b) // never fails
		return hex.EncodeToString(b)
	}
	for name, record := range map[string]func(int64) history.Record{
		"files that a checkpoint changed": func(n int64) history.Record {
			r := checkpoint(n)
			for range 1000 {
				r.Checkpoint.Changes = append(r.Checkpoint.Changes, history.FileChange{Path: unlike(4000), Action: "Added"})
			}
			return r
		},
		"notes of checkpoints": func(n int64) history.Record {
			r := checkpoint(n)
			r.Checkpoint.Message, r.Checkpoint.GitBranch, r.Checkpoint.Trigger = unlike(1<<20), unlike(1<<20), unlike(1<<20)
			return r
		},
		"details of an event": func(int64) history.Record {
			return history.Record{Event: &history.Note{Reason: "Note", Details: map[string]string{"detail": unlike(1 << 20)}}}
		},
		"events that are acted on": func(n int64) history.Record {
			return history.Record{Event: &history.Note{Reason: "CheckpointLost", Details: map[string]string{"checkpoint": "1", "message": unlike(1 << 20)}}}
		},
		"ids of calls": func(int64) history.Record { return call(unlike(1 << 20)) },
		"ids of results": func(int64) history.Record {
			return result(unlike(1 << 20))
		},
		"names of tools": func(int64) history.Record {
			return history.Record{Message: &conversation.Message{Role: conversation.RoleAssistant, ToolCall: &conversation.ToolCall{ID: "1", Name: unlike(1 << 20)}}}
		},
		"moves": func(n int64) history.Record {
			return history.Record{Move: &history.MoveOperation{ID: unlike(1 << 20), Reason: long(1 << 20)}}
		},
	} {
		t.Run(name, func(t *testing.T) {
			g := gomega.NewWithT(t)
			dsn := pg.Database(t)
			w := begin(t, limited(t, dsn, postgres.Limits{TaskBytes: limit, Grace: time.Nanosecond}), taskNamed("a"), 1)
			before := tableBytes(t, dsn)
			for n := int64(1); n <= 40; n++ {
				var batch []history.Record
				for k := range int64(10) {
					batch = append(batch, record(10*n+k))
				}
				batch = w.number(batch...)
				last, err := w.store.Append(t.Context(), w.task, w.attempt, batch)
				if errors.Is(err, history.ErrLimitReached) {
					last, err = w.store.Append(t.Context(), w.task, w.attempt, batch) // the grace is over
				}
				if errors.Is(err, history.ErrLimitReached) {
					break // and so is what was beside the limit
				}
				g.Expect(err).NotTo(gomega.HaveOccurred())
				g.Expect(last).To(gomega.Equal(w.last))
			}
			g.Expect(tableBytes(t, dsn)-before).To(gomega.BeNumerically("<", 3*limit), "dead rows and indexes included")
		})
	}
}

func TestACheckpointAtTheLimitLosesItsListsAlone(t *testing.T) {
	g := gomega.NewWithT(t)
	w := begin(t, limited(t, pg.Database(t), postgres.Limits{TaskBytes: 64 << 10, Grace: time.Nanosecond}), taskNamed("a"), 1)
	w.append(noise(60))
	_, err := w.store.Append(t.Context(), w.task, 1, w.number(noise(60)))
	g.Expect(err).To(gomega.MatchError(history.ErrLimitReached))
	w.last = 1
	r := checkpoint(1)
	r.Checkpoint.Changes = []history.FileChange{{Path: strings.Repeat("p", 8<<10), Action: "Added"}}
	w.append(noise(60), r, history.Record{Event: &history.Note{Reason: "Note", Message: "left out"}})
	c, err := w.store.Checkpoint(t.Context(), w.task.Key(), 1)
	g.Expect(err).NotTo(gomega.HaveOccurred())
	g.Expect(c.Changes).To(gomega.BeEmpty())
	g.Expect(c.Commit).To(gomega.Equal("c1"))
	g.Expect(c.FilesChanged).To(gomega.BeEquivalentTo(2))
	page, err := w.store.Timeline(t.Context(), history.TimelineQuery{Namespace: "team", Name: "a", Limit: 100})
	g.Expect(err).NotTo(gomega.HaveOccurred())
	for _, e := range page.Events {
		g.Expect(e.Message).NotTo(gomega.Equal("left out"))
	}
	g.Expect(w.texts()[1]).To(gomega.ContainSubstring("Output is left out of the history from here on"))
}

// Checkpoints are kept beyond the limit, and not without end.
func TestWhatIsBesideTheLimitEnds(t *testing.T) {
	g := gomega.NewWithT(t)
	dsn := pg.Database(t)
	w := begin(t, limited(t, dsn, postgres.Limits{TaskBytes: 64 << 10, Grace: time.Nanosecond}), taskNamed("a"), 1)
	w.append(noise(60))
	var err error
	for n := int64(1); n < 100 && w.state().CheckpointCount < 100; n++ {
		batch := w.number(checkpoint(n))
		if _, err = w.store.Append(t.Context(), w.task, 1, batch); err != nil {
			_, err = w.store.Append(t.Context(), w.task, 1, batch)
		}
		if err != nil {
			break
		}
	}
	g.Expect(err).To(gomega.MatchError(history.ErrLimitReached))
	state := w.state()
	g.Expect(state.CheckpointCount).To(gomega.BeNumerically(">", 10), "an eighth of the limit is for them")
	g.Expect(state.Problem.Message).To(gomega.ContainSubstring("everything waits"))
	raised := limited(t, dsn, postgres.Limits{TaskBytes: 1 << 20})
	w.last--
	_, err = raised.Append(t.Context(), w.task, 1, w.number(checkpoint(100)))
	g.Expect(err).NotTo(gomega.HaveOccurred())
	g.Expect(w.state().Problem).To(gomega.BeNil())
}

// What a refused import has written would stay in the tables as dead rows.
func TestAnImportIsRefusedBeforeItIsStored(t *testing.T) {
	g := gomega.NewWithT(t)
	source := open(t)
	w := begin(t, source, taskNamed("a"), 1)
	w.append(agent("hello"))
	lines := parsed(export(t, source, w.task))
	long := func(yield func(history.ExportLine, error) bool) {
		for line, err := range lines {
			for n := 0; line.Kind == history.ExportEnd && n < 40; n++ {
				body := fmt.Sprintf(`{"id":"e%d","time":"2026-01-01T00:00:00Z","type":"task","reason":"Note","message":%q}`, n, strings.Repeat("x", 1<<20))
				if !yield(history.ExportLine{Kind: history.ExportEvent, Body: []byte(body)}, nil) {
					return
				}
			}
			if !yield(line, err) {
				return
			}
		}
	}
	read := 0
	counted := func(yield func(history.ExportLine, error) bool) {
		for line, err := range long {
			if read++; !yield(line, err) {
				return
			}
		}
	}
	_, err := limited(t, pg.Database(t), postgres.Limits{NamespaceBytes: 5 << 20}).Import(t.Context(), "team", "bob", counted)
	g.Expect(err).To(gomega.MatchError(history.ErrLimitReached))
	g.Expect(read).To(gomega.BeNumerically("<", 15), "lines of 46 were read")
}
