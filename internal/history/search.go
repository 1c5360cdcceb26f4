package history

import "time"

// SearchQuery asks for messages that hold words.
type SearchQuery struct {
	Namespace string
	// Text is what people type into search engines: words, "quoted phrases",
	// or, -without. Any text is valid.
	Text string
	// Task keeps one task's messages, inherited ones included: the newest one
	// of the name, unless UID is set.
	Task string
	UID  string
	// Role keeps messages of that role, unless empty.
	Role string
	// Since leaves out what is older, unless zero.
	Since time.Time
	// Limit is how many hits at most.
	Limit int
	// After continues after a hit, unless zero: SearchPage.Next of the page before.
	After SearchKey
}

// SearchKey is a hit's place in the results, best first.
type SearchKey struct {
	Rank     float32 `json:"rank"`
	Message  int64   `json:"message"`
	Branch   int64   `json:"branch"`
	Position int64   `json:"position"`
}

// SearchPage is a part of the results, best first.
type SearchPage struct {
	Hits []SearchHit
	// Next continues after this page.
	Next SearchKey
	// More tells that there are more hits.
	More bool
}

// SearchHit is a message that was found, at its place.
type SearchHit struct {
	// Task that wrote the message.
	Task     Task
	Position int64
	// Branch is the name of the branch the message was written on; when one
	// task's messages are asked for and it inherited this one, the other
	// task's UID, a slash, and the name.
	Branch string
	Time   time.Time
	Role   string
	// Tool that the message calls, if it does.
	Tool string
	Rank float32
	// Snippet is what stands around the words, which are between SnippetStart
	// and SnippetStop.
	Snippet string
}

// Marks around the words in a snippet. They are private-use characters, which
// no message's snippet holds otherwise.
const (
	SnippetStart = "\uE000"
	SnippetStop  = "\uE001"
)

// TaskSort is an order of tasks.
type TaskSort string

// Orders of tasks: names go up, all others from the newest or largest down.
const (
	SortCreated  TaskSort = "Created"
	SortUpdated  TaskSort = "Updated"
	SortCost     TaskSort = "Cost"
	SortTokens   TaskSort = "Tokens"
	SortMessages TaskSort = "Messages"
	SortName     TaskSort = "Name"
)

// TaskQuery asks for tasks of a namespace.
type TaskQuery struct {
	Namespace string
	// NamePrefix, State and Tool keep what matches, unless empty. Tool is the
	// name of a tool that the task has called.
	NamePrefix string
	State      string
	Tool       string
	// MinTokens counts input and output.
	MinTokens       int64
	MinCostMicroUSD int64
	// Since and Until bound the time of creation, unless zero.
	Since time.Time
	Until time.Time
	// Sort is SortCreated if empty.
	Sort  TaskSort
	Limit int
	// After continues after a task, unless zero: TaskPage.Next of the page before.
	After TaskKey
}

// TaskKey is a task's place in a list. Number, Time or Name is set as the
// order demands.
type TaskKey struct {
	Time   time.Time `json:"time,omitzero"`
	Number int64     `json:"number,omitempty"`
	Name   string    `json:"name,omitempty"`
	UID    string    `json:"uid"`
}

// TaskPage is a part of a list of tasks.
type TaskPage struct {
	Tasks []TaskSummary
	// Next continues after this page.
	Next TaskKey
	// More tells that there are more tasks.
	More bool
}

// TaskSummary is a task in a list.
type TaskSummary struct {
	Task
	// State is the reason of the newest event that changed it: Running,
	// Completed …; empty if none was recorded.
	State string
	// Preview is the beginning of the first thing the user said.
	Preview string
	Created time.Time
	Updated time.Time
	// Totals of the active branch.
	Totals      Totals
	Checkpoints int64
	// Tools that the task has called, in alphabetical order.
	Tools []string
	// Models is what the task has used of each model, over all its branches.
	Models []Usage
}
