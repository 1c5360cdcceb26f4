package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// FinishAction says what becomes of a finished task.
// +kubebuilder:validation:Enum=Release;Delete
type FinishAction string

const (
	// FinishRelease deletes what the task occupies, and keeps the Task.
	FinishRelease FinishAction = "Release"
	// FinishDelete deletes the Task.
	FinishDelete FinishAction = "Delete"
)

// OnFinish is what becomes of a task's objects some time after it has finished: after its condition
// Succeeded has become True or False, which it is not for a task that is suspended, was rewound, has
// drifted, has spent its budget or was stopped when a phase began again. When the task is resumed before, the time starts anew with its next end. Work that
// spec.publish publishes is waited for, and nothing is deleted before the history store has
// everything that the task's volume held, and the gitstore its last checkpoint, which was verified
// there for this; the condition VolumeReleased says what is waited for. The history is kept in any case.
type OnFinish struct {
	// afterSeconds is the time between the task's end, which is in status.finishedTime, and the action.
	// +required
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=315360000
	AfterSeconds int64 `json:"afterSeconds"`
	// action is what happens then. Release deletes the task's pods, its volume, whatever
	// workspace.retention says, and its Checkpoint objects: but for the latest one, those with
	// retention Keep or with branches, those that somebody applied, and those that a Task, a Fork or
	// a ConversationSnapshot names. The Task stays as the record of its end, so that no pipeline that
	// applies it again runs it again; it can be resumed, and goes on with a new volume. Delete
	// deletes the Task, for tasks that no pipeline owns; the tasks that a Fork of it makes are released
	// instead. Whoever sets Delete needs the right to delete the Task, and, unless children.onDelete is
	// Orphan, all Tasks of the namespace if it is a Supervisor. Children that are deleted with their
	// parent, as children.onDelete says, are waited for until they have finished, and then give their
	// volumes back first, as with Release.
	// +optional
	// +kubebuilder:default=Release
	Action FinishAction `json:"action,omitempty"`
}

// ReleaseCause says why a volume was released.
// +kubebuilder:validation:Enum=Suspended;Finished;WithParent
type ReleaseCause string

const (
	// ReleasedSuspended: the task is suspended, and workspace.whenSuspended is Release.
	ReleasedSuspended ReleaseCause = "Suspended"
	// ReleasedFinished: the task has finished, and onFinish.action is Release.
	ReleasedFinished ReleaseCause = "Finished"
	// ReleasedWithParent: the task has finished, and is to be deleted with its parent, whose
	// onFinish.action is Delete.
	ReleasedWithParent ReleaseCause = "WithParent"
)

// ReleaseStatus is the release of a task's volume.
type ReleaseStatus struct {
	// cause of the release.
	// +required
	Cause ReleaseCause `json:"cause"`
	// time of the release.
	// +required
	Time metav1.Time `json:"time"`
	// claimUID is the UID of the PersistentVolumeClaim that is deleted; empty if there was none.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	ClaimUID string `json:"claimUID,omitempty"`
	// checkpoint is the number of the checkpoint that the work is restored from; empty if the
	// task had not begun any.
	// +optional
	Checkpoint int64 `json:"checkpoint,omitempty"`
}

// IsReleased reports whether the task has given its volume back, and has not got another one since.
func (s *TaskStatus) IsReleased() bool { return s.Released != nil && s.ClaimUID == "" }
