package v1alpha1

import (
	"k8s.io/apimachinery/pkg/api/resource"
)

// WorkspaceRetention says what happens to the volume when the task is deleted.
// +kubebuilder:validation:Enum=Delete;Retain
type WorkspaceRetention string

const (
	// WorkspaceDelete deletes the volume with the task.
	WorkspaceDelete WorkspaceRetention = "Delete"
	// WorkspaceRetain keeps the volume.
	WorkspaceRetain WorkspaceRetention = "Retain"
)

// WorkspaceAccessMode is an access mode of a PersistentVolumeClaim.
// +kubebuilder:validation:Enum=ReadWriteOnce;ReadWriteOncePod
type WorkspaceAccessMode string

// Access modes of a workspace.
const (
	// WorkspaceReadWriteOnce: the volume can be mounted by the pods of one node.
	WorkspaceReadWriteOnce WorkspaceAccessMode = "ReadWriteOnce"
	// WorkspaceReadWriteOncePod: the volume can be mounted by one pod.
	WorkspaceReadWriteOncePod WorkspaceAccessMode = "ReadWriteOncePod"
)

// WhenSuspended says what becomes of the volume of a suspended task.
// +kubebuilder:validation:Enum=Keep;Release
type WhenSuspended string

const (
	// WhenSuspendedKeep keeps the volume.
	WhenSuspendedKeep WhenSuspended = "Keep"
	// WhenSuspendedRelease deletes the volume's claim once everything is stored elsewhere.
	WhenSuspendedRelease WhenSuspended = "Release"
)

// Workspace is the volume a task works on.
// +kubebuilder:validation:XValidation:rule="!has(self.storageClassName) || size(self.storageClassName) > 0",message="leave storageClassName out to use the cluster's default class"
type Workspace struct {
	// size of the volume. It may grow: at once if the volume's storage class expands volumes, and
	// with the task's next volume otherwise. The condition VolumeSized says which.
	// +optional
	// +kubebuilder:default="5Gi"
	// +kubebuilder:validation:XValidation:rule="quantity(string(self)).isGreaterThan(quantity('0'))",message="size must be more than zero, such as 5Gi"
	Size resource.Quantity `json:"size,omitempty"`
	// storageClassName of the volume; the cluster's default class when left out.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	StorageClassName *string `json:"storageClassName,omitempty"`
	// accessMode of the volume. With ReadWriteOncePod the cluster itself prevents a second
	// pod from mounting the volume, if the storage driver supports it; no API reports whether
	// it does, so the default is set when Clew is installed.
	// +optional
	AccessMode WorkspaceAccessMode `json:"accessMode,omitempty"`
	// retention says whether the volume is deleted with the task.
	// +optional
	// +kubebuilder:default=Delete
	Retention WorkspaceRetention `json:"retention,omitempty"`
	// whenSuspended says what becomes of the volume while operatingMode is Suspended. With Release
	// its PersistentVolumeClaim is deleted, whatever retention says, as soon as no pod of the task is
	// left, the history store has everything that the volume held, and the last checkpoint is in the
	// gitstore and was verified there for this. Until then the volume is kept, and the condition VolumeReleased
	// says why. A resume makes a new volume, on any node, and restores code, conversation and the
	// agent's session to it. Only what the last checkpoint holds comes back: neither files that
	// checkpoints leave out, which its status lists, nor what somebody has changed on the volume
	// since the task was suspended.
	// +optional
	// +kubebuilder:default=Keep
	WhenSuspended WhenSuspended `json:"whenSuspended,omitempty"`
}
