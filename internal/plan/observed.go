package plan

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/budget"
	"github.com/clew-dev/clew/internal/daemonapi"
	"github.com/clew-dev/clew/internal/history"
)

// Observed is everything a decision depends on.
type Observed struct {
	// Task is the stored object, with its last written status.
	Task *v1alpha1.Task
	// NewID is a random id, another one with each observation, for what the status names first.
	NewID string
	// Pods are all pods labelled with the task's UID, apart from Publishers.
	Pods []corev1.Pod
	// Publishers are the pods that publish the task's work.
	Publishers []corev1.Pod
	// PublisherRefused is why the API server refused to create the one that the status names;
	// "" if it did not.
	PublisherRefused string
	// ReservedPublisher is the number of the pod that this process has reserved last to publish the
	// task's work, if it has certainly not created it; 0 for none. Another process may have created
	// one that the status names.
	ReservedPublisher int64
	// Claim is the PersistentVolumeClaim with the name that the task's claim has,
	// whoever created it; nil if there is none.
	Claim *corev1.PersistentVolumeClaim
	// StorageClass is that of Claim. See Plan.InspectClass.
	StorageClass StorageClass
	// Nodes are the nodes, by name, of the pods, and that of an active attempt.
	Nodes map[string]Node
	// Elsewhere is true if the cluster has a node that can be reached. It has to be known only if one
	// of Nodes or of the volume's cannot.
	Elsewhere bool
	// Volume is the PersistentVolume of Claim. See Plan.InspectVolume.
	Volume Volume
	// Durable is the last durable checkpoint, if the latest one is not. See Plan.InspectDurable.
	Durable Durable
	// FormerClaims are those that the status says were left behind, as far as they exist.
	FormerClaims []corev1.PersistentVolumeClaim
	// GrowthRefused is why the API server did not let Claim grow to the size in the spec, if neither
	// of them has changed since; "" if it did, or was not asked.
	GrowthRefused string
	// Stored is what else is known of the task's latest checkpoint. See Plan.Inspect.
	Stored Stored
	// History is the history store's answer about the task.
	History History
	// RewindTarget is the Checkpoint named by a new rewind; nil if it does not
	// exist. See NewRewind.
	RewindTarget *v1alpha1.Checkpoint
	// RewindRecord is the history store's answer to a rewind that goes to a checkpoint by its
	// number. See CheckpointOf.
	RewindRecord RewindRecord
	// ResumeTarget and ResumeRecord are the same for a new resume from a checkpoint. See
	// NewResume.
	ResumeTarget *v1alpha1.Checkpoint
	ResumeRecord RewindRecord
	// RewindUndone is the history store's answer to a rewind that undoes another one.
	RewindUndone RewindUndone
	// RewindDone is the history store's answer to what the rewind has done that it knows to be complete. See
	// DoneRewind.
	RewindDone RewindDone
	// RewindPosition is the history store's answer to a rewind that names a message or
	// a time. See PositionOf.
	RewindPosition RewindPosition
	// Adoption is what was found for a Task whose adoption is undecided. See UndecidedAdoption.
	Adoption Adoption
	// Publication is what the history store knows of the ref that spec.publish names.
	Publication Publication
	// Source is what was found of an unresolved startFrom. See UnresolvedSource.
	Source Source
	// Dependencies are the tasks that it waits for, by their names. See Awaited.
	Dependencies map[string]FoundTask
	// Awaiting are the tasks that wait for the observed one, directly or through others, and itself,
	// by name, with those that each waits for; of very many, only some. It is empty for a task that
	// waits for none. See Circle.
	Awaiting map[string][]string
	// Waiters are the names of the tasks that wait for the observed one to complete, in order.
	Waiters []string
	// Queue is what it finds when it asks for a place among the tasks that run at once.
	Queue Queue
	// Started are the tasks of the namespace that start from this one, as their status says.
	// They are only read.
	Started []v1alpha1.Task
	// Contract is what was found of the task's contract, and Parent of its parent.
	Contract Contract
	Parent   Parent
	// Shared are the budgets that the task shares with others.
	Shared Shared
	// PhaseCall is the oldest call of the tool phase_set that the agent of a supervisor has made and that
	// has no answer yet; nil for none.
	PhaseCall *PhaseCall
	// PhaseStart is the Checkpoint with which the contract's next phase is to begin; nil if it does not
	// exist. See PhaseStartName.
	PhaseStart *v1alpha1.Checkpoint
	// Children are the tasks whose parent this one is, as their status says. They are only read.
	Children []v1alpha1.Task
	// Joining is how many tasks may have become children of one that is being deleted, and are not
	// among Children yet.
	Joining int
	// Results are what the finished children have said. See Plan.InspectResults.
	Results Results
	// Stamped is true when spec.requestedBy was written by admission, and holds
	// nothing sent by a client.
	Stamped bool
	// TemplateProblem is why the pod template cannot be used; "" if it can.
	TemplateProblem string
	// PodDigest is that of the pods that the spec makes now; "" if it is not known, or none can be made.
	PodDigest string
	// Blocker is why the last pod or claim could not be created; nil if it could.
	Blocker *Blocker
	// MadePodUID is the UID of the active attempt's pod if this process created it.
	MadePodUID string
	// ReservedAttempt is the number this process reserved last, as long as it knows
	// for certain which pod it created for that number, or that it created none; 0
	// when it reserved none.
	ReservedAttempt int64
	// Attempts is what this process knows about the attempt numbers already used.
	Attempts Attempts
	// Recorded is the sequence number up to which this process knows that the
	// history store has the entries of status.history.
	Recorded int64
	// RecordProblem is why entries could not be recorded; "" if they could.
	RecordProblem string
	// LastWrite is when this process last wrote the task's status.
	LastWrite time.Time
	// Limits are the pauses, timeouts and intervals to use.
	Limits Limits
}

// History is the history store's answer.
type History struct {
	// Known is false when the store could not be asked.
	Known bool
	// Deleted is true when the task's history was deleted: nothing can be added to it,
	// and no pod can be prepared.
	Deleted bool
	// ContinuedBy is the UID of the later task that has adopted the task's history, which knows
	// nothing of that; no pod can be prepared. Empty if none has.
	ContinuedBy string
	// State is the zero value for a task without records.
	State history.TaskState
}

// Attempts is the history store's last answer about a task's attempts, together with
// the numbers reserved since. It remains valid while the store is down.
type Attempts struct {
	// Known is false until the store has answered once.
	Known bool
	// Highest is the highest number; 0 for none.
	Highest int64
}

// Adoption is the history that a new Task may continue.
type Adoption struct {
	// Known is false while the history store cannot be asked.
	Known bool
	history.Adoption
	// Earlier are the tasks whose history the former one had continued, newest first.
	Earlier []string
	// Elsewhere reports that nothing can be adopted, but that an earlier namespace of the same
	// name has left a history of this task's name.
	Elsewhere bool
	// Code is why the gitstore has not given the task the checkpoints of what it has adopted; Done is
	// false then. nil if it has, or was not asked.
	Code *CodeProblem
	// Operations are those of OperationKeys that the history has.
	Operations []string
}

// CodeProblem is why the gitstore does not do what it was asked for.
type CodeProblem struct {
	// Reason is the gitstore's reason for a refusal; "" if it does not answer, or has not finished.
	Reason string
	// Message is a sentence for users about the refusal.
	Message string
}

// Publication is what a task has pushed last to the ref that it publishes to.
type Publication struct {
	// Known is false while the history store cannot be asked.
	Known bool
	// Found is nil when the store knows of none.
	Found *history.Publication
	// Damaged is the checkpoint for whose publication a pod would be started, if its objects are
	// recorded as damaged; nil otherwise, and while no pod would be.
	Damaged *history.Checkpoint
}

// Source is what was found of the moment that a task starts from.
type Source struct {
	// Task is the source; nil if it does not exist.
	Task *v1alpha1.Task
	// Kept are the UIDs of the tasks of this name that are gone and whose history is kept,
	// newest first, if Task is nil. If there is only one, Record and Found belong to it.
	Kept []string
	// Deleted reports that the history of the UID that is named was deleted.
	Deleted bool
	// Elsewhere reports that Kept is empty, but that an earlier namespace of the same name has
	// left a history of this name.
	Elsewhere bool
	// Checkpoint is the object that is named, or the source's latest one if no moment is;
	// nil if it does not exist.
	Checkpoint *v1alpha1.Checkpoint
	// Known is false while the history store cannot answer for a moment that only it knows.
	// Behind reports that the store lacks records of the source.
	Known, Behind bool
	// Record is the checkpoint that the history store has for such a moment; nil if it has
	// none. Found is how a message or a time was resolved; nil for other moments and if the
	// conversation has no such position.
	Record *history.Checkpoint
	Found  *history.Resolved
	// Damaged is why the conversation cannot be read; "" if it can.
	Damaged string
}

// Results are what the finished children of a supervisor that begins a phase again have said last.
type Results struct {
	// Known is false while the history store cannot be asked.
	Known bool
	// Said are the texts by the children's UIDs; those that have said nothing are missing. Unread are the
	// children whose texts could not be read in time.
	Said   map[string]string
	Unread map[string]bool
}

// RewindRecord is the recorded checkpoint that is the target of a rewind.
type RewindRecord struct {
	// Known is false while the history store cannot be asked.
	Known bool
	// Found is nil when the task has no checkpoint of that number.
	Found *history.Checkpoint
}

// RewindPosition is the resolved target of a rewind to a message, to a time or by a
// number of messages.
type RewindPosition struct {
	// Known is false while the history store cannot be asked.
	Known bool
	// Found is nil when the conversation has no such position.
	Found *history.Resolved
	// Damaged is why the conversation cannot be rewound; "" if it can.
	Damaged string
}

// Blocker is why a task cannot proceed, and what to do about it.
type Blocker struct {
	// Reason is a reason constant of v1alpha1.
	Reason string
	// Message is a sentence for users.
	Message string
}

// Limits are the pauses, timeouts and intervals that decisions use.
type Limits struct {
	// RetryBase is the pause before the first retry; it doubles each time.
	RetryBase time.Duration
	// RetryCap bounds the pause after agent failures.
	RetryCap time.Duration
	// RateLimitPatience is how long an uninterrupted series of rate limits of the
	// model's API does not count towards backoffLimit.
	RateLimitPatience time.Duration
	// PrepareRetryCap bounds the pause after failures to prepare the workspace.
	PrepareRetryCap time.Duration
	// LostPodBase is the pause before the second replacement of pods that are lost
	// soon after their start; it doubles each time. The first replacement follows at
	// once.
	LostPodBase time.Duration
	// LostPodCap bounds the pause after lost pods.
	LostPodCap time.Duration
	// RefreshEvery is the minimum interval between status writes that only report
	// new checkpoints.
	RefreshEvery time.Duration
	// ActivityEvery is the minimum interval between status writes that only update
	// the time of the agent's last activity; 0 for no such writes.
	ActivityEvery time.Duration
	// EndingHold is how long the checkpoint of an ending pod is held back so that
	// the pod's end is reported in the same write.
	EndingHold time.Duration
	// ProblemGrace is how old a pod must be before its problems are reported: many
	// pass within seconds.
	ProblemGrace time.Duration
	// PublishEvery is the least interval between the starts of pods that publish
	// checkpoints of a task that works on. It doubles with each refusal in a row, from
	// the second on, up to PublishEveryCap.
	PublishEvery, PublishEveryCap time.Duration
	// BudgetGrace is how long a daemon may take, once a budget is spent, to end its agent at the end of a
	// tool call.
	BudgetGrace time.Duration
	// RecordWait is how long to wait for a pod's last checkpoint after the pod ended.
	RecordWait time.Duration
	// StartPatience is how long an attempt keeps a place for which another task waits although its pod
	// is refused or does not start, and PreparePatience how long while its workspace is prepared.
	StartPatience, PreparePatience time.Duration
}

// DefaultLimits returns the limits the manager uses.
func DefaultLimits() Limits {
	return Limits{
		RetryBase:         5 * time.Second,
		PublishEvery:      5 * time.Minute,
		PublishEveryCap:   time.Hour,
		RetryCap:          5 * time.Minute,
		RateLimitPatience: 24 * time.Hour,
		PrepareRetryCap:   time.Minute,
		LostPodBase:       time.Second,
		LostPodCap:        10 * time.Second,
		RefreshEvery:      2 * time.Second,
		ActivityEvery:     5 * time.Minute,
		EndingHold:        10 * time.Second,
		ProblemGrace:      10 * time.Second,
		BudgetGrace:       5 * time.Minute,
		RecordWait:        30 * time.Second,
		StartPatience:     5 * time.Minute,
		PreparePatience:   30 * time.Minute,
	}
}

// Plan is what to do, in this order: claim, Checkpoints, ConversationSnapshots, status, pods to
// stop, claim to delete or to grow, pod to start, Events, Task to delete.
type Plan struct {
	// Adopt is the UID of the former task whose history is to be given to this one; "" for none.
	// Nothing else is done then: what follows depends on that history.
	Adopt string
	// CreateClaim asks for the task's PersistentVolumeClaim; its UID is set as
	// Status.ClaimUID before the status is written.
	CreateClaim bool
	// Inspect is the checkpoint of which Observed.Stored has to be known to decide on; 0 for none.
	Inspect int64
	// InspectClass is the storage class of which Observed.StorageClass has to be known; "" for none.
	InspectClass string
	// InspectVolume is the PersistentVolume of which Observed.Volume has to be known; "" for none.
	InspectVolume string
	// InspectDurable asks for Observed.Durable.
	InspectDurable bool
	// InspectResults asks for Observed.Results, right before an attempt starts that needs them.
	InspectResults bool
	// LostSpending is what the history is to count again; nil for nothing.
	LostSpending *LostSpending
	// LostOfContract is what the history is to count again of the contract; nil for nothing.
	LostOfContract *LostOfContract
	// Verify is the checkpoint to be verified soon, for a release of the volume; nil for none.
	Verify *Verification
	// GrowClaim is a larger size for the task's claim, after the status was written; nil for none.
	GrowClaim *Growth
	// DeleteClaim is the UID of the claim to delete after the status was written, which says that it
	// was released; "" for none.
	DeleteClaim string
	// DropClaims are claims to delete after the status was written, which says that they were left
	// behind.
	DropClaims []ObjectRef
	// DeleteTask asks for the Task to be deleted as it is after the status was written.
	DeleteTask bool
	// StopPods are the pods to delete, with their grace period, after the status was written:
	// it says why. They are planned again for as long as they are there.
	StopPods []PodRef
	// RequestStart is the Checkpoint to create with which a phase is to begin; nil for none.
	RequestStart *v1alpha1.Checkpoint
	// Checkpoints are the recorded checkpoints to create objects for; nil for none.
	// The number created at a time for one task is limited. The newest is always
	// among them, and its name is set in Status.LatestCheckpoint; if some are left,
	// Status.CheckpointObjectsThrough is the number after which they begin.
	Checkpoints *Range
	// Snapshots asks for objects for the automatic snapshots of the conversation
	// that follow the one with this number; nil for none. The newest number is set
	// as Status.SnapshotCount.
	Snapshots *int64
	// Status is the status to write if Write is set.
	Status v1alpha1.TaskStatus
	// Write is true when Status has changes worth a write.
	Write bool
	// StartPod is the pod to create after the status was written; nil for none.
	StartPod *Pod
	// StartPublisher is the pod to create that publishes the task's work, after the status was
	// written; nil for none.
	StartPublisher *Publisher
	// DeleteChildren are the children to delete before Farewell.
	DeleteChildren []ObjectRef
	// NeedsPlace is true when the next step is to start an agent in a place among the tasks that run
	// at once, and Queued if the task waits for one.
	NeedsPlace, Queued bool
	// Held is true when a decision is put off: Status does not say yet what the task does next.
	Held bool
	// Entries are those added to Status.History.
	Entries []v1alpha1.HistoryEntry
	// Farewell is the last entry of a task that is being deleted and has no pod
	// left: once it and all earlier entries are recorded, the finalizer is removed.
	Farewell *v1alpha1.HistoryEntry
	// RequeueAfter is when to decide again if nothing happens before; 0 for never.
	RequeueAfter time.Duration
}

// Acts reports whether the plan changes anything.
func (p Plan) Acts() bool {
	return p.Adopt != "" || p.CreateClaim || len(p.StopPods) > 0 || p.Write || p.StartPod != nil || p.StartPublisher != nil || p.Farewell != nil ||
		p.LostSpending != nil || p.LostOfContract != nil || p.Verify != nil || p.GrowClaim != nil || p.DeleteClaim != "" || len(p.DropClaims) > 0 || p.DeleteTask || p.RequestStart != nil
}

// LostSpending is what a task has spent by its records through a sequence, some of which the history has
// lost.
type LostSpending struct {
	Spent   budget.Amounts
	Through int64
}

// LostOfContract is what all tasks of a contract have spent, some of which the history has lost.
type LostOfContract struct {
	Name  string
	Spent budget.Amounts
	// Since is when that was known.
	Since metav1.MicroTime
}

// Verification asks for a checkpoint to be verified.
type Verification struct {
	Checkpoint int64
	// Since is when that began to be waited for, in whole seconds: what was verified before does not
	// count.
	Since metav1.Time
}

// PodRef identifies a pod by its name and UID, so that it never means a later pod of
// the same name.
type PodRef struct {
	Name string
	UID  string
}

// Range is the checkpoints with After < number <= UpTo.
type Range struct {
	After int64
	UpTo  int64
}

// Pod describes a pod to create.
type Pod struct {
	// Attempt is the number of its attempt.
	Attempt int64
	// PrepareOnly is true for a pod without an agent, which only carries out an operation.
	PrepareOnly bool
	// Operation is what prepare carries out; nil for none.
	Operation *daemonapi.Operation
	// Source is the checkpoint of another task that the work starts from; nil for none.
	Source *daemonapi.Source
	// Prompt replaces the task's prompt, if it is not empty.
	Prompt string
	// Answers are the answers to calls for which its agent was stopped.
	Answers []daemonapi.RequestAnswer
	// AvoidedNode is the node that it must not run on; "" for none.
	AvoidedNode string
	// VolumeReleased is true if the volume is new because the former one was released.
	VolumeReleased bool
	// Budgets are those that the task works under, with what is spent of them.
	Budgets []budget.Budget
}

// Publisher describes a pod that publishes a checkpoint.
type Publisher struct {
	// Number of the pod among those that publish the task's work.
	Number int64
	// Checkpoint is the number of the checkpoint.
	Checkpoint int64
	// Replaces is the commit that the task published to the same ref last; empty for none.
	Replaces string
	// Onto is what that commit kept of others; empty for nothing.
	Onto string
	// Earlier are other pushes of the task that the ref may still have.
	Earlier []daemonapi.OwnPush
	// Tries are the checkpoints that pods were started for, this one among them, which may have
	// pushed without having reported it. Announced are their pushes that were announced.
	Tries     []int64
	Announced []daemonapi.OwnPush
	// Unreported are those of them that may have been made by pods that have not reported.
	Unreported []daemonapi.OwnPush
}
