package daemonapi

// Containers of Clew's own in a task's pod.
const (
	// PrepareContainer brings the workspace to the wanted state and ends.
	PrepareContainer = "prepare"
	// DaemonContainer watches the agent and takes checkpoints.
	DaemonContainer = "daemon"
)

// Paths that are the same in each pod of a task and of its forks.
const (
	// WorktreePath is the agent's working folder, HomePath its home.
	WorktreePath = "/workspace"
	HomePath     = "/home/agent"
	// StatePath is the daemon's own folder on the task's volume, and VolumePath
	// where prepare finds the root of that volume.
	StatePath  = "/var/lib/clew"
	VolumePath = "/volume"
	// RunPath is the folder through which prepare, daemon and shim meet, and
	// ShimPath the program in it that runs the agent.
	RunPath  = "/run/clew"
	ShimPath = RunPath + "/bin/clew-daemon"
	// ConversationPath is the file that tells the agent the conversation so far.
	ConversationPath = RunPath + "/" + ConversationFile
	// ConversationFile is its path in the folder.
	ConversationFile = "context/conversation.jsonl"
	// TokenPath is the folder of the pod's tokens.
	TokenPath = "/var/run/secrets/clew"
	// RepositoryPath is the folder of the repository's credentials: username and
	// password, or token; and ca.crt.
	RepositoryPath = "/var/run/secrets/clew-repository"
	// MaskPath holds, in prepare, daemon and agent containers, a folder for each
	// Secret volume of the agent's container; the contents of their files are
	// masked as well.
	MaskPath = "/var/run/secrets/clew-mask"
)
