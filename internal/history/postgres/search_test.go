package postgres_test

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/google/go-cmp/cmp"

	"github.com/clew-dev/clew/internal/conversation"
	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/history/postgres"
)

func index(t testing.TB, store *postgres.Store) {
	t.Helper()
	if _, err := store.Index(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// search returns the hits as task, branch and position.
func search(t testing.TB, store *postgres.Store, query history.SearchQuery) []string {
	t.Helper()
	if query.Namespace == "" {
		query.Namespace = "team"
	}
	if query.Limit == 0 {
		query.Limit = 100
	}
	page, err := store.Search(t.Context(), query)
	if err != nil {
		t.Fatalf("search %+v: %v", query, err)
	}
	var hits []string
	for _, h := range page.Hits {
		hits = append(hits, fmt.Sprintf("%s %s %d", h.Task.Name, h.Branch, h.Position))
	}
	return hits
}

var _ = Describe("Searching", func() {
	It("messages are found by words and filters", func() {
		t := GinkgoTB()
		store := open(t)
		w := begin(t, store, taskNamed("a"), 1)
		w.append(user("Fix the login page"), agent("I read internal/login/cookie.go first"), call("1"), result("1"), checkpoint(1), agent("the cookie is wrong"))
		other := begin(t, store, history.Task{Namespace: "elsewhere", Name: "b", UID: "b"}, 1)
		other.append(user("login of another team"))
		if got := search(t, store, history.SearchQuery{Text: "login"}); got != nil {
			t.Errorf("found before it was indexed: %q", got)
		}
		index(t, store)

		tests := map[string]struct {
			query history.SearchQuery
			want  []string
		}{
			"one word":         {history.SearchQuery{Text: "cookie"}, []string{"a main 5", "a main 2"}},
			"two words":        {history.SearchQuery{Text: "login cookie"}, []string{"a main 2"}},
			"a path":           {history.SearchQuery{Text: "login/cookie.go"}, []string{"a main 2"}},
			"a phrase":         {history.SearchQuery{Text: `"the login page"`}, []string{"a main 1"}},
			"not that phrase":  {history.SearchQuery{Text: `"login the page"`}, nil},
			"or":               {history.SearchQuery{Text: "wrong or page"}, []string{"a main 1", "a main 5"}},
			"without":          {history.SearchQuery{Text: "cookie -wrong"}, []string{"a main 2"}},
			"a tool":           {history.SearchQuery{Text: "bash"}, []string{"a main 3"}},
			"a result":         {history.SearchQuery{Text: "done"}, []string{"a main 4"}},
			"a role":           {history.SearchQuery{Text: "login", Role: "user"}, []string{"a main 1"}},
			"since":            {history.SearchQuery{Text: "login", Since: time.Now().Add(time.Hour)}, nil},
			"a task":           {history.SearchQuery{Text: "login", Task: "a"}, []string{"a main 1", "a main 2"}},
			"a UID":            {history.SearchQuery{Text: "page", UID: w.task.UID}, []string{"a main 1"}},
			"another's":        {history.SearchQuery{Namespace: "elsewhere", Text: "login"}, []string{"b main 1"}},
			"a UID of another": {history.SearchQuery{Text: "login", UID: "b"}, nil},
			"nothing":          {history.SearchQuery{Text: "  "}, nil},
			"only without":     {history.SearchQuery{Text: "-login"}, nil},
		}
		for name, tt := range tests {
			By(name, func() {
				if d := cmp.Diff(tt.want, search(t, store, tt.query)); d != "" {
					t.Errorf("(-want +got):\n%s", d)
				}
			})
		}
		if _, err := store.Search(t.Context(), history.SearchQuery{Namespace: "team", Text: "x", Task: "unknown", Limit: 1}); !errors.Is(err, history.ErrNotFound) {
			t.Errorf("an unknown task: %v", err)
		}
		page, err := store.Search(t.Context(), history.SearchQuery{Namespace: "team", Text: "cookie login", Limit: 1})
		if err != nil {
			t.Fatal(err)
		}
		h := page.Hits[0]
		h.Snippet = strings.NewReplacer(history.SnippetStart, "[", history.SnippetStop, "]").Replace(h.Snippet)
		Expect(h).To(And(
			HaveField("Snippet", "I read internal/[login]/[cookie].go first"),
			HaveField("Rank", BeNumerically(">", 0)), HaveField("Role", "assistant")))
	})

	// What one task left, another inherited, and both share is found at its position.
	It("search knows branches and forks", func() {
		t := GinkgoTB()
		store := open(t)
		w := begin(t, store, taskNamed("source"), 1)
		w.append(user("needle one"), checkpoint(1), agent("needle two"))
		w.move("op", 1)
		w.append(agent("needle three"), checkpoint(2), agent("needle four"))
		fork := taskNamed("fork")
		from := &history.Source{TaskUID: w.task.UID, Checkpoint: 2, IncludeConversation: true}
		if _, err := store.Begin(t.Context(), fork, 1, from, history.BeginOptions{}); err != nil {
			t.Fatal(err)
		}
		f := begin(t, store, fork, 1)
		f.append(user("needle five"), user("needle one"))
		index(t, store)

		sorted := func(hits []string) map[string]bool {
			set := map[string]bool{}
			for _, h := range hits {
				set[h] = true
			}
			return set
		}
		want := []string{"source main 1", "source main 2", "source branch-2 2", "source branch-2 3", "fork main 3", "fork main 4"}
		if d := cmp.Diff(sorted(want), sorted(search(t, store, history.SearchQuery{Text: "needle"}))); d != "" {
			t.Errorf("namespace (-want +got):\n%s", d)
		}
		want = []string{"fork uid-of-source/main 1", "fork uid-of-source/branch-2 2", "fork main 3", "fork main 4"}
		if d := cmp.Diff(sorted(want), sorted(search(t, store, history.SearchQuery{Text: "needle", Task: "fork"}))); d != "" {
			t.Errorf("fork (-want +got):\n%s", d)
		}
		if _, err := store.DeleteTask(t.Context(), w.task.UID); err != nil {
			t.Fatal(err)
		}
		want = []string{"fork deleted/main 1", "fork deleted/branch-2 2", "fork main 3", "fork main 4"}
		if d := cmp.Diff(sorted(want), sorted(search(t, store, history.SearchQuery{Text: "needle"}))); d != "" {
			t.Errorf("after the source was deleted (-want +got):\n%s", d)
		}
	})

	It("pages of hits follow each other", func() {
		t := GinkgoTB()
		store := open(t)
		w := begin(t, store, taskNamed("a"), 1)
		var records []history.Record
		for i := range 60 {
			records = append(records, agent("word "+strings.Repeat("word ", i%4)+strings.Repeat("filler ", i%7)+fmt.Sprint(i)))
		}
		w.append(records...)
		index(t, store)
		seen := map[int64]bool{}
		last := float32(2)
		query := history.SearchQuery{Namespace: "team", Text: "word", Limit: 7}
		for pages := 1; ; pages++ {
			page, err := store.Search(t.Context(), query)
			if err != nil {
				t.Fatal(err)
			}
			for _, h := range page.Hits {
				if h.Rank > last || seen[h.Position] {
					t.Fatalf("hit %d of rank %g follows one of rank %g, or is repeated", h.Position, h.Rank, last)
				}
				last, seen[h.Position] = h.Rank, true
			}
			if query.After = page.Next; !page.More {
				if pages != 9 {
					t.Errorf("%d pages", pages)
				}
				break
			}
		}
		if len(seen) != 60 {
			t.Errorf("%d hits", len(seen))
		}
	})

	// Nothing that an agent prints keeps its message from being stored, or later ones
	// from being found; and nothing that users type is an error.
	It("search takes anything", func() {
		t := GinkgoTB()
		store := open(t)
		w := begin(t, store, taskNamed("a"), 1)
		random := rand.NewChaCha8([32]byte{1})
		noise := make([]byte, 300<<10)
		_, _ = random.Read(noise)
		var distinct, runes strings.Builder
		for i := range 300_000 {
			fmt.Fprintf(&distinct, "w%d ", i)
			runes.WriteRune(rune(0x100 + i%0x8000))
			runes.WriteByte(' ')
		}
		hostile := []string{
			distinct.String(), runes.String(), string(noise), base64.StdEncoding.EncodeToString(noise), strings.Repeat("x", 2<<20),
			strings.Repeat("a-b/c.d@e ", 50_000), strings.Repeat("\x00\xff", 1000), strings.Repeat("' \\ : * & | ! ( ) < > ", 1000),
			string(bytes.Repeat([]byte("http://a.b/c?d=e#f "), 50_000)), strings.Repeat("ns:team \x01team ", 100), "",
		}
		for _, text := range hostile {
			w.append(history.Record{Message: &conversation.Message{Role: conversation.RoleOutput, Text: "found " + text, Raw: text}})
		}
		index(t, store)
		if got := search(t, store, history.SearchQuery{Text: "found"}); len(got) != len(hostile) {
			t.Errorf("%d of %d messages are found", len(got), len(hostile))
		}
		for _, text := range append(hostile, `"`, `-`, `or`, `or or`, `" "`, `a or`, `- "`, "<->", "a:*b", "!!", "'", `\`) {
			search(t, store, history.SearchQuery{Text: text})
		}
		// The word that separates namespaces can neither be written nor searched for.
		other := begin(t, store, history.Task{Namespace: "spy", Name: "b", UID: "b"}, 1)
		other.append(user("\x01team secret"))
		index(t, store)
		for _, text := range []string{"secret", "\x01spy secret", "'\x01spy' | secret"} {
			if got := search(t, store, history.SearchQuery{Text: text}); got != nil {
				t.Errorf("%q finds %q of another namespace", text, got)
			}
		}
	})

	// A message that cannot be indexed is marked, and the others are indexed.
	It("indexing goes on where it ended", func() {
		t := GinkgoTB()
		dsn := pg.Database(t)
		store := openAt(t, dsn)
		w := begin(t, store, taskNamed("a"), 1)
		w.append(user("word 1"), user("word poison"), user("word 3"))
		conn := connect(t, dsn)
		if _, err := conn.Exec(t.Context(), `ALTER TABLE search_documents ADD CONSTRAINT poison CHECK (NOT words @@ 'poison')`); err != nil {
			t.Fatal(err)
		}
		index(t, store)
		index(t, store)
		if got := search(t, store, history.SearchQuery{Text: "word"}); len(got) != 2 {
			t.Errorf("found %q", got)
		}
		var reason string
		if err := conn.QueryRow(t.Context(), `SELECT error FROM search_queue`).Scan(&reason); err != nil || !strings.Contains(reason, "poison") {
			t.Errorf("marked with %q, %v", reason, err)
		}
	})

	// Words deep in a long text are found and shown.
	It("long texts are found", func() {
		t := GinkgoTB()
		store := open(t)
		w := begin(t, store, taskNamed("a"), 1)
		w.append(user(strings.Repeat("filler text\n", 5000) + "the needle is here\n" + strings.Repeat("more\n", 5000)))
		index(t, store)
		page, err := store.Search(t.Context(), history.SearchQuery{Namespace: "team", Text: "needle", Limit: 5})
		Expect(err).NotTo(HaveOccurred())
		Expect(page.Hits).To(ConsistOf(HaveField("Snippet", ContainSubstring(history.SnippetStart+"needle"+history.SnippetStop))))
	})
})
