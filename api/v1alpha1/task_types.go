package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
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

// AdoptPolicy says whether a new Task continues a former one.
// +kubebuilder:validation:Enum=Never;Latest
type AdoptPolicy string

const (
	// AdoptNever starts the task anew.
	AdoptNever AdoptPolicy = "Never"
	// AdoptLatest continues the newest task of the same name.
	AdoptLatest AdoptPolicy = "Latest"
)

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

// TaskRequesters are the users who requested the parts of a Task's spec, by the names that
// the API server authenticated. Each changes only together with its part. What the agent of a
// supervisor has asked for with a tool is by task:NAME, of that supervisor.
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
	// contract is who set contract.phase as it is.
	// +optional
	// +kubebuilder:validation:MaxLength=256
	Contract string `json:"contract,omitempty"`
	// publish is who changed publish last, and by that also who approved its approvedCommit.
	// +optional
	// +kubebuilder:validation:MaxLength=256
	Publish string `json:"publish,omitempty"`
}

// TaskSpec is the work that a user requests.
// +kubebuilder:validation:XValidation:rule="has(self.prompt) != has(self.promptFrom)",message="set either prompt or promptFrom: the agent needs exactly one"
// +kubebuilder:validation:XValidation:rule="has(self.startFrom) == has(oldSelf.startFrom) && (!has(self.startFrom) || self.startFrom == oldSelf.startFrom)",message="startFrom is immutable: create a new Task, or a Fork of this one"
// +kubebuilder:validation:XValidation:rule="self.agent.type == oldSelf.agent.type",message="agent.type is immutable: start a new Task from this one with startFrom, and give that one another agent"
// +kubebuilder:validation:XValidation:rule="has(self.prompt) == has(oldSelf.prompt) && (!has(self.prompt) || self.prompt == oldSelf.prompt)",message="prompt is immutable: give the agent its next prompt with resume.prompt"
// +kubebuilder:validation:XValidation:rule="has(self.promptFrom) == has(oldSelf.promptFrom) && (!has(self.promptFrom) || self.promptFrom == oldSelf.promptFrom)",message="promptFrom is immutable: give the agent its next prompt with resume.prompt"
// +kubebuilder:validation:XValidation:rule="has(self.workspace.storageClassName) == has(oldSelf.workspace.storageClassName) && (!has(self.workspace.storageClassName) || self.workspace.storageClassName == oldSelf.workspace.storageClassName) && has(self.workspace.accessMode) == has(oldSelf.workspace.accessMode) && (!has(self.workspace.accessMode) || self.workspace.accessMode == oldSelf.workspace.accessMode)",message="workspace.storageClassName and workspace.accessMode are immutable: start a new Task from this one with startFrom, and give that one another workspace"
// +kubebuilder:validation:XValidation:rule="quantity(string(self.workspace.size)).compareTo(quantity(string(oldSelf.workspace.size))) >= 0",message="workspace.size may grow, but not shrink: set it to what it was or to more, or start a new Task from this one with startFrom, and give that one a smaller workspace"
// +kubebuilder:validation:XValidation:rule="!has(self.rewind) || !has(oldSelf.rewind) || self.rewind.id != oldSelf.rewind.id || self.rewind == oldSelf.rewind",message="a rewind is immutable: to request another one, give it a new id"
// +kubebuilder:validation:XValidation:rule="!has(self.resume) || !has(oldSelf.resume) || self.resume.id != oldSelf.resume.id || self.resume == oldSelf.resume",message="a resume is immutable: to request another one, give it a new id"
// +kubebuilder:validation:XValidation:rule="self.role == oldSelf.role",message="role is immutable: create a new Task"
// +kubebuilder:validation:XValidation:rule="has(self.parentRef) == has(oldSelf.parentRef) && (!has(self.parentRef) || self.parentRef == oldSelf.parentRef)",message="parentRef is immutable: create a new Task"
// +kubebuilder:validation:XValidation:rule="has(self.contract) == has(oldSelf.contract) && (!has(self.contract) || self.contract.name == oldSelf.contract.name)",message="contract.name is immutable: create a new Task for another contract"
// +kubebuilder:validation:XValidation:rule="self.role != 'Supervisor' || has(self.contract)",message="a supervisor leads a contract: set contract.name"
// +kubebuilder:validation:XValidation:rule="self.role == 'Supervisor' || !has(self.contract) || !has(self.contract.phases)",message="only a contract's supervisor lists its phases: set role to Supervisor, or leave contract.phases out"
// +kubebuilder:validation:XValidation:rule="self.role == 'Supervisor' || !has(self.contract) || !has(self.contract.budget)",fieldPath=".contract.budget",message="only a contract's supervisor sets its budget: set role to Supervisor, or leave contract.budget out; spec.budget is that of the task alone"
// +kubebuilder:validation:XValidation:rule="self.role == 'Supervisor' || !has(self.children)",message="only a supervisor has children: set role to Supervisor, or leave children out"
// +kubebuilder:validation:XValidation:rule="self.role != 'Supervisor' || !has(self.contract) || !has(self.contract.phase) || self.contract.phase in (has(self.contract.phases) ? self.contract.phases : ['Research', 'Specify', 'Plan', 'Execute', 'Review'])",message="contract.phase is not one of the contract's phases: those that contract.phases lists, or else Research, Specify, Plan, Execute and Review"
// +kubebuilder:validation:XValidation:rule="!has(self.rewind) || !has(self.rewind.children) || self.rewind.children == 'Keep' || self.role == 'Supervisor'",fieldPath=".rewind",message="only a supervisor has children to rewind: set rewind.children to Keep, or leave it out"
// +kubebuilder:validation:XValidation:rule="!has(self.resume) || self.resume.mode != 'RestartPhase' || self.role == 'Supervisor'",fieldPath=".resume",message="only a supervisor leads a contract through phases: resume this task with another mode"
// +kubebuilder:validation:XValidation:rule="!has(self.resume) || !has(self.resume.phase) || !has(self.contract) || self.resume.phase in (has(self.contract.phases) ? self.contract.phases : ['Research', 'Specify', 'Plan', 'Execute', 'Review'])",fieldPath=".resume.phase",message="resume.phase is not one of the contract's phases: those that contract.phases lists, or else Research, Specify, Plan, Execute and Review"
// +kubebuilder:validation:XValidation:rule="!has(self.onFinish) || self.onFinish.action != 'Delete' || !has(self.adopt) || self.adopt != 'Latest'",message="onFinish.action Delete cannot go with adopt: Latest, which is for Tasks that a pipeline applies again: set onFinish.action to Release, which keeps the finished Task, or leave adopt out"
// +kubebuilder:validation:XValidation:rule="!has(self.publish) || has(self.repository)",message="publish needs a repository to push to: set repository, or leave publish out"
// +kubebuilder:validation:XValidation:rule="!has(self.retryOn) || !has(self.failOn) || ((!has(self.retryOn.exitCodes) || !has(self.failOn.exitCodes) || self.retryOn.exitCodes.all(c, !(c in self.failOn.exitCodes))) && (!has(self.retryOn.reasons) || !has(self.failOn.reasons) || self.retryOn.reasons.all(r, !(r in self.failOn.reasons))))",message="retryOn and failOn have an exit code or a reason in common: leave it out of one of them"
// +kubebuilder:validation:XValidation:rule="self.role == 'Supervisor' || !has(self.tools) || self.tools.all(t, t in ['checkpoint', 'checkpoints', 'history_search', 'diff'])",fieldPath=".tools",message="only a supervisor has the tools that begin with task_, phase_set and publish: set role to Supervisor, or leave them out of tools"
// +kubebuilder:validation:XValidation:rule="!has(self.publish) || !has(self.publish.when) || self.publish.when != 'Called' || self.role == 'Supervisor'",fieldPath=".publish.when",message="only a supervisor's agent has the tool publish, with which work is published when it is called: set when to Completed, Suspended or Checkpoint, or leave it out"
// +kubebuilder:validation:XValidation:rule="!has(self.tools) || !('publish' in self.tools) || has(self.publish)",fieldPath=".tools",message="the tool publish pushes to the branch in spec.publish: set publish, or leave it out of tools"
type TaskSpec struct {
	// repository the task works on; an empty repository when left out. It may be corrected until
	// the workspace was laid out from it.
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

	// tools are those of Clew's own tools that the agent gets: by its configuration if it knows MCP,
	// and by the program clew in each pod. Four are about the task itself: checkpoint takes a
	// checkpoint, checkpoints lists them, history_search searches the conversation as it stands, and
	// diff shows what has changed. The others are a supervisor's, and concern its own children, its
	// contract and its branch, and nothing else: task_create makes a child of what
	// children.template says, task_list lists the children, task_wait waits for them, task_history
	// and task_diff read what they have said and changed; task_stop, task_resume and task_rewind
	// steer those that task_create and task_fork have made, and no child that somebody applied, or
	// whose template, agent, tools or rules somebody has changed since; task_fork makes new children
	// that go on from a checkpoint of one of those; phase_set moves the contract to another phase; publish pushes the latest checkpoint of the task or of a child to the branch
	// in spec.publish, as that says. When left out, a worker's agent gets the four, and a
	// supervisor's all, publish only if spec.publish is set; [] gives none. A change takes effect
	// with the next attempt.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=32
	Tools []AgentTool `json:"tools,omitzero"`

	// template of the task's pods. Its container "agent" is the user's image. For an agent of
	// type Exec its command is required, since Clew starts it through a shim; for the others
	// it defaults to the agent's own program, and Clew adds the agent's options.
	// +required
	Template corev1.PodTemplateSpec `json:"template"`

	// workspace is the volume the task works on.
	// +optional
	// +kubebuilder:default={size: "5Gi", retention: Delete, whenSuspended: Keep}
	Workspace Workspace `json:"workspace,omitempty"`

	// operatingMode says whether the task runs.
	// +optional
	// +kubebuilder:default=Running
	OperatingMode OperatingMode `json:"operatingMode,omitempty"`

	// checkpointPolicy says when checkpoints are taken, and how many of their objects stay.
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

	// dependsOn are other tasks of the namespace that the task waits for before it first starts, at
	// most 32. While it waits it has neither pod nor volume. startFrom may name one of them: its
	// latest checkpoint is then the one that it has when the task stops waiting. Whoever sets it
	// needs the right to get the Tasks of the namespace, or that Task if it is only one.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:XValidation:rule="self.all(d, self.exists_one(o, o.taskRef.name == d.taskRef.name))",message="dependsOn names a task twice: name each one once"
	DependsOn []Dependency `json:"dependsOn,omitempty"`

	// priority decides which of the tasks of the namespace that wait for a place starts first, if the
	// installation limits how many run at once: the one with the highest number, and among equals the
	// oldest. It stops no task that runs, and counts for nothing between namespaces.
	// +optional
	// +kubebuilder:default=0
	// +kubebuilder:validation:Minimum=-1000
	// +kubebuilder:validation:Maximum=1000
	Priority int32 `json:"priority,omitempty"`

	// adopt says whether a Task that is applied anew, after it was deleted or the cluster was
	// lost, continues where the last Task of its name in this namespace stood: with its code,
	// conversation, checkpoints and operations, none of which is carried out again. A task that
	// had completed stays completed. One that was rewound and waited for a resume starts its agent,
	// unless operatingMode is Suspended. Whoever applies it needs the rights to get checkpoints, and
	// tasks/conversation of that name in the API group history.clew.dev. A history that an earlier
	// namespace of this one's name has left is adopted only after an administrator has granted it:
	// the task waits for that. It is decided once, before the task first starts; status.adoption
	// says what was found. With startFrom, the task starts from there if there is nothing to continue.
	// +optional
	Adopt AdoptPolicy `json:"adopt,omitempty"`

	// resume requests, once per id, that a stopped task continues. A completed task continues
	// when the resume has a prompt. With the mode RestartPhase, a task that runs is stopped first. The id that a new Task is created with is recorded as not
	// applicable: there is nothing to resume yet.
	// +optional
	Resume *Resume `json:"resume,omitempty"`

	// rewind requests, once per id, that the task is rewound to a checkpoint, a message or a
	// moment. A running agent is stopped for it, and starts again afterwards. The id that a new
	// Task is created with is recorded as not applicable.
	// +optional
	Rewind *Rewind `json:"rewind,omitempty"`

	// publish pushes the task's work to a branch of its repository.
	// +optional
	Publish *Publish `json:"publish,omitempty"`

	// decisions answer the requests in status.requests: the calls of risky tools that wait for a person.
	// Whoever adds or changes one needs the verb approve on the Task. Each counts once, for the request
	// that has its id when it is added. At most 64: remove those that were answered.
	// +optional
	// +listType=map
	// +listMapKey=requestID
	// +kubebuilder:validation:MaxItems=64
	Decisions []Decision `json:"decisions,omitempty"`

	// contract is the group of tasks that this one belongs to. A child that leaves it out belongs to
	// its parent's.
	// +optional
	Contract *Contract `json:"contract,omitempty"`

	// role is the task's part in its contract. A contract has one unfinished Supervisor: a second
	// one waits. If the installation limits how many tasks run at once, a Supervisor has a place while
	// its agent runs, also while that waits for its children; the first of these that runs shares it, so
	// that they never wait for each other. It is immutable. Whoever makes a Supervisor needs the right to
	// patch the Tasks of the namespace.
	// +optional
	// +kubebuilder:default=Worker
	Role Role `json:"role,omitempty"`

	// parentRef names the supervisor whose child this task is. It is immutable. Whoever sets it needs
	// the right to patch that Task.
	// +optional
	// +kubebuilder:validation:XValidation:rule="self.name.size() <= 46 && self.name.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$')",message="parentRef.name is no name of a Task: those have at most 46 lower-case letters, digits and '-'"
	ParentRef *NameReference `json:"parentRef,omitempty"`

	// children are the limits of a supervisor's children, and what they are made of.
	// +optional
	Children *Children `json:"children,omitempty"`

	// onFinish says what becomes of the task's objects some time after it has finished; they stay if
	// it is left out.
	// +optional
	OnFinish *OnFinish `json:"onFinish,omitempty"`

	// nodeLoss says what becomes of the task when its node cannot be reached.
	// +optional
	// +kubebuilder:default={afterSeconds: 300, policy: Replace}
	NodeLoss NodeLoss `json:"nodeLoss,omitempty"`

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

	// retryOn are ends of the agent that are retried, up to backoffLimit, although they would not be
	// otherwise, such as AgentOutOfCredit. A pause that the model's API asked for is kept.
	// AgentRateLimited, which is retried otherwise without being counted, is counted then. It applies to
	// the next end of the agent. When retryOn and failOn select the same end, a reason other than
	// AgentFailed decides before the exit code, and the exit code before AgentFailed.
	// +optional
	RetryOn *FailureMatcher `json:"retryOn,omitempty"`

	// failOn are ends of the agent that are not retried, whatever backoffLimit says. It applies to the
	// next end of the agent.
	// +optional
	FailOn *FailureMatcher `json:"failOn,omitempty"`

	// deadlineSeconds is how long the agent may run, in all attempts together: neither rewinds, retries
	// nor resumes give any of it back, and a new Task counts from zero, whatever it adopts or starts
	// from. Only the time counts in which the agent's container runs, and not that in which the task is
	// suspended, waits or is prepared, or in which it only waits for a person's answer (status.requests),
	// for as long as checkpointPolicy.approvalDeadlineSeconds without one. The time in which a supervisor
	// waits for its children counts, and they go on when it has passed. status.activeSeconds has what
	// was used. When it has passed, the agent is stopped with a checkpoint, and the task fails with the
	// reason DeadlineExceeded. To continue, raise deadlineSeconds and resume the task, in one change.
	// +optional
	// +kubebuilder:validation:XValidation:rule="self >= 1 && self <= 31536000",message="deadlineSeconds must be from 1 to 31536000, which is a year: leave it out for no deadline"
	DeadlineSeconds *int64 `json:"deadlineSeconds,omitempty"`

	// budget is what the task may spend, in all attempts together: what was spent is spent, through
	// retries, rewinds and resumes, and also when a Task that is applied anew adopts the history. A Fork
	// copies it, and its tasks count from zero: the conversation that they begin with was paid for by
	// their source. status.spent has what was spent. When 80 % of a limit are spent, an Event says so.
	// When all is, the agent is stopped at the end of its next tool call, or at its next message if it
	// calls none, with a checkpoint, also while the history cannot be reached; the task rests with the reason BudgetExceeded,
	// and backoffLimit is not touched. To continue, raise the budget and resume the task, in one change.
	// +optional
	Budget *Budget `json:"budget,omitempty"`
}

// Task is one piece of work for a coding agent, on its own volume, whose code and
// conversation can be rewound to every checkpoint.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:shortName=ctask;ctasks,categories=clew
// +kubebuilder:printcolumn:name="State",type=string,JSONPath=`.status.conditions[?(@.type=="Succeeded")].reason`
// +kubebuilder:printcolumn:name="Agent",type=string,JSONPath=`.spec.agent.type`
// +kubebuilder:printcolumn:name="Role",type=string,priority=1,JSONPath=`.spec.role`
// +kubebuilder:printcolumn:name="Contract",type=string,priority=1,JSONPath=`.status.contract.name`
// +kubebuilder:printcolumn:name="Phase",type=string,priority=1,JSONPath=`.status.contract.phase`
// +kubebuilder:printcolumn:name="Attempt",type=integer,JSONPath=`.status.attempts[-1:].number`
// +kubebuilder:printcolumn:name="Checkpoints",type=integer,JSONPath=`.status.checkpointCount`
// +kubebuilder:printcolumn:name="Latest",type=string,JSONPath=`.status.latestCheckpoint.name`
// +kubebuilder:printcolumn:name="Messages",type=integer,JSONPath=`.status.messageCount`
// +kubebuilder:printcolumn:name="Memory",type=string,priority=1,JSONPath=`.status.attempts[-1:].memory`
// +kubebuilder:printcolumn:name="Durable",type=string,priority=1,JSONPath=`.status.conditions[?(@.type=="Durable")].status`
// +kubebuilder:printcolumn:name="Released",type=string,priority=1,JSONPath=`.status.conditions[?(@.type=="VolumeReleased")].reason`
// +kubebuilder:printcolumn:name="Drifted",type=string,priority=1,JSONPath=`.status.conditions[?(@.type=="Drifted")].reason`
// +kubebuilder:printcolumn:name="Published",type=string,priority=1,JSONPath=`.status.conditions[?(@.type=="Published")].reason`
// +kubebuilder:printcolumn:name="Lost-Records",type=integer,priority=1,JSONPath=`.status.lostRecords`
// +kubebuilder:printcolumn:name="Active-Seconds",type=integer,priority=1,JSONPath=`.status.activeSeconds`
// +kubebuilder:printcolumn:name="Cost-Micro-USD",type=integer,priority=1,JSONPath=`.status.costMicroUSD`
// +kubebuilder:printcolumn:name="Spent-Micro-USD",type=integer,priority=1,JSONPath=`.status.spent.costMicroUSD`
// +kubebuilder:printcolumn:name="Budget-Micro-USD",type=integer,priority=1,JSONPath=`.spec.budget.costMicroUSD`
// +kubebuilder:printcolumn:name="Priority",type=integer,priority=1,JSONPath=`.spec.priority`
// +kubebuilder:printcolumn:name="Repository",type=string,priority=1,JSONPath=`.spec.repository.url`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:validation:XValidation:rule="size(self.metadata.name) <= 46",message="metadata.name is too long: use at most 46 characters, since pods and checkpoints carry it in their names"
// +kubebuilder:validation:XValidation:rule="self.metadata.name.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$')",message="metadata.name must be lower-case letters, digits and '-' only, since pods carry it in their host names"
// +kubebuilder:validation:XValidation:rule="(has(self.spec.repository) == has(oldSelf.spec.repository) && (!has(self.spec.repository) || self.spec.repository == oldSelf.spec.repository)) || !has(oldSelf.status) || (!has(oldSelf.status.source) && (!has(oldSelf.status.checkpointCount) || oldSelf.status.checkpointCount == 0) && (!has(oldSelf.status.attempts) || oldSelf.status.attempts.all(a, has(a.outcome))) && (!has(oldSelf.status.conditions) || oldSelf.status.conditions.all(c, c.type != 'WorkspaceReady' || c.status == 'Unknown' || (c.status == 'False' && c.reason in ['RepositoryNotFound', 'RepositoryUnreachable', 'RepositoryMismatch', 'RefNotFound', 'AuthenticationFailed', 'CredentialsNotFound']))))",fieldPath=".spec.repository",reason=FieldValueForbidden,message="repository is immutable once the workspace was laid out from it: create a new Task, or a Fork of this one. While a pod is still trying to lay it out, set operatingMode to Suspended first"
// +kubebuilder:validation:XValidation:rule="!has(self.spec.resume) || (has(oldSelf.spec.resume) && oldSelf.spec.resume.id == self.spec.resume.id) || (has(oldSelf.status) && has(oldSelf.status.handledOperations) && ('Resume/' + self.spec.resume.id) in oldSelf.status.handledOperations) || !has(self.spec.operatingMode) || self.spec.operatingMode != 'Suspended'",fieldPath=".spec.resume",reason=FieldValueForbidden,message="operatingMode is Suspended: set it to Running in the same change to resume this task"
// +kubebuilder:validation:XValidation:rule="!has(self.spec.resume) || (has(oldSelf.spec.resume) && oldSelf.spec.resume.id == self.spec.resume.id) || (has(oldSelf.status) && has(oldSelf.status.handledOperations) && ('Resume/' + self.spec.resume.id) in oldSelf.status.handledOperations) || !has(oldSelf.status) || !has(oldSelf.status.conditions) || !oldSelf.status.conditions.exists(c, c.type == 'Succeeded' && c.status == 'True') || (has(self.spec.resume.prompt) && size(self.spec.resume.prompt) > 0) || self.spec.resume.mode in ['FromCheckpoint', 'RestartPhase']",fieldPath=".spec.resume",reason=FieldValueForbidden,message="a completed task continues only with a new prompt: set resume.prompt, or resume it from a checkpoint"
// +kubebuilder:validation:XValidation:rule="!has(self.spec.resume) || (has(oldSelf.spec.resume) && oldSelf.spec.resume.id == self.spec.resume.id) || (has(oldSelf.status) && has(oldSelf.status.handledOperations) && ('Resume/' + self.spec.resume.id) in oldSelf.status.handledOperations) || (has(oldSelf.status) && has(oldSelf.status.conditions) && oldSelf.status.conditions.exists(c, c.type == 'Succeeded' && (c.status != 'Unknown' || c.reason in ['Suspended', 'Rewound', 'DriftDetected', 'BudgetExceeded', 'PhaseRestarted'] || (c.reason in ['Unschedulable', 'VolumeUnavailable'] && has(oldSelf.status.resume) && has(oldSelf.status.resume.avoidedNode)) || (self.spec.resume.mode == 'RestartPhase' && (!has(oldSelf.status.resume) || oldSelf.status.resume.state != 'InProgress')))))",fieldPath=".spec.resume",reason=FieldValueForbidden,message="only a stopped task can be resumed, unless a phase begins again and no other resume is in progress: wait until it is Suspended or has failed, or set operatingMode to Suspended first"
// +kubebuilder:validation:XValidation:rule="!has(self.spec.deadlineSeconds) || !has(oldSelf.status) || !has(oldSelf.status.activeSeconds) || oldSelf.status.activeSeconds < self.spec.deadlineSeconds || !has(self.spec.resume) || (has(oldSelf.spec.resume) && oldSelf.spec.resume.id == self.spec.resume.id) || (has(oldSelf.status.handledOperations) && ('Resume/' + self.spec.resume.id) in oldSelf.status.handledOperations)",fieldPath=".spec.deadlineSeconds",reason=FieldValueForbidden,message="the agent has run for as long as deadlineSeconds allows (status.activeSeconds): raise it in the same change to resume this task"
// +kubebuilder:validation:XValidation:rule="!has(self.spec.budget) || !has(oldSelf.status) || !has(oldSelf.status.spent) || ((!has(self.spec.budget.inputTokens) || !has(oldSelf.status.spent.inputTokens) || oldSelf.status.spent.inputTokens < self.spec.budget.inputTokens) && (!has(self.spec.budget.outputTokens) || !has(oldSelf.status.spent.outputTokens) || oldSelf.status.spent.outputTokens < self.spec.budget.outputTokens) && (!has(self.spec.budget.costMicroUSD) || !has(oldSelf.status.spent.costMicroUSD) || oldSelf.status.spent.costMicroUSD < self.spec.budget.costMicroUSD) && (!has(self.spec.budget.toolCalls) || !has(oldSelf.status.spent.toolCalls) || oldSelf.status.spent.toolCalls < self.spec.budget.toolCalls) && (!has(self.spec.budget.checkpoints) || !has(oldSelf.status.spent.checkpoints) || oldSelf.status.spent.checkpoints < self.spec.budget.checkpoints)) || !has(self.spec.resume) || (has(oldSelf.spec.resume) && oldSelf.spec.resume.id == self.spec.resume.id) || (has(oldSelf.status.handledOperations) && ('Resume/' + self.spec.resume.id) in oldSelf.status.handledOperations)",fieldPath=".spec.budget",reason=FieldValueForbidden,message="the task has spent all that its budget allows (status.spent): raise that limit in the same change to resume this task"
// +kubebuilder:validation:XValidation:rule="!has(self.spec.budget) || (has(oldSelf.spec.budget) && oldSelf.spec.budget == self.spec.budget) || !has(oldSelf.status) || !has(oldSelf.status.spent) || ((!has(self.spec.budget.inputTokens) || !has(oldSelf.status.spent.inputTokens) || oldSelf.status.spent.inputTokens <= self.spec.budget.inputTokens) && (!has(self.spec.budget.outputTokens) || !has(oldSelf.status.spent.outputTokens) || oldSelf.status.spent.outputTokens <= self.spec.budget.outputTokens) && (!has(self.spec.budget.costMicroUSD) || !has(oldSelf.status.spent.costMicroUSD) || oldSelf.status.spent.costMicroUSD <= self.spec.budget.costMicroUSD) && (!has(self.spec.budget.toolCalls) || !has(oldSelf.status.spent.toolCalls) || oldSelf.status.spent.toolCalls <= self.spec.budget.toolCalls) && (!has(self.spec.budget.checkpoints) || !has(oldSelf.status.spent.checkpoints) || oldSelf.status.spent.checkpoints <= self.spec.budget.checkpoints)) || !has(oldSelf.status.conditions) || !oldSelf.status.conditions.exists(c, c.type == 'Succeeded' && (c.status != 'Unknown' || c.reason in ['Suspended', 'Rewound', 'DriftDetected', 'BudgetExceeded', 'PhaseRestarted']))",fieldPath=".spec.budget",reason=FieldValueForbidden,message="the budget is below what the task has spent (status.spent): set that limit to more, or leave it out"
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.status) || !has(oldSelf.status.rewind) || oldSelf.status.rewind.state != 'InProgress' || !has(oldSelf.spec.rewind) || (has(self.spec.rewind) && self.spec.rewind.id == oldSelf.spec.rewind.id)",fieldPath=".spec.rewind",reason=FieldValueForbidden,message="a rewind is in progress: wait until status.rewind.state says how it ended before you request another one or remove this one"
// +kubebuilder:validation:XValidation:rule="!has(self.spec.rewind) || self.spec.rewind.whenRunning != 'Refuse' || (has(oldSelf.spec.rewind) && oldSelf.spec.rewind.id == self.spec.rewind.id) || (has(oldSelf.status) && has(oldSelf.status.handledOperations) && ('Rewind/' + self.spec.rewind.id) in oldSelf.status.handledOperations) || !has(oldSelf.status) || !has(oldSelf.status.conditions) || !oldSelf.status.conditions.exists(c, c.type == 'Succeeded' && c.status == 'Unknown' && c.reason == 'Running')",fieldPath=".spec.rewind",reason=FieldValueForbidden,message="the task is running, and this rewind refuses running tasks: suspend the task first, or let the rewind stop it"
// +kubebuilder:validation:XValidation:rule="!has(self.spec.rewind) || !has(self.spec.rewind.to.undoOf) || (has(oldSelf.spec.rewind) && oldSelf.spec.rewind.id == self.spec.rewind.id) || (has(oldSelf.status) && has(oldSelf.status.handledOperations) && ('Rewind/' + self.spec.rewind.id) in oldSelf.status.handledOperations) || (has(oldSelf.status) && has(oldSelf.status.handledOperations) && oldSelf.status.handledOperations.exists(o, o.startsWith('Rewind/'))) || self.spec.rewind.to.undoOf.startsWith('resume:')",fieldPath=".spec.rewind.to.undoOf",reason=FieldValueForbidden,message="there is nothing to undo: this task was never rewound"
// +kubebuilder:validation:XValidation:rule="!has(self.spec.rewind) || !has(self.spec.rewind.to.undoOf) || (has(oldSelf.spec.rewind) && oldSelf.spec.rewind.id == self.spec.rewind.id) || (has(oldSelf.status) && has(oldSelf.status.handledOperations) && ('Rewind/' + self.spec.rewind.id) in oldSelf.status.handledOperations) || !has(oldSelf.status) || !has(oldSelf.status.rewind) || oldSelf.status.rewind.id != self.spec.rewind.to.undoOf || !(oldSelf.status.rewind.state in ['Refused', 'Failed', 'NotApplicable'])",fieldPath=".spec.rewind.to.undoOf",reason=FieldValueForbidden,message="there is nothing to undo: that rewind was refused or failed, and changed nothing"
// +kubebuilder:validation:XValidation:rule="!has(self.spec.rewind) || !has(self.spec.rewind.to.undoOf) || !has(self.spec.rewind.children) || self.spec.rewind.children != 'Rewind' || (has(oldSelf.spec.rewind) && oldSelf.spec.rewind.id == self.spec.rewind.id) || (has(oldSelf.status) && has(oldSelf.status.handledOperations) && ('Rewind/' + self.spec.rewind.id) in oldSelf.status.handledOperations) || (has(oldSelf.status) && has(oldSelf.status.setRewind) && (oldSelf.status.setRewind.id == self.spec.rewind.to.undoOf || (has(oldSelf.status.setRewind.undoOf) && oldSelf.status.setRewind.undoOf == self.spec.rewind.to.undoOf)))",fieldPath=".spec.rewind.children",reason=FieldValueForbidden,message="that rewind is not the last one of this task that took children along: set rewind.children to Keep, and take a child back by itself, with kubectl clew undo"
// +kubebuilder:validation:XValidation:rule="!has(self.spec.acknowledge) || (has(oldSelf.spec.acknowledge) && oldSelf.spec.acknowledge.lostRecords == self.spec.acknowledge.lostRecords) || (has(oldSelf.status) && has(oldSelf.status.lostRecords) && self.spec.acknowledge.lostRecords <= oldSelf.status.lostRecords)",fieldPath=".spec.acknowledge",reason=FieldValueForbidden,message="acknowledge.lostRecords is more than status.lostRecords: acknowledge only what is lost"
// +kubebuilder:validation:XValidation:rule="!has(self.spec.acknowledge) || (has(oldSelf.spec.acknowledge) && oldSelf.spec.acknowledge.lostRecords == self.spec.acknowledge.lostRecords) || !has(oldSelf.status) || !has(oldSelf.status.endedAcknowledgement) || self.spec.acknowledge.lostRecords != oldSelf.status.endedAcknowledgement",fieldPath=".spec.acknowledge",reason=FieldValueForbidden,message="the acknowledgement of this number has just been removed, and the manager has not seen that yet: try again in a moment"
// +kubebuilder:validation:XValidation:rule="!has(self.spec.parentRef) || self.spec.parentRef.name != self.metadata.name",message="parentRef cannot name the task itself: a task is nobody's own child"
// +kubebuilder:validation:XValidation:rule="!has(self.spec.startFrom) || self.spec.startFrom.taskRef.name != self.metadata.name",message="startFrom cannot name the task itself: give the new task another name"
// +kubebuilder:validation:XValidation:rule="!has(self.spec.dependsOn) || self.spec.dependsOn.all(d, d.taskRef.name != self.metadata.name)",message="dependsOn cannot name the task itself: it would wait for ever"
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.status) || !has(oldSelf.status.attempts) || size(oldSelf.status.attempts) == 0 || (has(self.spec.dependsOn) == has(oldSelf.spec.dependsOn) && (!has(self.spec.dependsOn) || self.spec.dependsOn == oldSelf.spec.dependsOn))",fieldPath=".spec.dependsOn",reason=FieldValueForbidden,message="dependsOn is immutable once the task has started: a task waits for others only before that"
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
