package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// OperatingMode says whether a task runs.
// +kubebuilder:validation:Enum=Running;Suspended
type OperatingMode string

const (
	// OperatingModeRunning runs the agent.
	OperatingModeRunning OperatingMode = "Running"
	// OperatingModeSuspended keeps the work and runs no pod.
	OperatingModeSuspended OperatingMode = "Suspended"
)

// WorkspaceRetention says what happens to the volume when the task is deleted.
// +kubebuilder:validation:Enum=Delete;Retain
type WorkspaceRetention string

const (
	// WorkspaceDelete deletes the volume with the task.
	WorkspaceDelete WorkspaceRetention = "Delete"
	// WorkspaceRetain keeps the volume.
	WorkspaceRetain WorkspaceRetention = "Retain"
)

// ResumeMode says where a resumed task continues.
// +kubebuilder:validation:Enum=Continue
type ResumeMode string

// ResumeContinue continues with the current code and conversation.
const ResumeContinue ResumeMode = "Continue"

// RewindScope says what a rewind restores.
// +kubebuilder:validation:Enum=Code;Conversation;Both
type RewindScope string

const (
	// RewindCode rewinds only the files.
	RewindCode RewindScope = "Code"
	// RewindConversation rewinds only the conversation and the agent's own state.
	RewindConversation RewindScope = "Conversation"
	// RewindBoth rewinds files, agent state and conversation together.
	RewindBoth RewindScope = "Both"
)

// PreserveMode says how a rewind preserves the current worktree.
// +kubebuilder:validation:Enum=Branch;Stash;Discard
type PreserveMode string

const (
	// PreserveBranch keeps it as a branch in the agent's repository.
	PreserveBranch PreserveMode = "Branch"
	// PreserveStash keeps it as an entry of git stash in the agent's repository.
	PreserveStash PreserveMode = "Stash"
	// PreserveDiscard keeps it as a checkpoint only.
	PreserveDiscard PreserveMode = "Discard"
)

// Repository is the source of a task's code.
// +kubebuilder:validation:XValidation:rule="!self.url.matches('^[A-Za-z]+://[^/]*@')",message="take the credentials out of url and name a Secret in credentialsSecretRef instead"
// +kubebuilder:validation:XValidation:rule="self.url.matches('^https?://[^/ ?#]+/[^ ]+$')",message="url must be an http:// or https:// address of a git repository, such as https://git.example.com/team/project.git"
type Repository struct {
	// url of the repository, http:// or https://, without credentials.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=2048
	// +kubebuilder:validation:XValidation:rule="!self.matches('[\\\\x00-\\\\x20\\\\x7f]')",message="url must not contain spaces or control characters"
	// +kubebuilder:validation:XValidation:rule="!self.startsWith('-')",message="url must not begin with '-'"
	URL string `json:"url"`

	// ref is a branch, a tag or a full commit id; the repository's default branch when left out.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=255
	// +kubebuilder:validation:XValidation:rule="!self.startsWith('-')",message="ref must not begin with '-': give the name of a branch, a tag or a commit id"
	// +kubebuilder:validation:XValidation:rule="!self.contains('..')",message="ref must not contain '..': give one branch, tag or commit id, not a range"
	// +kubebuilder:validation:XValidation:rule="self.matches('^[^\\\\x00-\\\\x20\\\\x7f~^:?*\\\\[\\\\\\\\]+$')",message="ref must not contain spaces, control characters or any of ~ ^ : ? * [ \\\\: give the name of a branch, a tag or a commit id"
	// +kubebuilder:validation:XValidation:rule="!self.endsWith('/') && !self.endsWith('.lock') && !self.endsWith('.') && !self.startsWith('/') && !self.contains('//') && !self.contains('@{')",message="ref is not a name that git accepts: give the name of a branch, a tag or a commit id"
	Ref string `json:"ref,omitempty"`

	// credentialsSecretRef names a Secret with the keys username and password, or token.
	// The agent never sees it.
	// +optional
	CredentialsSecretRef *NameReference `json:"credentialsSecretRef,omitempty"`
}

// KeyReference names one key of a ConfigMap or a Secret of the same namespace.
type KeyReference struct {
	// name of the object.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="self.matches('^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$')",message="name must be the name of an object of this namespace"
	Name string `json:"name"`
	// key whose value is used.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="self.matches('^[-._a-zA-Z0-9]+$')",message="key must be a key of the object's data: letters, digits, '-', '_' and '.'"
	Key string `json:"key"`
}

// PromptSource is where the prompt is read from.
// +kubebuilder:validation:XValidation:rule="has(self.configMapKeyRef) != has(self.secretKeyRef)",message="set either configMapKeyRef or secretKeyRef in promptFrom"
type PromptSource struct {
	// configMapKeyRef takes the prompt from a ConfigMap.
	// +optional
	ConfigMapKeyRef *KeyReference `json:"configMapKeyRef,omitempty"`
	// secretKeyRef takes the prompt from a Secret.
	// +optional
	SecretKeyRef *KeyReference `json:"secretKeyRef,omitempty"`
}

// WorkspaceAccessMode is an access mode of a PersistentVolumeClaim.
// +kubebuilder:validation:Enum=ReadWriteOnce;ReadWriteOncePod
type WorkspaceAccessMode string

// Access modes of a workspace.
const (
	// WorkspaceReadWriteOnce: the volume can be mounted by the pods of one node.
	WorkspaceReadWriteOnce WorkspaceAccessMode = "ReadWriteOnce"
	// WorkspaceReadWriteOncePod: the volume can be mounted by one pod.
	WorkspaceReadWriteOncePod WorkspaceAccessMode = "ReadWriteOncePod"
)

// Workspace is the volume a task works on.
// +kubebuilder:validation:XValidation:rule="!has(self.storageClassName) || size(self.storageClassName) > 0",message="leave storageClassName out to use the cluster's default class"
type Workspace struct {
	// size of the volume.
	// +optional
	// +kubebuilder:default="5Gi"
	// +kubebuilder:validation:XValidation:rule="quantity(string(self)).isGreaterThan(quantity('0'))",message="size must be more than zero, such as 5Gi"
	Size resource.Quantity `json:"size,omitempty"`
	// storageClassName of the volume; the cluster's default class when left out.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	StorageClassName *string `json:"storageClassName,omitempty"`
	// accessMode of the volume. With ReadWriteOncePod the cluster itself prevents a second
	// pod from mounting the volume, if the storage driver supports it; no API reports whether
	// it does, so the default is set when Clew is installed.
	// +optional
	AccessMode WorkspaceAccessMode `json:"accessMode,omitempty"`
	// retention says whether the volume is deleted with the task.
	// +optional
	// +kubebuilder:default=Delete
	Retention WorkspaceRetention `json:"retention,omitempty"`
}

// CheckpointPolicy says when checkpoints are taken. One is always taken at
// suspend, at completion and before a rewind.
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
	// beforeRiskyTools are patterns of tool calls before which a checkpoint is taken. Agents
	// that have hooks wait for it; the others are stopped as soon as the call is seen, and the
	// checkpoint's status says BestEffort. The default matches commands that delete files or
	// history, in a shell or in a database; [] matches none.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:default={{tool: "(?i)(bash|shell|exec|command|terminal)", input: "(\\b|\\\\[nt])(rm\\s[^;&|]*(-[A-Za-z]*[rRf]|--recursive|--force)|rmdir\\s|shred\\s|truncate\\s|mkfs|dd\\s[^;&|]*of=|find\\s[^;&|]*-(delete|exec))"}, {tool: "(?i)(bash|shell|exec|command|terminal)", input: "(\\b|\\\\[nt])git\\s[^;&|]*(reset\\s|clean\\s|checkout\\s|restore\\s|switch\\s|rebase|stash|filter-branch|filter-repo|push\\s[^;&|]*(-f|--force|--delete|--mirror)|branch\\s[^;&|]*-D)"}, {tool: "(?i)(bash|shell|exec|command|terminal)", input: "(?i)\\b(drop|truncate)\\s+(table|database|schema)\\b|\\bdelete\\s+from\\b"}}
	BeforeRiskyTools []RiskyToolPattern `json:"beforeRiskyTools,omitzero"`
}

// StartFrom makes a new task start from a checkpoint of another one.
type StartFrom struct {
	// taskRef names the source task.
	// +required
	TaskRef NameReference `json:"taskRef"`
	// checkpointRef names one of its checkpoints; the latest when left out.
	// +optional
	CheckpointRef *NameReference `json:"checkpointRef,omitempty"`
	// conversation says whether the conversation up to that checkpoint is included.
	// +optional
	// +kubebuilder:default=Include
	Conversation ConversationMode `json:"conversation,omitempty"`
	// fork is the Fork that the task was created for. Leave it out: the manager sets it for
	// the tasks that it creates. If the admission policy clew-task-requesters is installed,
	// what anybody else sends is ignored; otherwise it is trusted, whoever sent it: the
	// task's history names that Fork, and the Fork, while it is not Complete, adopts a Task
	// that has its UID here and the name of one of its variants.
	// +optional
	Fork *ForkOrigin `json:"fork,omitempty"`
}

// Acknowledgement marks known losses, so that status conditions stop reporting them.
type Acknowledgement struct {
	// lostRecords is the number of lost records of the task's history that are known: the
	// number in status.lostRecords, or a smaller one, so that no loss is acknowledged before
	// it happens. While no more are lost, and nothing else is missing, the condition
	// HistoryComplete is True with the reason LossAcknowledged; the next loss makes it False
	// again. When status.lostRecords decreases, because the history store was restored from an
	// older copy and has to find out again what is lost, the acknowledgement ends: remove it,
	// and set it again for what is lost then. A number that a Task is created with, for
	// example from a backup, acknowledges nothing.
	// +required
	// +kubebuilder:validation:Minimum=1
	LostRecords int64 `json:"lostRecords"`
}

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
	// prompt is given to the agent as the next user message; at most 32768 bytes.
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

// RewindTarget is the target of a rewind. A target that is not a checkpoint is snapped down
// to a turn boundary, so that no tool call is separated from its result; the files and the
// agent's state become those of the newest checkpoint at or before it. If there is none, only
// the conversation can be rewound: the agent's state then becomes that of before its first
// run, and the conversation is rendered into its prompt.
// +kubebuilder:validation:XValidation:rule="[has(self.checkpointRef), has(self.message), has(self.time), has(self.messagesBack)].exists_one(x, x)",message="set exactly one of checkpointRef, message, time and messagesBack in rewind.to"
type RewindTarget struct {
	// checkpointRef names a checkpoint of this task.
	// +optional
	CheckpointRef *NameReference `json:"checkpointRef,omitempty"`
	// message is the position of the last message to keep, as kubectl clew task
	// history shows it.
	// +optional
	// +kubebuilder:validation:Minimum=1
	Message *int64 `json:"message,omitempty"`
	// time keeps the messages up to this moment, such as 2026-05-01T14:30:00Z.
	// +optional
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:Pattern=`^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-5][0-9]:[0-5][0-9]([.][0-9]{1,9})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])$`
	Time *metav1.Time `json:"time,omitempty"`
	// messagesBack is the number of newest messages to drop.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1000000
	MessagesBack *int32 `json:"messagesBack,omitempty"`
}

// Rewind requests, once per id, that the task is rewound. A running agent is stopped for it,
// with a checkpoint, and starts again when the rewind is done.
// +kubebuilder:validation:XValidation:rule="!has(self.branch) || self.preserve == 'Branch'",message="branch names the branch that preserve: Branch creates: set preserve to Branch or leave branch out"
// +kubebuilder:validation:XValidation:rule="has(self.branch) || self.preserve != 'Branch' || self.scope == 'Conversation' || (!self.id.contains('..') && !self.id.endsWith('.lock'))",message="the current state is kept as branch clew/before-ID, and a branch name cannot contain '..' or end in '.lock': choose another id, or set branch"
type Rewind struct {
	// id of this request. A new id requests the operation once; the same id again does nothing.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$`
	ID string `json:"id"`
	// to is the target.
	// +required
	To RewindTarget `json:"to"`
	// scope says what is rewound. With Both and a target that is not a checkpoint, the
	// conversation is rewound to the checkpoint's position as well, so that files and memory
	// agree; with Conversation it is rewound to exactly that turn, and the files stay.
	// +optional
	// +kubebuilder:default=Both
	Scope RewindScope `json:"scope,omitempty"`
	// preserve says how the current state is kept in the agent's repository. A checkpoint of
	// it is taken in any case.
	// +optional
	// +kubebuilder:default=Branch
	Preserve PreserveMode `json:"preserve,omitempty"`
	// branch is the name of the branch that preserve: Branch creates; clew/before-ID when left out.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=200
	// +kubebuilder:validation:XValidation:rule="self.matches('^[A-Za-z0-9._/-]+$') && self != 'HEAD' && !self.startsWith('-') && !self.startsWith('/') && !self.startsWith('.') && !self.endsWith('/') && !self.endsWith('.') && !self.endsWith('.lock') && !self.contains('..') && !self.contains('//') && !self.contains('/.') && !self.contains('.lock/')",message="branch must be a plain git branch name of letters, digits and . _ / -, such as before/refactoring"
	Branch string `json:"branch,omitempty"`
	// onDrift says what to do when the worktree was changed while the task was not running.
	// +optional
	// +kubebuilder:default=Fail
	OnDrift OnDrift `json:"onDrift,omitempty"`
}

// TaskRequesters are the users who requested the parts of a Task's spec, by the names that
// the API server authenticated. Each changes only together with its part.
type TaskRequesters struct {
	// created is who created the Task, or the Fork that it was created for.
	// +optional
	// +kubebuilder:validation:MaxLength=256
	Created string `json:"created,omitempty"`
	// operatingMode is who set operatingMode.
	// +optional
	// +kubebuilder:validation:MaxLength=256
	OperatingMode string `json:"operatingMode,omitempty"`
	// resume is who requested the resume with the current id.
	// +optional
	// +kubebuilder:validation:MaxLength=256
	Resume string `json:"resume,omitempty"`
	// rewind is who requested the rewind with the current id.
	// +optional
	// +kubebuilder:validation:MaxLength=256
	Rewind string `json:"rewind,omitempty"`
	// acknowledge is who acknowledged the current number of lost records.
	// +optional
	// +kubebuilder:validation:MaxLength=256
	Acknowledge string `json:"acknowledge,omitempty"`
}

// TaskSpec is the work that a user requests.
// +kubebuilder:validation:XValidation:rule="has(self.prompt) != has(self.promptFrom)",message="set either prompt or promptFrom: the agent needs exactly one"
// +kubebuilder:validation:XValidation:rule="has(self.repository) == has(oldSelf.repository) && (!has(self.repository) || self.repository == oldSelf.repository)",message="repository is immutable: create a new Task, or a Fork of this one"
// +kubebuilder:validation:XValidation:rule="has(self.startFrom) == has(oldSelf.startFrom) && (!has(self.startFrom) || self.startFrom == oldSelf.startFrom)",message="startFrom is immutable: create a new Task, or a Fork of this one"
// +kubebuilder:validation:XValidation:rule="self.agent.type == oldSelf.agent.type",message="agent.type is immutable: start a new Task from this one with startFrom, and give that one another agent"
// +kubebuilder:validation:XValidation:rule="has(self.prompt) == has(oldSelf.prompt) && (!has(self.prompt) || self.prompt == oldSelf.prompt)",message="prompt is immutable: give the agent its next prompt with resume.prompt"
// +kubebuilder:validation:XValidation:rule="has(self.promptFrom) == has(oldSelf.promptFrom) && (!has(self.promptFrom) || self.promptFrom == oldSelf.promptFrom)",message="promptFrom is immutable: give the agent its next prompt with resume.prompt"
// +kubebuilder:validation:XValidation:rule="has(self.workspace.storageClassName) == has(oldSelf.workspace.storageClassName) && (!has(self.workspace.storageClassName) || self.workspace.storageClassName == oldSelf.workspace.storageClassName) && has(self.workspace.accessMode) == has(oldSelf.workspace.accessMode) && (!has(self.workspace.accessMode) || self.workspace.accessMode == oldSelf.workspace.accessMode) && quantity(string(self.workspace.size)).compareTo(quantity(string(oldSelf.workspace.size))) == 0",message="workspace.size, workspace.storageClassName and workspace.accessMode are immutable: start a new Task from this one with startFrom, and give that one another workspace"
// +kubebuilder:validation:XValidation:rule="!has(self.rewind) || !has(oldSelf.rewind) || self.rewind.id != oldSelf.rewind.id || self.rewind == oldSelf.rewind",message="a rewind is immutable: to request another one, give it a new id"
// +kubebuilder:validation:XValidation:rule="!has(self.resume) || !has(oldSelf.resume) || self.resume.id != oldSelf.resume.id || self.resume == oldSelf.resume",message="a resume is immutable: to request another one, give it a new id"
// +kubebuilder:validation:XValidation:rule="oldSelf.hasValue() || !has(self.resume)",optionalOldSelf=true,fieldPath=".resume",reason=FieldValueForbidden,message="a new Task has nothing to resume: leave resume out, and add it when the task has stopped"
// +kubebuilder:validation:XValidation:rule="oldSelf.hasValue() || !has(self.rewind)",optionalOldSelf=true,fieldPath=".rewind",reason=FieldValueForbidden,message="a new Task has no checkpoint to rewind to: leave rewind out, or start from another task's checkpoint with startFrom"
type TaskSpec struct {
	// repository the task works on; an empty repository when left out.
	// +optional
	Repository *Repository `json:"repository,omitempty"`

	// prompt is what the agent is asked to do; at most 65536 bytes.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=65536
	// +kubebuilder:validation:XValidation:rule="size(bytes(self)) <= 65536",message="prompt is longer than 65536 bytes: put long material into the repository and name it in the prompt"
	// +kubebuilder:validation:XValidation:rule="!self.matches('[\\x00-\\x08\\x0b\\x0c\\x0e-\\x1f\\x7f]')",message="prompt must be text without control characters"
	Prompt *string `json:"prompt,omitempty"`

	// promptFrom reads the prompt from a ConfigMap or a Secret.
	// +optional
	PromptFrom *PromptSource `json:"promptFrom,omitempty"`

	// agent is the agent that works on the task.
	// +optional
	// +kubebuilder:default={type: Exec}
	Agent Agent `json:"agent,omitempty"`

	// template of the task's pods. Its container "agent" is the user's image. For an agent of
	// type Exec its command is required, since Clew starts it through a shim; for the others
	// it defaults to the agent's own program, and Clew adds the agent's options.
	// +required
	Template corev1.PodTemplateSpec `json:"template"`

	// workspace is the volume the task works on.
	// +optional
	// +kubebuilder:default={size: "5Gi", retention: Delete}
	Workspace Workspace `json:"workspace,omitempty"`

	// operatingMode says whether the task runs.
	// +optional
	// +kubebuilder:default=Running
	OperatingMode OperatingMode `json:"operatingMode,omitempty"`

	// checkpointPolicy says when checkpoints are taken.
	// +optional
	// +kubebuilder:default={everyToolCalls: 10, everySeconds: 300, maxFileBytes: 104857600}
	CheckpointPolicy CheckpointPolicy `json:"checkpointPolicy,omitempty"`

	// conversation says when snapshots of the conversation are taken, and how much of it is
	// rendered into the prompt of an agent that cannot resume its own session.
	// +optional
	// +kubebuilder:default={snapshotEveryMessages: 50}
	Conversation ConversationPolicy `json:"conversation,omitempty"`

	// startFrom makes the task start from a checkpoint of another one.
	// +optional
	StartFrom *StartFrom `json:"startFrom,omitempty"`

	// resume requests, once per id, that a stopped task continues.
	// +optional
	Resume *Resume `json:"resume,omitempty"`

	// rewind requests, once per id, that the task is rewound to a checkpoint, a message or a
	// moment. A running agent is stopped for it, and starts again afterwards.
	// +optional
	Rewind *Rewind `json:"rewind,omitempty"`

	// acknowledge marks known losses, so that status conditions stop reporting them.
	// +optional
	Acknowledge *Acknowledgement `json:"acknowledge,omitempty"`

	// requestedBy says who requested which part of the spec. Leave it out: the admission
	// policy clew-task-requesters sets it, and ignores what a client sends. If that policy is
	// not installed, nothing sets it and Clew does not trust it.
	// +optional
	RequestedBy *TaskRequesters `json:"requestedBy,omitempty"`

	// backoffLimit is how often a failed agent is restarted before the task fails. Lost pods,
	// nodes and volumes do not count.
	// +optional
	// +kubebuilder:default=3
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=100
	BackoffLimit *int32 `json:"backoffLimit,omitempty"`
}

// Task is one piece of work for a coding agent, on its own volume, whose code and
// conversation can be rewound to every checkpoint.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:shortName=ctask;ctasks,categories=clew
// +kubebuilder:printcolumn:name="State",type=string,JSONPath=`.status.conditions[?(@.type=="Succeeded")].reason`
// +kubebuilder:printcolumn:name="Agent",type=string,JSONPath=`.spec.agent.type`
// +kubebuilder:printcolumn:name="Attempt",type=integer,JSONPath=`.status.attempts[-1:].number`
// +kubebuilder:printcolumn:name="Checkpoints",type=integer,JSONPath=`.status.checkpointCount`
// +kubebuilder:printcolumn:name="Latest",type=string,JSONPath=`.status.latestCheckpoint.name`
// +kubebuilder:printcolumn:name="Messages",type=integer,JSONPath=`.status.messageCount`
// +kubebuilder:printcolumn:name="Memory",type=string,priority=1,JSONPath=`.status.attempts[-1:].memory`
// +kubebuilder:printcolumn:name="Durable",type=string,priority=1,JSONPath=`.status.conditions[?(@.type=="Durable")].status`
// +kubebuilder:printcolumn:name="Lost-Records",type=integer,priority=1,JSONPath=`.status.lostRecords`
// +kubebuilder:printcolumn:name="Cost-Micro-USD",type=integer,priority=1,JSONPath=`.status.costMicroUSD`
// +kubebuilder:printcolumn:name="Repository",type=string,priority=1,JSONPath=`.spec.repository.url`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:validation:XValidation:rule="size(self.metadata.name) <= 46",message="metadata.name is too long: use at most 46 characters, since pods and checkpoints carry it in their names"
// +kubebuilder:validation:XValidation:rule="self.metadata.name.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$')",message="metadata.name must be lower-case letters, digits and '-' only, since pods carry it in their host names"
// +kubebuilder:validation:XValidation:rule="!has(self.spec.resume) || (has(oldSelf.spec.resume) && oldSelf.spec.resume.id == self.spec.resume.id) || (has(oldSelf.status) && has(oldSelf.status.handledOperations) && ('Resume/' + self.spec.resume.id) in oldSelf.status.handledOperations) || !has(self.spec.operatingMode) || self.spec.operatingMode != 'Suspended'",fieldPath=".spec.resume",reason=FieldValueForbidden,message="operatingMode is Suspended: set it to Running in the same change to resume this task"
// +kubebuilder:validation:XValidation:rule="!has(self.spec.resume) || (has(oldSelf.spec.resume) && oldSelf.spec.resume.id == self.spec.resume.id) || (has(oldSelf.status) && has(oldSelf.status.handledOperations) && ('Resume/' + self.spec.resume.id) in oldSelf.status.handledOperations) || !has(oldSelf.status) || !has(oldSelf.status.conditions) || !oldSelf.status.conditions.exists(c, c.type == 'Succeeded' && c.status == 'True')",fieldPath=".spec.resume",reason=FieldValueForbidden,message="a completed task has nothing left to resume: rewind it to a checkpoint first, or fork it"
// +kubebuilder:validation:XValidation:rule="!has(self.spec.resume) || (has(oldSelf.spec.resume) && oldSelf.spec.resume.id == self.spec.resume.id) || (has(oldSelf.status) && has(oldSelf.status.handledOperations) && ('Resume/' + self.spec.resume.id) in oldSelf.status.handledOperations) || (has(oldSelf.status) && has(oldSelf.status.conditions) && oldSelf.status.conditions.exists(c, c.type == 'Succeeded' && (c.status != 'Unknown' || c.reason in ['Suspended', 'Rewound', 'DriftDetected'])))",fieldPath=".spec.resume",reason=FieldValueForbidden,message="only a stopped task can be resumed: wait until it is Suspended or has failed, or set operatingMode to Suspended first"
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.status) || !has(oldSelf.status.rewind) || oldSelf.status.rewind.state != 'InProgress' || !has(oldSelf.spec.rewind) || (has(self.spec.rewind) && self.spec.rewind.id == oldSelf.spec.rewind.id)",fieldPath=".spec.rewind",reason=FieldValueForbidden,message="a rewind is in progress: wait until status.rewind.state says how it ended before you request another one or remove this one"
// +kubebuilder:validation:XValidation:rule="!has(self.spec.acknowledge) || (has(oldSelf.spec.acknowledge) && oldSelf.spec.acknowledge.lostRecords == self.spec.acknowledge.lostRecords) || (has(oldSelf.status) && has(oldSelf.status.lostRecords) && self.spec.acknowledge.lostRecords <= oldSelf.status.lostRecords)",fieldPath=".spec.acknowledge",reason=FieldValueForbidden,message="acknowledge.lostRecords is more than status.lostRecords: acknowledge only what is lost"
// +kubebuilder:validation:XValidation:rule="!has(self.spec.acknowledge) || (has(oldSelf.spec.acknowledge) && oldSelf.spec.acknowledge.lostRecords == self.spec.acknowledge.lostRecords) || !has(oldSelf.status) || !has(oldSelf.status.endedAcknowledgement) || self.spec.acknowledge.lostRecords != oldSelf.status.endedAcknowledgement",fieldPath=".spec.acknowledge",reason=FieldValueForbidden,message="the acknowledgement of this number has just been removed, and the manager has not seen that yet: try again in a moment"
// +kubebuilder:validation:XValidation:rule="!has(self.spec.startFrom) || self.spec.startFrom.taskRef.name != self.metadata.name",message="startFrom cannot name the task itself: give the new task another name"
type Task struct {
	metav1.TypeMeta `json:",inline"`
	// metadata is the standard metadata of an object.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`
	// spec is the work that a user requests.
	// +required
	Spec TaskSpec `json:"spec"`
	// status is what Clew has observed and done.
	// +optional
	Status TaskStatus `json:"status,omitempty"`
}

// TaskList is a list of tasks.
//
// +kubebuilder:object:root=true
type TaskList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []Task `json:"items"`
}
