package v1alpha1

// AdoptionStatus is what a Task with adopt: Latest found when it was new.
type AdoptionStatus struct {
	// taskUID of the former Task whose history this one continues; absent if it starts anew.
	// +optional
	TaskUID string `json:"taskUID,omitempty"`
	// earlierTaskUIDs are those of the Tasks whose history that one had continued, newest first; the
	// newest 16.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MaxLength=63
	EarlierTaskUIDs []string `json:"earlierTaskUIDs,omitempty"`
	// message says what was adopted, or why nothing was.
	// +required
	Message string `json:"message"`
}

// FormerUIDs returns the UIDs of the former Tasks whose history a Task continues, newest first; none if
// it starts anew.
func (a *AdoptionStatus) FormerUIDs() []string {
	if a == nil || a.TaskUID == "" {
		return nil
	}
	return append([]string{a.TaskUID}, a.EarlierTaskUIDs...)
}
