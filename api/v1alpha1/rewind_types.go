package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// RewindScope says what a rewind restores.
// +kubebuilder:validation:Enum=Code;Conversation;Both
type RewindScope string

const (
	// RewindCode rewinds only the files.
	RewindCode RewindScope = "Code"
	// RewindConversation rewinds only the conversation and the agent's own state.
	RewindConversation RewindScope = "Conversation"
	// RewindBoth rewinds files, agent state and conversation together.
	RewindBoth RewindScope = "Both"
)

// PreserveMode says how a rewind preserves the current worktree.
// +kubebuilder:validation:Enum=Branch;Stash;Discard
type PreserveMode string

const (
	// PreserveBranch keeps it as a branch in the agent's repository.
	PreserveBranch PreserveMode = "Branch"
	// PreserveStash keeps it as an entry of git stash in the agent's repository.
	PreserveStash PreserveMode = "Stash"
	// PreserveDiscard keeps it as a checkpoint only.
	PreserveDiscard PreserveMode = "Discard"
)

// WhenRunning says what a rewind does with a running agent.
// +kubebuilder:validation:Enum=Stop;Refuse
type WhenRunning string

const (
	// WhenRunningStop stops the agent, and starts it again when the rewind is done.
	WhenRunningStop WhenRunning = "Stop"
	// WhenRunningRefuse refuses the rewind.
	WhenRunningRefuse WhenRunning = "Refuse"
)

// RewindTarget is the target of a rewind. A target that is not a checkpoint is snapped down
// to a turn boundary, so that no tool call is separated from its result; the files and the
// agent's state become those of the newest checkpoint at or before it. If there is none, only
// the conversation can be rewound: the agent's state then becomes that of before its first
// run, and the conversation is rendered into its prompt.
// +kubebuilder:validation:XValidation:rule="[has(self.checkpointRef), has(self.checkpointNumber), has(self.commit), has(self.message), has(self.time), has(self.messagesBack), has(self.undoOf)].exists_one(x, x)",message="set exactly one of checkpointRef, checkpointNumber, commit, message, time, messagesBack and undoOf in rewind.to"
type RewindTarget struct {
	// checkpointRef names a checkpoint of this task.
	// +optional
	CheckpointRef *NameReference `json:"checkpointRef,omitempty"`
	// checkpointNumber is the number of a checkpoint of this task, whether or not it still has
	// a Checkpoint object.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=2147483647
	CheckpointNumber *int64 `json:"checkpointNumber,omitempty"`
	// commit is the full id of a commit that the task knows: of one of its checkpoints, or of
	// the history that it started from. The files become those of the commit; the agent's git
	// repository stays as it is, with its HEAD, index and branches. So do files that the
	// commit's .gitignore files name, unless it is a checkpoint's. The scope must be Code.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:XValidation:rule="self.matches('^[0-9a-f]{40}$')",message="commit is the full id of a commit: give its 40 hexadecimal digits, as git rev-parse prints them"
	Commit string `json:"commit,omitempty"`
	// message is the position of the last message to keep, as kubectl clew task
	// history shows it.
	// +optional
	// +kubebuilder:validation:Minimum=1
	Message *int64 `json:"message,omitempty"`
	// time keeps the messages up to this moment, such as 2026-05-01T14:30:00Z. It leads to
	// the newest checkpoint taken by then; or, if the last message had none yet, to the next
	// one, if nothing else happened before that was taken: no other message, no rewind and no
	// new run. A time without a fraction stands for its whole second.
	// +optional
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:Pattern=`^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-5][0-9]:[0-5][0-9]([.][0-9]{1,9})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])$`
	Time *metav1.Time `json:"time,omitempty"`
	// messagesBack is the number of newest messages to drop.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1000000
	MessagesBack *int32 `json:"messagesBack,omitempty"`
	// undoOf is the id of an earlier rewind of this task, which is undone: what it rewound
	// becomes what the checkpoint from before it holds. An undo is a rewind like any other,
	// so that undoing it redoes what it has undone. resume:ID undoes the rewind that a resume
	// with the mode FromCheckpoint or Clean began with.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=70
	// +kubebuilder:validation:Pattern=`^(resume:)?[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$`
	UndoOf string `json:"undoOf,omitempty"`
}

// Rewind requests, once per id, that the task is rewound. A running agent is stopped for it,
// with a checkpoint, and starts again when the rewind is done, unless whenRunning is Refuse.
// +kubebuilder:validation:XValidation:rule="!has(self.branch) || self.preserve == 'Branch'",message="branch names the branch that preserve: Branch creates: set preserve to Branch or leave branch out"
// +kubebuilder:validation:XValidation:rule="has(self.branch) || self.preserve != 'Branch' || self.scope == 'Conversation' || (!self.id.contains('..') && !self.id.endsWith('.lock'))",message="the current state is kept as branch clew/before-ID, and a branch name cannot contain '..' or end in '.lock': choose another id, or set branch"
// +kubebuilder:validation:XValidation:rule="!has(self.to.undoOf) || !has(self.scope) || self.scope == 'Both'",message="an undo rewinds what the rewind that it undoes has rewound: leave scope out"
// +kubebuilder:validation:XValidation:rule="!has(self.to.undoOf) || self.to.undoOf != self.id",message="a rewind cannot undo itself: give it an id of its own, and name that of an earlier rewind in to.undoOf"
// +kubebuilder:validation:XValidation:rule="!has(self.to.undoOf) || !has(self.paths)",message="an undo rewinds what the rewind that it undoes has rewound: leave paths out"
// +kubebuilder:validation:XValidation:rule="!has(self.to.commit) || self.scope == 'Code'",message="a commit holds only files: set rewind.scope to Code"
// +kubebuilder:validation:XValidation:rule="!has(self.paths) || self.scope == 'Code'",message="paths selects files: set rewind.scope to Code, or leave paths out"
// +kubebuilder:validation:XValidation:rule="!has(self.children) || self.children != 'Rewind' || has(self.to.checkpointRef) || has(self.to.undoOf)",message="children are rewound to a set of checkpoints, or back from one: name the supervisor's Checkpoint in rewind.to.checkpointRef, or its rewind in to.undoOf, or set children to Keep"
// +kubebuilder:validation:XValidation:rule="!has(self.children) || self.children != 'Rewind' || !has(self.to.undoOf) || !self.to.undoOf.startsWith('resume:')",message="a resume takes no children along: set children to Keep"
// +kubebuilder:validation:XValidation:rule="!has(self.children) || self.children != 'Rewind' || !has(self.paths)",message="children are rewound as a whole: leave paths out, or set children to Keep"
// +kubebuilder:validation:XValidation:rule="!has(self.children) || self.children != 'Rewind' || self.id.size() <= 56",message="children are rewound with the id parent-ID: use at most 56 characters for rewind.id"
// +kubebuilder:validation:XValidation:rule="!self.id.startsWith('parent-')",message="ids that begin with parent- are those by which children follow a rewind of their parent: choose another id"
type Rewind struct {
	// id of this request. A new id requests the operation once; the same id again does nothing.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$`
	ID string `json:"id"`
	// to is the target.
	// +required
	To RewindTarget `json:"to"`
	// scope says what is rewound; with undoOf, it is that of the rewind that is undone. With Both and a target that is not a checkpoint, the
	// conversation is rewound to the checkpoint's position as well, so that files and memory
	// agree; with Conversation it is rewound to exactly that turn, and the files stay.
	// +optional
	// +kubebuilder:default=Both
	Scope RewindScope `json:"scope,omitempty"`
	// paths selects what is rewound, relative to the worktree: files, folders with everything
	// in them, and patterns with *, ?, [abc] and ** for any number of folders, such as
	// src/**/*.go. Everything else stays as it is, the agent's git repository with its HEAD
	// and index included. All files are rewound when it is left out. The scope must be Code.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=100
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=1024
	// +kubebuilder:validation:items:XValidation:rule="!self.startsWith('/') && !self.contains('//') && !self.matches('(^|/)[.][.]?(/|$)')",message="a path is relative to the worktree, and contains no empty, . or .. part: write src/main.go or src/"
	// +kubebuilder:validation:items:XValidation:rule="!self.matches('(^|/)[.][gG][iI][tT](/|$)')",message="a path cannot select the files of a git repository itself: leave .git out"
	// +kubebuilder:validation:items:XValidation:rule="!self.matches('[[:cntrl:]]')",message="a path contains no control characters"
	Paths []string `json:"paths,omitempty"`
	// preserve says how the current state is kept in the agent's repository. A checkpoint of
	// it is taken in any case.
	// +optional
	// +kubebuilder:default=Branch
	Preserve PreserveMode `json:"preserve,omitempty"`
	// branch is the name of the branch that preserve: Branch creates; clew/before-ID when left out.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=200
	// +kubebuilder:validation:XValidation:rule="self.matches('^[A-Za-z0-9._/-]+$') && self != 'HEAD' && !self.startsWith('-') && !self.startsWith('/') && !self.startsWith('.') && !self.endsWith('/') && !self.endsWith('.') && !self.endsWith('.lock') && !self.contains('..') && !self.contains('//') && !self.contains('/.') && !self.contains('.lock/')",message="branch must be a plain git branch name of letters, digits and . _ / -, such as before/refactoring"
	Branch string `json:"branch,omitempty"`
	// children says what becomes of a supervisor's children. With Rewind, to.checkpointRef names a
	// Checkpoint with the scope Contract; once the supervisor is rewound, each child that is in its set is
	// rewound to its own checkpoint there, by a rewind with the id parent-ID and the same scope, preserve
	// and onDrift. Children that were made since stay as they are. With to.undoOf, which then names the
	// supervisor's last rewind that took children along, each child that has followed that one undoes its own
	// rewind by it; one that was rewound or resumed by a request since stays as it is.
	// +optional
	// +kubebuilder:default=Keep
	Children RewindChildren `json:"children,omitempty"`
	// whenRunning says whether a running agent is stopped for the rewind, or the rewind refused.
	// +optional
	// +kubebuilder:default=Stop
	WhenRunning WhenRunning `json:"whenRunning,omitempty"`
	// onDrift says what to do when the worktree was changed while the task was not running.
	// +optional
	// +kubebuilder:default=Fail
	OnDrift OnDrift `json:"onDrift,omitempty"`
}

// NamesCheckpoint reports whether the target is a checkpoint, and not a place in the
// conversation.
func (t *RewindTarget) NamesCheckpoint() bool {
	return t.CheckpointRef != nil || t.CheckpointNumber != nil || t.UndoOf != ""
}
