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
	"slices"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	historyv1alpha1 "github.com/clew-dev/clew/api/history/v1alpha1"
	"github.com/clew-dev/clew/internal/gitstoreapi"
	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/testing/cases"
)

var _ = Describe("Exporting, importing and deleting histories", func() {
	It("hits are found", func() {
		t := GinkgoTB()
		f := quiet(t)
		f.archive.hits = []history.SearchHit{{
			Task: history.Task{Name: "a", UID: "new"}, Position: 4, Branch: "main", Time: noon, Role: "assistant", Tool: "Bash", Rank: 0.0607927,
			Snippet: "run " + history.SnippetStart + "go" + history.SnippetStop + " " + history.SnippetStart + "test" + history.SnippetStop + " again",
		}}
		var list historyv1alpha1.SearchResultList
		if code := f.get("ann", base+"/search?q=go+test&task=a&role=assistant&since=2026-01-02T03:04:05Z&limit=3", &list); code != http.StatusOK {
			t.Fatalf("code %d", code)
		}
		want := []historyv1alpha1.SearchResult{{
			Task: "a", TaskUID: "new", Position: 4, Branch: "main", Time: metav1.NewMicroTime(noon), Role: "assistant", Tool: "Bash", RankMillionths: 60793,
			Snippet: []historyv1alpha1.SnippetPart{{Text: "run "}, {Text: "go", Match: true}, {Text: " "}, {Text: "test", Match: true}, {Text: " again"}},
		}}
		if d := cmp.Diff(want, list.Items); d != "" {
			t.Errorf("hits (-want +got):\n%s", d)
		}
		Expect(list.Kind).To(Equal("SearchResultList"))
		asked := history.SearchQuery{Namespace: "team", Text: "go test", Task: "a", Role: "assistant", Since: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), Limit: 3}
		if d := cmp.Diff(asked, f.archive.searched); d != "" {
			t.Errorf("query (-want +got):\n%s", d)
		}
		f.get("ann", base+"/search?q=go&continue="+url.QueryEscape(list.Continue), &list)
		if d := cmp.Diff(history.SearchKey{Rank: 0.5, Message: 7}, f.archive.searched.After); d != "" {
			t.Errorf("next page (-want +got):\n%s", d)
		}
	})

	It("the histories of tasks are listed", func() {
		t := GinkgoTB()
		f := quiet(t)
		var names []string
		token := ""
		for {
			var list historyv1alpha1.TaskHistoryList
			query := "?name=a&state=Failed&tool=Bash&minTokens=7&minCost=0.50&since=2026-01-01T00:00:00Z&until=2026-02-01T00:00:00Z&sort=cost&continue="
			if code := f.get("ann", base+"/taskhistories"+query+url.QueryEscape(token), &list); code != http.StatusOK {
				t.Fatalf("code %d", code)
			}
			for _, task := range list.Items {
				names = append(names, task.Name+"/"+string(task.UID))
			}
			if token = list.Continue; token == "" {
				break
			}
		}
		if d := cmp.Diff([]string{"a/old", "a/new", "ab/other"}, names); d != "" {
			t.Errorf("names (-want +got):\n%s", d)
		}
		asked := history.TaskQuery{
			Namespace: "team", NamePrefix: "a", State: "Failed", Tool: "Bash", MinTokens: 7, MinCostMicroUSD: 500_000, Limit: 500,
			Since: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC), Until: time.Date(2026, 2, 1, 0, 0, 0, 0, time.UTC),
			Sort: history.SortCost, After: history.TaskKey{Number: 2},
		}
		if d := cmp.Diff(asked, f.archive.listed); d != "" {
			t.Errorf("query (-want +got):\n%s", d)
		}
		var one historyv1alpha1.TaskHistory
		f.get("ann", base+"/taskhistories/a", &one)
		Expect(one).To(And(
			HaveField("Kind", "TaskHistory"), HaveField("UID", types.UID("new")), HaveField("Messages", int64(9)),
			HaveField("CostMicroUSD", int64(1500)), HaveField("Preview", "do it")), "the newest of the name")
		if f.get("ann", base+"/taskhistories/a?uid=old", &one); one.UID != "old" {
			t.Errorf("the older one: %+v", one)
		}
	})

	It("snapshots are read", func() {
		t := GinkgoTB()
		f := quiet(t)
		for n := int64(1); n <= 3; n++ {
			f.archive.snapshots = append(f.archive.snapshots, history.Snapshot{
				Ordinal: n, Kind: history.SnapshotAutomatic, Time: noon, Position: history.Position{Branch: "main", Position: 50 * n},
				Totals: history.Totals{Messages: 50 * n, OutputTokens: 7}, Digest: "d", Checkpoint: n,
			})
		}
		var positions []int64
		token := ""
		for {
			var list historyv1alpha1.SnapshotList
			if code := f.get("ann", base+"/tasks/a/snapshots?limit=2&continue="+url.QueryEscape(token), &list); code != http.StatusOK {
				t.Fatalf("code %d", code)
			}
			for _, s := range list.Items {
				positions = append(positions, s.Position)
			}
			if token = list.Continue; token == "" {
				break
			}
		}
		if d := cmp.Diff([]int64{50, 100, 150}, positions); d != "" {
			t.Errorf("positions (-want +got):\n%s", d)
		}
	})

	It("a position is resolved", func() {
		t := GinkgoTB()
		f := quiet(t)
		for query, want := range map[string]int64{"message=5": 4, "back=2": 6, "time=2026-01-02T03:04:05Z": 5} {
			var got historyv1alpha1.ConversationPoint
			if code := f.get("ann", conversationPath+"/position?"+query, &got); code != http.StatusOK {
				t.Errorf("%s: code %d", query, code)
			}
			Expect(got).To(And(
				HaveField("Position", want), HaveField("Snapped", true), HaveField("Messages", int64(9)),
				HaveField("Checkpoint", int64(2)), HaveField("CheckpointPosition", int64(3))), query)
		}
		for query, code := range map[string]int{"": 400, "message=5&back=2": 400, "message=-1": 400, "message=10": 400, "time=now": 400, "message=5&uid=x": 404} {
			var status metav1.Status
			if got := f.get("ann", conversationPath+"/position?"+query, &status); got != code || status.Message == "" {
				t.Errorf("%s: code %d, %s", query, got, status.Message)
			}
		}
		var status metav1.Status
		if code := f.get("bob", conversationPath+"/position?message=5", &status); code != http.StatusForbidden {
			t.Errorf("bob: code %d", code)
		}
	})

	It("what is exported is imported completely", func() {
		t := GinkgoTB()
		f := quiet(t)
		f.archive.lines = someLines()
		w := f.ask(http.MethodGet, base+"/taskhistories/a/export", "")
		Expect(w).To(And(HaveField("Code", http.StatusOK), HaveHTTPHeaderWithValue("Content-Type", "application/x-ndjson")))
		Expect(strings.Count(w.Body.String(), "\n")).To(Equal(3), "lines")
		Expect(w.Body.String()).To(ContainSubstring("<&>"), "text that is not escaped for HTML")
		exported := w.Body.String()
		zipped := f.ask(http.MethodGet, base+"/taskhistories/a/export", "", "Accept-Encoding", "br, gzip")
		if zipped.Header().Get("Content-Encoding") != "gzip" {
			t.Errorf("not zipped: %v", zipped.Header())
		}
		reader, err := gzip.NewReader(bytes.NewReader(zipped.Body.Bytes()))
		if err != nil {
			t.Fatal(err)
		}
		if unzipped, err := io.ReadAll(reader); err != nil || string(unzipped) != exported {
			t.Errorf("zipped: %v, %q", err, unzipped)
		}

		w = f.ask(http.MethodPost, base+"/taskhistories", exported)
		Expect(w.Code).To(Equal(http.StatusCreated), w.Body.String())
		Expect(decoded[historyv1alpha1.TaskHistory](t, w)).To(And(HaveField("UID", types.UID("imported")), HaveField("Name", "c")))
		if d := cmp.Diff(someLines(), f.archive.imported); d != "" {
			t.Errorf("imported (-want +got):\n%s", d)
		}
		if w := f.ask(http.MethodPost, base+"/taskhistories", zipped.Body.String(), "Content-Encoding", "gzip"); w.Code != http.StatusConflict {
			t.Errorf("the second import: code %d, %s", w.Code, w.Body)
		}
		var recorded []string
		for _, e := range f.archive.events {
			recorded = append(recorded, fmt.Sprintf("%s %s of %s by %s", e.Type, e.Reason, e.Task.UID, e.Actor))
		}
		if d := cmp.Diff([]string{"access HistoryExported of new by ann", "access HistoryExported of new by ann", "access HistoryImported of imported by ann"}, recorded); d != "" {
			t.Errorf("audited (-want +got):\n%s", d)
		}
	})

	It("an export that is cut off is not taken for a complete one", func() {
		t := GinkgoTB()
		f := quiet(t)
		f.archive.lines = someLines()
		f.archive.lines[0].Body = json.RawMessage(`"` + strings.Repeat("x", 100_000) + `"`)
		f.archive.export = errors.New("the database went away")
		server := httptest.NewServer(f.mux)
		defer server.Close()
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL+base+"/taskhistories/a/export", nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("X-User", "ann")
		r.Header.Set("Accept-Encoding", "identity")
		response, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close()
		if body, err := io.ReadAll(response.Body); err == nil || len(body) == 0 {
			t.Errorf("%d bytes were taken for a complete response", len(body))
		}
		// Before the first line it is an error like any other.
		f.archive.lines, f.archive.export = someLines()[:1], history.ErrUnavailable
		if w := f.ask(http.MethodGet, base+"/taskhistories/a/export", "", "Accept-Encoding", "gzip"); w.Code != http.StatusServiceUnavailable || w.Header().Get("Content-Encoding") != "" {
			t.Errorf("code %d, %v", w.Code, w.Header())
		}
	})

	// What cannot be recorded is not exported.
	It("nothing is exported without a record", func() {
		t := GinkgoTB()
		f := quiet(t)
		f.archive.lines, f.archive.record = someLines(), history.ErrUnavailable
		if w := f.ask(http.MethodGet, base+"/taskhistories/a/export", ""); w.Code != http.StatusServiceUnavailable {
			t.Errorf("code %d, %s", w.Code, w.Body)
		}
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
				t := GinkgoTB()
				f := quiet(t)
				w := f.ask(http.MethodPost, base+"/taskhistories", test.body, test.header...)
				status := decoded[metav1.Status](t, w)
				if w.Code != http.StatusBadRequest || !strings.Contains(status.Message, test.says) {
					t.Errorf("code %d, %q", w.Code, status.Message)
				}
			})
		}
	})

	It("a history is deleted with its code", func() {
		t := GinkgoTB()
		f := quiet(t)
		f.tasks["a"] = "a later task of the name"
		w := f.ask(http.MethodDelete, deletePath, "")
		got := decoded[historyv1alpha1.HistoryDeletion](t, w)
		want := historyv1alpha1.HistoryDeletion{
			TypeMeta:   metav1.TypeMeta{APIVersion: "history.clew.dev/v1alpha1", Kind: "HistoryDeletion"},
			ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "a", UID: "new"},
			Messages:   9, Pieces: 4, Events: 5, Checkpoints: 2, Refs: 6, Repositories: 1, Bytes: 4096,
		}
		if d := cmp.Diff(want, got); d != "" || w.Code != http.StatusOK {
			t.Errorf("code %d (-want +got):\n%s", w.Code, d)
		}
		if d := cmp.Diff([]string{"team/new/a"}, f.code.asked); d != "" {
			t.Errorf("code: %s", d)
		}
		// The audit event outlives the history.
		Expect(f.archive.events).To(ConsistOf(And(
			HaveField("Reason", "HistoryDeleted"), HaveField("Actor", "ann"), HaveField("Task.UID", "new"))))
		// The next deletion is of the previous task of that name; then there is none.
		if w := f.ask(http.MethodDelete, deletePath+"?uid=old", ""); w.Code != http.StatusOK {
			t.Errorf("code %d, %s", w.Code, w.Body)
		}
		if w := f.ask(http.MethodDelete, deletePath, ""); w.Code != http.StatusNotFound {
			t.Errorf("code %d, %s", w.Code, w.Body)
		}
	})

	It("a deletion continues where it stopped", func() {
		t := GinkgoTB()
		f := quiet(t)
		f.code.err = errors.New("dial tcp 10.0.0.7: connection refused")
		w := f.ask(http.MethodDelete, deletePath, "")
		status := decoded[metav1.Status](t, w)
		Expect(w.Code).To(Equal(http.StatusServiceUnavailable))
		Expect(status.Message).To(And(
			ContainSubstring("is not deleted"), ContainSubstring("delete it again"), Not(ContainSubstring("10.0.0.7"))))
		if d := status.Details; d == nil || !slices.ContainsFunc(d.Causes, func(c metav1.StatusCause) bool { return c.Type == historyv1alpha1.CauseDeletionUnfinished }) {
			t.Errorf("a client cannot distinguish it from an unreachable server: %+v", d)
		}
		f.code.err = gitstoreapi.New(gitstoreapi.Unavailable, "the repository r-x is in use")
		if w := f.ask(http.MethodDelete, deletePath, ""); !strings.Contains(w.Body.String(), "the repository r-x is in use; delete it again") {
			t.Errorf("the gitstore's message is missing: %s", w.Body)
		}
		if len(f.archive.deleted) != 0 || len(f.archive.events) != 0 {
			t.Errorf("deleted %v, recorded %v", f.archive.deleted, f.archive.events)
		}
		f.code.err, f.archive.remove = nil, history.ErrUnavailable
		w = f.ask(http.MethodDelete, deletePath, "")
		if status := decoded[metav1.Status](t, w); w.Code != http.StatusServiceUnavailable || !strings.Contains(status.Message, "deleted in part") {
			t.Errorf("code %d, %q", w.Code, status.Message)
		}
		f.archive.remove = nil
		if w := f.ask(http.MethodDelete, deletePath, ""); w.Code != http.StatusOK {
			t.Errorf("code %d, %s", w.Code, w.Body)
		}
		if d := cmp.Diff([]string{"new"}, f.archive.deleted); d != "" {
			t.Errorf("deleted tasks (-want +got):\n%s", d)
		}
	})

	// Texts that another write currently holds are removed later.
	It("texts in use outlive a deletion", func() {
		t := GinkgoTB()
		f := quiet(t)
		f.archive.remove, f.archive.removing = history.ErrUnavailable, history.Task{UID: "new"}
		w := f.ask(http.MethodDelete, deletePath, "")
		Expect(w.Code).To(Equal(http.StatusOK), w.Body.String())
		Expect(decoded[historyv1alpha1.HistoryDeletion](t, w).Pending).To(BeTrue())
		Expect(f.archive.events).To(HaveLen(1))
	})

	Describe("an invalid deletion is refused", func() {
		for name, test := range cases.Sorted(map[string]struct {
			live, path, body string
			code             int
			says             string
		}{
			"the Task is there":   {"new", deletePath, "", 409, "kubectl delete tasks.clew.dev a -n team"},
			"nobody knows":        {"unknown", deletePath, "", 503, "try again"},
			"another UID":         {"", deletePath + "?uid=x", "", 404, ""},
			"two UIDs":            {"", deletePath + "?uid=old", `{"preconditions":{"uid":"new"}}`, 400, "give one"},
			"a dry run of a sort": {"", deletePath + "?dryRun=Some", "", 400, "dryRun"},
			"no JSON":             {"", deletePath, "k8s\x00", 400, "not a DeleteOptions object"},
			"no such name":        {"", base + "/taskhistories/unknown", "", 404, ""},
			"not allowed":         {"", base + "/taskhistories/ab", "", 403, ""},
		}) {
			It(name, func() {
				t := GinkgoTB()
				f := quiet(t)
				f.tasks["a"] = test.live
				w := f.ask(http.MethodDelete, test.path, test.body)
				if status := decoded[metav1.Status](t, w); w.Code != test.code || !strings.Contains(status.Message, test.says) {
					t.Errorf("code %d, %q", w.Code, status.Message)
				}
				if len(f.archive.deleted)+len(f.code.asked) != 0 {
					t.Error("something was deleted")
				}
			})
		}
	})

	// kubectl asks for a dry run in the body of the request.
	Describe("a dry run deletes nothing", func() {
		for name, ask := range cases.Sorted(map[string][2]string{
			"query": {deletePath + "?dryRun=All", ""},
			"body":  {deletePath, `{"kind":"DeleteOptions","apiVersion":"v1","dryRun":["All"],"preconditions":{"uid":"new"}}`},
		}) {
			It(name, func() {
				t := GinkgoTB()
				f := quiet(t)
				w := f.ask(http.MethodDelete, ask[0], ask[1])
				Expect(w.Code).To(Equal(http.StatusOK), w.Body.String())
				Expect(decoded[historyv1alpha1.HistoryDeletion](t, w)).To(And(
					HaveField("DryRun", true), HaveField("Messages", int64(9)), HaveField("Checkpoints", int64(2))))
				if len(f.archive.deleted)+len(f.code.asked)+len(f.archive.events) != 0 {
					t.Error("something was deleted")
				}
			})
		}
	})

	It("invalid requests are refused", func() {
		t := GinkgoTB()
		f := quiet(t)
		for _, test := range []struct {
			name, who, path string
			code            int
		}{
			{"may not search", "bob", base + "/search?q=x", 403},
			{"may not list", "bob", base + "/taskhistories", 403},
			{"may not read", "bob", base + "/taskhistories/a", 403},
			{"may not know", "bob", base + "/taskhistories/unknown", 403},
			{"may not export", "bob", base + "/taskhistories/a/export", 403},
			{"may not see snapshots", "bob", base + "/tasks/a/snapshots", 403},
			{"other namespace", "ann", strings.Replace(base, "team", "other", 1) + "/search?q=x", 403},
			{"no such task", "ann", base + "/taskhistories/unknown", 404},
			{"no words", "ann", base + "/search?q=+", 400},
			{"too many words", "ann", base + "/search?q=" + strings.Repeat("x", 1025), 400},
			{"no role", "ann", base + "/search?q=x&role=king", 400},
			{"another's token", "ann", base + "/search?q=x&continue=eyJrIjoidGFza3MifQ", 400},
			{"sort", "ann", base + "/taskhistories?sort=size", 400},
			{"cost", "ann", base + "/taskhistories?minCost=much", 400},
			{"negative cost", "ann", base + "/taskhistories?minCost=-1", 400},
			{"no number as cost", "ann", base + "/taskhistories?minCost=NaN", 400},
			{"tokens", "ann", base + "/taskhistories?minTokens=-1", 400},
			{"until", "ann", base + "/taskhistories?until=later", 400},
			{"full", "ann", conversationPath + "?full=very", 400},
		} {
			By(test.name, func() {
				var status metav1.Status
				if code := f.get(test.who, test.path, &status); code != test.code || status.Message == "" {
					t.Errorf("code %d, %+v", code, status)
				}
			})
		}
		for _, test := range [][2]string{{http.MethodPost, base + "/taskhistories"}, {http.MethodDelete, deletePath}} {
			if w := f.ask(test[0], test[1], "", "X-User", "bob"); w.Code != http.StatusForbidden {
				t.Errorf("%s: code %d", test[0], w.Code)
			}
		}
	})
})
