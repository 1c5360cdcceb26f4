package v1alpha1

// ResumeMode says where a resumed task continues.
// +kubebuilder:validation:Enum=Continue;Clean;FromCheckpoint;RestartPhase
type ResumeMode string

const (
	// ResumeContinue continues with the current code and conversation.
	ResumeContinue ResumeMode = "Continue"
	// ResumeClean continues with the current code in a new conversation: the agent gets only
	// its prompt, in a new session.
	ResumeClean ResumeMode = "Clean"
	// ResumeFromCheckpoint rewinds code and conversation to a checkpoint, and continues from
	// there.
	ResumeFromCheckpoint ResumeMode = "FromCheckpoint"
	// ResumeRestartPhase rewinds the code and the conversation of a supervisor to the start of a
	// phase, tells its agent what its children have come to, and stops those that have not finished.
	ResumeRestartPhase ResumeMode = "RestartPhase"
)

// GoesBack reports whether a resume of this mode rewinds the task's code and conversation first.
func (m ResumeMode) GoesBack() bool { return m == ResumeFromCheckpoint || m == ResumeRestartPhase }

// Placement says on which node a resumed task may run.
// +kubebuilder:validation:Enum=Any;OtherNode
type Placement string

const (
	// PlacementAny lets the scheduler choose.
	PlacementAny Placement = "Any"
	// PlacementOtherNode keeps the task off the node on which it last ran.
	PlacementOtherNode Placement = "OtherNode"
)

// Resume requests, once per id, that a stopped task continues.
// +kubebuilder:validation:XValidation:rule="self.mode != 'FromCheckpoint' || has(self.checkpointRef) != has(self.checkpointNumber)",message="set exactly one of checkpointRef and checkpointNumber for the mode FromCheckpoint"
// +kubebuilder:validation:XValidation:rule="self.mode == 'FromCheckpoint' || (!has(self.checkpointRef) && !has(self.checkpointNumber))",message="only the mode FromCheckpoint has a checkpoint: set mode to FromCheckpoint, or leave checkpointRef and checkpointNumber out"
// +kubebuilder:validation:XValidation:rule="!(self.mode in ['FromCheckpoint', 'RestartPhase']) || (!self.id.contains('..') && !self.id.endsWith('.lock'))",message="the current state is kept as branch clew/before/resume-ID, and a branch name cannot contain '..' or end in '.lock': choose another id"
// +kubebuilder:validation:XValidation:rule="self.mode == 'RestartPhase' || !has(self.phase)",message="only the mode RestartPhase has a phase: set mode to RestartPhase, or leave phase out"
type Resume struct {
	// id of this request. A new id requests the operation once; the same id again does nothing.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$`
	ID string `json:"id"`
	// mode says where to continue. Continue: from the current code and conversation. Clean:
	// from the current code, in a new conversation with a new session of the agent; the former
	// conversation is kept. FromCheckpoint: code and conversation are rewound to a checkpoint
	// first, with the current state kept as branch clew/before/resume-ID. RestartPhase, for
	// supervisors: they are rewound to the checkpoint with which a phase began, in the same way; the
	// agent is told, below the prompt, what its finished children have come to, and the children that
	// have not finished are stopped and kept, until each is resumed. A supervisor that runs is stopped for
	// it, as it is for a rewind; its children go on until then.
	// +optional
	// +kubebuilder:default=Continue
	Mode ResumeMode `json:"mode,omitempty"`
	// checkpointRef names the checkpoint of this task to continue from.
	// +optional
	CheckpointRef *NameReference `json:"checkpointRef,omitempty"`
	// checkpointNumber is the number of the checkpoint of this task to continue from, whether
	// or not it still has a Checkpoint object.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=2147483647
	CheckpointNumber *int64 `json:"checkpointNumber,omitempty"`
	// phase is the one that begins again with the mode RestartPhase; the current one when left out. The
	// contract must have been in it.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	Phase string `json:"phase,omitempty"`
	// context bounds the conversation that is rendered into the prompt when the agent's own
	// session cannot be resumed; fields that are left out have the values of
	// spec.conversation.context.
	// +optional
	Context *ContextLimits `json:"context,omitempty"`
	// prompt is given to the agent as the next user message; at most 32768 bytes. A completed
	// task needs one to continue, except from a checkpoint or the start of a phase. With the mode Clean it is the task's
	// own prompt when left out.
	// +optional
	// +kubebuilder:validation:MaxLength=32768
	// +kubebuilder:validation:XValidation:rule="size(bytes(self)) <= 32768",message="resume.prompt is longer than 32768 bytes: put long material into the repository and name it in the prompt"
	// +kubebuilder:validation:XValidation:rule="!self.matches('[\\x00-\\x08\\x0b\\x0c\\x0e-\\x1f\\x7f]')",message="resume.prompt must be text without control characters"
	Prompt string `json:"prompt,omitempty"`
	// additionalContext is given to the agent below the prompt, for example the reason why a
	// review failed; at most 16384 bytes. An agent of type Exec finds it in the environment
	// variable CLEW_ADDITIONAL_CONTEXT of this resume's pod.
	// +optional
	// +kubebuilder:validation:MaxLength=16384
	// +kubebuilder:validation:XValidation:rule="size(bytes(self)) <= 16384",message="resume.additionalContext is longer than 16384 bytes: put long material into the repository and name it in the prompt"
	// +kubebuilder:validation:XValidation:rule="!self.matches('[\\x00-\\x08\\x0b\\x0c\\x0e-\\x1f\\x7f]')",message="resume.additionalContext must be text without control characters"
	AdditionalContext string `json:"additionalContext,omitempty"`
	// placement says on which node the task may run. OtherNode keeps the pod of this resume off
	// the node on which the task last ran; a later pod may run there again. If the task's volume
	// can only be mounted there, as a local volume, the pod cannot be scheduled: resume the task
	// with Any then.
	// +optional
	// +kubebuilder:default=Any
	Placement Placement `json:"placement,omitempty"`
	// onDrift says what to do when the worktree was changed while the task was not running.
	// +optional
	// +kubebuilder:default=Fail
	OnDrift OnDrift `json:"onDrift,omitempty"`
}
