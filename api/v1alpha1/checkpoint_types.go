package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// CheckpointTrigger says why a checkpoint was taken.
type CheckpointTrigger string

const (
	// TriggerManual: a Checkpoint object requested it.
	TriggerManual CheckpointTrigger = "Manual"
	// TriggerPhase: a phase begins that the task's own agent has set, with the tool phase_set.
	TriggerPhase CheckpointTrigger = "Phase"
	// TriggerAgent: the agent asked for it, with the tool checkpoint.
	TriggerAgent CheckpointTrigger = "Agent"
	// TriggerToolCalls: the agent's tool calls, as checkpointPolicy.everyToolCalls says.
	TriggerToolCalls CheckpointTrigger = "ToolCalls"
	// TriggerInterval: the time since the last one, as checkpointPolicy.everySeconds says.
	TriggerInterval CheckpointTrigger = "Interval"
	// TriggerSuspend: the pod is being stopped, for example for a suspension or a rewind.
	TriggerSuspend CheckpointTrigger = "Suspend"
	// TriggerCompletion: the agent exited with 0.
	TriggerCompletion CheckpointTrigger = "Completion"
	// TriggerFailure: the agent exited with a code other than 0, or its container was killed.
	TriggerFailure CheckpointTrigger = "Failure"
	// TriggerPreRewind: the state before a rewind. A rewind to it undoes the first one.
	TriggerPreRewind CheckpointTrigger = "PreRewind"
	// TriggerRewound: the state that a rewind has restored.
	TriggerRewound CheckpointTrigger = "Rewound"
	// TriggerDrift: a worktree that was changed while no pod of the task ran.
	TriggerDrift CheckpointTrigger = "Drift"
	// TriggerFork is reserved: no checkpoint is taken with it.
	TriggerFork CheckpointTrigger = "Fork"
	// TriggerBeforeRiskyTool: a tool call that checkpointPolicy.beforeRiskyTools matches.
	TriggerBeforeRiskyTool CheckpointTrigger = "BeforeRiskyTool"
	// TriggerBeforeRun: the agent is about to be started, as checkpointPolicy.beforeRun says.
	TriggerBeforeRun CheckpointTrigger = "BeforeRun"
	// TriggerPreCheckout: the state before a branch was checked out in the agent's repository. A
	// rewind to it takes that back.
	TriggerPreCheckout CheckpointTrigger = "PreCheckout"
	// TriggerCheckedOut: the state after that.
	TriggerCheckedOut CheckpointTrigger = "CheckedOut"
)

// BetweenRuns reports whether checkpoints of the trigger are taken by a pod that starts, before the
// agent runs: they have what rewinds, checkouts and other changes have left since its last message.
func (t CheckpointTrigger) BetweenRuns() bool {
	switch t {
	case TriggerPreRewind, TriggerRewound, TriggerDrift, TriggerBeforeRun, TriggerPreCheckout, TriggerCheckedOut:
		return true
	}
	return false
}

// CheckpointConsistency says whether the agent was stopped while its files were read.
// +kubebuilder:validation:Enum=PointInTime;AgentNotStopped;AgentThawed
type CheckpointConsistency string

const (
	// ConsistencyPointInTime: the files are from one moment and match the position in the
	// conversation: the agent was stopped, or did not run.
	ConsistencyPointInTime CheckpointConsistency = "PointInTime"
	// ConsistencyAgentNotStopped: the agent, or a process that it had started, did not stop
	// in time; files may be from different moments.
	ConsistencyAgentNotStopped CheckpointConsistency = "AgentNotStopped"
	// ConsistencyAgentThawed: the agent was stopped, but continued before all files were
	// read, because that took longer than it may be stopped; files may be from different
	// moments.
	ConsistencyAgentThawed CheckpointConsistency = "AgentThawed"
)

// CheckpointKeep says whether a policy may delete a Checkpoint object.
// +kubebuilder:validation:Enum=ByPolicy;Keep
type CheckpointKeep string

const (
	// CheckpointByPolicy: the task's checkpointPolicy.retention decides.
	CheckpointByPolicy CheckpointKeep = "ByPolicy"
	// CheckpointKept: it stays until somebody deletes it.
	CheckpointKept CheckpointKeep = "Keep"
)

// CheckpointSpec requests a checkpoint, or names one that the history has.
// +kubebuilder:validation:XValidation:rule="!has(self.branches) || self.branches.filter(b, has(b.checkout) && b.checkout == 'NextStart').size() <= 1",message="only one branch can be checked out: set checkout of the other branches to Never"
// +kubebuilder:validation:XValidation:rule="self.taskRef == oldSelf.taskRef && has(self.message) == has(oldSelf.message) && (!has(self.message) || self.message == oldSelf.message) && has(self.number) == has(oldSelf.number) && (!has(self.number) || self.number == oldSelf.number) && has(self.requestedBy) == has(oldSelf.requestedBy) && (!has(self.requestedBy) || self.requestedBy == oldSelf.requestedBy) && self.scope == oldSelf.scope && has(self.partOf) == has(oldSelf.partOf) && (!has(self.partOf) || self.partOf == oldSelf.partOf)",message="a Checkpoint's spec is immutable but for retention and branches: apply a new Checkpoint under another name"
// +kubebuilder:validation:XValidation:rule="!has(self.scope) || self.scope != 'Contract' || !has(self.number)",message="a Checkpoint with the scope Contract takes new checkpoints: leave number out, or set scope to Task"
// +kubebuilder:validation:XValidation:rule="!has(self.partOf) || ((!has(self.scope) || self.scope == 'Task') && !has(self.number))",message="partOf belongs to a checkpoint that is taken of one task for a set: leave number out, and set scope to Task"
type CheckpointSpec struct {
	// taskRef names the task.
	// +required
	TaskRef NameReference `json:"taskRef"`
	// scope says of what the checkpoint is taken: of the task alone, or with Contract, for a supervisor, of
	// it and those of its own children that have run, 64 at most, together; children of these, and tasks
	// that only name the contract, are not part of it. The supervisor and those of its children that run
	// are then stopped between two calls of tools, or after 20 s in the middle of one, until all have their
	// checkpoint, for 30 s at most; whoever requests it needs the right to patch the supervisor. This
	// Checkpoint is the supervisor's own and names the set, whose members are in status.set; they are
	// consistent if its condition Ready is True. One set of a supervisor is taken at a time, and the next
	// one a minute after it has ended.
	// +optional
	// +kubebuilder:default=Task
	Scope CheckpointScope `json:"scope,omitempty"`
	// partOf is the set for which the manager has requested the checkpoint. Nobody else sets it: leave it
	// out.
	// +optional
	PartOf *CheckpointSetRef `json:"partOf,omitempty"`
	// number of a checkpoint that the task's history has. The object stands for that one, and
	// no other is taken: this is how the object of a checkpoint is made again after it was
	// deleted.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=2147483647
	Number *int64 `json:"number,omitempty"`
	// message says what the checkpoint is for; it becomes the commit's message.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	// +kubebuilder:validation:XValidation:rule="!self.matches('[\\\\x00-\\\\x08\\\\x0b-\\\\x1f\\\\x7f]')",message="message must be plain text without control characters"
	Message string `json:"message,omitempty"`
	// requestedBy is the name of the user who created the object, as authenticated by the
	// API server. Admission sets it and ignores what a client sends: leave it out.
	// +optional
	// +kubebuilder:validation:MaxLength=256
	RequestedBy string `json:"requestedBy,omitempty"`
	// retention says whether the task's checkpointPolicy.retention may delete the object. It
	// may be changed at any time. Left out, it means ByPolicy for an object that Clew made
	// while the agent worked, and Keep for one that somebody applied or a rewind made.
	// +optional
	Retention CheckpointKeep `json:"retention,omitempty"`
	// branches that hold the checkpoint's files: in the gitstore all of them, also those that
	// .gitignore names, and in the agent's and the task's repository without these. They may be
	// changed at any time, also while the task is stopped or gone. An entry that is removed takes its
	// branch in the gitstore with it, if that is still where it was made, and leaves those in the
	// agent's repository and at the task's; deleting the Checkpoint leaves all branches.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=16
	Branches []CheckpointBranch `json:"branches,omitempty"`
	// branchesChangedBy is the name of the user who changed branches last, as authenticated by
	// the API server. Admission sets it and ignores what a client sends: leave it out.
	// +optional
	// +kubebuilder:validation:MaxLength=256
	BranchesChangedBy string `json:"branchesChangedBy,omitempty"`
}

// SkippedFile is a file that a checkpoint lists but does not contain. A rewind never deletes it,
// except for a Fifo, which it makes and removes like a file.
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

// FileAction says what became of a file since the parent checkpoint.
// +kubebuilder:validation:Enum=Added;Modified;Deleted
type FileAction string

// The actions.
const (
	FileAdded    FileAction = "Added"
	FileModified FileAction = "Modified"
	FileDeleted  FileAction = "Deleted"
)

// ChangedFile is a file that changed since the parent checkpoint.
type ChangedFile struct {
	// path in the worktree; bytes that are not UTF-8 are escaped.
	// +required
	// +kubebuilder:validation:MaxLength=4096
	Path string `json:"path"`
	// action is Added, Modified or Deleted.
	// +optional
	Action FileAction `json:"action,omitempty"`
}

// GitPosition is the state of the agent's own repository.
type GitPosition struct {
	// head is the commit of the agent's HEAD; empty before the first commit. The gitstore has
	// it as refs/clew/TASK-UID/head/COMMIT, unless an event HeadNotStored says why not.
	// +optional
	Head string `json:"head,omitempty"`
	// branch the agent was on; empty when HEAD was detached.
	// +optional
	Branch string `json:"branch,omitempty"`
	// dirtyFiles are the files that differ from HEAD; the first 100 that fit into 2 KiB. The
	// history has more.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=100
	DirtyFiles []string `json:"dirtyFiles,omitempty"`
	// dirtyFileCount is the number of all files that differ from HEAD.
	// +optional
	DirtyFileCount int32 `json:"dirtyFileCount,omitempty"`
}

// ConversationPosition is a position in a task's conversation.
type ConversationPosition struct {
	// branch of the conversation.
	// +optional
	Branch string `json:"branch,omitempty"`
	// position is the number of messages up to here.
	// +optional
	Position int64 `json:"position"`
	// toolCalls is the number of answered tool calls up to here.
	// +optional
	ToolCalls int64 `json:"toolCalls,omitempty"`
}

// CheckpointConversation is the position in the conversation, with totals up to it.
type CheckpointConversation struct {
	ConversationPosition `json:",inline"`
	// messageCount is the number of messages up to here.
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
	// RiskyToolBestEffort: the agent was stopped as soon as the call was seen; the tool may
	// have started by then.
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

// AgentSession is the agent's own session that a checkpoint contains.
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

// CheckpointStatus is what the checkpoint contains.
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
	// requestedBy is who requested it; empty for an automatic one. It ends in
	// "(field manager)" when no user name is known.
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
	// set is the state of a set of checkpoints, if the scope is Contract.
	// +optional
	Set *CheckpointSet `json:"set,omitempty"`
	// commit contains the code.
	// +optional
	Commit string `json:"commit,omitempty"`
	// tree is the git tree of the code.
	// +optional
	Tree string `json:"tree,omitempty"`
	// parent is the code commit of the previous checkpoint.
	// +optional
	Parent string `json:"parent,omitempty"`
	// base is the commit of the repository that the task started from.
	// +optional
	Base string `json:"base,omitempty"`
	// stateCommit contains the agent's own state.
	// +optional
	StateCommit string `json:"stateCommit,omitempty"`
	// consistency says whether the files are from one moment. It is absent from checkpoints
	// that were taken before this field existed.
	// +optional
	Consistency CheckpointConsistency `json:"consistency,omitempty"`
	// frozenMilliseconds is how long the agent was stopped for the checkpoint; absent if it
	// did not run.
	// +optional
	FrozenMilliseconds int64 `json:"frozenMilliseconds,omitempty"`
	// riskyTool is the tool call that the checkpoint was taken for, if any.
	// +optional
	RiskyTool *RiskyTool `json:"riskyTool,omitempty"`
	// session is the agent's own session that its state contains.
	// +optional
	Session *AgentSession `json:"session,omitempty"`
	// conversation is the position in the conversation, with totals up to it.
	// +optional
	Conversation *CheckpointConversation `json:"conversation,omitempty"`
	// code counts what changed since the parent.
	// +optional
	Code *CodeStats `json:"code,omitempty"`
	// changedFiles are the files that changed since the parent; the first 50 that fit into
	// 2 KiB. code.filesChanged counts all of them, and kubectl clew diff shows them.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=50
	ChangedFiles []ChangedFile `json:"changedFiles,omitempty"`
	// git is the state of the agent's own repository.
	// +optional
	Git *GitPosition `json:"git,omitempty"`
	// branches are the branches that the gitstore has, or refuses.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=32
	Branches []CheckpointBranchStatus `json:"branches,omitempty"`
	// branchPushes counts the pods that pushed branches, or tried to, also of those that the spec
	// no longer names.
	// +optional
	BranchPushes int64 `json:"branchPushes,omitempty"`
	// files is the number of files in the checkpoint.
	// +optional
	Files int64 `json:"files,omitempty"`
	// bytes is the size of the files in the checkpoint.
	// +optional
	Bytes int64 `json:"bytes,omitempty"`
	// skipped are files that are listed but not contained; the first 100 that fit into
	// 2 KiB. The history has more.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=100
	Skipped []SkippedFile `json:"skipped,omitempty"`
	// skippedCount is the number of all skipped files.
	// +optional
	SkippedCount int32 `json:"skippedCount,omitempty"`
}

// Checkpoint is a moment of a task to which it can be rewound: its code, the agent's own
// state and the position in the conversation. Applying a Checkpoint takes one, unless it names
// the number of one that was taken; the manager
// creates one for each that the daemon took automatically.
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
// +kubebuilder:printcolumn:name="Intact",type=string,JSONPath=`.status.conditions[?(@.type=="Intact")].status`
// +kubebuilder:printcolumn:name="Durable-Reason",type=string,priority=1,JSONPath=`.status.conditions[?(@.type=="Durable")].reason`
// +kubebuilder:printcolumn:name="Files",type=integer,JSONPath=`.status.code.filesChanged`
// +kubebuilder:printcolumn:name="Messages",type=integer,JSONPath=`.status.conversation.position`
// +kubebuilder:printcolumn:name="Tool",type=string,priority=1,JSONPath=`.status.riskyTool.name`
// +kubebuilder:printcolumn:name="Commit",type=string,priority=1,JSONPath=`.status.commit`
// +kubebuilder:printcolumn:name="Scope",type=string,priority=1,JSONPath=`.spec.scope`
// +kubebuilder:printcolumn:name="Retention",type=string,priority=1,JSONPath=`.spec.retention`
// +kubebuilder:printcolumn:name="Message",type=string,priority=1,JSONPath=`.spec.message`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type Checkpoint struct {
	metav1.TypeMeta `json:",inline"`
	// metadata is the standard metadata of an object.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`
	// spec requests a checkpoint.
	// +required
	Spec CheckpointSpec `json:"spec"`
	// status is what the checkpoint contains.
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
