package v1alpha1

// CheckpointRetention says which Checkpoint objects of a task stay: the newest, and those
// that are young. Only objects are ever deleted: the history keeps every checkpoint and the
// gitstore its code, and every command and field that takes a checkpoint's number still finds
// it.
// +kubebuilder:validation:XValidation:rule="!has(self.keepLast) || self.keepLast > 0 || (has(self.keepForSeconds) && self.keepForSeconds > 0)",message="this would remove every checkpoint: set keepLast to at least 1, or keepForSeconds to at least 1"
type CheckpointRetention struct {
	// keepLast is how many of the newest Checkpoint objects stay. The latest always stays. Not
	// counted, and never deleted, are those whose retention is Keep, those that somebody
	// applied or a rewind made, unless their retention is ByPolicy, and those that a Task, Fork
	// or ConversationSnapshot names. The manager's --keep-checkpoints is the maximum.
	// +optional
	// +kubebuilder:default=200
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=10000
	KeepLast *int32 `json:"keepLast,omitempty"`
	// keepForSeconds is the age up to which the others stay too, at most as many as the
	// manager's --keep-checkpoints; 0 for none.
	// +optional
	// +kubebuilder:default=0
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=2147483647
	KeepForSeconds *int32 `json:"keepForSeconds,omitempty"`
}

// CheckpointBeforeRun says whether a checkpoint is taken before the agent is started.
// +kubebuilder:validation:Enum=Never;Always
type CheckpointBeforeRun string

const (
	// BeforeRunNever: none is taken.
	BeforeRunNever CheckpointBeforeRun = "Never"
	// BeforeRunAlways: one is taken, unless a checkpoint of the task holds the files already.
	BeforeRunAlways CheckpointBeforeRun = "Always"
)

// CheckpointPolicy says when checkpoints are taken, and how many of their objects stay. One
// is always taken at suspend, at completion and before a rewind.
type CheckpointPolicy struct {
	// everyToolCalls is the number of tool calls after which a checkpoint is taken; 0 for none.
	// +optional
	// +kubebuilder:default=10
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=10000
	EveryToolCalls *int32 `json:"everyToolCalls,omitempty"`
	// everySeconds is the time since the last checkpoint after which one is taken if something
	// changed; 0 for none.
	// +optional
	// +kubebuilder:default=300
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=86400
	EverySeconds *int32 `json:"everySeconds,omitempty"`
	// leastIntervalSeconds limits how many checkpoints the agent can cause by its tool calls
	// or by time: after a burst of 20 there is one per leastIntervalSeconds, so at most
	// 20 + 86400/leastIntervalSeconds a day. A checkpoint that is due too early is delayed; a
	// risky tool call waits for it.
	// +optional
	// +kubebuilder:default=10
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=30
	LeastIntervalSeconds *int32 `json:"leastIntervalSeconds,omitempty"`
	// maxFileBytes is the size above which a file is listed as skipped instead of stored.
	// +optional
	// +kubebuilder:default=104857600
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=2147483648
	MaxFileBytes *int64 `json:"maxFileBytes,omitempty"`
	// beforeRiskyTools are patterns of tool calls before which a checkpoint is taken, or a person is
	// asked, or that are refused, as action says. Agents
	// that have hooks wait for it; the others are stopped as soon as the call is seen, and the
	// checkpoint's status says BestEffort. When left out, they match commands that delete files or
	// history, in a shell or in a database, as far as the version of Clew knows them that starts
	// the pod. A list takes the place of these: repeat those before which a checkpoint is to be taken
	// still. [] matches none.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=32
	BeforeRiskyTools []RiskyToolPattern `json:"beforeRiskyTools,omitzero"`
	// approvalDeadlineSeconds is how long a call that a rule with the action Ask matches waits for an
	// answer; it is then denied. The time in which a call waits and the agent does nothing else does
	// not count towards deadlineSeconds, for as long as this altogether, and again from each answer of a
	// person on. A change takes effect with the next attempt.
	// +optional
	// +kubebuilder:default=86400
	// +kubebuilder:validation:Minimum=10
	// +kubebuilder:validation:Maximum=1209600
	ApprovalDeadlineSeconds *int32 `json:"approvalDeadlineSeconds,omitempty"`
	// beforeRun says whether a checkpoint is taken each time before the agent is started. Always
	// takes one at the task's first start, so that the task can be rewound to it and forked from it,
	// and after a pod was lost, so that what the last run left is kept. Where an earlier run ended
	// with a checkpoint, that one holds the files, and no other is taken. With Never, what the task
	// started from is a commit, which `kubectl clew diff` calls base.
	// +optional
	// +kubebuilder:default=Never
	BeforeRun CheckpointBeforeRun `json:"beforeRun,omitempty"`
	// retention says which Checkpoint objects stay.
	// +optional
	// +kubebuilder:default={}
	Retention CheckpointRetention `json:"retention,omitempty"`
}
