package history

// KeptSpec is the last spec of a task, as far as it is kept: what may be secret is left out.
type KeptSpec struct {
	// Spec is a TaskSpec as JSON.
	Spec string
	// Variables are the environment variables of the agent's container whose values are left
	// out.
	Variables []string
	// Fields are the paths of all other values that are left out.
	Fields []string
	// Start is where the task started that started from another one; zero for none.
	Start Start
	// OperatingMode of the task. Unlike the spec, it is kept whatever the limit of the namespace, as
	// is Membership.
	OperatingMode string
	// Membership is the task's place in its contract.
	Membership Membership
}

// Membership is the place of a task in its contract, or below its parent.
type Membership struct {
	// Contract is the contract's name; empty for none.
	Contract string
	// Role is a v1alpha1.Role; empty if it is not known.
	Role string
	// Phase is the current phase of a supervisor's contract, or the one in which a worker was made.
	Phase string
	// ParentUID is the UID of the parent; empty for none.
	ParentUID string
}

// Start is where a task started that started from another one.
type Start struct {
	// Fork is the name of the Fork that the task was made for; empty for none.
	Fork string
	// From is what that Fork asked for, in words: its source and moment; empty if it is not known.
	From string
	// TaskUID is the source's, of its time: see Store.ContinuedBy.
	TaskUID string
	// Checkpoint, Commit and Position are those of the source's checkpoint.
	Checkpoint int64
	Commit     string
	Position   int64
}

// ForkedTask is a task that was made for a Fork.
type ForkedTask struct {
	Name  string
	UID   string
	Start Start
	// OperatingMode is that of its last spec; empty if it is not known.
	OperatingMode string
}
