package history

// Rewound is what a completed rewind has done, for another one that undoes it.
type Rewound struct {
	// Scope is a v1alpha1.RewindScope.
	Scope string `json:"scope"`
	// Paths are those that were restored; empty for all.
	Paths []string `json:"paths,omitempty"`
	// From is the checkpoint that holds the state before the rewind.
	From int64 `json:"from"`
	// To is the checkpoint that was restored; 0 if no checkpoint is as old as the target.
	To int64 `json:"to,omitempty"`
}

// Rewind is what a store knows about a rewind of a task.
type Rewind struct {
	// ID is the one that the rewind was requested with.
	ID string
	// Completed rewinds can be undone. Failed ones moved the conversation, and moved it back.
	// A rewind that is neither is in progress, or was never heard of.
	Completed, Failed bool
	// Rewound is nil if it is not completed, or if its daemon was too old to record it.
	Rewound *Rewound
}
