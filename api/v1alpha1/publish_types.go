package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// PublishWhen says which checkpoints are published.
// +kubebuilder:validation:Enum=Completed;Suspended;Checkpoint;Called
type PublishWhen string

const (
	// PublishCompleted publishes the last checkpoint of a completed task.
	PublishCompleted PublishWhen = "Completed"
	// PublishSuspended does that for a suspended task as well.
	PublishSuspended PublishWhen = "Suspended"
	// PublishCheckpoint publishes the newest checkpoint, every five minutes at most, and less
	// often while the repository or protectedPaths refuse them.
	PublishCheckpoint PublishWhen = "Checkpoint"
	// PublishCalled publishes nothing by itself: the agent of a supervisor does, with the tool publish.
	PublishCalled PublishWhen = "Called"
)

// PublishUncommitted says what becomes of files that the agent left uncommitted.
// +kubebuilder:validation:Enum=Commit;Ignore
type PublishUncommitted string

const (
	// PublishCommit publishes them in a commit on top of the agent's.
	PublishCommit PublishUncommitted = "Commit"
	// PublishIgnore publishes the agent's commits only.
	PublishIgnore PublishUncommitted = "Ignore"
)

// OnDiverged says what a push does with commits of others that it would discard.
// +kubebuilder:validation:Enum=Fail;ForceWithLease
type OnDiverged string

const (
	// DivergedFail leaves them alone, and pushes nothing.
	DivergedFail OnDiverged = "Fail"
	// DivergedForceWithLease discards what was there when the push began.
	DivergedForceWithLease OnDiverged = "ForceWithLease"
)

// CommitAuthor is the author of a commit.
type CommitAuthor struct {
	// name of the author.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=200
	// +kubebuilder:validation:XValidation:rule="!self.matches('[<>[:cntrl:]]') && self.matches('[A-Za-z0-9\\u0080-\\uFFFF]')",message="author.name is the name of a person or a program, without angle brackets and control characters"
	Name string `json:"name"`
	// email is the address of the author.
	// +required
	// +kubebuilder:validation:MinLength=3
	// +kubebuilder:validation:MaxLength=254
	// +kubebuilder:validation:XValidation:rule="self.matches('^[^<>[:cntrl:][:space:]@]+@[^<>[:cntrl:][:space:]@]+$')",message="author.email must be an address such as bot@example.com"
	// +kubebuilder:validation:XValidation:rule="self != 'clew@clew.dev'",message="by clew@clew.dev Clew knows its own checkpoints: give the author another address"
	Email string `json:"email"`
}

// Publish is how the task's work gets to a branch of its repository. Clew pushes it with the
// repository's credentials, from a pod of its own, which ends afterwards; the agent never
// sees them. Commits of others are not discarded, unless onDiverged allows it. What Clew itself
// has published for the task before is replaced, down to the commits of others that it was
// published onto. The condition Published says how it went. A
// task that starts from this one or is forked from it publishes nothing by itself. When a branch of a
// child's Checkpoint is pushed and the child has no publish of its own, its parent's uncommitted,
// message, author, pushOptions and protectedPaths hold.
type Publish struct {
	// id makes Clew publish again: change it once you have removed what kept the work from being
	// published.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$`
	ID string `json:"id,omitempty"`
	// branch is pushed to; it is created if it does not exist. A ref for reviews, such as
	// refs/for/main of Gerrit and Forgejo, is taken as well.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=200
	// +kubebuilder:validation:XValidation:rule="self.matches('^([A-Za-z0-9._/-]+|refs/for/[A-Za-z0-9._/%=,+-]+)$') && self != 'HEAD' && !self.startsWith('-') && !self.startsWith('/') && !self.startsWith('.') && !self.endsWith('/') && !self.endsWith('.') && !self.endsWith('.lock') && !self.contains('..') && !self.contains('//') && !self.contains('/.') && !self.contains('.lock/')",message="branch must be a plain git branch name of letters, digits and . _ / -, such as clew/fix-login, or a ref for reviews such as refs/for/main"
	// +kubebuilder:validation:XValidation:rule="!self.startsWith('refs/') || self.startsWith('refs/heads/') || self.startsWith('refs/for/')",message="branch can only be below refs/heads/ or refs/for/: leave refs/ out to name a branch"
	Branch string `json:"branch"`
	// when says which checkpoints are published. With Called, which only a supervisor can have, they are
	// those that the agent publishes with the tool publish, and none by themselves: the work of a child
	// would be followed by the supervisor's own.
	// +optional
	// +kubebuilder:default=Completed
	When PublishWhen `json:"when,omitempty"`
	// uncommitted says whether a commit on top of the agent's holds what it left uncommitted:
	// what git would show as changed or untracked, without the files that .gitignore names.
	// +optional
	// +kubebuilder:default=Commit
	Uncommitted PublishUncommitted `json:"uncommitted,omitempty"`
	// message of that commit. Clew adds the trailers Clew-Task and Clew-Checkpoint.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=4096
	// +kubebuilder:validation:XValidation:rule="!self.matches('[\\x00-\\x08\\x0b\\x0c\\x0e-\\x1f\\x7f]')",message="message must be text without control characters"
	Message string `json:"message,omitempty"`
	// author of that commit; Clew when left out.
	// +optional
	Author *CommitAuthor `json:"author,omitempty"`
	// onDiverged says what happens if others have pushed to the branch.
	// +optional
	// +kubebuilder:default=Fail
	OnDiverged OnDiverged `json:"onDiverged,omitempty"`
	// pushOptions are passed to the host, such as merge_request.create of GitLab.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=512
	// +kubebuilder:validation:items:XValidation:rule="!self.matches('[[:cntrl:]]')",message="a push option is one line without control characters"
	PushOptions []string `json:"pushOptions,omitempty"`
	// protectedPaths are files that are not published when the work changes them, compared
	// with what the task started from or with what the branch has, until approvedCommit names
	// the commit: a CI system may run them with the repository's secrets. They are written
	// like the paths of a rewind. When left out, they are the files of CI systems that Clew's
	// version at the time of the push knows, from GitHub Actions and GitLab CI to Jenkins; []
	// protects nothing.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=100
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=256
	// +kubebuilder:validation:items:XValidation:rule="!self.startsWith('/') && !self.contains('//') && !self.matches('(^|/)[.][.]?(/|$)')",message="a path is relative to the worktree, and contains no empty, . or .. part: write ci/deploy.yml or ci/"
	// +kubebuilder:validation:items:XValidation:rule="!self.matches('(^|/)[.][gG][iI][tT](/|$)')",message="a path cannot select the files of a git repository itself: leave .git out"
	// +kubebuilder:validation:items:XValidation:rule="!self.matches('[[:cntrl:]]')",message="a path contains no control characters"
	ProtectedPaths []string `json:"protectedPaths,omitzero"`
	// approvedCommit is the commit that is published although it changes protected files:
	// somebody has reviewed it. Which one it would be is in status.publish.heldCommit, and in
	// the message of the condition Published.
	// +optional
	// +kubebuilder:validation:MinLength=40
	// +kubebuilder:validation:MaxLength=40
	// +kubebuilder:validation:Pattern=`^[0-9a-f]{40}$`
	ApprovedCommit string `json:"approvedCommit,omitempty"`
}

// Publication is what was pushed to the task's repository.
type Publication struct {
	// ref is the full name of the ref that was pushed to.
	// +required
	// +kubebuilder:validation:MaxLength=255
	Ref string `json:"ref"`
	// commit is what was pushed to it.
	// +required
	// +kubebuilder:validation:MaxLength=64
	Commit string `json:"commit"`
	// onto is the newest commit in the history of commit that others have pushed to that ref.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	Onto string `json:"onto,omitempty"`
	// number is that of the pod that pushed it: it grows with each push to the ref.
	// +optional
	Number int64 `json:"number,omitempty"`
}

// PublishTryOutcome says what is known of a push that was announced.
// +kubebuilder:validation:Enum=Unknown
type PublishTryOutcome string

// PublishTryUnknown: a pod that was to push it has ended, and nobody knows whether it had pushed.
const PublishTryUnknown PublishTryOutcome = "Unknown"

// PublishTry is a push that may have been made, or, without a commit, says that all pushes of its
// checkpoint to the ref are among the tries. It is written before the pod starts that may make it: if
// that pod is lost, the next one knows by this what the ref has of the task.
type PublishTry struct {
	// ref is the full name of the ref.
	// +required
	// +kubebuilder:validation:MaxLength=255
	Ref string `json:"ref"`
	// checkpoint is the number of the checkpoint that is pushed.
	// +required
	Checkpoint int64 `json:"checkpoint"`
	// outcome is Unknown if a pod that was to push commit has ended, and nobody knows whether it had
	// pushed. It is left out as long as no such pod has ended.
	// +optional
	Outcome PublishTryOutcome `json:"outcome,omitempty"`
	// commit is what is pushed; empty if it is a commit that Clew makes of the checkpoint, and the
	// ref has nothing of others but what is known already.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	Commit string `json:"commit,omitempty"`
	// onto is the newest commit in the history of commit that others have pushed to the ref.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	Onto string `json:"onto,omitempty"`
}

// PublishStatus is what is known of publishing the task's work.
type PublishStatus struct {
	// number counts the pods that published, or tried to.
	// +optional
	Number int64 `json:"number,omitempty"`
	// podName is the name of the pod that publishes now; empty if none does.
	// +optional
	PodName string `json:"podName,omitempty"`
	// podUID is its UID, once it is known.
	// +optional
	PodUID string `json:"podUID,omitempty"`
	// startTime is when that pod was started.
	// +optional
	StartTime *metav1.Time `json:"startTime,omitempty"`
	// checkpoint is the number of the checkpoint that the pod publishes, or published last.
	// +optional
	Checkpoint int64 `json:"checkpoint,omitempty"`
	// request identifies what spec.publish asked for then.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	Request string `json:"request,omitempty"`
	// reason says how the last pod ended, as a reason of the condition Published; empty while it
	// publishes.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	Reason string `json:"reason,omitempty"`
	// message says why it did not publish; empty if it did.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Message string `json:"message,omitempty"`
	// failures is the number of pods in a row that failed for a reason that may pass. Each is
	// followed by another one, for a day at most, and ten times at most if the reason is
	// PublishFailed.
	// +optional
	Failures int32 `json:"failures,omitempty"`
	// failingSince is when the first of them failed.
	// +optional
	FailingSince *metav1.Time `json:"failingSince,omitempty"`
	// retryTime is when the next one is started; empty if none is. With the reason
	// CheckpointCorrupted it is when that was found: the next one is started once the checkpoint
	// is not recorded as damaged.
	// +optional
	RetryTime *metav1.Time `json:"retryTime,omitempty"`
	// refusals is the number of checkpoints in a row that could not be published without
	// somebody's help.
	// +optional
	Refusals int32 `json:"refusals,omitempty"`
	// earliestTime is before when no other checkpoint is published, with when: Checkpoint.
	// +optional
	EarliestTime *metav1.Time `json:"earliestTime,omitempty"`
	// ref is the full name of the ref that the task's work was pushed to last.
	// +optional
	// +kubebuilder:validation:MaxLength=255
	Ref string `json:"ref,omitempty"`
	// commit is what was pushed to it.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	Commit string `json:"commit,omitempty"`
	// onto is the newest commit in the history of commit that others have pushed to that ref;
	// empty if there was none. It is not discarded when the task publishes again.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	Onto string `json:"onto,omitempty"`
	// publishedCheckpoint is the number of the checkpoint that commit is from.
	// +optional
	PublishedCheckpoint int64 `json:"publishedCheckpoint,omitempty"`
	// publishedTime is when the pod reported it.
	// +optional
	PublishedTime *metav1.Time `json:"publishedTime,omitempty"`
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
	// heldCommit is what was not published because it changes protected files; empty if nothing
	// is held.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	HeldCommit string `json:"heldCommit,omitempty"`
	// approvedCommit is the approvedCommit of spec.publish that the timeline has an entry about.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	ApprovedCommit string `json:"approvedCommit,omitempty"`
	// protectedFiles are the first protected files that the checkpoint changes.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=10
	// +kubebuilder:validation:items:MaxLength=256
	ProtectedFiles []string `json:"protectedFiles,omitempty"`
}
