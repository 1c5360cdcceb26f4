//go:build e2e

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"os/exec"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	clewv1 "github.com/clew-dev/clew/api/v1alpha1"
)

// asksFirst has a person asked about commands that contain one word, and refuses those with another.
func asksFirst(tool string) func(*clewv1.Task) {
	return func(task *clewv1.Task) {
		task.Spec.CheckpointPolicy.BeforeRiskyTools = []clewv1.RiskyToolPattern{
			{Tool: tool, Input: "asked-for", Action: clewv1.RiskyToolAsk, Message: "pushes go to customers"},
			{Tool: tool, Input: "forbidden", Action: clewv1.RiskyToolDeny, Message: "delete nothing there"},
		}
	}
}

// pushes is an agent without hooks: it announces a push, and carries it out a moment later, unless its
// prompt says that it was denied.
const pushes = `
	step() {
		printf '{"type":"tool_call","id":"%s","name":"shell","input":{"command":"%s"}}\n' "$1" "$2"
		sleep 5
		touch "$1"
		printf '{"type":"tool_result","id":"%s","output":"ran"}\n' "$1"
	}
	case "$CLEW_PROMPT" in
	*denied*) printf '{"type":"message","role":"assistant","text":"left out"}\n' ;;
	*) step push "asked-for" ;;
	esac`

var _ = Describe("a tool call about which a person is asked", func() {
	w := newWorld()

	// Serial: it kills a component that every task needs.
	It("waits in the hook of its agent, whatever is killed, and runs once it is approved", Serial, Label("agents", "kill"), func(ctx SpecContext) {
		m := w.newModel(ctx, "asks", script{Steps: 5, Commands: map[int]string{2: "touch asked-for", 3: "touch asked-for-again", 4: "touch forbidden"}})
		task := w.agentTask(ctx, "asks", claude(), m)
		asksFirst("^Bash$")(task)
		w.create(ctx, task)

		first := w.untilAsked(ctx, "asks")
		pod := &corev1.Pod{}
		Expect(w.get(ctx, w.task(ctx, "asks").Status.Attempts[0].PodName, pod)).To(Succeed())
		Expect(killContainer(pod, "daemon")).To(Succeed())
		Expect(w.killComponent(ctx, "manager")).To(Succeed())
		Consistently(ctx, func() string { return outputOf(w.conversation(ctx, "asks"), 2) }).WithTimeout(15*time.Second).WithPolling(between).
			Should(BeEmpty(), "the call does not run before it is answered")
		Expect(w.untilAsked(ctx, "asks").ID).To(Equal(first.ID), "the same call waits under the same id")
		w.answers(ctx, "ann", "approve", "asks", "--reason", "looked at it")

		second := w.untilAsked(ctx, "asks")
		Expect(second.ID).NotTo(Equal(first.ID), "another call is asked about anew")
		w.answers(ctx, "bob", "deny", "asks", second.ID, "--reason", "once is enough")

		got := w.untilState(ctx, "asks", 4*time.Minute, clewv1.ReasonCompleted)
		Expect(got.Status.Attempts).To(HaveLen(1), "the pod stayed")
		Expect(got.Status.Requests).To(BeEmpty())
		entries := w.conversation(ctx, "asks")
		Expect(stepsOf(entries)).To(Equal(upTo(5)), "the agent went on after each answer")
		Expect(outputOf(entries, 2)).NotTo(ContainSubstring("denied"))
		Expect(outputOf(entries, 3)).To(ContainSubstring("denied by bob: once is enough"))
		Expect(outputOf(entries, 4)).To(ContainSubstring("delete nothing there"))
		w.expectActors(ctx, "asks", map[string]string{clewv1.EventToolApproved: "ann", clewv1.EventToolDenied: "bob"})
		Expect(w.timeline(ctx, "asks")).To(ContainElement(HaveField("Reason", clewv1.EventToolRefused)))
		Expect(fmt.Sprint(entries)).To(ContainSubstring("was approved by ann: looked at it"), "the conversation shows the answer")
		Eventually(ctx, func() []string { return w.events(ctx, func(e corev1.Event) string { return e.Message }) }).WithTimeout(time.Minute).
			Should(ContainElement(ContainSubstring("answered by ann")), "the Events")
	})

	DescribeTable("stops an agent without hooks, which is told the answer", func(ctx SpecContext, verb, wanted string) {
		task := w.newTask("stops", "sh", "-ec", pushes)
		asksFirst("^shell$")(task)
		w.create(ctx, task)

		asked := w.untilAsked(ctx, "stops")
		w.untilStopped(ctx, "stops")
		w.answers(ctx, "ann", verb, "stops", asked.ID, "--reason", "so it is")

		got := w.untilState(ctx, "stops", 3*time.Minute, clewv1.ReasonCompleted)
		Expect(got.Status.Attempts).To(HaveLen(2))
		Expect(got.Status.Attempts[0].Outcome).To(Equal(clewv1.AttemptStopped))
		entries := w.conversation(ctx, "stops")
		Expect(strings.Join(texts(entries, "user"), "\n")).To(ContainSubstring("(so it is)"), "the agent was told why")
		all, err := json.Marshal(entries)
		Expect(err).NotTo(HaveOccurred())
		Expect(string(all)).To(ContainSubstring(wanted))
		Expect(w.untilListed(ctx, "stops")).NotTo(BeEmpty(), "with a checkpoint at the call")
	}, Entry("approved", "approve", "ran"), Entry("denied", "deny", "left out"))

	It("is denied when nobody answers, and nobody answers without the verb", func(ctx SpecContext) {
		task := w.newTask("late", "sh", "-ec", pushes)
		asksFirst("^shell$")(task)
		task.Spec.CheckpointPolicy.ApprovalDeadlineSeconds = ptr.To[int32](45)
		w.create(ctx, task)

		asked := w.untilAsked(ctx, "late")
		w.kubectl(ctx, "create", "role", "changes", "--verb=get,list,patch,update", "--resource=tasks.clew.dev")
		w.kubectl(ctx, "create", "rolebinding", "changes", "--role=changes", "--user=mallory")
		out, err := exec.CommandContext(ctx, "kubectl", "clew", "--namespace", w.namespace, "--as=mallory", "approve", "late", asked.ID).CombinedOutput()
		Expect(err).To(HaveOccurred())
		Expect(string(out)).To(ContainSubstring("you are not allowed to answer"))

		w.untilState(ctx, "late", 4*time.Minute, clewv1.ReasonCompleted)
		w.expectActors(ctx, "late", map[string]string{clewv1.EventToolDenied: "clew"})
		Expect(texts(w.conversation(ctx, "late"), "assistant")).To(ContainElement("left out"))
	})
})

// untilAsked waits until a call of the task waits for an answer, and returns its request.
func (w *world) untilAsked(ctx context.Context, name string) (asked clewv1.ToolRequest) {
	GinkgoHelper()
	w.eventually(ctx, func() error {
		task := w.task(ctx, name)
		for _, r := range task.Status.Requests {
			if r.Answer == nil && state(task) == clewv1.ReasonWaitingForApproval {
				asked = r
				return nil
			}
		}
		return fmt.Errorf("the task is %q: %s; its requests are %+v", state(task), conditionMessage(task), task.Status.Requests)
	}).WithTimeout(4*time.Minute).Should(Succeed(), "a call of task %s waits", name)
	return asked
}

// untilStopped waits until the last attempt of the task has ended.
func (w *world) untilStopped(ctx context.Context, name string) {
	GinkgoHelper()
	w.eventually(ctx, func() error {
		attempts := w.task(ctx, name).Status.Attempts
		if a := attempts[len(attempts)-1]; a.EndTime == nil {
			return fmt.Errorf("attempt %d has not ended", a.Number)
		}
		return nil
	}).WithTimeout(2*time.Minute).Should(Succeed(), "the agent of task %s is stopped", name)
}

// answers has a user with the rights of an administrator answer by kubectl clew.
func (w *world) answers(ctx context.Context, user string, args ...string) {
	GinkgoHelper()
	w.plugin(ctx, append([]string{"--as=" + user, "--as-group=system:masters"}, args...)...)
}

// expectActors expects who has caused what in the timeline.
func (w *world) expectActors(ctx context.Context, task string, want map[string]string) {
	GinkgoHelper()
	Eventually(ctx, func() map[string]string {
		actors := map[string]string{}
		for _, e := range w.timeline(ctx, task) {
			if _, wanted := want[e.Reason]; wanted {
				actors[e.Reason] = e.Actor
			}
		}
		return actors
	}).WithTimeout(time.Minute).WithPolling(between).Should(Equal(want), "the actors in the timeline of task %s", task)
}
