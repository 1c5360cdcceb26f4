//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	clewv1 "github.com/clew-dev/clew/api/v1alpha1"
)

// The state before a rewind is pushed out of the pod before anything changes. While the
// gitstore has no room for it, the rewind waits and says so, nothing is lost, and it
// continues when there is room again.
var _ = Describe("a rewind while the quota of the gitstore is exhausted", long, Label("slow"), func() {
	w := newWorld()

	It("waits and says so, loses nothing, and completes when there is room again", func(ctx SpecContext) {
		w.create(ctx, w.newTask("full", idle...))
		w.inAgent(ctx, "full", `echo one > /workspace/mark`)
		w.take(ctx, "full", "full-one")
		makeRoom := w.fillQuota(ctx)
		last := w.untilQuotaRefuses(ctx, "full")
		w.inAgent(ctx, "full", `echo three > /workspace/mark`)

		w.requestRewind(ctx, "full", "back", "full-one")

		w.eventually(ctx, func() clewv1.TaskStatus { return w.task(ctx, "full").Status }).WithTimeout(5*time.Minute).Should(SatisfyAll(
			HaveField("Rewind", HaveValue(HaveField("State", clewv1.OperationInProgress))),
			HaveField("Attempts", WithTransform(func(all []clewv1.Attempt) int { return len(all) }, BeNumerically(">=", 2))),
			HaveField("Conditions", ContainElement(SatisfyAll(
				HaveField("Type", clewv1.TaskSucceeded), HaveField("Reason", clewv1.ReasonGitStoreRefused)))),
		), "the rewind waits for room, and says so")
		Expect(conditionMessage(w.task(ctx, "full"))).To(And(
			HavePrefix("the gitstore refuses the push: QuotaExceeded: the repositories of the namespace "+w.namespace+" take "),
			ContainSubstring("and its quota is "+w.namespaceQuota(ctx)), HaveSuffix("; retrying")))
		w.show(ctx, "full")

		makeRoom()
		w.untilRewound(ctx, "full", "back", 3*time.Minute)
		Expect(w.inAgent(ctx, "full", "cat /workspace/mark")).To(Equal("one\n"))
		for _, c := range w.checkpoints(ctx, "full") {
			w.untilDurable(ctx, c.Name)
		}
		w.show(ctx, "full")
		w.rewind(ctx, "full", "there", fmt.Sprintf("full-%d", w.task(ctx, "full").Status.Rewind.FromCheckpoint))
		Expect(w.inAgent(ctx, "full", "cat /workspace/mark")).To(Equal("three\n"), "the state when the rewind was requested")
		w.rewind(ctx, "full", "further", last)
		Expect(w.inAgent(ctx, "full", "cat /workspace/mark")).To(Equal(last + "\n"))
	})
})

// untilQuotaRefuses takes checkpoints of a file "mark" that contains their name, until the
// gitstore, which measures from time to time, has no room for one. It returns that one's
// name.
func (w *world) untilQuotaRefuses(ctx context.Context, task string) (checkpoint string) {
	GinkgoHelper()
	taken := 0
	request := func() {
		taken++
		checkpoint = fmt.Sprintf("%s-more-%d", task, taken)
		w.inAgent(ctx, task, "echo "+checkpoint+" > /workspace/mark")
		w.requestCheckpoint(ctx, task, checkpoint)
	}
	request()
	w.eventually(ctx, func() error {
		if state(w.task(ctx, task)) == clewv1.ReasonGitStoreRefused {
			return nil
		}
		ckpt := &clewv1.Checkpoint{}
		if err := w.get(ctx, checkpoint, ckpt); err != nil {
			return err
		}
		if meta.IsStatusConditionTrue(ckpt.Status.Conditions, clewv1.CheckpointDurable) {
			request()
		}
		return fmt.Errorf("the gitstore took %d checkpoints", taken)
	}).WithTimeout(3*time.Minute).Should(Succeed(), "the quota is exhausted")
	return checkpoint
}

// fillQuota uses up this namespace's quota in the gitstore, until makeRoom is called.
func (w *world) fillQuota(ctx context.Context) (makeRoom func()) {
	GinkgoHelper()
	filler := w.repository() + "/filler"
	w.inGitstore(ctx, fmt.Sprintf("fallocate -l %s %s", w.namespaceQuota(ctx), filler))
	DeferCleanup(func(ctx SpecContext) { w.inGitstore(ctx, "rm -f "+filler) })
	return func() { w.inGitstore(ctx, "rm -f "+filler) }
}

func (w *world) namespaceQuota(ctx context.Context) string {
	GinkgoHelper()
	gitstore := &appsv1.StatefulSet{}
	Expect(w.kube.Get(ctx, client.ObjectKey{Namespace: systemNamespace, Name: "clew-gitstore"}, gitstore)).To(Succeed())
	for _, arg := range gitstore.Spec.Template.Spec.Containers[0].Args {
		if quota, ok := strings.CutPrefix(arg, "--namespace-quota-bytes="); ok {
			return quota
		}
	}
	Fail("the gitstore has no quota")
	return ""
}

// show adds a task's status and its Events to the report: what a user sees.
func (w *world) show(ctx context.Context, task string) {
	GinkgoHelper()
	GinkgoWriter.Printf("kubectl describe task %s\n%s\nkubectl get checkpoints\n%s\nkubectl get events\n%s\n", task,
		w.kubectl(ctx, "describe", "tasks.clew.dev", task),
		w.kubectl(ctx, "get", "checkpoints.clew.dev"),
		w.kubectl(ctx, "get", "events", "--field-selector", "involvedObject.name="+task))
}
