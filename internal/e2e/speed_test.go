//go:build e2e && bench

package e2e

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	clewv1 "github.com/clew-dev/clew/api/v1alpha1"
)

const (
	// speedRounds is how often each operation is measured.
	speedRounds = 15
	// largeURL is a repository of 10,000 files; see hack/demo/repository.sh.
	largeURL = "http://origin.clew-demo.svc/large.git"
	// change500 changes 500 of its files.
	change500 = `for i in $(seq 0 20 9980); do echo "$1" >> "$((i / 100))/$i.txt"; done`
	// waiting is an agent that prints when it was started, and then does nothing.
	waiting = `date +"started %s.%N"; exec sleep infinity`
)

// Serial: others' work would be measured too.
var _ = Describe("the speed of operations", Serial, func() {
	w := newWorld()

	It("from the request to the agent's first line, in parts", func(ctx SpecContext) {
		seen := w.watchPods(ctx)
		results := speeds{}
		for round := range speedRounds {
			w.measureRound(ctx, seen, fmt.Sprintf("round-%d", round), results)
		}
		AddReportEntry("seconds from the request to the agent's first line, and their parts", results.String())
	})
})

// measureRound takes one task through all operations, and deletes it.
func (w *world) measureRound(ctx context.Context, seen *podTimes, name string, results speeds) {
	GinkgoHelper()
	task := w.newTask(name, "sh", "-c", waiting)
	task.Spec.Repository = &clewv1.Repository{URL: largeURL, Ref: "main"}
	task.Spec.Template.Spec.TerminationGracePeriodSeconds = ptr.To[int64](30)
	asked := time.Now()
	w.create(ctx, task)
	pod := w.startedPod(ctx, name, 1)
	results.add("create", asked, seen, pod, "")

	w.changeFiles(ctx, pod.name, "first")
	checkpoint := w.manualCheckpoint(ctx, name, name+"-changed")

	asked, before := time.Now(), pod
	w.kubectl(ctx, "delete", "pod", pod.name, "--grace-period=0", "--force", "--wait=false")
	pod = w.startedPod(ctx, name, 2)
	results.add("kill", asked, seen, pod, before.name)

	w.changeFiles(ctx, pod.name, "second")
	asked, before = time.Now(), pod
	w.patchTask(ctx, name, `{"spec":{"rewind":{"id":"back","to":{"checkpointRef":{"name":"`+checkpoint+`"}},"scope":"Both"}}}`)
	pod = w.startedPod(ctx, name, 3)
	results.add("rewind", asked, seen, pod, before.name)

	asked = time.Now()
	w.patchTask(ctx, name, `{"spec":{"operatingMode":"Suspended"}}`)
	w.untilState(ctx, name, time.Minute, clewv1.ReasonSuspended)
	results.addWhole("suspend", time.Since(asked))

	asked = time.Now()
	w.patchTask(ctx, name, `{"spec":{"operatingMode":"Running"}}`)
	pod = w.startedPod(ctx, name, 4)
	results.add("resume", asked, seen, pod, "")

	asked = time.Now()
	Expect(w.apply(ctx, newFork(w.namespace, name+"-fork", name, checkpoint, name+"-forked"))).To(Succeed())
	forked := w.startedPod(ctx, name+"-forked", 1)
	results.add("fork", asked, seen, forked, "")

	for _, done := range []string{name, name + "-forked"} {
		w.kubectl(ctx, "delete", "task", done, "--wait=false")
		Eventually(ctx, func() error { return client.IgnoreNotFound(w.get(ctx, done, &clewv1.Task{})) }).Should(Succeed())
	}
	w.untilNoPods(ctx)
}

// changeFiles appends a word to 500 files in the agent's worktree.
func (w *world) changeFiles(ctx context.Context, pod, word string) {
	GinkgoHelper()
	w.kubectl(ctx, "exec", pod, "-c", clewv1.AgentContainer, "--", "sh", "-c", change500, "sh", word)
}

// manualCheckpoint takes a checkpoint and waits until the gitstore has it.
func (w *world) manualCheckpoint(ctx context.Context, task, name string) string {
	GinkgoHelper()
	Expect(w.kube.Create(ctx, &clewv1.Checkpoint{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: name},
		Spec: clewv1.CheckpointSpec{TaskRef: clewv1.NameReference{Name: task}}})).To(Succeed())
	w.kubectl(ctx, "wait", "checkpoint/"+name, "--for=condition=Durable", "--timeout=120s")
	return name
}

// patchTask merges a patch into a task.
func (w *world) patchTask(ctx context.Context, name, patch string) {
	GinkgoHelper()
	w.kubectl(ctx, "patch", "task", name, "--type=merge", "-p", patch)
}

// startedAgent is a pod whose agent has printed its first line.
type startedAgent struct {
	name  string
	first time.Time
}

// startedPod waits for the agent's first line in the pod of an attempt.
func (w *world) startedPod(ctx context.Context, task string, attempt int64) startedAgent {
	GinkgoHelper()
	started := startedAgent{}
	Eventually(ctx, func(g Gomega) {
		pods := &corev1.PodList{}
		g.Expect(w.kube.List(ctx, pods, client.InNamespace(w.namespace), client.MatchingLabels{
			clewv1.LabelTask: task, clewv1.LabelAttempt: strconv.FormatInt(attempt, 10)})).To(Succeed())
		g.Expect(pods.Items).To(HaveLen(1))
		started.name = pods.Items[0].Name
		log, err := w.clientset.CoreV1().Pods(w.namespace).GetLogs(started.name, &corev1.PodLogOptions{Container: clewv1.AgentContainer}).DoRaw(ctx)
		g.Expect(err).NotTo(HaveOccurred())
		_, at, found := strings.Cut(string(log), "started ")
		g.Expect(found).To(BeTrue(), "the agent has printed nothing yet")
		seconds, err := strconv.ParseFloat(strings.TrimSpace(at), 64)
		g.Expect(err).NotTo(HaveOccurred())
		started.first = time.UnixMicro(int64(seconds * 1e6))
	}).WithTimeout(3*time.Minute).Should(Succeed(), "the agent of task %s starts in attempt %d", task, attempt)
	return started
}

// untilNoPods waits until no pod of the namespace is left.
func (w *world) untilNoPods(ctx context.Context) {
	GinkgoHelper()
	Eventually(ctx, func(g Gomega) {
		pods := &corev1.PodList{}
		g.Expect(w.kube.List(ctx, pods, client.InNamespace(w.namespace))).To(Succeed())
		g.Expect(pods.Items).To(BeEmpty())
	}).WithTimeout(2 * time.Minute).Should(Succeed())
}
