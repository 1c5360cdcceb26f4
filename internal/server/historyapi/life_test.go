package historyapi_test

import (
	"fmt"
	"net/http"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"

	historyv1alpha1 "github.com/clew-dev/clew/api/history/v1alpha1"
	"github.com/clew-dev/clew/internal/server/historyapi"
)

var _ = Describe("A history through its life", func() {
	// All of it with the real store: what is exported, deleted and imported again is what
	// was there.
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
		Expect(list.Items).To(ConsistOf(And(
			HaveField("Name", "a"), HaveField("UID", types.UID("u")), HaveField("Messages", int64(5)),
			HaveField("Preview", "do it"), HaveField("Checkpoints", int64(1)))))
		var before historyv1alpha1.ConversationList
		f.get("ann", conversationPath, &before)
		var point historyv1alpha1.ConversationPoint
		Expect(f.get("ann", conversationPath+"/position?message=2", &point)).To(Equal(http.StatusOK), "code of a position")
		Expect(point).To(And(HaveField("Position", int64(1)), HaveField("Snapped", true), HaveField("Messages", int64(5))))

		w := f.ask(http.MethodGet, base+"/taskhistories/a/export", "")
		if w.Code != http.StatusOK || !strings.HasPrefix(w.Body.String(), `{"kind":"task"`) {
			t.Fatalf("export: code %d, %s", w.Code, w.Body)
		}
		exported := w.Body.String()
		if w := f.ask(http.MethodPost, base+"/taskhistories", exported); w.Code != http.StatusConflict {
			t.Errorf("import of an existing history: code %d, %s", w.Code, w.Body)
		}
		w = f.ask(http.MethodDelete, deletePath, "")
		Expect(w.Code).To(Equal(http.StatusOK), "delete: %s", w.Body)
		Expect(decoded[historyv1alpha1.HistoryDeletion](t, w)).To(And(
			HaveField("UID", types.UID("u")), HaveField("Messages", int64(5)), HaveField("Checkpoints", int64(1))))
		for _, request := range [][2]string{{http.MethodDelete, deletePath}, {http.MethodGet, deletePath}, {http.MethodGet, conversationPath}, {http.MethodGet, deletePath + "/export"}} {
			if w := f.ask(request[0], request[1], ""); w.Code != http.StatusNotFound {
				t.Errorf("%v after the deletion: code %d, %s", request, w.Code, w.Body)
			}
		}
		if found := words("q=done"); len(found) != 0 {
			t.Errorf("found after the deletion: %q", found)
		}
		// Who deleted it, and its UID, is all that is left.
		var events historyv1alpha1.TimelineEventList
		f.get("ann", base+"/timelines", &events)
		Expect(events.Items).To(ConsistOf(And(
			HaveField("Type", "access"), HaveField("Reason", "HistoryDeleted"), HaveField("Actor", "ann"),
			HaveField("Task", ""), HaveField("TaskUID", "u"))), "events after the deletion")

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
			t.Errorf("import of a cut export: code %d, %s", w.Code, w.Body)
		}
		if w := f.ask(http.MethodGet, deletePath, ""); w.Code != http.StatusNotFound {
			t.Errorf("it was stored: code %d, %s", w.Code, w.Body)
		}
	})
})
