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

// ToolCallNotification says that a call was stored, or answered. An empty one means that any call may
// have been.
type ToolCallNotification struct {
	Task     Task
	ID       string
	Answered bool
}
