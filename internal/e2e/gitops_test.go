//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/cli-utils/pkg/kstatus/status"
	"sigs.k8s.io/controller-runtime/pkg/client"

	clewv1 "github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/testing/matchers"
)

// recordPushes makes a repository of the git host list each branch that is pushed.
const recordPushes = `printf '#!/bin/sh\nwhile read -r old new ref; do echo "$ref" >>pushes; done\n' >"$R/hooks/post-receive"; chmod +x "$R/hooks/post-receive"`

var _ = Describe("GitOps", long, func() {
	w := newWorld()

	DescribeTable("applies the same manifests every second while operations run, each of which happens once",
		func(ctx SpecContext, gitops syncer) {
			gitops.world = w
			p := w.newPushed(ctx)
			p.host(ctx, recordPushes)
			work, out := w.newTask("work", idle...), w.newTask("out", "sh", "-c", "echo one > one.txt")
			out.Spec.Repository = &clewv1.Repository{URL: p.url, CredentialsSecretRef: &clewv1.NameReference{Name: "git"}}
			gitops.manifests = []client.Object{work, out}
			gitops.until(ctx, func(g Gomega) {
				g.Expect(state(w.task(ctx, "work"))).To(Equal(clewv1.ReasonRunning))
				g.Expect(state(w.task(ctx, "out"))).To(Equal(clewv1.ReasonCompleted))
			})
			w.take(ctx, "work", "first")

			rounds := 0
			for start := time.Now(); time.Since(start) < pick(15*time.Second, 2*time.Minute); {
				rounds++
				gitops.asksForEverything(ctx, work, out, fmt.Sprintf("round-%d", rounds))
			}

			By("counting what happened")
			reportCount(rounds, "rewinds, forks and publishes during syncs")
			reportCount(gitops.syncs, "syncs")
			var handled, pushed []string
			for round := range rounds {
				handled = append(handled, fmt.Sprintf("Rewind/round-%d", round+1))
				pushed = append(pushed, fmt.Sprintf("refs/heads/clew/round-%d", round+1))
				Expect(w.starts(ctx, fmt.Sprintf("try-round-%d", round+1))).To(Equal(1))
			}
			Expect(w.task(ctx, "work")).To(And(HaveField("Generation", BeEquivalentTo(1+rounds)), HaveField("Status.HandledOperations", Equal(handled))))
			Expect(w.reasonsOf(ctx, "work")).To(HaveKeyWithValue(clewv1.EventTaskRewound, rounds))
			Expect(w.starts(ctx, "work")).To(Equal(1 + rounds))
			Expect(w.task(ctx, "out").Generation).To(BeEquivalentTo(1 + rounds))
			Expect(w.reasonsOf(ctx, "out")).To(HaveKeyWithValue(clewv1.EventTaskPublished, rounds))
			Expect(strings.Fields(p.host(ctx, `cat "$R/pushes"`))).To(Equal(pushed))
			tasks := &clewv1.TaskList{}
			Expect(w.kube.List(ctx, tasks, client.InNamespace(w.namespace))).To(Succeed())
			Expect(tasks.Items).To(HaveLen(2 + rounds))
		},
		Entry("as Argo CD does", SpecTimeout(pick(5*time.Minute, 10*time.Minute)), syncer{manager: "argocd-controller"}),
		Entry("as Flux does, which tries them first", SpecTimeout(pick(5*time.Minute, 10*time.Minute)), syncer{manager: "kustomize-controller", triesFirst: true}),
	)

	It("prunes Tasks and a Fork and makes them anew: nothing happens twice, and what is to be adopted goes on", SpecTimeout(6*time.Minute), func(ctx SpecContext) {
		p := w.newPushed(ctx)
		p.host(ctx, recordPushes)
		keeps, anew, out := w.newTask("keeps", idle...), w.newTask("anew", idle...), w.newTask("out", "sh", "-c", "echo one > one.txt")
		out.Spec.Repository = &clewv1.Repository{URL: p.url, CredentialsSecretRef: &clewv1.NameReference{Name: "git"}}
		out.Spec.Publish = &clewv1.Publish{Branch: "clew/out"}
		keeps.Spec.Adopt, out.Spec.Adopt = clewv1.AdoptLatest, clewv1.AdoptLatest
		gitops := &syncer{world: w, manager: "argocd-controller", manifests: []client.Object{keeps, anew, out}}
		gitops.until(ctx, func(g Gomega) {
			for _, name := range []string{"keeps", "anew"} {
				g.Expect(state(w.task(ctx, name))).To(Equal(clewv1.ReasonRunning))
			}
		})
		for _, name := range []string{"keeps", "anew"} {
			w.inAgent(ctx, name, "echo before > /workspace/work.txt")
			w.take(ctx, name, name+"-before")
		}
		keeps.Spec.Rewind, anew.Spec.Rewind = rewindTo("back", "keeps-before"), rewindTo("back", "anew-before")
		gitops.manifests = append(gitops.manifests, newFork(w.namespace, "try", "keeps", "keeps-before", "tried"))
		gitops.until(ctx, func(g Gomega) {
			g.Expect(w.task(ctx, "keeps")).To(hasRewound("back"))
			g.Expect(w.task(ctx, "anew")).To(hasRewound("back"))
			g.Expect(w.task(ctx, "out")).To(matchers.HaveCondition(clewv1.TaskPublished, metav1.ConditionTrue))
			g.Expect(w.theFork(ctx, "try")).To(matchers.HaveCondition(clewv1.ForkComplete, metav1.ConditionTrue))
			g.Expect(state(w.task(ctx, "tried"))).To(Equal(clewv1.ReasonRunning))
		})
		w.inAgent(ctx, "keeps", "echo after > /workspace/work.txt")
		w.take(ctx, "keeps", "keeps-after")
		formerly := map[string]*clewv1.Task{}
		for _, name := range []string{"keeps", "anew", "out", "tried"} {
			formerly[name] = w.task(ctx, name)
		}

		gitops.prune(ctx)
		gitops.until(ctx, func(g Gomega) {
			for _, name := range []string{"keeps", "anew", "out"} {
				g.Expect(w.task(ctx, name).UID).NotTo(Equal(formerly[name].UID))
			}
			g.Expect(w.task(ctx, "keeps")).To(hasRewound("back"))
			g.Expect(state(w.task(ctx, "anew"))).To(Equal(clewv1.ReasonRunning))
			g.Expect(w.task(ctx, "out")).To(matchers.HaveCondition(clewv1.TaskPublished, metav1.ConditionTrue))
			g.Expect(w.theFork(ctx, "try")).To(matchers.HaveReason(clewv1.ForkComplete, clewv1.ReasonTaskExists))
		})

		By("looking at the task that goes on")
		got := w.task(ctx, "keeps")
		Expect(got.Status.Adoption).To(HaveValue(HaveField("TaskUID", string(formerly["keeps"].UID))))
		Expect(got.Status.HandledOperations).To(ContainElement("Rewind/back"))
		Expect(got.Status.Rewind.Message).To(ContainSubstring("carried out by the former task"))
		before := &clewv1.Checkpoint{}
		Expect(w.get(ctx, "keeps-before", before)).To(Succeed())
		Expect(before.Status.TaskUID).To(Equal(string(got.UID)), "a Checkpoint that is not in git, and was not pruned")
		Expect(w.inAgent(ctx, "keeps", "cat /workspace/work.txt")).To(Equal("after\n"))
		w.untilStarts(ctx, "keeps", 3)
		Expect(w.reasonsOf(ctx, "keeps")).To(And(HaveKeyWithValue(clewv1.EventTaskRewound, 1), HaveKeyWithValue(clewv1.EventTaskAdopted, 1)))

		By("looking at the one that begins again")
		Expect(w.task(ctx, "anew").Status.Rewind).To(HaveValue(And(HaveField("State", clewv1.OperationNotApplicable),
			HaveField("Message", ContainSubstring("a new Task has nothing to rewind")))))
		Expect(w.reasonsOf(ctx, "anew")).To(And(HaveKeyWithValue(clewv1.EventNotApplicable, 1), Not(HaveKey(clewv1.EventTaskRewound))))
		w.untilStarts(ctx, "anew", 1)

		By("looking at what had ended before")
		Expect(state(w.task(ctx, "out"))).To(Equal(clewv1.ReasonCompleted))
		Expect(p.host(ctx, `cat "$R/pushes"`)).To(Equal("refs/heads/clew/out"), "it was pushed once")
		Expect(w.theFork(ctx, "try").Status.Conditions).To(ContainElement(HaveField("Message", ContainSubstring(`a Task "tried" that names a Fork "try" exists already`))))
		Expect(w.task(ctx, "tried").UID).To(Equal(formerly["tried"].UID))
		Expect(w.starts(ctx, "tried")).To(Equal(1))
	})
})

// asksForEverything changes the manifests so that they request a rewind, a fork and a publish,
// and syncs them until all three are done.
func (s *syncer) asksForEverything(ctx context.Context, work, out *clewv1.Task, id string) {
	GinkgoHelper()
	By("syncing manifests that request " + id)
	work.Spec.Rewind, out.Spec.Publish = rewindTo(id, "first"), &clewv1.Publish{Branch: "clew/" + id}
	s.manifests = append(s.manifests, newFork(s.namespace, id, "work", "first", "try-"+id))
	s.until(ctx, func(g Gomega) {
		task := s.task(ctx, "work")
		if task.Status.ObservedGeneration == task.Generation { // who waits for the sync believes that it is being done
			Expect(task.Status.Rewind).To(HaveValue(HaveField("ID", id)))
		}
		g.Expect(task).To(hasRewound(id))
		g.Expect(s.theFork(ctx, id)).To(matchers.HaveCondition(clewv1.ForkComplete, metav1.ConditionTrue))
		g.Expect(state(s.task(ctx, "try-"+id))).To(Equal(clewv1.ReasonRunning))
		published := s.task(ctx, "out")
		g.Expect(published).To(matchers.HaveCondition(clewv1.TaskPublished, metav1.ConditionTrue))
		g.Expect(published.Status.Publish.Ref).To(Equal("refs/heads/clew/" + id))
	})
	s.untilStarts(ctx, "try-"+id, 1)
}

// syncer applies manifests as a GitOps controller does: server-side, with its own field manager,
// and by force.
type syncer struct {
	*world
	manager string
	// triesFirst applies only what a dry run shows to be different, as Flux does.
	triesFirst bool
	manifests  []client.Object
	syncs      int
	// last is what the last sync left, by kind and name.
	last map[string]synced
}

// synced is what a sync made of a manifest. Until the manifest changes, it has to stay the same.
type synced struct {
	manifest   map[string]any
	uid        string
	generation int64
	spec       any
	// managed is the managed fields of the syncer, as JSON, and others are the other managers of
	// fields of the spec.
	managed string
	others  []string
}

// until syncs every second, until the condition holds, and every object is what kstatus calls
// current.
func (s *syncer) until(ctx context.Context, condition func(Gomega)) {
	GinkgoHelper()
	Eventually(ctx, func(g Gomega) {
		for _, object := range s.sync(ctx) {
			result, err := status.Compute(object)
			Expect(err).NotTo(HaveOccurred())
			Expect(result.Status).NotTo(Equal(status.FailedStatus), result.Message)
			g.Expect(result.Status).To(Equal(status.CurrentStatus), result.Message)
		}
		condition(g)
	}).WithPolling(time.Second).WithTimeout(3 * time.Minute).Should(Succeed())
}

// sync applies each manifest once, and checks that those which are unchanged change nothing.
func (s *syncer) sync(ctx context.Context) (objects []*unstructured.Unstructured) {
	GinkgoHelper()
	if s.last == nil {
		s.last = map[string]synced{}
	}
	s.syncs++
	for _, m := range s.manifests {
		manifest := manifestOf(m)
		object := s.applied(ctx, manifest)
		objects = append(objects, object)
		key, now := object.GetKind()+"/"+object.GetName(), s.synced(manifest, object)
		before, synced := s.last[key]
		s.last[key] = now
		Expect(now.others).To(BeEmpty(), "other owners of fields of %s", key)
		if synced && before.uid == now.uid && fmt.Sprint(before.manifest) == fmt.Sprint(now.manifest) {
			Expect(now).To(Equal(before), "%s changes though its manifest does not", key)
		}
	}
	return objects
}

// applied applies a manifest and returns the object.
func (s *syncer) applied(ctx context.Context, manifest *unstructured.Unstructured) *unstructured.Unstructured {
	GinkgoHelper()
	apply := func(options ...client.ApplyOption) *unstructured.Unstructured {
		GinkgoHelper()
		object := manifest.DeepCopy()
		options = append(options, client.FieldOwner(s.manager), client.ForceOwnership)
		Expect(s.kube.Apply(ctx, client.ApplyConfigurationFromUnstructured(object), options...)).To(Succeed())
		return object
	}
	if s.triesFirst {
		live := manifest.DeepCopy()
		err := s.kube.Get(ctx, client.ObjectKeyFromObject(live), live)
		Expect(client.IgnoreNotFound(err)).To(Succeed())
		if tried := apply(client.DryRunAll); err == nil && tried.GetGeneration() == live.GetGeneration() {
			return live
		}
	}
	return apply()
}

// synced returns what has to stay the same.
func (s *syncer) synced(manifest, object *unstructured.Unstructured) synced {
	got := synced{manifest: manifest.Object, uid: string(object.GetUID()), generation: object.GetGeneration(), spec: object.Object["spec"]}
	for _, m := range object.GetManagedFields() {
		switch fields := string(m.FieldsV1.GetRawBytes()); {
		case m.Subresource != "":
		case m.Manager == s.manager:
			got.managed = fmt.Sprint(m.Operation, m.Time, fields)
		case strings.Contains(fields, `"f:spec"`):
			got.others = append(got.others, m.Manager)
		}
	}
	return got
}

// manifestOf returns an object as it would be in git.
func manifestOf(object client.Object) *unstructured.Unstructured {
	GinkgoHelper()
	fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(object)
	Expect(err).NotTo(HaveOccurred())
	manifest := &unstructured.Unstructured{Object: fields}
	delete(manifest.Object, "status")
	unstructured.RemoveNestedField(manifest.Object, "metadata", "creationTimestamp")
	return manifest
}

// prune deletes everything that there is a manifest for, as a sync does whose manifests are gone.
func (s *syncer) prune(ctx context.Context) {
	GinkgoHelper()
	for _, m := range s.manifests {
		err := s.kube.Delete(ctx, manifestOf(m), client.PropagationPolicy(metav1.DeletePropagationForeground))
		Expect(err).NotTo(HaveOccurred())
	}
	for _, m := range s.manifests {
		Eventually(ctx, func() bool {
			return apierrors.IsNotFound(s.kube.Get(ctx, client.ObjectKeyFromObject(m), manifestOf(m)))
		}).WithTimeout(2*time.Minute).Should(BeTrue(), "%s is gone", m.GetName())
	}
}

func rewindTo(id, checkpoint string) *clewv1.Rewind {
	return &clewv1.Rewind{ID: id, To: clewv1.RewindTarget{CheckpointRef: &clewv1.NameReference{Name: checkpoint}}}
}

// hasRewound matches a running task whose last rewind was this one, and is complete.
func hasRewound(id string) OmegaMatcher {
	return And(
		HaveField("Status.Rewind", HaveValue(And(HaveField("ID", id), HaveField("State", clewv1.OperationCompleted)))),
		WithTransform(state, Equal(clewv1.ReasonRunning)),
	)
}

func (w *world) theFork(ctx context.Context, name string) *clewv1.Fork {
	GinkgoHelper()
	f := &clewv1.Fork{}
	Expect(w.get(ctx, name, f)).To(Succeed())
	return f
}

// reasonsOf counts the entries of a task's timeline, by reason.
func (w *world) reasonsOf(ctx context.Context, task string) map[string]int {
	GinkgoHelper()
	count := map[string]int{}
	for _, e := range w.timeline(ctx, task) {
		count[e.Reason]++
	}
	return count
}
