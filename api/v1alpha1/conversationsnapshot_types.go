package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// ConversationSnapshotSpec names a position of a task's conversation.
type ConversationSnapshotSpec struct {
	// taskRef names the task.
	// +required
	TaskRef NameReference `json:"taskRef"`
	// checkpointRef takes the position of that checkpoint; the newest position when left out.
	// +optional
	CheckpointRef *NameReference `json:"checkpointRef,omitempty"`
}

// ConversationSnapshotStatus is the resolved position.
type ConversationSnapshotStatus struct {
	// observedGeneration is the generation the status is about.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// conditions: Ready.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=16
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// taskUID is the UID of the task.
	// +optional
	TaskUID string `json:"taskUID,omitempty"`
	// conversation is the position.
	// +optional
	Conversation *ConversationPosition `json:"conversation,omitempty"`
	// messageCount counts the messages up to the position.
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
	// digest is the SHA-256, in hex, over the message hashes up to the position.
	// +optional
	Digest string `json:"digest,omitempty"`
}

// ConversationSnapshot gives a position of a task's conversation a name. It is
// a pointer: no message is copied.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:shortName=convsnap;convsnaps,categories=clew
// +kubebuilder:printcolumn:name="Task",type=string,JSONPath=`.spec.taskRef.name`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Messages",type=integer,JSONPath=`.status.messageCount`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:validation:XValidation:rule="self.spec == oldSelf.spec",message="a ConversationSnapshot's spec is immutable: apply a new one under another name"
type ConversationSnapshot struct {
	metav1.TypeMeta `json:",inline"`
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
