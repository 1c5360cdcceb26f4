package v1alpha1

// Conditions of a Task.
const (
	// TaskSucceeded is Unknown while the task is active, True when the agent
	// ended well and its last checkpoint is safe, False when it failed for good.
	// Its reason is what people read.
	TaskSucceeded = "Succeeded"
	// TaskWorkspaceReady is True while the task's volume holds the state the
	// task is meant to have.
	TaskWorkspaceReady = "WorkspaceReady"
	// TaskDurable is True when the gitstore has the latest checkpoint.
	TaskDurable = "Durable"
	// TaskDrifted is True when the worktree is not what Clew last left there.
	TaskDrifted = "Drifted"
	// TaskHistoryRecorded is True when every transition in status.history
	// stands in the history store.
	TaskHistoryRecorded = "HistoryRecorded"
	// TaskHistoryComplete is False once records of the task are lost, or were left out
	// at a limit, and while the history store lacks records that the task's volume may
	// still have. It is True when lost records are all that is missing and
	// spec.acknowledge covers them. A task whose history lacks nothing does not have it.
	TaskHistoryComplete = "HistoryComplete"
)

// Reasons of the condition Succeeded of a Task.
const (
	ReasonPending      = "Pending"
	ReasonPreparing    = "Preparing"
	ReasonRunning      = "Running"
	ReasonSuspending   = "Suspending"
	ReasonSuspended    = "Suspended"
	ReasonRewinding    = "Rewinding"
	ReasonRetrying     = "Retrying"
	ReasonRewound      = "Rewound"
	ReasonCompleting   = "Completing"
	ReasonCompleted    = "Completed"
	ReasonAgentFailed  = "AgentFailed"
	ReasonBackoffLimit = "BackoffLimitExceeded"
	// ReasonAgentUnauthorized: the model's API does not accept the agent's
	// credentials. Not retried.
	ReasonAgentUnauthorized = "AgentUnauthorized"
	// ReasonAgentOutOfCredit: the account at the model's API has no credit left.
	// Not retried.
	ReasonAgentOutOfCredit = "AgentOutOfCredit"
	// ReasonAgentRateLimited: the model's API asks for a pause; another attempt
	// follows after it. It counts towards backoffLimit only when this has gone on
	// for a day.
	ReasonAgentRateLimited = "AgentRateLimited"
	// ReasonAgentTooOld: the agent's program is older than the oldest version
	// that works. Not retried.
	ReasonAgentTooOld = "AgentTooOld"
	// ReasonAgentOptionsInvalid: the agent's program does not accept its
	// arguments. Not retried.
	ReasonAgentOptionsInvalid = "AgentOptionsInvalid"
	// ReasonProgramNotFound: a container of the template has no such program as its
	// command names. Not retried.
	ReasonProgramNotFound = "ProgramNotFound"
	// ReasonProgramNotExecutable: the program that a container's command names is
	// there, and cannot be executed. Not retried.
	ReasonProgramNotExecutable = "ProgramNotExecutable"
	ReasonInvalidTemplate      = "InvalidTemplate"
	ReasonVolumeUnavailable    = "VolumeUnavailable"
	ReasonImageUnavailable     = "ImageUnavailable"
	ReasonPodRefused           = "PodRefused"
	ReasonUnschedulable        = "Unschedulable"
	ReasonDaemonUnavailable    = "DaemonUnavailable"
	ReasonReplaced             = "Replaced"
	ReasonPromptNotFound       = "PromptNotFound"
	ReasonCredentialsNotFound  = "CredentialsNotFound"
	ReasonDeleting             = "Deleting"
)

// Reasons for which a workspace cannot be prepared. The daemon reports them,
// the conditions WorkspaceReady and Succeeded carry them.
const (
	ReasonWorkspacePrepared     = "Prepared"
	ReasonRepositoryNotFound    = "RepositoryNotFound"
	ReasonRepositoryUnreachable = "RepositoryUnreachable"
	ReasonAuthenticationFailed  = "AuthenticationFailed"
	ReasonRefNotFound           = "RefNotFound"
	ReasonCheckpointNotFound    = "CheckpointNotFound"
	ReasonCheckpointCorrupted   = "CheckpointCorrupted"
	ReasonVolumeFull            = "VolumeFull"
	ReasonDriftDetected         = "DriftDetected"
	ReasonSourceNotFound        = "SourceNotFound"
	ReasonRepositoryMismatch    = "RepositoryMismatch"
	ReasonServerUnreachable     = "ServerUnreachable"
	ReasonGitStoreUnreachable   = "GitStoreUnreachable"
	ReasonGitStoreRefused       = "GitStoreRefused"
	ReasonPrepareFailed         = "PrepareFailed"
	// ReasonFenced: a newer attempt has been seen. This one ends.
	ReasonFenced = "Fenced"
)

// Problems that a daemon has while its agent runs. The condition Succeeded carries
// them, and stays Unknown, since all goes on when they are solved. The others are
// ReasonVolumeFull, ReasonGitStoreRefused and ReasonFenced.
const (
	// ReasonRecordingFailed: the agent's output is held back.
	ReasonRecordingFailed = "RecordingFailed"
	// ReasonCheckpointFailed: the agent works on without checkpoints.
	ReasonCheckpointFailed = "CheckpointFailed"
	// ReasonHistoryLimitReached: the task, or its namespace, has as much stored in
	// the history as it may. The agent works on; its output waits for some
	// minutes, and is then left out of the history, counted.
	ReasonHistoryLimitReached = "HistoryLimitReached"
	// ReasonModelErrors: the model's API answers with errors, and the agent tries
	// again by itself.
	ReasonModelErrors = "ModelErrors"
	// ReasonVolumeOutdated: the history has records that the volume never held.
	// The attempt ends; the next one restores the workspace.
	ReasonVolumeOutdated = "VolumeOutdated"
)

// Reasons for which records of a task's history are lost.
const (
	// ReasonHistoryStoreWentBack: the history store was put back to an older copy
	// than the daemon could make good.
	ReasonHistoryStoreWentBack = "HistoryStoreWentBack"
	// ReasonSpoolDamaged: the task's volume could not be read any more.
	ReasonSpoolDamaged = "SpoolDamaged"
)

// Reasons of the other conditions of a Task.
const (
	ReasonPushed      = "Pushed"
	ReasonNotPushed   = "NotPushed"
	ReasonNoDrift     = "NoDrift"
	ReasonRecorded    = "Recorded"
	ReasonNotRecorded = "NotRecorded"
	ReasonHistoryFull = "HistoryFull"
	// ReasonCheckpointLost: neither the gitstore nor the task's volume has the
	// checkpoint any more.
	ReasonCheckpointLost = "CheckpointLost"
	// ReasonHistoryDeleted: the task's history was deleted with a Task that was
	// restored since. It cannot be started any more.
	ReasonHistoryDeleted = "HistoryDeleted"
	// ReasonHistoryGap: records of the task are lost for good; status.lostRecords
	// counts them.
	ReasonHistoryGap = "HistoryGap"
	// ReasonUncountedHistoryGap: a former version of Clew told that records of the task
	// are lost for good, and did not count them. No number acknowledges that.
	ReasonUncountedHistoryGap = "UncountedHistoryGap"
	// ReasonLossAcknowledged: all records that are lost are covered by
	// spec.acknowledge.
	ReasonLossAcknowledged = "LossAcknowledged"
	// ReasonHistoryBehind: the history store was put back to an older copy. The
	// task's pod, or its next one, sends again what its volume has.
	ReasonHistoryBehind = "HistoryBehind"
)

// Reasons of one-shot operations (status.resume, status.rewind).
const (
	// ReasonInvalidOperation: the task's state does not allow the operation.
	ReasonInvalidOperation = "InvalidOperation"
	// ReasonInvalidBranch: no branch can have the name that is to keep what stood.
	ReasonInvalidBranch = "InvalidBranch"
	// ReasonBranchExists: the agent's repository has a branch of that name, or one
	// in its way.
	ReasonBranchExists = "BranchExists"
	// ReasonRewindUndone: a rewind failed and was undone, and nobody knows any
	// more why.
	ReasonRewindUndone = "RewindUndone"
	// ReasonInvalidState: what the operation needs, a checkpoint say, is not there.
	ReasonInvalidState = "InvalidState"
	// ReasonPositionNotFound: the conversation has no such message or moment.
	ReasonPositionNotFound = "PositionNotFound"
)

// Conditions and reasons of a Checkpoint.
const (
	// CheckpointReady is True when the checkpoint was taken and recorded.
	CheckpointReady = "Ready"
	// CheckpointDurable is True when the gitstore has it.
	CheckpointDurable = "Durable"
	// CheckpointIntact is False when the stored objects were found damaged.
	CheckpointIntact = "Intact"

	ReasonTaken          = "Taken"
	ReasonTaskStopped    = "TaskStopped"
	ReasonRequested      = "Requested"
	ReasonTaskNotFound   = "TaskNotFound"
	ReasonTaskNotStarted = "TaskNotStarted"
	ReasonVerified       = "Verified"
	ReasonCorrupted      = "Corrupted"
)

// Conditions and reasons of a ConversationSnapshot.
const (
	// SnapshotReady is True when the position is resolved and its digest known.
	SnapshotReady = "Ready"
	// SnapshotIntact is True while the messages up to the position give its
	// digest, and False when they were found damaged.
	SnapshotIntact = "Intact"

	ReasonResolved           = "Resolved"
	ReasonNoConversation     = "NoConversation"
	ReasonHistoryUnavailable = "HistoryUnavailable"
)

// Conditions and reasons of a Fork.
const (
	// ForkComplete is True when every variant's Task exists.
	ForkComplete = "Complete"

	ReasonForked             = "Forked"
	ReasonWaitingForSource   = "WaitingForCheckpoint"
	ReasonTaskExists         = "TaskExists"
	ReasonCheckpointOfOther  = "CheckpointOfAnotherTask"
	ReasonCheckpointNotReady = "CheckpointNotReady"
)

// Reasons of Events and of entries in status.history.
const (
	EventTaskStarted         = "TaskStarted"
	EventTaskCompleted       = "TaskCompleted"
	EventTaskFailed          = "TaskFailed"
	EventTaskSuspended       = "TaskSuspended"
	EventTaskResumed         = "TaskResumed"
	EventTaskRetried         = "TaskRetried"
	EventTaskRewound         = "TaskRewound"
	EventTaskForked          = "TaskForked"
	EventTaskDeleted         = "TaskDeleted"
	EventPodLost             = "PodLost"
	EventVolumeLost          = "VolumeLost"
	EventOperationRefused    = "OperationRefused"
	EventOperationFailed     = "OperationFailed"
	EventCheckpointCreated   = "CheckpointCreated"
	EventCheckpointRequested = "CheckpointRequested"
	EventCheckpointCorrupted = "CheckpointCorrupted"
	// EventCheckpointNotPointInTime: the agent ran while a checkpoint was taken.
	EventCheckpointNotPointInTime = "CheckpointNotPointInTime"
	// EventCheckpointRefused: a checkpoint was not taken, or will never be in the gitstore.
	EventCheckpointRefused       = "CheckpointRefused"
	EventDriftDetected           = "DriftDetected"
	EventTaskHindered            = "TaskHindered"
	EventHistoryGap              = "HistoryGap"
	EventLossAcknowledged        = "LossAcknowledged"
	EventWorkspaceRestored       = "WorkspaceRestored"
	EventDriftPreserved          = "DriftPreserved"
	EventDriftOverridden         = "DriftOverridden"
	EventRiskyToolGuarded        = "RiskyToolGuarded"
	EventRiskyToolUnguarded      = "RiskyToolUnguarded"
	EventRiskyToolPatternInvalid = "RiskyToolPatternInvalid"
	EventAgentSessionRefused     = "AgentSessionRefused"
	EventConversationMoved       = "ConversationMoved"
	EventConversationMoveRefused = "ConversationMoveRefused"
	EventUserMessage             = "UserMessage"
	EventAgentMessage            = "AgentMessage"
	EventHistoryExported         = "HistoryExported"
	EventHistoryImported         = "HistoryImported"
)

// Labels that Clew puts on what it makes for a task.
const (
	LabelTask    = "clew.dev/task"
	LabelTaskUID = "clew.dev/task-uid"
	LabelAttempt = "clew.dev/attempt"
	// LabelCheckpoint carries the number of a Checkpoint that the manager made.
	LabelCheckpoint = "clew.dev/checkpoint"
	// LabelSnapshot carries the number of a ConversationSnapshot that the manager
	// made, among the task's automatic ones.
	LabelSnapshot = "clew.dev/snapshot"
	// AnnotationGeneration carries the generation of the Task a pod was made from.
	AnnotationGeneration = "clew.dev/task-generation"
	LabelFork            = "clew.dev/fork"
	// AnnotationForkManager and AnnotationForkUID are found in Tasks that a former
	// version made for a Fork. Newer ones have spec.startFrom.fork instead.
	AnnotationForkManager = "clew.dev/fork-manager"
	AnnotationForkUID     = "clew.dev/fork-uid"
	LabelManagedBy        = "app.kubernetes.io/managed-by"

	// ManagedBy is the value of LabelManagedBy.
	ManagedBy = "clew"
	// AgentContainer is the name of the container in a Task's template that runs the agent.
	AgentContainer = "agent"
	// TaskFinalizer keeps a Task until its history is recorded.
	TaskFinalizer = "clew.dev/history"
)
