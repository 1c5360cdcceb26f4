package v1alpha1

// Repository is the source of a task's code.
// +kubebuilder:validation:XValidation:rule="!self.url.matches('^[A-Za-z]+://[^/]*@')",message="take the credentials out of url and name a Secret in credentialsSecretRef instead"
// +kubebuilder:validation:XValidation:rule="self.url.matches('^https?://[^/ ?#]+/[^ ]+$')",message="url must be an http:// or https:// address of a git repository, such as https://git.example.com/team/project.git"
type Repository struct {
	// url of the repository, http:// or https://, without credentials.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=2048
	// +kubebuilder:validation:XValidation:rule="!self.matches('[\\\\x00-\\\\x20\\\\x7f]')",message="url must not contain spaces or control characters"
	// +kubebuilder:validation:XValidation:rule="!self.startsWith('-')",message="url must not begin with '-'"
	URL string `json:"url"`

	// ref is a branch, a tag or a full commit id; the repository's default branch when left out.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=255
	// +kubebuilder:validation:XValidation:rule="!self.startsWith('-')",message="ref must not begin with '-': give the name of a branch, a tag or a commit id"
	// +kubebuilder:validation:XValidation:rule="!self.contains('..')",message="ref must not contain '..': give one branch, tag or commit id, not a range"
	// +kubebuilder:validation:XValidation:rule="self.matches('^[^\\\\x00-\\\\x20\\\\x7f~^:?*\\\\[\\\\\\\\]+$')",message="ref must not contain spaces, control characters or any of ~ ^ : ? * [ \\\\: give the name of a branch, a tag or a commit id"
	// +kubebuilder:validation:XValidation:rule="!self.endsWith('/') && !self.endsWith('.lock') && !self.endsWith('.') && !self.startsWith('/') && !self.contains('//') && !self.contains('@{')",message="ref is not a name that git accepts: give the name of a branch, a tag or a commit id"
	Ref string `json:"ref,omitempty"`

	// credentialsSecretRef names a Secret with the keys username and password, or token.
	// The agent never sees it.
	// +optional
	CredentialsSecretRef *NameReference `json:"credentialsSecretRef,omitempty"`
}
