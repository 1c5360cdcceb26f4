//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	clewv1 "github.com/clew-dev/clew/api/v1alpha1"
)

// restorableStore is a store of Clew that can be restored to an older copy.
type restorableStore interface {
	// copy copies the state of one instant.
	copy(ctx context.Context, w *world)
	// putBack restores the copy, as from a backup.
	putBack(ctx context.Context, w *world)
}

// Serial: they restore stores that every task needs.
var _ = Describe("a task whose stores are restored from an older copy", Serial, Label("slow"), func() {
	w := newWorld()

	It("survives an older Postgres: what was lost is sent again", func(ctx SpecContext) {
		w.expectSurvivesOlder(ctx, &volumeStore{component: "postgres", workload: "statefulset/clew-postgres"}, "Postgres", pick(1, 10))
	})

	It("survives an older etcd: what was lost is sent again", func(ctx SpecContext) {
		w.expectSurvivesOlder(ctx, &etcdStore{}, "etcd", pick(1, 5))
	})
})

// expectSurvivesOlder lets a task work while a store is restored to its state of a dozen
// tool calls before, and expects that nothing is lost or duplicated.
func (w *world) expectSurvivesOlder(ctx context.Context, store restorableStore, what string, times int) {
	GinkgoHelper()
	calls := 24 + 7*times
	w.create(ctx, w.newTask("steady", replay(calls, time.Second)...))
	for i := range times {
		from := int64(4 + 7*i)
		w.untilToolCalls(ctx, "steady", from, 3*time.Minute)
		store.copy(ctx, w)
		w.untilToolCalls(ctx, "steady", from+6, 3*time.Minute)
		By(fmt.Sprintf("restoring the store, after %d calls, to its state after %d", from+6, from))
		store.putBack(ctx, w)
		w.untilSystemReady(ctx, restartTime)
	}
	reportCount(times, "restored to an older copy: "+what)

	task := w.untilState(ctx, "steady", restartTime, clewv1.ReasonCompleted)
	w.expectCallsOnce(ctx, "steady", calls)
	for _, c := range w.untilListed(ctx, "steady") {
		w.untilDurable(ctx, c.Name)
	}
	w.expectDurableCheckpointsExact(ctx, calls, "steady")
	numbers := map[int64]bool{}
	for _, a := range task.Status.Attempts {
		Expect(numbers).NotTo(HaveKey(a.Number), "no attempt's number is used twice")
		numbers[a.Number] = true
	}
}

// volumeStore is a workload with one pod that keeps its state on a volume of this machine.
type volumeStore struct {
	component, workload string
	volume, kept        string
}

func (s *volumeStore) pod(ctx context.Context, w *world) *corev1.Pod {
	GinkgoHelper()
	pods := &corev1.PodList{}
	Expect(w.kube.List(ctx, pods, client.InNamespace(systemNamespace),
		client.MatchingLabels{"app.kubernetes.io/component": s.component})).To(Succeed())
	Expect(pods.Items).To(HaveLen(1), "the pods of %s", s.workload)
	return &pods.Items[0]
}

// folder returns the folder of the pod's volume on this machine.
func (s *volumeStore) folder(ctx context.Context, w *world, pod *corev1.Pod) string {
	GinkgoHelper()
	for _, v := range pod.Spec.Volumes {
		if v.PersistentVolumeClaim != nil {
			return w.volumeFolder(ctx, pod.Namespace, v.PersistentVolumeClaim.ClaimName)
		}
	}
	Fail(fmt.Sprintf("pod %s has no volume of its own", pod.Name))
	return ""
}

// volumeFolder returns the folder, on this machine, of a claim's volume.
func (w *world) volumeFolder(ctx context.Context, namespace, name string) string {
	GinkgoHelper()
	claim, volume := &corev1.PersistentVolumeClaim{}, &corev1.PersistentVolume{}
	Expect(w.kube.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, claim)).To(Succeed())
	Expect(w.kube.Get(ctx, client.ObjectKey{Name: claim.Spec.VolumeName}, volume)).To(Succeed())
	switch {
	case volume.Spec.HostPath != nil:
		return volume.Spec.HostPath.Path
	case volume.Spec.Local != nil:
		return volume.Spec.Local.Path
	}
	Fail(fmt.Sprintf("the volume of claim %s is not on this machine", name))
	return ""
}

// copy stops the pod's processes while it copies.
func (s *volumeStore) copy(ctx context.Context, w *world) {
	GinkgoHelper()
	pod := s.pod(ctx, w)
	s.volume, s.kept = s.folder(ctx, w, pod), filepath.Join(GinkgoT().TempDir(), s.component)
	stopped := processes(containerID(pod, s.component))
	Expect(stopped).NotTo(BeEmpty(), "no process of container %s runs in pod %s", s.component, pod.Name)
	defer func() {
		for pid := range stopped {
			_ = syscall.Kill(pid, syscall.SIGCONT)
		}
	}()
	for pid := range stopped {
		_ = syscall.Kill(pid, syscall.SIGSTOP) // a process that has just ended writes nothing either
	}
	run(exec.Command("cp", "-a", s.volume, s.kept))
}

func (s *volumeStore) putBack(ctx context.Context, w *world) {
	GinkgoHelper()
	w.scaleDown(ctx, s.workload)
	Eventually(ctx, func() error {
		pods := &corev1.PodList{}
		err := w.kube.List(ctx, pods, client.InNamespace(systemNamespace), client.MatchingLabels{"app.kubernetes.io/component": s.component})
		if err == nil && len(pods.Items) > 0 {
			err = fmt.Errorf("pod %s is still there", pods.Items[0].Name)
		}
		return err
	}).WithTimeout(3*time.Minute).Should(Succeed(), "%s is down", s.workload)
	// The folder itself stays: its owner and mode are the provisioner's.
	run(exec.Command("find", s.volume, "-mindepth", "1", "-delete"))
	run(exec.Command("cp", "-a", s.kept+"/.", s.volume))
	w.scale(ctx, s.workload, 1)
}

// etcdStore is the etcd of the cluster.
type etcdStore struct{ kept string }

func (s *etcdStore) copy(context.Context, *world) {
	GinkgoHelper()
	s.kept = filepath.Join(GinkgoT().TempDir(), "etcd")
	s.devcluster("save-etcd")
}

func (s *etcdStore) putBack(context.Context, *world) {
	GinkgoHelper()
	s.devcluster("restore-etcd")
}

func (s *etcdStore) devcluster(command string) {
	GinkgoHelper()
	out, err := newNode().run(command, s.kept)
	Expect(err).NotTo(HaveOccurred())
	GinkgoWriter.Printf("devcluster %s\n%s\n", command, out)
}
