package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// ForkVariant is one new task of a fork.
type ForkVariant struct {
	// name of the new task.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:XValidation:rule="size(self) <= 46",message="the name of a variant is too long: use at most 46 characters, since its pods and checkpoints carry it in their names"
	// +kubebuilder:validation:XValidation:rule="self.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$')",message="the name of a variant must be lower-case letters, digits and '-' only, since its pods carry it in their host names"
	Name string `json:"name"`
	// prompt of the new task; the source's when left out.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=65536
	// +kubebuilder:validation:XValidation:rule="size(bytes(self)) <= 65536",message="prompt is longer than 65536 bytes: put long material into the repository and name it in the prompt"
	// +kubebuilder:validation:XValidation:rule="!self.matches('[\\x00-\\x08\\x0b\\x0c\\x0e-\\x1f\\x7f]')",message="prompt must be text without control characters"
	Prompt *string `json:"prompt,omitempty"`
	// agent changes the source's agent.
	// +optional
	Agent *VariantAgent `json:"agent,omitempty"`
	// branch is the name of the new branch on which the agent's repository starts, at the
	// commit that was checked out; clew/NAME when left out, with a number if the source has
	// that branch, and clew-NAME if it has a branch clew.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=200
	// +kubebuilder:validation:XValidation:rule="self.matches('^[A-Za-z0-9._/-]+$') && self != 'HEAD' && !self.startsWith('-') && !self.startsWith('/') && !self.startsWith('.') && !self.endsWith('/') && !self.endsWith('.') && !self.endsWith('.lock') && !self.contains('..') && !self.contains('//') && !self.contains('/.') && !self.contains('.lock/')",message="branch must be a plain git branch name of letters, digits and . _ / -, such as try/oauth"
	Branch string `json:"branch,omitempty"`
	// template changes the agent's container. The new task is judged as if it had been applied.
	// +optional
	Template *VariantTemplate `json:"template,omitempty"`
	// workspace changes the volume.
	// +optional
	Workspace *VariantWorkspace `json:"workspace,omitempty"`
}

// VariantAgent changes the agent of a variant.
// +kubebuilder:validation:XValidation:rule="has(self.type) || has(self.model)",message="set type, model or both in agent, or leave agent out"
// +kubebuilder:validation:XValidation:rule="!has(self.type) || self.type != 'Exec' || !has(self.model)",fieldPath=".model",message="an agent of type Exec is any command, and takes no model: leave agent.model out"
type VariantAgent struct {
	// type of the agent; the source's when left out. Another type than the source's is
	// started by its own program, without the source's command, arguments and model, and gets
	// the conversation in its prompt.
	// +optional
	Type AgentType `json:"type,omitempty"`
	// model that the agent uses; when left out, the source's if the type is the same.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=200
	// +kubebuilder:validation:XValidation:rule="self.matches('^[A-Za-z0-9][A-Za-z0-9._:/@+=,\\\\[\\\\]-]*$')",message="model must be the name of a model as the agent's own option takes it, such as claude-sonnet-4-5 or openai/gpt-5: it begins with a letter or digit and contains no spaces"
	Model string `json:"model,omitempty"`
}

// VariantTemplate changes the agent's container of a variant.
type VariantTemplate struct {
	// image of the container; the source's when left out.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=1024
	// +kubebuilder:validation:XValidation:rule="self.matches('^[^ \\\\x00-\\\\x1f\\\\x7f]+$')",message="image must not contain spaces or control characters"
	Image string `json:"image,omitempty"`
	// env adds environment variables, and replaces those of the source with the same name.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:XValidation:rule="self.all(e, e.name != 'HOME' && !e.name.startsWith('CLEW_'))",message="environment variables cannot be named HOME or begin with CLEW_: Clew sets those"
	Env []corev1.EnvVar `json:"env,omitempty"`
	// resources replaces those limits and requests of the source that it names.
	// +optional
	Resources *VariantResources `json:"resources,omitempty"`
}

// VariantResources are limits and requests of a container.
type VariantResources struct {
	// limits by the name of the resource.
	// +optional
	Limits corev1.ResourceList `json:"limits,omitempty"`
	// requests by the name of the resource.
	// +optional
	Requests corev1.ResourceList `json:"requests,omitempty"`
}

// VariantWorkspace changes the volume of a variant.
// +kubebuilder:validation:XValidation:rule="!has(self.storageClassName) || size(self.storageClassName) > 0",message="leave storageClassName out to use the source's class"
type VariantWorkspace struct {
	// size of the volume, more than zero; the source's when left out.
	// +optional
	Size *resource.Quantity `json:"size,omitempty"`
	// storageClassName of the volume; the source's when left out.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	StorageClassName *string `json:"storageClassName,omitempty"`
}

// ForkSpec requests new branches of work.
// +kubebuilder:validation:XValidation:rule="self.variants.all(v, v.name != self.sourceRef.name)",message="a fork cannot have its source's name: give the variant another name"
// +kubebuilder:validation:XValidation:rule="!has(self.at) || !has(self.checkpointRef)",message="the Fork has both at and checkpointRef: set only one of them"
type ForkSpec struct {
	// sourceRef names the task to fork. It may be gone, if its history is kept: the new tasks
	// get its last spec, without values that may be secret, which the variants' env must set
	// again.
	// +required
	SourceRef NameReference `json:"sourceRef"`
	// taskUID is the UID of the source, for when several tasks had its name; when left out, the
	// Task of that name, or the only one whose history is kept.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:XValidation:rule="self.matches('^[-A-Za-z0-9]+$')",message="taskUID must be the UID of a task, such as kubectl clew task list -o yaml shows it"
	TaskUID string `json:"taskUID,omitempty"`
	// checkpointRef names the checkpoint of the source to fork from; its latest when left out.
	// The same as at.checkpointRef.
	// +optional
	CheckpointRef *NameReference `json:"checkpointRef,omitempty"`
	// at is the moment of the source to fork from; its latest checkpoint when left out.
	// +optional
	At *StartPoint `json:"at,omitempty"`
	// conversation says whether the conversation up to that checkpoint is included.
	// +optional
	// +kubebuilder:default=Include
	Conversation ConversationMode `json:"conversation,omitempty"`
	// adopt says whether the variants' tasks continue those that the last Fork of this name had made,
	// after that Fork was deleted or the cluster was lost, each where it stood: see spec.adopt of
	// Tasks. A variant that the last Fork had not made starts from the same moment as the others. If the
	// last Fork had another source, moment or conversation, all tasks start anew: status.adoption says
	// what is continued. It may be changed later, and counts until the Fork has resolved its source.
	// Whoever applies it needs the right to get tasks/conversation of all tasks of the namespace in the
	// API group history.clew.dev.
	// +optional
	Adopt AdoptPolicy `json:"adopt,omitempty"`
	// variants are the new tasks, at most 16.
	// +required
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	Variants []ForkVariant `json:"variants"`
	// requestedBy is the name of the user who created the object, as authenticated by the
	// API server. Admission sets it and ignores what a client sends: leave it out.
	// +optional
	// +kubebuilder:validation:MaxLength=256
	RequestedBy string `json:"requestedBy,omitempty"`
}

// ForkedTask is a task that a Fork created.
type ForkedTask struct {
	// name of the task.
	// +required
	Name string `json:"name"`
	// uid of the task.
	// +optional
	UID string `json:"uid,omitempty"`
}

// AdoptedTask is a former task that a task of a Fork continues.
type AdoptedTask struct {
	// name of both tasks.
	// +required
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`
	// formerUID is the UID of the former task.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	FormerUID string `json:"formerUID,omitempty"`
	// operatingMode is that of the former task, and so of the one that continues it: Suspended if
	// nobody knows.
	// +optional
	OperatingMode OperatingMode `json:"operatingMode,omitempty"`
}

// ForkAdoptionStatus is what a Fork with adopt: Latest found when it was new.
type ForkAdoptionStatus struct {
	// tasks are the former tasks that the Fork's tasks of these names continue; none if all start anew.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=16
	Tasks []AdoptedTask `json:"tasks,omitempty"`
	// message says what is continued, or why nothing is.
	// +required
	Message string `json:"message"`
}

// ForkStatus is the resolved checkpoint and the tasks that were created.
type ForkStatus struct {
	// observedGeneration is the generation the status is about.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// conditions has the one condition Complete.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=16
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// requestedBy is who requested the fork. It ends in "(field manager)" when no user name
	// is known.
	// +optional
	// +kubebuilder:validation:MaxLength=512
	RequestedBy string `json:"requestedBy,omitempty"`
	// source is the resolved checkpoint.
	// +optional
	Source *SourceStatus `json:"source,omitempty"`
	// adoption is what the Fork continues; absent unless adopt is Latest.
	// +optional
	Adoption *ForkAdoptionStatus `json:"adoption,omitempty"`
	// tasks are the tasks that were created.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=64
	Tasks []ForkedTask `json:"tasks,omitempty"`
	// taskCount is the number of tasks that were created.
	// +optional
	TaskCount int32 `json:"taskCount,omitempty"`
}

// Point returns the moment to fork from; nil for the latest checkpoint.
func (s *ForkSpec) Point() *StartPoint { return pointOf(s.At, s.CheckpointRef) }

// ForkOrigin is the Fork that a task was created for.
type ForkOrigin struct {
	// name of the Fork.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`
	// uid of the Fork, which distinguishes it from another one of the same name.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	UID string `json:"uid"`
	// fieldManager is the one that applied the Fork; empty when that is not known. It is
	// shown as the requester when no user name is known.
	// +optional
	// +kubebuilder:validation:MaxLength=256
	FieldManager string `json:"fieldManager,omitempty"`
	// from is what the Fork asks for, in words: its source and the moment. A task continues one that
	// was made for the same.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	From string `json:"from,omitempty"`
}

// Fork creates new tasks that start from one moment of another task. The source is not
// changed. The new tasks are children of the source's parent if that exists when they are made, and
// otherwise nobody's, in the source's contract.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:shortName=cfork;cforks,categories=clew
// +kubebuilder:printcolumn:name="Source",type=string,JSONPath=`.spec.sourceRef.name`
// +kubebuilder:printcolumn:name="Checkpoint",type=integer,JSONPath=`.status.source.checkpoint`
// +kubebuilder:printcolumn:name="Tasks",type=integer,JSONPath=`.status.taskCount`
// +kubebuilder:printcolumn:name="Complete",type=string,JSONPath=`.status.conditions[?(@.type=="Complete")].status`
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.conditions[?(@.type=="Complete")].reason`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:validation:XValidation:rule="size(self.metadata.name) <= 63",message="metadata.name is too long: use at most 63 characters, since the new tasks carry it in a label"
// +kubebuilder:validation:XValidation:rule="self.spec.sourceRef == oldSelf.spec.sourceRef && self.spec.variants == oldSelf.spec.variants && has(self.spec.taskUID) == has(oldSelf.spec.taskUID) && (!has(self.spec.taskUID) || self.spec.taskUID == oldSelf.spec.taskUID) && has(self.spec.checkpointRef) == has(oldSelf.spec.checkpointRef) && (!has(self.spec.checkpointRef) || self.spec.checkpointRef == oldSelf.spec.checkpointRef) && has(self.spec.at) == has(oldSelf.spec.at) && (!has(self.spec.at) || self.spec.at == oldSelf.spec.at) && has(self.spec.conversation) == has(oldSelf.spec.conversation) && (!has(self.spec.conversation) || self.spec.conversation == oldSelf.spec.conversation) && has(self.spec.requestedBy) == has(oldSelf.spec.requestedBy) && (!has(self.spec.requestedBy) || self.spec.requestedBy == oldSelf.spec.requestedBy)",message="a Fork's spec is immutable but for adopt: apply a new Fork under another name"
type Fork struct {
	metav1.TypeMeta `json:",inline"`
	// metadata is the standard metadata of an object.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`
	// spec requests a new branch of work.
	// +required
	Spec ForkSpec `json:"spec"`
	// status is the resolved checkpoint and the tasks that were created.
	// +optional
	Status ForkStatus `json:"status,omitempty"`
}

// ForkList is a list of forks.
//
// +kubebuilder:object:root=true
type ForkList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []Fork `json:"items"`
}
