package plan

import (
	"cmp"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/clew-dev/clew/api/v1alpha1"
)

// StorageClass is what is known of the storage class of the task's claim. It is asked for when
// Plan.InspectClass names it.
type StorageClass struct {
	// Known is false while it was not read.
	Known bool
	// Expands is true if it lets volumes grow. A class that does not exist does not.
	Expands bool
}

// Growth is a larger size for the task's claim.
type Growth struct {
	// ClaimUID identifies the claim.
	ClaimUID string
	// Size that it is to ask for.
	Size resource.Quantity
}

// sizing is what becomes of a larger workspace.size.
type sizing struct {
	// patch is set if the claim is to ask for more.
	patch bool
	// inspect is set if the claim's storage class has to be known first.
	inspect bool
	// reason and message are those of the condition VolumeSized; "" if there is nothing to say.
	reason, message string
}

// sizeOf decides what becomes of a wanted size. refused is why the API server did not let the claim
// grow; "" if it did, or was not asked.
func sizeOf(claim *corev1.PersistentVolumeClaim, class StorageClass, wanted resource.Quantity, refused string) sizing {
	asked := claim.Spec.Resources.Requests[corev1.ResourceStorage]
	has, known := claim.Status.Capacity[corev1.ResourceStorage]
	name := ptr.Deref(claim.Spec.StorageClassName, "")
	switch {
	case claim.Status.Phase != corev1.ClaimBound, !known:
		return sizing{} // only a bound claim can ask for more
	case asked.Cmp(wanted) >= 0 && has.Cmp(asked) >= 0:
		return sizing{reason: v1alpha1.ReasonVolumeGrown, message: "the volume has " + has.String()}
	case asked.Cmp(wanted) >= 0:
		return sizing{reason: v1alpha1.ReasonVolumeGrowing, message: growing(claim, has, asked)}
	case name != "" && !class.Known:
		return sizing{inspect: true}
	case !class.Expands:
		return sizing{reason: v1alpha1.ReasonNextVolume, message: fmt.Sprintf(
			"the storage class %q of the volume does not expand volumes: the task goes on with %s, and its next volume has %s", name, asked.String(), wanted.String())}
	case refused != "":
		return sizing{reason: v1alpha1.ReasonGrowthRefused, message: fmt.Sprintf(
			"the volume keeps %s, since the API server does not let it grow to %s: remove the cause, then change the task or its PersistentVolumeClaim to have it tried again (%s)", asked.String(), wanted.String(), refused)}
	}
	return sizing{patch: true, reason: v1alpha1.ReasonVolumeGrowing, message: growing(claim, asked, wanted)}
}

// growing says how far the growth of a volume is.
func growing(claim *corev1.PersistentVolumeClaim, from, to resource.Quantity) string {
	message := fmt.Sprintf("the volume grows from %s to %s", from.String(), to.String())
	state := claim.Status.AllocatedResourceStatuses[corev1.ResourceStorage]
	for _, c := range claim.Status.Conditions {
		if c.Status != corev1.ConditionTrue {
			continue
		}
		switch c.Type {
		case corev1.PersistentVolumeClaimFileSystemResizePending:
			state = cmp.Or(state, corev1.PersistentVolumeClaimNodeResizePending)
		case corev1.PersistentVolumeClaimControllerResizeError, corev1.PersistentVolumeClaimNodeResizeError:
			return message + ", which fails so far: " + c.Message
		}
	}
	switch {
	case state == corev1.PersistentVolumeClaimNodeResizePending:
		return message + ": the node grows the file system once a pod mounts it"
	case strings.HasSuffix(string(state), "Infeasible"):
		return message + ", which the storage does not do; the PersistentVolumeClaim's events say why"
	}
	return message
}

// considerSize has the task's claim grow with workspace.size.
func (d *decision) considerSize() {
	volume := d.volume()
	if volume == nil || volume.DeletionTimestamp != nil {
		if d.o.Claim == nil {
			d.forgetSize()
		}
		return
	}
	wanted := d.task.Spec.Workspace.Size
	s := sizeOf(volume, d.o.StorageClass, wanted, d.o.GrowthRefused)
	if s.inspect {
		d.plan.InspectClass = *volume.Spec.StorageClassName
	}
	if s.patch {
		d.plan.GrowClaim = &Growth{ClaimUID: string(volume.UID), Size: wanted}
	}
	was := d.findCondition(v1alpha1.TaskVolumeSized)
	handled := was != nil && d.s.HandledSize != nil && d.s.HandledSize.Cmp(wanted) == 0
	switch {
	case s.reason == "", s.reason == v1alpha1.ReasonVolumeGrown && was == nil:
		return
	case s.reason == v1alpha1.ReasonVolumeGrown:
		d.setCondition(v1alpha1.TaskVolumeSized, metav1.ConditionTrue, s.reason, s.message)
		return
	case s.patch && handled && was.Reason == v1alpha1.ReasonGrowthRefused:
		return // it is tried again, and may be refused again
	}
	if !handled || was.Reason != s.reason {
		d.addEntry(s.reason, clew, s.message)
	}
	d.s.HandledSize = ptr.To(wanted.DeepCopy())
	d.setCondition(v1alpha1.TaskVolumeSized, metav1.ConditionFalse, s.reason, s.message)
}

// forgetSize removes what is said about the size of a volume that is gone: the next one has
// workspace.size from the beginning.
func (d *decision) forgetSize() {
	d.s.HandledSize = nil
	meta.RemoveStatusCondition(&d.s.Conditions, v1alpha1.TaskVolumeSized)
}
