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
	"testing"
	"time"

	"github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	clewv1 "github.com/clew-dev/clew/api/v1alpha1"
)

// cramped fills its volume to the last byte and talks on, until somebody makes room.
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

func TestAFullVolumeShowsAndNothingIsLost(t *testing.T) {
	t.Parallel()
	w, g := newWorld(t), gomega.NewWithT(t)
	class := w.smallVolume("cramped-workspace", "64Mi")
	w.create(w.crampedTask("cramped", class))

	got := w.untilState("cramped", 3*time.Minute, clewv1.ReasonVolumeFull)

	c := meta.FindStatusCondition(got.Status.Conditions, clewv1.TaskSucceeded)
	g.Expect(c.Status).To(gomega.Equal(metav1.ConditionUnknown), "it may end well yet")
	g.Expect(c.Message).To(gomega.ContainSubstring("enlarge the task's PersistentVolumeClaim"))
	w.until("an Event tells of it", time.Minute, func() error {
		if out := w.kubectl("get", "events", "--field-selector", "reason="+clewv1.EventTaskHindered, "-o", "name"); strings.TrimSpace(out) == "" {
			return fmt.Errorf("none does")
		}
		return nil
	})

	out := w.kubectl("exec", got.Status.Attempts[0].PodName, "-c", "agent", "--", "cat", "/workspace/work")
	g.Expect(out).To(gomega.Equal("precious\n"))
	w.makeRoom(class)
	got = w.untilState("cramped", 2*time.Minute, clewv1.ReasonCompleted)
	g.Expect(got.Status.Attempts).To(gomega.HaveLen(1), "its agent only waited")
	want := []string{}
	for i := range 201 {
		want = append(want, fmt.Sprintf("line %d", i))
	}
	g.Expect(texts(w.conversation("cramped"), "assistant")).To(gomega.Equal(append(want, "there is room")), "every line, once and in order")
	g.Expect(meta.IsStatusConditionTrue(got.Status.Conditions, clewv1.TaskDurable)).To(gomega.BeTrue())
}

func TestATaskIsSuspendedOnAFullVolumeAndGoesOnWhenThereIsRoom(t *testing.T) {
	t.Parallel()
	w, g := newWorld(t), gomega.NewWithT(t)
	class := w.smallVolume("tight-workspace", "64Mi")
	task := w.crampedTask("tight", class)
	task.Spec.Template.Spec.TerminationGracePeriodSeconds = ptr.To[int64](5)
	w.create(task)
	w.untilState("tight", 3*time.Minute, clewv1.ReasonVolumeFull)

	w.patchSpec("tight", map[string]any{"operatingMode": "Suspended"})
	w.untilState("tight", 2*time.Minute, clewv1.ReasonSuspended)
	w.patchSpec("tight", map[string]any{"operatingMode": "Running"})
	got := w.untilState("tight", 2*time.Minute, clewv1.ReasonVolumeFull)
	ready := meta.FindStatusCondition(got.Status.Conditions, clewv1.TaskWorkspaceReady)
	g.Expect(ready.Status).To(gomega.Equal(metav1.ConditionFalse), "there is no room to prepare it in")
	g.Expect(ready.Message).To(gomega.HavePrefix("the volume is full: enlarge"))

	w.makeRoom(class)
	w.patchSpec("tight", map[string]any{"resume": map[string]any{"id": "room"}})
	w.until("its agent has filled the volume again", 2*time.Minute, func() error {
		got := w.task("tight")
		if c := meta.FindStatusCondition(got.Status.Conditions, clewv1.TaskSucceeded); c.Status != metav1.ConditionUnknown || c.Reason != clewv1.ReasonVolumeFull {
			return fmt.Errorf("it is %s: %s", c.Reason, c.Message)
		}
		return nil
	})
	w.makeRoom(class)
	w.untilState("tight", 2*time.Minute, clewv1.ReasonCompleted)
	lines := texts(w.conversation("tight"), "assistant")
	g.Expect(lines[len(lines)-2:]).To(gomega.Equal([]string{"line 200", "there is room"}))
}

// smallVolume makes a volume of that size for a claim and returns its storage
// class: a file system in the memory of the development cluster's node, since a
// folder there has no bounds.
func (w *world) smallVolume(claim, size string) (class string) {
	w.Helper()
	bytes := resource.MustParse(size)
	return w.volume(claim, size, func(folder string) {
		w.onNode("mount", "-t", "tmpfs", "-o", fmt.Sprintf("size=%d,mode=0777", bytes.Value()), "tmpfs", folder)
	})
}

// ownVolume makes a volume for a claim that is a file system of its own, as block
// storage is, and returns its storage class. The volumes of the development cluster
// are folders of one file system else, whose journal is everybody's: there, whoever
// writes much makes every other's fsync wait.
func (w *world) ownVolume(claim, size string) (class string) {
	w.Helper()
	bytes := resource.MustParse(size)
	return w.volume(claim, size, func(folder string) {
		disk := folder + ".disk"
		w.Cleanup(func() { w.onNode("rm", "-f", disk) })
		w.onNode("sh", "-c", makeDisk, "sh", disk, fmt.Sprint(bytes.Value()), folder)
	})
}

// makeDisk makes a file of so many bytes into a disk and mounts it at a folder. All
// of it is allocated at once, or each write would concern the journal below; the
// device goes when it is unmounted.
const makeDisk = `
set -e
fallocate --length "$2" "$1"
mkfs.ext4 -q -E nodiscard "$1"
device=$(losetup --find --show "$1")
mount "$device" "$3"
losetup --detach "$device"
chmod 0777 "$3"
`

// volume makes a volume of a folder of the node, on which mount mounts something.
func (w *world) volume(claim, size string, mount func(folder string)) (class string) {
	w.Helper()
	class = w.namespace + "-" + claim
	folder := nodeFolder(class)
	w.onNode("mkdir", "-p", folder)
	mount(folder)
	volume := &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: class},
		Spec: corev1.PersistentVolumeSpec{
			StorageClassName: class, Capacity: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(size)},
			AccessModes:                   []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimRetain,
			ClaimRef:                      &corev1.ObjectReference{Namespace: w.namespace, Name: claim},
			PersistentVolumeSource:        corev1.PersistentVolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: folder}},
		},
	}
	if err := w.kube.Create(w.ctx, volume); err != nil {
		w.Fatal(err)
	}
	w.Cleanup(func() {
		_ = w.kube.Delete(context.Background(), volume)
		w.onNode("umount", "--lazy", folder)
	})
	return class
}

// clusterFolder is where the development cluster keeps its things, beside its
// kubeconfig.
func clusterFolder() string { return filepath.Dir(os.Getenv("KUBECONFIG")) }

// nodeFolder is where volume keeps a volume on the node.
func nodeFolder(class string) string { return filepath.Join(clusterFolder(), "volumes", class) }

// makeRoom takes away what fills a volume.
func (w *world) makeRoom(class string) {
	w.Helper()
	w.onNode("rm", filepath.Join(nodeFolder(class), "worktree", "filler"))
}

// onNode runs a program in the node's mount namespace.
func (w *world) onNode(argv ...string) {
	w.Helper()
	var kubelet struct{ PID int }
	text, err := os.ReadFile(filepath.Join(clusterFolder(), "pids", "kubelet"))
	if err == nil {
		err = json.Unmarshal(text, &kubelet)
	}
	if err != nil {
		w.Fatalf("the development cluster's kubelet: %v", err)
	}
	enter := []string{fmt.Sprintf("--mount=/proc/%d/ns/mnt", kubelet.PID), "--"}
	if out, err := exec.Command("nsenter", append(enter, argv...)...).CombinedOutput(); err != nil {
		w.Fatalf("%s on the node: %v\n%s", strings.Join(argv, " "), err, out)
	}
}
