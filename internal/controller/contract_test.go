package controller_test

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/testing/builders"
)

// leads makes a task the supervisor of a contract.
func leads(contract string) builders.TaskOption {
	return func(t *v1alpha1.Task) {
		t.Spec.Role = v1alpha1.RoleSupervisor
		t.Spec.Contract = &v1alpha1.Contract{Name: contract}
	}
}

// childOf makes a task the child of another one.
func childOf(parent string) builders.TaskOption {
	return func(t *v1alpha1.Task) { t.Spec.ParentRef = &v1alpha1.NameReference{Name: parent} }
}

// maximum limits the children of a supervisor.
func maximum(n int32) builders.TaskOption {
	return func(t *v1alpha1.Task) { t.Spec.Children = &v1alpha1.Children{Maximum: &n} }
}

var _ = Describe("A contract", func() {
	It("is led by one supervisor at a time, and the next one starts when that has finished", func() {
		w := newWorld()
		w.grace = time.Hour // nothing is looked at again by itself
		w.restartManager()
		p := w.running("first", leads("port"))
		w.apply("second", leads("port"))
		w.until("second", v1alpha1.ReasonWaitingForContract)
		w.store.Begin(w.id("first"), 1)
		w.complete("first", p)
		w.pod("second", 1)
		w.until("first", v1alpha1.ReasonCompleted)
	})

	It("moves to the phase in its supervisor's spec, and children carry the one in which they were made", func() {
		w := newWorld()
		w.running("lead", leads("port"))
		w.apply("early", childOf("lead"))
		w.pod("early", 1)
		w.change("lead", func(t *v1alpha1.Task) { t.Spec.Contract.Phase = v1alpha1.PhaseExecute })
		w.beginsPhase("lead", v1alpha1.PhaseExecute)
		w.Eventually(w.current).WithArguments("lead").Should(HaveField("Status.Contract.Phase", v1alpha1.PhaseExecute))
		w.Expect(w.task("lead").Status.History).To(ContainElement(SatisfyAll(HaveField("Reason", v1alpha1.EventPhaseChanged),
			HaveField("Message", "the contract port goes from phase Research to Execute, with checkpoint 1"), HaveField("Actor", Not(BeElementOf("", "clew", "unknown"))))))
		w.apply("late", childOf("lead"))
		w.pod("late", 1)
		w.Expect(w.task("early").Status.Contract.Phase).To(Equal(v1alpha1.PhaseResearch))
		w.Expect(w.task("late").Status.Contract.Phase).To(Equal(v1alpha1.PhaseExecute))
		w.Expect(w.task("late").Status.Parent.UID).To(Equal(string(w.task("lead").UID)))

		By("finding them by their labels")
		w.Eventually(func() ([]v1alpha1.Task, error) {
			found := &v1alpha1.TaskList{}
			err := w.client.List(w.ctx, found, client.InNamespace(w.namespace), client.MatchingLabels{
				v1alpha1.LabelContract: "port", v1alpha1.LabelParent: "lead", v1alpha1.LabelPhase: v1alpha1.PhaseExecute,
			})
			return found.Items, err
		}).Should(ConsistOf(HaveField("Name", "late")))

		By("counting them in their parent's status")
		w.Eventually(w.current).WithArguments("lead").Should(HaveField("Status.Children", HaveValue(And(
			HaveField("Total", int32(2)), HaveField("Unfinished", ConsistOf("early", "late"))))))
	})

	It("gives a supervisor no more children than it may have, however many are applied at once", func() {
		w := newWorld()
		w.grace, w.workers = time.Hour, 8
		w.restartManager()
		w.running("lead", leads("port"), maximum(3))
		for i := range 10 {
			w.apply(fmt.Sprintf("child-%d", i), childOf("lead"))
		}
		joined := func() (found, waiting []string) {
			for _, t := range w.tasks() {
				switch {
				case t.Status.Parent != nil:
					found = append(found, t.Name)
				case state(&t) == v1alpha1.ReasonChildLimitReached:
					waiting = append(waiting, t.Name)
				}
			}
			return found, waiting
		}
		settled := func(children, others int) {
			GinkgoHelper()
			w.Eventually(func(g Gomega) {
				found, waiting := joined()
				g.Expect(found).To(HaveLen(children), "children")
				g.Expect(waiting).To(HaveLen(others), "tasks that wait to be one")
			}).Should(Succeed())
		}
		settled(3, 7)
		first, _ := joined()
		By("letting the next one in when one is deleted")
		w.Expect(w.client.Delete(w.ctx, w.task(first[0]))).To(Succeed())
		settled(3, 6)
	})

	It("is led by another one, if the first was suspended before it led", func() {
		w := newWorld()
		w.grace = time.Hour
		w.restartManager()
		w.meanwhile("first", func() { w.change("first", builders.Suspended) })
		w.apply("first", leads("port"))
		w.until("first", v1alpha1.ReasonSuspended)
		w.apply("second", leads("port"))
		w.start(w.pod("second", 1))
		w.until("second", v1alpha1.ReasonRunning)
		w.change("first", builders.Running)
		w.until("first", v1alpha1.ReasonWaitingForContract)
		w.Expect(w.task("first").Status.Attempts).To(BeEmpty())
	})

	It("gives the place of a child that was suspended before it became one to the next", func() {
		w := newWorld()
		w.grace = time.Hour
		w.restartManager()
		w.running("lead", leads("port"), maximum(1))
		w.meanwhile("first", func() {
			w.apply("second", childOf("lead"))
			w.until("second", v1alpha1.ReasonChildLimitReached)
			w.change("first", builders.Suspended)
		})
		w.apply("first", childOf("lead"))
		w.until("first", v1alpha1.ReasonSuspended)
		w.pod("second", 1)
		w.Expect(w.task("first").Status.Parent).To(BeNil())
	})

	It("deletes a child as well that joins while its parent goes", func() {
		w := newWorld()
		w.complete("lead", w.running("lead", leads("port")))
		w.meanwhile("late", func() {
			lead := w.task("lead")
			w.Expect(w.client.Delete(w.ctx, lead)).To(Succeed())
			// The manager has time enough to let its parent go.
			w.Consistently(w.objects.Get(lead)).WithTimeout(500 * time.Millisecond).Should(Succeed())
		})
		w.apply("late", childOf("lead"))
		w.Eventually(w.tasks).Should(BeEmpty())
	})

	It("lets a task join once it has the phase that the task names", func() {
		w := newWorld()
		w.grace = time.Hour
		w.restartManager()
		w.running("lead", leads("port"))
		w.apply("worker", func(t *v1alpha1.Task) { t.Spec.Contract = &v1alpha1.Contract{Name: "port", Phase: "Deploy"} })
		w.until("worker", v1alpha1.ReasonPhaseUnknown)
		w.change("lead", func(t *v1alpha1.Task) { t.Spec.Contract.Phases = append(v1alpha1.DefaultPhases(), "Deploy") })
		w.pod("worker", 1)
		w.Expect(w.task("worker").Status.Contract.Phase).To(Equal("Deploy"))
	})

	It("refuses tasks that are each other's children, and starts none of them", func() {
		w := newWorld()
		w.apply("a", leads("port"), childOf("b"))
		w.apply("b", leads("harbour"), childOf("a"))
		w.until("a", v1alpha1.ReasonParentRefused)
		w.until("b", v1alpha1.ReasonParentRefused)
		w.Expect(w.task("a").Status.Attempts).To(BeEmpty())
	})

	It("deletes the children with their parent, and their own children with them", func() {
		w := newWorld()
		lead := w.running("lead", leads("port"))
		below := w.running("below", leads("harbour"), childOf("lead"))
		leaf := w.running("leaf", childOf("below"))
		w.Expect(w.task("leaf").Status.Parent.Depth).To(Equal(int32(2)))
		w.Expect(w.client.Delete(w.ctx, w.task("lead"))).To(Succeed())
		for _, p := range []*corev1.Pod{lead, below, leaf} {
			w.untilStopped(p)
		}
		w.Eventually(w.tasks).Should(BeEmpty())
	})
})

// meanwhile does something in the moment in which the manager writes the status of a task for the first time.
func (w *world) meanwhile(name string, do func()) {
	once := sync.OnceFunc(do)
	w.requests.setSpoil(func(r *http.Request) error {
		if r.Method == http.MethodPut && strings.HasSuffix(r.URL.Path, "/tasks/"+name+"/status") {
			defer GinkgoRecover()
			once()
		}
		return nil
	})
}

// tasks returns the world's tasks.
func (w *world) tasks() []v1alpha1.Task {
	w.Helper()
	list := &v1alpha1.TaskList{}
	w.Expect(w.client.List(w.ctx, list, client.InNamespace(w.namespace))).To(Succeed())
	return list.Items
}

// state returns the reason of the condition Succeeded.
func state(t *v1alpha1.Task) string {
	if c := meta.FindStatusCondition(t.Status.Conditions, v1alpha1.TaskSucceeded); c != nil {
		return c.Reason
	}
	return ""
}
