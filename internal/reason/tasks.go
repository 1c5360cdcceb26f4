package reason

import (
	"slices"

	"github.com/clew-dev/clew/api/v1alpha1"
)

const (
	// continues is what happens once a person has removed the cause.
	continues = "The task then continues by itself."
	// newResume is what to do about what has ended a task.
	newResume = "Fix the cause, then apply a resume with a new id."
)

// ofTasks returns the reasons of a task's conditions Succeeded, WorkspaceReady, VolumeReleased,
// VolumeSized and Drifted.
func ofTasks() []Reason {
	const (
		// newPublishID is what to do about what keeps a task's work from being published.
		newPublishID = "Remove the cause, then change `publish.id`."
	)
	sized := append([]Place{{"Task", v1alpha1.TaskVolumeSized}}, timeline()...)
	return []Reason{
		{Name: v1alpha1.ReasonPending, On: append(succeeded(), fork()...), Standing: Active, Meaning: "Nothing has been started yet."},
		{Name: v1alpha1.ReasonPreparing, On: append(succeeded(), Place{"Task", v1alpha1.TaskWorkspaceReady}, Place{"Task", "status.attempts"}), Standing: Active, Meaning: "The workspace is being prepared. Of an attempt that has ended: its resume was not carried out, and the agent has not run."},
		{Name: v1alpha1.ReasonWorkspacePrepared, On: []Place{{"Task", v1alpha1.TaskWorkspaceReady}}, Meaning: "The workspace is prepared."},
		{Name: v1alpha1.ReasonReleased, On: []Place{{"Task", v1alpha1.TaskVolumeReleased}, {"Task", v1alpha1.TaskWorkspaceReady}}, Meaning: "The task has given its volume back. A resume makes another one, and restores the work to it."},
		{Name: v1alpha1.ReasonReleasePending, On: []Place{{"Task", v1alpha1.TaskVolumeReleased}}, Meaning: "The task is to give its volume back, or to be deleted, and waits until everything is known to be stored elsewhere, its work to be published, or its children to finish, which would be deleted with it.", Todo: "The message says what it waits for, and what helps if that does not happen by itself."},
		{Name: v1alpha1.ReasonReleasingChildren, On: []Place{{"Task", v1alpha1.TaskVolumeReleased}}, Meaning: "The Task is to be deleted with its children, as `onFinish` says. They have finished, and give their volumes back first, as soon as everything is known to be stored elsewhere.", Todo: "The message names those that have not yet; their own condition VolumeReleased says what each waits for."},
		{Name: v1alpha1.ReasonVolumeGrowing, On: sized, Meaning: "The volume grows to `workspace.size`."},
		{Name: v1alpha1.ReasonVolumeGrown, On: sized[:1], Meaning: "The volume has the size that `workspace.size` asks for."},
		{Name: v1alpha1.ReasonNextVolume, On: sized, Meaning: "The storage class does not expand volumes, so the task's next volume has the new size.", Todo: "To get it now, set `workspace.whenSuspended: Release`, suspend the task, and resume it once its volume is released."},
		{Name: v1alpha1.ReasonGrowthRefused, On: sized, Meaning: "The API server does not let the volume grow.", Todo: "Remove the cause, such as a quota, then change the task or its PersistentVolumeClaim; it is tried again then."},
		{Name: v1alpha1.ReasonRunning, On: succeeded(), Standing: Active, Meaning: "The agent runs."},
		{Name: v1alpha1.ReasonWaitingForApproval, On: append(succeeded(), Place{"Task", "status.attempts"}), Standing: Active, Meaning: "A tool call waits for a person's answer, as `status.requests` says; its deadline denies it. Of an attempt that has ended: the agent was stopped at the call.", Todo: "Run `kubectl clew approve` or `kubectl clew deny`, or add to `spec.decisions`. " + continues},
		{Name: v1alpha1.ReasonSuspending, On: succeeded(), Standing: Active, Meaning: "The agent is being stopped with a checkpoint."},
		{Name: v1alpha1.ReasonStopping, On: succeeded(), Standing: Active, Meaning: "The agent is being stopped with a checkpoint, since a limit of the spec was reached."},
		{Name: v1alpha1.ReasonSuspended, On: succeeded(), Standing: Resting, Meaning: "The task was suspended, and its last checkpoint is its state.", Todo: "Set `operatingMode: Running`, or run `kubectl clew resume`."},
		{Name: v1alpha1.ReasonRewinding, On: succeeded(), Standing: Active, Meaning: "The task is being rewound to an earlier moment."},
		{Name: v1alpha1.ReasonRewound, On: succeeded(), Standing: Resting, Meaning: "The task was rewound, and waits for a resume.", Todo: "Check the result, then run `kubectl clew resume`."},
		{Name: v1alpha1.ReasonPhaseRestarted, On: append(append(succeeded(), operation()...), Place{"Task", "status.attempts"}), Standing: Resting, Meaning: "The task's parent was resumed with the mode RestartPhase, which has stopped the children that had not finished, and closed what they were to be resumed for.", Todo: "To continue the task, run `kubectl clew resume`."},
		{Name: v1alpha1.ReasonRetrying, On: succeeded(), Standing: Active, Meaning: "The last attempt failed or was lost; another one follows."},
		{Name: v1alpha1.ReasonCompleting, On: succeeded(), Standing: Active, Meaning: "The agent exited with 0; its last checkpoint is being pushed to the gitstore."},
		{Name: v1alpha1.ReasonCompleted, On: succeeded(), Standing: Done, Meaning: "The agent exited with 0, and its last checkpoint is safe."},
		{Name: v1alpha1.ReasonAgentFailed, On: succeeded(), Meaning: "The agent exited with a code other than 0.", Todo: "Read `kubectl clew task history` and the pod's log; resume, or rewind first."},
		{Name: v1alpha1.ReasonBackoffLimit, On: succeeded(), Meaning: "The agent failed more often than `backoffLimit` allows.", Todo: newResume},
		{Name: v1alpha1.ReasonDeadlineExceeded, On: succeeded(), Meaning: "The agent has run for as long as `deadlineSeconds` allows, and was stopped with a checkpoint.", Todo: "Raise `deadlineSeconds` and apply a resume with a new id, in one change."},
		{Name: v1alpha1.ReasonBudgetExceeded, On: append(succeeded(), timeline()...), Standing: Resting, Watched: true, Meaning: "All is spent that the budget of the task, of its contract or of its namespace allows. The agent was stopped with a checkpoint, or has not started yet.", Todo: "Raise the limit that the message names and apply a resume with a new id, in one change if it is the task's own or, of a supervisor, its contract's. A task that has yet to start does so by itself."},
		{Name: v1alpha1.ReasonAgentUnauthorized, On: succeeded(), Meaning: "The model's API does not accept the agent's credentials. Not retried.", Todo: "Correct the Secret with the agent's key, then apply a resume with a new id."},
		{Name: v1alpha1.ReasonAgentOutOfCredit, On: succeeded(), Meaning: "The account has no credit or quota left at the model's API. Not retried.", Todo: "Add credit, then apply a resume with a new id."},
		{Name: v1alpha1.ReasonAgentRateLimited, On: succeeded(), Standing: Active, Meaning: "The model's API asks for a pause; another attempt follows after it."},
		{Name: v1alpha1.ReasonAgentTooOld, On: succeeded(), Meaning: "The agent's program is older than the oldest version that works. Not retried.", Todo: "Use an image with a newer version, then apply a resume with a new id."},
		{Name: v1alpha1.ReasonAgentOptionsInvalid, On: succeeded(), Meaning: "The agent's program does not accept its arguments. Not retried.", Todo: newResume},
		{Name: v1alpha1.ReasonProgramNotFound, On: succeeded(), Meaning: "The program named by a container's command does not exist in the container. Not retried.", Todo: newResume},
		{Name: v1alpha1.ReasonProgramNotExecutable, On: succeeded(), Meaning: "The program named by a container's command cannot be executed. Not retried.", Todo: newResume},
		{Name: v1alpha1.ReasonInvalidTemplate, On: source(), Meaning: "The pod's template is not valid, or the Task of a Fork was refused.", Todo: "Correct the template as the message says."},
		{Name: v1alpha1.ReasonVolumeUnavailable, On: succeeded(), Standing: Active, Meaning: "The task's volume cannot be created or mounted.", Todo: "Check the PersistentVolumeClaim and its storage class, and correct them. " + continues},
		{Name: v1alpha1.ReasonImageUnavailable, On: succeeded(), Standing: Active, Meaning: "An image cannot be pulled.", Todo: "Correct the image's name or the pull secret. " + continues},
		{Name: v1alpha1.ReasonPodRefused, On: append(succeeded(), published()...), Standing: Active, Meaning: "The API server or the kubelet refuses the pod.", Todo: "Correct what the message says. " + continues, TodoWhenPublishing: "Correct what the message says. The work is then published by itself within a day of the first refusal; after that, change `publish.id` as well."},
		{Name: v1alpha1.ReasonUnschedulable, On: succeeded(), Standing: Active, Meaning: "No node has room for the pod.", Todo: "Add nodes, or request less. " + continues},
		{Name: v1alpha1.ReasonDaemonUnavailable, On: succeeded(), Standing: Active, Meaning: "A container of the pod is crash-looping.", Todo: "Read that container's log."},
		{Name: v1alpha1.ReasonReplaced, On: []Place{{"Task", "status.attempts"}}, Meaning: "The attempt's pod did not start, and the Task was changed: a new pod follows."},
		{Name: v1alpha1.ReasonPlaceGivenUp, On: append(timeline(), Place{"Task", "status.attempts"}), Meaning: "The attempt's agent had not started for minutes, and its place among those that run at once was given to a task that waited. Another attempt follows when the task has a place again.", Todo: "The message of the event says what was in the way."},
		{Name: v1alpha1.ReasonNodeUnreachable, On: append(succeeded(), timeline()...), Standing: Active, Meaning: "The node that has the task's pod or its volume cannot be reached.", Todo: "Bring the node back. With `nodeLoss.policy: Replace` the task goes on without it after `nodeLoss.afterSeconds`; the message says when, or what it waits for."},
		{Name: v1alpha1.ReasonNodeLost, On: append(timeline(), Place{"Task", "status.attempts"}), Meaning: "The attempt's pod was lost with its node. Nothing that it may still send is accepted; another attempt follows elsewhere."},
		{Name: v1alpha1.ReasonPromptNotFound, On: succeeded(), Standing: Active, Meaning: "A ConfigMap or Secret that `promptFrom` or a container's environment names does not exist.", Todo: "Create it. " + continues},
		{Name: v1alpha1.ReasonCredentialsNotFound, On: append(preparing(), published()...), Meaning: "The Secret with the repository's credentials does not exist, or lacks a key.", Todo: "Create or complete it, then apply a resume with a new id.", TodoWhenPublishing: "Create or complete it, then change `publish.id`."},
		{Name: v1alpha1.ReasonDeleting, On: succeeded(), Standing: Active, Meaning: "The Task is being deleted, and its history is recorded first."},
		{Name: v1alpha1.ReasonRepositoryNotFound, On: append(preparing(), published()...), Meaning: "The repository does not exist, or the credentials do not grant access to it.", Todo: newResume, TodoWhenPublishing: newPublishID},
		{Name: v1alpha1.ReasonRepositoryUnreachable, On: append(preparing(), published()...), DaemonProblem: true, Meaning: "The repository's server cannot be reached.", Todo: "Check the network policy and the server.", TodoWhenPublishing: "Check the network policy and the server. The work is then published by itself within a day of the first failure; after that, change `publish.id` as well."},
		{Name: v1alpha1.ReasonAuthenticationFailed, On: preparing(), Meaning: "The repository does not accept the credentials, or its host has another key than `known_hosts` says.", Todo: newResume},
		{Name: v1alpha1.ReasonRefNotFound, On: preparing(), Meaning: "The repository has no such branch, tag or commit.", Todo: newResume},
		{Name: v1alpha1.ReasonCheckpointNotFound, On: append(slices.Concat(preparing(), published(), fork()), Place{"ConversationSnapshot", v1alpha1.SnapshotReady}, Place{"Checkpoint", v1alpha1.CheckpointReady}), Meaning: "There is no such checkpoint.", Todo: "Name another one: `kubectl clew checkpoint list` lists them.", TodoWhenPublishing: "Restore the gitstore from a backup, or resume the task until it has another checkpoint; then change `publish.id`."},
		{Name: v1alpha1.ReasonCheckpointCorrupted, On: append(slices.Concat(preparing(), published(), fork()), Place{"Checkpoint", Timeline}), AboutCheckpoint: true, Meaning: "The checkpoint's objects are damaged.", Todo: "Rewind to another checkpoint, or restore the gitstore from a backup.", TodoWhenPublishing: "Restore the gitstore from a backup, or resume the task until it has another checkpoint. The work is then published by itself; change `publish.id` only if the message says that it is to be requested again."},
		{Name: v1alpha1.ReasonVolumeFull, On: preparing(), DaemonProblem: true, NoCheckpoints: true, Meaning: "The task's volume is full.", Todo: "Raise `workspace.size`, or delete files on it with a pod of your own."},
		{Name: v1alpha1.ReasonDriftDetected, On: append(append(preparing(), timeline()...), Place{"Task", v1alpha1.TaskDrifted}, Place{"Checkpoint", v1alpha1.CheckpointReady}), Standing: Resting, Meaning: "Files of the worktree were changed while the task was not running.", Todo: "Look at `kubectl clew drift`, then apply a resume with a new id and `onDrift: Preserve` or `Override`."},
		{Name: v1alpha1.ReasonHeadMoved, On: append(timeline(), Place{"Task", v1alpha1.TaskDrifted}), Meaning: "The HEAD of the agent's repository was moved while the task was not running. It is a warning: the task continues with it, and its files are as Clew left them."},
		{Name: v1alpha1.ReasonNoDrift, On: []Place{{"Task", v1alpha1.TaskDrifted}}, Meaning: "The worktree is as Clew last left it."},
	}
}

// ofWaiting returns the reasons why a task waits for other tasks, or for a place among them.
func ofWaiting() []Reason {
	return []Reason{
		{Name: v1alpha1.ReasonWaitingForTasks, On: succeeded(), Standing: Active, Watched: true, Meaning: "Tasks in `spec.dependsOn` have not ended yet; `status.dependencies` says how they stand."},
		{Name: v1alpha1.ReasonDependencyFailed, On: succeeded(), Standing: Active, Watched: true, Meaning: "A task in `spec.dependsOn` that was to complete has failed.", Todo: "Resume that one, or take it out of `spec.dependsOn`. " + continues},
		{Name: v1alpha1.ReasonDependencyCircle, On: succeeded(), Standing: Active, Watched: true, Meaning: "Tasks wait for each other, so that none of them can start.", Todo: "Take one of them out of another one's `spec.dependsOn`. " + continues},
		{Name: v1alpha1.ReasonQueued, On: succeeded(), Standing: Active, Meaning: "As many tasks run as the installation allows at once, or as many children as `children.atOnce` of their parent does, or somebody has put a scheduling gate on the pod. The task starts by itself when it is its turn, or when the gate is lifted."},
		{Name: v1alpha1.ReasonWaitingForContract, On: succeeded(), Standing: Active, Watched: true, Meaning: "Another supervisor leads the contract, and has not finished. A contract has one at a time."},
		{Name: v1alpha1.ReasonContractFull, On: succeeded(), Standing: Active, Watched: true, Meaning: "The contract has 1,000 tasks, as many as one can have.", Todo: "Delete tasks that are not needed any more, or use another contract. " + continues},
		{Name: v1alpha1.ReasonPhaseUnknown, On: succeeded(), Standing: Active, Watched: true, Meaning: "The task names a phase that its contract does not have.", Todo: "Set `contract.phase` to one of the phases in the message, or leave it out. " + continues},
		{Name: v1alpha1.ReasonParentNotFound, On: succeeded(), Standing: Active, Watched: true, Meaning: "The parent does not exist, or has not started. The task starts when it has."},
		{Name: v1alpha1.ReasonParentRefused, On: succeeded(), Standing: Active, Watched: true, Meaning: "The task cannot be a child of the one that `parentRef` names.", Todo: "The message says why. `parentRef` is immutable: delete the Task, and apply it with another parent, or with none."},
		{Name: v1alpha1.ReasonChildLimitReached, On: succeeded(), Standing: Active, Watched: true, Meaning: "The parent has as many children as its `children.maximum` allows.", Todo: "Raise it, or delete a child. " + continues},
	}
}

// ofDaemons returns the problems of a daemon while its agent runs.
func ofDaemons() []Reason {
	return []Reason{
		{Name: v1alpha1.ReasonRecordingFailed, On: succeeded(), DaemonProblem: true, NoCheckpoints: true, Meaning: "The agent's output cannot be recorded, and is held back.", Todo: "Check the task's volume and clew-server."},
		{Name: v1alpha1.ReasonCheckpointFailed, On: succeeded(), DaemonProblem: true, NoCheckpoints: true, Meaning: "Checkpoints cannot be taken; the agent continues without them.", Todo: "The message says why."},
		{Name: v1alpha1.ReasonHistoryLimitReached, On: append(succeeded(), Place{"Task", v1alpha1.TaskHistoryComplete}), DaemonProblem: true, Meaning: "The task or its namespace has reached its limit in the history. Output waits for some minutes, and is then left out and counted.", Todo: "Raise the limit, or delete histories."},
		{Name: v1alpha1.ReasonModelErrors, On: succeeded(), DaemonProblem: true, Meaning: "The model's API returns errors, and the agent retries by itself."},
		{Name: v1alpha1.ReasonVolumeOutdated, On: append(preparing(), timeline()...), DaemonProblem: true, Meaning: "The history has records that the volume never had. The attempt ends; the next one restores the workspace."},
	}
}

// ofStarts returns the reasons of what a task starts from, and of what keeps its workspace from being
// prepared.
func ofStarts() []Reason {
	return []Reason{
		{Name: v1alpha1.ReasonSourceNotFound, On: source(), Standing: Active, Meaning: "The task to start from does not exist, and no history of one with this name is kept.", Todo: "Create it, or use a different one."},
		{Name: v1alpha1.ReasonHistoryNotGranted, On: source(), Standing: Active, Meaning: "The history that the task is to continue or to start from was left by an earlier namespace of the same name. It is not this namespace's.", Todo: "Ask an administrator to grant it with `historyGrants` in the values of Clew's chart; the manager's log has the value. To begin without it, set `adopt: Never`, or leave `startFrom` out of a new Task. " + continues},
		{Name: v1alpha1.ReasonSourceAmbiguous, On: source(), Meaning: "Several tasks had the name of the one to start from, and none of them exists any more.", Todo: "Apply a new Task or Fork that names the source's UID as well; the message lists them."},
		{Name: v1alpha1.ReasonRepositoryMismatch, On: source(), Meaning: "The task to start from works on another repository.", Todo: "Name the same repository."},
		{Name: v1alpha1.ReasonServerUnreachable, On: preparing(), Meaning: "The task's pod cannot reach clew-server.", Todo: "Check clew-server's pods and the network policy."},
		{Name: v1alpha1.ReasonGitStoreUnreachable, On: append(preparing(), published()...), DaemonProblem: true, Meaning: "The task's pod cannot reach the gitstore.", Todo: "Check the gitstore's pods and the network policy.", TodoWhenPublishing: "Check the gitstore's pods and the network policy. The work is then published by itself within a day of the first failure; after that, change `publish.id` as well."},
		{Name: v1alpha1.ReasonGitStoreRefused, On: append(preparing(), Place{"Task", v1alpha1.TaskDurable}, Place{"Checkpoint", v1alpha1.CheckpointDurable}), DaemonProblem: true, Meaning: "The gitstore refuses what the task sends.", Todo: "The message says why; usually a quota is exceeded."},
		{Name: v1alpha1.ReasonPrepareFailed, On: preparing(), Meaning: "The workspace could not be prepared.", Todo: newResume},
		{Name: v1alpha1.ReasonFenced, On: preparing(), DaemonProblem: true, Meaning: "A newer attempt of the task exists. This one ends; the next one gets a higher number."},
	}
}
