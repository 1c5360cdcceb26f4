package controller_test

import (
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clew-dev/clew/api/v1alpha1"
)

// heap returns the megabytes that the process uses, in which the manager runs.
func heap() int {
	runtime.GC()
	m := runtime.MemStats{}
	runtime.ReadMemStats(&m)
	return int(m.HeapAlloc >> 20)
}

// writesOf counts the manager's writes of tasks with a prefix of the name, by name.
func (w *world) writesOf(prefix string) map[string]int {
	count := map[string]int{}
	for _, write := range w.requests.list() {
		_, path, isTask := strings.Cut(write, "/tasks/")
		if name, _, _ := strings.Cut(path, "/"); isTask && strings.HasPrefix(name, prefix) {
			count[name]++
		}
	}
	return count
}

// The tasks of the contract are 60, with CLEW_SOAK=1 1,000.
var _ = Describe("A contract with many tasks, of which four run at once", Label("slow"), func() {
	It("costs little for each, and nothing while nothing happens", func() {
		many := 60
		if os.Getenv("CLEW_SOAK") == "1" {
			many = v1alpha1.MaxContractTasks
		}
		w := newWorld()
		w.grace = time.Hour // nothing is looked at again by itself
		w.restartManager()
		w.SetDefaultEventuallyTimeout(2 * time.Minute)
		w.running("lead", leads("port"), func(t *v1alpha1.Task) {
			t.Spec.Children = &v1alpha1.Children{Maximum: ptr.To[int32](1000), AtOnce: ptr.To[int32](4)}
		})
		before, began := heap(), time.Now()
		for i := range many - 1 {
			w.apply(fmt.Sprintf("t%03d", i), childOf("lead"))
		}
		queued := func() (n int) {
			for _, t := range w.tasks() {
				if state(&t) == v1alpha1.ReasonQueued {
					n++
				}
			}
			return n
		}
		w.Eventually(queued).WithPolling(200 * time.Millisecond).Should(Equal(many - 5))
		GinkgoTB().Logf("%d tasks: after %s, %d MB more", many, time.Since(began).Round(time.Millisecond), heap()-before)
		w.Expect(w.withPods()).To(HaveLen(5))
		started := w.withPods()
		for name, n := range w.writesOf("t") {
			if !slices.Contains(started, name) {
				w.Expect(n).To(BeNumerically("<=", 3), "writes of task %s: its finalizer, that it waits, and the labels of its contract", name)
			}
		}
		w.Eventually(w.current).WithArguments("lead").Should(HaveField("Status.Children", HaveValue(HaveField("Total", BeEquivalentTo(many-1)))))

		By("nothing that happens")
		var writes, reads []string
		more := func() []string {
			return slices.Concat(w.requests.list()[len(writes):], w.requests.listReads()[len(reads):])
		}
		w.Eventually(func() []string {
			latest := more()
			writes, reads = w.requests.list(), w.requests.listReads()
			return latest
		}).WithPolling(time.Second).Should(BeEmpty(), "the manager comes to rest")
		w.Consistently(more).WithTimeout(time.Second).Should(BeEmpty(), "the manager neither reads nor writes")

		By("five places that become free")
		waiting := func() map[string]int {
			count := w.writesOf("t")
			for _, name := range w.withPods() {
				delete(count, name)
			}
			return count
		}
		for range 5 {
			started = w.withPods()
			w.finish(slices.DeleteFunc(w.withPods(), func(name string) bool { return name == "lead" || state(w.task(name)) == v1alpha1.ReasonCompleted })[0], 1)
			free := time.Now()
			w.Eventually(w.withPods).Should(HaveLen(len(started)+1), "one more has started")
			GinkgoTB().Logf("the next pod was there %s after a place was free", time.Since(free).Round(time.Millisecond))
		}
		for name, n := range waiting() {
			w.Expect(n).To(BeNumerically("<=", 3), "writes of task %s, which still waits", name)
		}

		By("deleting all of them")
		began = time.Now()
		w.Expect(w.client.DeleteAllOf(w.ctx, &v1alpha1.Task{}, client.InNamespace(w.namespace))).To(Succeed())
		w.Eventually(func() []v1alpha1.Task {
			pods := &corev1.PodList{}
			w.Expect(w.client.List(w.ctx, pods, client.InNamespace(w.namespace))).To(Succeed())
			for i := range pods.Items {
				if pods.Items[i].DeletionTimestamp != nil {
					w.Expect(w.kubelet.Vanish(w.ctx, &pods.Items[i])).To(Succeed())
				}
			}
			return w.tasks()
		}).WithPolling(200 * time.Millisecond).Should(BeEmpty())
		GinkgoTB().Logf("%d tasks were gone %s after they were deleted", many, time.Since(began).Round(time.Millisecond))
	})
})
