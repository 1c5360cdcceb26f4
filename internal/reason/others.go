package reason

import (
	"slices"

	"github.com/clew-dev/clew/api/v1alpha1"
)

// ofHistory are the reasons of a task's conditions Durable, HistoryRecorded and
// HistoryComplete.
func ofHistory() []Reason {
	var (
		durable  = []Place{{"Task", v1alpha1.TaskDurable}, {"Checkpoint", v1alpha1.CheckpointDurable}}
		recorded = []Place{{"Task", v1alpha1.TaskHistoryRecorded}}
		complete = []Place{{"Task", v1alpha1.TaskHistoryComplete}}
	)
	return []Reason{
		{Name: v1alpha1.ReasonPushed, On: durable, Meaning: "The gitstore has the checkpoint."},
		{Name: v1alpha1.ReasonNotPushed, On: durable, Meaning: "The checkpoint is on its way to the gitstore."},
		{Name: v1alpha1.ReasonCheckpointLost, On: slices.Concat(durable, source(), timeline()), AboutCheckpoint: true, Meaning: "Neither the gitstore nor the task's volume has the checkpoint any more.", Todo: "Restore the gitstore from a backup, or go back to another checkpoint."},
		{Name: v1alpha1.ReasonRecorded, On: append(recorded, Place{"ConversationSnapshot", v1alpha1.SnapshotIntact}), Meaning: "The history store has every transition; of a snapshot, it made the digest as it stored the messages."},
		{Name: v1alpha1.ReasonNotRecorded, On: recorded, Meaning: "The history store does not answer; transitions wait in the status.", Todo: "Look at clew-server and Postgres."},
		{Name: v1alpha1.ReasonHistoryFull, On: recorded, Meaning: "As many transitions wait in the status as fit there; the task takes no further step.", Todo: "Look at clew-server and Postgres."},
		{Name: v1alpha1.ReasonHistoryDeleted, On: append(succeeded(), timeline()...), Meaning: "The history was deleted for good. A Task that was restored since cannot be started any more.", Todo: "Delete the Task, and apply it anew."},
		{Name: v1alpha1.ReasonHistoryGap, On: append(complete, timeline()...), Meaning: "Records of the task are lost for good; `status.lostRecords` counts them.", Todo: "Set `spec.acknowledge` once you know of it."},
		{Name: v1alpha1.ReasonUncountedHistoryGap, On: complete, Meaning: "A former version of Clew told that records are lost, and did not count them. No number acknowledges that."},
		{Name: v1alpha1.ReasonLossAcknowledged, On: append(complete, timeline()...), Meaning: "Records are lost, and `spec.acknowledge` covers them. The condition is True."},
		{Name: v1alpha1.ReasonHistoryBehind, On: append(complete, Place{"Checkpoint", v1alpha1.CheckpointReady}), Meaning: "The history store was put back to an older copy. The task's pod sends again what its volume has."},
		{Name: v1alpha1.ReasonHistoryStoreWentBack, On: operation(), Meaning: "The history store was put back to an older copy: a rewind waits until the task's pod has sent again what the store lost.", Todo: "If no pod runs, resume the task, or name a checkpoint to go back to."},
		{Name: v1alpha1.ReasonSpoolDamaged, On: timeline(), Meaning: "The daemon's records on the task's volume could not be read any more."},
	}
}

// ofOperations are the reasons of one-shot operations, some of which a ConversationSnapshot has as well.
func ofOperations() []Reason {
	return []Reason{
		{Name: v1alpha1.ReasonInvalidOperation, On: operation(), Meaning: "The task's state does not allow the operation.", Todo: "Apply it with a new id once the task stands elsewhere."},
		{Name: v1alpha1.ReasonInvalidState, On: operation(), Meaning: "What the operation needs, such as a checkpoint, is not there.", Todo: "The message says what; apply it with a new id."},
		{Name: v1alpha1.ReasonInvalidBranch, On: operation(), Meaning: "No branch can have the name that is to keep what stood.", Todo: "Choose another name, and a new id."},
		{Name: v1alpha1.ReasonBranchExists, On: operation(), Meaning: "The agent's repository has a branch of that name, or one in its way.", Todo: "Choose another name, and a new id."},
		{Name: v1alpha1.ReasonRewindUndone, On: operation(), Meaning: "A rewind failed and was undone, and nobody knows any more why.", Todo: "Apply it with a new id."},
		{Name: v1alpha1.ReasonPositionNotFound, On: append(operation(), Place{"ConversationSnapshot", v1alpha1.SnapshotReady}), Meaning: "The conversation has no such message or moment.", Todo: "Name another one: `kubectl clew task history` prints them."},
	}
}

// ofOthers are the reasons of Checkpoints, ConversationSnapshots and Forks.
func ofOthers() []Reason {
	var (
		ready    = []Place{{"Checkpoint", v1alpha1.CheckpointReady}}
		snapshot = []Place{{"ConversationSnapshot", v1alpha1.SnapshotReady}}
		intact   = []Place{{"Checkpoint", v1alpha1.CheckpointIntact}, {"ConversationSnapshot", v1alpha1.SnapshotIntact}}
	)
	return []Reason{
		{Name: v1alpha1.ReasonTaken, On: ready, Meaning: "The checkpoint was taken and recorded."},
		{Name: v1alpha1.ReasonTaskStopped, On: ready, Meaning: "The task does not run, and its last checkpoint stands for this one."},
		{Name: v1alpha1.ReasonRequested, On: ready, Meaning: "The task's daemon is asked to take it."},
		{Name: v1alpha1.ReasonTaskNotFound, On: append(ready, snapshot...), Meaning: "There is no such Task.", Todo: "Create it, or name another one."},
		{Name: v1alpha1.ReasonTaskNotStarted, On: ready, Meaning: "The task has not run yet and has nothing to keep; the checkpoint is taken when it runs."},
		{Name: v1alpha1.ReasonVerified, On: []Place{{"ConversationSnapshot", v1alpha1.SnapshotIntact}}, Meaning: "What is stored gives the digest that was recorded."},
		{Name: v1alpha1.ReasonCorrupted, On: slices.Concat(intact, operation(), snapshot), Meaning: "What is stored was found damaged.", Todo: "Restore the store from a backup."},
		{Name: v1alpha1.ReasonResolved, On: snapshot, Meaning: "The position is resolved and its digest known."},
		{Name: v1alpha1.ReasonNoConversation, On: snapshot, Meaning: "The task has no conversation yet."},
		{Name: v1alpha1.ReasonHistoryUnavailable, On: append(operation(), snapshot...), Meaning: "The history store does not answer.", Todo: "Look at clew-server and Postgres."},
		{Name: v1alpha1.ReasonForked, On: fork(), Meaning: "The Task of every variant exists."},
		{Name: v1alpha1.ReasonWaitingForSource, On: fork(), Meaning: "The task to fork has no checkpoint yet."},
		{Name: v1alpha1.ReasonTaskExists, On: fork(), Meaning: "A Task of a variant's name exists, and is not the Fork's.", Todo: "Delete it, or rename the variant."},
		{Name: v1alpha1.ReasonCheckpointOfOther, On: slices.Concat(source(), operation(), snapshot), Meaning: "The checkpoint is one of another task.", Todo: "Name one of this task."},
		{Name: v1alpha1.ReasonCheckpointNotReady, On: slices.Concat(source(), operation(), snapshot), Standing: Active, Meaning: "The checkpoint has not been taken or sent to the gitstore yet."},
	}
}

// ofTimeline are the reasons of Events and of entries of the timeline.
func ofTimeline() []Reason {
	checkpoint := append(timeline(), Place{"Checkpoint", Timeline})
	return []Reason{
		{Name: v1alpha1.EventTaskStarted, On: timeline(), Meaning: "The task's first attempt began."},
		{Name: v1alpha1.EventTaskCompleted, On: timeline(), Meaning: "The agent exited with 0."},
		{Name: v1alpha1.EventTaskFailed, On: timeline(), Meaning: "The task failed for good."},
		{Name: v1alpha1.EventTaskSuspended, On: timeline(), Meaning: "The task was suspended."},
		{Name: v1alpha1.EventTaskResumed, On: timeline(), Meaning: "The task goes on."},
		{Name: v1alpha1.EventTaskRetried, On: timeline(), Meaning: "Another attempt follows one that failed."},
		{Name: v1alpha1.EventTaskRewound, On: timeline(), Meaning: "The task was taken back."},
		{Name: v1alpha1.EventTaskForked, On: append(timeline(), Place{"Fork", Timeline}), Meaning: "The task was made from another one."},
		{Name: v1alpha1.EventTaskDeleted, On: timeline(), Meaning: "The Task was deleted."},
		{Name: v1alpha1.EventPodLost, On: timeline(), Meaning: "An attempt's pod is gone; another attempt follows."},
		{Name: v1alpha1.EventVolumeLost, On: timeline(), Meaning: "The task's volume is gone; it is restored from the gitstore."},
		{Name: v1alpha1.EventOperationRefused, On: timeline(), Meaning: "A resume or rewind was refused, and nothing was changed."},
		{Name: v1alpha1.EventOperationFailed, On: timeline(), Meaning: "A resume or rewind failed."},
		{Name: v1alpha1.EventCheckpointCreated, On: checkpoint, AboutCheckpoint: true, Meaning: "A checkpoint was taken."},
		{Name: v1alpha1.EventCheckpointRequested, On: timeline(), AboutCheckpoint: true, Meaning: "Somebody asked for a checkpoint."},
		{Name: v1alpha1.EventCheckpointNotPointInTime, On: checkpoint, AboutCheckpoint: true, Meaning: "The agent ran while a checkpoint was taken, so that it may show files of two moments."},
		{Name: v1alpha1.EventCheckpointRefused, On: timeline(), AboutCheckpoint: true, Meaning: "A checkpoint was not taken, or will never be in the gitstore."},
		{Name: v1alpha1.EventTaskHindered, On: timeline(), Meaning: "Something keeps the task from its work; the condition Succeeded says what."},
		{Name: v1alpha1.EventWorkspaceRestored, On: timeline(), Meaning: "The volume was lost, and the workspace was restored from the gitstore."},
		{Name: v1alpha1.EventDriftPreserved, On: timeline(), Meaning: "Files that were changed while the task slept were kept."},
		{Name: v1alpha1.EventDriftOverridden, On: timeline(), Meaning: "Files that were changed while the task slept were put back."},
		{Name: v1alpha1.EventRiskyToolGuarded, On: timeline(), Meaning: "A checkpoint holds what was there before a risky call."},
		{Name: v1alpha1.EventRiskyToolUnguarded, On: timeline(), Meaning: "There may be no checkpoint of what was there before a risky call."},
		{Name: v1alpha1.EventRiskyToolPatternInvalid, On: timeline(), Meaning: "A pattern of `checkpointPolicy.beforeRiskyTools` is not a regular expression, and is left out."},
		{Name: v1alpha1.EventAgentSessionRefused, On: timeline(), Meaning: "The agent did not take up its own session again; the next attempt tells it the conversation in its prompt."},
		{Name: v1alpha1.EventConversationMoved, On: timeline(), Meaning: "The conversation was taken back to an earlier position."},
		{Name: v1alpha1.EventConversationMoveRefused, On: timeline(), Meaning: "The conversation could not be taken back."},
		{Name: v1alpha1.EventUserMessage, On: timeline(), Meaning: "A person said something."},
		{Name: v1alpha1.EventAgentMessage, On: timeline(), Meaning: "The agent said something."},
		{Name: v1alpha1.EventHistoryExported, On: timeline(), Meaning: "Somebody exported the history."},
		{Name: v1alpha1.EventHistoryImported, On: timeline(), Meaning: "Somebody imported the history."},
	}
}
