package daemonapi

// Clew's own containers in a task's pod.
const (
	// PrepareContainer is the init container that prepares the workspace.
	PrepareContainer = "prepare"
	// DaemonContainer is the sidecar that records the agent and takes checkpoints.
	DaemonContainer = "daemon"
)

// Paths in the containers, the same in each pod of a task and of its forks.
const (
	// WorktreePath is the agent's working folder, HomePath its home.
	WorktreePath = "/workspace"
	HomePath     = "/home/agent"
	// StatePath is the daemon's own folder on the task's volume, and VolumePath the root of
	// that volume in prepare.
	StatePath  = "/var/lib/clew"
	VolumePath = "/volume"
	// RunPath is the folder that prepare, daemon and shim share, and ShimPath the program
	// in it that runs the agent.
	RunPath  = "/run/clew"
	ShimPath = RunPath + "/bin/clew-daemon"
	// ConversationPath is the file with the conversation so far, for the agent.
	ConversationPath = RunPath + "/" + ConversationFile
	// ConversationFile is the path of that file in RunPath.
	ConversationFile = "context/conversation.jsonl"
	// TokenPath is the folder of the pod's tokens.
	TokenPath = "/var/run/secrets/clew"
	// RepositoryPath is the folder of the repository's credentials: username and
	// password, or token, and ca.crt; or ssh-privatekey and known_hosts.
	RepositoryPath = "/var/run/secrets/clew-repository"
	// MaskPath holds, in the containers prepare, daemon and agent, a folder for each Secret
	// volume of the agent's container, whose files are masked like the variables of
	// MaskPrefix.
	MaskPath = "/var/run/secrets/clew-mask"
)
