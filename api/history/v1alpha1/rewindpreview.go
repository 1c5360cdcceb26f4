package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// RewindPreview is what a rewind of a task would do if it was requested now.
type RewindPreview struct {
	metav1.TypeMeta `json:",inline"`
	// ListMeta has the number of files that are left out of files.items.
	metav1.ListMeta `json:"metadata,omitempty"`
	Task            string `json:"task"`
	TaskUID         string `json:"taskUID"`
	// Scope and Paths are what would be rewound; of an undo, those of the rewind UndoOf.
	Scope  string   `json:"scope"`
	Paths  []string `json:"paths,omitempty"`
	UndoOf string   `json:"undoOf,omitempty"`
	// To is the target, as it was resolved.
	To RewindPoint `json:"to"`
	// Files are those that would change; absent if the rewind leaves the files alone.
	Files *RewoundFiles `json:"files,omitempty"`
	// Conversation is what would go of it; absent if the rewind leaves it alone.
	Conversation *RewoundConversation `json:"conversation,omitempty"`
	// Stops is the work that would be stopped; absent if no agent runs.
	Stops *StoppedWork `json:"stops,omitempty"`
	// Keeps is how the present state would be kept.
	Keeps KeptState `json:"keeps"`
	// Fails is why the rewind would be accepted, and then fail; absent if that is not known. Paths
	// that select nothing, and those that are blocked, are in files.
	Fails *ExpectedFailure `json:"fails,omitempty"`
}

// ExpectedFailure is how an operation would end.
type ExpectedFailure struct {
	// Reason that the status of the operation would have, such as DriftDetected.
	Reason  string `json:"reason"`
	Message string `json:"message"`
}

// RewindPoint is the target of a rewind.
type RewindPoint struct {
	// Checkpoint whose files or agent's state are restored; 0 if none is.
	Checkpoint int64  `json:"checkpoint,omitempty"`
	Commit     string `json:"commit,omitempty"`
	// Message explains the target if it is not exactly the requested one.
	Message string `json:"message,omitempty"`
}

// RewoundFiles are the files that a rewind would change.
type RewoundFiles struct {
	// From is the present: a running task's files as they are, and of another task the latest
	// checkpoint, or the files that its newest pod found changed, if they are kept first (onDrift).
	From DiffMoment `json:"from"`
	// Totals over all files. IgnoredFiles of them would stay as they are, because the commit's
	// .gitignore files name them, or because they are of nested repositories.
	Totals DiffTotals `json:"totals"`
	// Items are the files, by path: Added, Modified, Deleted or Renamed by the rewind.
	Items []FileDiff `json:"items"`
	// UnmatchedPaths are those of the paths that select no file, neither now nor at the target.
	// The rewind fails if one of them does not select an empty folder or a named pipe either.
	UnmatchedPaths []string `json:"unmatchedPaths,omitempty"`
	// BlockedPaths are the first ones at which the target has something, and the worktree
	// something that has to stay: a file that checkpoints skip, or one that the paths do not
	// select. The rewind fails because of them. Skipped files are those that the latest
	// checkpoint names: what the agent has made since is not known.
	BlockedPaths []string `json:"blockedPaths,omitempty"`
}

// RewoundConversation is what a rewind would do to the conversation.
type RewoundConversation struct {
	// FromPosition is the last message now, and ToPosition after the rewind.
	FromPosition int64 `json:"fromPosition"`
	ToPosition   int64 `json:"toPosition"`
	// Dropped is the number of messages that go, First and Last of which are given, and
	// Restored the number of those that an earlier rewind dropped and that come back.
	Dropped  int64              `json:"dropped"`
	Restored int64              `json:"restored,omitempty"`
	First    *ConversationEntry `json:"first,omitempty"`
	Last     *ConversationEntry `json:"last,omitempty"`
	// Tool calls, tokens and cost by which the conversation becomes shorter; negative if it
	// becomes longer.
	ToolCalls    int64 `json:"toolCalls"`
	InputTokens  int64 `json:"inputTokens"`
	OutputTokens int64 `json:"outputTokens"`
	CostMicroUSD int64 `json:"costMicroUSD"`
}

// StoppedWork is work in progress that a rewind would stop.
type StoppedWork struct {
	// Attempt whose pod runs the agent, or is about to.
	Attempt int64 `json:"attempt"`
	// ToolCalls are those that have no result yet, at most 10.
	ToolCalls []ToolCall `json:"toolCalls,omitempty"`
}

// KeptState is how a rewind would keep the present state. A checkpoint of it exists in any
// case.
type KeptState struct {
	// Preserve: Branch, Stash or Discard; Discard as well if the files are not rewound.
	Preserve string `json:"preserve"`
	// Branch of the agent's repository. Unless the request names the rewind's id, ID stands for
	// it.
	Branch string `json:"branch,omitempty"`
}
