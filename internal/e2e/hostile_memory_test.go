//go:build e2e && soak

package e2e

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	clewv1 "github.com/clew-dev/clew/api/v1alpha1"
)

// container is a running container of Clew.
type container struct {
	name   string
	cgroup cgroup
	limit  int64
}

// containersOfClew returns the containers of Clew's own pods and of the tasks in some
// namespaces, by id: a restarted container has another id.
func containersOfClew(ctx context.Context, worlds ...*world) map[string]container {
	found := map[string]container{}
	system := &corev1.PodList{}
	Expect(worlds[0].kube.List(ctx, system, client.InNamespace(systemNamespace))).To(Succeed())
	for i := range system.Items {
		addContainers(found, &system.Items[i], "")
	}
	for _, w := range worlds {
		pods := &corev1.PodList{}
		Expect(w.kube.List(ctx, pods, client.InNamespace(w.namespace), client.HasLabels{clewv1.LabelTaskUID})).To(Succeed())
		for i := range pods.Items {
			addContainers(found, &pods.Items[i], "daemon")
		}
	}
	return found
}

// addContainers adds the running containers of a pod, or only the one named.
func addContainers(found map[string]container, pod *corev1.Pod, only string) {
	for _, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		id := containerID(pod, c.Name)
		wanted := only == "" || c.Name == only
		if id == "" || !wanted {
			continue
		}
		found[id] = container{name: pod.Name + "/" + c.Name, cgroup: cgroupOf(id), limit: c.Resources.Limits.Memory().Value()}
	}
}

// memory is the memory use of containers, measured five times a second.
type memory struct {
	containers map[string]container
	done       chan struct{}
	all        sync.WaitGroup

	mu    sync.Mutex
	most  map[string]int64
	kills map[string]int64
	peak  map[string]int64
}

func watchMemory(containers map[string]container) *memory {
	m := &memory{containers: containers, done: make(chan struct{}), most: map[string]int64{}, kills: map[string]int64{}, peak: map[string]int64{}}
	m.all.Go(func() {
		tick := time.NewTicker(200 * time.Millisecond)
		defer tick.Stop()
		for {
			m.measure()
			select {
			case <-m.done:
				return
			case <-tick.C:
			}
		}
	})
	return m
}

func (m *memory) measure() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for id, c := range m.containers {
		m.most[id] = max(m.most[id], c.cgroup.kept())
		m.kills[id] = max(m.kills[id], c.cgroup.kills())
		m.peak[id] = max(m.peak[id], c.cgroup.number("memory.max_usage_in_bytes", "memory.peak"))
	}
}

// table shows for each container the most that it kept, the same with the page cache,
// which the kernel reclaims when necessary, and its limit.
func (m *memory) table() string {
	close(m.done)
	m.all.Wait()
	rows := map[string]string{}
	for id, c := range m.containers {
		rows[c.name] = fmt.Sprintf("%-44s %8d %8d %8d %8.0f%% %6d\n", c.name, m.most[id]>>20, m.peak[id]>>20, c.limit>>20,
			float64(m.most[id])*100/float64(max(c.limit, 1)), m.kills[id])
	}
	out := fmt.Sprintf("%-44s %8s %8s %8s %9s %6s\n", "MiB", "kept", "+ cache", "limit", "kept", "kills")
	for _, name := range sorted(rows) {
		out += rows[name]
	}
	return out
}

// killed returns the containers in which a process was killed for lack of memory.
func (m *memory) killed() (names []string) {
	for id, kills := range m.kills {
		if kills > 0 {
			names = append(names, m.containers[id].name)
		}
	}
	return names
}
