package controller_test

import (
	"fmt"
	"net/http"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/daemonapi"
	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/testing/builders"
	. "github.com/clew-dev/clew/internal/testing/matchers"
)

// rewindTo requests a rewind to a position in the conversation.
func rewindTo(id string, scope v1alpha1.RewindScope, to v1alpha1.RewindTarget) builders.TaskOption {
	return func(t *v1alpha1.Task) {
		builders.Rewind(id, "")(t)
		t.Spec.Rewind.To, t.Spec.Rewind.Scope = to, scope
	}
}

func (w *world) say(name string, messages int64) {
	w.Helper()
	w.store.SetPosition(w.id(name), history.Position{Branch: "main", Position: messages})
	w.store.SetTotals(w.id(name), history.Totals{Messages: messages})
}

func (w *world) checkpointAt(name string, position int64) {
	w.Helper()
	w.store.AddCheckpoint(w.id(name), history.Checkpoint{
		Attempt: 1, Trigger: string(v1alpha1.TriggerToolCalls), Time: time.Now(), Durable: true,
		Position: history.Position{Branch: "main", Position: position},
	})
}

// automatic returns the objects of automatic snapshots, by name.
func (w *world) automatic() []string {
	w.Helper()
	list := &v1alpha1.ConversationSnapshotList{}
	w.Expect(w.client.List(w.ctx, list, client.InNamespace(w.namespace), client.HasLabels{v1alpha1.LabelSnapshot})).To(Succeed())
	var names []string
	for _, s := range list.Items {
		names = append(names, s.Name)
	}
	return names
}

func (w *world) note(name string, position int64) history.Snapshot {
	w.Helper()
	return w.store.AddSnapshot(w.id(name), history.Snapshot{
		Position: history.Position{Branch: "main", Position: position}, Totals: history.Totals{Messages: position, InputTokens: 10 * position},
		Time: time.Now(), Digest: fmt.Sprintf("digest-0-%d", position), Checkpoint: 1,
	})
}

var _ = Describe("a rewind of the conversation", func() {
	It("rewinds a running task to a message", func() {
		w := newWorld()
		p := w.running("work")
		w.say("work", 20)
		w.checkpointAt("work", 6)
		w.checkpointAt("work", 12)
		w.store.SetBoundary(w.id("work"), 11, 10)
		By("requesting the rewind")
		w.change("work", rewindTo("back", v1alpha1.RewindConversation, v1alpha1.RewindTarget{Message: ptr.To[int64](11)}))
		w.until("work", v1alpha1.ReasonRewinding)
		r := w.rewind("work")
		w.Expect(r.ToCheckpoint).To(BeEquivalentTo(1))
		w.Expect(r.ToPosition).To(BeEquivalentTo(10))
		w.Expect(r.Message).To(ContainSubstring("message 10 ends the last complete turn at or before message 11"))
		w.untilStopped(p)

		p = w.pod("work", 2)
		w.Expect(*w.operation(p)).To(Equal(daemonapi.Operation{
			Kind: daemonapi.OperationRewind, ID: "back", OnDrift: "Fail", Checkpoint: 1, Commit: r.ToCommit, CheckpointPosition: 6, Position: 10,
			Scope: "Conversation", Preserve: "Branch", Branch: "clew/before-back",
		}))
		By("preparing the workspace")
		w.Expect(w.kubelet.Prepared(w.ctx, p, 0, daemonapi.PrepareResult{
			Operation: "back", FromCheckpoint: 3, ToCheckpoint: 1, ToPosition: 10,
			Memory: v1alpha1.AgentMemorySession, MemoryMessage: "its session of checkpoint 1",
		})).To(Succeed())
		w.Expect(w.kubelet.AgentRuns(w.ctx, p)).To(Succeed())
		task := w.until("work", v1alpha1.ReasonRunning)
		w.Expect(task.Status.Rewind.State).To(Equal(v1alpha1.OperationCompleted))
		w.Expect(task.Status.Rewind.Message).To(ContainSubstring("the conversation was rewound to message 10"))
		w.Expect(task.Status.Attempts[1].Memory).To(Equal(v1alpha1.AgentMemorySession))
		w.Expect(task.Status.Attempts[1].MemoryMessage).To(Equal("its session of checkpoint 1"))
	})

	It("reaches a message before the first checkpoint", func() {
		w := newWorld()
		p := w.running("work")
		w.say("work", 20)
		w.checkpointAt("work", 12)
		By("requesting the rewind")
		w.change("work", rewindTo("back", v1alpha1.RewindConversation, v1alpha1.RewindTarget{Message: ptr.To[int64](3)}))
		w.until("work", v1alpha1.ReasonRewinding)
		w.untilStopped(p)
		p = w.pod("work", 2)
		w.Expect(*w.operation(p)).To(Equal(daemonapi.Operation{
			Kind: daemonapi.OperationRewind, ID: "back", OnDrift: "Fail", Position: 3,
			Scope: "Conversation", Preserve: "Branch", Branch: "clew/before-back",
		}))
		By("preparing the workspace")
		w.Expect(w.kubelet.Prepared(w.ctx, p, 0, daemonapi.PrepareResult{
			Operation: "back", FromCheckpoint: 2, ToPosition: 3, Memory: v1alpha1.AgentMemoryRendered,
		})).To(Succeed())
		w.Expect(w.kubelet.AgentRuns(w.ctx, p)).To(Succeed())
		r := w.until("work", v1alpha1.ReasonRunning).Status.Rewind
		w.Expect(r.State).To(Equal(v1alpha1.OperationCompleted))
		w.Expect(r.ToCheckpoint).To(BeZero())
		w.Expect(r.ToPosition).To(BeEquivalentTo(3))
		w.Expect(r.Message).To(ContainSubstring("the conversation was rewound to message 3"))
		w.Expect(r.Message).To(ContainSubstring("every saved session of the agent is newer"))
	})

	It("is refused if there is no such position", func() {
		w := newWorld()
		w.running("work")
		w.say("work", 20)
		w.checkpointAt("work", 6)
		for id, c := range map[string]struct {
			to     v1alpha1.RewindTarget
			reason string
		}{
			"beyond": {v1alpha1.RewindTarget{Message: ptr.To[int64](21)}, v1alpha1.ReasonPositionNotFound},
			"back":   {v1alpha1.RewindTarget{MessagesBack: ptr.To[int32](20)}, v1alpha1.ReasonPositionNotFound},
			"early":  {v1alpha1.RewindTarget{Message: ptr.To[int64](5)}, v1alpha1.ReasonInvalidState},
		} {
			By("requesting " + id)
			w.change("work", rewindTo(id, v1alpha1.RewindBoth, c.to))
			w.Eventually(w.current).WithArguments("work").Should(HaveField("Status.Rewind", HaveValue(SatisfyAll(
				HaveField("ID", id), HaveField("State", v1alpha1.OperationRefused), HaveField("Reason", c.reason),
			))))
		}
		w.until("work", v1alpha1.ReasonRunning)
		w.Expect(w.task("work").Status.Attempts).To(HaveLen(1))
	})

	It("waits until the history resolves its target", func() {
		w := newWorld()
		p := w.running("work")
		w.say("work", 20)
		w.checkpointAt("work", 6)
		w.checkpoint("work-1")
		By("requesting the rewind while the history store is down")
		w.store.SetDown(true)
		w.change("work", rewindTo("back", v1alpha1.RewindBoth, v1alpha1.RewindTarget{MessagesBack: ptr.To[int32](5)}))
		w.Eventually(w.current).WithArguments("work").Should(HaveField("Status.Rewind", HaveValue(SatisfyAll(
			HaveField("State", v1alpha1.OperationPending), HaveField("Reason", v1alpha1.ReasonHistoryUnavailable),
		))))
		w.until("work", v1alpha1.ReasonRunning)
		By("bringing the history store back")
		w.store.SetDown(false)
		w.until("work", v1alpha1.ReasonRewinding)
		w.Expect(w.rewind("work").ToCheckpoint).To(BeEquivalentTo(1))
		w.untilStopped(p)
		w.Expect(w.operation(w.pod("work", 2))).To(HaveField("CheckpointPosition", BeEquivalentTo(6)))
	})

	It("marks the damaged checkpoint that a message was resolved to", func() {
		w := newWorld()
		w.say(w.apply("work").Name, 20)
		p := w.pod("work", 1)
		w.start(p)
		w.complete("work", p)
		c := w.checkpoint("work-1")
		w.change("work", rewindTo("back", v1alpha1.RewindBoth, v1alpha1.RewindTarget{Message: ptr.To[int64](9)}))
		w.Expect(w.kubelet.Prepared(w.ctx, w.pod("work", 2), 1, daemonapi.PrepareResult{
			Reason: v1alpha1.ReasonCheckpointCorrupted, Permanent: true, Message: "an object of checkpoint 1 is damaged",
		})).To(Succeed())
		w.Eventually(w.objects.Object(c)).Should(HaveReason(v1alpha1.CheckpointIntact, v1alpha1.ReasonCorrupted))
	})
})

var _ = Describe("a Checkpoint object", func() {
	It("shows the tool, the session and the position in the conversation", func() {
		w := newWorld()
		w.running("work")
		w.store.AddCheckpoint(w.id("work"), history.Checkpoint{
			Attempt: 1, Trigger: string(v1alpha1.TriggerBeforeRiskyTool), Time: time.Now(), Durable: true,
			Position: history.Position{Branch: "main", Position: 9, ToolCalls: 4}, Digest: strings.Repeat("ab", 32),
			Totals:    history.Totals{Messages: 9, InputTokens: 100, OutputTokens: 20, CostMicroUSD: 3},
			RiskyTool: &history.RiskyTool{Name: "Bash", CallID: strings.Repeat("x", 1000), Before: true},
			Session:   &history.AgentSession{Agent: "ClaudeCode", ID: "s-1", Version: "2.1\x00"},
		})
		c := w.checkpoint("work-1")
		w.Expect(c.Status.Trigger).To(Equal(v1alpha1.TriggerBeforeRiskyTool))
		w.Expect(c.Status.RiskyTool.Name).To(Equal("Bash"))
		w.Expect(c.Status.RiskyTool.Guarantee).To(Equal(v1alpha1.RiskyToolBefore))
		w.Expect(c.Status.RiskyTool.CallID).To(HaveLen(255 + len("…")))
		w.Expect(*c.Status.Session).To(Equal(v1alpha1.AgentSession{Agent: "ClaudeCode", ID: "s-1", Version: `2.1\x00`}))
		w.Expect(*c.Status.Conversation).To(Equal(v1alpha1.CheckpointConversation{
			ConversationPosition: v1alpha1.ConversationPosition{Branch: "main", Position: 9, ToolCalls: 4},
			MessageCount:         9, InputTokens: 100, OutputTokens: 20, CostMicroUSD: 3, Digest: strings.Repeat("ab", 32),
		}))
	})
})

var _ = Describe("a ConversationSnapshot", func() {
	When("the task's policy takes snapshots", func() {
		It("gets an object for each", func() {
			w := newWorld()
			p := w.running("work")
			w.say("work", 100)
			w.note("work", 50)
			w.note("work", 100)
			w.Expect(w.automatic()).To(BeEmpty(), "they are made with the next write of the task's status")
			w.checkpointAt("work", 100)
			s := &v1alpha1.ConversationSnapshot{}
			for _, name := range []string{"work-snapshot-1", "work-snapshot-2"} {
				s = &v1alpha1.ConversationSnapshot{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: name}}
				w.Eventually(func() error { return w.client.Get(w.ctx, client.ObjectKeyFromObject(s), s) }).Should(Succeed())
				w.Eventually(w.objects.Object(s)).Should(HaveReason(v1alpha1.SnapshotReady, v1alpha1.ReasonResolved))
			}
			w.Expect(s.OwnerReferences[0].UID).To(Equal(w.task("work").UID))
			w.Expect(*s.Spec.Position).To(BeEquivalentTo(100))
			w.Expect(s.Status.Trigger).To(Equal(v1alpha1.SnapshotAutomatic))
			w.Expect(s.Status.InputTokens).To(BeEquivalentTo(1000))
			w.Expect(s.Status.Digest).To(Equal("digest-0-100"))
			w.Expect(s).To(HaveCondition(v1alpha1.SnapshotIntact, metav1.ConditionTrue))

			// An object that a person deleted does not come back, not even with a new manager.
			w.Expect(w.client.Delete(w.ctx, s)).To(Succeed())
			w.restartManager()
			for position := int64(150); position <= 1300; position += 50 {
				w.note("work", position)
			}
			w.say("work", 1300)
			w.complete("work", p)
			w.Eventually(w.automatic).Should(HaveLen(20))
			names := w.automatic()
			w.Expect(names).To(ContainElements("work-snapshot-7", "work-snapshot-26"))
			w.Expect(names).NotTo(ContainElement("work-snapshot-6"))
			w.Expect(w.task("work").Status.SnapshotCount).To(BeEquivalentTo(26))

			writes := func() map[string]int {
				count := map[string]int{}
				for _, request := range w.requests.list() {
					if i := strings.Index(request, "/conversationsnapshots"); i >= 0 {
						count[strings.Fields(request)[0]]++
					}
				}
				return count
			}
			// 2 and 20 were created, each got one status, and the one remaining of the first
			// two was deleted.
			w.Eventually(writes).Should(Equal(map[string]int{http.MethodPost: 22, http.MethodPut: 22, http.MethodDelete: 1}))
		})
	})

	When("the task's policy takes none", func() {
		It("gets no object", func() {
			w := newWorld()
			p := w.running("work", func(t *v1alpha1.Task) { t.Spec.Conversation.SnapshotEveryMessages = ptr.To[int32](0) })
			w.say("work", 100)
			w.note("work", 50)
			w.complete("work", p)
			w.untilRecorded("work")
			w.Expect(w.automatic()).To(BeEmpty())
		})
	})

	It("is verified against the history repeatedly", func() {
		w := newWorld()
		w.stop()
		w.verifyEvery = 200 * time.Millisecond
		w.startManager()
		w.complete("work", w.running("work"))
		w.say("work", 30)
		s := &v1alpha1.ConversationSnapshot{ObjectMeta: metav1.ObjectMeta{Name: "mine"}, Spec: v1alpha1.ConversationSnapshotSpec{
			TaskRef: v1alpha1.NameReference{Name: "work"}, Position: ptr.To[int64](25),
		}}
		w.create(s)
		intact := func(reason string) {
			w.Helper()
			w.Eventually(w.objects.Object(s)).Should(HaveReason(v1alpha1.SnapshotIntact, reason))
		}
		intact(v1alpha1.ReasonVerified)
		w.Expect(s.Status.Trigger).To(Equal(v1alpha1.SnapshotManual))
		By("losing a message")
		w.store.SetCorrupted(w.id("work"), "message 7 is missing")
		intact(v1alpha1.ReasonCorrupted)
		w.Expect(s).To(haveMessage(v1alpha1.SnapshotIntact, ContainSubstring("message 7 is missing")))
		w.Expect(s).To(HaveCondition(v1alpha1.SnapshotReady, metav1.ConditionTrue), "what it names is known all the same")
		By("restoring the message")
		w.store.SetCorrupted(w.id("work"), "")
		intact(v1alpha1.ReasonVerified)

		By("a snapshot beyond the end of the conversation")
		late := s.DeepCopy()
		late.ObjectMeta, late.Spec.Position = metav1.ObjectMeta{Name: "late"}, ptr.To[int64](99)
		w.create(late)
		w.Eventually(w.objects.Object(late)).Should(HaveReason(v1alpha1.SnapshotReady, v1alpha1.ReasonPositionNotFound))
	})
})
