package historyapi_test

import (
	"fmt"
	"net/http"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"k8s.io/apimachinery/pkg/types"

	historyv1alpha1 "github.com/clew-dev/clew/api/history/v1alpha1"
	"github.com/clew-dev/clew/internal/server/historyapi"
)

var _ = Describe("A history through its life", func() {
	// All of it with the real store: what is exported, deleted and imported again is what
	// was there.
	It("a history lives through export, deletion and import", func() {
		f := serveWith(pg.Database(GinkgoTB()), func(f *fixture) historyapi.Archive { return f.store })
		f.fill()
		_, err := f.store.Index(f.ctx)
		Expect(err).NotTo(HaveOccurred())

		By("finding it")
		Expect(f.hits("q=done")).To(Equal([]string{"a 5 assistant: [done]"}))
		Expect(read[historyv1alpha1.TaskHistoryList](f, historiesPath+"?sort=messages&tool=Bash").Items).To(ConsistOf(And(
			HaveField("Name", "a"), HaveField("UID", types.UID("u")), HaveField("Messages", int64(5)),
			HaveField("Preview", "do it"), HaveField("Checkpoints", int64(1)))))
		before := read[historyv1alpha1.ConversationList](f, conversationPath)
		Expect(read[historyv1alpha1.ConversationPoint](f, conversationPath+"/position?message=2")).To(And(
			HaveField("Position", int64(1)), HaveField("Snapped", true), HaveField("Messages", int64(5))))

		By("exporting it")
		w := f.ask(http.MethodGet, exportPath, "")
		Expect(w).To(And(HaveHTTPStatus(http.StatusOK), HaveHTTPBody(HavePrefix(`{"kind":"task"`))))
		exported := w.Body.String()
		Expect(f.ask(http.MethodPost, historiesPath, exported)).To(beRefused(http.StatusConflict), "import of an existing history")

		By("deleting it")
		w = f.ask(http.MethodDelete, historyPath, "")
		Expect(w).To(HaveHTTPStatus(http.StatusOK))
		Expect(decoded[historyv1alpha1.HistoryDeletion](w)).To(And(
			HaveField("UID", types.UID("u")), HaveField("Messages", int64(5)), HaveField("Checkpoints", int64(1))))
		for _, request := range [][2]string{{http.MethodDelete, historyPath}, {http.MethodGet, historyPath}, {http.MethodGet, conversationPath}, {http.MethodGet, exportPath}} {
			Expect(f.ask(request[0], request[1], "")).To(beRefused(http.StatusNotFound), "%v after the deletion", request)
		}
		Expect(f.hits("q=done")).To(BeEmpty(), "found after the deletion")
		Expect(read[historyv1alpha1.TimelineEventList](f, base+"/timelines").Items).To(ConsistOf(And(
			HaveField("Type", "access"), HaveField("Reason", "HistoryDeleted"), HaveField("Actor", "ann"),
			HaveField("Task", ""), HaveField("TaskUID", "u"))), "who deleted it, and its UID, is all that is left")

		By("importing it")
		Expect(f.ask(http.MethodPost, historiesPath, exported)).To(HaveHTTPStatus(http.StatusCreated))
		after := read[historyv1alpha1.ConversationList](f, conversationPath)
		Expect(after.Items).To(HaveLen(5))
		Expect(after).To(BeComparableTo(before))

		By("importing an export that was cut off")
		f.ask(http.MethodDelete, historyPath, "")
		half := exported[:strings.LastIndex(strings.TrimSpace(exported), "\n")]
		Expect(f.ask(http.MethodPost, historiesPath, half)).To(beRefused(http.StatusBadRequest))
		Expect(f.ask(http.MethodGet, historyPath, "")).To(beRefused(http.StatusNotFound), "nothing of it is stored")
	})
})

// hits returns what a search finds, with the words that match in brackets.
func (f *fixture) hits(query string) []string {
	GinkgoHelper()
	var found []string
	for _, r := range read[historyv1alpha1.SearchResultList](f, base+"/search?"+query).Items {
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
