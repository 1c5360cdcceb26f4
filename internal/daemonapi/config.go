// Package daemonapi is what a task's pod is told and what it tells: the
// configuration the manager writes into the pod (Config), the outcome that
// prepare leaves for the manager (PrepareResult), and the versioned protocol
// between daemon and server (package v1).
//
// Pods outlive upgrades of the manager and the server, so fields are only ever
// added, and an unknown field is no error.
package daemonapi

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/url"
	"strings"

	"github.com/clew-dev/clew/api/v1alpha1"
)

// The audiences of the tokens by which pods identify themselves: one for the
// server and one for the gitstore, so that neither can use at the other what it
// was given. Pods made before they were told apart hold one token for both, of
// the former audience.
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

// Config is what a pod is told about its task. It holds no secret.
type Config struct {
	// Namespace, Task and TaskUID name the task.
	Namespace string `json:"namespace"`
	Task      string `json:"task"`
	TaskUID   string `json:"taskUID"`
	// Attempt is the number of this pod among the task's pods, from 1.
	Attempt int64 `json:"attempt"`
	// HighestCheckpoint is the highest number that an object of the task's stands
	// for: no other checkpoint may get it, even if neither the history store nor
	// the volume knows of it any more.
	HighestCheckpoint int64 `json:"highestCheckpoint,omitempty"`
	// RecordSequence is the newest record of the task that the manager has seen in the
	// history store: no other record may get its sequence, even if neither the store nor
	// the volume has it any more. 0 from managers of before.
	RecordSequence int64 `json:"recordSequence,omitempty"`
	// PodUID is what PodUIDEnv says: a manager cannot know it beforehand.
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
	Policy    Policy             `json:"policy"`
	AgentType v1alpha1.AgentType `json:"agentType"`
	// Model is the model that the agent is told to use; its own choice when empty.
	Model string `json:"model,omitempty"`
	// Context bounds the conversation rendered into a prompt.
	Context ContextLimits `json:"context,omitzero"`
	// Prices of models, in addition to the built-in ones, by the beginning of
	// the model's name.
	Prices map[string]Price `json:"prices,omitempty"`
	// StatePaths are the folders under home that hold the agent's state; all of it when empty.
	StatePaths []string `json:"statePaths,omitempty"`
	// Operation is what prepare is to do besides bringing the worktree up.
	Operation *Operation `json:"operation,omitempty"`
	// IdleSeconds is how long the agent may print nothing before it is ended; 0
	// for any time.
	IdleSeconds int32 `json:"idleSeconds,omitempty"`
	// PrepareOnly is set on a pod that ends after prepare, without an agent.
	PrepareOnly bool `json:"prepareOnly,omitempty"`
	// SpoolMargin is what the daemon keeps of what the server has.
	SpoolMargin SpoolMargin `json:"spoolMargin,omitzero"`
}

// SpoolMargin bounds what a daemon keeps of the records that the server has
// acknowledged, to send them again should the history store lose them: whichever
// is reached first. The zero value keeps nothing.
type SpoolMargin struct {
	Bytes   int64 `json:"bytes"`
	Seconds int64 `json:"seconds"`
}

// Repository is the origin of a task's code.
type Repository struct {
	URL string `json:"url"`
	Ref string `json:"ref,omitempty"`
	// CredentialsSecret names the Secret that prepare finds mounted; empty for
	// a repository that anyone may read.
	CredentialsSecret string `json:"credentialsSecret,omitempty"`
}

// Source is the point another task is started from, resolved.
type Source struct {
	TaskUID string `json:"taskUID"`
	// TaskName is for messages; managers of before leave it out.
	TaskName            string `json:"taskName,omitempty"`
	Checkpoint          int64  `json:"checkpoint"`
	Commit              string `json:"commit"`
	IncludeConversation bool   `json:"includeConversation"`
	// Position is where the conversation stood at Checkpoint; 0 if that is not
	// known.
	Position int64 `json:"position,omitempty"`
}

// String names the checkpoint in messages.
func (s Source) String() string {
	if s.TaskName == "" {
		return fmt.Sprintf("checkpoint %d of the task with UID %s", s.Checkpoint, s.TaskUID)
	}
	return fmt.Sprintf("checkpoint %d of task %s (UID %s)", s.Checkpoint, s.TaskName, s.TaskUID)
}

// Policy says when checkpoints are taken; zero means never for that reason.
type Policy struct {
	EveryToolCalls int32 `json:"everyToolCalls"`
	EverySeconds   int32 `json:"everySeconds"`
	// LeastIntervalSeconds is how soon after another an automatic checkpoint may
	// be taken, beyond a burst; 0, from managers of before, means the default.
	LeastIntervalSeconds int32 `json:"leastIntervalSeconds,omitempty"`
	MaxFileBytes         int64 `json:"maxFileBytes"`
	// RiskyTools are the calls that a checkpoint is taken before.
	RiskyTools []ToolPattern `json:"riskyTools,omitempty"`
	// SnapshotEveryMessages is how often a snapshot of the conversation is noted.
	SnapshotEveryMessages int64 `json:"snapshotEveryMessages,omitempty"`
}

// ToolPattern matches tool calls. Both are regular expressions (RE2) that match
// anywhere; an empty one matches everything.
type ToolPattern struct {
	// Tool matches the tool's name, Input its input as JSON.
	Tool  string `json:"tool,omitempty"`
	Input string `json:"input,omitempty"`
}

// ContextLimits bound the conversation that is rendered into the prompt of an
// agent that cannot resume its own session. Zero means none of it.
type ContextLimits struct {
	// Messages and ToolCalls count the newest ones that are rendered.
	Messages  int32 `json:"messages"`
	ToolCalls int32 `json:"toolCalls"`
	// ToolResultBytes is how much of each tool result is rendered.
	ToolResultBytes int32 `json:"toolResultBytes"`
	// Summary begins with a summary of what was left out.
	Summary bool `json:"summary"`
	// Bytes bounds the whole.
	Bytes int32 `json:"bytes"`
}

// Operation is a resume or a rewind that prepare carries out once per ID.
type Operation struct {
	Kind string `json:"kind"`
	ID   string `json:"id"`
	// Prompt is the next user message of a resume.
	Prompt string `json:"prompt,omitempty"`
	// OnDrift says what is done with changes that no checkpoint knows of.
	OnDrift v1alpha1.OnDrift `json:"onDrift,omitempty"`
	// Checkpoint and Commit are where a rewind goes, resolved. Checkpoint is 0 if
	// there is none as old as Position: the agent's state is then that of before
	// the task's first run.
	Checkpoint int64  `json:"checkpoint,omitempty"`
	Commit     string `json:"commit,omitempty"`
	// CheckpointPosition is where the conversation stood at Checkpoint.
	CheckpointPosition int64 `json:"checkpointPosition,omitempty"`
	// Position is where a rewind of the conversation goes: a turn boundary at
	// CheckpointPosition or after it, resolved. 0 for the checkpoint's.
	Position int64 `json:"position,omitempty"`
	// AfterSequence is the record of the task that made the message at Position; 0
	// if that is not known.
	AfterSequence int64 `json:"afterSequence,omitempty"`
	// Context bounds the rendered conversation of this resume; nil for the task's.
	Context *ContextLimits `json:"context,omitempty"`
	// Scope is what a rewind takes back, and Preserve how it keeps what stood before.
	Scope    v1alpha1.RewindScope  `json:"scope,omitempty"`
	Preserve v1alpha1.PreserveMode `json:"preserve,omitempty"`
	// Branch is the branch that Preserve=Branch makes.
	Branch string `json:"branch,omitempty"`
}

// Price of a model in millionths of a US dollar for a million tokens.
type Price struct {
	Input       int64 `json:"input"`
	CachedInput int64 `json:"cachedInput,omitempty"`
	Output      int64 `json:"output"`
}

// MaskPrefix begins the names of environment variables whose values come from
// the Secrets that the agent is given. Daemon, prepare and shim replace these
// values wherever they would leave the pod; the agent is started without them.
const MaskPrefix = "CLEW_MASK_"

// OperationFailure says why an operation could not be carried out.
type OperationFailure struct {
	Kind string `json:"kind"`
	ID   string `json:"id"`
	// Reason is a reason constant of v1alpha1, Message the sentence for people.
	Reason  string `json:"reason"`
	Message string `json:"message"`
}

// PrepareResult is the termination message of the container prepare, as JSON
// of at most 4096 bytes.
type PrepareResult struct {
	// Reason is Prepared, or why the workspace could not be prepared: a reason
	// constant of v1alpha1.
	Reason string `json:"reason"`
	// Message is the sentence for people.
	Message string `json:"message,omitempty"`
	// NewestAttempt is set where the volume or the gitstore has seen a newer attempt
	// than this one: the next one must have a higher number.
	NewestAttempt int64 `json:"newestAttempt,omitempty"`
	// Permanent says that another try cannot help until somebody acts.
	Permanent bool `json:"permanent,omitempty"`
	// Operation is the id of the operation that is complete, OperationKind its
	// kind: a rewind and a resume may have the same id. Daemons of before left
	// the kind out.
	Operation     string `json:"operation,omitempty"`
	OperationKind string `json:"operationKind,omitempty"`
	// Failed is the operation that failed for good and left the workspace as it
	// was; Operation then holds its key, which no manager takes for an id that is
	// complete.
	Failed *OperationFailure `json:"failed,omitempty"`
	// FromCheckpoint and ToCheckpoint are those of a completed rewind.
	FromCheckpoint int64 `json:"fromCheckpoint,omitempty"`
	ToCheckpoint   int64 `json:"toCheckpoint,omitempty"`
	// Preserved names the branch or stash that keeps what stood before.
	Preserved string `json:"preserved,omitempty"`
	// Restored says that the volume was empty and came back from the gitstore.
	Restored bool `json:"restored,omitempty"`
	// Memory says what the agent that starts now knows; empty for the type Exec,
	// which reads the conversation itself.
	Memory v1alpha1.AgentMemory `json:"memory,omitempty"`
	// MemoryMessage says why, for people.
	MemoryMessage string `json:"memoryMessage,omitempty"`
	// ToPosition is where a rewind left the conversation.
	ToPosition int64 `json:"toPosition,omitempty"`
	// DriftCount and DriftedFiles tell what was changed while the task slept.
	DriftCount   int      `json:"driftCount,omitempty"`
	DriftedFiles []string `json:"driftedFiles,omitempty"`
}

// Encode renders the configuration for ConfigEnv.
func (c Config) Encode() (string, error) {
	var b strings.Builder
	encoder := json.NewEncoder(&b)
	// One environment variable holds at most 128 KiB: escapes for HTML would
	// make a prompt six times as long.
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(c); err != nil {
		return "", fmt.Errorf("encode the pod's configuration: %w", err)
	}
	return strings.TrimSuffix(b.String(), "\n"), nil
}

// DecodeConfig reads what Encode wrote.
func DecodeConfig(s string) (Config, error) {
	var c Config
	if err := json.Unmarshal([]byte(s), &c); err != nil {
		return Config{}, fmt.Errorf("%s does not hold the pod's configuration: %w", ConfigEnv, err)
	}
	if c.TaskUID == "" || c.Attempt < 1 {
		return Config{}, fmt.Errorf("%s names no task or attempt", ConfigEnv)
	}
	return c, nil
}

// RepositoryKey is the name of the gitstore's repository for an origin: tasks
// of one namespace and origin share it. Two spellings of one URL (case of the
// host, a trailing slash or .git) give one key. The empty URL stands for tasks
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
