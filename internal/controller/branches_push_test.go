package controller_test

import (
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/daemonapi"
	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/resources"
	. "github.com/clew-dev/clew/internal/testing/matchers"
)

// pushedTo sets the branches of a Checkpoint that are pushed to the repository.
func (w *world) pushedTo(name string, branches ...v1alpha1.CheckpointBranch) {
	w.Helper()
	w.Eventually(func() error {
		c := w.checkpoint(name)
		c.Spec.Branches = branches
		return w.client.Update(w.ctx, c)
	}).Should(Succeed())
}

// branchPublisher waits for the pod that pushes a branch, and returns what it is told.
func (w *world) branchPublisher(checkpoint, branch string, number int64) (*corev1.Pod, daemonapi.PublishConfig) {
	w.Helper()
	p := &corev1.Pod{}
	key := client.ObjectKey{Namespace: w.namespace, Name: resources.BranchPublisherName(w.checkpoint(checkpoint), branch, number)}
	w.Eventually(func() error { return w.client.Get(w.ctx, key, p) }).Should(Succeed(), "pod %s", key.Name)
	config, err := daemonapi.DecodePublishConfig(p.Spec.Containers[0].Env[0].Value)
	w.Expect(err).NotTo(HaveOccurred())
	return p, config
}

// eventuallyAtOrigin waits for what is known of a Checkpoint's only branch at the repository.
func (w *world) eventuallyAtOrigin(name, reason string) *v1alpha1.OriginBranchStatus {
	w.Helper()
	w.eventuallyBranches(name, HaveExactElements(HaveField("Origin", HaveField("Reason", reason))))
	return w.checkpoint(name).Status.Branches[0].Origin
}

var _ = Describe("branches at the repository", func() {
	const commit = "0123456789012345678901234567890123456789"
	cloned := func(t *v1alpha1.Task) { t.Spec.Repository = &v1alpha1.Repository{URL: "https://git.example.com/p.git"} }
	origin := func(b v1alpha1.CheckpointBranch) v1alpha1.CheckpointBranch {
		b.Push = v1alpha1.PushOrigin
		return b
	}

	It("are pushed by one pod of the task at a time, whoever restarts, and none is left", func() {
		w := newWorld()
		w.running("fix", cloned)
		w.recordMany("fix", 2)
		w.pushedTo("fix-1", origin(v1alpha1.CheckpointBranch{Name: "clew/one"}))
		pod, config := w.branchPublisher("fix-1", "clew/one", 1)
		w.Expect(config.Ref).To(Equal("refs/heads/clew/one"))
		w.Expect(config.ProtectedPaths).To(ContainElement(".github/workflows/"))
		w.Expect(metav1.GetControllerOf(pod).Kind).To(Equal("Checkpoint"))

		By("asking for a branch of another checkpoint, and restarting the manager")
		w.pushedTo("fix-2", origin(v1alpha1.CheckpointBranch{Name: "clew/two"}))
		w.eventuallyAtOrigin("fix-2", v1alpha1.ReasonPublishPending)
		w.restartManager()
		w.eventuallyAtOrigin("fix-1", v1alpha1.ReasonPublishing)
		w.publishEnds(pod, daemonapi.PublishResult{Reason: v1alpha1.ReasonProtectedPaths, Message: "it changes 1 file", Commit: commit, Protected: []string{"ci/a"}})
		w.Expect(w.eventuallyAtOrigin("fix-1", v1alpha1.ReasonProtectedPaths).HeldCommit).To(Equal(commit))
		w.untilGone(pod)
		pod, _ = w.branchPublisher("fix-2", "clew/two", 1)
		w.publishEnds(pod, daemonapi.PublishResult{Reason: v1alpha1.ReasonPublished, Ref: "refs/heads/clew/two", Commit: commit})
		w.eventuallyAtOrigin("fix-2", v1alpha1.ReasonPublished)
		w.untilGone(pod)

		By("agreeing to the protected files")
		w.pushedTo("fix-1", origin(v1alpha1.CheckpointBranch{Name: "clew/one", ApprovedCommit: commit}))
		pod, config = w.branchPublisher("fix-1", "clew/one", 2)
		w.Expect(config.ApprovedCommit).To(Equal(commit))
		w.publishEnds(pod, daemonapi.PublishResult{Reason: v1alpha1.ReasonPublished, Ref: config.Ref, Commit: commit})
		w.Expect(w.eventuallyAtOrigin("fix-1", v1alpha1.ReasonPublished).Commit).To(Equal(commit))
		w.untilGone(pod)
		w.Expect(w.reasons("fix")).To(ContainElements(v1alpha1.EventBranchNotPublished, v1alpha1.EventBranchPublished))
		w.Expect(w.task("fix").Status.Publish).To(BeNil(), "the task itself publishes nothing")
		w.Expect(w.store.Events(w.id("fix").UID)).To(ContainElement(And(
			HaveField("Reason", v1alpha1.EventBranchPublished), HaveField("Checkpoint", BeEquivalentTo(1)), HaveField("Actor", And(Equal(w.checkpoint("fix-1").Spec.Branches[0].RequestedBy), Not(BeEmpty()))),
		)), "the timeline says who asked")
	})

	It("are pushed although nobody knows whether a pod was created", func() {
		w := newWorld()
		w.running("fix", cloned)
		w.recordMany("fix", 1)
		w.loseAnswer(resources.BranchPublisherName(w.checkpoint("fix-1"), "clew/one", 1))
		w.pushedTo("fix-1", origin(v1alpha1.CheckpointBranch{Name: "clew/one"}))
		pod, config := w.branchPublisher("fix-1", "clew/one", 2)
		w.publishEnds(pod, daemonapi.PublishResult{Reason: v1alpha1.ReasonPublished, Ref: config.Ref, Commit: commit})
		w.Expect(w.eventuallyAtOrigin("fix-1", v1alpha1.ReasonPublished).Commit).To(Equal(commit))
	})

	It("have a number of their own each, also after the checkpoint was verified", func() {
		w := newWorld()
		w.running("fix", cloned)
		w.recordMany("fix", 1)
		w.pushedTo("fix-1", origin(v1alpha1.CheckpointBranch{Name: "clew/one"}))
		pod, config := w.branchPublisher("fix-1", "clew/one", 1)
		w.publishEnds(pod, daemonapi.PublishResult{Reason: v1alpha1.ReasonPublished, Ref: config.Ref, Commit: commit})
		w.eventuallyAtOrigin("fix-1", v1alpha1.ReasonPublished)
		w.untilGone(pod)
		w.store.SetIntegrity(w.id("fix"), 1, history.Integrity{Verified: time.Now()})
		w.Eventually(w.objects.Object(w.checkpoint("fix-1"))).Should(HaveCondition(v1alpha1.CheckpointIntact, metav1.ConditionTrue))
		w.Expect(w.checkpoint("fix-1").Status.BranchPushes).To(BeEquivalentTo(1))

		By("taking the branch out, and asking for it again")
		w.pushedTo("fix-1")
		w.eventuallyBranches("fix-1", BeEmpty())
		w.pushedTo("fix-1", origin(v1alpha1.CheckpointBranch{Name: "clew/one"}))
		w.branchPublisher("fix-1", "clew/one", 2)
	})

	It("are not pushed any more once the entry is gone", func() {
		w := newWorld()
		w.running("fix", cloned)
		w.recordMany("fix", 1)
		w.pushedTo("fix-1", origin(v1alpha1.CheckpointBranch{Name: "clew/one"}))
		pod, _ := w.branchPublisher("fix-1", "clew/one", 1)
		w.pushedTo("fix-1")
		w.untilGone(pod)
		w.eventuallyBranches("fix-1", BeEmpty())
	})

	It("cost nothing while they wait for the pod of another one, and are pushed when it ends", func() {
		w := newWorld()
		w.running("fix", cloned)
		w.recordMany("fix", 3)
		w.pushedTo("fix-1", origin(v1alpha1.CheckpointBranch{Name: "clew/one"}))
		pod, _ := w.branchPublisher("fix-1", "clew/one", 1)
		for _, name := range []string{"fix-2", "fix-3"} {
			w.pushedTo(name, origin(v1alpha1.CheckpointBranch{Name: "clew/" + name}))
			w.eventuallyAtOrigin(name, v1alpha1.ReasonPublishPending)
		}
		reads := func() int { return w.requests.count("/api/v1/namespaces/" + w.namespace + "/pods?") }
		before := reads()
		w.Consistently(reads, time.Second).Should(Equal(before), "live lists of the pods that push")

		w.publishEnds(pod, daemonapi.PublishResult{Reason: v1alpha1.ReasonPublished, Ref: "refs/heads/clew/one", Commit: commit})
		left := map[string]string{"fix-2": "clew/fix-2", "fix-3": "clew/fix-3"}
		for len(left) > 0 {
			pods := &corev1.PodList{}
			w.Eventually(func() []corev1.Pod {
				w.Expect(w.client.List(w.ctx, pods, client.InNamespace(w.namespace), client.HasLabels{v1alpha1.LabelPublication})).To(Succeed())
				return pods.Items
			}).Should(HaveExactElements(HaveField("Name", Not(Equal(pod.Name)))), "the next pod, alone")
			pod = &pods.Items[0]
			owner := metav1.GetControllerOf(pod).Name
			w.Expect(left).To(HaveKey(owner))
			w.publishEnds(pod, daemonapi.PublishResult{Reason: v1alpha1.ReasonPublished, Ref: "refs/heads/" + left[owner], Commit: commit})
			w.eventuallyAtOrigin(owner, v1alpha1.ReasonPublished)
			delete(left, owner)
		}
	})
})
