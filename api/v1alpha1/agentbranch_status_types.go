package v1alpha1

// AgentBranchState says what became of a branch in the agent's repository.
// +kubebuilder:validation:Enum=Pending;Made;NameTaken;Refused
type AgentBranchState string

const (
	// AgentBranchPending: it is made when the agent next starts.
	AgentBranchPending AgentBranchState = "Pending"
	// AgentBranchMade: the agent's repository got it, or had it already. From then on it is the
	// agent's, who may move or delete it.
	AgentBranchMade AgentBranchState = "Made"
	// AgentBranchNameTaken: the agent's repository has something else of that name, which Clew
	// leaves as it is.
	AgentBranchNameTaken AgentBranchState = "NameTaken"
	// AgentBranchRefused: it cannot be made there.
	AgentBranchRefused AgentBranchState = "Refused"
)

// AgentBranchStatus is what is known of a branch in the agent's repository.
type AgentBranchStatus struct {
	// state of the branch; Pending until the agent next starts.
	// +required
	State AgentBranchState `json:"state"`
	// commit at which the agent's repository has the branch; absent unless it was made. It differs
	// from the one in the gitstore if the checkpoint has files that .gitignore names.
	// +optional
	// +kubebuilder:validation:MaxLength=40
	Commit string `json:"commit,omitempty"`
	// message is a sentence about it.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Message string `json:"message,omitempty"`
	// attempt in which that became so.
	// +optional
	Attempt int64 `json:"attempt,omitempty"`
	// checkout is what became of the request to check the branch out; absent unless the spec says
	// checkout: NextStart.
	// +optional
	Checkout *CheckoutStatus `json:"checkout,omitempty"`
}

// CheckoutState says what became of a request to check out a branch.
// +kubebuilder:validation:Enum=Pending;CheckedOut;Refused
type CheckoutState string

const (
	// CheckoutPending: it is carried out when the agent next starts.
	CheckoutPending CheckoutState = "Pending"
	// CheckoutDone: it was carried out, and is not carried out again.
	CheckoutDone CheckoutState = "CheckedOut"
	// CheckoutRefused: it was refused, and changed nothing. Only a new id asks again.
	CheckoutRefused CheckoutState = "Refused"
)

// CheckoutStatus is the outcome of a request to check out a branch in the agent's repository.
type CheckoutStatus struct {
	// request identifies it: the checkpoint, the branch, and the id of its entry in the spec.
	// +required
	// +kubebuilder:validation:MaxLength=64
	Request string `json:"request"`
	// state is its outcome; Pending before that.
	// +required
	State CheckoutState `json:"state"`
	// reason is the constant that says why it was refused.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	Reason string `json:"reason,omitempty"`
	// message is a sentence about it.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Message string `json:"message,omitempty"`
	// attempt that reported the outcome.
	// +optional
	Attempt int64 `json:"attempt,omitempty"`
	// fromCheckpoint is the number of the checkpoint with the state before it, to which a rewind
	// takes it back; absent if nothing was changed.
	// +optional
	FromCheckpoint int64 `json:"fromCheckpoint,omitempty"`
	// toCheckpoint is the number of the checkpoint with the state after it.
	// +optional
	ToCheckpoint int64 `json:"toCheckpoint,omitempty"`
}

// AgentBranch is what the start of an agent has made of a branch of one of the task's Checkpoints.
type AgentBranch struct {
	// name of the branch in the Checkpoint.
	// +required
	// +kubebuilder:validation:MaxLength=200
	Name string `json:"name"`
	// checkpoint is the number of the checkpoint that the branch is of.
	// +required
	Checkpoint int64 `json:"checkpoint"`

	AgentBranchStatus `json:",inline"`
}
