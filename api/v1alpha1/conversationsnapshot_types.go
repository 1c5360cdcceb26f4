package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// SnapshotTrigger says why a snapshot was recorded.
// +kubebuilder:validation:Enum=Manual;Automatic
type SnapshotTrigger string

const (
	// SnapshotManual: somebody applied it.
	SnapshotManual SnapshotTrigger = "Manual"
	// SnapshotAutomatic: spec.conversation.snapshotEveryMessages of the Task caused it.
	SnapshotAutomatic SnapshotTrigger = "Automatic"
)

// ConversationSnapshotSpec names a position of a task's conversation; the newest
// one when none of checkpointRef, checkpointNumber and position is set.
// +kubebuilder:validation:XValidation:rule="[has(self.checkpointRef), has(self.checkpointNumber), has(self.position)].filter(set, set).size() <= 1",message="set at most one of checkpointRef, checkpointNumber and position: leave all of them out for the newest position"
type ConversationSnapshotSpec struct {
	// taskRef names the task.
	// +required
	TaskRef NameReference `json:"taskRef"`
	// checkpointRef takes the position of that checkpoint.
	// +optional
	CheckpointRef *NameReference `json:"checkpointRef,omitempty"`
	// checkpointNumber takes the position of the task's checkpoint with that number, whether or
	// not it still has an object.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=2147483647
	CheckpointNumber *int64 `json:"checkpointNumber,omitempty"`
	// position of the last message, on the conversation's active branch, snapped
	// down to a turn boundary.
	// +optional
	// +kubebuilder:validation:Minimum=1
	Position *int64 `json:"position,omitempty"`
}

// ConversationSnapshotStatus is the resolved position.
type ConversationSnapshotStatus struct {
	// observedGeneration is the generation the status is about.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// conditions are Ready and Intact.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=16
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// taskUID is the UID of the task.
	// +optional
	TaskUID string `json:"taskUID,omitempty"`
	// trigger says why it was recorded.
	// +optional
	Trigger SnapshotTrigger `json:"trigger,omitempty"`
	// time it was recorded.
	// +optional
	Time *metav1.Time `json:"time,omitempty"`
	// checkpoint is the number of the newest checkpoint at or before the position.
	// +optional
	Checkpoint int64 `json:"checkpoint,omitempty"`
	// conversation is the position.
	// +optional
	Conversation *ConversationPosition `json:"conversation,omitempty"`
	// messageCount is the number of messages up to the position.
	// +optional
	MessageCount int64 `json:"messageCount,omitempty"`
	// inputTokens up to the position, as the agent reported them.
	// +optional
	InputTokens int64 `json:"inputTokens,omitempty"`
	// outputTokens up to the position, as the agent reported them.
	// +optional
	OutputTokens int64 `json:"outputTokens,omitempty"`
	// costMicroUSD up to the position, in millionths of a US dollar.
	// +optional
	CostMicroUSD int64 `json:"costMicroUSD,omitempty"`
	// digest is a chain of SHA-256, in hex, over the hashes of the messages up to
	// the position: each link is the hash of the previous link and the next message's hash.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	Digest string `json:"digest,omitempty"`
}

// ConversationSnapshot gives a position of a task's conversation a name. It is a pointer: no
// message is copied. Applying one records it; the manager creates one for each that was
// recorded automatically, and keeps the newest 20 of a task.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:shortName=convsnap;convsnaps,categories=clew
// +kubebuilder:printcolumn:name="Task",type=string,JSONPath=`.spec.taskRef.name`
// +kubebuilder:printcolumn:name="Trigger",type=string,JSONPath=`.status.trigger`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].reason`
// +kubebuilder:printcolumn:name="Intact",type=string,JSONPath=`.status.conditions[?(@.type=="Intact")].status`
// +kubebuilder:printcolumn:name="Messages",type=integer,JSONPath=`.status.messageCount`
// +kubebuilder:printcolumn:name="Checkpoint",type=integer,priority=1,JSONPath=`.status.checkpoint`
// +kubebuilder:printcolumn:name="Cost-Micro-USD",type=integer,priority=1,JSONPath=`.status.costMicroUSD`
// +kubebuilder:printcolumn:name="Digest",type=string,priority=1,JSONPath=`.status.digest`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:validation:XValidation:rule="self.spec == oldSelf.spec",message="a ConversationSnapshot's spec is immutable: apply a new one under another name"
type ConversationSnapshot struct {
	metav1.TypeMeta `json:",inline"`
	// metadata is the standard metadata of an object.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`
	// spec names a position.
	// +required
	Spec ConversationSnapshotSpec `json:"spec"`
	// status is the resolved position.
	// +optional
	Status ConversationSnapshotStatus `json:"status,omitempty"`
}

// ConversationSnapshotList is a list of snapshots.
//
// +kubebuilder:object:root=true
type ConversationSnapshotList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []ConversationSnapshot `json:"items"`
}
