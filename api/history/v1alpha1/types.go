// Package v1alpha1 defines the responses of the history API, history.clew.dev: what the
// server sends and the plugin reads. Its objects are never stored in the cluster; they
// are views of the history store.
package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Group and Version of the history API.
const (
	Group   = "history.clew.dev"
	Version = "v1alpha1"
)

// CauseDeletionUnfinished is the type of the cause in the details of a Status that
// answers an interrupted deletion of a history: its message is complete, and repeating
// the deletion continues where it stopped.
const CauseDeletionUnfinished metav1.CauseType = "DeletionUnfinished"

// CauseLiveResting is the type of the cause in the details of a Status that says after how many
// seconds a difference to the present may be requested again: the task's files have just been
// read for another request, and reading them takes long.
const CauseLiveResting metav1.CauseType = "LiveResting"

// ConversationList is a page of a task's conversation, oldest message first.
type ConversationList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []ConversationEntry `json:"items"`
}

// ConversationEntry is one message.
type ConversationEntry struct {
	// Position of the message in the conversation, from 1.
	Position int64            `json:"position"`
	Time     metav1.MicroTime `json:"time"`
	// Branch is the id of the branch on which the message was written.
	Branch  string `json:"branch,omitempty"`
	Attempt int64  `json:"attempt,omitempty"`
	// Role: user, assistant, system, tool or output.
	Role string `json:"role"`
	// Text of the message; only its beginning if TextBytes is set.
	Text string `json:"text,omitempty"`
	// TextBytes is the length of the full text if only its beginning is given: long texts
	// are returned in full with full=true.
	TextBytes  int64       `json:"textBytes,omitempty"`
	ToolCall   *ToolCall   `json:"toolCall,omitempty"`
	ToolResult *ToolResult `json:"toolResult,omitempty"`
	// Raw is the agent's own line if it was not understood; RawBytes relates to it as
	// TextBytes does to Text.
	Raw      string `json:"raw,omitempty"`
	RawBytes int64  `json:"rawBytes,omitempty"`
	// Effects are what the message's calls of a supervisor's tools did, in their order. They are known
	// once a call is answered.
	Effects []Effect `json:"effects,omitempty"`
}

// Operations of supervisors' tools.
const (
	EffectCreated   = "Created"
	EffectForked    = "Forked"
	EffectResumed   = "Resumed"
	EffectRewound   = "Rewound"
	EffectStopped   = "Stopped"
	EffectPhaseSet  = "PhaseSet"
	EffectPublished = "Published"
	// EffectRepeated: the call asked once more for a task that an earlier one had made, and made none.
	EffectRepeated = "Repeated"
)

// Effect is what a call of a supervisor's tool did, to one task or to the contract.
type Effect struct {
	// Operation: Created, Forked, Repeated, Resumed, Rewound, Stopped, PhaseSet or Published.
	Operation string `json:"operation"`
	// Name and UID are those of the task; empty for PhaseSet.
	Name string `json:"name,omitempty"`
	UID  string `json:"uid,omitempty"`
	// Phase is the one to which the contract was moved, or in which the task was made.
	Phase string `json:"phase,omitempty"`
	// Checkpoint is the number of the one that the task went back to, started from, or that was
	// published.
	Checkpoint int64 `json:"checkpoint,omitempty"`
	// Outcome is the last recorded state of the task, as in TaskHistory: what has become of it. It is
	// left out for a caller who may not list taskhistories.
	Outcome string `json:"outcome,omitempty"`
	// TakenBack: a rewind took back the message with the call. What the call did stays. Only branches
	// that the task has left have such messages.
	TakenBack bool `json:"takenBack,omitempty"`
}

// MadeBy is the call of a supervisor's tool that made a task.
type MadeBy struct {
	// Name and UID are those of the supervisor.
	Name string `json:"name"`
	UID  string `json:"uid"`
	// Operation: Created or Forked.
	Operation string `json:"operation"`
	// Phase of the contract in which the task was made.
	Phase string `json:"phase,omitempty"`
	// Branch and Position are those of the message in the supervisor's conversation; see Effect for
	// TakenBack.
	Branch    string `json:"branch,omitempty"`
	Position  int64  `json:"position"`
	TakenBack bool   `json:"takenBack,omitempty"`
}

// ToolCall is an assistant's call of a tool.
type ToolCall struct {
	ID   string `json:"id"`
	Name string `json:"name"`
	// Input is JSON; only its beginning if InputBytes, its full length, is set.
	Input      string `json:"input,omitempty"`
	InputBytes int64  `json:"inputBytes,omitempty"`
}

// ToolResult is the result of a tool call.
type ToolResult struct {
	CallID string `json:"callID"`
	// Output of the tool; only its beginning if OutputBytes, its full length, is set.
	Output      string `json:"output,omitempty"`
	OutputBytes int64  `json:"outputBytes,omitempty"`
	IsError     bool   `json:"isError,omitempty"`
	Interrupted bool   `json:"interrupted,omitempty"`
}

// TimelineEventList is a page of a timeline, newest event first.
type TimelineEventList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []TimelineEvent `json:"items"`
}

// TimelineEvent is one thing that happened to a task.
type TimelineEvent struct {
	ID      string           `json:"id"`
	Time    metav1.MicroTime `json:"time"`
	Task    string           `json:"task"`
	TaskUID string           `json:"taskUID"`
	// Type: task, chat, checkpoint, rewind, fork, file, access, imported.
	Type       string `json:"type"`
	Reason     string `json:"reason"`
	Actor      string `json:"actor,omitempty"`
	Message    string `json:"message,omitempty"`
	Attempt    int64  `json:"attempt,omitempty"`
	Checkpoint int64  `json:"checkpoint,omitempty"`
	// ImportedBy is the user who imported the event with a history. The event is then
	// only as trustworthy as the imported file.
	ImportedBy string `json:"importedBy,omitempty"`
}

// SearchResultList is a page of search results, best first.
type SearchResultList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []SearchResult `json:"items"`
}

// SearchResult is a message that matches a search.
type SearchResult struct {
	Task    string `json:"task"`
	TaskUID string `json:"taskUID"`
	// Position of the message in the conversation, and its branch.
	Position int64            `json:"position"`
	Branch   string           `json:"branch,omitempty"`
	Time     metav1.MicroTime `json:"time"`
	Role     string           `json:"role"`
	// Tool that the message calls, if any.
	Tool string `json:"tool,omitempty"`
	// RankMillionths is the relevance in millionths; larger is better.
	RankMillionths int64 `json:"rankMillionths"`
	// Snippet is the text around the matching words, in order.
	Snippet []SnippetPart `json:"snippet,omitempty"`
}

// SnippetPart is a part of a snippet; Match marks a matching word.
type SnippetPart struct {
	Text  string `json:"text"`
	Match bool   `json:"match,omitempty"`
}

// TaskHistoryList is a page of a namespace's tasks in the history, including those whose
// Task object is gone.
type TaskHistoryList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []TaskHistory `json:"items"`
}

// TaskHistory is the history of one task in summary. Several tasks may have had the same
// name, one after the other; their UIDs distinguish them.
type TaskHistory struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`
	// State is the last recorded state: Running, Completed …
	State string `json:"state,omitempty"`
	// Preview is the beginning of the user's first message.
	Preview string           `json:"preview,omitempty"`
	Updated metav1.MicroTime `json:"updated"`
	// Sums over the active branch of the conversation.
	Messages     int64 `json:"messages"`
	ToolCalls    int64 `json:"toolCalls"`
	InputTokens  int64 `json:"inputTokens"`
	OutputTokens int64 `json:"outputTokens"`
	CostMicroUSD int64 `json:"costMicroUSD"`
	Checkpoints  int64 `json:"checkpoints"`
	// Tools that were called, by name.
	Tools []string `json:"tools,omitempty"`
	// Models that were used, over all branches of the conversation.
	Models []ModelUsage `json:"models,omitempty"`
	// MadeBy is the call of a supervisor's tool that made the task, if one did and its message is known.
	// Lists leave it out.
	MadeBy *MadeBy `json:"madeBy,omitempty"`
}

// ModelUsage is the usage of one model.
type ModelUsage struct {
	// Model is empty if the agent did not name it.
	Model       string `json:"model,omitempty"`
	InputTokens int64  `json:"inputTokens"`
	// CachedInputTokens is the portion of InputTokens that came from a cache.
	CachedInputTokens int64 `json:"cachedInputTokens,omitempty"`
	OutputTokens      int64 `json:"outputTokens"`
	CostMicroUSD      int64 `json:"costMicroUSD"`
}

// SnapshotList is a page of the snapshots of a task's conversation, oldest first: the
// automatic ones, and that of each checkpoint.
type SnapshotList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []Snapshot `json:"items"`
}

// Snapshot is a position with its sums and its digest.
type Snapshot struct {
	// Ordinal counts the task's automatic snapshots from 1; 0 for those of checkpoints.
	Ordinal int64 `json:"ordinal"`
	// Kind is Automatic or Checkpoint.
	Kind string           `json:"kind"`
	Time metav1.MicroTime `json:"time"`
	// Branch and Position are a turn boundary of the conversation.
	Branch       string `json:"branch,omitempty"`
	Position     int64  `json:"position"`
	ToolCalls    int64  `json:"toolCalls"`
	InputTokens  int64  `json:"inputTokens"`
	OutputTokens int64  `json:"outputTokens"`
	CostMicroUSD int64  `json:"costMicroUSD"`
	// Digest is a chain of SHA-256 over the messages up to the position, in hex.
	Digest string `json:"digest,omitempty"`
	// Checkpoint is the newest one at or before the position, or that which the snapshot
	// was taken with; 0 for none.
	Checkpoint int64 `json:"checkpoint,omitempty"`
}

// HistoryDeletion counts what the deletion of a task's history removed, or, after a dry
// run, would remove.
type HistoryDeletion struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`
	// DryRun: nothing was removed; the numbers are those of the task, including what it
	// shares with others and what would therefore stay.
	DryRun bool `json:"dryRun,omitempty"`
	// Pending: some texts were in use, and the server removes them within minutes;
	// nothing is left to do for the caller.
	Pending bool `json:"pending,omitempty"`
	// Messages and Pieces of long texts that no other task shares.
	Messages    int64 `json:"messages"`
	Pieces      int64 `json:"pieces,omitempty"`
	Checkpoints int64 `json:"checkpoints"`
	Events      int64 `json:"events,omitempty"`
	// Refs in git repositories, Repositories that contained some of them, and Bytes freed
	// on disk.
	Refs         int   `json:"refs,omitempty"`
	Repositories int   `json:"repositories,omitempty"`
	Bytes        int64 `json:"bytes,omitempty"`
}

// ConversationPoint is a turn boundary of a task's conversation, as a rewind to a message
// or a time would resolve it now.
type ConversationPoint struct {
	metav1.TypeMeta `json:",inline"`
	TaskUID         string `json:"taskUID"`
	// Branch and Position of the last message that would be kept.
	Branch   string `json:"branch,omitempty"`
	Position int64  `json:"position"`
	// Asked is the requested message. Snapped reports that Position is before it, because
	// a tool call there had no result yet.
	Asked   int64 `json:"asked"`
	Snapped bool  `json:"snapped,omitempty"`
	// Messages is the current number of messages.
	Messages int64 `json:"messages"`
	// Checkpoint is the newest one at or before the position; for a time, the newest taken by then,
	// or the next one, if the last message had none yet and nothing else happened before that was
	// taken. 0 for none. CheckpointPosition is where a rewind to it moves the conversation.
	Checkpoint         int64 `json:"checkpoint,omitempty"`
	CheckpointPosition int64 `json:"checkpointPosition,omitempty"`
	// ElsewhereCheckpoint is a newer one that was also taken by the time, and is on a branch that
	// the conversation has left; 0 for none.
	ElsewhereCheckpoint int64 `json:"elsewhereCheckpoint,omitempty"`
}
