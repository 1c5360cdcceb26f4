package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// StartPoint is the moment of a task from which another one starts. A message and a time lead
// to the newest checkpoint at or before the end of their turn: the new task gets that
// checkpoint's files, agent state and position in the conversation, so that they agree.
// +kubebuilder:validation:XValidation:rule="[has(self.checkpointRef), has(self.checkpointNumber), has(self.message), has(self.time)].exists_one(x, x)",message="set exactly one of checkpointRef, checkpointNumber, message and time in at"
type StartPoint struct {
	// checkpointRef names a checkpoint of the source.
	// +optional
	CheckpointRef *NameReference `json:"checkpointRef,omitempty"`
	// checkpointNumber is the number of a checkpoint of the source, whether or not it still has
	// a Checkpoint object.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=2147483647
	CheckpointNumber *int64 `json:"checkpointNumber,omitempty"`
	// message is the position of a message of the source, as kubectl clew task history shows it.
	// +optional
	// +kubebuilder:validation:Minimum=1
	Message *int64 `json:"message,omitempty"`
	// time is a moment such as 2026-05-01T14:30:00Z. It leads to the newest checkpoint taken by
	// then; or, if the last message had none yet, to the next one, if nothing else happened
	// before that was taken: no other message, no rewind and no new run. A time without a
	// fraction stands for its whole second.
	// +optional
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:Pattern=`^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-5][0-9]:[0-5][0-9]([.][0-9]{1,9})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])$`
	Time *metav1.Time `json:"time,omitempty"`
}

// StartFrom makes a new task start from a moment of another one.
// +kubebuilder:validation:XValidation:rule="!has(self.copyFiles) || !has(self.branch)",message="with copyFiles the task starts on its own repository.ref: leave branch out"
// +kubebuilder:validation:XValidation:rule="!has(self.at) || !has(self.checkpointRef)",message="startFrom has both at and checkpointRef: set only one of them"
type StartFrom struct {
	// taskRef names the source task. It may be gone, if its history is kept.
	// +required
	TaskRef NameReference `json:"taskRef"`
	// taskUID is the UID of the source, for when several tasks had its name; when left out, the
	// Task of that name, or the only one whose history is kept.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:XValidation:rule="self.matches('^[-A-Za-z0-9]+$')",message="taskUID must be the UID of a task, such as kubectl clew task list -o yaml shows it"
	TaskUID string `json:"taskUID,omitempty"`
	// checkpointRef names one of its checkpoints; the latest when left out. The same as
	// at.checkpointRef.
	// +optional
	CheckpointRef *NameReference `json:"checkpointRef,omitempty"`
	// at is the moment of the source to start from; its latest checkpoint when left out.
	// +optional
	At *StartPoint `json:"at,omitempty"`
	// conversation says whether the conversation up to that checkpoint is included. With
	// copyFiles it is not.
	// +optional
	// +kubebuilder:default=Include
	Conversation ConversationMode `json:"conversation,omitempty"`
	// branch is the name of a new branch on which the agent's repository starts, at the commit
	// that was checked out; when left out, the branch that was checked out. clew/NAME, with the
	// task's own name, gets a number if the source has that branch, and is clew-NAME if the source
	// has a branch clew; any other name must be unused.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=200
	// +kubebuilder:validation:XValidation:rule="self.matches('^[A-Za-z0-9._/-]+$') && self != 'HEAD' && !self.startsWith('-') && !self.startsWith('/') && !self.startsWith('.') && !self.endsWith('/') && !self.endsWith('.') && !self.endsWith('.lock') && !self.contains('..') && !self.contains('//') && !self.contains('/.') && !self.contains('.lock/')",message="branch must be a plain git branch name of letters, digits and . _ / -, such as try/oauth"
	Branch string `json:"branch,omitempty"`
	// copyFiles makes the task start from its own repository and ref, with its own conversation,
	// and copies these files of the source's checkpoint over what is checked out: files, folders
	// with everything in them, and patterns with *, ?, [abc] and ** for any number of folders,
	// such as src/**/*.go. Other files stay, and so does the agent's git repository. One that
	// selects nothing in the checkpoint fails the start, before anything is copied. When left out,
	// the task starts with the whole checkpoint.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=256
	// +kubebuilder:validation:items:XValidation:rule="!self.startsWith('/') && !self.contains('//') && !self.matches('(^|/)[.][.]?(/|$)')",message="a path is relative to the worktree, and contains no empty, . or .. part: write src/main.go or src/"
	// +kubebuilder:validation:items:XValidation:rule="!self.matches('(^|/)[.][gG][iI][tT](/|$)')",message="a path cannot select the files of a git repository itself: leave .git out"
	// +kubebuilder:validation:items:XValidation:rule="!self.matches('[[:cntrl:]]')",message="a path contains no control characters"
	CopyFiles []string `json:"copyFiles,omitempty"`
	// fork is the Fork that the task was created for. Leave it out: the manager sets it for
	// the tasks that it creates. If the admission policy clew-task-requesters is installed,
	// what anybody else sends is ignored; otherwise it is trusted, whoever sent it: the
	// task's history names that Fork, and the Fork, while it is not Complete, adopts a Task
	// that has its UID here and the name of one of its variants.
	// +optional
	Fork *ForkOrigin `json:"fork,omitempty"`
}

// Point returns the moment to start from; nil for the latest checkpoint.
func (s *StartFrom) Point() *StartPoint { return pointOf(s.At, s.CheckpointRef) }

// pointOf returns the moment that one of two fields names; nil if neither does.
func pointOf(at *StartPoint, ref *NameReference) *StartPoint {
	if at == nil && ref != nil {
		return &StartPoint{CheckpointRef: ref}
	}
	return at
}
