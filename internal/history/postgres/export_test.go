package postgres_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/ginkgo/v2"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/history/postgres"
)

func export(t testing.TB, store *postgres.Store, task history.Task) []string {
	t.Helper()
	var lines []string
	err := store.Export(t.Context(), task.Namespace, task.Name, task.UID, func(line history.ExportLine) error {
		encoded, err := json.Marshal(line)
		lines = append(lines, string(encoded))
		return err
	})
	if err != nil {
		t.Fatalf("export: %v", err)
	}
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
	t.Helper()
	source := begin(t, store, taskNamed("source"), 1)
	source.append(user("1"), usage(1, 2, 3), checkpoint(1), agent("left"))
	source.move("op", 1)
	source.append(agent(long(20<<10, "inherited")), checkpoint(2), agent("own"))
	w := source.fork("a", 2)
	if _, err := store.Begin(t.Context(), w.task, 1, nil, history.BeginOptions{SnapshotEveryMessages: 2}); err != nil {
		t.Fatal(err)
	}
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
	err := store.RecordEvents(t.Context(), []history.Event{
		transition(w.task, 1, "TaskStarted", time.Now().AddDate(-3, 0, 0)), transition(w.task, 2, "TaskCompleted", time.Now()),
	})
	if err != nil {
		t.Fatal(err)
	}
	return w
}

var _ = Describe("Exporting and importing a history", func() {
	// An import of an export gives an equal export, in another database and again in the
	// same one, and the history continues where it was.
	It("what is exported is imported completely", func() {
		t := GinkgoTB()
		store, other := open(t), open(t)
		w := eventful(t, store)
		lines := export(t, store, w.task)
		if d := cmp.Diff(lines, export(t, store, history.Task{Namespace: "team", Name: "a"})); d != "" {
			t.Errorf("by name (-first +second):\n%s", d)
		}
		state := w.state()
		state.ActiveAt = time.Time{} // an imported history has no active agent
		texts := w.texts()
		if _, err := store.Import(t.Context(), "team", "bob", parsed(lines)); !errors.Is(err, history.ErrExists) {
			t.Errorf("over itself: %v", err)
		}
		remove(t, w)
		for name, into := range map[string]*postgres.Store{"another database": other, "the same one": store} {
			task, err := into.Import(t.Context(), "team", "bob", parsed(lines))
			if err != nil || task != w.task {
				t.Fatalf("import into %s returned %+v, %v; want %+v", name, task, err, w.task)
			}
			if d := cmp.Diff(lines, export(t, into, task)); d != "" {
				t.Errorf("%s (-exported +exported again):\n%s", name, d)
			}
			again := begin(t, into, task, 1)
			if d := cmp.Diff(state, again.state(), cmpopts.EquateEmpty()); d != "" {
				t.Errorf("%s: state (-before +after):\n%s", name, d)
			}
			if d := cmp.Diff(texts, again.texts()); d != "" {
				t.Errorf("%s: conversation (-before +after):\n%s", name, d)
			}
			again.append(agent("goes on"))
			if p := again.moveTo("op2", history.MoveOperation{Position: 2}); p.Position != 2 {
				t.Errorf("%s: moved to %+v", name, p)
			}
			index(t, into)
			if got := search(t, into, history.SearchQuery{Text: "another way", Task: "a"}); len(got) != 1 {
				t.Errorf("%s: found %q", name, got)
			}
			if _, err := into.Import(t.Context(), "team", "bob", parsed(lines)); !errors.Is(err, history.ErrExists) {
				t.Errorf("%s, twice: %v", name, err)
			}
		}
		// Into another namespace as well.
		third := open(t)
		task, err := third.Import(t.Context(), "elsewhere", "bob", parsed(lines))
		if err != nil || task.Namespace != "elsewhere" {
			t.Fatalf("import into another namespace returned %+v, %v", task, err)
		}
		if _, err := third.Snapshot(t.Context(), task.Key(), history.SnapshotQuery{}); err != nil {
			t.Errorf("in another namespace: %v", err)
		}
	})

	It("an export contains full texts", func() {
		t := GinkgoTB()
		store := open(t)
		w := eventful(t, store)
		whole := strings.Join(export(t, store, w.task), "\n")
		for _, text := range []string{long(20<<10, "inherited"), long(50<<10, "cut"), long(250<<10, "h3"), "Do it", "another way"} {
			encoded, err := json.Marshal(text)
			if err != nil {
				t.Fatal(err)
			}
			if !strings.Contains(whole, strings.Trim(string(encoded), `"`)) {
				t.Errorf("%.20q… is not completely in the export", text)
			}
		}
		for _, text := range []string{"left", "own"} {
			if strings.Contains(whole, `"`+text+`"`) {
				t.Errorf("%q, of the source alone, is in it", text)
			}
		}
	})

	It("an unknown task cannot be exported", func() {
		t := GinkgoTB()
		store := open(t)
		w := begin(t, store, taskNamed("a"), 1)
		for _, task := range []history.Task{{Namespace: "team", Name: "b"}, {Namespace: "elsewhere", Name: "a"}, {Namespace: "elsewhere", UID: w.task.UID}, {Namespace: "team", Name: "b", UID: w.task.UID}} {
			if err := store.Export(t.Context(), task.Namespace, task.Name, task.UID, nil); !errors.Is(err, history.ErrNotFound) {
				t.Errorf("export of %+v: %v, want not found", task, err)
			}
		}
	})

	// An incomplete export leaves nothing behind.
	It("an incomplete export cannot be imported", func() {
		t := GinkgoTB()
		dsn := pg.Database(t)
		source, store := open(t), openAt(t, dsn)
		w := eventful(t, source)
		lines := export(t, source, w.task)
		replace := func(old, with string) []string {
			changed := strings.ReplaceAll(strings.Join(lines, "\n"), old, with)
			if changed == strings.Join(lines, "\n") {
				t.Fatalf("%q is not in the export", old)
			}
			return strings.Split(changed, "\n")
		}
		without := func(n int) []string { return append(append([]string{}, lines[:n]...), lines[n+1:]...) }
		tests := map[string]struct {
			lines []string
			want  error
		}{
			"nothing":             {nil, history.ErrInvalid},
			"no end":              {lines[:len(lines)-1], history.ErrInvalid},
			"no beginning":        {lines[1:], history.ErrInvalid},
			"no branch":           {without(1), history.ErrInvalid},
			"an event missing":    {without(len(lines) - 2), history.ErrInvalid},
			"lines after the end": {append(append([]string{}, lines...), lines[0]), history.ErrInvalid},
			"two tasks":           {append([]string{lines[0]}, lines...), history.ErrInvalid},
			"another format":      {replace("clew-history/1", "clew-history/9"), history.ErrInvalid},
			"an unknown line":     {replace(`{"kind":"operation"`, `{"kind":"poem"`), history.ErrInvalid},
			"not what it says":    {replace(`"position":2,`, `"position":"two",`), history.ErrInvalid},
			"another text":        {replace(`another way`, `another word`), history.ErrCorrupted},
			"another piece":       {replace(`h3 line 7 `, `h3 line 8 `), history.ErrCorrupted},
		}
		for name, tt := range tests {
			By(name, func() {
				if _, err := store.Import(t.Context(), "team", "bob", parsed(tt.lines)); !errors.Is(err, tt.want) {
					t.Errorf("%v, want %v", err, tt.want)
				}
				for _, table := range []string{"tasks", "task_summaries", "branches", "messages", "pieces", "events"} {
					if n := count(t, dsn, table); n != 0 {
						t.Errorf("%d rows in %s", n, table)
					}
				}
			})
		}
		failing := func(yield func(history.ExportLine, error) bool) {
			for line, err := range parsed(lines[:3]) {
				if !yield(line, err) {
					return
				}
			}
			yield(history.ExportLine{}, fmt.Errorf("the reader broke"))
		}
		if _, err := store.Import(t.Context(), "team", "bob", failing); err == nil || !strings.Contains(err.Error(), "line 4: the reader broke") {
			t.Errorf("a reader that breaks: %v", err)
		}
	})
})
