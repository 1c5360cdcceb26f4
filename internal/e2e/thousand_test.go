//go:build e2e && bench

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"sigs.k8s.io/controller-runtime/pkg/client"

	clewv1 "github.com/clew-dev/clew/api/v1alpha1"
)

const (
	// thousand is how many checkpoints the task has, keptObjects how many of them are objects,
	// and atOnce how many are asked for at the same time.
	thousand, keptObjects, atOnce = 1000, 20, 10
	// restless is an agent that changes one of 50 files again and again.
	restless = `i=0; while :; do i=$((i + 1)); echo "$i" > "$((i % 50)).txt"; sleep 0.1; done`
)

// Serial: others' work would be measured too.
var _ = Describe("the speed of operations", Serial, func() {
	w := newWorld()

	It("on a task with 1,000 checkpoints and keepLast 20, by number as by object", func(ctx SpecContext) {
		task := w.newTask("many", "sh", "-c", restless)
		task.Spec.CheckpointPolicy = clewv1.CheckpointPolicy{EveryToolCalls: ptr.To[int32](0), EverySeconds: ptr.To[int32](0),
			Retention: clewv1.CheckpointRetention{KeepLast: ptr.To[int32](keptObjects)}}
		w.create(ctx, task)
		w.takeMany(ctx, "many", 20)
		early := w.storedBytes(ctx)
		w.takeMany(ctx, "many", thousand)
		w.patchTask(ctx, "many", `{"spec":{"operatingMode":"Suspended"}}`)
		w.untilState(ctx, "many", 2*time.Minute, clewv1.ReasonSuspended)
		last := w.task(ctx, "many").Status.CheckpointCount
		Eventually(ctx, func() int { return len(w.checkpoints(ctx, "many")) }).WithTimeout(2 * time.Minute).Should(Equal(keptObjects))
		Expect(last).To(BeNumerically(">", thousand), "each of them, and the one at the end, is in the history")

		times := &verbTimes{}
		w.measureReads(ctx, times, last)
		w.measureRewinds(ctx, times, last)

		Expect(w.plugin(ctx, "diff", "many", "3", "latest", "--name-only")).To(BeEmpty(), "the files are those of checkpoint 3")
		AddReportEntry(fmt.Sprintf("%d checkpoints, %d objects", last, keptObjects),
			"after 20 checkpoints: "+early.String()+"\nat the end: "+w.storedBytes(ctx).String()+"\n"+times.String())
	})
})

// takeMany has checkpoints taken until the task has that many.
func (w *world) takeMany(ctx context.Context, task string, many int64) {
	GinkgoHelper()
	taken := func() int64 { return w.task(ctx, task).Status.CheckpointCount }
	for n := taken(); n < many; n = taken() {
		batch := min(atOnce, many-n)
		for i := range batch {
			Expect(w.kube.Create(ctx, &clewv1.Checkpoint{
				ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: fmt.Sprintf("%s-asked-%d", task, n+i)},
				Spec:       clewv1.CheckpointSpec{TaskRef: clewv1.NameReference{Name: task}, Retention: clewv1.CheckpointByPolicy},
			})).To(Succeed())
		}
		Eventually(ctx, taken).WithTimeout(3*time.Minute).Should(BeNumerically(">=", n+batch), "checkpoints of task %s", task)
	}
}

// storedBytes are the sizes of what the stores hold of a task.
type storedBytes struct {
	objects, etcd int
	gitstore      int64
}

// String describes the sizes.
func (s storedBytes) String() string {
	return fmt.Sprintf("%d objects with %d KiB in etcd, %d KiB in the gitstore", s.objects, s.etcd>>10, s.gitstore>>10)
}

// storedBytes measures what the stores hold of the world's namespace.
func (w *world) storedBytes(ctx context.Context) storedBytes {
	GinkgoHelper()
	list := &clewv1.CheckpointList{}
	Expect(w.kube.List(ctx, list, client.InNamespace(w.namespace))).To(Succeed())
	size := storedBytes{objects: len(list.Items)}
	for i := range list.Items {
		text, err := json.Marshal(&list.Items[i])
		Expect(err).NotTo(HaveOccurred())
		size.etcd += len(text)
	}
	size.gitstore = w.gitstoreBytes(ctx)
	return size
}

// verbTimes are the durations of each verb, by number and by object.
type verbTimes struct {
	verbs            []string
	byNumber, object map[string][]time.Duration
}

// measure adds the duration of a verb.
func (t *verbTimes) measure(verb string, object bool, do func()) {
	if t.byNumber == nil {
		t.byNumber, t.object = map[string][]time.Duration{}, map[string][]time.Duration{}
	}
	if !slices.Contains(t.verbs, verb) {
		t.verbs = append(t.verbs, verb)
	}
	begun := time.Now()
	do()
	times := t.byNumber
	if object {
		times = t.object
	}
	times[verb] = append(times[verb], time.Since(begun))
}

// String returns a table of medians.
func (t *verbTimes) String() string {
	var out strings.Builder
	table := tabwriter.NewWriter(&out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "p50 · p95\tby number, its object gone\tby object")
	for _, verb := range t.verbs {
		fmt.Fprintf(table, "%s\t%s\t%s\n", verb, percentiles(t.byNumber[verb]), percentiles(t.object[verb]))
	}
	_ = table.Flush()
	return out.String()
}

// measureReads measures the verbs that read.
func (w *world) measureReads(ctx context.Context, times *verbTimes, last int64) {
	GinkgoHelper()
	for range 5 {
		for object, number := range map[bool]int64{false: 3, true: last - 1} {
			n, next := fmt.Sprint(number), fmt.Sprint(number+1)
			times.measure("checkpoint show", object, func() { w.plugin(ctx, "checkpoint", "show", "many", n) })
			times.measure("diff", object, func() { w.plugin(ctx, "diff", "many", n, next) })
			times.measure("rewind --dry-run", object, func() { w.plugin(ctx, "rewind", "many", "--to", n, "--dry-run") })
		}
	}
}

// measureRewinds measures rewinds of the suspended task; the last one is to checkpoint 3.
func (w *world) measureRewinds(ctx context.Context, times *verbTimes, last int64) {
	GinkgoHelper()
	for round := range 3 {
		for _, number := range []int64{last - 1, 3} {
			id := fmt.Sprintf("round-%d-to-%d", round, number)
			times.measure("rewind", number != 3, func() {
				w.patchTask(ctx, "many", fmt.Sprintf(`{"spec":{"rewind":{"id":%q,"to":{"checkpointNumber":%d},"scope":"Both","preserve":"Discard"}}}`, id, number))
				Eventually(ctx, func() *clewv1.OperationStatus { return w.task(ctx, "many").Status.Rewind }).WithTimeout(2 * time.Minute).
					Should(And(HaveField("ID", id), HaveField("State", clewv1.OperationCompleted)))
			})
		}
	}
}
