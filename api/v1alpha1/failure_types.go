package v1alpha1

// AgentFailureReason says why an agent failed, in one word of its attempt's reasons.
// +kubebuilder:validation:Enum=AgentFailed;AgentUnauthorized;AgentOutOfCredit;AgentRateLimited;AgentTooOld;AgentOptionsInvalid;ModelErrors;ProgramNotFound;ProgramNotExecutable
type AgentFailureReason string

// FailureMatcher selects ends of agents by their exit code or by their reason.
//
// A reason other than AgentFailed comes from the agent's adapter, which has understood what the
// model's API or the program said. It is more specific than an exit code, which in turn is more
// specific than AgentFailed, the reason of every end that no other reason fits. The most specific one
// that retryOn or failOn has decides.
// +kubebuilder:validation:XValidation:rule="(has(self.exitCodes) && size(self.exitCodes) > 0) || (has(self.reasons) && size(self.reasons) > 0)",message="this selects nothing: set exitCodes, reasons or both, or leave the field out"
type FailureMatcher struct {
	// exitCodes are those of the container "agent", from 1 to 255.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:XValidation:rule="self.all(c, c >= 1 && c <= 255)",message="exitCodes are from 1 to 255: an agent that exits with 0 has completed the task"
	ExitCodes []int32 `json:"exitCodes,omitempty"`
	// reasons are those for which the agent ended. ModelErrors is an end for which the model's API
	// failed or could not be reached, and AgentFailed every end that no other reason fits.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=9
	Reasons []AgentFailureReason `json:"reasons,omitempty"`
}
