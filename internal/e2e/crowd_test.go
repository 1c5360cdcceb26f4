//go:build e2e && bench

package e2e

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	clewv1 "github.com/clew-dev/clew/api/v1alpha1"
)

const (
	// wholeContract is how many tasks the contract has, atATime how many of them run beside the supervisor,
	// and successions how many places become free.
	wholeContract, atATime, successions = clewv1.MaxContractTasks, 4, 40
	// quietTime is how long nothing happens.
	quietTime = time.Minute
)

// brief is an agent that says when it has begun, and ends two seconds later.
const brief = `printf '{"type":"message","role":"assistant","text":"begun at %s"}\n' "$(date +%s%N)"; sleep 2`

// Serial: others' work would be measured too.
var _ = Describe("a contract of 1,000 tasks", Serial, func() {
	w := newWorld()

	It("waits in the queue at a small cost, with four at once, and nothing polls", SpecTimeout(40*time.Minute), func(ctx SpecContext) {
		manager := managersCgroup(ctx, w)
		pods := w.watchPods(ctx)
		lead := w.newTask("lead", "sleep", "infinity")
		lead.Spec.Role, lead.Spec.Contract = clewv1.RoleSupervisor, &clewv1.Contract{Name: "port"}
		lead.Spec.Children = &clewv1.Children{Maximum: ptr.To[int32](wholeContract), AtOnce: ptr.To[int32](atATime)}
		w.create(ctx, lead)
		var first []string
		for i := range atATime {
			first = append(first, fmt.Sprintf("first-%d", i))
			w.create(ctx, childOfLead(w.newTask(first[i], "sleep", "infinity")))
		}
		for _, name := range first {
			w.untilState(ctx, name, 5*time.Minute, clewv1.ReasonRunning)
		}

		By("applying those that wait")
		const waiting = wholeContract - atATime - 1
		before := manager.use()
		w.applyWaiting(ctx, waiting)
		queued := func() int { return w.countStates(ctx)[clewv1.ReasonQueued] }
		Eventually(ctx, queued).WithTimeout(10 * time.Minute).WithPolling(2 * time.Second).Should(Equal(waiting))
		applied := manager.use()
		writes := map[string]int{}
		for _, r := range w.clewWrites() {
			if parts := strings.Fields(r); parts[1] == "tasks" {
				writes[parts[len(parts)-1]]++
			}
		}

		By("a minute in which nothing happens")
		Eventually(ctx, func() []string { return aboutWaiting(managersRequests(time.Now().Add(-15 * time.Second))) }).
			WithTimeout(5*time.Minute).WithPolling(5*time.Second).Should(BeEmpty(), "the manager comes to rest")
		quiet, began := manager.use(), time.Now()
		time.Sleep(quietTime) // that nothing happens meanwhile is what is shown
		rested, asked := manager.use(), managersRequests(began)

		By("places that become free")
		for _, name := range first {
			w.patchTask(ctx, name, `{"spec":{"operatingMode":"Suspended"}}`)
		}
		completed := func() int { return w.countStates(ctx)[clewv1.ReasonCompleted] }
		Eventually(ctx, completed).WithTimeout(15 * time.Minute).WithPolling(2 * time.Second).Should(BeNumerically(">=", successions))
		worked := manager.use()
		gaps := w.gaps(ctx, pods)

		most, all := 0, 0
		for name, n := range writes {
			if strings.HasPrefix(name, "waiting-") {
				most, all = max(most, n), all+n
			}
		}
		AddReportEntry(fmt.Sprintf("%d tasks, %d at once", wholeContract, atATime), fmt.Sprintf(`
memory of the manager: %d MiB before, %d MiB with %d tasks that wait: %.1f KiB a task
processor time of the manager: %.1f s for applying them, %.1f ms a task
API writes for a task that waits: %.2f, %d at most
in %s in which nothing happens: %d ms of processor time, %d requests about those that wait, %d about the five that run
from a free place to the next agent's first line, %d times: p50 %.1f s, p95 %.1f s; %d ms of the manager's processor time each`,
			before.bytes>>20, applied.bytes>>20, waiting, float64(applied.bytes-before.bytes)/1024/waiting,
			(applied.cpu-before.cpu).Seconds(), float64((applied.cpu-before.cpu).Milliseconds())/waiting, float64(all)/waiting, most,
			quietTime, (rested.cpu-quiet.cpu).Milliseconds(), len(aboutWaiting(asked)), len(asked)-len(aboutWaiting(asked)),
			len(gaps), gaps[len(gaps)/2].Seconds(), gaps[len(gaps)*95/100].Seconds(), (worked.cpu-rested.cpu).Milliseconds()/int64(len(gaps))))
		// One may be repeated, without an effect, where the cache has not seen it yet.
		Expect(float64(all)/waiting).To(BeNumerically("<", 3.1), "writes for a task that waits: its finalizer, that it waits, and the labels of its contract")
		Expect(most).To(BeNumerically("<=", 4), "writes for a task that waits")
		Expect(aboutWaiting(asked)).To(BeEmpty(), "requests about tasks that wait, while nothing happens")
		Expect(len(asked)).To(BeNumerically("<", 20), "requests while nothing happens: %v", asked)
	})
})

func childOfLead(t *clewv1.Task) *clewv1.Task {
	t.Spec.ParentRef = &clewv1.NameReference{Name: "lead"}
	return t
}

// applyWaiting creates n children of the supervisor lead, eight at a time.
func (w *world) applyWaiting(ctx context.Context, n int) {
	GinkgoHelper()
	var all sync.WaitGroup
	for worker := range 8 {
		all.Go(func() {
			defer GinkgoRecover()
			for i := worker; i < n; i += 8 {
				Expect(w.kube.Create(ctx, childOfLead(w.newTask(fmt.Sprintf("waiting-%03d", i), "sh", "-c", brief)))).To(Succeed())
			}
		})
	}
	all.Wait()
}

// countStates counts the tasks by their state.
func (w *world) countStates(ctx context.Context) map[string]int {
	GinkgoHelper()
	list, count := &clewv1.TaskList{}, map[string]int{}
	Expect(w.kube.List(ctx, list, client.InNamespace(w.namespace))).To(Succeed())
	for i := range list.Items {
		count[state(&list.Items[i])]++
	}
	return count
}

// gaps returns how long places stayed free: from the end of a pod to the first line of the agent
// that follows, in ascending order.
func (w *world) gaps(ctx context.Context, pods *podTimes) (all []time.Duration) {
	GinkgoHelper()
	list := &clewv1.TaskList{}
	Expect(w.kube.List(ctx, list, client.InNamespace(w.namespace))).To(Succeed())
	var free, taken []time.Time
	for _, t := range list.Items {
		if t.Name == "lead" || len(t.Status.Attempts) == 0 {
			continue
		}
		if ended, known := pods.steps(t.Status.Attempts[0].PodName)[stepEnded]; known {
			free = append(free, ended)
		}
		if state(&t) != clewv1.ReasonCompleted {
			continue
		}
		for _, e := range w.conversation(ctx, t.Name) {
			if nanoseconds, found := strings.CutPrefix(e.Text, "begun at "); found {
				n, err := strconv.ParseInt(nanoseconds, 10, 64)
				Expect(err).NotTo(HaveOccurred())
				taken = append(taken, time.Unix(0, n))
			}
		}
	}
	slices.SortFunc(free, time.Time.Compare)
	slices.SortFunc(taken, time.Time.Compare)
	for i := range min(len(free), len(taken)) {
		all = append(all, taken[i].Sub(free[i]))
	}
	slices.Sort(all)
	Expect(len(all)).To(BeNumerically(">=", successions))
	return all
}

// use is what a container has in memory, and how long it has run.
type use struct {
	bytes int64
	cpu   time.Duration
}

// use reads what a container uses.
func (c cgroup) use() use {
	if accounted := cgroup(strings.Replace(string(c), "/memory/", "/cpuacct/", 1)); accounted != c { // version 1
		return use{bytes: c.kept(), cpu: time.Duration(accounted.number("cpuacct.usage"))}
	}
	return use{bytes: c.kept(), cpu: time.Duration(c.field("cpu.stat", "usage_usec")) * time.Microsecond}
}

// managersCgroup returns the cgroup of the manager that runs.
func managersCgroup(ctx context.Context, w *world) cgroup {
	GinkgoHelper()
	pods := &corev1.PodList{}
	Expect(w.kube.List(ctx, pods, client.InNamespace(systemNamespace), client.MatchingLabels{"app.kubernetes.io/component": "manager"})).To(Succeed())
	Expect(pods.Items).To(HaveLen(1))
	found := cgroupOf(containerID(&pods.Items[0], pods.Items[0].Spec.Containers[0].Name))
	Expect(found).NotTo(BeEmpty(), "the cgroup of the manager")
	return found
}

// managersRequests lists the requests of the manager since then, but for those that it makes in any cluster,
// however many tasks there are: about its lease, to learn whether an older copy of etcd was put back
// (see internal/rollback), and watches, which end and begin again by themselves.
func managersRequests(since time.Time) (all []string) {
	GinkgoHelper()
	for _, e := range audited(func(e auditEvent) bool {
		ofCluster := e.Verb == "watch" || e.Object.Resource == "leases" || e.Verb == "list" && e.Object.Namespace == ""
		return strings.HasSuffix(e.User.Username, ":clew-manager") && !ofCluster && e.Ended.After(since)
	}) {
		all = append(all, e.String())
	}
	return all
}

// aboutWaiting keeps the requests about tasks that wait.
func aboutWaiting(requests []string) []string {
	return slices.DeleteFunc(slices.Clone(requests), func(r string) bool { return !strings.Contains(r, " waiting-") })
}
