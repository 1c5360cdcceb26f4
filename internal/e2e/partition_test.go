//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	clewv1 "github.com/clew-dev/clew/api/v1alpha1"
)

// A node that is cut off keeps its pods running when their objects are deleted by force.
// Here the kubelet is stopped and the pods' network is down while that happens, and then
// only the network comes back: each agent must be ended by its own sidecar. When the
// kubelet is back as well, the tasks continue where the history ends.
//
// Serial: meanwhile no pod of the node starts or ends.
var _ = Describe("the agents of a node that is cut off", Serial, Label("kill", "slow"), func() {
	w := newWorld()

	It("are ended by their own daemons, and their tasks lose and repeat no call", func(ctx SpecContext) {
		calls, rounds := pick(60, 150), pick(1, 4)
		var tasks []string
		for i := range pick(1, 5) {
			tasks = append(tasks, fmt.Sprintf("cut-off-%d", i+1))
			w.create(ctx, w.newTask(tasks[i], replay(calls, pick(time.Second, 2*time.Second))...))
		}
		for _, task := range tasks {
			w.untilToolCalls(ctx, task, 4, 5*time.Minute)
		}
		for round := range rounds {
			By(fmt.Sprintf("cutting %d agents off, round %d", len(tasks), round+1), func() { w.cutOff(ctx, tasks) })
			w.untilSystemReady(ctx, restartTime)
		}
		reportCount(rounds*len(tasks), "pods cut off")

		for _, name := range tasks {
			task := w.untilState(ctx, name, restartTime, clewv1.ReasonCompleted)
			w.expectCallsOnce(ctx, name, calls)
			for i, a := range task.Status.Attempts {
				Expect(a.Number).To(BeEquivalentTo(i+1), "no attempt's number is left out or used twice")
			}
		}
	})
})

// cutOff cuts off the agents of tasks until each has ended.
func (w *world) cutOff(ctx context.Context, tasks []string) {
	GinkgoHelper()
	pods, agents := map[string]*corev1.Pod{}, map[string][]int{}
	for _, name := range tasks {
		pods[name], agents[name] = w.untilAgentHasProcesses(ctx, name)
	}

	wake := stopKubelet()
	for _, name := range tasks {
		network(agents[name][0], "add")
		Expect(w.kube.Delete(ctx, pods[name], client.GracePeriodSeconds(0))).To(Succeed())
	}
	for _, name := range tasks {
		w.untilPodLost(ctx, name, string(pods[name].UID))
		Expect(agents[name]).To(ContainElement(WithTransform(alive, BeTrue())), "nothing has ended the agent of %s yet", name)
	}
	for _, name := range tasks {
		network(agents[name][0], "del")
	}
	for _, name := range tasks {
		// The server caches the owner of a token for half a minute.
		Eventually(ctx, func() []int {
			return slices.DeleteFunc(slices.Clone(agents[name]), func(pid int) bool { return !alive(pid) })
		}).
			WithTimeout(3*time.Minute).Should(BeEmpty(), "the processes of the agent of %s's deleted pod have ended", name)
	}
	wake()
}

// untilAgentHasProcesses waits for the agent's processes in the pod of the newest
// attempt: the Task may still name a pod whose agent has just ended.
func (w *world) untilAgentHasProcesses(ctx context.Context, name string) (pod *corev1.Pod, agent []int) {
	GinkgoHelper()
	Eventually(ctx, func() error {
		pod = w.untilAgentRuns(ctx, name, restartTime)
		if agent = agentProcesses(pod); len(agent) == 0 {
			return fmt.Errorf("pod %s has none", pod.Name)
		}
		return nil
	}).WithTimeout(restartTime).Should(Succeed(), "the agent of %s has a process", name)
	return pod, agent
}

// untilPodLost waits until the attempt of a pod has ended as lost.
func (w *world) untilPodLost(ctx context.Context, name, uid string) {
	GinkgoHelper()
	w.eventually(ctx, func() []clewv1.Attempt { return w.task(ctx, name).Status.Attempts }).WithTimeout(time.Minute).
		Should(ContainElement(SatisfyAll(HaveField("PodUID", uid), HaveField("Outcome", clewv1.AttemptPodLost))), "the attempt of %s is lost", name)
}

// stopKubelet stops the kubelet until wake is called, at the latest when the spec ends.
func stopKubelet() (wake func()) {
	GinkgoHelper()
	kubelet := kubeletProcess()
	signal(kubelet, syscall.SIGSTOP)
	awake := false
	wake = func() {
		if !awake {
			signal(kubelet, syscall.SIGCONT)
		}
		awake = true
	}
	DeferCleanup(wake)
	return wake
}

// agentProcesses returns the processes of the agent's container by their ids on the node,
// without the shim.
func agentProcesses(pod *corev1.Pod) (pids []int) {
	for pid, inner := range processes(containerID(pod, clewv1.AgentContainer)) {
		if inner > 1 {
			pids = append(pids, pid)
		}
	}
	return pids
}

func alive(pid int) bool { return syscall.Kill(pid, 0) == nil }

// kubeletProcess returns the process id of the development cluster's kubelet.
func kubeletProcess() int {
	GinkgoHelper()
	found, _ := filepath.Glob("/proc/[0-9]*/comm")
	for _, path := range found {
		name, err := os.ReadFile(path)
		if err != nil || strings.TrimSpace(string(name)) != "kubelet" {
			continue
		}
		command, err := os.ReadFile(filepath.Join(filepath.Dir(path), "cmdline"))
		if err == nil && strings.Contains(string(command), clusterFolder()+"/") { // another cluster's may begin with the same name
			pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(path)))
			return pid
		}
	}
	Fail("there is no kubelet of the development cluster")
	return 0
}

func signal(pid int, sig syscall.Signal) {
	GinkgoHelper()
	Expect(syscall.Kill(pid, sig)).To(Succeed(), "signal %v to process %d", sig, pid)
}

// network cuts off the pod that a process is in, or reconnects it. Its link stays up,
// since a link that goes down loses its routes: two unreachable routes take precedence
// over the default route.
func network(pid int, change string) {
	GinkgoHelper()
	for _, half := range []string{"0.0.0.0/1", "128.0.0.0/1"} {
		command := exec.Command("nsenter", "--target", strconv.Itoa(pid), "--net", "ip", "route", change, "unreachable", half)
		out, err := command.CombinedOutput()
		Expect(err).NotTo(HaveOccurred(), "%s\n%s", command, out)
	}
}
