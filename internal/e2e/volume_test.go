//go:build e2e

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	clewv1 "github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/testing/matchers"
)

// cramped fills its volume to the last byte and keeps talking until there is room.
const cramped = `
say() { printf '{"type":"message","role":"assistant","text":"%s"}\n' "$1"; }
say "line 0"
cd /workspace
echo precious > work
dd if=/dev/zero of=filler bs=64k 2>/dev/null || true
for i in $(seq 200); do say "line $i"; done
while test -e filler; do sleep 0.2; done
say "there is room"
`

func (w *world) crampedTask(name, class string) *clewv1.Task {
	task := w.newTask(name, "sh", "-c", cramped)
	task.Spec.Repository = nil
	task.Spec.Workspace.StorageClassName, task.Spec.Workspace.Size = &class, resource.MustParse("64Mi")
	task.Spec.CheckpointPolicy.MaxFileBytes = ptr.To[int64](1 << 20)
	return task
}

var _ = Describe("a task whose volume is full", func() {
	w := newWorld()

	It("reports it, and loses nothing while its agent waits for room", func(ctx SpecContext) {
		class := w.smallVolume(ctx, "cramped-workspace", "64Mi")
		w.create(ctx, w.crampedTask("cramped", class))

		got := w.untilState(ctx, "cramped", 3*time.Minute, clewv1.ReasonVolumeFull)

		Expect(got).To(matchers.HaveCondition(clewv1.TaskSucceeded, metav1.ConditionUnknown), "it may still succeed")
		Expect(conditionMessage(got)).To(ContainSubstring("enlarge the task's PersistentVolumeClaim"))
		Eventually(ctx, w.eventReasons).WithTimeout(time.Minute).
			Should(ContainElement(clewv1.EventTaskHindered), "an Event reports the full volume")

		Expect(w.kubectl(ctx, "exec", got.Status.Attempts[0].PodName, "-c", "agent", "--", "cat", "/workspace/work")).To(Equal("precious\n"))
		w.makeRoom(class)
		got = w.untilState(ctx, "cramped", 2*time.Minute, clewv1.ReasonCompleted)
		Expect(got.Status.Attempts).To(HaveLen(1), "the agent only waited")
		want := []string{}
		for i := range 201 {
			want = append(want, fmt.Sprintf("line %d", i))
		}
		Expect(texts(w.conversation(ctx, "cramped"), "assistant")).To(Equal(append(want, "there is room")), "every line, once and in order")
		Expect(got).To(matchers.HaveCondition(clewv1.TaskDurable, metav1.ConditionTrue))
	})

	It("can be suspended, and continues when there is room", func(ctx SpecContext) {
		class := w.smallVolume(ctx, "tight-workspace", "64Mi")
		task := w.crampedTask("tight", class)
		task.Spec.Template.Spec.TerminationGracePeriodSeconds = ptr.To[int64](5)
		w.create(ctx, task)
		w.untilState(ctx, "tight", 3*time.Minute, clewv1.ReasonVolumeFull)

		w.patchSpec(ctx, "tight", map[string]any{"operatingMode": "Suspended"})
		w.untilState(ctx, "tight", 2*time.Minute, clewv1.ReasonSuspended)
		w.patchSpec(ctx, "tight", map[string]any{"operatingMode": "Running"})
		got := w.untilState(ctx, "tight", 2*time.Minute, clewv1.ReasonVolumeFull)
		Expect(got.Status.Conditions).To(ContainElement(SatisfyAll(
			HaveField("Type", clewv1.TaskWorkspaceReady), HaveField("Status", metav1.ConditionFalse),
			HaveField("Message", HavePrefix("the volume is full: enlarge")))), "there is no room to prepare it in")

		w.makeRoom(class)
		w.patchSpec(ctx, "tight", map[string]any{"resume": map[string]any{"id": "room"}})
		w.eventually(ctx, func() *clewv1.Task { return w.task(ctx, "tight") }).WithTimeout(2*time.Minute).
			Should(SatisfyAll(
				matchers.HaveCondition(clewv1.TaskSucceeded, metav1.ConditionUnknown),
				matchers.HaveReason(clewv1.TaskSucceeded, clewv1.ReasonVolumeFull)), "its agent has filled the volume again")
		w.makeRoom(class)
		w.untilState(ctx, "tight", 2*time.Minute, clewv1.ReasonCompleted)
		lines := texts(w.conversation(ctx, "tight"), "assistant")
		Expect(lines[len(lines)-2:]).To(Equal([]string{"line 200", "there is room"}))
	})
})

// smallVolume makes a volume of the given size for a claim and returns its storage class.
// It is a file system in the memory of the development cluster's node, since a folder has
// no size limit.
func (w *world) smallVolume(ctx context.Context, claim, size string) (class string) {
	GinkgoHelper()
	quantity := resource.MustParse(size)
	return w.volume(ctx, claim, size, func(folder string) {
		onNode("mount", "-t", "tmpfs", "-o", fmt.Sprintf("size=%d,mode=0777", quantity.Value()), "tmpfs", folder)
	})
}

// ownVolume makes a volume for a claim that is a file system of its own, as block storage
// is, and returns its storage class. Other volumes of the development cluster are folders
// of one file system and share its journal, so that a pod that writes much delays every
// other pod's fsync.
func (w *world) ownVolume(ctx context.Context, claim, size string) (class string) {
	GinkgoHelper()
	quantity := resource.MustParse(size)
	return w.volume(ctx, claim, size, func(folder string) {
		disk := folder + ".disk"
		DeferCleanup(onNode, "rm", "-f", disk)
		onNode("sh", "-c", makeDisk, "sh", disk, fmt.Sprint(quantity.Value()), folder)
	})
}

// makeDisk makes a file of a number of bytes, formats it, and mounts it at a folder. All of
// it is allocated at once, or each write would use the journal of the file system below;
// the device is freed when it is unmounted.
const makeDisk = `
set -e
fallocate --length "$2" "$1"
mkfs.ext4 -q -E nodiscard "$1"
device=$(losetup --find --show "$1")
mount "$device" "$3"
losetup --detach "$device"
chmod 0777 "$3"
`

// volume makes a volume from a folder of the node, on which mount mounts a file system.
func (w *world) volume(ctx context.Context, claim, size string, mount func(folder string)) (class string) {
	GinkgoHelper()
	class = w.namespace + "-" + claim
	folder := nodeFolder(class)
	onNode("mkdir", "-p", folder)
	mount(folder)
	volume := staticVolume(w.namespace, claim, class, size, folder)
	Expect(w.kube.Create(ctx, volume)).To(Succeed())
	DeferCleanup(func(ctx SpecContext) {
		_ = w.kube.Delete(ctx, volume)
		onNode("umount", "--lazy", folder)
	})
	return class
}

// staticVolume returns a volume for a claim that is a folder, bound to no node.
func staticVolume(namespace, claim, class, size, folder string) *corev1.PersistentVolume {
	return &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: class},
		Spec: corev1.PersistentVolumeSpec{
			StorageClassName: class, Capacity: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(size)},
			AccessModes:                   []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimRetain,
			ClaimRef:                      &corev1.ObjectReference{Namespace: namespace, Name: claim},
			PersistentVolumeSource:        corev1.PersistentVolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: folder}},
		},
	}
}

// clusterFolder returns the state folder of the development cluster, which holds its
// kubeconfig.
func clusterFolder() string { return filepath.Dir(os.Getenv("KUBECONFIG")) }

// nodeFolder returns the folder of a volume on the node.
func nodeFolder(class string) string { return filepath.Join(clusterFolder(), "volumes", class) }

// makeRoom removes the file that fills a volume.
func (w *world) makeRoom(class string) {
	GinkgoHelper()
	onNode("rm", filepath.Join(nodeFolder(class), "worktree", "filler"))
}

// onNode runs a program in the node's mount namespace.
func onNode(argv ...string) {
	GinkgoHelper()
	var kubelet struct{ PID int }
	text, err := os.ReadFile(filepath.Join(clusterFolder(), "pids", "kubelet"))
	Expect(err).NotTo(HaveOccurred(), "the development cluster's kubelet")
	Expect(json.Unmarshal(text, &kubelet)).To(Succeed(), "the development cluster's kubelet: %s", text)
	enter := []string{fmt.Sprintf("--mount=/proc/%d/ns/mnt", kubelet.PID), "--"}
	out, err := exec.Command("nsenter", append(enter, argv...)...).CombinedOutput()
	Expect(err).NotTo(HaveOccurred(), "%s on the node\n%s", strings.Join(argv, " "), out)
}
