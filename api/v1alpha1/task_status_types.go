package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// AttemptOutcome says how an attempt ended.
// +kubebuilder:validation:Enum=Completed;AgentFailed;Suspended;Stopped;Rewound;PodLost;PrepareFailed;Blocked
type AttemptOutcome string

const (
	// AttemptCompleted: the agent exited with 0, and its last checkpoint is recorded.
	AttemptCompleted AttemptOutcome = "Completed"
	// AttemptAgentFailed: the agent ended with an exit code other than 0.
	AttemptAgentFailed AttemptOutcome = "AgentFailed"
	// AttemptSuspended: stopped because operatingMode was set to Suspended.
	AttemptSuspended AttemptOutcome = "Suspended"
	// AttemptStopped: stopped to make way for another attempt, for a rewind say.
	AttemptStopped AttemptOutcome = "Stopped"
	// AttemptRewound: carried out a rewind of a stopped task and ended there.
	AttemptRewound AttemptOutcome = "Rewound"
	// AttemptPodLost: the pod went away without having been asked to.
	AttemptPodLost AttemptOutcome = "PodLost"
	// AttemptPrepareFailed: the workspace could not be prepared; another try may help.
	AttemptPrepareFailed AttemptOutcome = "PrepareFailed"
	// AttemptBlocked: the workspace cannot be prepared until somebody acts.
	AttemptBlocked AttemptOutcome = "Blocked"
)

// AttemptTrigger says why an attempt was made.
// +kubebuilder:validation:Enum=Start;Retry;PodLost;Resume;Rewind
type AttemptTrigger string

const (
	// AttemptStart is the first attempt.
	AttemptStart AttemptTrigger = "Start"
	// AttemptRetry follows a failure.
	AttemptRetry AttemptTrigger = "Retry"
	// AttemptAfterPodLost follows a lost pod.
	AttemptAfterPodLost AttemptTrigger = "PodLost"
	// AttemptResume follows a suspension, or a request to resume.
	AttemptResume AttemptTrigger = "Resume"
	// AttemptRewind carries out a rewind.
	AttemptRewind AttemptTrigger = "Rewind"
)

// AgentMemory says what an agent knew of the conversation when it was started.
// +kubebuilder:validation:Enum=New;Session;Rendered
type AgentMemory string

const (
	// AgentMemoryNew: the agent began with the task's prompt.
	AgentMemoryNew AgentMemory = "New"
	// AgentMemorySession: the agent resumed its own session.
	AgentMemorySession AgentMemory = "Session"
	// AgentMemoryRendered: the conversation was rendered into the prompt.
	AgentMemoryRendered AgentMemory = "Rendered"
)

// RateLimitStatus tells of attempts in a row that ended with a rate limit.
type RateLimitStatus struct {
	// since is when the first of them ended. After a day without a tool call,
	// rate limits count towards backoffLimit.
	// +required
	Since metav1.Time `json:"since"`
	// toolCallCount is how many tool calls the task had made by then.
	// +optional
	ToolCallCount int64 `json:"toolCallCount,omitempty"`
}

// Attempt is one pod of a task.
type Attempt struct {
	// number of the attempt, from 1.
	// +required
	// +kubebuilder:validation:Minimum=1
	Number int64 `json:"number"`
	// podName is the name of its pod.
	// +optional
	PodName string `json:"podName,omitempty"`
	// podUID is the UID of its pod.
	// +optional
	PodUID string `json:"podUID,omitempty"`
	// trigger says why the attempt was made.
	// +optional
	Trigger AttemptTrigger `json:"trigger,omitempty"`
	// startTime is when the attempt was decided.
	// +optional
	StartTime *metav1.Time `json:"startTime,omitempty"`
	// endTime is when its end was seen.
	// +optional
	EndTime *metav1.Time `json:"endTime,omitempty"`
	// outcome says how it ended; empty while it lasts.
	// +optional
	Outcome AttemptOutcome `json:"outcome,omitempty"`
	// reason says why it is being stopped or how it ended, in one word.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	Reason string `json:"reason,omitempty"`
	// memory says what the agent knew of the conversation when it was started;
	// empty for an agent of type Exec, which reads the conversation by itself.
	// +optional
	Memory AgentMemory `json:"memory,omitempty"`
	// memoryMessage says why it was that.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	MemoryMessage string `json:"memoryMessage,omitempty"`
	// retryTime is when the next attempt starts at the earliest, where the
	// model's API asked for a pause.
	// +optional
	RetryTime *metav1.Time `json:"retryTime,omitempty"`
	// exitCode of the agent, where it ended by itself.
	// +optional
	ExitCode *int32 `json:"exitCode,omitempty"`
	// message says more about the end.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Message string `json:"message,omitempty"`
	// hindrances are the reasons, in one word each, why its pod could not be created or
	// did not start. The history tells of each of them once.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MaxLength=63
	Hindrances []string `json:"hindrances,omitempty"`
}

// CheckpointSummary is the latest checkpoint of a task.
type CheckpointSummary struct {
	// name of the Checkpoint.
	// +optional
	Name string `json:"name,omitempty"`
	// number of the checkpoint in its task, from 1.
	// +optional
	Number int64 `json:"number,omitempty"`
	// commit holds its code.
	// +optional
	Commit string `json:"commit,omitempty"`
	// time it was taken.
	// +optional
	Time *metav1.Time `json:"time,omitempty"`
}

// OperationState says how far a one-shot operation is.
// +kubebuilder:validation:Enum=Pending;InProgress;Completed;Refused;Failed
type OperationState string

const (
	// OperationPending: where it goes to cannot be found out yet.
	OperationPending    OperationState = "Pending"
	OperationInProgress OperationState = "InProgress"
	OperationCompleted  OperationState = "Completed"
	OperationRefused    OperationState = "Refused"
	OperationFailed     OperationState = "Failed"
)

// OperationStatus is the outcome of the resume or rewind with the given id.
type OperationStatus struct {
	// id of the request this is about.
	// +required
	ID string `json:"id"`
	// state says how far it is.
	// +required
	State OperationState `json:"state"`
	// reason says why it was refused or failed, in one word.
	// +optional
	Reason string `json:"reason,omitempty"`
	// message says what happened, or what to do.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Message string `json:"message,omitempty"`
	// requestedBy is who asked for it. It ends in "(field manager)" where no user
	// name is known.
	// +optional
	// +kubebuilder:validation:MaxLength=512
	RequestedBy string `json:"requestedBy,omitempty"`
	// attempt that carries it out.
	// +optional
	Attempt int64 `json:"attempt,omitempty"`
	// fromCheckpoint is the number of the checkpoint that holds what stood before.
	// +optional
	FromCheckpoint int64 `json:"fromCheckpoint,omitempty"`
	// toCheckpoint is the number of the checkpoint gone back to; empty when the
	// conversation went to a message that is older than every checkpoint.
	// +optional
	ToCheckpoint int64 `json:"toCheckpoint,omitempty"`
	// toCommit is the code commit gone back to, resolved once.
	// +optional
	ToCommit string `json:"toCommit,omitempty"`
	// toPosition is the position of the last message that was kept, a turn
	// boundary, resolved once; empty when the conversation stays as it is.
	// +optional
	ToPosition int64 `json:"toPosition,omitempty"`
	// toSequence is the record of the task that made the message at toPosition, by
	// which the message is found where the history has lost records, and positions
	// with them; empty for a message that a fork inherited.
	// +optional
	ToSequence int64 `json:"toSequence,omitempty"`
	// checkpointPosition is where the conversation stood at toCheckpoint.
	// +optional
	CheckpointPosition int64 `json:"checkpointPosition,omitempty"`
	// preserved names the branch or stash that keeps what stood before.
	// +optional
	Preserved string `json:"preserved,omitempty"`
	// startTime is when the operation was accepted.
	// +optional
	StartTime *metav1.Time `json:"startTime,omitempty"`
	// endTime is when it ended.
	// +optional
	EndTime *metav1.Time `json:"endTime,omitempty"`
}

// SourceStatus is the resolved point a task started from.
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
	// actor who caused it: the user who asked for it, the field manager, marked as
	// such, where no user name is known, or clew.
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
}

// UncountedLoss is a loss of records that a former version of Clew did not count: they
// went with the task's volume. This version counts them.
type UncountedLoss struct {
	// time at which it became known.
	// +required
	Time metav1.Time `json:"time"`
	// message says what the history store lacked then.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Message string `json:"message,omitempty"`
}

// TaskStatus is what Clew has seen and done.
type TaskStatus struct {
	// observedGeneration is the generation the status is about.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// conditions are Succeeded, WorkspaceReady, Durable, Drifted, HistoryRecorded
	// and HistoryComplete.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=16
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// attempts of the task, newest last. Beyond 50 the oldest are dropped, except those
	// that say how the task came to rest, so their numbers may have holes.
	// +optional
	// +listType=map
	// +listMapKey=number
	// +kubebuilder:validation:MaxItems=50
	Attempts []Attempt `json:"attempts,omitempty"`
	// failures counts agent failures since the last resume or start.
	// +optional
	Failures int32 `json:"failures,omitempty"`
	// rateLimit is set while attempt after attempt ends with a rate limit of the
	// model's API.
	// +optional
	RateLimit *RateLimitStatus `json:"rateLimit,omitempty"`
	// claimUID is the UID of the PersistentVolumeClaim in use.
	// +optional
	ClaimUID string `json:"claimUID,omitempty"`
	// source is the resolved point of startFrom.
	// +optional
	Source *SourceStatus `json:"source,omitempty"`
	// latestCheckpoint is the newest one.
	// +optional
	LatestCheckpoint *CheckpointSummary `json:"latestCheckpoint,omitempty"`
	// checkpointCount counts checkpoints taken.
	// +optional
	CheckpointCount int64 `json:"checkpointCount,omitempty"`
	// checkpointObjectsThrough is the number up to which every checkpoint that
	// was taken has a Checkpoint object, while objects for the rest are being
	// made, some at a time. It is absent when all have one.
	// +optional
	CheckpointObjectsThrough *int64 `json:"checkpointObjectsThrough,omitempty"`
	// snapshotCount counts the automatic snapshots of the conversation that
	// ConversationSnapshots were made for.
	// +optional
	SnapshotCount int64 `json:"snapshotCount,omitempty"`
	// lostRecords counts the records of the task's history that are lost for good,
	// and show as gaps in its conversation and timeline.
	// +optional
	LostRecords int64 `json:"lostRecords,omitempty"`
	// acknowledgedLostRecords is how many of the lost records spec.acknowledge covers.
	// When all are, the condition HistoryComplete does not report them. It is absent
	// once the acknowledgement has ended.
	// +optional
	AcknowledgedLostRecords int64 `json:"acknowledgedLostRecords,omitempty"`
	// endedAcknowledgement is the number in spec.acknowledge that counts no more, since
	// lostRecords has fallen, or the Task was created with it. It is absent when
	// spec.acknowledge is absent, or has another number.
	// +optional
	EndedAcknowledgement int64 `json:"endedAcknowledgement,omitempty"`
	// uncountedLoss is a loss of records that a former version of Clew told of, and did
	// not count. It stays, and while it is there the condition HistoryComplete is False.
	// +optional
	UncountedLoss *UncountedLoss `json:"uncountedLoss,omitempty"`
	// leftOutRecords counts the records that are not in the history, or not in full,
	// since the task or its namespace had reached its limit, as of the latest
	// checkpoint or transition.
	// +optional
	LeftOutRecords int64 `json:"leftOutRecords,omitempty"`
	// recordSequence is the newest record of the task's daemon that the history store
	// was known to have, as of the latest checkpoint or transition; a store that has
	// less was put back to an older copy.
	// +optional
	RecordSequence int64 `json:"recordSequence,omitempty"`
	// messageCount counts messages of the conversation's active branch, as of the
	// latest checkpoint or transition; the history store has the count of now.
	// +optional
	MessageCount int64 `json:"messageCount,omitempty"`
	// toolCallCount counts answered tool calls of the conversation's active branch,
	// as of the latest checkpoint or transition.
	// +optional
	ToolCallCount int64 `json:"toolCallCount,omitempty"`
	// inputTokens and outputTokens are what the agent reported.
	// +optional
	InputTokens int64 `json:"inputTokens,omitempty"`
	// outputTokens is what the agent reported.
	// +optional
	OutputTokens int64 `json:"outputTokens,omitempty"`
	// costMicroUSD is what the agent reported, in millionths of a US dollar.
	// +optional
	CostMicroUSD int64 `json:"costMicroUSD,omitempty"`
	// lastActivity is when the agent was last heard of. It is written together
	// with other news, and every five minutes while the agent works.
	// +optional
	LastActivity *metav1.Time `json:"lastActivity,omitempty"`
	// handledOperations are the resumes and rewinds taken note of, as Resume/ID
	// and Rewind/ID, newest last; the oldest are dropped beyond 100. None of
	// them is carried out again.
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
	// history lists the task's transitions; entries leave the list after the
	// history store has them, never before.
	// +optional
	// +listType=map
	// +listMapKey=sequence
	// +kubebuilder:validation:MaxItems=256
	History []HistoryEntry `json:"history,omitempty"`
	// historySequence is the sequence of the newest entry ever made.
	// +optional
	HistorySequence int64 `json:"historySequence,omitempty"`
	// recordedSequence is the sequence up to which the history store has all entries.
	// +optional
	RecordedSequence int64 `json:"recordedSequence,omitempty"`
}
