package cached_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/controller/cached"
	"github.com/clew-dev/clew/internal/resources"
	"github.com/clew-dev/clew/internal/testing/builders"
)

// transformed returns what the cache keeps of an object.
func transformed[T client.Object](t *testing.T, object T) T {
	t.Helper()
	for kind, options := range cached.Options().ByObject {
		if fmt.Sprintf("%T", kind) != fmt.Sprintf("%T", object) {
			continue
		}
		kept, err := options.Transform(object.DeepCopyObject())
		if err != nil {
			t.Fatal(err)
		}
		return kept.(T)
	}
	t.Fatalf("nothing is said of %T", object)
	return object
}

// size returns the bytes of an object as JSON.
func size(t *testing.T, object any) int {
	t.Helper()
	text, err := json.Marshal(object)
	if err != nil {
		t.Fatal(err)
	}
	return len(text)
}

// large is a pod's spec of a megabyte.
func large() corev1.PodSpec {
	return corev1.PodSpec{NodeName: "node", Containers: []corev1.Container{
		{Name: "other", Env: []corev1.EnvVar{{Name: "X", Value: strings.Repeat("x", 1<<20)}}}, {Name: v1alpha1.AgentContainer, Image: "agent"},
	}}
}

func TestATaskTakesLittleMemoryWhateverItSays(t *testing.T) {
	task := builders.Task("work", func(t *v1alpha1.Task) {
		t.ObjectMeta = builders.Hostile("work")
		t.Labels[v1alpha1.LabelContract], t.Annotations[v1alpha1.AnnotationForkUID] = "port", "uid-of-fork"
		t.Spec.Template.Spec, t.Spec.Prompt = large(), ptr.To(strings.Repeat("x", 64<<10))
		t.Spec.Resume = &v1alpha1.Resume{ID: "r", Prompt: strings.Repeat("x", 32<<10), AdditionalContext: strings.Repeat("x", 16<<10)}
		t.Spec.Rewind = &v1alpha1.Rewind{ID: "w", Paths: []string{strings.Repeat("x", 100<<10)}}
		t.Spec.Children = &v1alpha1.Children{Template: &v1alpha1.ChildTemplate{Container: &v1alpha1.ChildContainer{Command: []string{strings.Repeat("x", 1<<20)}}}}
	})
	kept := transformed(t, task)
	if n := size(t, kept); n > 4<<10 {
		t.Errorf("the cache keeps %d bytes of %d", n, size(t, task))
	}
	if kept.Spec.Resume.ID != "r" || kept.Spec.Resume.Prompt == "" || kept.Spec.Rewind.ID != "w" || kept.Generation != 2 || len(kept.Finalizers) != 1 ||
		kept.Labels[v1alpha1.LabelContract] != "port" || kept.Annotations[v1alpha1.AnnotationForkUID] != "uid-of-fork" {
		t.Errorf("decisions need more than %+v", kept)
	}
}

func TestAPodTakesLittleMemoryWhateverItSays(t *testing.T) {
	task := builders.Task("work", builders.WithUID("uid-of-work"))
	own := &corev1.Pod{ObjectMeta: builders.Hostile("work-1"), Spec: large(), Status: corev1.PodStatus{
		Phase: corev1.PodRunning, ContainerStatuses: []corev1.ContainerStatus{{Name: v1alpha1.AgentContainer, State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}, ImageID: "x"}},
	}}
	own.OwnerReferences = append(own.OwnerReferences, resources.Owner(task))
	for _, claim := range []string{"data", "work-workspace"} {
		own.Spec.Volumes = append(own.Spec.Volumes, corev1.Volume{Name: "clew-" + claim[strings.LastIndex(claim, "-")+1:], VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim},
		}})
	}
	own.Labels[v1alpha1.LabelTaskUID] = "uid-of-work"
	kept := transformed(t, own)
	if n := size(t, kept); n > 4<<10 {
		t.Errorf("the cache keeps %d bytes of a task's pod", n)
	}
	if !metav1.IsControlledBy(kept, task) || kept.Spec.NodeName != "node" || len(kept.Spec.Containers) != 1 || resources.MountedClaim(kept) != "work-workspace" || len(kept.Spec.Volumes) != 1 || kept.Status.ContainerStatuses[0].State.Running == nil || kept.Labels[v1alpha1.LabelTaskUID] == "" {
		t.Errorf("decisions need more than %+v", kept)
	}
	own.OwnerReferences = nil
	if kept = transformed(t, own); size(t, kept) > 1<<10 || kept.Labels != nil || kept.Name != "work-1" {
		t.Errorf("of a pod that nothing of Clew's controls, the cache keeps %+v", kept)
	}
}

func TestOtherObjectsTakeLittleMemoryWhateverTheySay(t *testing.T) {
	for _, object := range []client.Object{
		&corev1.PersistentVolumeClaim{ObjectMeta: builders.Hostile("claim"), Spec: corev1.PersistentVolumeClaimSpec{VolumeName: "v", DataSource: &corev1.TypedLocalObjectReference{Name: strings.Repeat("x", 1<<20)}}},
		&v1alpha1.Checkpoint{ObjectMeta: builders.Hostile("c"), Status: v1alpha1.CheckpointStatus{Number: 3, Skipped: []v1alpha1.SkippedFile{{Path: strings.Repeat("x", 1<<20)}}}},
		&v1alpha1.Checkpoint{ObjectMeta: builders.Hostile("set"), Status: v1alpha1.CheckpointStatus{Set: &v1alpha1.CheckpointSet{
			State: v1alpha1.SetTogether, Members: slices.Repeat([]v1alpha1.CheckpointSetMember{{Task: strings.Repeat("x", 253), Number: 1}}, 65)}}},
		&v1alpha1.ConversationSnapshot{ObjectMeta: builders.Hostile("s")},
		&v1alpha1.Fork{ObjectMeta: builders.Hostile("f"), Spec: v1alpha1.ForkSpec{Variants: []v1alpha1.ForkVariant{{Name: "a", Prompt: ptr.To(strings.Repeat("x", 64<<10))}}}},
	} {
		if n := size(t, transformed(t, object)); n > 2<<10 {
			t.Errorf("the cache keeps %d bytes of a %T", n, object)
		}
	}
}

func TestNoRoomIsKeptForWhatIsDropped(t *testing.T) {
	task := builders.Task("work", func(t *v1alpha1.Task) { t.ObjectMeta = builders.Hostile("work") })
	kept := transformed(t, task)
	if room := cap(kept.Finalizers) + cap(kept.OwnerReferences); room > 2 {
		t.Errorf("the cache keeps room for %d finalizers and owners", room)
	}
	task.OwnerReferences = append(task.OwnerReferences, builders.HostileOwner())
	if kept = transformed(t, task); len(kept.OwnerReferences) > 0 {
		t.Errorf("the cache keeps %d bytes of a Task with an owner of a long name", size(t, kept))
	}
}

// TestTheCacheKeepsForWhomAForkWaits: and from which checkpoint it starts, which is not deleted meanwhile.
func TestTheCacheKeepsForWhomAForkWaits(t *testing.T) {
	f := &v1alpha1.Fork{
		ObjectMeta: metav1.ObjectMeta{Name: "try", ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "m"}}},
		Spec: v1alpha1.ForkSpec{
			SourceRef: v1alpha1.NameReference{Name: "source"}, At: &v1alpha1.StartPoint{CheckpointNumber: ptr.To[int64](3)},
			Variants: []v1alpha1.ForkVariant{{Name: "one", Prompt: ptr.To("do it")}},
		},
		Status: v1alpha1.ForkStatus{Tasks: []v1alpha1.ForkedTask{{Name: "one"}}},
	}
	want := &v1alpha1.Fork{ObjectMeta: metav1.ObjectMeta{Name: "try"}, Spec: v1alpha1.ForkSpec{
		SourceRef: f.Spec.SourceRef, At: f.Spec.At, Variants: []v1alpha1.ForkVariant{{Name: "one"}},
	}}
	if diff := cmp.Diff(want, transformed(t, f)); diff != "" {
		t.Errorf("the cached Fork (-want +got):\n%s", diff)
	}
}
