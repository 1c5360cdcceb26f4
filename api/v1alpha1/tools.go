package v1alpha1

// AgentTool is the name of a tool of Clew's that an agent can call.
// +kubebuilder:validation:Enum=checkpoint;checkpoints;history_search;diff;task_create;task_list;task_wait;task_history;task_diff;task_resume;task_rewind;task_fork;task_stop;phase_set;publish
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

// Tools of a supervisor, which concern its own children, its contract and its spec.publish.
const (
	// ToolTaskCreate makes a child.
	ToolTaskCreate AgentTool = "task_create"
	// ToolTaskList lists the children with their states.
	ToolTaskList AgentTool = "task_list"
	// ToolTaskWait waits until children have stopped.
	ToolTaskWait AgentTool = "task_wait"
	// ToolTaskHistory reads or searches the conversation of a child.
	ToolTaskHistory AgentTool = "task_history"
	// ToolTaskDiff shows what a child has changed.
	ToolTaskDiff AgentTool = "task_diff"
	// ToolTaskResume goes on with a child that has stopped.
	ToolTaskResume AgentTool = "task_resume"
	// ToolTaskRewind takes a child back to a checkpoint.
	ToolTaskRewind AgentTool = "task_rewind"
	// ToolTaskFork makes new children that go on from a checkpoint of a child that the agent's tools have
	// made.
	ToolTaskFork AgentTool = "task_fork"
	// ToolTaskStop suspends a child.
	ToolTaskStop AgentTool = "task_stop"
	// ToolPhaseSet moves the contract to another phase.
	ToolPhaseSet AgentTool = "phase_set"
	// ToolPublish pushes the supervisor's work, or a child's, to the branch in spec.publish.
	ToolPublish AgentTool = "publish"
)

// DefaultTools returns the tools that the agent of a task gets whose spec does not say which.
func DefaultTools() []AgentTool {
	return []AgentTool{ToolCheckpoint, ToolCheckpoints, ToolHistorySearch, ToolDiff}
}

// SupervisorTools returns the tools that only a supervisor can have. Without a list in its spec it gets
// all of them, except that ToolPublish needs spec.publish.
func SupervisorTools() []AgentTool {
	return []AgentTool{
		ToolTaskCreate, ToolTaskList, ToolTaskWait, ToolTaskHistory, ToolTaskDiff, ToolTaskResume, ToolTaskRewind, ToolTaskFork, ToolTaskStop,
		ToolPhaseSet, ToolPublish,
	}
}
