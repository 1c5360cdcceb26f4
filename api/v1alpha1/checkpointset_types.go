package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// CheckpointScope says of what a Checkpoint is taken.
// +kubebuilder:validation:Enum=Task;Contract
type CheckpointScope string

const (
	// CheckpointOfTask is taken of the task alone.
	CheckpointOfTask CheckpointScope = "Task"
	// CheckpointOfContract is taken of a supervisor and its own children together.
	CheckpointOfContract CheckpointScope = "Contract"
)

// MaxSetChildren is how many children a set of checkpoints may have.
const MaxSetChildren = 64

// CheckpointSetRef names the set that a Checkpoint is part of.
type CheckpointSetRef struct {
	// name of the supervisor's Checkpoint, which names the set.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`
	// uid of that Checkpoint.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	UID string `json:"uid"`
}

// CheckpointSetState says how far a set of checkpoints is.
// +kubebuilder:validation:Enum=Taking;Releasing;Together;Apart
type CheckpointSetState string

const (
	// SetTaking: the checkpoints of the members are being taken; an agent whose checkpoint is taken stays
	// stopped.
	SetTaking CheckpointSetState = "Taking"
	// SetReleasing: all are taken, or one cannot be, and the agents are told to continue.
	SetReleasing CheckpointSetState = "Releasing"
	// SetTogether: the checkpoints were taken together.
	SetTogether CheckpointSetState = "Together"
	// SetApart: they were not, or not all of them.
	SetApart CheckpointSetState = "Apart"
)

// Ended reports whether the state is final.
func (s CheckpointSetState) Ended() bool { return s == SetTogether || s == SetApart }

// SetMemberState says how a member of a set stands.
// +kubebuilder:validation:Enum=Pending;Taken;AtRest;Failed
type SetMemberState string

const (
	// MemberPending: its checkpoint has yet to be taken.
	MemberPending SetMemberState = "Pending"
	// MemberTaken: its checkpoint was taken for the set.
	MemberTaken SetMemberState = "Taken"
	// MemberAtRest: its agent does not run, so its last checkpoint is its state.
	MemberAtRest SetMemberState = "AtRest"
	// MemberFailed: its checkpoint could not be requested, or was not taken in time.
	MemberFailed SetMemberState = "Failed"
)

// HoldEnd says how a member's agent, which was stopped for a set, came to continue.
// +kubebuilder:validation:Enum=Released;Expired
type HoldEnd string

const (
	// HoldReleased: it was stopped from its checkpoint on until the daemon was told that all members
	// have theirs.
	HoldReleased HoldEnd = "Released"
	// HoldExpired: it continued before.
	HoldExpired HoldEnd = "Expired"
)

// SetMoment says at which moment a member's agent was stopped for a set.
// +kubebuilder:validation:Enum=BetweenCalls;InCall
type SetMoment string

const (
	// MomentBetweenCalls: no call of a tool was open.
	MomentBetweenCalls SetMoment = "BetweenCalls"
	// MomentInCall: in the middle of a call of a tool, which took long.
	MomentInCall SetMoment = "InCall"
)

// CheckpointSet is the state of a set of checkpoints.
type CheckpointSet struct {
	// state says how far the set is.
	// +required
	State CheckpointSetState `json:"state"`
	// startTime is when its checkpoints were requested. All ends within 3 minutes of that.
	// +optional
	StartTime *metav1.Time `json:"startTime,omitempty"`
	// members are the supervisor, first, and those of its children that have run.
	// +optional
	// +listType=map
	// +listMapKey=uid
	// +kubebuilder:validation:MaxItems=65
	Members []CheckpointSetMember `json:"members,omitempty"`
}

// Children returns the members that are children; none if there are no members.
func (s *CheckpointSet) Children() []CheckpointSetMember { return s.Members[min(1, len(s.Members)):] }

// CheckpointSetMember is a task in a set of checkpoints.
type CheckpointSetMember struct {
	// task is the task's name.
	// +required
	// +kubebuilder:validation:MaxLength=253
	Task string `json:"task"`
	// uid is the task's.
	// +required
	// +kubebuilder:validation:MaxLength=63
	UID string `json:"uid"`
	// checkpoint is the name of its Checkpoint object; empty for a task at rest whose last checkpoint has
	// none.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	Checkpoint string `json:"checkpoint,omitempty"`
	// number of its checkpoint, as soon as that is taken.
	// +optional
	Number int64 `json:"number,omitempty"`
	// attempt is the number of the last attempt of a task at rest: it is still at rest as long as there is
	// no other one.
	// +optional
	Attempt int64 `json:"attempt,omitempty"`
	// state says how it stands.
	// +required
	State SetMemberState `json:"state"`
	// message says why its checkpoint could not be requested; empty for any other member.
	// +optional
	// +kubebuilder:validation:MaxLength=512
	Message string `json:"message,omitempty"`
	// holdEnd says how its agent came to continue; empty while that is not known, and for a task at rest.
	// +optional
	HoldEnd HoldEnd `json:"holdEnd,omitempty"`
	// moment says at which moment its agent was stopped; empty while that is not known, and for a task at
	// rest.
	// +optional
	Moment SetMoment `json:"moment,omitempty"`
}

// RewindChildren says what a rewind of a supervisor does with its children.
// +kubebuilder:validation:Enum=Keep;Rewind
type RewindChildren string

const (
	// ChildrenKeep leaves them as they are.
	ChildrenKeep RewindChildren = "Keep"
	// ChildrenRewind rewinds those that are in the set to their checkpoints in it; in an undo, back to where
	// they were before.
	ChildrenRewind RewindChildren = "Rewind"
)

// SetRewind is the last rewind of a supervisor that takes the members of a set along, or the last undo of one.
type SetRewind struct {
	LedRewind `json:",inline"`
	// former is what setRewind was before this rewind was accepted, and is again if it fails. It is empty once
	// this one is Completed.
	// +optional
	Former *LedRewind `json:"former,omitempty"`
}

// LedRewind is a rewind of a supervisor that its children follow, or the undo of one.
type LedRewind struct {
	// id of the supervisor's rewind.
	// +required
	// +kubebuilder:validation:MaxLength=63
	ID string `json:"id"`
	// set is the name of the Checkpoint that names the set.
	// +required
	// +kubebuilder:validation:MaxLength=253
	Set string `json:"set"`
	// undoOf is the id of the rewind to that set that it undoes; empty if it undoes none.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	UndoOf string `json:"undoOf,omitempty"`
	// state is that of the supervisor's own rewind. Once it is Completed, the children follow, each once.
	// +required
	State OperationState `json:"state"`
	// endTime is when that ended. Children that were made after it do not follow.
	// +optional
	EndTime *metav1.Time `json:"endTime,omitempty"`
	// requestedBy is who requested the rewind.
	// +optional
	// +kubebuilder:validation:MaxLength=512
	RequestedBy string `json:"requestedBy,omitempty"`
	// scope is that of the rewind; empty for an undo, which has that of what it undoes.
	// +optional
	Scope RewindScope `json:"scope,omitempty"`
	// preserve is that of the rewind.
	// +optional
	Preserve PreserveMode `json:"preserve,omitempty"`
	// onDrift is that of the rewind.
	// +optional
	OnDrift OnDrift `json:"onDrift,omitempty"`
	// children are the members that are taken along.
	// +optional
	// +listType=map
	// +listMapKey=uid
	// +kubebuilder:validation:MaxItems=64
	Children []SetRewindChild `json:"children,omitempty"`
}

// SetRewindChild is a child that a rewind of its parent takes along.
type SetRewindChild struct {
	// name of the task.
	// +required
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`
	// uid of the task.
	// +required
	// +kubebuilder:validation:MaxLength=63
	UID string `json:"uid"`
	// checkpoint is the number of its checkpoint in the set.
	// +required
	Checkpoint int64 `json:"checkpoint"`
	// attempt is the number of the last attempt of a task that was at rest in the set. As long as it has no
	// other one, it is where the set has it, and stays as it is. If it has, and that attempt had ended it, it
	// has ended the same way again once it is rewound.
	// +optional
	Attempt int64 `json:"attempt,omitempty"`
}

// ParentRewind is the rewind by which a task follows one of its parent.
type ParentRewind struct {
	// id of the rewind: parent-ID for the parent's.
	// +required
	// +kubebuilder:validation:MaxLength=63
	ID string `json:"id"`
	// checkpoint is the number of the task's checkpoint to which it is rewound.
	// +required
	Checkpoint int64 `json:"checkpoint"`
	// undoOf is the id of the rewind of the task that it undoes; empty if it undoes none.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	UndoOf string `json:"undoOf,omitempty"`
	// attempt is the number of the last attempt of the task when it was where the rewind takes it, if it was
	// at rest. If that attempt had ended the task, it has ended the same way again.
	// +optional
	Attempt int64 `json:"attempt,omitempty"`
	// scope is that of the parent's rewind.
	// +optional
	Scope RewindScope `json:"scope,omitempty"`
	// preserve is that of the parent's rewind.
	// +optional
	Preserve PreserveMode `json:"preserve,omitempty"`
	// onDrift is that of the parent's rewind.
	// +optional
	OnDrift OnDrift `json:"onDrift,omitempty"`
	// requestedBy is who requested the parent's rewind.
	// +optional
	// +kubebuilder:validation:MaxLength=512
	RequestedBy string `json:"requestedBy,omitempty"`
}

// Request returns the rewind as a spec would request it; nil for none.
func (r *ParentRewind) Request() *Rewind {
	if r == nil {
		return nil
	}
	to := RewindTarget{CheckpointNumber: &r.Checkpoint}
	if r.UndoOf != "" {
		to = RewindTarget{UndoOf: r.UndoOf}
	}
	return &Rewind{
		ID: r.ID, To: to, Scope: r.Scope, Preserve: r.Preserve,
		Children: ChildrenKeep, WhenRunning: WhenRunningStop, OnDrift: r.OnDrift,
	}
}

// ParentRewindID returns the id of the rewind by which a child follows one of its parent.
func ParentRewindID(id string) string { return "parent-" + id }
