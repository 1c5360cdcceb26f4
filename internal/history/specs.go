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
}
