package postgres_test

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/jackc/pgx/v5"

	"github.com/clew-dev/clew/internal/conversation"
	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/testing/pgtest"
)

var _ = Describe("A long history", Label("slow"), func() {
	// A conversation with a checkpoint and a snapshot after each message takes little
	// more than the same one with one of each.
	It("takes few bytes for each checkpoint and snapshot", func() {
		t := GinkgoTB()
		messages := 1000
		if testing.Short() {
			messages = 100
		}
		g := measureGrowth(t, pg, messages)
		t.Logf("%+v", g)
		Expect(g.perSnapshot).To(BeNumerically("<=", 1.3), "the size with a checkpoint and a snapshot after each message, relative to one of each")
		Expect(g.added).To(BeNumerically("<=", 400), "the bytes that a checkpoint with a snapshot adds")
	})
})

// growth is the space that conversations take in the tables, without the search index.
type growth struct {
	messages int
	// each and one are the sizes with a checkpoint and a snapshot after each message, and
	// with one of each; empty is the size of the schema; raw is the size of the messages'
	// JSON.
	each, one, empty, raw int64
	// perSnapshot and perRaw are ratios; added is the number of bytes per checkpoint and
	// snapshot.
	perSnapshot, perRaw, added float64
	// Medians: of storing a message with a checkpoint and a snapshot, and without; of
	// reading everything up to the middle, of a fork from there, and of resolving a
	// snapshot there, which reads and verifies everything before it.
	append, appendWithSnapshot, load, fork, verify time.Duration
}

func measureGrowth(t testing.TB, server *pgtest.Server, messages int) growth {
	t.Helper()
	g := growth{messages: messages}
	texts := sourceTexts(t)
	each, one := server.Database(t), server.Database(t)
	g.empty = tableBytes(t, one)
	for i, r := range talk(texts, messages) {
		g.raw += int64(len(rawJSON(t, i+1, r.Message)))
	}
	var w *writer
	w, g.appendWithSnapshot = appendTalk(t, each, texts, messages, 1)
	_, g.append = appendTalk(t, one, texts, messages, messages)
	g.each, g.one = tableBytes(t, each), tableBytes(t, one)
	g.perSnapshot, g.perRaw = float64(g.each)/float64(g.one), float64(g.each)/float64(g.raw)
	g.added = float64(g.each-g.one) / float64(messages)
	g.useMiddle(t, w)
	return g
}

// useMiddle measures what users do with a snapshot in the middle.
func (g *growth) useMiddle(t testing.TB, w *writer) {
	t.Helper()
	middle := g.messages/2 - 1
	fork := 0
	g.load = median(t, 9, func() error {
		entries, err := w.store.Conversation(t.Context(), w.task.UID, 0, middle)
		if len(entries) != middle {
			err = fmt.Errorf("%d messages: %w", len(entries), err)
		}
		return err
	})
	g.fork = median(t, 9, func() error {
		fork++
		task := history.Task{Namespace: w.task.Namespace, Name: "fork", UID: fmt.Sprint("fork-", fork)}
		from := &history.Source{TaskUID: w.task.UID, Checkpoint: int64(middle), IncludeConversation: true}
		_, err := w.store.Begin(t.Context(), task, 1, from, history.BeginOptions{})
		return err
	})
	g.verify = median(t, 9, func() error {
		_, err := w.store.Snapshot(t.Context(), w.task.Key(), history.SnapshotQuery{Checkpoint: int64(middle)})
		return err
	})
}

// median returns the median duration of f.
func median(t testing.TB, times int, f func() error) time.Duration {
	t.Helper()
	took := make([]time.Duration, 0, times)
	for range times {
		began := time.Now()
		NewWithT(t).Expect(f()).To(Succeed())
		took = append(took, time.Since(began))
	}
	slices.Sort(took)
	return took[len(took)/2]
}

// appendTalk stores the conversation with a checkpoint and a snapshot at the given interval, in
// an Append per message as a daemon does that keeps up. It returns the median duration of
// an Append.
func appendTalk(t testing.TB, dsn string, texts []string, messages, every int) (*writer, time.Duration) {
	t.Helper()
	store := openAt(t, dsn)
	task := history.Task{Namespace: "team-alpha", Name: "fix-the-login-page", UID: "0b0e6a3e-4b0e-4f6e-9d83-1f0c5f3f2a10"}
	state, err := store.Begin(t.Context(), task, 1, nil, history.BeginOptions{SnapshotEveryMessages: int64(every)})
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	w := &writer{t: t, store: store, task: task, attempt: 1, last: state.LastSequence}
	random := rand.New(rand.NewPCG(1, 2))
	number := int64(0)
	parent := ""
	var took []time.Duration
	for i, r := range talk(texts, messages) {
		records := []history.Record{r}
		if r.Message.ToolCall != nil {
			records = append(records, history.Record{Usage: &history.Usage{
				InputTokens: 1000 + random.Int64N(9000), OutputTokens: random.Int64N(500), CostMicroUSD: random.Int64N(9000), Model: "claude-sonnet-4-5",
			}})
		}
		if (i+1)%every == 0 {
			number++
			c := realCheckpoint(random, number, parent)
			parent = c.Commit
			records = append(records, history.Record{Checkpoint: &c})
		}
		began := time.Now()
		w.append(records...)
		took = append(took, time.Since(began))
	}
	slices.Sort(took)
	return w, took[len(took)/2]
}

// talk is a conversation of tool calls with results of 2.5 kB. The agent comments on its
// work, and every second call changes a file.
func talk(texts []string, messages int) []history.Record {
	records := []history.Record{user("Make the login page remember where the visitor came from, with tests, and run them.")}
	for i := 1; len(records) < messages; i++ {
		id := fmt.Sprintf("toolu_%024d", i)
		text, other := texts[i%len(texts)], texts[(i+7)%len(texts)]
		call := conversation.ToolCall{ID: id, Name: "Read", Input: fmt.Sprintf(`{"file_path":"/workspace/src/internal/login/file%d.go","offset":%d,"limit":80}`, i, i*80)}
		if i%2 == 0 {
			input, _ := json.Marshal(map[string]string{
				"file_path": fmt.Sprintf("/workspace/src/internal/login/file%d.go", i), "old_string": other[:600], "new_string": other[:300] + other[900:1400],
			})
			call.Name, call.Input = "Edit", string(input)
		}
		says := fmt.Sprintf("Part %d of the file reads the cookie before the session is there, so a visitor who comes from a link "+
			"is sent to the front page. I look at what calls it, and then change the order in %s.", i, call.Name)
		records = append(records,
			history.Record{Message: &conversation.Message{Role: conversation.RoleAssistant, Text: says, ToolCall: &call}},
			history.Record{Message: &conversation.Message{Role: conversation.RoleTool, ToolResult: &conversation.ToolResult{CallID: id, Output: text}}})
	}
	return records[:messages]
}

// rawJSON returns a message as the history API encodes it.
func rawJSON(t testing.TB, position int, m *conversation.Message) []byte {
	t.Helper()
	fields := map[string]any{"position": position, "time": time.Now().UTC(), "branch": "main", "attempt": 1, "role": m.Role}
	if m.Text != "" {
		fields["text"] = m.Text
	}
	if c := m.ToolCall; c != nil {
		fields["toolCall"] = map[string]any{"id": c.ID, "name": c.Name, "input": c.Input}
	}
	if r := m.ToolResult; r != nil {
		fields["toolResult"] = map[string]any{"callID": r.CallID, "output": r.Output}
	}
	encoded, err := json.Marshal(fields)
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	return encoded
}

func realCheckpoint(random *rand.Rand, number int64, parent string) history.Checkpoint {
	object := func() string { return fmt.Sprintf("%016x%016x%08x", random.Uint64(), random.Uint64(), random.Uint32()) }
	return history.Checkpoint{
		Number: number, Trigger: "ToolCalls", Time: time.Now(), Commit: object(), Tree: object(), StateCommit: object(), Parent: parent,
		Base: "6d1329ef1a9751977176bf97392b6842386237c9", GitHead: "6d1329ef1a9751977176bf97392b6842386237c9", GitBranch: "main",
		FilesChanged: 1, LinesAdded: random.Int64N(90), LinesRemoved: random.Int64N(50), Files: 412, Bytes: 2_345_678 + random.Int64N(9999), Durable: true,
		Changes: []history.FileChange{{Path: fmt.Sprintf("internal/login/file%d.go", number%17), Action: "Modified"}},
		Session: &history.AgentSession{Agent: "ClaudeCode", ID: "5f3f2a10-6f4e-4b0e-9d83-0b0e6a3e4b0e", Version: "2.0.1", Model: "claude-sonnet-4-5"},
	}
}

// sourceTexts returns pieces of 2.5 kB of Go's own sources, as tools would print them.
func sourceTexts(t testing.TB) []string {
	t.Helper()
	g := NewWithT(t)
	root, err := exec.CommandContext(t.Context(), "go", "env", "GOROOT").Output()
	g.Expect(err).NotTo(HaveOccurred())
	files, err := filepath.Glob(filepath.Join(strings.TrimSpace(string(root)), "src", "net", "http", "*.go"))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(files).NotTo(BeEmpty(), "Go's sources are needed")
	var texts []string
	for _, file := range files {
		content, err := os.ReadFile(file)
		g.Expect(err).NotTo(HaveOccurred())
		for s := string(content); len(s) >= 2500; s = s[2500:] {
			texts = append(texts, strings.ToValidUTF8(s[:2500], ""))
		}
	}
	return texts
}

// tableBytes returns the size of all tables with TOAST and indexes, after a plain VACUUM,
// without the search index.
func tableBytes(t testing.TB, dsn string) (n int64) {
	t.Helper()
	g := NewWithT(t)
	conn := connect(t, dsn)
	_, err := conn.Exec(t.Context(), "VACUUM", pgx.QueryExecModeSimpleProtocol)
	g.Expect(err).NotTo(HaveOccurred())
	err = conn.QueryRow(t.Context(), `SELECT sum(pg_total_relation_size(c.oid))::bigint FROM pg_class c
		WHERE c.relnamespace = 'public'::regnamespace AND c.relkind IN ('r', 'm') AND c.relname NOT LIKE 'search\_%'`).Scan(&n)
	g.Expect(err).NotTo(HaveOccurred())
	if os.Getenv("CLEW_SIZES") != "" {
		rows, _ := conn.Query(t.Context(), `SELECT c.relname || ' ' || pg_relation_size(c.oid) || ' toast+fsm ' || (pg_table_size(c.oid) - pg_relation_size(c.oid)) || ' idx ' || pg_indexes_size(c.oid) FROM pg_class c
			WHERE c.relnamespace = 'public'::regnamespace AND c.relkind IN ('r', 'm') ORDER BY pg_total_relation_size(c.oid) DESC`)
		lines, _ := pgx.CollectRows(rows, pgx.RowTo[string])
		t.Log("\n" + strings.Join(lines, "\n"))
	}
	return n
}
