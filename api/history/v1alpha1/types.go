// Package v1alpha1 holds the answers of the history API, history.clew.dev:
// what the server sends and the plugin reads. Its objects are never stored in
// the cluster; they are views of the history store.
package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Group and Version of the history API.
const (
	Group   = "history.clew.dev"
	Version = "v1alpha1"
)

// CauseDeletionUnfinished is the type of the cause in the details of a Status that answers
// the deletion of a history that stopped half-way: its message says all there is to know,
// and asking for the deletion again goes on where it stopped.
const CauseDeletionUnfinished metav1.CauseType = "DeletionUnfinished"

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
	// Branch is the id of the conversation's branch the message was written on.
	Branch  string `json:"branch,omitempty"`
	Attempt int64  `json:"attempt,omitempty"`
	// Role: user, assistant, system, tool or output.
	Role string `json:"role"`
	// Text is what was said; but the beginning of it if TextBytes is set.
	Text string `json:"text,omitempty"`
	// TextBytes is how long the whole text is, where only its beginning is
	// given: long texts are given whole if asked for with full=true.
	TextBytes  int64       `json:"textBytes,omitempty"`
	ToolCall   *ToolCall   `json:"toolCall,omitempty"`
	ToolResult *ToolResult `json:"toolResult,omitempty"`
	// Raw is the agent's own line where it was not understood; RawBytes is to
	// it what TextBytes is to Text.
	Raw      string `json:"raw,omitempty"`
	RawBytes int64  `json:"rawBytes,omitempty"`
}

// ToolCall is an assistant's call of a tool.
type ToolCall struct {
	ID   string `json:"id"`
	Name string `json:"name"`
	// Input is JSON; but the beginning of it if InputBytes, its length, is set.
	Input      string `json:"input,omitempty"`
	InputBytes int64  `json:"inputBytes,omitempty"`
}

// ToolResult is a tool's answer.
type ToolResult struct {
	CallID string `json:"callID"`
	// Output is what the tool said; but the beginning of it if OutputBytes, its
	// length, is set.
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
	// ImportedBy is who imported the event with a history. It is then as true as
	// the file that it came from.
	ImportedBy string `json:"importedBy,omitempty"`
}

// SearchResultList is a page of what was found, best first.
type SearchResultList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []SearchResult `json:"items"`
}

// SearchResult is a message that holds what was searched for.
type SearchResult struct {
	Task    string `json:"task"`
	TaskUID string `json:"taskUID"`
	// Position of the message in the conversation, and the branch it is on.
	Position int64            `json:"position"`
	Branch   string           `json:"branch,omitempty"`
	Time     metav1.MicroTime `json:"time"`
	Role     string           `json:"role"`
	// Tool that the message calls, if it does.
	Tool string `json:"tool,omitempty"`
	// RankMillionths says how well it fits, in millionths; larger is better.
	RankMillionths int64 `json:"rankMillionths"`
	// Snippet is what stands around the words, in order.
	Snippet []SnippetPart `json:"snippet,omitempty"`
}

// SnippetPart is a part of a snippet; Match tells that it is one of the words.
type SnippetPart struct {
	Text  string `json:"text"`
	Match bool   `json:"match,omitempty"`
}

// TaskHistoryList is a page of a namespace's tasks, as the history knows them:
// those whose Task object is gone included.
type TaskHistoryList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []TaskHistory `json:"items"`
}

// TaskHistory is what the history holds of one task. Several may have had one
// name, one after the other; their UIDs tell them apart.
type TaskHistory struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`
	// State is the last that was recorded: Running, Completed …
	State string `json:"state,omitempty"`
	// Preview is the beginning of the first thing the user said.
	Preview string           `json:"preview,omitempty"`
	Updated metav1.MicroTime `json:"updated"`
	// Sums over the conversation as it stands.
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
}

// ModelUsage is what was used of one model.
type ModelUsage struct {
	// Model is empty where the agent did not say which.
	Model       string `json:"model,omitempty"`
	InputTokens int64  `json:"inputTokens"`
	// CachedInputTokens is the part of InputTokens that came from a cache.
	CachedInputTokens int64 `json:"cachedInputTokens,omitempty"`
	OutputTokens      int64 `json:"outputTokens"`
	CostMicroUSD      int64 `json:"costMicroUSD"`
}

// SnapshotList is a page of the snapshots that were noted of a task's
// conversation by itself, oldest first.
type SnapshotList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []Snapshot `json:"items"`
}

// Snapshot is a position with its sums and its digest.
type Snapshot struct {
	// Ordinal counts the task's snapshots from 1.
	Ordinal int64            `json:"ordinal"`
	Kind    string           `json:"kind"`
	Time    metav1.MicroTime `json:"time"`
	// Branch and Position are a turn boundary of the conversation.
	Branch       string `json:"branch,omitempty"`
	Position     int64  `json:"position"`
	ToolCalls    int64  `json:"toolCalls"`
	InputTokens  int64  `json:"inputTokens"`
	OutputTokens int64  `json:"outputTokens"`
	CostMicroUSD int64  `json:"costMicroUSD"`
	// Digest is a chain of SHA-256 over the messages up to the position, in hex.
	Digest string `json:"digest,omitempty"`
	// Checkpoint is the newest one at or before the position; 0 for none.
	Checkpoint int64 `json:"checkpoint,omitempty"`
}

// HistoryDeletion says what the deletion of a task's history removed, or, after
// a dry run, would remove.
type HistoryDeletion struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`
	// DryRun: nothing was removed; the numbers are those of the task, also what
	// it shares with others and what would therefore stay.
	DryRun bool `json:"dryRun,omitempty"`
	// Pending: some texts were in use, and are removed by the server within
	// minutes; there is nothing left to do.
	Pending bool `json:"pending,omitempty"`
	// Messages and Pieces of long texts that no other task shares.
	Messages    int64 `json:"messages"`
	Pieces      int64 `json:"pieces,omitempty"`
	Checkpoints int64 `json:"checkpoints"`
	Events      int64 `json:"events,omitempty"`
	// Refs in git repositories, Repositories that held some of them, and Bytes
	// that they take less on disk.
	Refs         int   `json:"refs,omitempty"`
	Repositories int   `json:"repositories,omitempty"`
	Bytes        int64 `json:"bytes,omitempty"`
}

// ConversationPoint is a turn boundary of a task's conversation, as a rewind to
// a message or a moment would resolve it now.
type ConversationPoint struct {
	metav1.TypeMeta `json:",inline"`
	TaskUID         string `json:"taskUID"`
	// Branch and Position of the last message that would be kept.
	Branch   string `json:"branch,omitempty"`
	Position int64  `json:"position"`
	// Asked is the message that was meant. Snapped tells that Position is before
	// it, since a tool call there had no result yet.
	Asked   int64 `json:"asked"`
	Snapped bool  `json:"snapped,omitempty"`
	// Messages there are now.
	Messages int64 `json:"messages"`
	// Checkpoint is the newest one at or before the position, 0 for none, and
	// CheckpointPosition where the conversation stood at it.
	Checkpoint         int64 `json:"checkpoint,omitempty"`
	CheckpointPosition int64 `json:"checkpointPosition,omitempty"`
}
