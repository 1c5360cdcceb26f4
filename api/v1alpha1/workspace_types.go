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

// Workspace is the volume a task works on.
// +kubebuilder:validation:XValidation:rule="!has(self.storageClassName) || size(self.storageClassName) > 0",message="leave storageClassName out to use the cluster's default class"
type Workspace struct {
	// size of the volume.
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
}
