//go:build e2e

package e2e

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/client"

	clewv1 "github.com/clew-dev/clew/api/v1alpha1"
)

// aStore is something of Clew's that keeps state, and can be put back to an
// older copy of it.
type aStore interface {
	// copy copies the state as it is at one instant.
	copy(w *world)
	// putBack brings the copy back, as a restore from a backup does.
	putBack(w *world)
}

// Not parallel: they put back what every task needs.

func TestATaskOutlivesAnOlderPostgres(t *testing.T) {
	outliveOlder(t, &volumeStore{component: "postgres", workload: "statefulset/clew-postgres"}, "Postgres", pick(1, 10))
}

func TestATaskOutlivesAnOlderEtcd(t *testing.T) {
	outliveOlder(t, &etcdStore{}, "etcd", pick(1, 5))
}

// outliveOlder lets a task work while a store goes back to what it held a dozen
// tool calls before. What the store lost is sent to it again.
func outliveOlder(t *testing.T, store aStore, what string, times int) {
	w, g := newWorld(t), gomega.NewWithT(t)
	calls := 24 + 7*times
	w.create(w.newTask("steady", replay(calls, time.Second)...))
	for i := range times {
		from := int64(4 + 7*i)
		w.untilToolCalls("steady", from, 3*time.Minute)
		store.copy(w)
		w.untilToolCalls("steady", from+6, 3*time.Minute)
		t.Logf("after %d calls the store is put back to what it was after %d", from+6, from)
		store.putBack(w)
		w.untilSystemReady(restartTime)
	}
	w.tell(times, "put back to an older copy: "+what)

	task := w.untilState("steady", restartTime, clewv1.ReasonCompleted)
	w.expectCallsOnce("steady", calls)
	for _, c := range w.untilListed("steady") {
		w.untilDurable(c.Name)
	}
	w.expectDurableCheckpointsExact(calls, "steady")
	numbers := map[int64]bool{}
	for _, a := range task.Status.Attempts {
		g.Expect(numbers).NotTo(gomega.HaveKey(a.Number), "no attempt's number is used twice")
		numbers[a.Number] = true
	}
}

// volumeStore is a workload of one pod that keeps its state on a volume of this
// machine.
type volumeStore struct {
	component, workload string
	volume, kept        string
}

func (s *volumeStore) pod(w *world) *corev1.Pod {
	w.Helper()
	pods := &corev1.PodList{}
	if err := w.kube.List(w.ctx, pods, client.InNamespace(systemNamespace),
		client.MatchingLabelsSelector{Selector: labels.SelectorFromSet(labels.Set{"app.kubernetes.io/component": s.component})}); err != nil {
		w.Fatal(err)
	}
	if len(pods.Items) != 1 {
		w.Fatalf("%s has %d pods and should have one", s.workload, len(pods.Items))
	}
	return &pods.Items[0]
}

// folder is where the pod's volume lies on this machine.
func (s *volumeStore) folder(w *world, pod *corev1.Pod) string {
	w.Helper()
	for _, v := range pod.Spec.Volumes {
		if v.PersistentVolumeClaim != nil {
			return w.volumeFolder(pod.Namespace, v.PersistentVolumeClaim.ClaimName)
		}
	}
	w.Fatalf("pod %s has no volume of its own", pod.Name)
	return ""
}

// volumeFolder is where the volume of a claim lies on this machine.
func (w *world) volumeFolder(namespace, name string) string {
	w.Helper()
	claim, volume := &corev1.PersistentVolumeClaim{}, &corev1.PersistentVolume{}
	if err := w.kube.Get(w.ctx, client.ObjectKey{Namespace: namespace, Name: name}, claim); err != nil {
		w.Fatal(err)
	}
	if err := w.kube.Get(w.ctx, client.ObjectKey{Name: claim.Spec.VolumeName}, volume); err != nil {
		w.Fatal(err)
	}
	switch {
	case volume.Spec.HostPath != nil:
		return volume.Spec.HostPath.Path
	case volume.Spec.Local != nil:
		return volume.Spec.Local.Path
	}
	w.Fatalf("the volume of claim %s is not on this machine", name)
	return ""
}

// copy stops the pod's processes for as long as it takes.
func (s *volumeStore) copy(w *world) {
	w.Helper()
	pod := s.pod(w)
	s.volume, s.kept = s.folder(w, pod), filepath.Join(w.TempDir(), s.component)
	stopped := processes(containerID(pod, s.component))
	if len(stopped) == 0 {
		w.Fatalf("no process of container %s runs in pod %s", s.component, pod.Name)
	}
	for pid := range stopped {
		_ = syscall.Kill(pid, syscall.SIGSTOP) // one that has just ended writes nothing either
	}
	w.run(exec.Command("cp", "-a", s.volume, s.kept))
	for pid := range stopped {
		_ = syscall.Kill(pid, syscall.SIGCONT)
	}
}

func (s *volumeStore) putBack(w *world) {
	w.Helper()
	w.scaleDown(s.workload)
	w.until(s.workload+" is down", 3*time.Minute, func() error {
		pods := &corev1.PodList{}
		err := w.kube.List(w.ctx, pods, client.InNamespace(systemNamespace), client.MatchingLabels{"app.kubernetes.io/component": s.component})
		if err == nil && len(pods.Items) > 0 {
			err = fmt.Errorf("pod %s is still there", pods.Items[0].Name)
		}
		return err
	})
	// The folder itself stays: its owner and mode are the provisioner's.
	w.run(exec.Command("find", s.volume, "-mindepth", "1", "-delete"))
	w.run(exec.Command("cp", "-a", s.kept+"/.", s.volume))
	w.scale(s.workload, 1)
}

// etcdStore is the cluster's own.
type etcdStore struct{ kept string }

func (s *etcdStore) copy(w *world) {
	w.Helper()
	s.kept = filepath.Join(w.TempDir(), "etcd")
	s.devcluster(w, "save-etcd")
}

func (s *etcdStore) putBack(w *world) {
	w.Helper()
	s.devcluster(w, "restore-etcd")
}

func (s *etcdStore) devcluster(w *world, command string) {
	w.Helper()
	out, err := newNode(w).run(command, s.kept)
	if err != nil {
		w.Fatal(err)
	}
	w.Logf("devcluster %s\n%s", command, out)
}
