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
)

// TokenAudience is the audience of the tokens by which pods identify themselves.
const TokenAudience = "clew.dev"

// ConfigEnv is the environment variable that holds a Config as JSON, in the
// containers prepare and daemon.
const ConfigEnv = "CLEW_CONFIG"

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
	// AgentType is a value of v1alpha1.AgentType.
	AgentType string `json:"agentType"`
	// StatePaths are the folders under home that hold the agent's state; all of it when empty.
	StatePaths []string `json:"statePaths,omitempty"`
	// Operation is what prepare is to do besides bringing the worktree up.
	Operation *Operation `json:"operation,omitempty"`
	// PrepareOnly is set on a pod that ends after prepare, without an agent.
	PrepareOnly bool `json:"prepareOnly,omitempty"`
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
	TaskUID             string `json:"taskUID"`
	Checkpoint          int64  `json:"checkpoint"`
	Commit              string `json:"commit"`
	IncludeConversation bool   `json:"includeConversation"`
}

// Policy says when checkpoints are taken; zero means never for that reason.
type Policy struct {
	EveryToolCalls int32 `json:"everyToolCalls"`
	EverySeconds   int32 `json:"everySeconds"`
	MaxFileBytes   int64 `json:"maxFileBytes"`
}

// Kinds of Operation.
const (
	OperationResume = "Resume"
	OperationRewind = "Rewind"
)

// Operation is a resume or a rewind that prepare carries out once per ID.
type Operation struct {
	Kind string `json:"kind"`
	ID   string `json:"id"`
	// Prompt is the next user message of a resume.
	Prompt string `json:"prompt,omitempty"`
	// OnDrift is a value of v1alpha1.OnDrift.
	OnDrift string `json:"onDrift,omitempty"`
	// Checkpoint and Commit are where a rewind goes, resolved.
	Checkpoint int64  `json:"checkpoint,omitempty"`
	Commit     string `json:"commit,omitempty"`
	// Scope and Preserve are values of v1alpha1.RewindScope and PreserveMode.
	Scope    string `json:"scope,omitempty"`
	Preserve string `json:"preserve,omitempty"`
	// Branch is the branch that Preserve=Branch makes.
	Branch string `json:"branch,omitempty"`
}

// PrepareResult is the termination message of the container prepare, as JSON
// of at most 4096 bytes.
type PrepareResult struct {
	// Reason is Prepared, or why the workspace could not be prepared: a reason
	// constant of v1alpha1.
	Reason string `json:"reason"`
	// Message is the sentence for people.
	Message string `json:"message,omitempty"`
	// Permanent says that another try cannot help until somebody acts.
	Permanent bool `json:"permanent,omitempty"`
	// Operation is the id of the operation that is complete.
	Operation string `json:"operation,omitempty"`
	// FromCheckpoint and ToCheckpoint are those of a completed rewind.
	FromCheckpoint int64 `json:"fromCheckpoint,omitempty"`
	ToCheckpoint   int64 `json:"toCheckpoint,omitempty"`
	// Preserved names the branch or stash that keeps what stood before.
	Preserved string `json:"preserved,omitempty"`
	// Restored says that the volume was empty and came back from the gitstore.
	Restored bool `json:"restored,omitempty"`
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
