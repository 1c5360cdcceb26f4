// Package daemonapi is the contract between a task's pod and the rest of Clew: the
// configuration that the manager gives the pod (Config), the result that prepare returns
// to the manager (PrepareResult), and the versioned protocol between daemon and server
// (package v1).
//
// Pods outlive upgrades of the manager and the server, so fields are only ever added, and
// an unknown field is no error.
package daemonapi

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/budget"
)

// The audiences of the tokens by which pods identify themselves: one for the server and
// one for the gitstore, so that neither can use the pod's token at the other. Pods of
// older managers have one token for both, with FormerAudience.
const (
	ServerAudience   = "server.clew.dev"
	GitStoreAudience = "gitstore.clew.dev"
	FormerAudience   = "clew.dev"
)

// The names of the files that hold the tokens of a pod, in one folder.
const (
	ServerTokenFile   = "token"
	GitStoreTokenFile = "gitstore-token"
)

// ConfigEnv is the environment variable that holds a Config as JSON, in the
// containers prepare and daemon.
const ConfigEnv = "CLEW_CONFIG"

// PodUIDEnv is the environment variable that holds the pod's own UID, in the
// containers prepare and daemon. Pods of older managers do not have it.
const PodUIDEnv = "CLEW_POD_UID"

// PromptEnv is the environment variable that holds the prompt, in the
// containers prepare and agent.
const PromptEnv = "CLEW_PROMPT"

// Config is the configuration of a task's pod. It contains no secret.
type Config struct {
	// Namespace, Task and TaskUID name the task.
	Namespace string `json:"namespace"`
	Task      string `json:"task"`
	TaskUID   string `json:"taskUID"`
	// Attempt is the number of this pod among the task's pods, from 1.
	Attempt int64 `json:"attempt"`
	// HighestCheckpoint is the highest number of the task's Checkpoint objects: no new
	// checkpoint may get it, even if neither the history store nor the volume has that
	// checkpoint any longer.
	HighestCheckpoint int64 `json:"highestCheckpoint,omitempty"`
	// RecordSequence is the sequence of the task's newest record that the manager has seen
	// in the history store: no new record may get it, even if neither the store nor the
	// volume has that record any longer. Older managers leave it at 0.
	RecordSequence int64 `json:"recordSequence,omitempty"`
	// PodUID is the value of PodUIDEnv, since a manager cannot know it in advance.
	PodUID string `json:"-"`
	// ServerURL is the base URL of the daemon gateway.
	ServerURL string `json:"serverURL"`
	// GitStoreURL is the URL of the task's repository in the gitstore.
	GitStoreURL string `json:"gitStoreURL"`
	// CABundle holds the PEM certificates that sign both.
	CABundle string `json:"caBundle,omitempty"`
	// Repository is where the code comes from; nil for an empty repository.
	Repository *Repository `json:"repository,omitempty"`
	// Source is set when the task starts from another one.
	Source *Source `json:"source,omitempty"`
	// Policy says when checkpoints are taken.
	Policy Policy `json:"policy"`
	// AgentType is the kind of the agent.
	AgentType v1alpha1.AgentType `json:"agentType"`
	// Model is the model that the agent must use; empty for the agent's own choice.
	Model string `json:"model,omitempty"`
	// Context bounds the conversation rendered into a prompt.
	Context ContextLimits `json:"context,omitzero"`
	// Prices are the prices of models, in addition to the built-in ones, by the beginning
	// of the model's name.
	Prices map[string]Price `json:"prices,omitempty"`
	// StatePaths are the folders in the home that hold the agent's state; empty for the
	// whole home.
	StatePaths []string `json:"statePaths,omitempty"`
	// Operation is what prepare has to carry out in addition to preparing the workspace.
	Operation *Operation `json:"operation,omitempty"`
	// Branches are branches of the task's checkpoints that the agent's repository is to have,
	// and Checkout the one that its HEAD is to be brought to; nil for none.
	Branches []Branch  `json:"branches,omitempty"`
	Checkout *Checkout `json:"checkout,omitempty"`
	// IdleSeconds is how long the agent may print nothing before it is ended; 0 for no
	// limit.
	IdleSeconds int32 `json:"idleSeconds,omitempty"`
	// Budgets are those that the task works under, with what the manager knew to be spent of them by the
	// records through RecordSequence. The server's answers say what is spent since, and what is changed.
	Budgets []budget.Budget `json:"budgets,omitempty"`
	// Tools are those of Clew's tools that the agent gets. Older managers leave them out.
	Tools []v1alpha1.AgentTool `json:"tools,omitempty"`
	// Phases are those of the contract that the task leads, in their order; none for a worker. Older managers
	// leave them out.
	Phases []string `json:"phases,omitempty"`
	// Answers are the answers that the agent is told when it starts.
	Answers []RequestAnswer `json:"answers,omitempty"`
	// PrepareOnly is set on a pod that ends after prepare, without an agent.
	PrepareOnly bool `json:"prepareOnly,omitempty"`
	// VolumeReleased is set if the volume is new because the task's former one was released, and not
	// lost.
	VolumeReleased bool `json:"volumeReleased,omitempty"`
	// SpoolMargin bounds the acknowledged records that the daemon keeps.
	SpoolMargin SpoolMargin `json:"spoolMargin,omitzero"`
}

// SpoolMargin bounds the records that a daemon keeps after the server has acknowledged
// them, to send them again if the history store loses them. The bound reached first
// counts; the zero value keeps nothing.
type SpoolMargin struct {
	Bytes   int64 `json:"bytes"`
	Seconds int64 `json:"seconds"`
}

// Repository is the origin of a task's code.
type Repository struct {
	URL string `json:"url"`
	Ref string `json:"ref,omitempty"`
	// CredentialsSecret names the Secret that is mounted into prepare; empty for a public
	// repository.
	CredentialsSecret string `json:"credentialsSecret,omitempty"`
}

// Source is the resolved checkpoint of another task that this task starts from.
type Source struct {
	TaskUID string `json:"taskUID"`
	// TaskName is for messages; older managers leave it out.
	TaskName            string `json:"taskName,omitempty"`
	Checkpoint          int64  `json:"checkpoint"`
	Commit              string `json:"commit"`
	IncludeConversation bool   `json:"includeConversation"`
	// Position is the conversation's position at Checkpoint; 0 if it is not known.
	Position int64 `json:"position,omitempty"`
	// Branch is the new branch on which the agent's repository starts; empty for the branch
	// of the checkpoint, as older managers leave it.
	Branch string `json:"branch,omitempty"`
	// CopyFiles select the files that are copied over the task's own repository. The whole
	// checkpoint is restored in its place if there are none.
	CopyFiles []string `json:"copyFiles,omitempty"`
	// NumberBranch is set if Branch gets a number when the name is in use.
	NumberBranch bool `json:"numberBranch,omitempty"`
}

// ForkBranch returns the branch on which a Fork's task starts if it names none.
func ForkBranch(task string) string { return "clew/" + task }

// String names the checkpoint in messages.
func (s Source) String() string {
	if s.TaskName == "" {
		return fmt.Sprintf("checkpoint %d of the task with UID %s", s.Checkpoint, s.TaskUID)
	}
	return fmt.Sprintf("checkpoint %d of task %s (UID %s)", s.Checkpoint, s.TaskName, s.TaskUID)
}

// Policy says when checkpoints are taken; a zero value disables that trigger.
type Policy struct {
	EveryToolCalls int32 `json:"everyToolCalls"`
	EverySeconds   int32 `json:"everySeconds"`
	// LeastIntervalSeconds is the shortest interval between automatic checkpoints beyond a
	// burst; 0, which older managers send, means the default.
	LeastIntervalSeconds int32 `json:"leastIntervalSeconds,omitempty"`
	// MaxFileBytes is the size of the largest file that checkpoints include.
	MaxFileBytes int64 `json:"maxFileBytes"`
	// RiskyTools match the calls before which a checkpoint is taken, or somebody is asked, or that
	// are refused.
	RiskyTools []ToolPattern `json:"riskyTools,omitempty"`
	// ApprovalDeadlineSeconds is how long a call waits for an answer; 0, which older managers
	// send, means the default.
	ApprovalDeadlineSeconds int32 `json:"approvalDeadlineSeconds,omitempty"`
	// BeforeRun is set if one is taken before the agent is started.
	BeforeRun bool `json:"beforeRun,omitempty"`
	// SnapshotEveryMessages is the number of messages between two snapshots of the
	// conversation.
	SnapshotEveryMessages int64 `json:"snapshotEveryMessages,omitempty"`
}

// ToolPattern matches tool calls. Both fields are regular expressions (RE2) that match
// anywhere in the text; an empty one matches everything.
type ToolPattern struct {
	// Tool matches the tool's name, Input its input as JSON.
	Tool  string `json:"tool,omitempty"`
	Input string `json:"input,omitempty"`
	// Action is what is done about the call; empty for a checkpoint.
	Action v1alpha1.RiskyToolAction `json:"action,omitempty"`
	// Message is the rule's sentence; it may be empty.
	Message string `json:"message,omitempty"`
}

// defaultApprovalDeadline is that of a policy without one.
const defaultApprovalDeadline = 24 * time.Hour

// ApprovalDeadline is how long a call waits for an answer.
func (p Policy) ApprovalDeadline() time.Duration {
	if p.ApprovalDeadlineSeconds <= 0 {
		return defaultApprovalDeadline
	}
	return time.Duration(p.ApprovalDeadlineSeconds) * time.Second
}

// Decides reports whether the policy does more about some calls than to take a checkpoint.
func (p Policy) Decides() bool {
	return slices.ContainsFunc(p.RiskyTools, func(t ToolPattern) bool {
		return t.Action == v1alpha1.RiskyToolAsk || t.Action == v1alpha1.RiskyToolDeny
	})
}

// RequestAnswer is the answer to a call for which an earlier attempt of the task was stopped.
type RequestAnswer struct {
	// ID is that of the request.
	ID string `json:"id"`
	// Tool and InputDigest say what was called; see daemonv1.ToolRequest.
	Tool        string `json:"tool"`
	InputDigest string `json:"inputDigest,omitempty"`
	// Approved lets one such call pass.
	Approved bool `json:"approved,omitempty"`
	// Prompt tells the agent.
	Prompt string `json:"prompt"`
}

// ContextLimits bound the conversation that is rendered into the prompt of an agent that
// cannot resume its own session. Zero means that nothing of the kind is rendered.
type ContextLimits struct {
	// Messages and ToolCalls are how many of the newest ones are rendered.
	Messages  int32 `json:"messages"`
	ToolCalls int32 `json:"toolCalls"`
	// ToolResultBytes is how much of each tool result is rendered.
	ToolResultBytes int32 `json:"toolResultBytes"`
	// Summary is set if a summary of what was left out comes first.
	Summary bool `json:"summary"`
	// Bytes bounds the whole text.
	Bytes int32 `json:"bytes"`
}

// Operation is a resume or a rewind that prepare carries out once per ID.
type Operation struct {
	Kind string `json:"kind"`
	ID   string `json:"id"`
	// Prompt is the next user message of a resume.
	Prompt string `json:"prompt,omitempty"`
	// AdditionalContext is given to the agent below the prompt of a resume.
	AdditionalContext string `json:"additionalContext,omitempty"`
	// OnDrift says how drift is treated.
	OnDrift v1alpha1.OnDrift `json:"onDrift,omitempty"`
	// Checkpoint and Commit are the resolved target of a rewind. Checkpoint is 0 if no
	// checkpoint is as old as Position: the agent's state is then reset to what it was
	// before the task's first run.
	Checkpoint int64  `json:"checkpoint,omitempty"`
	Commit     string `json:"commit,omitempty"`
	// CheckpointPosition is the conversation's position at Checkpoint.
	CheckpointPosition int64 `json:"checkpointPosition,omitempty"`
	// Position is the resolved target of a rewind of the conversation: a turn boundary at
	// or after CheckpointPosition. 0 stands for CheckpointPosition.
	Position int64 `json:"position,omitempty"`
	// AfterSequence is the sequence of the task's record with the message at Position; 0 if
	// that is not known.
	AfterSequence int64 `json:"afterSequence,omitempty"`
	// Context bounds the rendered conversation of this resume; nil means the task's limits.
	Context *ContextLimits `json:"context,omitempty"`
	// Scope is what a rewind resets, and Preserve how it keeps what it discards.
	Scope    v1alpha1.RewindScope  `json:"scope,omitempty"`
	Preserve v1alpha1.PreserveMode `json:"preserve,omitempty"`
	// Branch is the name of the branch for Preserve=Branch.
	Branch string `json:"branch,omitempty"`
	// Files is the target of a rewind of selected files. Checkpoint and Commit are then left
	// out, so that daemons that do not know it refuse the rewind, instead of restoring all.
	Files *RewindFiles `json:"files,omitempty"`
	// Anew is set for a rewind of the conversation after which it has no message, and the
	// agent no state. Checkpoint, Commit and Position are then left out.
	Anew bool `json:"anew,omitempty"`
	// Rewind is the rewind that a resume begins with; nil if it continues from what is there.
	Rewind *ResumeRewind `json:"rewind,omitempty"`
}

// ResumeRewind is the rewind that a resume begins with: to a checkpoint, or of the
// conversation to nothing.
type ResumeRewind struct {
	// Checkpoint, Commit and CheckpointPosition are those of Operation; empty with Anew.
	Checkpoint         int64  `json:"checkpoint,omitempty"`
	Commit             string `json:"commit,omitempty"`
	CheckpointPosition int64  `json:"checkpointPosition,omitempty"`
	// Branch keeps the code from before; empty with Anew, which leaves the code as it is.
	Branch string `json:"branch,omitempty"`
	// Anew is set if the agent begins a new conversation.
	Anew bool `json:"anew,omitempty"`
}

// FirstRewind returns the rewind that the operation is or begins with; nil for none.
func (o *Operation) FirstRewind() *Operation {
	switch {
	case o == nil || o.Kind == OperationRewind:
		return o
	case o.Rewind == nil:
		return nil
	}
	r := &Operation{
		Kind: OperationRewind, ID: ResumeRewindID(o.ID), OnDrift: o.OnDrift,
		Checkpoint: o.Rewind.Checkpoint, Commit: o.Rewind.Commit, CheckpointPosition: o.Rewind.CheckpointPosition,
		Scope: v1alpha1.RewindBoth, Preserve: v1alpha1.PreserveBranch, Branch: o.Rewind.Branch,
	}
	if o.Rewind.Anew {
		r.Scope, r.Preserve, r.Anew = v1alpha1.RewindConversation, v1alpha1.PreserveDiscard, true
	}
	return r
}

// RewindFiles is the target of a rewind that leaves the agent's repository as it is.
// Checkpoint is 0 if a commit was named, which need not be a checkpoint's.
type RewindFiles struct {
	Checkpoint int64  `json:"checkpoint,omitempty"`
	Commit     string `json:"commit"`
	// Paths select the files, as package pathmatch reads them; none selects all.
	Paths []string `json:"paths,omitempty"`
}

// Price is the price of a model in millionths of a US dollar per million tokens.
type Price struct {
	Input       int64 `json:"input"`
	CachedInput int64 `json:"cachedInput,omitempty"`
	Output      int64 `json:"output"`
}

// MaskPrefix is the prefix of the environment variables whose values come from the agent's
// Secrets. Daemon, prepare and shim mask these values in everything that leaves the pod;
// the agent is started without the variables.
const MaskPrefix = "CLEW_MASK_"

// OperationFailure is why an operation could not be carried out.
type OperationFailure struct {
	Kind string `json:"kind"`
	ID   string `json:"id"`
	// Reason is a reason constant of v1alpha1, Message a sentence for users.
	Reason  string `json:"reason"`
	Message string `json:"message"`
}

// PrepareResult is the termination message of the container prepare, as JSON
// of at most 4096 bytes.
type PrepareResult struct {
	// Reason is Prepared, or why the workspace could not be prepared: a reason
	// constant of v1alpha1.
	Reason string `json:"reason"`
	// Message is a sentence for users.
	Message string `json:"message,omitempty"`
	// NewestAttempt is set if the volume or the gitstore has seen a newer attempt than
	// this one: the next attempt must have a higher number.
	NewestAttempt int64 `json:"newestAttempt,omitempty"`
	// Permanent is set if another try cannot succeed until somebody acts.
	Permanent bool `json:"permanent,omitempty"`
	// Operation is the id of the completed operation, OperationKind its kind, since a
	// rewind and a resume may have the same id. Older daemons left the kind out.
	Operation     string `json:"operation,omitempty"`
	OperationKind string `json:"operationKind,omitempty"`
	// Failed is the operation that failed for good and left the workspace unchanged.
	// Operation is then its key, which no manager mistakes for the id of a completed
	// operation.
	Failed *OperationFailure `json:"failed,omitempty"`
	// FromCheckpoint and ToCheckpoint are those of a completed rewind.
	FromCheckpoint int64 `json:"fromCheckpoint,omitempty"`
	ToCheckpoint   int64 `json:"toCheckpoint,omitempty"`
	// Preserved is the branch or stash that keeps what a rewind discarded.
	Preserved string `json:"preserved,omitempty"`
	// Restored is set if the volume was empty and was restored from the gitstore.
	Restored bool `json:"restored,omitempty"`
	// Memory is how the agent that starts now knows the conversation; empty for the type
	// Exec, which reads the conversation itself.
	Memory v1alpha1.AgentMemory `json:"memory,omitempty"`
	// MemoryMessage explains Memory to users.
	MemoryMessage string `json:"memoryMessage,omitempty"`
	// ToPosition is the conversation's position after a rewind.
	ToPosition int64 `json:"toPosition,omitempty"`
	// DriftCount and DriftedFiles are the number and the names of the files that drifted, and
	// DriftedActions is what became of each of these: A (added), M (modified) or D (deleted).
	DriftCount     int      `json:"driftCount,omitempty"`
	DriftedFiles   []string `json:"driftedFiles,omitempty"`
	DriftedActions string   `json:"driftedActions,omitempty"`
	// DriftFrom is the number of the checkpoint that the worktree was left at, and DriftCommit
	// what the task's ref Live has in the gitstore if the drifted files could be pushed there.
	DriftFrom   int64  `json:"driftFrom,omitempty"`
	DriftCommit string `json:"driftCommit,omitempty"`
	// MovedHead is set if the HEAD of the agent's repository is not what Clew left there.
	MovedHead *MovedHead `json:"movedHead,omitempty"`
	// Branches says what became of each of Config.Branches, in their order.
	Branches []BranchResult `json:"branches,omitempty"`
	// Checkout is the outcome of Config.Checkout; nil if there was none, or it could be neither
	// carried out nor refused.
	Checkout *CheckoutResult `json:"checkout,omitempty"`
}

// MovedHead is where the HEAD of the agent's repository was, and where it is. A branch is empty
// for a detached HEAD.
type MovedHead struct {
	FromBranch string `json:"fromBranch,omitempty"`
	FromCommit string `json:"fromCommit,omitempty"`
	Branch     string `json:"branch,omitempty"`
	Commit     string `json:"commit,omitempty"`
}

// The letters of PrepareResult.DriftedActions.
const (
	DriftAdded    = 'A'
	DriftModified = 'M'
	DriftDeleted  = 'D'
)

// Encode renders the configuration for ConfigEnv.
func (c Config) Encode() (string, error) {
	var b strings.Builder
	encoder := json.NewEncoder(&b)
	// An environment variable is limited to 128 KiB, and escaping for HTML can make a
	// prompt six times as long.
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(c); err != nil {
		return "", fmt.Errorf("encode the pod's configuration: %w", err)
	}
	return strings.TrimSuffix(b.String(), "\n"), nil
}

// DecodeConfig decodes what Encode returned. A Config without a task or an attempt is an
// error.
func DecodeConfig(s string) (Config, error) {
	var c Config
	if err := json.Unmarshal([]byte(s), &c); err != nil {
		return Config{}, fmt.Errorf("decode the pod's configuration in %s: %w", ConfigEnv, err)
	}
	if c.TaskUID == "" || c.Attempt < 1 {
		return Config{}, fmt.Errorf("the pod's configuration in %s names no task or attempt", ConfigEnv)
	}
	return c, nil
}

// RepositoryKey returns the name of the gitstore's repository for an origin, which the
// tasks of one namespace and origin share. Spellings of one URL that differ in the case of
// the host, a trailing slash or .git have the same key. The empty URL stands for tasks
// without a repository.
func RepositoryKey(origin string) string {
	if origin == "" {
		return "r-empty"
	}
	normal := strings.TrimSuffix(strings.TrimRight(origin, "/"), ".git")
	if u, err := url.Parse(normal); err == nil && u.Host != "" {
		u.Host = strings.ToLower(u.Host)
		u.Scheme = strings.ToLower(u.Scheme)
		u.User = nil
		normal = u.String()
	}
	sum := sha256.Sum256([]byte(normal))
	return "r-" + hex.EncodeToString(sum[:])[:20]
}
