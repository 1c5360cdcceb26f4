//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	clewv1 "github.com/clew-dev/clew/api/v1alpha1"
)

// blow is one way of killing a process that works for a task.
type blow struct {
	name   string
	strike func(w *world, pod *corev1.Pod) error
}

func blows(ctx context.Context) []blow {
	component := func(name string) blow {
		return blow{name, func(w *world, _ *corev1.Pod) error { return w.killComponent(ctx, name) }}
	}
	return []blow{
		{"pod deleted by force", func(w *world, pod *corev1.Pod) error {
			return w.kube.Delete(ctx, pod, client.GracePeriodSeconds(0))
		}},
		{"daemon", func(_ *world, pod *corev1.Pod) error { return killContainer(pod, "daemon") }},
		{"agent", func(_ *world, pod *corev1.Pod) error { return killAgent(pod) }},
		component("manager"), component("server"), component("gitstore"),
	}
}

// restartTime is the longest time until a killed container runs again: kubelet waits up
// to five minutes before it restarts a container that was killed often.
const restartTime = 8 * time.Minute

// dice draws random instants. It reports its seed; CLEW_SEED repeats them.
func dice() *rand.Rand {
	seed := uint64(time.Now().UnixNano())
	if s, err := strconv.ParseUint(os.Getenv("CLEW_SEED"), 10, 64); err == nil {
		seed = s
	}
	AddReportEntry("CLEW_SEED", fmt.Sprint(seed))
	return rand.New(rand.NewPCG(seed, seed))
}

// pause waits for a fixed time, such as the random one before a kill, or until the spec
// is cancelled.
func pause(ctx context.Context, while time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(while):
	}
}

// Serial: it kills components that every task needs.
var _ = Describe("a task whose processes are killed", Serial, Label("kill", "slow"), func() {
	w := newWorld()

	It("loses and repeats no call, and every durable checkpoint restores exactly", SpecTimeout(pick(20*time.Minute, 4*time.Hour)), func(ctx SpecContext) {
		calls, kills := pick(30, 60), pick(6, 25)
		w.create(ctx, w.newTask("hardy", replay(calls, pick(time.Second, 1500*time.Millisecond))...))
		random := dice()
		kinds, seen := blows(ctx), durables{}

		struck, count := 0, map[string]int{}
		for struck < kills {
			pod := w.untilAgentRunsOrDone(ctx, "hardy")
			if pod == nil {
				break
			}
			pause(ctx, time.Duration(random.IntN(3000))*time.Millisecond)
			kind := kinds[struck%len(kinds)]
			if soak() {
				kind = kinds[random.IntN(len(kinds))]
			}
			if err := kind.strike(w, pod); err != nil {
				continue // it did not run at this instant: try another instant
			}
			struck++
			count[kind.name]++
			By(fmt.Sprintf("killing %s, pod %s (%d of %d)", kind.name, pod.Name, struck, kills))
			seen.add(ctx, w, "hardy")
		}
		Expect(struck).To(Equal(kills), "the task still ran at the last kill")
		reportKills(count)

		w.untilSystemReady(ctx, restartTime)
		w.untilState(ctx, "hardy", restartTime, clewv1.ReasonCompleted)
		w.expectCallsOnce(ctx, "hardy", calls)
		for _, c := range w.untilListed(ctx, "hardy") {
			w.untilDurable(ctx, c.Name) // no volume was lost
		}
		seen.add(ctx, w, "hardy")
		w.expectDurableCheckpointsExact(ctx, calls, "hardy")
	})
})

// untilAgentRunsOrDone waits for a running agent. It returns nil when the task has ended.
func (w *world) untilAgentRunsOrDone(ctx context.Context, name string) *corev1.Pod {
	GinkgoHelper()
	var pod *corev1.Pod
	w.eventually(ctx, func() error {
		pod = nil
		task := w.task(ctx, name)
		if c := meta.FindStatusCondition(task.Status.Conditions, clewv1.TaskSucceeded); c != nil && c.Status != metav1.ConditionUnknown {
			return nil
		}
		if len(task.Status.Attempts) == 0 {
			return fmt.Errorf("no attempt yet")
		}
		p := &corev1.Pod{}
		if err := w.get(ctx, task.Status.Attempts[len(task.Status.Attempts)-1].PodName, p); err != nil {
			return err
		}
		if p.DeletionTimestamp != nil || containerID(p, clewv1.AgentContainer) == "" {
			return fmt.Errorf("pod %s does not run: %s; %s", p.Name, state(task), conditionMessage(task))
		}
		pod = p
		return nil
	}).WithTimeout(restartTime).Should(Succeed(), "the agent of task %s runs, or it is completed", name)
	return pod
}

var _ = Describe("a task whose volume is lost", long, Label("kill", "slow"), func() {
	w := newWorld()

	It("is restored from the gitstore and the history, and loses and repeats no call", func(ctx SpecContext) {
		calls, losses := pick(30, 60), pick(2, 10)
		task := w.newTask("homeless", replay(calls, 500*time.Millisecond)...)
		task.Spec.CheckpointPolicy.EveryToolCalls = ptr.To[int32](3)
		w.create(ctx, task)
		random, seen := dice(), durables{}

		for i := range losses {
			w.untilToolCalls(ctx, "homeless", int64(4+i*calls/(losses+2)), 3*time.Minute)
			pod := w.untilAgentRunsOrDone(ctx, "homeless")
			if pod == nil {
				break
			}
			pause(ctx, time.Duration(random.IntN(1500))*time.Millisecond)
			seen.add(ctx, w, "homeless")
			claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "homeless-workspace"}}
			Expect(w.kube.Delete(ctx, claim)).To(Succeed())
			_ = w.kube.Delete(ctx, pod, client.GracePeriodSeconds(0))
		}

		got := w.untilState(ctx, "homeless", 5*time.Minute, clewv1.ReasonCompleted)
		w.expectCallsOnce(ctx, "homeless", calls)
		seen.add(ctx, w, "homeless")
		w.expectDurableCheckpointsExact(ctx, calls, "homeless")
		Expect(got.Status.Attempts).To(HaveLen(1 + losses))
		reportCount(losses, "volumes lost")
	})
})
