package v1alpha1

// Conditions of a Task.
const (
	// TaskSucceeded is Unknown while the task is active, True when the agent has exited with 0
	// and its last checkpoint is safe, False when it has failed and is not retried. Its reason is the
	// state of the task.
	TaskSucceeded = "Succeeded"
	// TaskWorkspaceReady is True while the task's volume has the intended state.
	TaskWorkspaceReady = "WorkspaceReady"
	// TaskVolumeReleased is True once the task has given its volume back, and False while it is to
	// do so and something is waited for. Other tasks do not have it.
	TaskVolumeReleased = "VolumeReleased"
	// TaskVolumeSized is False while the task's volume is smaller than workspace.size. A task whose
	// size has never grown does not have it.
	TaskVolumeSized = "VolumeSized"
	// TaskDurable is True when the gitstore has the latest checkpoint.
	TaskDurable = "Durable"
	// TaskDrifted is True when the worktree is not as Clew last left it.
	TaskDrifted = "Drifted"
	// TaskPublished is True when the newest checkpoint that spec.publish selects is at the
	// repository as spec.publish asks for now, or has nothing that the repository lacks. A task
	// without spec.publish does not have it.
	TaskPublished = "Published"
	// TaskHistoryRecorded is True when the history store has every transition in
	// status.history.
	TaskHistoryRecorded = "HistoryRecorded"
	// TaskHistoryComplete is False once records of the task are lost or were left out at a
	// limit, and while the history store lacks records that the task's volume may still have.
	// It is True when only lost records are missing and spec.acknowledge covers them. A task
	// with a complete history does not have it.
	TaskHistoryComplete = "HistoryComplete"
)

// Reasons of the condition Succeeded of a Task. The table of package reason says what each
// means.
const (
	ReasonPending   = "Pending"
	ReasonPreparing = "Preparing"
	// ReasonWaitingForTasks: tasks in spec.dependsOn have not ended yet.
	ReasonWaitingForTasks = "WaitingForTasks"
	// ReasonDependencyFailed: a task in spec.dependsOn that was to complete has failed.
	ReasonDependencyFailed = "DependencyFailed"
	// ReasonDependencyCircle: tasks wait for each other.
	ReasonDependencyCircle = "DependencyCircle"
	// ReasonQueued: the task waits for a place among those that run at once, or its pod for a
	// scheduling gate to be lifted.
	ReasonQueued = "Queued"
	// ReasonWaitingForApproval: a tool call of the agent waits for a person's answer.
	ReasonWaitingForApproval = "WaitingForApproval"

	ReasonRunning    = "Running"
	ReasonSuspending = "Suspending"
	ReasonSuspended  = "Suspended"
	// ReasonStopping: the agent is being stopped, since a limit of the spec was reached.
	ReasonStopping  = "Stopping"
	ReasonRewinding = "Rewinding"
	ReasonRetrying  = "Retrying"
	ReasonRewound   = "Rewound"
	// ReasonPhaseRestarted: the parent has begun its phase again, and has stopped the task.
	ReasonPhaseRestarted = "PhaseRestarted"
	ReasonCompleting     = "Completing"
	ReasonCompleted      = "Completed"
	ReasonAgentFailed    = "AgentFailed"
	ReasonBackoffLimit   = "BackoffLimitExceeded"
	// ReasonDeadlineExceeded: the agent has run for as long as deadlineSeconds allows.
	ReasonDeadlineExceeded = "DeadlineExceeded"
	// ReasonBudgetExceeded: all is spent that a budget of the task, of its contract or of its namespace
	// allows.
	ReasonBudgetExceeded = "BudgetExceeded"
	// ReasonAgentUnauthorized: the model's API does not accept the agent's
	// credentials. Not retried.
	ReasonAgentUnauthorized = "AgentUnauthorized"
	// ReasonAgentOutOfCredit: the account at the model's API has no credit left.
	// Not retried.
	ReasonAgentOutOfCredit = "AgentOutOfCredit"
	// ReasonAgentRateLimited: the model's API asks for a pause; another attempt follows
	// after it. It counts towards backoffLimit only after a day in which nothing was changed.
	ReasonAgentRateLimited = "AgentRateLimited"
	// ReasonAgentTooOld: the agent's program is older than the oldest version
	// that works. Not retried.
	ReasonAgentTooOld = "AgentTooOld"
	// ReasonAgentOptionsInvalid: the agent's program does not accept its
	// arguments. Not retried.
	ReasonAgentOptionsInvalid = "AgentOptionsInvalid"
	// ReasonProgramNotFound: the program named by a container's command does not exist in
	// the container. Not retried.
	ReasonProgramNotFound = "ProgramNotFound"
	// ReasonProgramNotExecutable: the program named by a container's command exists, but
	// cannot be executed. Not retried.
	ReasonProgramNotExecutable = "ProgramNotExecutable"
	ReasonInvalidTemplate      = "InvalidTemplate"
	ReasonVolumeUnavailable    = "VolumeUnavailable"
	ReasonImageUnavailable     = "ImageUnavailable"
	ReasonPodRefused           = "PodRefused"
	ReasonUnschedulable        = "Unschedulable"
	ReasonDaemonUnavailable    = "DaemonUnavailable"
	ReasonReplaced             = "Replaced"
	// ReasonPlaceGivenUp: the attempt has ended before its agent started, since others waited for its
	// place among the tasks that run at once.
	ReasonPlaceGivenUp = "PlaceGivenUp"
	// ReasonNodeUnreachable: the node that has the task's pod or volume cannot be reached.
	ReasonNodeUnreachable = "NodeUnreachable"
	// ReasonNodeLost: the pod of an attempt was lost with its node.
	ReasonNodeLost            = "NodeLost"
	ReasonPromptNotFound      = "PromptNotFound"
	ReasonCredentialsNotFound = "CredentialsNotFound"
	ReasonDeleting            = "Deleting"
	// ReasonWaitingForContract: another supervisor leads the contract, and has not finished.
	ReasonWaitingForContract = "WaitingForContract"
	// ReasonContractFull: the contract has as many tasks as one can have.
	ReasonContractFull = "ContractFull"
	// ReasonPhaseUnknown: the contract has no such phase.
	ReasonPhaseUnknown = "PhaseUnknown"
	// ReasonParentNotFound: the task's parent does not exist, or waits for its own.
	ReasonParentNotFound = "ParentNotFound"
	// ReasonParentRefused: the task cannot be a child of the one that it names.
	ReasonParentRefused = "ParentRefused"
	// ReasonChildLimitReached: the parent has as many children as it may have.
	ReasonChildLimitReached = "ChildLimitReached"
)

// Reasons why a workspace cannot be prepared. The daemon reports them, and the conditions
// WorkspaceReady and Succeeded have them.
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
	ReasonHistoryNotGranted     = "HistoryNotGranted"
	ReasonSourceAmbiguous       = "SourceAmbiguous"
	ReasonRepositoryMismatch    = "RepositoryMismatch"
	ReasonServerUnreachable     = "ServerUnreachable"
	ReasonGitStoreUnreachable   = "GitStoreUnreachable"
	ReasonGitStoreRefused       = "GitStoreRefused"
	ReasonPrepareFailed         = "PrepareFailed"
	// ReasonFenced: a newer attempt has been seen. This one ends.
	ReasonFenced = "Fenced"
)

// Reasons of the conditions VolumeReleased and VolumeSized. WorkspaceReady has ReasonReleased as
// well.
const (
	// ReasonReleased: the volume's claim was deleted, and a resume makes another one.
	ReasonReleased = "Released"
	// ReasonReleasePending: the volume is kept until everything is known to be stored elsewhere.
	ReasonReleasePending = "ReleasePending"
	// ReasonReleasingChildren: the Task is to be deleted, and its children, which go with it, give their
	// volumes back before.
	ReasonReleasingChildren = "ReleasingChildren"
	// ReasonVolumeGrowing: the claim asks for more, and does not have it yet.
	ReasonVolumeGrowing = "VolumeGrowing"
	// ReasonVolumeGrown: the volume has the size that workspace.size asks for.
	ReasonVolumeGrown = "VolumeGrown"
	// ReasonNextVolume: the volume cannot grow.
	ReasonNextVolume = "WaitingForNextVolume"
	// ReasonGrowthRefused: the API server does not let the volume grow.
	ReasonGrowthRefused = "GrowthRefused"
)

// Problems of a daemon while its agent runs. The condition Succeeded has them as its reason,
// and stays Unknown, since the task continues when they are solved. ReasonVolumeFull,
// ReasonGitStoreRefused and ReasonFenced are such problems as well.
const (
	// ReasonRecordingFailed: the agent's output is held back.
	ReasonRecordingFailed = "RecordingFailed"
	// ReasonCheckpointFailed: the agent continues without checkpoints.
	ReasonCheckpointFailed = "CheckpointFailed"
	// ReasonHistoryLimitReached: the task or its namespace has reached its limit in the
	// history. The agent continues; its output waits for some minutes, and is then left out
	// of the history and counted.
	ReasonHistoryLimitReached = "HistoryLimitReached"
	// ReasonModelErrors: the model's API returns errors, and the agent retries by itself.
	ReasonModelErrors = "ModelErrors"
	// ReasonVolumeOutdated: the history has records that the volume never had.
	// The attempt ends; the next one restores the workspace.
	ReasonVolumeOutdated = "VolumeOutdated"
)

// Reasons why records of a task's history are lost.
const (
	// ReasonHistoryStoreWentBack: the history store was restored from an older copy, and the
	// daemon no longer had the missing records.
	ReasonHistoryStoreWentBack = "HistoryStoreWentBack"
	// ReasonSpoolDamaged: the records on the task's volume could no longer be read.
	ReasonSpoolDamaged = "SpoolDamaged"
)

// Reasons of the other conditions of a Task.
const (
	ReasonPushed      = "Pushed"
	ReasonNotPushed   = "NotPushed"
	ReasonNoDrift     = "NoDrift"
	ReasonHeadMoved   = "HeadMoved"
	ReasonRecorded    = "Recorded"
	ReasonNotRecorded = "NotRecorded"
	ReasonHistoryFull = "HistoryFull"
	// ReasonCheckpointLost: neither the gitstore nor the task's volume has the
	// checkpoint any more.
	ReasonCheckpointLost = "CheckpointLost"
	// ReasonHistoryDeleted: the task's history was deleted before the Task was restored. It
	// can no longer be started.
	ReasonHistoryDeleted = "HistoryDeleted"
	// ReasonHistoryContinued: a later Task of the name has adopted the task's history, and the
	// Task was restored from a copy of before that. It can no longer be started.
	ReasonHistoryContinued = "HistoryContinued"
	// ReasonHistoryGap: records of the task are lost for good; status.lostRecords
	// counts them.
	ReasonHistoryGap = "HistoryGap"
	// ReasonUncountedHistoryGap: a former version of Clew reported that records of the task
	// are lost for good, and did not count them. No number acknowledges that.
	ReasonUncountedHistoryGap = "UncountedHistoryGap"
	// ReasonLossAcknowledged: spec.acknowledge covers all lost records.
	ReasonLossAcknowledged = "LossAcknowledged"
	// ReasonHistoryBehind: the history store was restored from an older copy. The
	// task's pod, or its next one, sends again what its volume has.
	ReasonHistoryBehind = "HistoryBehind"
)

// Reasons of the condition Published of a Task. ReasonCredentialsNotFound,
// ReasonCheckpointNotFound, ReasonCheckpointCorrupted, ReasonCommitNotFound,
// ReasonRepositoryNotFound, ReasonRepositoryUnreachable, ReasonGitStoreUnreachable and
// ReasonPodRefused are such reasons as well.
const (
	ReasonPublished = "Published"
	// ReasonPublishPending: the task is not in the state in which it is published, or its newest
	// checkpoint has yet to be published.
	ReasonPublishPending = "PublishPending"
	// ReasonPushAnnounced: a pod has announced what it will push, and the next one pushes it. Pods of
	// an earlier version of Clew announce by ReasonPublishPending.
	ReasonPushAnnounced = "PushAnnounced"
	ReasonPublishing    = "Publishing"
	// ReasonNothingToPublish: the task has changed nothing.
	ReasonNothingToPublish = "NothingToPublish"
	// ReasonDiverged: others have pushed to the branch.
	ReasonDiverged = "Diverged"
	// ReasonPublishRefused: a hook of the repository refused the push.
	ReasonPublishRefused = "PublishRefused"
	// ReasonPublishUnauthorized: the repository's host does not let the credentials push.
	ReasonPublishUnauthorized = "PublishUnauthorized"
	// ReasonProtectedPaths: the work changes files that protectedPaths selects.
	ReasonProtectedPaths = "ProtectedPaths"
	// ReasonPublishFailed: the pod that publishes failed; another one follows.
	ReasonPublishFailed = "PublishFailed"
)

// Reasons of one-shot operations (status.resume, status.rewind).
const (
	// ReasonInvalidOperation: the task's state does not allow the operation.
	ReasonInvalidOperation = "InvalidOperation"
	// ReasonInvalidBranch: the name of the branch to preserve the current state is not valid.
	ReasonInvalidBranch = "InvalidBranch"
	// ReasonBranchExists: the agent's repository has a branch of that name, or one that
	// conflicts with it.
	ReasonBranchExists = "BranchExists"
	// ReasonRewindUndone: a rewind failed and was undone, and the cause is no longer known.
	ReasonRewindUndone = "RewindUndone"
	// ReasonInvalidState: something that the operation needs does not exist, for example a
	// checkpoint.
	ReasonInvalidState = "InvalidState"
	// ReasonWorktreeDiffers: a branch is not checked out, since the worktree is not what its
	// checkpoint holds.
	ReasonWorktreeDiffers = "WorktreeDiffers"
	// ReasonUnfinishedWork: a branch is not checked out, since the agent is in the middle of a merge
	// or the like.
	ReasonUnfinishedWork = "UnfinishedWork"
	// ReasonRepositoryUnsuited: the agent's repository is none in which branches are made.
	ReasonRepositoryUnsuited = "RepositoryUnsuited"
	// ReasonCommitNotFound: the task knows no such commit.
	ReasonCommitNotFound = "CommitNotFound"
	// ReasonPathNotFound: a path of a rewind selects no file.
	ReasonPathNotFound = "PathNotFound"
	// ReasonPositionNotFound: the conversation has no such message or moment.
	ReasonPositionNotFound = "PositionNotFound"
)

// Conditions and reasons of a Checkpoint.
const (
	// CheckpointReady is True when the checkpoint was taken and recorded.
	CheckpointReady = "Ready"
	// CheckpointDurable is True when the gitstore has it.
	CheckpointDurable = "Durable"
	// CheckpointIntact is True when every object in the gitstore and every message was found to
	// be as it was stored, which is verified once a day, and False when one was found damaged.
	CheckpointIntact = "Intact"

	ReasonTaken = "Taken"
	// ReasonTakingTogether: the checkpoints of a set are being taken.
	ReasonTakingTogether = "TakingTogether"
	// ReasonTakenTogether: the checkpoints of a set were taken together.
	ReasonTakenTogether = "TakenTogether"
	// ReasonNotTakenTogether: they were not, or the Checkpoint is part of such a set and was not taken.
	ReasonNotTakenTogether = "NotTakenTogether"
	// ReasonNotASupervisor: a set is requested of a task that has no children.
	ReasonNotASupervisor = "NotASupervisor"
	// ReasonAnotherSet: another set of the supervisor is being taken, or has just ended.
	ReasonAnotherSet = "AnotherSet"
	// ReasonNoChildren: a set is requested of a supervisor none of whose children has run.
	ReasonNoChildren = "NoChildren"
	// ReasonTooManyChildren: a supervisor has more children than a set may have.
	ReasonTooManyChildren = "TooManyChildren"
	ReasonTaskStopped     = "TaskStopped"
	ReasonRequested       = "Requested"
	ReasonTaskNotFound    = "TaskNotFound"
	ReasonTaskNotStarted  = "TaskNotStarted"
	ReasonVerified        = "Verified"
	ReasonCorrupted       = "Corrupted"
)

// Conditions and reasons of a ConversationSnapshot.
const (
	// SnapshotReady is True when the position is resolved and its digest known.
	SnapshotReady = "Ready"
	// SnapshotIntact is True while the messages up to the position match its digest, and
	// False when they were found damaged.
	SnapshotIntact = "Intact"

	ReasonResolved           = "Resolved"
	ReasonNoConversation     = "NoConversation"
	ReasonHistoryUnavailable = "HistoryUnavailable"
)

// Conditions and reasons of a Fork.
const (
	// ForkComplete is True when every variant's Task exists.
	ForkComplete = "Complete"

	ReasonForked           = "Forked"
	ReasonWaitingForSource = "WaitingForCheckpoint"
	// ReasonSpecNotKept: the task to fork is gone, and its spec is not kept, or not all of it.
	ReasonSpecNotKept = "SpecNotKept"
	// ReasonValuesNotKept: variables of the task to fork, which is gone, have to be set again.
	ReasonValuesNotKept      = "ValuesNotKept"
	ReasonTaskExists         = "TaskExists"
	ReasonTaskRefused        = "TaskRefused"
	ReasonCheckpointOfOther  = "CheckpointOfAnotherTask"
	ReasonCheckpointNotReady = "CheckpointNotReady"
	// ReasonChildrenFollow: a rewind that takes children along waits until they have seen the last one.
	ReasonChildrenFollow = "ChildrenFollow"
)

// Reasons of Events and of entries in status.history.
const (
	EventTaskStarted = "TaskStarted"
	// EventTaskWaiting: the task begins to wait for other tasks.
	EventTaskWaiting = "TaskWaiting"
	// EventPodGated: the pod of an attempt waits for a scheduling gate that somebody has set.
	EventPodGated = "PodGated"
	// EventTaskQueued: the task begins to wait for a place among those that run at once.
	EventTaskQueued    = "TaskQueued"
	EventTaskCompleted = "TaskCompleted"
	EventTaskFailed    = "TaskFailed"
	EventTaskSuspended = "TaskSuspended"
	// EventStoppedByParent: the parent of the task has stopped it.
	EventStoppedByParent = "StoppedByParent"
	EventTaskResumed     = "TaskResumed"
	EventTaskRetried     = "TaskRetried"
	EventTaskRewound     = "TaskRewound"
	EventTaskForked      = "TaskForked"
	EventTaskAdopted     = "TaskAdopted"
	EventNothingAdopted  = "NothingAdopted"
	// EventTaskBranched: another task starts from this one.
	EventTaskBranched = "TaskBranched"
	EventTaskDeleted  = "TaskDeleted"
	// EventPhaseChanged: a contract entered a phase.
	EventPhaseChanged = "PhaseChanged"
	// EventPhaseStartMissing: no checkpoint could be taken with which a phase would have begun.
	EventPhaseStartMissing = "PhaseStartMissing"
	// EventTaskJoined: a task became part of a contract, or the child of another one.
	EventTaskJoined = "TaskJoined"
	EventPodLost    = "PodLost"
	// EventNodeUnreachable: the task begins to wait for the node that has its pod or volume.
	EventNodeUnreachable = "NodeUnreachable"
	// EventNodeLost: the pod of an attempt was lost with its node.
	EventNodeLost   = "NodeLost"
	EventVolumeLost = "VolumeLost"
	// EventVolumeReleased: a suspended task has given its volume back, or a finished one that is to be
	// deleted with its parent.
	EventVolumeReleased = "VolumeReleased"
	// EventTaskReleased: a finished task has given back what it occupied, or is being deleted.
	EventTaskReleased        = "TaskReleased"
	EventOperationRefused    = "OperationRefused"
	EventOperationFailed     = "OperationFailed"
	EventNotApplicable       = "OperationNotApplicable"
	EventCheckpointCreated   = "CheckpointCreated"
	EventFilesChanged        = "FilesChanged"
	EventCheckpointRequested = "CheckpointRequested"
	EventCheckpointCorrupted = "CheckpointCorrupted"
	// EventCheckpointHealed: a damaged checkpoint is as it was stored again.
	EventCheckpointHealed = "CheckpointHealed"
	// EventCheckpointNamed: somebody made an object for a checkpoint that the history has.
	EventCheckpointNamed = "CheckpointNamed"
	// EventTakenTogether and EventNotTakenTogether: how a set of checkpoints ended.
	EventTakenTogether    = "TakenTogether"
	EventNotTakenTogether = "NotTakenTogether"
	// EventRewoundByParent: the task follows a rewind of its parent.
	EventRewoundByParent = "RewoundByParent"
	// EventCheckpointNotPointInTime: the agent ran while a checkpoint was taken.
	EventCheckpointNotPointInTime = "CheckpointNotPointInTime"
	// EventHeadNotStored: the gitstore does not get a commit of the agent's own, which a
	// checkpoint's status.git.head names.
	EventHeadNotStored = "HeadNotStored"
	// EventCheckpointRefused: a checkpoint was not taken, or will never be in the gitstore.
	EventCheckpointRefused = "CheckpointRefused"
	EventDriftDetected     = "DriftDetected"
	// EventBudgetNearlySpent: 80 % of a limit of a budget are spent.
	EventBudgetNearlySpent = "BudgetNearlySpent"
	// EventBudgetExceeded: the agent was stopped, or is not started again, since a budget is spent.
	EventBudgetExceeded   = "BudgetExceeded"
	EventTaskHindered     = "TaskHindered"
	EventHistoryGap       = "HistoryGap"
	EventLossAcknowledged = "LossAcknowledged"
	// EventFilesCopied: a task starts with files of another one.
	EventFilesCopied             = "FilesCopied"
	EventWorkspaceRestored       = "WorkspaceRestored"
	EventDriftPreserved          = "DriftPreserved"
	EventHeadMoved               = "HeadMoved"
	EventDriftOverridden         = "DriftOverridden"
	EventRiskyToolGuarded        = "RiskyToolGuarded"
	EventRiskyToolUnguarded      = "RiskyToolUnguarded"
	EventRiskyToolPatternInvalid = "RiskyToolPatternInvalid"
	// EventToolRefused: a rule of the task refused a tool call at once.
	EventToolRefused = "ToolRefused"
	// EventApprovalRequested: a tool call waits for a person's answer.
	EventApprovalRequested = "ApprovalRequested"
	// EventToolApproved and EventToolDenied: a tool call that waited was answered.
	EventToolApproved = "ToolApproved"
	EventToolDenied   = "ToolDenied"
	// EventRequestWithdrawn: a tool call waits no longer, without an answer.
	EventRequestWithdrawn = "RequestWithdrawn"
	// EventDecisionIgnored: a decision was added that no request waits for.
	EventDecisionIgnored = "DecisionIgnored"
	// EventToolCalled: the agent called one of Clew's tools.
	EventToolCalled              = "ToolCalled"
	EventAgentSessionRefused     = "AgentSessionRefused"
	EventConversationMoved       = "ConversationMoved"
	EventConversationMoveRefused = "ConversationMoveRefused"
	EventTaskPublished           = "TaskPublished"
	EventTaskNotPublished        = "TaskNotPublished"
	EventBranchPublished         = "BranchPublished"
	EventBranchNotPublished      = "BranchNotPublished"
	EventBranchMade              = "BranchMade"
	EventBranchRemoved           = "BranchRemoved"
	EventBranchRefused           = "BranchRefused"
	EventAgentBranchMade         = "AgentBranchMade"
	EventAgentBranchNotMade      = "AgentBranchNotMade"
	EventBranchCheckedOut        = "BranchCheckedOut"
	EventBranchNotCheckedOut     = "BranchNotCheckedOut"
	EventCommitApproved          = "CommitApproved"
	EventUserMessage             = "UserMessage"
	EventAgentMessage            = "AgentMessage"
	EventHistoryExported         = "HistoryExported"
	EventHistoryImported         = "HistoryImported"
	// EventEntriesLeftOut: entries of the timeline were left out at a limit of the history, and are
	// counted in one.
	EventEntriesLeftOut = "EntriesLeftOut"
)
