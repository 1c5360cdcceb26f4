package v1alpha1

// Repository is the source of a task's code.
// +kubebuilder:validation:XValidation:rule="!self.url.matches('^(https?://[^/]*|ssh://[^/@]*:[^/]*)@')",message="take the credentials out of url and name a Secret in credentialsSecretRef instead"
// +kubebuilder:validation:XValidation:rule="self.url.matches('^https?://[^/ ?#]+/[^ ]+$') || self.url.matches('^ssh://[A-Za-z0-9_][A-Za-z0-9._-]*@([A-Za-z0-9][A-Za-z0-9.-]*|\\\\[[0-9A-Fa-f:.]+\\\\])(:[0-9]{1,5})?/[^ ?#]+$') || (self.url.matches('^[A-Za-z0-9_][A-Za-z0-9._-]*@[A-Za-z0-9][A-Za-z0-9.-]*:[^-: ?#][^ ?#]*$') && !self.url.contains('://'))",message="url must be an address of a git repository such as https://git.example.com/team/project.git, ssh://git@git.example.com/team/project.git or git@git.example.com:team/project.git"
// +kubebuilder:validation:XValidation:rule="self.url.matches('^https?://') || has(self.credentialsSecretRef)",message="a repository that is reached by ssh needs credentialsSecretRef: a Secret with the keys ssh-privatekey and known_hosts"
type Repository struct {
	// url of the repository, without credentials: http://, https://, ssh://git@host/path, or
	// git@host:path.
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

	// credentialsSecretRef names a Secret with the credentials. The agent never sees it.
	//
	// For https, its keys are username and password, or token. A further key ca.crt, with PEM
	// certificates, makes Clew trust a private certificate authority besides the public ones;
	// it may be the only key.
	//
	// For ssh it is a Secret of the type kubernetes.io/ssh-auth: ssh-privatekey is a private
	// key without a passphrase, and known_hosts, which is required, has the host's public keys
	// as ssh-keyscan prints them. Compare them with those that the host's operator publishes:
	// a host with another key is refused. Git's other ways to reach a host, such as an agent
	// or the configuration of ssh, are not used.
	// +optional
	CredentialsSecretRef *NameReference `json:"credentialsSecretRef,omitempty"`
}
