package postgres_test

import (
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr/testr"
	"github.com/onsi/gomega"

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
	g.Expect(state.Problem.Message).To(gomega.ContainSubstring("--task-history-bytes"))

	// The limit is raised in time: nothing is lost.
	raised := limited(t, dsn, postgres.Limits{TaskBytes: 1 << 20})
	last, err := raised.Append(t.Context(), w.task, 1, flood)
	g.Expect(err).NotTo(gomega.HaveOccurred())
	g.Expect(last).To(gomega.BeEquivalentTo(4))
	g.Expect(w.state().Problem).To(gomega.BeNil())
}

func TestOutputIsLeftOutWhenNobodyRaisesTheLimit(t *testing.T) {
	g := gomega.NewWithT(t)
	w := begin(t, limited(t, pg.Database(t), postgres.Limits{TaskBytes: 64 << 10, Grace: time.Nanosecond}), taskNamed("a"), 1)
	w.append(user("do it"), noise(60))
	waiting := w.number(noise(60))
	_, err := w.store.Append(t.Context(), w.task, 1, waiting)
	g.Expect(err).To(gomega.MatchError(history.ErrLimitReached))
	_, err = w.store.Append(t.Context(), w.task, 1, waiting)
	g.Expect(err).NotTo(gomega.HaveOccurred())
	for range 20 {
		w.append(noise(60), noise(60))
	}
	w.append(checkpoint(1), noise(1))
	state := w.state()
	g.Expect(state.CheckpointCount).To(gomega.BeEquivalentTo(1))
	g.Expect(state.Problem.Message).To(gomega.ContainSubstring("left out"))
	texts := w.texts()
	g.Expect(texts).To(gomega.HaveLen(3), "one place tells of all that was left out within a minute")
	g.Expect(texts[2]).To(gomega.ContainSubstring("Output was left out here: 1 records"))
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
			g.Expect(err).To(gomega.MatchError(gomega.ContainSubstring("--namespace-history-bytes")))
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
