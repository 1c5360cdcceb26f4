package postgres_test

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/clew-dev/clew/internal/conversation"
	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/history/postgres"
	"github.com/clew-dev/clew/internal/testing/cases"
)

func index(t testing.TB, store *postgres.Store) {
	GinkgoHelper()
	Expect(store.Index(t.Context())).Error().NotTo(HaveOccurred())
}

// search returns the hits as task, branch and position.
func search(t testing.TB, store *postgres.Store, query history.SearchQuery) []string {
	GinkgoHelper()
	if query.Namespace == "" {
		query.Namespace = "team"
	}
	if query.Limit == 0 {
		query.Limit = 100
	}
	page, err := store.Search(t.Context(), query)
	Expect(err).NotTo(HaveOccurred(), "%+v", query)
	var hits []string
	for _, h := range page.Hits {
		hits = append(hits, fmt.Sprintf("%s %s %d", h.Task.Name, h.Branch, h.Position))
	}
	return hits
}

var _ = Describe("A search", func() {
	Describe("in a namespace", Ordered, ContinueOnFailure, func() {
		var store *postgres.Store
		BeforeAll(func() {
			store = open(GinkgoTB())
			w := begin(GinkgoTB(), store, taskNamed("a"), 1)
			w.append(user("Fix the login page"), agent("I read internal/login/cookie.go first"), call("1"), result("1"), checkpoint(1), agent("the cookie is wrong"))
			other := begin(GinkgoTB(), store, history.Task{Namespace: "elsewhere", Name: "b", UID: "b"}, 1)
			other.append(user("login of another team"))
			Expect(search(GinkgoTB(), store, history.SearchQuery{Text: "login"})).To(BeEmpty(), "nothing is indexed yet")
			index(GinkgoTB(), store)
		})

		for name, tt := range cases.Sorted(map[string]struct {
			query history.SearchQuery
			want  []string
		}{
			"by one word":  {history.SearchQuery{Text: "cookie"}, []string{"a main 5", "a main 2"}},
			"by two words": {history.SearchQuery{Text: "login cookie"}, []string{"a main 2"}},
			"by a path":    {history.SearchQuery{Text: "login/cookie.go"}, []string{"a main 2"}},
			"by a phrase":  {history.SearchQuery{Text: `"the login page"`}, []string{"a main 1"}},
			"by the words of a phrase in another order": {history.SearchQuery{Text: `"login the page"`}, nil},
			"by either of two words":                    {history.SearchQuery{Text: "wrong or page"}, []string{"a main 1", "a main 5"}},
			"by a word without another":                 {history.SearchQuery{Text: "cookie -wrong"}, []string{"a main 2"}},
			"by a tool":                                 {history.SearchQuery{Text: "bash"}, []string{"a main 3"}},
			"by a result":                               {history.SearchQuery{Text: "done"}, []string{"a main 4"}},
			"by a role":                                 {history.SearchQuery{Text: "login", Role: "user"}, []string{"a main 1"}},
			"since a time to come":                      {history.SearchQuery{Text: "login", Since: time.Now().AddDate(0, 0, 1)}, nil},
			"in a task":                                 {history.SearchQuery{Text: "login", Task: "a"}, []string{"a main 1", "a main 2"}},
			"in a task with a UID":                      {history.SearchQuery{Text: "page", UID: taskNamed("a").UID}, []string{"a main 1"}},
			"in another namespace":                      {history.SearchQuery{Namespace: "elsewhere", Text: "login"}, []string{"b main 1"}},
			"in a task of another namespace":            {history.SearchQuery{Text: "login", UID: "b"}, nil},
			"without a word":                            {history.SearchQuery{Text: "  "}, nil},
			"with only a word to leave out":             {history.SearchQuery{Text: "-login"}, nil},
		}) {
			finds := "finds messages "
			if tt.want == nil {
				finds = "finds nothing "
			}
			It(finds+name, func() {
				Expect(search(GinkgoTB(), store, tt.query)).To(Equal(tt.want))
			})
		}

		It("is refused in an unknown task", func(ctx SpecContext) {
			_, err := store.Search(ctx, history.SearchQuery{Namespace: "team", Text: "x", Task: "unknown", Limit: 1})
			Expect(err).To(MatchError(history.ErrNotFound))
		})

		It("marks the words that it found", func(ctx SpecContext) {
			page, err := store.Search(ctx, history.SearchQuery{Namespace: "team", Text: "cookie login", Limit: 1})
			Expect(err).NotTo(HaveOccurred())
			marked := func(snippet string) string {
				return strings.NewReplacer(history.SnippetStart, "[", history.SnippetStop, "]").Replace(snippet)
			}
			Expect(page.Hits).To(HaveExactElements(And(
				HaveField("Snippet", WithTransform(marked, Equal("I read internal/[login]/[cookie].go first"))),
				HaveField("Rank", BeNumerically(">", 0)), HaveField("Role", "assistant"))))
		})
	})

	When("a task was moved and forked", func() {
		It("finds what one task left, another inherited, and both share, at its position", func(ctx SpecContext) {
			store := open(GinkgoTB())
			w := begin(GinkgoTB(), store, taskNamed("source"), 1)
			w.append(user("needle one"), checkpoint(1), agent("needle two"))
			w.move("op", 1)
			w.append(agent("needle three"), checkpoint(2), agent("needle four"))
			w.fork("fork", 2).append(user("needle five"), user("needle one"))
			index(GinkgoTB(), store)

			hits := func(task string) []string {
				GinkgoHelper()
				return search(GinkgoTB(), store, history.SearchQuery{Text: "needle", Task: task})
			}
			Expect(hits("")).To(ConsistOf(
				"source main 1", "source main 2", "source branch-2 2", "source branch-2 3", "fork main 3", "fork main 4"), "in the namespace")
			Expect(hits("fork")).To(ConsistOf(
				"fork uid-of-source/main 1", "fork uid-of-source/branch-2 2", "fork main 3", "fork main 4"), "in the fork")

			Expect(search(GinkgoTB(), store, history.SearchQuery{Text: "needle", UID: w.task.UID, Standing: true})).To(ConsistOf(
				"source main 1", "source branch-2 2", "source branch-2 3"), "in the source as it stands")
			Expect(search(GinkgoTB(), store, history.SearchQuery{Text: "needle", Task: "fork", Standing: true})).To(ConsistOf(
				"fork uid-of-source/main 1", "fork uid-of-source/branch-2 2", "fork main 3", "fork main 4"), "in the fork as it stands")

			By("deleting the source")
			Expect(store.DeleteTask(ctx, w.task.UID)).Error().NotTo(HaveOccurred())
			Expect(hits("")).To(ConsistOf(
				"fork deleted/main 1", "fork deleted/branch-2 2", "fork main 3", "fork main 4"))
		})
	})

	It("has pages that follow each other by rank", func(ctx SpecContext) {
		store := open(GinkgoTB())
		w := begin(GinkgoTB(), store, taskNamed("a"), 1)
		var records []history.Record
		for i := range 60 {
			records = append(records, agent("word "+strings.Repeat("word ", i%4)+strings.Repeat("filler ", i%7)+fmt.Sprint(i)))
		}
		w.append(records...)
		index(GinkgoTB(), store)
		seen := map[int64]bool{}
		last := float32(2)
		query := history.SearchQuery{Namespace: "team", Text: "word", Limit: 7}
		pages := 0
		for more := true; more; pages++ {
			page, err := store.Search(ctx, query)
			Expect(err).NotTo(HaveOccurred())
			for _, h := range page.Hits {
				Expect(h.Rank).To(BeNumerically("<=", last), "rank of hit %d, after the hit before", h.Position)
				Expect(seen).NotTo(HaveKey(h.Position), "a hit is repeated")
				last, seen[h.Position] = h.Rank, true
			}
			query.After, more = page.Next, page.More
		}
		Expect(pages).To(Equal(9))
		Expect(seen).To(HaveLen(60))
	})

	Describe("of hostile texts", Ordered, ContinueOnFailure, func() {
		var store *postgres.Store
		var hostile []string
		BeforeAll(func() {
			store, hostile = open(GinkgoTB()), hostileTexts()
			w := begin(GinkgoTB(), store, taskNamed("a"), 1)
			for _, text := range hostile {
				w.append(history.Record{Message: &conversation.Message{Role: conversation.RoleOutput, Text: "found " + text, Raw: text}})
			}
			index(GinkgoTB(), store)
		})

		It("finds each message, since none keeps a later one from being indexed", func() {
			Expect(search(GinkgoTB(), store, history.SearchQuery{Text: "found"})).To(HaveLen(len(hostile)))
		})

		It("takes any of them as a query", func() {
			for _, text := range append(hostile, `"`, `-`, `or`, `or or`, `" "`, `a or`, `- "`, "<->", "a:*b", "!!", "'", `\`) {
				search(GinkgoTB(), store, history.SearchQuery{Text: text})
			}
		})

		It("keeps namespaces apart, whose separating word can neither be written nor searched for", func() {
			other := begin(GinkgoTB(), store, history.Task{Namespace: "spy", Name: "b", UID: "b"}, 1)
			other.append(user("\x01team secret"))
			index(GinkgoTB(), store)
			for _, text := range []string{"secret", "\x01spy secret", "'\x01spy' | secret"} {
				Expect(search(GinkgoTB(), store, history.SearchQuery{Text: text})).To(BeEmpty(), "%q finds messages of another namespace", text)
			}
		})
	})

	When("a message cannot be indexed", func() {
		It("finds the others, and the message is marked", func(ctx SpecContext) {
			dsn := pg.Database(GinkgoTB())
			store := openAt(GinkgoTB(), dsn)
			w := begin(GinkgoTB(), store, taskNamed("a"), 1)
			w.append(user("word 1"), user("word poison"), user("word 3"))
			conn := connect(GinkgoTB(), dsn)
			Expect(conn.Exec(ctx, `ALTER TABLE search_documents ADD CONSTRAINT poison CHECK (NOT words @@ 'poison')`)).Error().NotTo(HaveOccurred())
			index(GinkgoTB(), store)
			index(GinkgoTB(), store)
			Expect(search(GinkgoTB(), store, history.SearchQuery{Text: "word"})).To(ConsistOf("a main 1", "a main 3"))
			var reason string
			Expect(conn.QueryRow(ctx, `SELECT error FROM search_queue`).Scan(&reason)).To(Succeed())
			Expect(reason).To(ContainSubstring("poison"))
		})
	})

	It("finds and shows words deep in a long text", func(ctx SpecContext) {
		store := open(GinkgoTB())
		w := begin(GinkgoTB(), store, taskNamed("a"), 1)
		w.append(user(strings.Repeat("filler text\n", 5000) + "the needle is here\n" + strings.Repeat("more\n", 5000)))
		index(GinkgoTB(), store)
		page, err := store.Search(ctx, history.SearchQuery{Namespace: "team", Text: "needle", Limit: 5})
		Expect(err).NotTo(HaveOccurred())
		Expect(page.Hits).To(HaveExactElements(HaveField("Snippet", ContainSubstring(history.SnippetStart+"needle"+history.SnippetStop))))
	})
})

// hostileTexts returns what an agent may print and a user may type: many distinct words,
// noise, and what has a meaning to PostgreSQL's parsers.
func hostileTexts() []string {
	random := rand.NewChaCha8([32]byte{1})
	noise := make([]byte, 300<<10)
	_, _ = random.Read(noise)
	var distinct, runes strings.Builder
	for i := range 300_000 {
		fmt.Fprintf(&distinct, "w%d ", i)
		runes.WriteRune(rune(0x100 + i%0x8000))
		runes.WriteByte(' ')
	}
	return []string{
		distinct.String(), runes.String(), string(noise), base64.StdEncoding.EncodeToString(noise), strings.Repeat("x", 2<<20),
		strings.Repeat("a-b/c.d@e ", 50_000), strings.Repeat("\x00\xff", 1000), strings.Repeat("' \\ : * & | ! ( ) < > ", 1000),
		string(bytes.Repeat([]byte("http://a.b/c?d=e#f "), 50_000)), strings.Repeat("ns:team \x01team ", 100), "",
	}
}
