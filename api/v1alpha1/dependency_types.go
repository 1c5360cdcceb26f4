package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// DependencyCondition says what a task waits for in another one.
// +kubebuilder:validation:Enum=Completed;Finished
type DependencyCondition string

const (
	// DependOnCompleted waits until the other task has completed.
	DependOnCompleted DependencyCondition = "Completed"
	// DependOnFinished waits until the other task has completed or failed for good. One that only waits
	// for something, whatever that is, has not.
	DependOnFinished DependencyCondition = "Finished"
)

// Dependency is another task that a task waits for before it starts.
type Dependency struct {
	// taskRef names the task to wait for. It need not exist yet. One that is gone counts as its
	// history says that it ended.
	// +required
	// +kubebuilder:validation:XValidation:rule="self.name.size() <= 46 && self.name.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$')",message="taskRef.name is no name of a Task: those have at most 46 lower-case letters, digits and '-'"
	TaskRef NameReference `json:"taskRef"`
	// condition is what is waited for: Completed, or Finished, which a task that failed for good
	// fulfils as well.
	// +optional
	// +kubebuilder:default=Completed
	Condition DependencyCondition `json:"condition,omitempty"`
}

// DependencyState says how a dependency stands.
// +kubebuilder:validation:Enum=Missing;Unfinished;Failed;Met
type DependencyState string

const (
	// DependencyMissing: there is no task of that name, and none that is gone has fulfilled it.
	DependencyMissing DependencyState = "Missing"
	// DependencyUnfinished: the task has not ended yet.
	DependencyUnfinished DependencyState = "Unfinished"
	// DependencyFailed: the task failed, and was to complete. It may be resumed.
	DependencyFailed DependencyState = "Failed"
	// DependencyMet: the task has ended as it was to. What becomes of it later changes nothing.
	DependencyMet DependencyState = "Met"
)

// DependencyStatus is how one of the tasks in spec.dependsOn stands.
type DependencyStatus struct {
	// name of the task.
	// +required
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`
	// taskUID of the task; empty while none of that name was found.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	TaskUID string `json:"taskUID,omitempty"`
	// state says how it stands.
	// +required
	State DependencyState `json:"state"`
	// metTime is when it was found to be met.
	// +optional
	MetTime *metav1.Time `json:"metTime,omitempty"`
}
