package journal

// Hold is a checkpoint that was taken for a set of checkpoints, after which the agent stays stopped. It is
// in the journal from the checkpoint on until it is recorded how the agent came to continue.
type Hold struct {
	// Set is the UID of the Checkpoint object that names the set.
	Set string `json:"set"`
	// Checkpoint is the number of the checkpoint.
	Checkpoint int64 `json:"checkpoint"`
	// InCall is set if it was taken in the middle of a call of a tool.
	InCall bool `json:"inCall,omitempty"`
}
