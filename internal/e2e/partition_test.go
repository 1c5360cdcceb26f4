//go:build e2e

package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	clewv1 "github.com/clew-dev/clew/api/v1alpha1"
)

// A node that is cut off keeps its pods running when their objects are deleted
// by force. Here the kubelet sleeps and the pod's network is down while that
// happens, and then the network alone comes back: the agent has to be ended by
// its own daemon. When the kubelet is back as well, the task goes on where the
// history ends. Not parallel: no pod of the node starts or ends meanwhile.
func TestAnAgentThatWasCutOffEndsItself(t *testing.T) {
	w, g := newWorld(t), gomega.NewWithT(t)
	const calls = 60
	w.create(w.newTask("cut-off", replay(calls, time.Second)...))
	w.untilToolCalls("cut-off", 4, 2*time.Minute)
	pod := w.untilAgentRuns("cut-off", time.Minute)
	agent := agentProcesses(pod)
	g.Expect(agent).NotTo(gomega.BeEmpty())

	kubelet := kubeletProcess(t)
	signal(t, kubelet, syscall.SIGSTOP)
	t.Cleanup(func() { signal(t, kubelet, syscall.SIGCONT) })
	network(t, agent[0], "add")
	g.Expect(w.kube.Delete(w.ctx, pod, client.GracePeriodSeconds(0))).To(gomega.Succeed())
	w.until("the attempt is lost", 30*time.Second, func() error {
		if a := w.task("cut-off").Status.Attempts[0]; a.Outcome != clewv1.AttemptPodLost {
			return fmt.Errorf("attempt 1 is %q", a.Outcome)
		}
		return nil
	})
	g.Expect(slices.ContainsFunc(agent, alive)).To(gomega.BeTrue(), "nobody has ended the agent yet")
	network(t, agent[0], "del")

	// The server remembers for half a minute whose a token is.
	w.until("the agent of the pod that is gone has ended", 3*time.Minute, func() error {
		if i := slices.IndexFunc(agent, alive); i >= 0 {
			return fmt.Errorf("process %d still runs", agent[i])
		}
		return nil
	})

	signal(t, kubelet, syscall.SIGCONT)
	w.untilSystemReady(restartTime)
	task := w.untilState("cut-off", restartTime, clewv1.ReasonCompleted)
	w.expectCallsOnce("cut-off", calls)
	for i, a := range task.Status.Attempts {
		g.Expect(a.Number).To(gomega.BeEquivalentTo(i+1), "no number is left out or used twice")
	}
}

// agentProcesses are those of the agent's container as the node sees them, but
// for the shim.
func agentProcesses(pod *corev1.Pod) (pids []int) {
	for pid, inner := range processes(containerID(pod, clewv1.AgentContainer)) {
		if inner > 1 {
			pids = append(pids, pid)
		}
	}
	return pids
}

func alive(pid int) bool { return syscall.Kill(pid, 0) == nil }

// kubeletProcess is that of the development cluster.
func kubeletProcess(t *testing.T) int {
	t.Helper()
	found, _ := filepath.Glob("/proc/[0-9]*/comm")
	for _, path := range found {
		name, err := os.ReadFile(path)
		if err != nil || strings.TrimSpace(string(name)) != "kubelet" {
			continue
		}
		command, err := os.ReadFile(filepath.Join(filepath.Dir(path), "cmdline"))
		if err == nil && strings.Contains(string(command), clusterFolder()) {
			pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(path)))
			return pid
		}
	}
	t.Fatal("there is no kubelet of the development cluster")
	return 0
}

func signal(t *testing.T, pid int, sig syscall.Signal) {
	t.Helper()
	if err := syscall.Kill(pid, sig); err != nil {
		t.Fatalf("signal %v to process %d: %v", sig, pid, err)
	}
}

// network cuts the pod that a process is in off, or connects it again. Its link
// stays up, since its routes would go with it: two routes that lead nowhere go
// before the default one.
func network(t *testing.T, pid int, change string) {
	t.Helper()
	for _, half := range []string{"0.0.0.0/1", "128.0.0.0/1"} {
		command := exec.Command("nsenter", "--target", strconv.Itoa(pid), "--net", "ip", "route", change, "unreachable", half)
		if out, err := command.CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", command, err, out)
		}
	}
}
