package historyapi_test

import (
	"net/http"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	historyv1alpha1 "github.com/clew-dev/clew/api/history/v1alpha1"
	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/testing/cases"
)

var _ = Describe("The history API", func() {
	Describe("a conversation", func() {
		It("a conversation is read", func() {
			f := serve()
			f.fill()
			at := func(s int) metav1.MicroTime {
				return metav1.NewMicroTime(time.Date(2026, 1, 2, 3, 4, 5+s, 6000, time.UTC))
			}
			entry := func(position int64, role string) historyv1alpha1.ConversationEntry {
				return historyv1alpha1.ConversationEntry{Position: position, Time: at(int(position - 1)), Branch: "main", Attempt: 1, Role: role}
			}
			want := historyv1alpha1.ConversationList{
				TypeMeta: metav1.TypeMeta{APIVersion: "history.clew.dev/v1alpha1", Kind: "ConversationList"},
				Items: []historyv1alpha1.ConversationEntry{
					entry(1, "user"), entry(2, "assistant"), entry(3, "tool"), entry(4, "output"), entry(5, "assistant"),
				},
			}
			want.Items[0].Text = "do it"
			want.Items[1].ToolCall = &historyv1alpha1.ToolCall{ID: "1", Name: "Bash", Input: `{"a":1}`}
			want.Items[2].ToolResult = &historyv1alpha1.ToolResult{CallID: "1", Output: "x", IsError: true}
			want.Items[3].Text, want.Items[3].Raw = "odd", "raw"
			want.Items[4].Text = "done"
			Expect(read[historyv1alpha1.ConversationList](f, conversationPath)).To(BeComparableTo(want))
		})

		It("its last messages, or those after a position, are read", func() {
			f := serve()
			f.fill()
			Expect(read[historyv1alpha1.ConversationList](f, conversationPath+"?tail=1").Items).To(
				ConsistOf(HaveField("Text", "done")))
			Expect(read[historyv1alpha1.ConversationList](f, conversationPath+"?after=3&limit=1").Items).To(
				ConsistOf(HaveField("Position", int64(4))))
		})

		It("pages of a conversation follow each other", func() {
			f := serve()
			f.fill()
			var positions, remaining []int64
			for _, page := range readPages[historyv1alpha1.ConversationList](f, conversationPath+"?limit=2") {
				for _, e := range page.Items {
					positions = append(positions, e.Position)
				}
				if page.Continue != "" {
					Expect(page.RemainingItemCount).NotTo(BeNil())
					remaining = append(remaining, *page.RemainingItemCount)
				}
			}
			Expect(positions).To(Equal([]int64{1, 2, 3, 4, 5}))
			Expect(remaining).To(Equal([]int64{3, 1}), "messages that remain")
		})
	})

	Describe("timelines are read", func() {
		for _, path := range []string{timelinePath, base + "/timelines", base + "/timeline"} {
			It("at "+strings.TrimPrefix(path, base)+", page by page", func() {
				f := serve()
				f.fill()
				var reasons []string
				for _, page := range readPages[historyv1alpha1.TimelineEventList](f, path+"?limit=1") {
					for _, e := range page.Items {
						reasons = append(reasons, e.Reason)
					}
				}
				Expect(reasons).To(Equal([]string{"CheckpointCreated", "AgentMessage", "UserMessage"}))
			})
		}

		It("by type and time", func() {
			f := serve()
			f.fill()
			for query, want := range cases.Sorted(map[string]int{
				"?type=chat": 2, "?type=chat,checkpoint": 3, "?type=chat&type=checkpoint": 3, "?type=fork": 0,
				"?since=2026-01-02T03:04:07Z": 2, "?since=2030-01-02T03:04:07%2B01:00": 0,
			}) {
				Expect(read[historyv1alpha1.TimelineEventList](f, timelinePath+query).Items).To(HaveLen(want), query)
			}
		})

		It("with the task and the checkpoint of an event", func() {
			f := serve()
			f.fill()
			Expect(read[historyv1alpha1.TimelineEventList](f, timelinePath+"?type=checkpoint").Items).To(ConsistOf(And(
				HaveField("Task", "a"), HaveField("TaskUID", "u"), HaveField("Checkpoint", int64(1)), HaveField("Type", "checkpoint"),
				HaveField("Actor", "clew"), HaveField("Attempt", int64(1)), HaveField("ID", Not(BeEmpty())))))
		})
	})

	It("a timeline names changed files only to those who may read checkpoints", func() {
		f := serve()
		f.fill()
		task := history.Task{Namespace: "team", Name: "a", UID: "u"}
		_, err := f.store.Append(f.ctx, task, 1, []history.Record{{Sequence: 7, Time: time.Now(), Checkpoint: &history.Checkpoint{
			Number: 2, Trigger: "Manual", Time: time.Now(), FilesChanged: 1, Changes: []history.FileChange{{Path: "secret-plan.md", Action: "Added"}},
		}}})
		Expect(err).NotTo(HaveOccurred())
		messages := func(path string) (texts []string) {
			for _, e := range read[historyv1alpha1.TimelineEventList](f, path+"?type=file").Items {
				texts = append(texts, e.Message)
			}
			return texts
		}
		Expect(messages(timelinePath)).To(ConsistOf("added secret-plan.md"))
		Expect(messages(base+"/timelines")).To(ConsistOf("1 file changed"), "ann may not read the checkpoints of all tasks")
	})

	It("invalid requests are refused", func() {
		f := serve()
		f.fill()
		for _, tt := range []struct {
			name, who, path string
			code            int
			reason          metav1.StatusReason
		}{
			{"nobody", "", conversationPath, 401, metav1.StatusReasonUnauthorized},
			{"may not", "bob", conversationPath, 403, metav1.StatusReasonForbidden},
			{"may not know", "bob", base + "/tasks/unknown/conversation", 403, metav1.StatusReasonForbidden},
			{"may not list", "bob", base + "/timelines", 403, metav1.StatusReasonForbidden},
			{"other namespace", "ann", strings.Replace(base, "team", "other", 1) + "/timelines", 403, metav1.StatusReasonForbidden},
			{"rights unknown", "unlucky", conversationPath, 503, metav1.StatusReasonServiceUnavailable},
			{"no task", "ann", base + "/tasks/unknown/conversation", 404, metav1.StatusReasonNotFound},
			{"no task's timeline", "ann", base + "/tasks/unknown/timeline", 404, metav1.StatusReasonNotFound},
			{"no branch", "ann", conversationPath + "?branch=x", 404, metav1.StatusReasonNotFound},
			{"limit", "ann", conversationPath + "?limit=-1", 400, metav1.StatusReasonBadRequest},
			{"limit no number", "ann", timelinePath + "?limit=x", 400, metav1.StatusReasonBadRequest},
			{"continue", "ann", conversationPath + "?continue=x", 400, metav1.StatusReasonBadRequest},
			{"continue of another list", "ann", timelinePath + "?continue=eyJrIjoiY29udmVyc2F0aW9uIn0", 400, metav1.StatusReasonBadRequest},
			{"type", "ann", timelinePath + "?type=x", 400, metav1.StatusReasonBadRequest},
			{"since", "ann", timelinePath + "?since=yesterday", 400, metav1.StatusReasonBadRequest},
			{"unknown resource", "ann", base + "/tasks/a/secrets", 404, metav1.StatusReasonNotFound},
			{"unknown path", "ann", "/apis/history.clew.dev/v2", 404, metav1.StatusReasonNotFound},
		} {
			By(tt.name)
			Expect(f.get(tt.who, tt.path)).To(beRefused(tt.code, withReason(tt.reason)), tt.name)
		}
		By("another method")
		Expect(f.send("", http.MethodDelete, conversationPath, nil)).To(HaveHTTPStatus(http.StatusMethodNotAllowed))
	})

	// A response to somebody who may not read a task must not reveal whether it exists.
	It("a forbidden response is the same whether or not the task exists", func() {
		f := serve()
		f.fill()
		known := decoded[metav1.Status](f.get("bob", conversationPath))
		unknown := decoded[metav1.Status](f.get("bob", base+"/tasks/x/conversation"))
		Expect(known.Details).NotTo(BeNil())
		Expect(unknown.Details).NotTo(BeNil())
		known.Details.Name, unknown.Details.Name = "", ""
		known.Message = strings.ReplaceAll(known.Message, `"a"`, `"x"`)
		Expect(unknown).To(BeComparableTo(known))
	})

	It("a store that is down is reported", func() {
		f := quiet()
		Expect(f.get("ann", conversationPath)).To(beRefused(http.StatusServiceUnavailable,
			HaveField("Details.RetryAfterSeconds", Not(BeZero())), Not(saying("127.0.0.1"))), "without the store's address")
	})

	It("the API is discovered", func() {
		f := quiet()
		Expect(readAs[metav1.APIGroupList](f, "", "/apis").Groups).To(ConsistOf(HaveField("Name", "history.clew.dev")))
		Expect(readAs[metav1.APIGroup](f, "", "/apis/history.clew.dev").PreferredVersion.GroupVersion).To(Equal("history.clew.dev/v1alpha1"))
		resources := readAs[metav1.APIResourceList](f, "", "/apis/history.clew.dev/v1alpha1").APIResources
		Expect(resources).To(HaveLen(9))
		for _, resource := range resources {
			Expect(resource.Verbs).NotTo(ContainElement(BeElementOf("delete", "deletecollection")), "%s would be deleted with its namespace", resource.Name)
		}
		for _, path := range []string{"/openapi/v2", "/openapi/v3", "/openapi/v3/apis/history.clew.dev/v1alpha1"} {
			Expect(readAs[map[string]any](f, "", path)).To(HaveKeyWithValue("paths", Not(BeNil())), path)
		}
	})
})
