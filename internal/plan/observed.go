package plan

import (
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/daemonapi"
	"github.com/clew-dev/clew/internal/history"
)

// Observed is everything that a decision depends on.
type Observed struct {
	// Task is the stored object, with its status as last written.
	Task *v1alpha1.Task
	// Pods are all pods labelled with the task's UID.
	Pods []corev1.Pod
	// Claim is the PersistentVolumeClaim by the task's name for it, whoever
	// made it; nil if there is none.
	Claim *corev1.PersistentVolumeClaim
	// History is where the task stands in the history store.
	History History
	// RewindTarget is the Checkpoint that a new rewind names; nil if it does
	// not exist. See NewRewind.
	RewindTarget *v1alpha1.Checkpoint
	// RewindPosition is the history store's answer to a rewind that names a message or
	// a time. See PositionOf.
	RewindPosition RewindPosition
	// Source and SourceCheckpoint are what an unresolved startFrom names; nil
	// when they do not exist. See UnresolvedSource.
	Source           *v1alpha1.Task
	SourceCheckpoint *v1alpha1.Checkpoint
	// Stamped says that spec.requestedBy holds what admission wrote there, and
	// nothing that a client sent.
	Stamped bool
	// TemplateProblem is why the pod template cannot be used; "" if it can.
	TemplateProblem string
	// Blocker is why the last pod or claim could not be made; nil if it could.
	Blocker *Blocker
	// MadePodUID is the UID of the active attempt's pod when this process made it.
	MadePodUID string
	// ReservedAttempt is the number that this process reserved last, as long as
	// it knows for certain which pod it made for it, or that it made none; 0
	// when it reserved none.
	ReservedAttempt int64
	// Attempts is what this process knows of the numbers that were used.
	Attempts Attempts
	// Recorded is the sequence up to which this process knows the entries of
	// status.history to be in the history store.
	Recorded int64
	// RecordProblem is why entries could not be recorded; "" if they could.
	RecordProblem string
	// LastWrite is when this process last wrote the task's status.
	LastWrite time.Time
	// Limits say how long to wait for what.
	Limits Limits
}

// History is the history store's answer.
type History struct {
	// Known is false when the store could not be asked.
	Known bool
	// Deleted says that the task's history was deleted: nothing can be added to it, and
	// no pod could be prepared.
	Deleted bool
	// State is the zero value for a task without records.
	State history.TaskState
}

// Attempts is what the history store last said about a task's attempts, and what was
// reserved since. It remains valid while the store is down.
type Attempts struct {
	// Known is false until the store has answered once.
	Known bool
	// Highest is the highest number; 0 for none.
	Highest int64
}

// RewindPosition is where a rewind to a message, a time or by a number of
// messages goes.
type RewindPosition struct {
	// Known is false while the history store cannot be asked.
	Known bool
	// Found is nil when the conversation has no such place.
	Found *history.Resolved
	// Damaged is why the conversation cannot be rewound; "" if it can.
	Damaged string
}

// Blocker is why something cannot go on, and what to do about it.
type Blocker struct {
	// Reason is a reason constant of v1alpha1.
	Reason  string
	Message string
}

// Limits are how long decisions wait for what.
type Limits struct {
	// RetryBase is the pause before the first retry; it doubles each time.
	RetryBase time.Duration
	// RetryCap bounds the pause after agent failures.
	RetryCap time.Duration
	// RateLimitPatience is for how long rate limits of the model's API, and
	// nothing else, do not count towards backoffLimit.
	RateLimitPatience time.Duration
	// PrepareRetryCap bounds the pause after failures to prepare the workspace.
	PrepareRetryCap time.Duration
	// LostPodBase is the pause before the second of several pods that are lost
	// soon after their start; it doubles each time. The first follows at once.
	LostPodBase time.Duration
	// LostPodCap bounds the pause after lost pods.
	LostPodCap time.Duration
	// RefreshEvery is the shortest time between two status writes that only
	// tell of new checkpoints.
	RefreshEvery time.Duration
	// ActivityEvery is the shortest time between two status writes that only tell
	// when the agent was last heard of; 0 for none.
	ActivityEvery time.Duration
	// EndingHold is how long the checkpoint of an ending pod waits to be told
	// of in the same write as the pod's end.
	EndingHold time.Duration
	// ProblemGrace is how old a pod must be for its troubles to be reported:
	// many pass within seconds.
	ProblemGrace time.Duration
	// RecordWait is how long after the end of a pod its last checkpoint is waited for.
	RecordWait time.Duration
}

// DefaultLimits are those of the manager.
func DefaultLimits() Limits {
	return Limits{
		RetryBase:         5 * time.Second,
		RetryCap:          5 * time.Minute,
		RateLimitPatience: 24 * time.Hour,
		PrepareRetryCap:   time.Minute,
		LostPodBase:       time.Second,
		LostPodCap:        10 * time.Second,
		RefreshEvery:      2 * time.Second,
		ActivityEvery:     5 * time.Minute,
		EndingHold:        10 * time.Second,
		ProblemGrace:      10 * time.Second,
		RecordWait:        30 * time.Second,
	}
}

// Plan is what is to be done, in this order: claim, pods to stop, Checkpoints,
// ConversationSnapshots, status, pod to start, Events.
type Plan struct {
	// CreateClaim asks for the task's PersistentVolumeClaim; its UID belongs
	// into Status.ClaimUID before that is written.
	CreateClaim bool
	// StopPods are to be deleted, with their grace period.
	StopPods []PodRef
	// Checkpoints are recorded checkpoints to make objects for; nil for none. As
	// many as one task may have made at a time are made, the newest among them,
	// whose name belongs into Status.LatestCheckpoint; if some are left,
	// Status.CheckpointObjectsThrough says after which.
	Checkpoints *Range
	// Snapshots asks for objects for the automatic snapshots of the conversation
	// after the one of this number; nil for none. The number of the newest
	// belongs into Status.SnapshotCount.
	Snapshots *int64
	// Status is the status to write if Write is set.
	Status v1alpha1.TaskStatus
	Write  bool
	// StartPod is the pod to create once the status is written; nil for none.
	StartPod *Pod
	// Entries are those that Status.History has gained.
	Entries []v1alpha1.HistoryEntry
	// Farewell is the last entry of a task that is being deleted and has no
	// pod left: once it and all entries before it are recorded, the finalizer goes.
	Farewell *v1alpha1.HistoryEntry
	// RequeueAfter is when to look again if nothing happens; 0 for never.
	RequeueAfter time.Duration
}

// Acts says whether the plan changes anything.
func (p Plan) Acts() bool {
	return p.CreateClaim || len(p.StopPods) > 0 || p.Write || p.StartPod != nil || p.Farewell != nil
}

// PodRef names one very pod.
type PodRef struct {
	Name string
	UID  string
}

// Range is checkpoints After < number <= UpTo.
type Range struct {
	After int64
	UpTo  int64
}

// Pod says what a pod is for.
type Pod struct {
	Attempt     int64
	PrepareOnly bool
	Operation   *daemonapi.Operation
	Source      *daemonapi.Source
	// Prompt is what the agent is asked in place of the task's prompt, if not empty.
	Prompt string
}
