//go:build e2e

package e2e

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	clewv1 "github.com/clew-dev/clew/api/v1alpha1"
)

// blow is one way of killing something that works on a task.
type blow struct {
	name   string
	strike func(w *world, pod *corev1.Pod) error
}

func blows() []blow {
	component := func(name string) blow {
		return blow{name, func(w *world, _ *corev1.Pod) error { return w.killComponent(name) }}
	}
	return []blow{
		{"pod deleted by force", func(w *world, pod *corev1.Pod) error {
			return w.kube.Delete(w.ctx, pod, client.GracePeriodSeconds(0))
		}},
		{"daemon", func(_ *world, pod *corev1.Pod) error { return killContainer(pod, "daemon") }},
		{"agent", func(_ *world, pod *corev1.Pod) error { return killAgent(pod) }},
		component("manager"), component("server"), component("gitstore"),
	}
}

// restartTime is how long it may take until what was killed runs again: kubelet
// waits up to five minutes before it starts a container that was killed often.
const restartTime = 8 * time.Minute

// dice gives the same instants again for the seed it logs.
func dice(t *testing.T) *rand.Rand {
	seed := uint64(time.Now().UnixNano())
	if s, err := strconv.ParseUint(os.Getenv("CLEW_SEED"), 10, 64); err == nil {
		seed = s
	}
	t.Logf("CLEW_SEED=%d", seed)
	return rand.New(rand.NewPCG(seed, seed))
}

// Not parallel: it kills what every task needs.
func TestATaskSurvivesWhateverIsKilled(t *testing.T) {
	w, g := newWorld(t), gomega.NewWithT(t)
	calls, kills := pick(30, 60), pick(6, 25)
	w.create(w.newTask("hardy", replay(calls, pick(time.Second, 1500*time.Millisecond))...))
	random := dice(t)
	kinds, seen := blows(), durables{}

	struck, count := 0, map[string]int{}
	for struck < kills {
		pod := w.untilAgentRunsOrDone("hardy")
		if pod == nil {
			break
		}
		time.Sleep(time.Duration(random.IntN(3000)) * time.Millisecond)
		kind := kinds[struck%len(kinds)]
		if soak() {
			kind = kinds[random.IntN(len(kinds))]
		}
		if err := kind.strike(w, pod); err != nil {
			continue // it was just not there: another instant, another try
		}
		struck++
		count[kind.name]++
		t.Logf("%2d %s, pod %s", struck, kind.name, pod.Name)
		seen.add(w, "hardy")
	}
	g.Expect(struck).To(gomega.Equal(kills), "the task outlasted the blows")
	w.tellKills(count)

	w.untilSystemReady(restartTime)
	w.untilState("hardy", restartTime, clewv1.ReasonCompleted)
	w.expectCallsOnce("hardy", calls)
	for _, c := range w.untilListed("hardy") {
		w.untilDurable(c.Name) // no volume was lost
	}
	seen.add(w, "hardy")
	w.expectDurableCheckpointsExact(calls, "hardy")
}

// untilAgentRunsOrDone waits for a running agent; nil when the task has ended.
func (w *world) untilAgentRunsOrDone(name string) *corev1.Pod {
	w.Helper()
	var pod *corev1.Pod
	w.until("the agent of task "+name+" runs, or it is done", restartTime, func() error {
		pod = nil
		task := w.task(name)
		if c := meta.FindStatusCondition(task.Status.Conditions, clewv1.TaskSucceeded); c != nil && c.Status != metav1.ConditionUnknown {
			return nil
		}
		if len(task.Status.Attempts) == 0 {
			return fmt.Errorf("no attempt yet")
		}
		p := &corev1.Pod{}
		if err := w.get(task.Status.Attempts[len(task.Status.Attempts)-1].PodName, p); err != nil {
			return err
		}
		if p.DeletionTimestamp != nil || containerID(p, clewv1.AgentContainer) == "" {
			return fmt.Errorf("pod %s does not run: %s; %s", p.Name, state(task), conditionMessage(task))
		}
		pod = p
		return nil
	})
	return pod
}

func TestATaskSurvivesTheLossOfItsVolume(t *testing.T) {
	t.Parallel()
	w, g := newWorld(t), gomega.NewWithT(t)
	calls, losses := pick(30, 60), pick(2, 10)
	task := w.newTask("homeless", replay(calls, 500*time.Millisecond)...)
	task.Spec.CheckpointPolicy.EveryToolCalls = ptr.To[int32](3)
	w.create(task)
	random, seen := dice(t), durables{}

	for i := range losses {
		w.untilToolCalls("homeless", int64(4+i*calls/(losses+2)), 3*time.Minute)
		pod := w.untilAgentRunsOrDone("homeless")
		if pod == nil {
			break
		}
		time.Sleep(time.Duration(random.IntN(1500)) * time.Millisecond)
		seen.add(w, "homeless")
		claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "homeless-workspace"}}
		g.Expect(w.kube.Delete(w.ctx, claim)).To(gomega.Succeed())
		_ = w.kube.Delete(w.ctx, pod, client.GracePeriodSeconds(0))
	}

	got := w.untilState("homeless", 5*time.Minute, clewv1.ReasonCompleted)
	w.expectCallsOnce("homeless", calls)
	seen.add(w, "homeless")
	w.expectDurableCheckpointsExact(calls, "homeless")
	g.Expect(len(got.Status.Attempts)).To(gomega.Equal(1 + losses))
	w.tell(losses, "volumes lost")
}
