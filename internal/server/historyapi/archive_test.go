package historyapi_test

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	historyv1alpha1 "github.com/clew-dev/clew/api/history/v1alpha1"
	"github.com/clew-dev/clew/internal/gitstoreapi"
	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/testing/cases"
)

var _ = Describe("Finding histories", func() {
	It("hits are found", func() {
		f := quiet()
		f.archive.hits = []history.SearchHit{{
			Task: history.Task{Name: "a", UID: "new"}, Position: 4, Branch: "main", Time: noon, Role: "assistant", Tool: "Bash", Rank: 0.0607927,
			Snippet: "run " + history.SnippetStart + "go" + history.SnippetStop + " " + history.SnippetStart + "test" + history.SnippetStop + " again",
		}}
		list := read[historyv1alpha1.SearchResultList](f, base+"/search?q=go+test&task=a&role=assistant&since=2026-01-02T03:04:05Z&limit=3")
		Expect(list.Kind).To(Equal("SearchResultList"))
		Expect(list.Items).To(BeComparableTo([]historyv1alpha1.SearchResult{{
			Task: "a", TaskUID: "new", Position: 4, Branch: "main", Time: metav1.NewMicroTime(noon), Role: "assistant", Tool: "Bash", RankMillionths: 60793,
			Snippet: []historyv1alpha1.SnippetPart{{Text: "run "}, {Text: "go", Match: true}, {Text: " "}, {Text: "test", Match: true}, {Text: " again"}},
		}}))
		Expect(f.archive.searched).To(BeComparableTo(history.SearchQuery{
			Namespace: "team", Text: "go test", Task: "a", Role: "assistant", Since: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), Limit: 3,
		}), "what the archive is asked for")

		By("reading the next page")
		read[historyv1alpha1.SearchResultList](f, base+"/search?q=go&continue="+url.QueryEscape(list.Continue))
		Expect(f.archive.searched.After).To(Equal(history.SearchKey{Rank: 0.5, Message: 7}))
	})

	It("the histories of tasks are listed", func() {
		f := quiet()
		var names []string
		query := "?name=a&state=Failed&tool=Bash&minTokens=7&minCost=0.50&since=2026-01-01T00:00:00Z&until=2026-02-01T00:00:00Z&sort=cost"
		for _, page := range readPages[historyv1alpha1.TaskHistoryList](f, historiesPath+query) {
			for _, task := range page.Items {
				names = append(names, task.Name+"/"+string(task.UID))
			}
		}
		Expect(names).To(Equal([]string{"a/old", "a/new", "ab/other"}))
		Expect(f.archive.listed).To(BeComparableTo(history.TaskQuery{
			Namespace: "team", NamePrefix: "a", State: "Failed", Tool: "Bash", MinTokens: 7, MinCostMicroUSD: 500_000, Limit: 500,
			Since: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC), Until: time.Date(2026, 2, 1, 0, 0, 0, 0, time.UTC),
			Sort: history.SortCost, After: history.TaskKey{Number: 2},
		}), "what the archive is asked for the last page")
	})

	It("one history is read: the newest of the name, or that of a UID", func() {
		f := quiet()
		Expect(read[historyv1alpha1.TaskHistory](f, historyPath)).To(And(
			HaveField("Kind", "TaskHistory"), HaveField("UID", types.UID("new")), HaveField("Messages", int64(9)),
			HaveField("CostMicroUSD", int64(1500)), HaveField("Preview", "do it")))
		Expect(read[historyv1alpha1.TaskHistory](f, historyPath+"?uid=old").UID).To(Equal(types.UID("old")))
	})

	Describe("snapshots", func() {
		var f *fixture
		BeforeEach(func() {
			f = quiet()
			for n := range int64(3) {
				f.archive.snapshots = append(f.archive.snapshots, history.Snapshot{
					Ordinal: n + 1, Kind: history.SnapshotAutomatic, Time: noon.Add(time.Duration(n-1) * time.Hour),
					Position: history.Position{Branch: "main", Position: 50 * (n + 1)},
					Totals:   history.Totals{Messages: 50 * (n + 1), OutputTokens: 7}, Digest: "d", Checkpoint: n,
				})
			}
		})
		listed := func(query string) (places []string) {
			for _, page := range readPages[historyv1alpha1.SnapshotList](f, base+"/tasks/a/snapshots?"+query) {
				for _, s := range page.Items {
					places = append(places, fmt.Sprintf("%s %d at %d", s.Kind, max(s.Ordinal, s.Checkpoint), s.Position))
				}
			}
			return places
		}

		It("are those taken as messages came and those of checkpoints, by time, on pages of any length", func() {
			all := []string{"Automatic 1 at 50", "Automatic 2 at 100", "Checkpoint 1 at 4", "Checkpoint 2 at 8", "Automatic 3 at 150"}
			for limit := range len(all) + 1 {
				Expect(listed(fmt.Sprintf("limit=%d", limit+1))).To(Equal(all), "with %d on a page", limit+1)
			}
		})

		It("are listed of one kind", func() {
			Expect(listed("kind=Automatic&limit=2")).To(HaveLen(3))
			Expect(listed("kind=Checkpoint&limit=1")).To(HaveLen(2))
			Expect(f.get("ann", base+"/tasks/a/snapshots?kind=Manual")).To(beRefused(http.StatusBadRequest))
		})
	})

	Describe("a position", func() {
		It("a position is resolved", func() {
			f := quiet()
			for query, want := range cases.Sorted(map[string]int64{"message=5": 4, "back=2": 6, "time=2026-11-21T12:02:00Z": 5}) {
				Expect(read[historyv1alpha1.ConversationPoint](f, conversationPath+"/position?"+query)).To(And(
					HaveField("Position", want), HaveField("Snapped", true), HaveField("Messages", int64(9)),
					HaveField("Checkpoint", int64(2)), HaveField("CheckpointPosition", int64(3))), query)
			}
			Expect(read[historyv1alpha1.ConversationPoint](f, conversationPath+"/position?time=2026-11-21T12:01:59Z")).To(SatisfyAll(HaveField("Checkpoint", int64(0)), HaveField("ElsewhereCheckpoint", int64(4))), "the history has none for it")
		})

		It("an invalid one is refused", func() {
			f := quiet()
			for query, code := range cases.Sorted(map[string]int{"": 400, "message=5&back=2": 400, "message=-1": 400, "message=10": 400, "time=now": 400, "message=5&uid=x": 404}) {
				Expect(f.get("ann", conversationPath+"/position?"+query)).To(beRefused(code), query)
			}
			Expect(f.get("bob", conversationPath+"/position?message=5")).To(beRefused(http.StatusForbidden), "bob")
		})
	})

	It("invalid requests are refused", func() {
		f := quiet()
		for _, test := range []struct {
			name, who, path string
			code            int
		}{
			{"may not search", "bob", base + "/search?q=x", 403},
			{"may not list", "bob", historiesPath, 403},
			{"may not read", "bob", historyPath, 403},
			{"may not know", "bob", historiesPath + "/unknown", 403},
			{"may not export", "bob", exportPath, 403},
			{"may not see snapshots", "bob", base + "/tasks/a/snapshots", 403},
			{"other namespace", "ann", strings.Replace(base, "team", "other", 1) + "/search?q=x", 403},
			{"no such task", "ann", historiesPath + "/unknown", 404},
			{"no words", "ann", base + "/search?q=+", 400},
			{"too many words", "ann", base + "/search?q=" + strings.Repeat("x", 1025), 400},
			{"no role", "ann", base + "/search?q=x&role=king", 400},
			{"another's token", "ann", base + "/search?q=x&continue=eyJrIjoidGFza3MifQ", 400},
			{"sort", "ann", historiesPath + "?sort=size", 400},
			{"cost", "ann", historiesPath + "?minCost=much", 400},
			{"negative cost", "ann", historiesPath + "?minCost=-1", 400},
			{"no number as cost", "ann", historiesPath + "?minCost=NaN", 400},
			{"tokens", "ann", historiesPath + "?minTokens=-1", 400},
			{"until", "ann", historiesPath + "?until=later", 400},
			{"full", "ann", conversationPath + "?full=very", 400},
		} {
			By(test.name)
			Expect(f.get(test.who, test.path)).To(beRefused(test.code), test.name)
		}
		for _, test := range [][2]string{{http.MethodPost, historiesPath}, {http.MethodDelete, historyPath}} {
			By("may not " + test[0])
			Expect(f.send("bob", test[0], test[1], nil)).To(beRefused(http.StatusForbidden), test[0])
		}
	})
})

var _ = Describe("Exporting and importing histories", func() {
	It("what is exported is imported completely", func() {
		f := quiet()
		f.archive.lines = someLines()

		By("exporting")
		plain := f.ask(http.MethodGet, exportPath, "")
		Expect(plain).To(And(HaveHTTPStatus(http.StatusOK), HaveHTTPHeaderWithValue("Content-Type", "application/x-ndjson")))
		exported := plain.Body.String()
		Expect(strings.Count(exported, "\n")).To(Equal(3), "lines")
		Expect(exported).To(ContainSubstring("<&>"), "text that is not escaped for HTML")

		By("exporting it compressed")
		zipped := f.ask(http.MethodGet, exportPath, "", "Accept-Encoding", "br, gzip")
		Expect(zipped).To(HaveHTTPHeaderWithValue("Content-Encoding", "gzip"))
		reader, err := gzip.NewReader(bytes.NewReader(zipped.Body.Bytes()))
		Expect(err).NotTo(HaveOccurred())
		unzipped, err := io.ReadAll(reader)
		Expect(err).NotTo(HaveOccurred())
		Expect(string(unzipped)).To(Equal(exported))

		By("importing")
		w := f.ask(http.MethodPost, historiesPath, exported)
		Expect(w).To(HaveHTTPStatus(http.StatusCreated))
		Expect(decoded[historyv1alpha1.TaskHistory](w)).To(And(HaveField("UID", types.UID("imported")), HaveField("Name", "c")))
		Expect(f.archive.imported).To(BeComparableTo(someLines()))

		By("importing it again, compressed")
		Expect(f.ask(http.MethodPost, historiesPath, zipped.Body.String(), "Content-Encoding", "gzip")).To(beRefused(http.StatusConflict))

		var recorded []string
		for _, e := range f.archive.events {
			recorded = append(recorded, fmt.Sprintf("%s %s of %s by %s", e.Type, e.Reason, e.Task.UID, e.Actor))
		}
		Expect(recorded).To(Equal([]string{
			"access HistoryExported of new by ann", "access HistoryExported of new by ann", "access HistoryImported of imported by ann",
		}), "what is audited")
	})

	It("an export that is cut off is not taken for a complete one", func() {
		f := quiet()
		f.archive.lines = someLines()
		f.archive.lines[0].Body = json.RawMessage(`"` + strings.Repeat("x", 100_000) + `"`)
		f.archive.export = errors.New("the database went away")
		server := httptest.NewServer(f.handler)
		defer server.Close()
		r, err := http.NewRequestWithContext(f.ctx, http.MethodGet, server.URL+exportPath, nil)
		Expect(err).NotTo(HaveOccurred())
		r.Header.Set("X-User", "ann")
		r.Header.Set("Accept-Encoding", "identity")
		response, err := http.DefaultClient.Do(r)
		Expect(err).NotTo(HaveOccurred())
		defer response.Body.Close()
		body, err := io.ReadAll(response.Body)
		Expect(err).To(HaveOccurred(), "%d bytes were taken for a complete response", len(body))
		Expect(len(body)).To(BeNumerically(">", 0), "bytes before the cut")
	})

	It("before its first line, an export fails like any other request", func() {
		f := quiet()
		f.archive.lines, f.archive.export = someLines()[:1], history.ErrUnavailable
		w := f.ask(http.MethodGet, exportPath, "", "Accept-Encoding", "gzip")
		Expect(w).To(beRefused(http.StatusServiceUnavailable))
		Expect(w.Header().Get("Content-Encoding")).To(BeEmpty())
	})

	It("says that messages are damaged, and what to do", func() {
		f := quiet()
		f.archive.lines, f.archive.export = someLines()[:1], fmt.Errorf("%w: message 3", history.ErrCorrupted)
		Expect(f.ask(http.MethodGet, exportPath, "")).To(beRefused(http.StatusInternalServerError, withCause("Corrupted"), saying("restore it from a backup")))
	})

	// What cannot be recorded is not exported.
	It("nothing is exported without a record", func() {
		f := quiet()
		f.archive.lines, f.archive.record = someLines(), history.ErrUnavailable
		Expect(f.ask(http.MethodGet, exportPath, "")).To(beRefused(http.StatusServiceUnavailable))
	})

	Describe("an invalid import is refused", func() {
		for name, test := range cases.Sorted(map[string]struct {
			body, says string
			header     []string
		}{
			"nothing":     {"", "nothing to import", nil},
			"no JSON":     {`{"kind":"task","body":{}}` + "\nx\n", "line 2 is not a line of an export", nil},
			"not zipped":  {"x", "not gzip data", []string{"Content-Encoding", "gzip"}},
			"empty lines": {"\n\n", "nothing to import", nil},
		}) {
			It(name, func() {
				Expect(quiet().ask(http.MethodPost, historiesPath, test.body, test.header...)).To(beRefused(http.StatusBadRequest, saying(test.says)))
			})
		}
	})
})

var _ = Describe("Deleting histories", func() {
	It("a history is deleted with its code", func() {
		f := quiet()
		f.tasks["a"] = "a later task of the name"
		f.archive.formers = []string{"first", "second"}
		w := f.ask(http.MethodDelete, historyPath, "")
		Expect(w).To(HaveHTTPStatus(http.StatusOK))
		Expect(decoded[historyv1alpha1.HistoryDeletion](w)).To(BeComparableTo(historyv1alpha1.HistoryDeletion{
			TypeMeta:   metav1.TypeMeta{APIVersion: "history.clew.dev/v1alpha1", Kind: "HistoryDeletion"},
			ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "a", UID: "new"},
			Messages:   9, Pieces: 4, Events: 5, Checkpoints: 2, Refs: 6, Repositories: 1, Bytes: 4096,
		}))
		Expect(f.code.asked).To(Equal([]string{"team/new/a/first/second"}), "whose code is deleted")
		Expect(f.archive.events).To(ConsistOf(And(
			HaveField("Reason", "HistoryDeleted"), HaveField("Actor", "ann"), HaveField("Task.UID", "new"))), "the audit event outlives the history")

		By("deleting the previous task of that name; then there is none")
		Expect(f.ask(http.MethodDelete, historyPath+"?uid=old", "")).To(HaveHTTPStatus(http.StatusOK))
		Expect(f.ask(http.MethodDelete, historyPath, "")).To(beRefused(http.StatusNotFound))
	})

	// Before its code is deleted, the history is claimed: a Task may be about to adopt it.
	Describe("one that cannot be claimed is not deleted", func() {
		for name, test := range cases.Sorted(map[string]struct {
			claim error
			code  int
			says  string
		}{
			"a Task has adopted it": {history.ErrNotFound, http.StatusConflict, "a new Task of that name has just adopted it"},
			"the store is down":     {history.ErrUnavailable, http.StatusServiceUnavailable, "delete it again"},
		}) {
			It(name, func() {
				f := quiet()
				f.archive.claim = test.claim
				Expect(f.ask(http.MethodDelete, historyPath, "")).To(beRefused(test.code, saying(test.says)))
				Expect(f.archive.deleted).To(BeEmpty(), "histories")
				Expect(f.code.asked).To(BeEmpty(), "code of histories")
			})
		}
	})

	It("a deletion continues where it stopped", func() {
		f := quiet()
		unfinished := withCause(historyv1alpha1.CauseDeletionUnfinished)

		By("deleting while the gitstore cannot be reached")
		f.code.err = errors.New("dial tcp 10.0.0.7: connection refused")
		Expect(f.ask(http.MethodDelete, historyPath, "")).To(beRefused(http.StatusServiceUnavailable,
			unfinished, saying("is not deleted", "delete it again"), Not(saying("10.0.0.7"))))

		By("deleting while a repository is in use")
		f.code.err = gitstoreapi.New(gitstoreapi.Unavailable, "the repository r-x is in use")
		Expect(f.ask(http.MethodDelete, historyPath, "").Body.String()).To(
			ContainSubstring("the repository r-x is in use; delete it again"), "the gitstore's message")
		Expect(f.archive.deleted).To(BeEmpty(), "the history outlives its code")
		Expect(f.archive.events).To(BeEmpty())

		By("deleting while the store is down")
		f.code.err, f.archive.remove = nil, history.ErrUnavailable
		Expect(f.ask(http.MethodDelete, historyPath, "")).To(beRefused(http.StatusServiceUnavailable, saying("deleted in part")))

		By("deleting once more")
		f.archive.remove = nil
		Expect(f.ask(http.MethodDelete, historyPath, "")).To(HaveHTTPStatus(http.StatusOK))
		Expect(f.archive.deleted).To(Equal([]string{"new"}))
	})

	// Texts that another write currently holds are removed later.
	It("texts in use outlive a deletion", func() {
		f := quiet()
		f.archive.remove, f.archive.removing = history.ErrUnavailable, history.Task{UID: "new"}
		w := f.ask(http.MethodDelete, historyPath, "")
		Expect(w).To(HaveHTTPStatus(http.StatusOK))
		Expect(decoded[historyv1alpha1.HistoryDeletion](w)).To(HaveField("Pending", true))
		Expect(f.archive.events).To(HaveLen(1))
	})

	Describe("an invalid deletion is refused", func() {
		for name, test := range cases.Sorted(map[string]struct {
			live, path, body string
			code             int
			says             string
		}{
			"the Task is there":   {"new", historyPath, "", 409, "kubectl delete tasks.clew.dev a -n team"},
			"nobody knows":        {"unknown", historyPath, "", 503, "try again"},
			"another UID":         {"", historyPath + "?uid=x", "", 404, ""},
			"two UIDs":            {"", historyPath + "?uid=old", `{"preconditions":{"uid":"new"}}`, 400, "give one"},
			"a dry run of a sort": {"", historyPath + "?dryRun=Some", "", 400, "dryRun"},
			"no JSON":             {"", historyPath, "k8s\x00", 400, "not a DeleteOptions object"},
			"no such name":        {"", historiesPath + "/unknown", "", 404, ""},
			"not allowed":         {"", historiesPath + "/ab", "", 403, ""},
		}) {
			It(name, func() {
				f := quiet()
				f.tasks["a"] = test.live
				Expect(f.ask(http.MethodDelete, test.path, test.body)).To(beRefused(test.code, saying(test.says)))
				f.expectUntouched()
			})
		}
	})

	// kubectl asks for a dry run in the body of the request.
	Describe("a dry run deletes nothing", func() {
		for name, ask := range cases.Sorted(map[string][2]string{
			"query": {historyPath + "?dryRun=All", ""},
			"body":  {historyPath, `{"kind":"DeleteOptions","apiVersion":"v1","dryRun":["All"],"preconditions":{"uid":"new"}}`},
		}) {
			It(name, func() {
				f := quiet()
				w := f.ask(http.MethodDelete, ask[0], ask[1])
				Expect(w).To(HaveHTTPStatus(http.StatusOK))
				Expect(decoded[historyv1alpha1.HistoryDeletion](w)).To(And(
					HaveField("DryRun", true), HaveField("Messages", int64(9)), HaveField("Checkpoints", int64(2))))
				f.expectUntouched()
				Expect(f.archive.events).To(BeEmpty())
			})
		}
	})
})
