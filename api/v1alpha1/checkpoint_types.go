package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// CheckpointTrigger says why a checkpoint was taken.
type CheckpointTrigger string

const (
	TriggerManual     CheckpointTrigger = "Manual"
	TriggerToolCalls  CheckpointTrigger = "ToolCalls"
	TriggerInterval   CheckpointTrigger = "Interval"
	TriggerSuspend    CheckpointTrigger = "Suspend"
	TriggerCompletion CheckpointTrigger = "Completion"
	TriggerFailure    CheckpointTrigger = "Failure"
	TriggerPreRewind  CheckpointTrigger = "PreRewind"
	TriggerRewound    CheckpointTrigger = "Rewound"
	TriggerDrift      CheckpointTrigger = "Drift"
	TriggerFork       CheckpointTrigger = "Fork"
	// TriggerBeforeRiskyTool is for a tool call that checkpointPolicy.beforeRiskyTools matches.
	TriggerBeforeRiskyTool CheckpointTrigger = "BeforeRiskyTool"
)

// CheckpointConsistency says whether the agent stood still while its files were read.
// +kubebuilder:validation:Enum=PointInTime;AgentNotStopped;AgentThawed
type CheckpointConsistency string

const (
	// ConsistencyPointInTime: the files are those of one instant, and match the
	// position in the conversation: the agent was stopped, or did not run.
	ConsistencyPointInTime CheckpointConsistency = "PointInTime"
	// ConsistencyAgentNotStopped: the agent, or a process that it had started,
	// did not stop in time; files may be of different instants.
	ConsistencyAgentNotStopped CheckpointConsistency = "AgentNotStopped"
	// ConsistencyAgentThawed: the agent was stopped, but went on before all files
	// were read, since that took longer than it may be stopped; files may be of
	// different instants.
	ConsistencyAgentThawed CheckpointConsistency = "AgentThawed"
)

// CheckpointSpec asks for a checkpoint.
type CheckpointSpec struct {
	// taskRef names the task.
	// +required
	TaskRef NameReference `json:"taskRef"`
	// message says what the checkpoint is for; it becomes the commit's message.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	// +kubebuilder:validation:XValidation:rule="!self.matches('[\\\\x00-\\\\x08\\\\x0b-\\\\x1f\\\\x7f]')",message="message must be plain text without control characters"
	Message string `json:"message,omitempty"`
	// requestedBy is who made the object, by the name that the API server
	// authenticated. It is filled in as the object is admitted, and what a client
	// sends here is ignored: leave it out.
	// +optional
	// +kubebuilder:validation:MaxLength=256
	RequestedBy string `json:"requestedBy,omitempty"`
}

// SkippedFile is a file that a checkpoint lists but does not hold. A rewind never deletes it.
type SkippedFile struct {
	// path in the worktree; bytes that are not UTF-8 are escaped as \xNN.
	// +required
	// +kubebuilder:validation:MaxLength=4096
	Path string `json:"path"`
	// reason is TooLarge, Socket, Fifo, Device, Unreadable or HoldsSecret.
	// +required
	Reason string `json:"reason"`
	// bytes is the file's size.
	// +optional
	Bytes int64 `json:"bytes,omitempty"`
}

// GitPosition is where the agent's own repository stood.
type GitPosition struct {
	// head is the commit the agent's HEAD stood at; empty before the first commit.
	// +optional
	Head string `json:"head,omitempty"`
	// branch the agent was on; empty when HEAD was detached.
	// +optional
	Branch string `json:"branch,omitempty"`
	// dirtyFiles are files that differed from HEAD; the first 100 that fit into
	// 2 KiB. The history has more.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=100
	DirtyFiles []string `json:"dirtyFiles,omitempty"`
	// dirtyFileCount counts all of them.
	// +optional
	DirtyFileCount int32 `json:"dirtyFileCount,omitempty"`
}

// ConversationPosition is a place in a task's conversation.
type ConversationPosition struct {
	// branch of the conversation.
	// +optional
	Branch string `json:"branch,omitempty"`
	// position counts the messages up to here.
	// +optional
	Position int64 `json:"position"`
	// toolCalls counts the answered tool calls up to here.
	// +optional
	ToolCalls int64 `json:"toolCalls,omitempty"`
}

// CheckpointConversation is where the conversation stood, and what it came to.
type CheckpointConversation struct {
	ConversationPosition `json:",inline"`
	// messageCount counts the messages up to here.
	// +optional
	MessageCount int64 `json:"messageCount,omitempty"`
	// inputTokens up to here, as the agent reported them.
	// +optional
	InputTokens int64 `json:"inputTokens,omitempty"`
	// outputTokens up to here, as the agent reported them.
	// +optional
	OutputTokens int64 `json:"outputTokens,omitempty"`
	// costMicroUSD up to here, in millionths of a US dollar.
	// +optional
	CostMicroUSD int64 `json:"costMicroUSD,omitempty"`
	// digest is a chain of SHA-256, in hex, over the hashes of the messages up to here.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	Digest string `json:"digest,omitempty"`
}

// RiskyToolGuarantee says whether a checkpoint was taken before the tool ran.
// +kubebuilder:validation:Enum=Before;BestEffort
type RiskyToolGuarantee string

const (
	// RiskyToolBefore: the tool waited for the checkpoint.
	RiskyToolBefore RiskyToolGuarantee = "Before"
	// RiskyToolBestEffort: the agent was stopped as soon as the call was seen;
	// the tool may have begun by then.
	RiskyToolBestEffort RiskyToolGuarantee = "BestEffort"
)

// RiskyTool is the tool call that a checkpoint was taken for.
type RiskyTool struct {
	// name of the tool.
	// +optional
	// +kubebuilder:validation:MaxLength=256
	Name string `json:"name,omitempty"`
	// callID is the id of the call, as in the conversation.
	// +optional
	// +kubebuilder:validation:MaxLength=256
	CallID string `json:"callID,omitempty"`
	// guarantee says whether the checkpoint was taken before the tool ran.
	// +optional
	Guarantee RiskyToolGuarantee `json:"guarantee,omitempty"`
}

// AgentSession is the agent's own session that a checkpoint holds.
type AgentSession struct {
	// agent is the type of the agent whose session it is.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	Agent string `json:"agent,omitempty"`
	// id of the session, as the agent gave it.
	// +optional
	// +kubebuilder:validation:MaxLength=256
	ID string `json:"id,omitempty"`
	// version of the agent, as it reported it.
	// +optional
	// +kubebuilder:validation:MaxLength=256
	Version string `json:"version,omitempty"`
}

// CheckpointStatus is what the checkpoint holds.
type CheckpointStatus struct {
	// observedGeneration is the generation the status is about.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// conditions are Ready, Durable and Intact.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=16
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// taskUID is the UID of the task it belongs to.
	// +optional
	TaskUID string `json:"taskUID,omitempty"`
	// requestedBy is who asked for it; empty for one that nobody asked for. It
	// ends in "(field manager)" where no user name is known.
	// +optional
	// +kubebuilder:validation:MaxLength=512
	RequestedBy string `json:"requestedBy,omitempty"`
	// number of the checkpoint in its task, from 1.
	// +optional
	Number int64 `json:"number,omitempty"`
	// attempt it was taken in.
	// +optional
	Attempt int64 `json:"attempt,omitempty"`
	// trigger says why it was taken.
	// +optional
	Trigger CheckpointTrigger `json:"trigger,omitempty"`
	// time it was taken.
	// +optional
	Time *metav1.Time `json:"time,omitempty"`
	// commit holds the code.
	// +optional
	Commit string `json:"commit,omitempty"`
	// tree is the git tree of the code.
	// +optional
	Tree string `json:"tree,omitempty"`
	// parent is the code commit of the checkpoint before.
	// +optional
	Parent string `json:"parent,omitempty"`
	// base is the commit of the repository that the task started from.
	// +optional
	Base string `json:"base,omitempty"`
	// stateCommit holds the agent's own state.
	// +optional
	StateCommit string `json:"stateCommit,omitempty"`
	// consistency says whether the files are those of one instant. It is absent
	// on checkpoints that were taken before this field existed.
	// +optional
	Consistency CheckpointConsistency `json:"consistency,omitempty"`
	// frozenMilliseconds is how long the agent was stopped for the checkpoint;
	// absent if it did not run.
	// +optional
	FrozenMilliseconds int64 `json:"frozenMilliseconds,omitempty"`
	// riskyTool is the tool call that the checkpoint was taken for, if it was for one.
	// +optional
	RiskyTool *RiskyTool `json:"riskyTool,omitempty"`
	// session is the agent's own session that the agent's state holds.
	// +optional
	Session *AgentSession `json:"session,omitempty"`
	// conversation is where the conversation stood, and what it came to.
	// +optional
	Conversation *CheckpointConversation `json:"conversation,omitempty"`
	// code counts what changed since the parent.
	// +optional
	Code *CodeStats `json:"code,omitempty"`
	// git is where the agent's own repository stood.
	// +optional
	Git *GitPosition `json:"git,omitempty"`
	// files counts the files the checkpoint holds.
	// +optional
	Files int64 `json:"files,omitempty"`
	// bytes is the size of the files the checkpoint holds.
	// +optional
	Bytes int64 `json:"bytes,omitempty"`
	// skipped are files listed but not held; the first 100 that fit into 2 KiB.
	// The history has more.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=100
	Skipped []SkippedFile `json:"skipped,omitempty"`
	// skippedCount counts all of them.
	// +optional
	SkippedCount int32 `json:"skippedCount,omitempty"`
}

// Checkpoint is a moment of a task that can be gone back to: its code, the
// agent's own state and the position in the conversation. Applying one takes
// it; the manager makes one for each that the daemon took by itself.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:shortName=ckpt;ckpts,categories=clew
// +kubebuilder:printcolumn:name="Task",type=string,JSONPath=`.spec.taskRef.name`
// +kubebuilder:printcolumn:name="Number",type=integer,JSONPath=`.status.number`
// +kubebuilder:printcolumn:name="Trigger",type=string,JSONPath=`.status.trigger`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].reason`
// +kubebuilder:printcolumn:name="Durable",type=string,JSONPath=`.status.conditions[?(@.type=="Durable")].status`
// +kubebuilder:printcolumn:name="Durable-Reason",type=string,priority=1,JSONPath=`.status.conditions[?(@.type=="Durable")].reason`
// +kubebuilder:printcolumn:name="Files",type=integer,JSONPath=`.status.code.filesChanged`
// +kubebuilder:printcolumn:name="Messages",type=integer,JSONPath=`.status.conversation.position`
// +kubebuilder:printcolumn:name="Tool",type=string,priority=1,JSONPath=`.status.riskyTool.name`
// +kubebuilder:printcolumn:name="Commit",type=string,priority=1,JSONPath=`.status.commit`
// +kubebuilder:printcolumn:name="Message",type=string,priority=1,JSONPath=`.spec.message`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:validation:XValidation:rule="self.spec == oldSelf.spec",message="a Checkpoint's spec is immutable: apply a new Checkpoint under another name"
type Checkpoint struct {
	metav1.TypeMeta `json:",inline"`
	// metadata is the standard metadata of an object.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`
	// spec asks for a checkpoint.
	// +required
	Spec CheckpointSpec `json:"spec"`
	// status is what the checkpoint holds.
	// +optional
	Status CheckpointStatus `json:"status,omitempty"`
}

// CheckpointList is a list of checkpoints.
//
// +kubebuilder:object:root=true
type CheckpointList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []Checkpoint `json:"items"`
}
