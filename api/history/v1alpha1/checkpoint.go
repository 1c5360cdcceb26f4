package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// CheckpointList is a page of the recorded checkpoints of a task, newest first. It includes
// those whose Checkpoint object was deleted.
type CheckpointList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []Checkpoint `json:"items"`
}

// Checkpoint is a recorded checkpoint.
type Checkpoint struct {
	metav1.TypeMeta `json:",inline"`
	TaskUID         string `json:"taskUID"`
	// Number of the checkpoint in its task, from 1.
	Number  int64 `json:"number"`
	Attempt int64 `json:"attempt,omitempty"`
	// Trigger and Consistency are as in the status of a Checkpoint object.
	Trigger     string           `json:"trigger,omitempty"`
	Consistency string           `json:"consistency,omitempty"`
	Time        metav1.MicroTime `json:"time"`
	Message     string           `json:"message,omitempty"`
	// Commit and Tree are the code's, StateCommit the agent's state. Parent is the code
	// commit of the previous checkpoint, and Base what the task started from.
	Commit      string `json:"commit"`
	Tree        string `json:"tree,omitempty"`
	Parent      string `json:"parent,omitempty"`
	Base        string `json:"base,omitempty"`
	StateCommit string `json:"stateCommit,omitempty"`
	// Durable: the gitstore has it. Otherwise NotDurable says why not, if that is known.
	Durable    bool   `json:"durable"`
	NotDurable string `json:"notDurable,omitempty"`
	// Lost: neither the gitstore nor the task's volume has it any more.
	Lost bool `json:"lost,omitempty"`
	// RequestedByName is the Checkpoint object that requested it, if one did.
	RequestedByName string `json:"requestedByName,omitempty"`
	// FilesChanged, LinesAdded and LinesRemoved count what changed since the parent.
	FilesChanged int32 `json:"filesChanged"`
	LinesAdded   int64 `json:"linesAdded"`
	LinesRemoved int64 `json:"linesRemoved"`
	// Files and Bytes are those of the whole worktree.
	Files        int64 `json:"files,omitempty"`
	Bytes        int64 `json:"bytes,omitempty"`
	SkippedCount int32 `json:"skippedCount,omitempty"`
	// GitHead and GitBranch are those of the agent's own repository.
	GitHead        string `json:"gitHead,omitempty"`
	GitBranch      string `json:"gitBranch,omitempty"`
	DirtyFileCount int32  `json:"dirtyFileCount,omitempty"`
	// Branch and Position are the place in the conversation; the sums are up to there.
	Branch       string `json:"branch,omitempty"`
	Position     int64  `json:"position"`
	ToolCalls    int64  `json:"toolCalls"`
	InputTokens  int64  `json:"inputTokens"`
	OutputTokens int64  `json:"outputTokens"`
	CostMicroUSD int64  `json:"costMicroUSD"`
	// Digest is a chain of SHA-256 over the messages that the checkpoint restores, in hex.
	Digest string `json:"digest,omitempty"`
	// FrozenMilliseconds is how long the agent was stopped for it.
	FrozenMilliseconds int64 `json:"frozenMilliseconds,omitempty"`
	// RiskyTool is the tool call that it was taken for, and Session the agent's own session
	// that its state contains.
	RiskyTool *RiskyTool    `json:"riskyTool,omitempty"`
	Session   *AgentSession `json:"session,omitempty"`
	// ChangedFiles are the files that changed since the parent, at most 1000; Skipped those
	// that it lists and does not contain, and DirtyFiles those that the agent had not
	// committed. Lists of checkpoints leave them out.
	ChangedFiles []ChangedFile `json:"changedFiles,omitempty"`
	Skipped      []SkippedFile `json:"skipped,omitempty"`
	DirtyFiles   []string      `json:"dirtyFiles,omitempty"`
}

// RiskyTool is a tool call that a checkpoint was taken for. Before is true if the tool waited.
type RiskyTool struct {
	Name   string `json:"name"`
	CallID string `json:"callID,omitempty"`
	Before bool   `json:"before,omitempty"`
}

// AgentSession is an agent's own session.
type AgentSession struct {
	Agent   string `json:"agent,omitempty"`
	ID      string `json:"id"`
	Version string `json:"version,omitempty"`
	Model   string `json:"model,omitempty"`
}

// ChangedFile is a file that changed: Added, Modified or Deleted.
type ChangedFile struct {
	Path   string `json:"path"`
	Action string `json:"action"`
}

// SkippedFile is a file that a checkpoint does not contain, and why.
type SkippedFile struct {
	Path   string `json:"path"`
	Reason string `json:"reason"`
	Bytes  int64  `json:"bytes,omitempty"`
}
