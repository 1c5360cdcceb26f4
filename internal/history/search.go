package history

import "time"

// SearchQuery selects messages that contain words.
type SearchQuery struct {
	Namespace string
	// Text is in the syntax of web search engines: words, "quoted phrases", or, -without.
	// Any text is valid.
	Text string
	// Task selects one task's messages, including inherited ones: the newest task of that
	// name, unless UID is set.
	Task string
	UID  string
	// Standing excludes messages of the selected task that are not on its active branch: those
	// that a rewind has taken back.
	Standing bool
	// Role selects messages of that role, unless empty.
	Role string
	// Since excludes older messages, unless zero.
	Since time.Time
	// Limit is the maximum number of hits.
	Limit int
	// After continues after a hit, unless zero: SearchPage.Next of the previous page.
	After SearchKey
}

// SearchKey is a hit's place in the results, best first.
type SearchKey struct {
	Rank     float32 `json:"rank"`
	Message  int64   `json:"message"`
	Branch   int64   `json:"branch"`
	Position int64   `json:"position"`
}

// SearchPage is one page of results, best first.
type SearchPage struct {
	Hits []SearchHit
	// Next continues after this page.
	Next SearchKey
	// More reports whether there are more hits.
	More bool
}

// SearchHit is a matching message and its position.
type SearchHit struct {
	// Task that wrote the message.
	Task     Task
	Position int64
	// Branch is the name of the branch the message was written on. When one task's
	// messages are selected and it inherited this one, it is the other task's UID, a
	// slash, and the name.
	Branch string
	Time   time.Time
	Role   string
	// Tool that the message calls, if any.
	Tool string
	Rank float32
	// Snippet is the text around the matching words, which are between SnippetStart and
	// SnippetStop.
	Snippet string
}

// Marks around the matching words in a snippet. They are private-use characters, which
// snippets do not contain otherwise.
const (
	SnippetStart = "\uE000"
	SnippetStop  = "\uE001"
)

// TaskSort is a sort order of tasks.
type TaskSort string

// Sort orders of tasks: names ascend, all others descend from the newest or largest.
const (
	SortCreated  TaskSort = "Created"
	SortUpdated  TaskSort = "Updated"
	SortCost     TaskSort = "Cost"
	SortTokens   TaskSort = "Tokens"
	SortMessages TaskSort = "Messages"
	SortName     TaskSort = "Name"
)

// TaskQuery selects tasks of a namespace.
type TaskQuery struct {
	Namespace string
	// NamePrefix, State and Tool are filters, unless empty. Tool is the name of a tool
	// that the task has called.
	NamePrefix string
	State      string
	Tool       string
	// MinTokens applies to the sum of input and output tokens.
	MinTokens       int64
	MinCostMicroUSD int64
	// Since and Until bound the creation time, unless zero.
	Since time.Time
	Until time.Time
	// Sort is SortCreated if empty.
	Sort  TaskSort
	Limit int
	// After continues after a task, unless zero: TaskPage.Next of the previous page.
	After TaskKey
}

// TaskKey is a task's place in a list. Which of Number, Time and Name is set depends on
// the order.
type TaskKey struct {
	Time   time.Time `json:"time,omitzero"`
	Number int64     `json:"number,omitempty"`
	Name   string    `json:"name,omitempty"`
	UID    string    `json:"uid"`
}

// TaskPage is one page of a list of tasks.
type TaskPage struct {
	Tasks []TaskSummary
	// Next continues after this page.
	Next TaskKey
	// More reports whether there are more tasks.
	More bool
}

// TaskSummary is a task in a list.
type TaskSummary struct {
	Task
	// State is the reason of the newest event that changed it: Running, Completed …;
	// empty if none was recorded.
	State string
	// Preview is the beginning of the user's first message.
	Preview string
	Created time.Time
	Updated time.Time
	// Totals of the active branch.
	Totals      Totals
	Checkpoints int64
	// Tools that the task has called, in alphabetical order.
	Tools []string
	// Models is the usage of each model over all of the task's branches.
	Models []Usage
}
