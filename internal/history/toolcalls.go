package history

import (
	"time"

	"github.com/clew-dev/clew/internal/toolcall"
)

// ToolCallAbout is the key among the details of an event of a daemon about a call of a supervisor's tool;
// its value is the call's id. The timeline has one entry for each call: the first one that is stored.
const ToolCallAbout = "call"

// ToolCallDelivered is the key among the details of an event of a daemon by which it says that the
// answer to a call has reached the agent; its value is the call's id. Storing the event ends the call:
// the same call again is another one.
const ToolCallDelivered = "delivered"

// NewToolCall is a call of a supervisor's tool that is to be carried out.
type NewToolCall struct {
	Tool string
	// Arguments are canonical (see toolcall.Canonical).
	Arguments []byte
	// Key was given by the agent; empty for none.
	Key string
	// WishID makes the id of a call without a key the same again after it was lost; empty if nothing does.
	WishID string
	// Delivered are ids of calls whose answers have reached the agent.
	Delivered []string
}

// ToolCall is a call of a supervisor's tool that is stored.
type ToolCall struct {
	// ID is unique among all calls.
	ID string
	// Task is that of the supervisor, and Attempt the one in which it first called.
	Task    Task
	Attempt int64
	Tool    string
	// Arguments are dropped with the answer.
	Arguments []byte
	// Noted is what was about to be done for the call; empty for nothing that has to be known again.
	Noted string
	Made  time.Time
	// Answer is nil while the call is not answered.
	Answer   *toolcall.Answer
	Answered time.Time
}

// CallEffect is what a call of a supervisor's tool did, to one task or to the contract.
type CallEffect struct {
	Tool string
	// Task and UID are those of the task that was made or steered; empty for none.
	Task string
	UID  string
	// Phase is the one to which the contract was moved, or in which the task was made; empty for none.
	Phase string
	// Checkpoint is the number of the one that the task went back to, or started from; 0 for none.
	Checkpoint int64
	// State is the last one of the task that the history has; see TaskSummary.
	State string
	// TakenBack: the conversation in which it was called was taken back. What it did is not.
	TakenBack bool
	// Repeated: an earlier call has made the task, for which this one has asked again.
	Repeated bool
}

// MadeBy is the call of a supervisor's tool that made a task.
type MadeBy struct {
	// Task is the supervisor.
	Task  Task
	Tool  string
	Phase string
	// Branch and Position are where in the supervisor's conversation it was called.
	Branch    string
	Position  int64
	TakenBack bool
}

// ToolCallNotification says that a call was made, for the first time or again, or that it has ended. An
// empty one means that any call may have.
type ToolCallNotification struct {
	Task Task
	ID   string
	// Answered is true if the call has an answer, or was taken back with its conversation.
	Answered bool
}
