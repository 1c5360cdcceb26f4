package controller_test

import (
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/daemonapi"
	"github.com/clew-dev/clew/internal/history"
	. "github.com/clew-dev/clew/internal/testing/matchers"
)

var _ = Describe("a damaged checkpoint", func() {
	const commit = "0123456789012345678901234567890123456789"
	const nearest = "a.txt is missing; checkpoint 7 is the nearest earlier one that is intact"
	publishes := func(t *v1alpha1.Task) { t.Spec.Publish = &v1alpha1.Publish{Branch: "clew/fix"} }
	cannotRead := daemonapi.PublishResult{Reason: v1alpha1.ReasonCheckpointCorrupted, Message: "git cannot read a.txt", Retryable: true, NotPushed: true}
	damaged := history.Integrity{Verified: time.Now(), Damage: "a.txt is missing", IntactBefore: 7}
	notPublished := func(message string) OmegaMatcher {
		return HaveField("Status.Conditions", ContainElement(SatisfyAll(HaveField("Type", v1alpha1.TaskPublished),
			HaveField("Reason", v1alpha1.ReasonCheckpointCorrupted), HaveField("Message", ContainSubstring(message)))))
	}

	It("is not published before it has been healed", func() {
		w := newWorld()
		w.complete("fix", w.running("fix"))
		w.store.SetIntegrity(w.id("fix"), 1, damaged)
		w.change("fix", publishes)
		w.Eventually(w.objects.Object(w.task("fix"))).Should(notPublished(nearest))
		By("healing it")
		w.store.SetIntegrity(w.id("fix"), 1, history.Integrity{Verified: time.Now()})
		pod, config := w.publisher("fix", 1)
		w.publishEnds(pod, daemonapi.PublishResult{Reason: v1alpha1.ReasonPublished, Ref: config.Ref, Commit: commit})
		w.Eventually(w.objects.Object(w.task("fix"))).Should(HaveCondition(v1alpha1.TaskPublished, metav1.ConditionTrue))
	})

	It("is published, and its branches are pushed, if only messages are damaged", func() {
		w := newWorld()
		w.complete("fix", w.running("fix", func(t *v1alpha1.Task) { t.Spec.Repository = &v1alpha1.Repository{URL: "https://git.example.com/p.git"} }))
		w.store.SetIntegrity(w.id("fix"), 1, history.Integrity{Verified: time.Now(), Damage: "message 3 is missing", MessagesOnly: true})
		w.Eventually(w.objects.Object(w.checkpoint("fix-1"))).Should(HaveReason(v1alpha1.CheckpointIntact, v1alpha1.ReasonCorrupted))
		w.change("fix", publishes)
		w.publisher("fix", 1)
		w.pushedTo("fix-1", v1alpha1.CheckpointBranch{Name: "clew/one", Push: v1alpha1.PushOrigin})
		w.branchPublisher("fix-1", "clew/one", 1)
	})

	It("is marked by whoever publishes it, and published again when it is intact", func() {
		w := newWorld()
		w.complete("fix", w.running("fix", publishes))
		c := w.checkpoint("fix-1")
		pod, _ := w.publisher("fix", 1)
		w.publishEnds(pod, cannotRead)
		w.Eventually(w.objects.Object(c)).Should(HaveReason(v1alpha1.CheckpointIntact, v1alpha1.ReasonCorrupted))
		By("confirming it")
		w.store.SetIntegrity(w.id("fix"), 1, damaged)
		w.Eventually(w.objects.Object(w.task("fix"))).Should(notPublished(nearest))
		By("healing it")
		w.store.SetIntegrity(w.id("fix"), 1, history.Integrity{Verified: time.Now().Add(time.Minute)})
		w.Eventually(w.objects.Object(c)).Should(HaveReason(v1alpha1.CheckpointIntact, v1alpha1.ReasonVerified))
		pod, config := w.publisher("fix", 2)
		w.publishEnds(pod, daemonapi.PublishResult{Reason: v1alpha1.ReasonPublished, Ref: config.Ref, Commit: commit})
		w.Eventually(w.objects.Object(w.task("fix"))).Should(HaveCondition(v1alpha1.TaskPublished, metav1.ConditionTrue))
	})

	It("is marked by whoever pushes a branch of it, which is pushed again when it is intact", func() {
		w := newWorld()
		w.running("fix", func(t *v1alpha1.Task) { t.Spec.Repository = &v1alpha1.Repository{URL: "https://git.example.com/p.git"} })
		w.recordMany("fix", 1)
		c := w.checkpoint("fix-1")
		w.pushedTo("fix-1", v1alpha1.CheckpointBranch{Name: "clew/one", Push: v1alpha1.PushOrigin})
		pod, _ := w.branchPublisher("fix-1", "clew/one", 1)
		w.publishEnds(pod, cannotRead)
		w.Eventually(w.objects.Object(c)).Should(HaveReason(v1alpha1.CheckpointIntact, v1alpha1.ReasonCorrupted))
		By("confirming it")
		w.store.SetIntegrity(w.id("fix"), 1, damaged)
		w.eventuallyBranches("fix-1", HaveExactElements(HaveField("Origin", SatisfyAll(
			HaveField("Reason", v1alpha1.ReasonCheckpointCorrupted), HaveField("Message", ContainSubstring(nearest))))))
		By("healing it")
		w.store.SetIntegrity(w.id("fix"), 1, history.Integrity{Verified: time.Now().Add(time.Minute)})
		pod, config := w.branchPublisher("fix-1", "clew/one", 2)
		w.publishEnds(pod, daemonapi.PublishResult{Reason: v1alpha1.ReasonPublished, Ref: config.Ref, Commit: commit})
		w.eventuallyAtOrigin("fix-1", v1alpha1.ReasonPublished)
	})
})
