package reason

import (
	"slices"

	"github.com/clew-dev/clew/api/v1alpha1"
)

// ofHistory returns the reasons of a task's conditions Durable, HistoryRecorded and
// HistoryComplete.
func ofHistory() []Reason {
	var (
		durable  = []Place{{"Task", v1alpha1.TaskDurable}, {"Checkpoint", v1alpha1.CheckpointDurable}}
		recorded = []Place{{"Task", v1alpha1.TaskHistoryRecorded}}
		complete = []Place{{"Task", v1alpha1.TaskHistoryComplete}}
	)
	return []Reason{
		{Name: v1alpha1.ReasonPushed, On: durable, Meaning: "The gitstore has the checkpoint."},
		{Name: v1alpha1.ReasonNotPushed, On: durable, Meaning: "The checkpoint is being pushed to the gitstore."},
		{Name: v1alpha1.ReasonCheckpointLost, On: slices.Concat(durable, source(), timeline()), AboutCheckpoint: true, Meaning: "Neither the gitstore nor the task's volume has the checkpoint any more.", Todo: "Restore the gitstore from a backup, or rewind to another checkpoint."},
		{Name: v1alpha1.ReasonRecorded, On: append(recorded, Place{"ConversationSnapshot", v1alpha1.SnapshotIntact}), Meaning: "The history store has every transition. For a snapshot: the store computed the digest as it stored the messages."},
		{Name: v1alpha1.ReasonNotRecorded, On: recorded, Meaning: "The history store cannot be reached; transitions wait in the status.", Todo: "Check clew-server and Postgres."},
		{Name: v1alpha1.ReasonHistoryFull, On: recorded, Meaning: "The status has no room for another transition; the task makes no further transitions.", Todo: "Check clew-server and Postgres."},
		{Name: v1alpha1.ReasonHistoryDeleted, On: append(succeeded(), timeline()...), Meaning: "The history was permanently deleted. A Task that was restored after that cannot be started.", Todo: "Delete the Task, and apply it again."},
		{Name: v1alpha1.ReasonHistoryContinued, On: append(succeeded(), complete...), Meaning: "A later Task of this name has adopted the history, and this Task was restored from a copy of before that. It cannot be started.", Todo: "Delete the Task, and apply it again with `spec.adopt: Latest`."},
		{Name: v1alpha1.ReasonHistoryGap, On: append(complete, timeline()...), Meaning: "Records of the task are permanently lost; `status.lostRecords` counts them.", Todo: "Set `spec.acknowledge` to the number in `status.lostRecords` to accept the loss."},
		{Name: v1alpha1.ReasonUncountedHistoryGap, On: complete, Meaning: "An earlier version of Clew reported lost records without counting them. They cannot be acknowledged."},
		{Name: v1alpha1.ReasonLossAcknowledged, On: append(complete, timeline()...), Meaning: "Records are lost, and `spec.acknowledge` covers them. The condition is True."},
		{Name: v1alpha1.ReasonHistoryBehind, On: append(complete, Place{"Checkpoint", v1alpha1.CheckpointReady}), Meaning: "The history store was restored from an older copy. The task's pod resends what its volume has."},
		{Name: v1alpha1.ReasonHistoryStoreWentBack, On: append(operation(), source()...), Standing: Active, Meaning: "The history store was restored from an older copy: a rewind or a start from another task waits until that task's pod has resent what the store lost.", Todo: "If no pod runs, resume the task, or rewind to a checkpoint by its name."},
		{Name: v1alpha1.ReasonSpoolDamaged, On: timeline(), Meaning: "The daemon's records on the task's volume could no longer be read."},
	}
}

// ofOperations returns the reasons of one-shot operations, some of which a
// ConversationSnapshot has as well.
func ofOperations() []Reason {
	return []Reason{
		{Name: v1alpha1.ReasonInvalidOperation, On: operation(), Meaning: "The task's state does not allow the operation.", Todo: "Apply it with a new id once the task is in another state."},
		{Name: v1alpha1.ReasonInvalidState, On: append(operation(), agentCheckout()...), Meaning: "Something that the operation needs does not exist, such as a checkpoint.", Todo: "The message says what; apply it with a new id."},
		{Name: v1alpha1.ReasonWorktreeDiffers, On: agentCheckout(), Meaning: "The worktree is not what the branch's checkpoint holds, and a checkout changes no file.", Todo: "Rewind the task to the checkpoint, and ask for the checkout with a new id."},
		{Name: v1alpha1.ReasonUnfinishedWork, On: agentCheckout(), Meaning: "The agent is in the middle of a merge, a rebase or the like.", Todo: "Have the agent finish or abort it, and ask for the checkout with a new id."},
		{Name: v1alpha1.ReasonRepositoryUnsuited, On: agentCheckout(), Meaning: "The agent has no repository of its own that is a folder .git with plain files.", Todo: "Fetch the branch from the gitstore instead."},
		{Name: v1alpha1.ReasonInvalidBranch, On: preparing(), Meaning: "The name of the branch for the current state, or of the branch to start on, is not valid.", Todo: "Choose another name, and a new id or a new Fork."},
		{Name: v1alpha1.ReasonBranchExists, On: preparing(), Meaning: "The agent's repository has a branch of that name, or one that conflicts with it.", Todo: "Choose another name, and a new id or a new Fork."},
		{Name: v1alpha1.ReasonRewindUndone, On: operation(), Meaning: "A rewind failed and was undone; its cause was lost.", Todo: "Apply it with a new id."},
		{Name: v1alpha1.ReasonCommitNotFound, On: append(operation(), published()...), Meaning: "The commit is neither one of the task's checkpoints' nor in the history that it started from. To be published, the commit that the agent had checked out must be in the gitstore.", Todo: "Name another one, or a checkpoint, and apply the rewind with a new id.", TodoWhenPublishing: "Resume the task, and have it leave out of its commits what the event HeadNotStored names: its next checkpoint is published by itself. To try the same one again, change `publish.id`."},
		{Name: v1alpha1.ReasonPathNotFound, On: operation(), Meaning: "A path of the rewind selects nothing: neither its target nor the worktree has such a file.", Todo: "Correct `rewind.paths`, and apply the rewind with a new id."},
		{Name: v1alpha1.ReasonPositionNotFound, On: append(append(operation(), source()...), Place{"ConversationSnapshot", v1alpha1.SnapshotReady}), Meaning: "The conversation has no such message or moment.", Todo: "Name another one: `kubectl clew task history` prints them."},
	}
}

// ofPublishing returns the reasons of a task's condition Published, and of the branches that
// Checkpoints push.
func ofPublishing() []Reason {
	const newID = "Remove the cause, then change `publish.id`."
	return []Reason{
		{Name: v1alpha1.ReasonPublished, On: published(), Meaning: "The task's work is at the repository; `status.publish` says where."},
		{Name: v1alpha1.ReasonPublishPending, On: published(), Meaning: "The task is not in the state that `publish.when` names, or its newest checkpoint has yet to be published. For a branch of a Checkpoint: it will be pushed, once no other one is."},
		{Name: v1alpha1.ReasonPushAnnounced, On: published(), Meaning: "A pod has announced what it will push, so that it is known later whose that is, and the next pod pushes it."},
		{Name: v1alpha1.ReasonPublishing, On: published(), Meaning: "A pod pushes the task's work to the repository."},
		{Name: v1alpha1.ReasonNothingToPublish, On: published(), Meaning: "The task has changed nothing since it started. The condition is True."},
		{Name: v1alpha1.ReasonDiverged, On: published(), Meaning: "Others have pushed to the branch, and nothing of theirs was discarded.", Todo: "Set `publish.branch` to another branch, or `publish.onDiverged` to ForceWithLease to discard theirs."},
		{Name: v1alpha1.ReasonPublishRefused, On: published(), Meaning: "The repository's host refused the push. The message has what it said.", Todo: newID},
		{Name: v1alpha1.ReasonPublishUnauthorized, On: published(), Meaning: "The repository's host does not let the credentials push.", Todo: "Correct the Secret, then change `publish.id`."},
		{Name: v1alpha1.ReasonProtectedPaths, On: published(), Meaning: "The work changes files that `publish.protectedPaths` selects; `status.publish.protectedFiles` has the first of them.", Todo: "Review the checkpoint, and to agree set `publish.approvedCommit` to `status.publish.heldCommit`. For a branch of a Checkpoint, the fields are in its entry of `branches`."},
		{Name: v1alpha1.ReasonPublishFailed, On: published(), Meaning: "The pod that publishes failed; another one follows, ten times at most.", Todo: "The message says why; see also the manager's log. If no other pod follows, remove the cause, then change `publish.id`."},
	}
}

// ofOthers returns the reasons of Checkpoints, ConversationSnapshots and Forks.
func ofOthers() []Reason {
	var (
		ready    = []Place{{"Checkpoint", v1alpha1.CheckpointReady}}
		snapshot = []Place{{"ConversationSnapshot", v1alpha1.SnapshotReady}}
		intact   = []Place{{"Checkpoint", v1alpha1.CheckpointIntact}, {"ConversationSnapshot", v1alpha1.SnapshotIntact}}
	)
	return []Reason{
		{Name: v1alpha1.ReasonTaken, On: ready, Meaning: "The checkpoint was taken and recorded."},
		{Name: v1alpha1.ReasonTakingTogether, On: ready, Meaning: "The checkpoints of a set are being taken."},
		{Name: v1alpha1.ReasonTakenTogether, On: slices.Concat(ready, timeline()), AboutCheckpoint: true, Meaning: "The checkpoints of a set were taken together: all its agents were stopped at one moment."},
		{Name: v1alpha1.ReasonNotTakenTogether, On: slices.Concat(ready, operation(), timeline()), AboutCheckpoint: true, Meaning: "The checkpoints of a set were not all taken while all its agents were stopped; those that were taken are valid, each of its own task.", Todo: "Apply another Checkpoint with `scope: Contract`, under another name."},
		{Name: v1alpha1.ReasonNotASupervisor, On: ready, Meaning: "The scope Contract is for a supervisor, and the task is a worker.", Todo: "Delete the Checkpoint, and name a supervisor, or set `scope` to Task."},
		{Name: v1alpha1.ReasonAnotherSet, On: ready, Meaning: "Another set of the supervisor is being taken, or has just ended; this one begins a minute after that."},
		{Name: v1alpha1.ReasonNoChildren, On: ready, Meaning: "None of the supervisor's children has run, so there is no set to take; it is taken when one has."},
		{Name: v1alpha1.ReasonTooManyChildren, On: ready, Meaning: "More of the supervisor's children have run than a set of checkpoints may have; it is taken when they are fewer.", Todo: "Delete children that have finished; or delete the Checkpoint, and take one of each task."},
		{Name: v1alpha1.ReasonTaskStopped, On: ready, Meaning: "The task is not running, and its last checkpoint already holds the requested state."},
		{Name: v1alpha1.ReasonRequested, On: ready, Meaning: "The checkpoint was requested from the task's daemon."},
		{Name: v1alpha1.ReasonTaskNotFound, On: slices.Concat(ready, snapshot, []Place{{"Checkpoint", OriginBranch}}), Meaning: "There is no such Task.", Todo: "Create it, or use a different one."},
		{Name: v1alpha1.ReasonTaskNotStarted, On: ready, Meaning: "The task has not run yet, so there is nothing to take; the checkpoint is taken when it runs."},
		{Name: v1alpha1.ReasonVerified, On: intact, Meaning: "The stored data is as it was stored: it matches its digests."},
		{Name: v1alpha1.ReasonCorrupted, On: slices.Concat(intact, operation(), snapshot, source()), Meaning: "The stored data was found damaged.", Todo: "Use the checkpoint that the message names, or restore the store from a backup."},
		{Name: v1alpha1.ReasonResolved, On: snapshot, Meaning: "The position is resolved and its digest known."},
		{Name: v1alpha1.ReasonNoConversation, On: snapshot, Meaning: "The task has no conversation yet."},
		{Name: v1alpha1.ReasonHistoryUnavailable, On: slices.Concat(operation(), snapshot, source()), Standing: Active, Meaning: "The history store cannot be reached, or has not answered in time.", Todo: "Check clew-server and Postgres."},
		{Name: v1alpha1.ReasonForked, On: fork(), Meaning: "The Task of every variant exists."},
		{Name: v1alpha1.ReasonWaitingForSource, On: fork(), Meaning: "The task to fork has no checkpoint yet."},
		{Name: v1alpha1.ReasonSpecNotKept, On: fork(), Meaning: "The task to fork is gone, and its spec is not kept with its history, or a part of it that may be secret is not.", Todo: "Apply a Task with `startFrom`, which has a spec of its own."},
		{Name: v1alpha1.ReasonValuesNotKept, On: fork(), Meaning: "The task to fork is gone, and the values of environment variables that may be secret are not kept.", Todo: "Apply a new Fork that sets them in `template.env` of each variant; the message lists them."},
		{Name: v1alpha1.ReasonTaskRefused, On: fork(), Meaning: "A policy or a quota of the namespace refuses the new Task.", Todo: "Change what the message names; the Task is tried again."},
		{Name: v1alpha1.ReasonTaskExists, On: fork(), Meaning: "A Task with a variant's name exists, and the Fork did not create it.", Todo: "Delete it, or rename the variant."},
		{Name: v1alpha1.ReasonCheckpointOfOther, On: slices.Concat(source(), operation(), snapshot), Meaning: "The checkpoint belongs to another task.", Todo: "Name one of this task."},
		{Name: v1alpha1.ReasonChildrenFollow, On: operation(), Standing: Active, Meaning: "A rewind that takes children along waits until those have seen the last one that does.", Todo: "Look at the children that the message names; one that is being rewound follows afterwards."},
		{Name: v1alpha1.ReasonCheckpointNotReady, On: slices.Concat(source(), operation(), snapshot), Standing: Active, Meaning: "The checkpoint has not been taken or sent to the gitstore yet."},
	}
}

// ofTimeline returns the reasons of Events and of entries of the timeline.
func ofTimeline() []Reason {
	checkpoint := append(timeline(), Place{"Checkpoint", Timeline})
	return []Reason{
		{Name: v1alpha1.EventTaskStarted, On: timeline(), Meaning: "The task's first attempt was started."},
		{Name: v1alpha1.EventTaskWaiting, On: timeline(), Meaning: "The task began to wait for other tasks before it starts: for those in `spec.dependsOn`, for its parent, or for the supervisor that leads its contract."},
		{Name: v1alpha1.EventTaskQueued, On: timeline(), Meaning: "The task began to wait for a place among those that run at once."},
		{Name: v1alpha1.EventPodGated, On: timeline(), Meaning: "The pod of an attempt began to wait for a scheduling gate that somebody has set, such as the cluster's own queue."},
		{Name: v1alpha1.EventTaskCompleted, On: timeline(), Meaning: "The agent exited with 0."},
		{Name: v1alpha1.EventTaskFailed, On: timeline(), Meaning: "The task failed and is not retried."},
		{Name: v1alpha1.EventTaskSuspended, On: timeline(), Meaning: "The task was suspended."},
		{Name: v1alpha1.EventBudgetNearlySpent, On: timeline(), Meaning: "80 % of a limit of a budget are spent, of the task, its contract or its namespace.", Todo: "The message says of which; raise it in time, if the work is worth it."},
		{Name: v1alpha1.EventTaskResumed, On: timeline(), Meaning: "The task continues."},
		{Name: v1alpha1.EventTaskRetried, On: timeline(), Meaning: "Another attempt follows one that failed."},
		{Name: v1alpha1.EventTaskRewound, On: timeline(), Meaning: "The task was rewound."},
		{Name: v1alpha1.EventTaskAdopted, On: timeline(), Meaning: "The Task was applied anew and continues the history of the last one of its name."},
		{Name: v1alpha1.EventNothingAdopted, On: timeline(), Meaning: "The Task was to continue a former one of its name, found none, and starts anew."},
		{Name: v1alpha1.EventTaskForked, On: append(timeline(), Place{"Fork", Timeline}), Meaning: "The task was created from another one."},
		{Name: v1alpha1.EventTaskBranched, On: timeline(), AboutCheckpoint: true, Meaning: "Another task was created that starts from this one."},
		{Name: v1alpha1.EventTaskDeleted, On: timeline(), Meaning: "The Task was deleted."},
		{Name: v1alpha1.EventTaskJoined, On: timeline(), Meaning: "The task has its place in its contract, or below its parent."},
		{Name: v1alpha1.EventStoppedByParent, On: timeline(), Meaning: "The parent has begun its phase again, and the task, which had not finished, stops."},
		{Name: v1alpha1.EventRewoundByParent, On: timeline(), Meaning: "The parent was rewound to a set of checkpoints, and the task is rewound to its own in it, or is there already."},
		{Name: v1alpha1.EventPhaseChanged, On: timeline(), Meaning: "The contract that the task leads entered a phase."},
		{Name: v1alpha1.EventPhaseStartMissing, On: timeline(), AboutCheckpoint: true, Meaning: "A phase that the spec asks for was entered, and no checkpoint could be taken with which it would have begun: to begin it again goes back to an earlier one."},
		{Name: v1alpha1.EventPodLost, On: timeline(), Meaning: "An attempt's pod is gone; another attempt follows."},
		{Name: v1alpha1.EventVolumeLost, On: timeline(), Meaning: "The task's volume was lost, or left behind on a node that cannot be reached; the work is restored from the gitstore to a new one."},
		{Name: v1alpha1.EventVolumeReleased, On: timeline(), Meaning: "The volume of a suspended task was released, as `workspace.whenSuspended` says, or that of a task whose parent is to be deleted with its children, as its `onFinish` says."},
		{Name: v1alpha1.EventTaskReleased, On: timeline(), Meaning: "A finished task was released or is deleted, as `onFinish` says."},
		{Name: v1alpha1.EventOperationRefused, On: timeline(), Meaning: "A resume or rewind was refused, and nothing was changed."},
		{Name: v1alpha1.EventOperationFailed, On: timeline(), Meaning: "A resume or rewind failed."},
		{Name: v1alpha1.EventNotApplicable, On: timeline(), Meaning: "The Task was created with a resume or rewind, which is never carried out."},
		{Name: v1alpha1.EventCheckpointCreated, On: checkpoint, AboutCheckpoint: true, Meaning: "A checkpoint was taken."},
		{Name: v1alpha1.EventCheckpointHealed, On: checkpoint, AboutCheckpoint: true, Meaning: "A checkpoint that was damaged is as it was stored again."},
		{Name: v1alpha1.EventFilesChanged, On: timeline(), Meaning: "Files changed between a checkpoint and the one before it."},
		{Name: v1alpha1.EventCheckpointRequested, On: timeline(), AboutCheckpoint: true, Meaning: "Somebody requested a checkpoint."},
		{Name: v1alpha1.EventCheckpointNamed, On: timeline(), AboutCheckpoint: true, Meaning: "Somebody made an object for a checkpoint that the history has, by its number."},
		{Name: v1alpha1.EventCheckpointNotPointInTime, On: checkpoint, AboutCheckpoint: true, Meaning: "The agent ran while a checkpoint was taken, so its files may be from different moments."},
		{Name: v1alpha1.EventCheckpointRefused, On: timeline(), AboutCheckpoint: true, Meaning: "A checkpoint was not taken, or will never be in the gitstore."},
		{Name: v1alpha1.EventHeadNotStored, On: timeline(), AboutCheckpoint: true, Meaning: "The agent's own commit at a checkpoint is not in the gitstore: it, or one before it, holds a secret or a file above `checkpointPolicy.maxFileBytes`, or is not whole. The checkpoint itself is."},
		{Name: v1alpha1.EventTaskHindered, On: timeline(), Meaning: "The task is blocked; the condition Succeeded says by what."},
		{Name: v1alpha1.EventFilesCopied, On: timeline(), Meaning: "The task starts with files of another task's checkpoint."},
		{Name: v1alpha1.EventWorkspaceRestored, On: timeline(), Meaning: "The volume was lost, and the workspace was restored from the gitstore."},
		{Name: v1alpha1.EventDriftPreserved, On: append(timeline(), Place{"Task", v1alpha1.TaskDrifted}), Meaning: "Files that were changed while the task was not running were kept."},
		{Name: v1alpha1.EventDriftOverridden, On: append(timeline(), Place{"Task", v1alpha1.TaskDrifted}), Meaning: "Files that were changed while the task was not running were restored."},
		{Name: v1alpha1.EventAgentSessionRefused, On: timeline(), Meaning: "The agent did not resume its own session; the next attempt renders the conversation into its prompt."},
		{Name: v1alpha1.EventConversationMoved, On: timeline(), Meaning: "The conversation was rewound to an earlier position."},
		{Name: v1alpha1.EventConversationMoveRefused, On: timeline(), Meaning: "The conversation could not be rewound."},
		{Name: v1alpha1.EventTaskPublished, On: timeline(), AboutCheckpoint: true, Meaning: "The task's work was pushed to its repository."},
		{Name: v1alpha1.EventTaskNotPublished, On: timeline(), AboutCheckpoint: true, Meaning: "The task's work could not be pushed to its repository; the condition Published says why."},
		{Name: v1alpha1.EventBranchPublished, On: timeline(), AboutCheckpoint: true, Meaning: "A branch of a Checkpoint was pushed to the task's repository."},
		{Name: v1alpha1.EventBranchNotPublished, On: timeline(), AboutCheckpoint: true, Meaning: "A branch of a Checkpoint could not be pushed to the task's repository; `status.branches` of the Checkpoint says why."},
		{Name: v1alpha1.EventBranchMade, On: timeline(), AboutCheckpoint: true, Meaning: "The gitstore has a branch that a Checkpoint names."},
		{Name: v1alpha1.EventBranchRemoved, On: timeline(), AboutCheckpoint: true, Meaning: "A branch was removed from the gitstore, since its Checkpoint no longer names it."},
		{Name: v1alpha1.EventBranchRefused, On: timeline(), AboutCheckpoint: true, Meaning: "The gitstore refuses a branch that a Checkpoint names; `status.branches` of the Checkpoint says why."},
		{Name: v1alpha1.EventAgentBranchMade, On: timeline(), AboutCheckpoint: true, Meaning: "The agent's repository has a branch that a Checkpoint names."},
		{Name: v1alpha1.EventAgentBranchNotMade, On: timeline(), AboutCheckpoint: true, Meaning: "The agent's repository does not get a branch that a Checkpoint names; `status.branches` of the Checkpoint says why."},
		{Name: v1alpha1.EventBranchCheckedOut, On: timeline(), AboutCheckpoint: true, Meaning: "The HEAD of the agent's repository was brought to a branch of a Checkpoint."},
		{Name: v1alpha1.EventBranchNotCheckedOut, On: timeline(), AboutCheckpoint: true, Meaning: "A branch of a Checkpoint was not checked out in the agent's repository; `status.branches` of the Checkpoint says why."},
		{Name: v1alpha1.EventCommitApproved, On: timeline(), Meaning: "Somebody approved a commit that changes protected files: it may be pushed to the task's repository."},
		{Name: v1alpha1.EventUserMessage, On: timeline(), Meaning: "A person sent a message."},
		{Name: v1alpha1.EventAgentMessage, On: timeline(), Meaning: "The agent sent a message."},
		{Name: v1alpha1.EventHistoryExported, On: timeline(), Meaning: "Somebody exported the history."},
		{Name: v1alpha1.EventHistoryImported, On: timeline(), Meaning: "Somebody imported the history."},
		{Name: v1alpha1.EventEntriesLeftOut, On: timeline(), Meaning: "Entries of the timeline were left out from here on, as many as it says: the task or its namespace had reached its limit (`historyLimits`). Entries that change how the task stands have a reserve."},
	}
}

// ofTools returns the reasons of Events and of entries of the timeline about calls of tools.
func ofTools() []Reason {
	return []Reason{
		{Name: v1alpha1.EventRiskyToolGuarded, On: timeline(), Meaning: "A checkpoint holds the state before a risky call."},
		{Name: v1alpha1.EventRiskyToolUnguarded, On: timeline(), Meaning: "There may be no checkpoint of the state before a risky call."},
		{Name: v1alpha1.EventRiskyToolPatternInvalid, On: timeline(), Meaning: "A pattern in `checkpointPolicy.beforeRiskyTools` is not a valid regular expression, and is ignored."},
		{Name: v1alpha1.EventToolRefused, On: timeline(), Meaning: "A rule with the action Deny in `checkpointPolicy.beforeRiskyTools` refused a tool call at once."},
		{Name: v1alpha1.EventApprovalRequested, On: timeline(), Meaning: "A tool call waits for a person's answer."},
		{Name: v1alpha1.EventToolApproved, On: timeline(), Meaning: "Somebody approved a tool call that waited: it runs, once."},
		{Name: v1alpha1.EventToolDenied, On: timeline(), Meaning: "A tool call that waited was denied: by somebody, by the deadline, or by a rule, in an agent without hooks."},
		{Name: v1alpha1.EventRequestWithdrawn, On: timeline(), Meaning: "A tool call waits no longer, without an answer: its agent has given it up or was stopped, or a rewind has taken it back. An agent that makes the call again is asked about anew."},
		{Name: v1alpha1.EventDecisionIgnored, On: timeline(), Meaning: "A decision was added to `spec.decisions` for an id that no waiting request has. It does nothing, now and later."},
		{Name: v1alpha1.EventToolCalled, On: timeline(), Meaning: "The agent called one of Clew's tools: it took a checkpoint; it called a tool of a supervisor, and how that ended; or, in one entry for each attempt, how often it called the others."},
	}
}
