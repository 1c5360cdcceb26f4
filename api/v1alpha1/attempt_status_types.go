package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// AttemptOutcome says how an attempt ended.
// +kubebuilder:validation:Enum=Completed;AgentFailed;Suspended;LimitReached;Stopped;Rewound;PodLost;NodeLost;PrepareFailed;Blocked
type AttemptOutcome string

const (
	// AttemptCompleted: the agent exited with 0, and its last checkpoint is recorded.
	AttemptCompleted AttemptOutcome = "Completed"
	// AttemptAgentFailed: the agent ended with an exit code other than 0.
	AttemptAgentFailed AttemptOutcome = "AgentFailed"
	// AttemptSuspended: stopped because operatingMode was set to Suspended, or because the parent has begun
	// its phase again.
	AttemptSuspended AttemptOutcome = "Suspended"
	// AttemptLimitReached: the agent was stopped, since a limit of the spec was reached. The attempt's
	// reason says which.
	AttemptLimitReached AttemptOutcome = "LimitReached"
	// AttemptStopped: stopped so that another attempt could start, for example for a rewind, or
	// before its agent had started; or since a tool call of its agent waits for a person's answer.
	AttemptStopped AttemptOutcome = "Stopped"
	// AttemptRewound: carried out a rewind of a stopped task and ended there.
	AttemptRewound AttemptOutcome = "Rewound"
	// AttemptPodLost: the pod disappeared without Clew having deleted it.
	AttemptPodLost AttemptOutcome = "PodLost"
	// AttemptNodeLost: the pod's node could not be reached for as long as spec.nodeLoss says, or took
	// the pod with it. Nothing that the pod may still send is accepted.
	AttemptNodeLost AttemptOutcome = "NodeLost"
	// AttemptPrepareFailed: the workspace could not be prepared; another try may help.
	AttemptPrepareFailed AttemptOutcome = "PrepareFailed"
	// AttemptBlocked: the workspace cannot be prepared until somebody acts.
	AttemptBlocked AttemptOutcome = "Blocked"
)

// AttemptTrigger says why an attempt was started.
// +kubebuilder:validation:Enum=Start;Retry;PodLost;Resume;Rewind
type AttemptTrigger string

const (
	// AttemptStart is the first attempt.
	AttemptStart AttemptTrigger = "Start"
	// AttemptRetry follows a failure.
	AttemptRetry AttemptTrigger = "Retry"
	// AttemptAfterPodLost follows a lost pod, or a lost node.
	AttemptAfterPodLost AttemptTrigger = "PodLost"
	// AttemptResume follows a suspension, or a request to resume.
	AttemptResume AttemptTrigger = "Resume"
	// AttemptRewind carries out a rewind.
	AttemptRewind AttemptTrigger = "Rewind"
)

// AttemptPurpose says what the pod of an attempt is for.
// +kubebuilder:validation:Enum=Agent;Rewind
type AttemptPurpose string

const (
	// AttemptForAgent runs the agent, after a rewind if there is one.
	AttemptForAgent AttemptPurpose = "Agent"
	// AttemptForRewind only rewinds a stopped task, and runs no agent.
	AttemptForRewind AttemptPurpose = "Rewind"
)

// AgentMemory says what an agent knew about the conversation when it was started.
// +kubebuilder:validation:Enum=New;Session;Rendered
type AgentMemory string

const (
	// AgentMemoryNew: the agent started with the task's prompt.
	AgentMemoryNew AgentMemory = "New"
	// AgentMemorySession: the agent resumed its own session.
	AgentMemorySession AgentMemory = "Session"
	// AgentMemoryRendered: the conversation was rendered into the prompt.
	AgentMemoryRendered AgentMemory = "Rendered"
)

// RateLimitStatus describes consecutive attempts that ended with a rate limit.
type RateLimitStatus struct {
	// since is when the first of them ended. After a day in which no checkpoint holds other files,
	// rate limits count towards backoffLimit.
	// +required
	Since metav1.Time `json:"since"`
	// tree is the git tree of the latest checkpoint by then; empty if there was none.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	Tree string `json:"tree,omitempty"`
}

// Attempt is one pod of a task.
type Attempt struct {
	// number of the attempt, from 1.
	// +required
	// +kubebuilder:validation:Minimum=1
	Number int64 `json:"number"`
	// podName is the name of its pod.
	// +optional
	PodName string `json:"podName,omitempty"`
	// podUID is the UID of its pod.
	// +optional
	PodUID string `json:"podUID,omitempty"`
	// nodeName is the node that its pod was scheduled to.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	NodeName string `json:"nodeName,omitempty"`
	// trigger says why the attempt was started.
	// +optional
	Trigger AttemptTrigger `json:"trigger,omitempty"`
	// purpose is what its pod is for; empty, from a former version of Clew, for Agent. The pod of a former
	// version can be part of no set of checkpoints.
	// +optional
	Purpose AttemptPurpose `json:"purpose,omitempty"`
	// startTime is when the attempt was reserved.
	// +optional
	StartTime *metav1.Time `json:"startTime,omitempty"`
	// agentStartTime is when its agent's container started; absent if it has not.
	// +optional
	AgentStartTime *metav1.Time `json:"agentStartTime,omitempty"`
	// budgetSpentTime is since when it is known, while the agent runs, that a budget is spent.
	// +optional
	BudgetSpentTime *metav1.Time `json:"budgetSpentTime,omitempty"`
	// agentSeenTime is when its agent was last known to run. While it runs, this is written together
	// with other changes; every five minutes, if the spec bounds for how long it may run.
	// +optional
	AgentSeenTime *metav1.Time `json:"agentSeenTime,omitempty"`
	// waitingSince is since when calls of tools of its agent wait for a person's answer, or since one of
	// them was answered while others waited; absent while none does.
	// +optional
	WaitingSince *metav1.Time `json:"waitingSince,omitempty"`
	// waitedSeconds is how long calls of its agent have waited for answers before that, while it did
	// nothing else, which does not count as its time.
	// +optional
	WaitedSeconds int64 `json:"waitedSeconds,omitempty"`
	// unansweredSeconds is how much of waitedSeconds, of this attempt and of those before it, was since a
	// person last answered a call or resumed the task.
	// +optional
	UnansweredSeconds int64 `json:"unansweredSeconds,omitempty"`
	// endTime is when its end was observed.
	// +optional
	EndTime *metav1.Time `json:"endTime,omitempty"`
	// placeGivenUpTime is when it began to end, before its agent had started, since another task waited
	// for its place among those that run at once; absent if it did not.
	// +optional
	PlaceGivenUpTime *metav1.Time `json:"placeGivenUpTime,omitempty"`
	// outcome says how it ended; empty while it runs.
	// +optional
	Outcome AttemptOutcome `json:"outcome,omitempty"`
	// backTo is the number of the attempt whose end counts, and no later one's: this one has taken the task back
	// there, to a set of checkpoints in which that had ended it, or reports a rewind after which that has ended it.
	// +optional
	BackTo int64 `json:"backTo,omitempty"`
	// reason says why it is being stopped or how it ended, in one word.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	Reason string `json:"reason,omitempty"`
	// memory says what the agent knew about the conversation when it was started; empty for
	// an agent of type Exec, which reads the conversation itself.
	// +optional
	Memory AgentMemory `json:"memory,omitempty"`
	// memoryMessage explains the value of memory.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	MemoryMessage string `json:"memoryMessage,omitempty"`
	// retryTime is the earliest time of the next attempt, if the model's API asked for a
	// pause.
	// +optional
	RetryTime *metav1.Time `json:"retryTime,omitempty"`
	// exitCode of the agent, if it exited by itself.
	// +optional
	ExitCode *int32 `json:"exitCode,omitempty"`
	// message says more about the end.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Message string `json:"message,omitempty"`
	// hindrances are the reasons, in one word each, why its pod could not be created or did
	// not start. The history has each of them once.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MaxLength=63
	Hindrances []string `json:"hindrances,omitempty"`
}
