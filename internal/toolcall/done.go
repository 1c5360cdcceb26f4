package toolcall

// Done is the data, for programs, of the answer to a call that has changed something.
type Done struct {
	// Task is the short name of the task that the call was about, and Object and UID are those of its
	// Task, or of the Fork that was made.
	Task   string `json:"task,omitempty"`
	Object string `json:"object,omitempty"`
	UID    string `json:"uid,omitempty"`
	// Tasks are the short names of those that a fork has made, and Made the same Tasks.
	Tasks []string `json:"tasks,omitempty"`
	Made  []Made   `json:"made,omitempty"`
	// Checkpoint is the number of the one that it was about.
	Checkpoint int64  `json:"checkpoint,omitempty"`
	Contract   string `json:"contract,omitempty"`
	Phase      string `json:"phase,omitempty"`
	// Ref and Commit are what a repository has got.
	Ref    string `json:"ref,omitempty"`
	Commit string `json:"commit,omitempty"`
}

// Made is a Task that a fork has made.
type Made struct {
	Object string `json:"object"`
	UID    string `json:"uid"`
}

// Marker ends the text of the answer to a call that has changed something, so that the answer is known
// again wherever an agent shows it: agents wrap the results of tools, and give the tools names of their
// own.
func Marker(call string) string { return "[call " + call + "]" }
