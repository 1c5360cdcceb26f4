package v1alpha1

import (
	"cmp"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// CheckpointSummary is the latest checkpoint of a task.
type CheckpointSummary struct {
	// name of the Checkpoint.
	// +optional
	Name string `json:"name,omitempty"`
	// number of the checkpoint in its task, from 1.
	// +optional
	Number int64 `json:"number,omitempty"`
	// commit contains its code.
	// +optional
	Commit string `json:"commit,omitempty"`
	// time it was taken.
	// +optional
	Time *metav1.Time `json:"time,omitempty"`
}

// OperationState is the progress of a one-shot operation.
// +kubebuilder:validation:Enum=Pending;InProgress;Completed;Refused;Failed;NotApplicable
type OperationState string

const (
	// OperationPending: its target cannot be resolved yet.
	OperationPending OperationState = "Pending"
	// OperationInProgress: it was accepted, and is being carried out.
	OperationInProgress OperationState = "InProgress"
	// OperationCompleted: it was carried out.
	OperationCompleted OperationState = "Completed"
	// OperationRefused: it was not accepted, and nothing was changed.
	OperationRefused OperationState = "Refused"
	// OperationFailed: it was accepted and could not be carried out, or was withdrawn.
	OperationFailed OperationState = "Failed"
	// OperationNotApplicable: the Task was created with it, for example from a manifest that
	// was applied to another cluster before. It is never carried out.
	OperationNotApplicable OperationState = "NotApplicable"
)

// OperationStatus is the outcome of the resume or rewind with the given id.
type OperationStatus struct {
	// id of the request this is about.
	// +required
	ID string `json:"id"`
	// state is its progress.
	// +required
	State OperationState `json:"state"`
	// reason says why it was refused or failed, in one word.
	// +optional
	Reason string `json:"reason,omitempty"`
	// message says what happened, or what to do.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Message string `json:"message,omitempty"`
	// requestedBy is who requested it. It ends in "(field manager)" when no user name is
	// known.
	// +optional
	// +kubebuilder:validation:MaxLength=512
	RequestedBy string `json:"requestedBy,omitempty"`
	// avoidedNode is the node that a resume with the placement OtherNode keeps the task off.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	AvoidedNode string `json:"avoidedNode,omitempty"`
	// phase is the one that a resume with the mode RestartPhase begins again.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	Phase string `json:"phase,omitempty"`
	// attempt that carries it out.
	// +optional
	Attempt int64 `json:"attempt,omitempty"`
	// movedIn is the attempt in which it was carried out, if nobody has seen the pod of that, so that a
	// later one reports it.
	// +optional
	MovedIn int64 `json:"movedIn,omitempty"`
	// undoOf is the id of the rewind that it undoes; empty if it undoes none.
	// +optional
	// +kubebuilder:validation:MaxLength=70
	UndoOf string `json:"undoOf,omitempty"`
	// scope is what a rewind rewinds. It is empty for a resume.
	// +optional
	Scope RewindScope `json:"scope,omitempty"`
	// paths are those that a rewind is limited to; empty for all.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=100
	// +kubebuilder:validation:items:MaxLength=1024
	Paths []string `json:"paths,omitempty"`
	// fromCheckpoint is the number of the checkpoint that contains the state before it.
	// +optional
	FromCheckpoint int64 `json:"fromCheckpoint,omitempty"`
	// toCheckpoint is the number of the checkpoint that was restored; empty when the
	// conversation was rewound to a message that is older than every checkpoint.
	// +optional
	ToCheckpoint int64 `json:"toCheckpoint,omitempty"`
	// toCommit is the code commit that was restored, resolved once.
	// +optional
	ToCommit string `json:"toCommit,omitempty"`
	// toPosition is the position of the last message that was kept, a turn
	// boundary, resolved once; empty when the conversation stays as it is.
	// +optional
	ToPosition int64 `json:"toPosition,omitempty"`
	// toSequence is the number of the record that contains the message at toPosition. It
	// identifies the message when the history has lost records, and positions with them;
	// empty for a message that a fork inherited.
	// +optional
	ToSequence int64 `json:"toSequence,omitempty"`
	// checkpointPosition is the position of the conversation at toCheckpoint.
	// +optional
	CheckpointPosition int64 `json:"checkpointPosition,omitempty"`
	// set is the name of the Checkpoint to whose set a supervisor's rewind takes the children along.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	Set string `json:"set,omitempty"`
	// preserved names the branch or stash that keeps the state before it.
	// +optional
	Preserved string `json:"preserved,omitempty"`
	// startTime is when the operation was accepted.
	// +optional
	StartTime *metav1.Time `json:"startTime,omitempty"`
	// endTime is when it ended.
	// +optional
	EndTime *metav1.Time `json:"endTime,omitempty"`
}

// DoneIn returns the number of the attempt that has carried the operation out, or is to; 0 while there is none.
func (s *OperationStatus) DoneIn() int64 { return cmp.Or(s.MovedIn, s.Attempt) }

// SourceStatus is the resolved checkpoint that a task started from.
type SourceStatus struct {
	// taskUID of the source.
	// +required
	TaskUID string `json:"taskUID"`
	// checkpoint number in the source.
	// +required
	Checkpoint int64 `json:"checkpoint"`
	// commit of that checkpoint.
	// +required
	Commit string `json:"commit"`
	// position of the conversation at that checkpoint.
	// +optional
	Position int64 `json:"position,omitempty"`
}

// StartedTask is a task that starts from another one.
type StartedTask struct {
	// name of the task.
	// +required
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`
	// uid of the task.
	// +required
	// +kubebuilder:validation:MaxLength=63
	UID string `json:"uid"`
	// checkpoint is the number of the checkpoint that it starts from.
	// +required
	Checkpoint int64 `json:"checkpoint"`
}

// DriftStatus is what was changed in a worktree while its task was not running.
type DriftStatus struct {
	// attempt that found it.
	// +required
	Attempt int64 `json:"attempt"`
	// checkpoint number that the worktree was left at.
	// +optional
	Checkpoint int64 `json:"checkpoint,omitempty"`
	// fileCount is the number of changed files; 0 if only the HEAD was moved.
	// +required
	FileCount int64 `json:"fileCount"`
	// files are the first 50 of them by path, as many as fit into 2 KiB.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=50
	Files []ChangedFile `json:"files,omitempty"`
	// commit in the gitstore with the files as they were found, with which kubectl clew drift
	// compares them; empty if it could not be stored, and if the task continued.
	// +optional
	Commit string `json:"commit,omitempty"`
	// expectedHead is the HEAD of the agent's repository as it was left; absent if it was not
	// moved.
	// +optional
	ExpectedHead *HeadStatus `json:"expectedHead,omitempty"`
	// head is the HEAD as it was found; absent if it was not moved.
	// +optional
	Head *HeadStatus `json:"head,omitempty"`
}

// HeadStatus is the HEAD of the agent's repository.
type HeadStatus struct {
	// branch that it names; empty if it was detached.
	// +optional
	Branch string `json:"branch,omitempty"`
	// commit that it is at; empty before the first one.
	// +optional
	Commit string `json:"commit,omitempty"`
}

// HistoryEntry is one transition of a task. The history store copies it.
type HistoryEntry struct {
	// sequence of the entry in its task, from 1.
	// +required
	// +kubebuilder:validation:Minimum=1
	Sequence int64 `json:"sequence"`
	// time of the transition.
	// +required
	Time metav1.MicroTime `json:"time"`
	// reason in one word, as in Events.
	// +required
	Reason string `json:"reason"`
	// actor who caused it: the user who requested it, the field manager, marked as such, when
	// no user name is known, or clew.
	// +optional
	Actor string `json:"actor,omitempty"`
	// message says what happened.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Message string `json:"message,omitempty"`
	// attempt it belongs to.
	// +optional
	Attempt int64 `json:"attempt,omitempty"`
	// checkpoint number it is about.
	// +optional
	Checkpoint int64 `json:"checkpoint,omitempty"`
	// publication is what was pushed to the repository, for an entry TaskPublished.
	// +optional
	Publication *Publication `json:"publication,omitempty"`
}

// UncountedLoss is a loss of records that a former version of Clew did not count: they were
// lost with the task's volume. This version counts such records.
type UncountedLoss struct {
	// time when it was detected.
	// +required
	Time metav1.Time `json:"time"`
	// message says what the history store lacked then.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Message string `json:"message,omitempty"`
}

// TaskStatus is what Clew has observed and done.
type TaskStatus struct {
	// observedGeneration is the generation the status is about.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// conditions are Succeeded, WorkspaceReady, VolumeReleased, VolumeSized, Durable, Drifted,
	// Published, HistoryRecorded and HistoryComplete.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=16
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// attempts of the task, newest last. Beyond 50 the oldest are dropped, except those
	// that determine how the task ended, so their numbers may have gaps.
	// +optional
	// +listType=map
	// +listMapKey=number
	// +kubebuilder:validation:MaxItems=50
	Attempts []Attempt `json:"attempts,omitempty"`
	// failures is the number of agent failures since the last resume or start.
	// +optional
	Failures int32 `json:"failures,omitempty"`
	// activeSeconds is how long the agent has run, in all attempts that have ended.
	// spec.deadlineSeconds bounds it.
	// +optional
	ActiveSeconds int64 `json:"activeSeconds,omitempty"`
	// rateLimit is set while consecutive attempts end with a rate limit of the model's API.
	// +optional
	RateLimit *RateLimitStatus `json:"rateLimit,omitempty"`
	// claimName is the name of the task's PersistentVolumeClaim, once the task has left another one
	// behind on a node; before that it is the task's name with -workspace.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="self.endsWith('-workspace')",message="claimName must end in -workspace, as the names of all tasks' claims do"
	ClaimName string `json:"claimName,omitempty"`
	// claimUID is the UID of the PersistentVolumeClaim in use.
	// +optional
	ClaimUID string `json:"claimUID,omitempty"`
	// formerClaims are the claims that the task has left behind on nodes that could not be reached,
	// newest last. Each is deleted once its pod is gone.
	// +optional
	// +listType=map
	// +listMapKey=uid
	// +kubebuilder:validation:MaxItems=16
	FormerClaims []FormerClaim `json:"formerClaims,omitempty"`
	// unreachableNode is the node that the task waits for; absent if it waits for none.
	// +optional
	UnreachableNode *UnreachableNode `json:"unreachableNode,omitempty"`
	// dependencies are the tasks in spec.dependsOn, as they stood when the task last looked at them
	// before it started.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=32
	Dependencies []DependencyStatus `json:"dependencies,omitempty"`
	// released is the last release of the task's volume; absent once the workspace is prepared on
	// another one.
	// +optional
	Released *ReleaseStatus `json:"released,omitempty"`
	// releaseConsideredTime is when the last checkpoint began to be waited for: the volume is released
	// once that was verified for this release, and not before.
	// +optional
	ReleaseConsideredTime *metav1.Time `json:"releaseConsideredTime,omitempty"`
	// handledSize is the workspace.size that the condition VolumeSized is about.
	// +optional
	HandledSize *resource.Quantity `json:"handledSize,omitempty"`
	// finishedTime is when the task finished: when its condition Succeeded became True or False for
	// good. It is absent while the task goes on, waits, is suspended, was rewound, or has spent its budget.
	// +optional
	FinishedTime *metav1.Time `json:"finishedTime,omitempty"`
	// deletionRequestedTime is when Clew began to delete the Task, as spec.onFinish says.
	// +optional
	DeletionRequestedTime *metav1.Time `json:"deletionRequestedTime,omitempty"`
	// source is the resolved checkpoint of startFrom.
	// +optional
	Source *SourceStatus `json:"source,omitempty"`
	// contract is the task's place in its contract.
	// +optional
	Contract *ContractStatus `json:"contract,omitempty"`
	// parent is the task that spec.parentRef names, found once.
	// +optional
	Parent *ParentStatus `json:"parent,omitempty"`
	// children counts the children of a supervisor; it is written at intervals.
	// +optional
	Children *ChildrenStatus `json:"children,omitempty"`
	// startedTasks are the tasks that start from this one, newest last: those of Forks, and
	// those whose startFrom names it. When there are more than 100, those that no longer exist
	// leave the list; if 100 exist, later ones are neither listed nor in the history of this task.
	// +optional
	// +listType=map
	// +listMapKey=uid
	// +kubebuilder:validation:MaxItems=100
	StartedTasks []StartedTask `json:"startedTasks,omitempty"`
	// adoption is what a Task with adopt: Latest continues.
	// +optional
	Adoption *AdoptionStatus `json:"adoption,omitempty"`
	// agentBranches says what became of branches of the task's Checkpoints when the agent last
	// started, but for those that its repository had got before; at most 64. The Checkpoints'
	// status has all.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=64
	AgentBranches []AgentBranch `json:"agentBranches,omitempty"`
	// latestCheckpoint is the newest checkpoint.
	// +optional
	LatestCheckpoint *CheckpointSummary `json:"latestCheckpoint,omitempty"`
	// checkpointCount is the number of checkpoints taken.
	// +optional
	CheckpointCount int64 `json:"checkpointCount,omitempty"`
	// checkpointObjectsThrough is the number up to which every checkpoint has a Checkpoint
	// object, while the remaining objects are being created, some at a time. It is absent when
	// all have one.
	// +optional
	CheckpointObjectsThrough *int64 `json:"checkpointObjectsThrough,omitempty"`
	// snapshotCount is the number of automatic snapshots of the conversation for which
	// ConversationSnapshots were created.
	// +optional
	SnapshotCount int64 `json:"snapshotCount,omitempty"`
	// lostRecords is the number of records of the task's history that are lost for good, and
	// appear as gaps in its conversation and timeline.
	// +optional
	LostRecords int64 `json:"lostRecords,omitempty"`
	// acknowledgedLostRecords is the number of lost records that spec.acknowledge covers. When
	// it covers all, the condition HistoryComplete does not report them. It is absent once the
	// acknowledgement has ended.
	// +optional
	AcknowledgedLostRecords int64 `json:"acknowledgedLostRecords,omitempty"`
	// endedAcknowledgement is the number in spec.acknowledge that no longer counts, because
	// lostRecords has decreased or the Task was created with it. It is absent when
	// spec.acknowledge is absent or has another number.
	// +optional
	EndedAcknowledgement int64 `json:"endedAcknowledgement,omitempty"`
	// uncountedLoss is a loss of records that an earlier version of Clew reported and did not
	// count. It is kept, and while it is set the condition HistoryComplete is False.
	// +optional
	UncountedLoss *UncountedLoss `json:"uncountedLoss,omitempty"`
	// leftOutRecords is the number of records that are not in the history, or not completely,
	// because the task or its namespace had reached its limit, as of the latest checkpoint or
	// transition.
	// +optional
	LeftOutRecords int64 `json:"leftOutRecords,omitempty"`
	// recordSequence is the newest record of the task's daemon that the history store
	// was known to have, as of the latest checkpoint or transition; a store that has
	// less was restored from an older copy.
	// +optional
	RecordSequence int64 `json:"recordSequence,omitempty"`
	// messageCount is the number of messages of the conversation's active branch, as of the
	// latest checkpoint or transition; the history store has the current number.
	// +optional
	MessageCount int64 `json:"messageCount,omitempty"`
	// toolCallCount is the number of answered tool calls of the conversation's active branch,
	// as of the latest checkpoint or transition.
	// +optional
	ToolCallCount int64 `json:"toolCallCount,omitempty"`
	// inputTokens is the number that the agent reported.
	// +optional
	InputTokens int64 `json:"inputTokens,omitempty"`
	// outputTokens is the number that the agent reported.
	// +optional
	OutputTokens int64 `json:"outputTokens,omitempty"`
	// costMicroUSD is the cost that the agent reported, in millionths of a US dollar.
	// +optional
	CostMicroUSD int64 `json:"costMicroUSD,omitempty"`
	// spent is what the task has spent, of which neither retries nor rewinds give anything back;
	// spec.budget bounds it. It is as of the latest checkpoint or transition.
	// +optional
	Spent *Spent `json:"spent,omitempty"`
	// budgetWarnings are the limits of which 80 % are spent, as SCOPE/LIMIT/MAXIMUM, such as
	// Task/toolCalls/100, and of which an Event has said so. The scope is Task, Contract or Namespace.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=15
	// +kubebuilder:validation:items:MaxLength=64
	BudgetWarnings []string `json:"budgetWarnings,omitempty"`
	// lastActivity is when the agent was last active. It is written together with other
	// changes, and every five minutes while the agent runs.
	// +optional
	LastActivity *metav1.Time `json:"lastActivity,omitempty"`
	// setRewind is the last rewind of a supervisor that takes children along. One that fails takes none, so that
	// it is the one before again.
	// +optional
	SetRewind *SetRewind `json:"setRewind,omitempty"`
	// handledOperations are the resumes and rewinds that were accepted, refused or not
	// applicable, as Resume/ID and Rewind/ID, newest last; beyond 100 the oldest are dropped
	// that are not in the spec. None of them is carried out again.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=100
	// +kubebuilder:validation:items:MaxLength=80
	HandledOperations []string `json:"handledOperations,omitempty"`
	// resume is the outcome of the last resume.
	// +optional
	Resume *OperationStatus `json:"resume,omitempty"`
	// rewind is the outcome of the last rewind.
	// +optional
	Rewind *OperationStatus `json:"rewind,omitempty"`
	// publish is what is known of publishing the task's work.
	// +optional
	Publish *PublishStatus `json:"publish,omitempty"`
	// requests are the calls of risky tools that wait for a person's answer, and those whose answer the
	// agent has not got yet, oldest first.
	// +optional
	// +listType=map
	// +listMapKey=id
	// +kubebuilder:validation:MaxItems=32
	Requests []ToolRequest `json:"requests,omitempty"`
	// handledDecisions are the ids in spec.decisions that were followed, or that no request had when
	// they were added. None of them counts again.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=63
	HandledDecisions []string `json:"handledDecisions,omitempty"`
	// drift is what the newest attempt found changed; absent if it found nothing.
	// +optional
	Drift *DriftStatus `json:"drift,omitempty"`
	// history lists the task's transitions; entries leave the list after the
	// history store has them, never before.
	// +optional
	// +listType=map
	// +listMapKey=sequence
	// +kubebuilder:validation:MaxItems=256
	History []HistoryEntry `json:"history,omitempty"`
	// historySequence is the sequence of the newest entry ever added.
	// +optional
	HistorySequence int64 `json:"historySequence,omitempty"`
	// recordedSequence is the sequence up to which the history store has all entries.
	// +optional
	RecordedSequence int64 `json:"recordedSequence,omitempty"`
}
