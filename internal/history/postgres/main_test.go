package postgres_test

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/go-logr/logr/testr"

	"github.com/clew-dev/clew/internal/conversation"
	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/history/postgres"
	"github.com/clew-dev/clew/internal/testing/pgtest"
)

var pg *pgtest.Server

func TestMain(m *testing.M) { os.Exit(pgtest.Run(m, &pg, postgres.Migrate)) }

func TestSpecs(t *testing.T) {
	RegisterFailHandler(Fail)
	RunSpecs(t, "The history in PostgreSQL")
}

// The helpers below serve the benchmarks too, which have no Ginkgo: they assert with NewWithT.

// open returns a store on a database of its own.
func open(t testing.TB) *postgres.Store {
	t.Helper()
	return openAt(t, pg.Database(t))
}

func openAt(t testing.TB, dsn string) *postgres.Store {
	t.Helper()
	return openPool(t, dsn, postgres.Pool{})
}

// openPool returns a store with other settings than the usual ones.
func openPool(t testing.TB, dsn string, pool postgres.Pool) *postgres.Store {
	t.Helper()
	opened.add(dsn)
	store, err := postgres.OpenPool(t.Context(), dsn, testr.NewWithInterface(t, testr.Options{}), pool)
	NewWithT(t).Expect(err).NotTo(HaveOccurred(), "open the store")
	t.Cleanup(store.Close)
	return store
}

func taskNamed(name string) history.Task {
	return history.Task{Namespace: "team", Name: name, UID: "uid-of-" + name}
}

// writer appends records of one task, numbering them.
type writer struct {
	t       testing.TB
	store   *postgres.Store
	task    history.Task
	attempt int64
	last    int64
}

// begin opens an attempt and returns a writer for it.
func begin(t testing.TB, store *postgres.Store, task history.Task, attempt int64) *writer {
	t.Helper()
	state, err := store.Begin(t.Context(), task, attempt, nil, history.BeginOptions{})
	NewWithT(t).Expect(err).NotTo(HaveOccurred(), "begin attempt %d of %s", attempt, task.Name)
	return &writer{t: t, store: store, task: task, attempt: attempt, last: state.LastSequence}
}

func (w *writer) number(records ...history.Record) []history.Record {
	for i := range records {
		w.last++
		records[i].Sequence = w.last
		records[i].Attempt = w.attempt
		records[i].Time = time.Now()
	}
	return records
}

func (w *writer) append(records ...history.Record) {
	w.t.Helper()
	last, err := w.store.Append(w.t.Context(), w.task, w.attempt, w.number(records...))
	g := NewWithT(w.t)
	g.Expect(err).NotTo(HaveOccurred(), "append to %s", w.task.Name)
	g.Expect(last).To(Equal(w.last), "the last sequence that append stored")
}

func (w *writer) state() history.TaskState {
	w.t.Helper()
	state, err := w.store.TaskState(w.t.Context(), w.task.UID)
	NewWithT(w.t).Expect(err).NotTo(HaveOccurred(), "state of %s", w.task.Name)
	return state
}

// texts reads the active branch as one line per message.
func (w *writer) texts() []string {
	w.t.Helper()
	entries, err := w.store.Conversation(w.t.Context(), w.task.UID, 0, 1_000_000)
	NewWithT(w.t).Expect(err).NotTo(HaveOccurred(), "conversation of %s", w.task.Name)
	var texts []string
	for i, e := range entries {
		if e.Position != int64(i+1) { // a matcher for each of a million messages would take long
			w.t.Fatalf("message %d is at position %d", i+1, e.Position)
		}
		texts = append(texts, show(e.Message))
	}
	return texts
}

func show(m conversation.Message) string {
	switch {
	case m.ToolCall != nil:
		return fmt.Sprintf("call %s %s", m.ToolCall.ID, m.ToolCall.Name)
	case m.ToolResult != nil && m.ToolResult.Interrupted:
		return "interrupted " + m.ToolResult.CallID
	case m.ToolResult != nil:
		return "result " + m.ToolResult.CallID
	}
	return strings.ToUpper(string(m.Role[:1])) + " " + m.Text
}

func says(role conversation.Role, text string) history.Record {
	return history.Record{Message: &conversation.Message{Role: role, Text: text}}
}

func user(text string) history.Record  { return says(conversation.RoleUser, text) }
func agent(text string) history.Record { return says(conversation.RoleAssistant, text) }

func call(id string) history.Record {
	return history.Record{Message: &conversation.Message{
		Role: conversation.RoleAssistant, ToolCall: &conversation.ToolCall{ID: id, Name: "Bash", Input: `{"command":"ls"}`},
	}}
}

func result(id string) history.Record {
	return history.Record{Message: &conversation.Message{
		Role: conversation.RoleTool, ToolResult: &conversation.ToolResult{CallID: id, Output: "done"},
	}}
}

func interrupted(id string) history.Record {
	return history.Record{Message: &conversation.Message{
		Role: conversation.RoleTool, ToolResult: &conversation.ToolResult{CallID: id, Interrupted: true},
	}}
}

func usage(in, out, cost int64) history.Record {
	return history.Record{Usage: &history.Usage{InputTokens: in, OutputTokens: out, CostMicroUSD: cost}}
}

func checkpoint(number int64) history.Record {
	return history.Record{Checkpoint: &history.Checkpoint{
		Number: number, Trigger: "ToolCalls", Time: time.Now(), Commit: fmt.Sprintf("c%d", number), Tree: "t", StateCommit: "s",
		FilesChanged: 2, LinesAdded: 3, LinesRemoved: 4,
	}}
}
