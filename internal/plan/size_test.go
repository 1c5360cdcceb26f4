package plan

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/testing/builders"
)

// claimOf returns a bound claim of a class that asks for a size and has one.
func claimOf(asked, has string) *corev1.PersistentVolumeClaim {
	return &corev1.PersistentVolumeClaim{
		Spec: corev1.PersistentVolumeClaimSpec{
			StorageClassName: ptr.To("fast"),
			Resources:        corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(asked)}},
		},
		Status: corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimBound, Capacity: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(has)}},
	}
}

func TestWhatBecomesOfALargerSize(t *testing.T) {
	expands, fixed := StorageClass{Known: true, Expands: true}, StorageClass{Known: true}
	pending := claimOf("5Gi", "0")
	pending.Status.Phase = corev1.ClaimPending
	unknown := claimOf("5Gi", "5Gi")
	unknown.Status.Capacity = nil
	classless := claimOf("5Gi", "5Gi")
	classless.Spec.StorageClassName = nil
	onNode, infeasible, failing := claimOf("10Gi", "5Gi"), claimOf("10Gi", "5Gi"), claimOf("10Gi", "5Gi")
	onNode.Status.Conditions = []corev1.PersistentVolumeClaimCondition{{Type: corev1.PersistentVolumeClaimFileSystemResizePending, Status: corev1.ConditionTrue}}
	infeasible.Status.AllocatedResourceStatuses = map[corev1.ResourceName]corev1.ClaimResourceStatus{corev1.ResourceStorage: corev1.PersistentVolumeClaimControllerResizeInfeasible}
	failing.Status.Conditions = []corev1.PersistentVolumeClaimCondition{{Type: corev1.PersistentVolumeClaimControllerResizeError, Status: corev1.ConditionTrue, Message: "no space"}}
	for name, c := range map[string]struct {
		claim   *corev1.PersistentVolumeClaim
		class   StorageClass
		refused string
		patch   bool
		inspect bool
		reason  string
		message string
	}{
		"as wanted":            {claim: claimOf("10Gi", "10Gi"), reason: v1alpha1.ReasonVolumeGrown, message: "has 10Gi"},
		"more than wanted":     {claim: claimOf("10Gi", "16Gi"), reason: v1alpha1.ReasonVolumeGrown, message: "has 16Gi"},
		"not bound":            {claim: pending, class: expands},
		"capacity unknown":     {claim: unknown, class: expands},
		"class unknown":        {claim: claimOf("5Gi", "5Gi"), inspect: true},
		"class expands":        {claim: claimOf("5Gi", "5Gi"), class: expands, patch: true, reason: v1alpha1.ReasonVolumeGrowing, message: "from 5Gi to 10Gi"},
		"class does not":       {claim: claimOf("5Gi", "5Gi"), class: fixed, reason: v1alpha1.ReasonNextVolume, message: `"fast" of the volume does not expand volumes: the task goes on with 5Gi, and its next volume has 10Gi`},
		"no class":             {claim: classless, reason: v1alpha1.ReasonNextVolume},
		"refused":              {claim: claimOf("5Gi", "5Gi"), class: expands, refused: "exceeded quota", reason: v1alpha1.ReasonGrowthRefused, message: "exceeded quota"},
		"asked, and not there": {claim: claimOf("10Gi", "5Gi"), reason: v1alpha1.ReasonVolumeGrowing, message: "from 5Gi to 10Gi"},
		"waits for a pod":      {claim: onNode, reason: v1alpha1.ReasonVolumeGrowing, message: "once a pod mounts it"},
		"infeasible":           {claim: infeasible, reason: v1alpha1.ReasonVolumeGrowing, message: "the storage does not do"},
		"failing":              {claim: failing, reason: v1alpha1.ReasonVolumeGrowing, message: "no space"},
	} {
		got := sizeOf(c.claim, c.class, resource.MustParse("10Gi"), c.refused)
		if got.patch != c.patch || got.inspect != c.inspect || got.reason != c.reason || !strings.Contains(got.message, c.message) {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

// bound lets the claim be bound to a volume that has what it asks for.
func (s *scene) bound() *scene {
	s.o.Claim.Spec.StorageClassName = ptr.To("fast")
	s.o.Claim.Status.Phase = corev1.ClaimBound
	s.o.Claim.Status.Capacity = s.o.Claim.Spec.Resources.Requests.DeepCopy()
	return s.step()
}

func withSize(size string) builders.TaskOption {
	return func(t *v1alpha1.Task) { t.Spec.Workspace.Size = resource.MustParse(size) }
}

func TestAVolumeGrowsAtOnceAndSaysHowFarItIs(t *testing.T) {
	s := running(t, withSize("5Gi"))
	s.class = StorageClass{Known: true, Expands: true}
	s.bound()
	writes := s.writes
	s.step()
	if s.writes != writes {
		t.Error("a volume that has its size costs writes")
	}
	s.change(withSize("10Gi")).step()
	s.wantStatus(v1alpha1.TaskVolumeSized, metav1.ConditionFalse, v1alpha1.ReasonVolumeGrowing, "from 5Gi to 10Gi")
	if got := s.o.Claim.Spec.Resources.Requests[corev1.ResourceStorage]; got.String() != "10Gi" {
		t.Errorf("the claim asks for %s", got.String())
	}
	s.bound()
	s.wantStatus(v1alpha1.TaskVolumeSized, metav1.ConditionTrue, v1alpha1.ReasonVolumeGrown, "has 10Gi")
	s.wantEntries("TaskStarted", "VolumeGrowing")
}

func TestAVolumeThatCannotGrowSaysSoAndTheNextOneHasTheSize(t *testing.T) {
	s := running(t, releasing, withSize("5Gi"))
	s.class = StorageClass{Known: true}
	s.bound()
	s.change(withSize("10Gi")).step()
	s.wantStatus(v1alpha1.TaskVolumeSized, metav1.ConditionFalse, v1alpha1.ReasonNextVolume)
	s.wantEntries("TaskStarted", "WaitingForNextVolume")
	s.suspend().verified()
	s.wantReleased(v1alpha1.ReleasedSuspended)
	for _, c := range s.status().Conditions {
		if c.Type == v1alpha1.TaskVolumeSized {
			t.Errorf("there is no volume, and it says of its size: %s", c.Message)
		}
	}
	s.change(builders.Running).step()
	if got := s.o.Claim.Spec.Resources.Requests[corev1.ResourceStorage]; got.String() != "10Gi" {
		t.Errorf("the new claim asks for %s", got.String())
	}
}

func TestAGrowthThatIsRefusedIsTriedAgainOnlyAfterAChange(t *testing.T) {
	s := running(t, withSize("5Gi"))
	s.class = StorageClass{Known: true, Expands: true}
	s.bound()
	s.change(withSize("10Gi"))
	s.o.GrowthRefused = "exceeded quota"
	s.step()
	s.wantStatus(v1alpha1.TaskVolumeSized, metav1.ConditionFalse, v1alpha1.ReasonGrowthRefused, "exceeded quota")
	s.o.GrowthRefused = "" // something has changed
	p := s.decide()
	if p.GrowClaim == nil || p.Write {
		t.Errorf("it is not simply tried again: %+v", p)
	}
	s.step()
	s.wantStatus(v1alpha1.TaskVolumeSized, metav1.ConditionFalse, v1alpha1.ReasonVolumeGrowing)
	s.wantEntries("TaskStarted", "GrowthRefused", "VolumeGrowing")
}
