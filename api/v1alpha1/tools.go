package v1alpha1

// AgentTool is the name of a tool of Clew's that an agent can call.
// +kubebuilder:validation:Enum=checkpoint;checkpoints;history_search;diff
type AgentTool string

const (
	// ToolCheckpoint takes a checkpoint.
	ToolCheckpoint AgentTool = "checkpoint"
	// ToolCheckpoints lists the task's checkpoints.
	ToolCheckpoints AgentTool = "checkpoints"
	// ToolHistorySearch searches the task's conversation.
	ToolHistorySearch AgentTool = "history_search"
	// ToolDiff shows what has changed between two checkpoints, or since one.
	ToolDiff AgentTool = "diff"
)

// DefaultTools returns the tools that the agent of a task gets whose spec does not say which.
func DefaultTools() []AgentTool {
	return []AgentTool{ToolCheckpoint, ToolCheckpoints, ToolHistorySearch, ToolDiff}
}
