package v1alpha1

// ResumeMode says where a resumed task continues.
// +kubebuilder:validation:Enum=Continue
type ResumeMode string

// ResumeContinue continues with the current code and conversation.
const ResumeContinue ResumeMode = "Continue"

// Resume requests, once per id, that a stopped task continues.
type Resume struct {
	// id of this request. A new id requests the operation once; the same id again does nothing.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$`
	ID string `json:"id"`
	// mode says where to continue.
	// +optional
	// +kubebuilder:default=Continue
	Mode ResumeMode `json:"mode,omitempty"`
	// context bounds the conversation that is rendered into the prompt when the agent's own
	// session cannot be resumed; fields that are left out have the values of
	// spec.conversation.context.
	// +optional
	Context *ContextLimits `json:"context,omitempty"`
	// prompt is given to the agent as the next user message; at most 32768 bytes. A completed
	// task needs one to continue.
	// +optional
	// +kubebuilder:validation:MaxLength=32768
	// +kubebuilder:validation:XValidation:rule="size(bytes(self)) <= 32768",message="resume.prompt is longer than 32768 bytes: put long material into the repository and name it in the prompt"
	// +kubebuilder:validation:XValidation:rule="!self.matches('[\\x00-\\x08\\x0b\\x0c\\x0e-\\x1f\\x7f]')",message="resume.prompt must be text without control characters"
	Prompt string `json:"prompt,omitempty"`
	// onDrift says what to do when the worktree was changed while the task was not running.
	// +optional
	// +kubebuilder:default=Fail
	OnDrift OnDrift `json:"onDrift,omitempty"`
}
