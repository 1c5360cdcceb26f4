package v1alpha1

// StartFrom makes a new task start from a checkpoint of another one.
type StartFrom struct {
	// taskRef names the source task.
	// +required
	TaskRef NameReference `json:"taskRef"`
	// checkpointRef names one of its checkpoints; the latest when left out.
	// +optional
	CheckpointRef *NameReference `json:"checkpointRef,omitempty"`
	// conversation says whether the conversation up to that checkpoint is included.
	// +optional
	// +kubebuilder:default=Include
	Conversation ConversationMode `json:"conversation,omitempty"`
	// fork is the Fork that the task was created for. Leave it out: the manager sets it for
	// the tasks that it creates. If the admission policy clew-task-requesters is installed,
	// what anybody else sends is ignored; otherwise it is trusted, whoever sent it: the
	// task's history names that Fork, and the Fork, while it is not Complete, adopts a Task
	// that has its UID here and the name of one of its variants.
	// +optional
	Fork *ForkOrigin `json:"fork,omitempty"`
}
