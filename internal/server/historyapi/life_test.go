package historyapi_test

import (
	"fmt"
	"net/http"
	"strings"

	. "github.com/onsi/ginkgo/v2"

	"github.com/google/go-cmp/cmp"

	historyv1alpha1 "github.com/clew-dev/clew/api/history/v1alpha1"
	"github.com/clew-dev/clew/internal/server/historyapi"
)

var _ = Describe("A history through its life", func() {
	// All of it with the real store: what is exported, deleted and imported again
	// is what was there.
	It("a history lives through export, deletion and import", func() {
		t := GinkgoTB()
		f := serveWith(t, pg.Database(t), func(f *fixture) historyapi.Archive { return f.store })
		f.fill()
		if _, err := f.store.Index(t.Context()); err != nil {
			t.Fatal(err)
		}
		words := func(query string) []string {
			t.Helper()
			var list historyv1alpha1.SearchResultList
			if code := f.get("ann", base+"/search?"+query, &list); code != http.StatusOK {
				t.Fatalf("search: code %d", code)
			}
			var found []string
			for _, r := range list.Items {
				text := ""
				for _, part := range r.Snippet {
					if part.Match {
						text += "[" + part.Text + "]"
					} else {
						text += part.Text
					}
				}
				found = append(found, fmt.Sprintf("%s %d %s: %s", r.Task, r.Position, r.Role, text))
			}
			return found
		}
		if d := cmp.Diff([]string{"a 5 assistant: [done]"}, words("q=done")); d != "" {
			t.Errorf("search (-want +got):\n%s", d)
		}
		var list historyv1alpha1.TaskHistoryList
		f.get("ann", base+"/taskhistories?sort=messages&tool=Bash", &list)
		if len(list.Items) != 1 || list.Items[0].Name != "a" || list.Items[0].UID != "u" || list.Items[0].Messages != 5 || list.Items[0].Preview != "do it" || list.Items[0].Checkpoints != 1 {
			t.Fatalf("list: %+v", list.Items)
		}
		var before historyv1alpha1.ConversationList
		f.get("ann", conversationPath, &before)
		var point historyv1alpha1.ConversationPoint
		if code := f.get("ann", conversationPath+"/position?message=2", &point); code != http.StatusOK || point.Position != 1 || !point.Snapped || point.Messages != 5 {
			t.Errorf("position: code %d, %+v", code, point)
		}

		w := f.ask(http.MethodGet, base+"/taskhistories/a/export", "")
		if w.Code != http.StatusOK || !strings.HasPrefix(w.Body.String(), `{"kind":"task"`) {
			t.Fatalf("export: code %d, %s", w.Code, w.Body)
		}
		exported := w.Body.String()
		if w := f.ask(http.MethodPost, base+"/taskhistories", exported); w.Code != http.StatusConflict {
			t.Errorf("import over what is there: code %d, %s", w.Code, w.Body)
		}
		w = f.ask(http.MethodDelete, deletePath, "")
		if got := decoded[historyv1alpha1.HistoryDeletion](t, w); w.Code != http.StatusOK || got.Messages != 5 || got.Checkpoints != 1 || got.UID != "u" {
			t.Fatalf("delete: code %d, %s", w.Code, w.Body)
		}
		for _, request := range [][2]string{{http.MethodDelete, deletePath}, {http.MethodGet, deletePath}, {http.MethodGet, conversationPath}, {http.MethodGet, deletePath + "/export"}} {
			if w := f.ask(request[0], request[1], ""); w.Code != http.StatusNotFound {
				t.Errorf("%v after the deletion: code %d, %s", request, w.Code, w.Body)
			}
		}
		if found := words("q=done"); len(found) != 0 {
			t.Errorf("found after the deletion: %q", found)
		}
		// Who did it, and to which UID, is all that is left.
		var events historyv1alpha1.TimelineEventList
		f.get("ann", base+"/timelines", &events)
		if len(events.Items) != 1 || events.Items[0].Reason != "HistoryDeleted" || events.Items[0].Actor != "ann" || events.Items[0].Task != "" || events.Items[0].TaskUID != "u" || events.Items[0].Type != "access" {
			t.Errorf("events after the deletion: %+v", events.Items)
		}

		if w := f.ask(http.MethodPost, base+"/taskhistories", exported); w.Code != http.StatusCreated {
			t.Fatalf("import: code %d, %s", w.Code, w.Body)
		}
		var after historyv1alpha1.ConversationList
		f.get("ann", conversationPath, &after)
		if d := cmp.Diff(before, after); d != "" || len(after.Items) != 5 {
			t.Errorf("the conversation after the import (-before +after):\n%s", d)
		}
		f.ask(http.MethodDelete, deletePath, "")
		half := exported[:strings.LastIndex(strings.TrimSpace(exported), "\n")]
		if w := f.ask(http.MethodPost, base+"/taskhistories", half); w.Code != http.StatusBadRequest {
			t.Errorf("import of what broke off: code %d, %s", w.Code, w.Body)
		}
		if w := f.ask(http.MethodGet, deletePath, ""); w.Code != http.StatusNotFound {
			t.Errorf("it was stored: code %d, %s", w.Code, w.Body)
		}
	})
})
