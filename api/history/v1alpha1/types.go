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
	Role       string      `json:"role"`
	Text       string      `json:"text,omitempty"`
	ToolCall   *ToolCall   `json:"toolCall,omitempty"`
	ToolResult *ToolResult `json:"toolResult,omitempty"`
	// Raw is the agent's own line where it was not understood.
	Raw string `json:"raw,omitempty"`
}

// ToolCall is an assistant's call of a tool; Input is JSON.
type ToolCall struct {
	ID    string `json:"id"`
	Name  string `json:"name"`
	Input string `json:"input,omitempty"`
}

// ToolResult is a tool's answer.
type ToolResult struct {
	CallID      string `json:"callID"`
	Output      string `json:"output,omitempty"`
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
	// Type: task, chat, checkpoint, rewind, fork.
	Type       string `json:"type"`
	Reason     string `json:"reason"`
	Actor      string `json:"actor,omitempty"`
	Message    string `json:"message,omitempty"`
	Attempt    int64  `json:"attempt,omitempty"`
	Checkpoint int64  `json:"checkpoint,omitempty"`
}
