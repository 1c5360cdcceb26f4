package v1alpha1

// NameReference names an object of the same namespace.
type NameReference struct {
	// name of the object, in the same namespace.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="!self.contains('/')",message="name an object of this namespace: a reference holds no '/', and other namespaces cannot be referred to"
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

// ConversationMode says whether a conversation comes along.
// +kubebuilder:validation:Enum=Include;Exclude
type ConversationMode string

const (
	// ConversationInclude takes the conversation up to the checkpoint along.
	ConversationInclude ConversationMode = "Include"
	// ConversationExclude starts with an empty conversation.
	ConversationExclude ConversationMode = "Exclude"
)

// OnDrift says what to do when the worktree is not what Clew last left.
// +kubebuilder:validation:Enum=Fail;Preserve;Override
type OnDrift string

const (
	// OnDriftFail stops with the list of changed files.
	OnDriftFail OnDrift = "Fail"
	// OnDriftPreserve takes a checkpoint of what is there and goes on.
	OnDriftPreserve OnDrift = "Preserve"
	// OnDriftOverride puts back what Clew last left and goes on.
	OnDriftOverride OnDrift = "Override"
)
