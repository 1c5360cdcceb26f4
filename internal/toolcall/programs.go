package toolcall

// Unanswered is the data, for programs, of what a daemon says in place of an answer that is not there
// yet.
type Unanswered struct {
	// Pending is true: the same call again has the answer.
	Pending bool `json:"pending"`
}

// Waited is a part of the data of the answer to task_wait.
type Waited struct {
	// Waiting is true if what was to be waited for has not happened yet: the same call again waits
	// on.
	Waiting bool `json:"waiting"`
}
