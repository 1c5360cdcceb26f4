package v1alpha1

// NameReference names an object of the same namespace.
type NameReference struct {
	// name of the object, in the same namespace.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="!self.contains('/')",message="name an object of this namespace: a reference contains no '/', and cannot name another namespace"
	Name string `json:"name"`
}

// CodeStats counts what changed between two checkpoints.
type CodeStats struct {
	// filesChanged counts files added, modified and deleted since the parent checkpoint.
	// +optional
	FilesChanged int32 `json:"filesChanged"`
	// linesAdded counts lines added in text files.
	// +optional
	LinesAdded int64 `json:"linesAdded"`
	// linesRemoved counts lines removed in text files.
	// +optional
	LinesRemoved int64 `json:"linesRemoved"`
}

// ConversationMode says whether a conversation is included.
// +kubebuilder:validation:Enum=Include;Exclude
type ConversationMode string

const (
	// ConversationInclude includes the conversation up to the checkpoint.
	ConversationInclude ConversationMode = "Include"
	// ConversationExclude starts with an empty conversation.
	ConversationExclude ConversationMode = "Exclude"
)

// OnDrift says what to do when the worktree is not as Clew last left it.
// +kubebuilder:validation:Enum=Fail;Preserve;Override
type OnDrift string

const (
	// OnDriftFail stops with the list of changed files.
	OnDriftFail OnDrift = "Fail"
	// OnDriftPreserve takes a checkpoint of the changed worktree and continues.
	OnDriftPreserve OnDrift = "Preserve"
	// OnDriftOverride restores what Clew last left and continues.
	OnDriftOverride OnDrift = "Override"
)
