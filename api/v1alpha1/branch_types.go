package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// CheckpointPush says whether a branch is pushed to the task's repository.
// +kubebuilder:validation:Enum=Never;Origin
type CheckpointPush string

const (
	// PushNever leaves it in the gitstore.
	PushNever CheckpointPush = "Never"
	// PushOrigin pushes it to spec.repository of the Task.
	PushOrigin CheckpointPush = "Origin"
)

// BranchCheckout says whether a branch is checked out in the agent's repository.
// +kubebuilder:validation:Enum=Never;NextStart
type BranchCheckout string

const (
	// CheckoutNever leaves the agent's HEAD where it is.
	CheckoutNever BranchCheckout = "Never"
	// CheckoutNextStart brings it to the branch, once.
	CheckoutNextStart BranchCheckout = "NextStart"
)

// CheckpointBranch is a branch in the gitstore that holds exactly the files of a checkpoint. It
// is at the commit of the agent's HEAD, if the agent had committed everything, and otherwise
// one commit on top of that, which Clew makes. When the agent next starts, its own repository gets
// the branch as well, but without the files that .gitignore names, as the checkpoint would be
// published: what the agent's repository has, the agent may push, and what is checked out there is
// what Clew publishes. So the two are at different commits if there are such files. A branch of that
// name which the agent's repository has already, at another commit, is left as it is. Once it was
// made there, the branch is the agent's, who may move or delete it: only after a rewind, which
// replaces the branches of the agent's repository, is it made again, if it is missing. It stays
// there when the entry is removed.
// +kubebuilder:validation:XValidation:rule="!has(self.checkout) || self.checkout != 'NextStart' || !self.name.startsWith('refs/') || self.name.startsWith('refs/heads/')",message="only a branch can be checked out, not another ref: leave refs/ out to name a branch, or set checkout to Never"
// +kubebuilder:validation:XValidation:rule="!has(self.push) || self.push != 'Origin' || !self.name.startsWith('refs/') || self.name.startsWith('refs/heads/') || self.name.startsWith('refs/for/')",message="a branch that is pushed to the repository can only be below refs/heads/ or refs/for/: leave refs/ out to name a branch"
type CheckpointBranch struct {
	// name of the branch; git clone and git fetch of the gitstore know it as clew/TASK/NAME.
	// The repository gets it as NAME; a ref for reviews, such as refs/for/main, is taken as
	// well.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=200
	// +kubebuilder:validation:XValidation:rule="self.matches('^[A-Za-z0-9._/-]+$') && self != 'HEAD' && !self.startsWith('-') && !self.startsWith('/') && !self.startsWith('.') && !self.endsWith('/') && !self.endsWith('.') && !self.endsWith('.lock') && !self.contains('..') && !self.contains('//') && !self.contains('/.') && !self.contains('.lock/')",message="a branch must have a plain git branch name of letters, digits and . _ / -, such as try/oauth"
	Name string `json:"name"`
	// push says whether the task's repository gets the branch as well. It is pushed like the
	// task's own work (see the Task's spec.publish, whose uncommitted, message, author,
	// pushOptions and protectedPaths hold for it): without the files that .gitignore names, with
	// the repository's credentials, from a pod of its own. Whoever sets it needs the right to
	// patch the Task.
	// +optional
	// +kubebuilder:default=Never
	Push CheckpointPush `json:"push,omitempty"`
	// onDiverged says what the push does if others have pushed to the branch.
	// +optional
	// +kubebuilder:default=Fail
	OnDiverged OnDiverged `json:"onDiverged,omitempty"`
	// approvedCommit is the commit that is pushed although it changes protected files: somebody
	// has reviewed it. Which one it would be is in status.branches[].origin.heldCommit.
	// +optional
	// +kubebuilder:validation:MinLength=40
	// +kubebuilder:validation:MaxLength=40
	// +kubebuilder:validation:Pattern=`^[0-9a-f]{40}$`
	ApprovedCommit string `json:"approvedCommit,omitempty"`
	// checkout says whether the HEAD of the agent's repository, and its index, is brought to the
	// branch. NextStart does so when the agent next starts; a running one is not stopped for it.
	// No file is changed: it is refused unless the worktree is then exactly what the checkpoint
	// holds, for example after a rewind to it. No start waits for a branch that the gitstore has yet
	// to make: request the rewind or resume once status.branches says that it is Made. It is carried out or refused once, and a rewind to
	// the checkpoint that is taken before it takes it back; a new id asks for it again. Only one
	// branch of a task can be checked out at a time. Whoever sets it needs the right to patch the
	// Task.
	// +optional
	// +kubebuilder:default=Never
	Checkout BranchCheckout `json:"checkout,omitempty"`
	// id makes Clew try again what could not be pushed, and check the branch out again if checkout
	// says so: change it once the cause is removed.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$`
	ID string `json:"id,omitempty"`
	// requestedBy is the name of the user who added the entry or changed it last, as
	// authenticated by the API server. Admission sets it and ignores what a client sends: leave
	// it out.
	// +optional
	// +kubebuilder:validation:MaxLength=256
	RequestedBy string `json:"requestedBy,omitempty"`
}

// CheckpointBranchState says what became of a branch in the gitstore.
// +kubebuilder:validation:Enum=Made;Refused
type CheckpointBranchState string

const (
	// BranchMade: the gitstore has the branch.
	BranchMade CheckpointBranchState = "Made"
	// BranchRefused: the gitstore refuses the branch.
	BranchRefused CheckpointBranchState = "Refused"
)

// CheckpointBranchStatus is what became of a branch.
type CheckpointBranchStatus struct {
	// name of the branch.
	// +required
	// +kubebuilder:validation:MaxLength=200
	Name string `json:"name"`
	// state of the branch in the gitstore.
	// +required
	State CheckpointBranchState `json:"state"`
	// ref is the full name of the branch in the gitstore.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Ref string `json:"ref,omitempty"`
	// commit at which the branch was made.
	// +optional
	// +kubebuilder:validation:MaxLength=40
	Commit string `json:"commit,omitempty"`
	// message says why the branch was refused.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Message string `json:"message,omitempty"`
	// observedGeneration is the generation at which it was refused for good, until the spec is
	// changed; without it, Clew tries again.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// agent is what became of the branch in the agent's repository; absent unless the gitstore has
	// it, and for a name that is no branch there, such as refs/for/main.
	// +optional
	Agent *AgentBranchStatus `json:"agent,omitempty"`
	// origin is what became of the branch at the task's repository; absent unless the spec says
	// push: Origin and the gitstore has it.
	// +optional
	Origin *OriginBranchStatus `json:"origin,omitempty"`
}

// OriginBranchStatus is what is known of a branch at the task's repository.
type OriginBranchStatus struct {
	// reason is Published if the repository has the branch, PublishPending, PushAnnounced or
	// Publishing before that, and otherwise why it does not: one of the reasons of a Task's
	// condition Published.
	// +required
	// +kubebuilder:validation:MaxLength=63
	Reason string `json:"reason"`
	// message is a sentence about it.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Message string `json:"message,omitempty"`
	// request identifies the content of the entry in the spec that it is about.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	Request string `json:"request,omitempty"`
	// number of the pod that pushes the branch, or did so last, among those of the Checkpoint.
	// +optional
	Number int64 `json:"number,omitempty"`
	// podName is the name of the pod that pushes it now; empty if none does.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	PodName string `json:"podName,omitempty"`
	// podUID is its UID, once it is known.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	PodUID string `json:"podUID,omitempty"`
	// failures is the number of pods in a row that failed, and are followed by another one.
	// +optional
	Failures int32 `json:"failures,omitempty"`
	// retryTime is when the next one is started; empty if none is. With the reason
	// CheckpointCorrupted it is when that was found: the next one is started once the checkpoint
	// is not recorded as damaged.
	// +optional
	RetryTime *metav1.Time `json:"retryTime,omitempty"`
	// ref is the full name of the ref that was pushed to.
	// +optional
	// +kubebuilder:validation:MaxLength=255
	Ref string `json:"ref,omitempty"`
	// commit is what was pushed to it.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	Commit string `json:"commit,omitempty"`
	// onto is the newest commit in the history of commit that others have pushed to that ref.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	Onto string `json:"onto,omitempty"`
	// tries are the last push that was reported and those since, the newest last.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=20
	Tries []PublishTry `json:"tries,omitempty"`
	// answer is what the repository's host said about it, such as the address of a merge
	// request.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Answer string `json:"answer,omitempty"`
	// heldCommit is what was not pushed because it changes protected files; empty if nothing is
	// held.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	HeldCommit string `json:"heldCommit,omitempty"`
	// protectedFiles are the first protected files that it changes.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=10
	// +kubebuilder:validation:items:MaxLength=256
	ProtectedFiles []string `json:"protectedFiles,omitempty"`
}
