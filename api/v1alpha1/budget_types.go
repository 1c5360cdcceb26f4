package v1alpha1

// Budget is how much may be spent. Each limit that is left out is none.
// +kubebuilder:validation:XValidation:rule="has(self.inputTokens) || has(self.outputTokens) || has(self.costMicroUSD) || has(self.toolCalls) || has(self.checkpoints)",message="a budget needs a limit: set inputTokens, outputTokens, costMicroUSD, toolCalls or checkpoints, or leave the budget out"
type Budget struct {
	// inputTokens is how many tokens may be sent to the model, those included that it reads from a
	// cache.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1000000000000000
	InputTokens *int64 `json:"inputTokens,omitempty"`
	// outputTokens is how many tokens the model may return.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1000000000000000
	OutputTokens *int64 `json:"outputTokens,omitempty"`
	// costMicroUSD is what the model may cost, in millionths of a US dollar.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1000000000000000
	CostMicroUSD *int64 `json:"costMicroUSD,omitempty"`
	// toolCalls is how many calls of tools the agent may complete.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1000000000000000
	ToolCalls *int64 `json:"toolCalls,omitempty"`
	// checkpoints is how many checkpoints may be taken, by whatever they are triggered, apart from those
	// that somebody asks for with a Checkpoint object, or by setting a phase, which count towards no budget.
	// Those of phases that the agent sets count where Clew can trust requestedBy. Clew takes the one with
	// which it stops the agent, and those of rewinds, all the same.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1000000000000000
	Checkpoints *int64 `json:"checkpoints,omitempty"`
}

// Spent is what agents have spent, in the units of Budget.
type Spent struct {
	// inputTokens were sent to the model.
	// +optional
	InputTokens int64 `json:"inputTokens,omitempty"`
	// outputTokens were returned by it.
	// +optional
	OutputTokens int64 `json:"outputTokens,omitempty"`
	// costMicroUSD is what that has cost, in millionths of a US dollar. It falls only when an agent
	// corrects an estimate of its own.
	// +optional
	CostMicroUSD int64 `json:"costMicroUSD,omitempty"`
	// toolCalls were completed.
	// +optional
	ToolCalls int64 `json:"toolCalls,omitempty"`
	// checkpoints were taken, apart from those that somebody has asked for with a Checkpoint object, or by
	// setting a phase.
	// +optional
	Checkpoints int64 `json:"checkpoints,omitempty"`
}
