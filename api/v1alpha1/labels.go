package v1alpha1

// Labels and annotations of the objects that Clew creates for a task.
const (
	LabelTask    = "clew.dev/task"
	LabelTaskUID = "clew.dev/task-uid"
	LabelAttempt = "clew.dev/attempt"
	// LabelPublication is in the pods that publish a task's work: the number of the pod among
	// them. They have no LabelAttempt.
	LabelPublication = "clew.dev/publication"
	// LabelCheckpoint is the number of a Checkpoint that the manager created.
	LabelCheckpoint = "clew.dev/checkpoint"
	// LabelSnapshot is the number of a ConversationSnapshot that the manager created, among
	// the task's automatic ones.
	LabelSnapshot = "clew.dev/snapshot"
	// AnnotationGeneration is the generation of the Task that a pod was created from.
	AnnotationGeneration = "clew.dev/task-generation"
	// AnnotationPodDigest is a digest of what the Task's spec made of a pod when it was created.
	AnnotationPodDigest = "clew.dev/pod-digest"
	LabelFork           = "clew.dev/fork"
	// LabelContract, LabelRole, LabelPhase and LabelParent are those of a Task of a contract: its
	// contract's name, its role, the phase in its status, and the name of its parent.
	LabelContract = "clew.dev/contract"
	LabelRole     = "clew.dev/role"
	LabelPhase    = "clew.dev/phase"
	LabelParent   = "clew.dev/parent"
	// AnnotationForkManager and AnnotationForkUID are in Tasks that a former version created
	// for a Fork. Newer ones have spec.startFrom.fork instead.
	AnnotationForkManager = "clew.dev/fork-manager"
	AnnotationForkUID     = "clew.dev/fork-uid"
	LabelManagedBy        = "app.kubernetes.io/managed-by"

	// ManagedBy is the value of LabelManagedBy.
	ManagedBy = "clew"
	// AgentContainer is the name of the container in a Task's template that runs the agent.
	AgentContainer = "agent"
	// TaskFinalizer keeps a Task until its history is recorded.
	TaskFinalizer = "clew.dev/history"
)
