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
// by force. Here the kubelet sleeps and the pods' network is down while that
// happens, and then the network alone comes back: each agent has to be ended by
// its own daemon. When the kubelet is back as well, the tasks go on where the
// history ends. Not parallel: no pod of the node starts or ends meanwhile.
func TestAnAgentThatWasCutOffEndsItself(t *testing.T) {
	w, g := newWorld(t), gomega.NewWithT(t)
	calls, rounds := pick(60, 150), pick(1, 4)
	var tasks []string
	for i := range pick(1, 5) {
		tasks = append(tasks, fmt.Sprintf("cut-off-%d", i+1))
		w.create(w.newTask(tasks[i], replay(calls, pick(time.Second, 2*time.Second))...))
	}
	for _, task := range tasks {
		w.untilToolCalls(task, 4, 5*time.Minute)
	}
	for round := range rounds {
		begin := time.Now()
		w.cutOff(tasks)
		t.Logf("round %d: %d agents were cut off, and have ended after %s", round+1, len(tasks), time.Since(begin).Round(time.Second))
		w.untilSystemReady(restartTime)
	}
	w.tell(rounds*len(tasks), "pods cut off")

	for _, name := range tasks {
		task := w.untilState(name, restartTime, clewv1.ReasonCompleted)
		w.expectCallsOnce(name, calls)
		for i, a := range task.Status.Attempts {
			g.Expect(a.Number).To(gomega.BeEquivalentTo(i+1), "no number is left out or used twice")
		}
	}
}

// cutOff cuts the agents of tasks off until each has ended.
func (w *world) cutOff(tasks []string) {
	w.Helper()
	g := gomega.NewWithT(w.T)
	pods, agents := map[string]*corev1.Pod{}, map[string][]int{}
	for _, name := range tasks {
		// The Task may still tell of a pod whose agent has just ended.
		w.until("the agent of "+name+" has a process", restartTime, func() error {
			pods[name] = w.untilAgentRuns(name, restartTime)
			agents[name] = agentProcesses(pods[name])
			if len(agents[name]) == 0 {
				return fmt.Errorf("pod %s has none", pods[name].Name)
			}
			return nil
		})
	}

	kubelet := kubeletProcess(w.T)
	signal(w.T, kubelet, syscall.SIGSTOP)
	awake := false
	wake := func() {
		if !awake {
			signal(w.T, kubelet, syscall.SIGCONT)
		}
		awake = true
	}
	w.Cleanup(wake)
	for _, name := range tasks {
		network(w.T, agents[name][0], "add")
		g.Expect(w.kube.Delete(w.ctx, pods[name], client.GracePeriodSeconds(0))).To(gomega.Succeed())
	}
	for _, name := range tasks {
		w.until("the attempt of "+name+" is lost", time.Minute, func() error {
			attempts := w.task(name).Status.Attempts
			i := slices.IndexFunc(attempts, func(a clewv1.Attempt) bool { return a.PodUID == string(pods[name].UID) })
			if i < 0 || attempts[i].Outcome != clewv1.AttemptPodLost {
				return fmt.Errorf("that of pod %s is not: %+v", pods[name].Name, attempts[len(attempts)-1])
			}
			return nil
		})
		g.Expect(slices.ContainsFunc(agents[name], alive)).To(gomega.BeTrue(), "nobody has ended the agent yet")
	}
	for _, name := range tasks {
		network(w.T, agents[name][0], "del")
	}
	for _, name := range tasks {
		// The server remembers for half a minute whose a token is.
		w.until("the agent of "+name+"'s pod that is gone has ended", 3*time.Minute, func() error {
			if i := slices.IndexFunc(agents[name], alive); i >= 0 {
				return fmt.Errorf("process %d still runs", agents[name][i])
			}
			return nil
		})
	}
	wake()
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
