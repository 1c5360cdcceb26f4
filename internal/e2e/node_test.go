//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// containerID returns the id of a pod's running container or init container, or "" if it
// does not run.
func containerID(pod *corev1.Pod, name string) string {
	for _, list := range [][]corev1.ContainerStatus{pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses} {
		for _, c := range list {
			if c.Name == name && c.State.Running != nil {
				_, id, _ := strings.Cut(c.ContainerID, "://")
				return id
			}
		}
	}
	return ""
}

// processes returns the processes of a container by their ids on the node, with their ids
// inside the container.
func processes(container string) map[int]int {
	found := map[int]int{}
	if container == "" {
		return found
	}
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	for _, dir := range dirs {
		cgroup, err := os.ReadFile(filepath.Join(dir, "cgroup"))
		if err != nil || !strings.Contains(string(cgroup), container) {
			continue
		}
		pid, _ := strconv.Atoi(filepath.Base(dir))
		found[pid] = innerPID(dir)
	}
	return found
}

// innerPID returns a process's id in its own pid namespace.
func innerPID(dir string) int {
	status, err := os.ReadFile(filepath.Join(dir, "status"))
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(status)) {
		if rest, ok := strings.CutPrefix(line, "NSpid:"); ok {
			ids := strings.Fields(rest)
			inner, _ := strconv.Atoi(ids[len(ids)-1])
			return inner
		}
	}
	return 0
}

// killContainer sends SIGKILL to the first process of a container.
func killContainer(pod *corev1.Pod, name string) error {
	for pid, inner := range processes(containerID(pod, name)) {
		if inner == 1 {
			return syscall.Kill(pid, syscall.SIGKILL)
		}
	}
	return fmt.Errorf("no running process of container %s in pod %s", name, pod.Name)
}

// killAgent sends SIGKILL to the agent itself, the shim's child.
func killAgent(pod *corev1.Pod) error {
	killed := false
	for pid, inner := range processes(containerID(pod, "agent")) {
		if inner > 1 {
			if err := syscall.Kill(pid, syscall.SIGKILL); err == nil {
				killed = true
			}
		}
	}
	if !killed {
		return fmt.Errorf("no agent runs in pod %s", pod.Name)
	}
	return nil
}

// killComponent sends SIGKILL to one of Clew's own processes.
func (w *world) killComponent(ctx context.Context, component string) error {
	pods := &corev1.PodList{}
	if err := w.kube.List(ctx, pods, client.InNamespace(systemNamespace),
		client.MatchingLabels{"app.kubernetes.io/component": component}); err != nil {
		return err
	}
	for i := range pods.Items {
		if err := killContainer(&pods.Items[i], component); err == nil {
			return nil
		}
	}
	return fmt.Errorf("no running pod of component %s", component)
}

// untilSystemReady waits until every component of Clew answers its probes, and the API server is
// answered by one that reads Postgres: for a moment after a kill, both are still called ready.
func (w *world) untilSystemReady(ctx context.Context, timeout time.Duration) {
	GinkgoHelper()
	Eventually(ctx, func() error {
		pods := &corev1.PodList{}
		if err := w.kube.List(ctx, pods, client.InNamespace(systemNamespace)); err != nil {
			return err
		}
		for _, pod := range pods.Items {
			if pod.DeletionTimestamp != nil {
				return fmt.Errorf("pod %s is terminating", pod.Name)
			}
			if pod.Status.Phase != corev1.PodSucceeded && !podReady(&pod) {
				return fmt.Errorf("pod %s is not ready", pod.Name)
			}
		}
		// A workload that was just scaled up may have no pod yet.
		sets := &appsv1.StatefulSetList{}
		if err := w.kube.List(ctx, sets, client.InNamespace(systemNamespace)); err != nil {
			return err
		}
		for _, s := range sets.Items {
			if s.Status.ObservedGeneration < s.Generation || s.Status.ReadyReplicas < ptr.Deref(s.Spec.Replicas, 1) {
				return fmt.Errorf("%d of %d pods of %s are ready", s.Status.ReadyReplicas, ptr.Deref(s.Spec.Replicas, 1), s.Name)
			}
		}
		_, err := w.rawQuery(ctx, fmt.Sprintf("/apis/history.clew.dev/v1alpha1/namespaces/%s/taskhistories?limit=1", w.namespace))
		return err
	}).WithTimeout(timeout).WithPolling(between).Should(Succeed(), "Clew is ready")
}

func podReady(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

// scale sets the replicas of one of Clew's workloads, such as statefulset/clew-postgres.
func (w *world) scale(ctx context.Context, workload string, replicas int) {
	GinkgoHelper()
	out, err := w.kubectlIn(ctx, nil, "--namespace", systemNamespace, "scale", workload, fmt.Sprintf("--replicas=%d", replicas))
	Expect(err).NotTo(HaveOccurred(), "scale %s\n%s", workload, out)
}

// scaleDown stops a workload with one replica, and starts it again however the spec ends:
// others need it.
func (w *world) scaleDown(ctx context.Context, workload string) {
	GinkgoHelper()
	DeferCleanup(func(ctx SpecContext) { w.scale(ctx, workload, 1) })
	w.scale(ctx, workload, 0)
}
