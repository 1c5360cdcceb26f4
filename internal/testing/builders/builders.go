// Package builders builds objects for tests: a valid Task, changed by options; the
// templates that must be refused; and what a kubelet reports about a pod.
package builders

import (
	"github.com/clew-dev/clew/api/v1alpha1"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
)

// TaskOption changes a Task.
type TaskOption func(*v1alpha1.Task)

// Task returns a Task that the API server accepts, with the schema's defaults set as the
// API server sets them.
func Task(name string, options ...TaskOption) *v1alpha1.Task {
	task := &v1alpha1.Task{
		TypeMeta:   metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: "Task"},
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
		Spec: v1alpha1.TaskSpec{
			Repository:    &v1alpha1.Repository{URL: "https://git.example.com/team/project.git", Ref: "main"},
			Prompt:        ptr.To("Tidy up."),
			Agent:         v1alpha1.Agent{Type: v1alpha1.AgentExec},
			Workspace:     v1alpha1.Workspace{Size: resource.MustParse("5Gi"), Retention: v1alpha1.WorkspaceDelete, WhenSuspended: v1alpha1.WhenSuspendedKeep},
			OperatingMode: v1alpha1.OperatingModeRunning,
			BackoffLimit:  ptr.To[int32](3),
			CheckpointPolicy: v1alpha1.CheckpointPolicy{
				EveryToolCalls: ptr.To[int32](10), EverySeconds: ptr.To[int32](300), MaxFileBytes: ptr.To[int64](100 << 20),
			},
			Template: corev1.PodTemplateSpec{Spec: corev1.PodSpec{Containers: []corev1.Container{{
				Name: v1alpha1.AgentContainer, Image: "agent.example.com/agent:1", Command: []string{"/bin/agent"}, Args: []string{"--work"},
			}}}},
		},
	}
	for _, option := range options {
		option(task)
	}
	return task
}

// InNamespace sets the task's namespace.
func InNamespace(namespace string) TaskOption {
	return func(t *v1alpha1.Task) { t.Namespace = namespace }
}

// WithUID gives the task a UID and a generation, as if it had been created.
func WithUID(uid string) TaskOption {
	return func(t *v1alpha1.Task) { t.UID, t.Generation = types.UID(uid), 1 }
}

// KeepLast sets how many Checkpoint objects the task keeps.
func KeepLast(n int32) TaskOption {
	return func(t *v1alpha1.Task) { t.Spec.CheckpointPolicy.Retention.KeepLast = ptr.To(n) }
}

// Suspended suspends the task.
func Suspended(t *v1alpha1.Task) { t.Spec.OperatingMode = v1alpha1.OperatingModeSuspended }

// Running makes the task run.
func Running(t *v1alpha1.Task) { t.Spec.OperatingMode = v1alpha1.OperatingModeRunning }

// Rewind requests a rewind to a checkpoint.
func Rewind(id, checkpoint string) TaskOption {
	return func(t *v1alpha1.Task) {
		t.Spec.Rewind = &v1alpha1.Rewind{
			ID: id, To: v1alpha1.RewindTarget{CheckpointRef: &v1alpha1.NameReference{Name: checkpoint}},
			Scope: v1alpha1.RewindBoth, Preserve: v1alpha1.PreserveBranch, OnDrift: v1alpha1.OnDriftFail,
		}
	}
}

// Resume requests that a stopped task continues.
func Resume(id string) TaskOption {
	return func(t *v1alpha1.Task) {
		t.Spec.Resume = &v1alpha1.Resume{ID: id, Mode: v1alpha1.ResumeContinue, OnDrift: v1alpha1.OnDriftFail}
	}
}

// Deadline sets how long the agent may run, in seconds; nothing bounds it with 0.
func Deadline(seconds int64) TaskOption {
	return func(t *v1alpha1.Task) {
		t.Spec.DeadlineSeconds = nil
		if seconds != 0 {
			t.Spec.DeadlineSeconds = &seconds
		}
	}
}

// ToolCallBudget sets how many calls of tools the task may spend; nothing bounds them with 0.
func ToolCallBudget(calls int64) TaskOption {
	return func(t *v1alpha1.Task) {
		t.Spec.Budget = nil
		if calls != 0 {
			t.Spec.Budget = &v1alpha1.Budget{ToolCalls: &calls}
		}
	}
}

// BackoffLimit sets how often a failed agent is restarted.
func BackoffLimit(n int32) TaskOption {
	return func(t *v1alpha1.Task) { t.Spec.BackoffLimit = &n }
}

// StartFrom makes the task start from a checkpoint of another one; from its latest if empty.
func StartFrom(task, checkpoint string) TaskOption {
	return func(t *v1alpha1.Task) {
		t.Spec.StartFrom = &v1alpha1.StartFrom{
			TaskRef: v1alpha1.NameReference{Name: task}, Conversation: v1alpha1.ConversationInclude,
		}
		if checkpoint != "" {
			t.Spec.StartFrom.CheckpointRef = &v1alpha1.NameReference{Name: checkpoint}
		}
	}
}

// DependsOn makes the task wait for others to complete.
func DependsOn(names ...string) TaskOption {
	return func(t *v1alpha1.Task) {
		for _, name := range names {
			t.Spec.DependsOn = append(t.Spec.DependsOn, v1alpha1.Dependency{
				TaskRef: v1alpha1.NameReference{Name: name}, Condition: v1alpha1.DependOnCompleted,
			})
		}
	}
}

// Finished makes the task wait only until those that it depends on have ended.
func Finished(t *v1alpha1.Task) {
	for i := range t.Spec.DependsOn {
		t.Spec.DependsOn[i].Condition = v1alpha1.DependOnFinished
	}
}

// Priority sets the task's priority.
func Priority(n int32) TaskOption {
	return func(t *v1alpha1.Task) { t.Spec.Priority = n }
}
