package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// A child has no pod template of its own: with a second one the CustomResourceDefinition would be half
// as large again, and close to what client-side apply can store of it.

// ChildTemplate is what the children are made of that a supervisor's agent makes. Their pods are those
// of the supervisor's own template, with the container "agent" changed as it says.
// +kubebuilder:validation:XValidation:rule="!has(self.tools) || self.tools.all(t, t in ['checkpoint', 'checkpoints', 'history_search', 'diff'])",fieldPath=".tools",message="children are workers, and the tools that begin with task_, phase_set and publish are a supervisor's: leave them out of children.template.tools"
// +kubebuilder:validation:XValidation:rule="!has(self.onFinish) || self.onFinish.action == 'Release'",fieldPath=".onFinish.action",message="children are released when they have finished, and not deleted, since their supervisor still names them: set action to Release, or leave it out"
// +kubebuilder:validation:XValidation:rule="!has(self.retryOn) || !has(self.failOn) || ((!has(self.retryOn.exitCodes) || !has(self.failOn.exitCodes) || self.retryOn.exitCodes.all(c, !(c in self.failOn.exitCodes))) && (!has(self.retryOn.reasons) || !has(self.failOn.reasons) || self.retryOn.reasons.all(r, !(r in self.failOn.reasons))))",message="retryOn and failOn have an exit code or a reason in common: leave it out of one of them"
type ChildTemplate struct {
	// agent changes the agent.
	// +optional
	Agent *ChildAgent `json:"agent,omitempty"`
	// container changes the container "agent" of the pod.
	// +optional
	Container *ChildContainer `json:"container,omitempty"`
	// workspace changes the volume.
	// +optional
	Workspace *ChildWorkspace `json:"workspace,omitempty"`
	// checkpointPolicy takes the place of the supervisor's as a whole, with its rules that have a person
	// asked.
	// +optional
	CheckpointPolicy *CheckpointPolicy `json:"checkpointPolicy,omitempty"`
	// tools are those of Clew's tools that the agent gets; when left out, those of the supervisor's that
	// a worker can have. [] gives none.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=32
	Tools []AgentTool `json:"tools,omitzero"`
	// backoffLimit is how often a failed agent is restarted before the child fails.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=100
	BackoffLimit *int32 `json:"backoffLimit,omitempty"`
	// deadlineSeconds is how long the agent may run, in all attempts together.
	// +optional
	// +kubebuilder:validation:XValidation:rule="self >= 1 && self <= 31536000",message="deadlineSeconds must be from 1 to 31536000, which is a year: leave it out for that of the supervisor"
	DeadlineSeconds *int64 `json:"deadlineSeconds,omitempty"`
	// budget is what the child may spend; when left out, that of the contract alone bounds it. Nothing of
	// the supervisor's own budget is inherited.
	// +optional
	Budget *Budget `json:"budget,omitempty"`
	// retryOn are ends of the agent that are retried although they would not be otherwise. If it or
	// failOn is set, neither of the supervisor's counts.
	// +optional
	RetryOn *FailureMatcher `json:"retryOn,omitempty"`
	// failOn are ends of the agent that are not retried.
	// +optional
	FailOn *FailureMatcher `json:"failOn,omitempty"`
	// priority decides which of the tasks that wait for a place starts first.
	// +optional
	// +kubebuilder:validation:Minimum=-1000
	// +kubebuilder:validation:Maximum=1000
	Priority *int32 `json:"priority,omitempty"`
	// onFinish says what becomes of the child's objects some time after it has finished. That of the
	// supervisor counts when it is left out, with the action Release.
	// +optional
	OnFinish *OnFinish `json:"onFinish,omitempty"`
}

// ChildAgent changes the agent of children.
// +kubebuilder:validation:XValidation:rule="has(self.type) || has(self.model)",message="set type, model or both in agent, or leave agent out"
// +kubebuilder:validation:XValidation:rule="!has(self.type) || self.type != 'Exec' || !has(self.model)",fieldPath=".model",message="an agent of type Exec is any command, and takes no model: leave agent.model out"
type ChildAgent struct {
	// type of the agent; the supervisor's when left out. Another type than that is started by its own
	// program, without the supervisor's command, arguments and model.
	// +optional
	Type AgentType `json:"type,omitempty"`
	// model that the agent uses; when left out, the supervisor's if the type is the same.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=200
	// +kubebuilder:validation:XValidation:rule="self.matches('^[A-Za-z0-9][A-Za-z0-9._:/@+=,\\\\[\\\\]-]*$')",message="model must be the name of a model as the agent's own option takes it, such as claude-sonnet-4-5 or openai/gpt-5: it begins with a letter or digit and contains no spaces"
	Model string `json:"model,omitempty"`
}

// ChildContainer changes the container "agent" of children.
type ChildContainer struct {
	// image of the container; the supervisor's when left out.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=1024
	// +kubebuilder:validation:XValidation:rule="self.matches('^[^ \\\\x00-\\\\x1f\\\\x7f]+$')",message="image must not contain spaces or control characters"
	Image string `json:"image,omitempty"`
	// command of the container, which takes the place of the supervisor's command and args.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=32768
	Command []string `json:"command,omitempty"`
	// args of the container, which take the place of the supervisor's.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=32768
	Args []string `json:"args,omitempty"`
	// env adds environment variables, and replaces those of the supervisor with the same name.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:XValidation:rule="self.all(e, e.name != 'HOME' && !e.name.startsWith('CLEW_'))",message="environment variables cannot be named HOME or begin with CLEW_: Clew sets those"
	Env []corev1.EnvVar `json:"env,omitempty"`
	// resources replaces those limits and requests of the supervisor that it names.
	// +optional
	Resources *VariantResources `json:"resources,omitempty"`
}

// ChildWorkspace changes the volume of children.
// +kubebuilder:validation:XValidation:rule="!has(self.storageClassName) || size(self.storageClassName) > 0",message="leave storageClassName out to use the supervisor's class"
type ChildWorkspace struct {
	// size of the volume, more than zero; the supervisor's when left out.
	// +optional
	// +kubebuilder:validation:XValidation:rule="quantity(string(self)).isGreaterThan(quantity('0'))",message="size must be more than zero, such as 5Gi"
	Size *resource.Quantity `json:"size,omitempty"`
	// storageClassName of the volume; the supervisor's when left out.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	StorageClassName *string `json:"storageClassName,omitempty"`
}
