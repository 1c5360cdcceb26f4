package podidentity

import (
	"context"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/dynamic"

	clewv1alpha1 "github.com/clew-dev/clew/api/v1alpha1"
)

// LiveTasks is a TaskChecker that compares a pod with the stored Task: only a pod that the
// manager recorded in status.attempts is the task's.
type LiveTasks struct{ client dynamic.Interface }

// NewLiveTasks returns a LiveTasks. The client's account must be allowed to get
// tasks.
func NewLiveTasks(client dynamic.Interface) LiveTasks { return LiveTasks{client} }

// CheckTask implements TaskChecker.
func (l LiveTasks) CheckTask(ctx context.Context, id Identity) error {
	task, err := l.get(ctx, id)
	if err != nil {
		return err
	}
	if id.Checkpoint != "" {
		return l.checkBranch(ctx, id)
	}
	if id.Publishes {
		return checkPublisher(task.Status.Publish, id)
	}
	return checkAttempt(task.Status.Attempts, id)
}

// checkBranch compares a pod that publishes a branch of a Checkpoint with the one that the manager
// started for it.
func (l LiveTasks) checkBranch(ctx context.Context, id Identity) error {
	checkpoints := l.client.Resource(clewv1alpha1.GroupVersion.WithResource("checkpoints")).Namespace(id.Namespace)
	object, err := checkpoints.Get(ctx, id.Checkpoint, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err) || err == nil && string(object.GetUID()) != id.CheckpointUID:
		return fail(ErrPodGone, "the pod %s/%s is of a Checkpoint %q that does not exist any more; it should exit", id.Namespace, id.PodName, id.Checkpoint)
	case err != nil:
		return fail(ErrUnavailable, "the Checkpoint %s/%s could not be read: %v; try again", id.Namespace, id.Checkpoint, err)
	}
	c := &clewv1alpha1.Checkpoint{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, c); err != nil {
		return fail(ErrUnavailable, "the Checkpoint %s/%s could not be decoded: %v", id.Namespace, id.Checkpoint, err)
	}
	if c.Spec.TaskRef.Name != id.TaskName || c.Status.TaskUID != id.TaskUID {
		return fail(ErrForbidden, "the pod %s/%s names the task %s, and its Checkpoint %s is of another one", id.Namespace, id.PodName, id.TaskName, id.Checkpoint)
	}
	for _, b := range c.Status.Branches {
		if o := b.Origin; o != nil && o.PodName == id.PodName && (o.PodUID == "" || o.PodUID == id.PodUID) {
			return nil
		}
	}
	return fail(ErrPodGone, "the pod %s/%s is not the one that publishes a branch of the Checkpoint %s now; it should exit", id.Namespace, id.PodName, id.Checkpoint)
}

// checkPublisher compares a pod that publishes with the one that the manager started, whose
// name is recorded before it is created.
func checkPublisher(p *clewv1alpha1.PublishStatus, id Identity) error {
	if p != nil && p.PodName != "" && p.PodName == id.PodName && (p.PodUID == "" || p.PodUID == id.PodUID) {
		return nil
	}
	return fail(ErrPodGone, "the pod %s/%s is not the one that publishes the work of the task %s now; it should exit", id.Namespace, id.PodName, id.TaskName)
}

// Inherits reports whether the Task of an identity begins with the conversation of another
// Task.
func (l LiveTasks) Inherits(ctx context.Context, id Identity) (bool, error) {
	task, err := l.get(ctx, id)
	if err != nil {
		return false, err
	}
	from := task.Spec.StartFrom
	return from != nil && from.Conversation != clewv1alpha1.ConversationExclude, nil
}

// Source returns the UID of the task that the Task of an identity was started from; "" if there is
// none.
func (l LiveTasks) Source(ctx context.Context, id Identity) (string, error) {
	task, err := l.get(ctx, id)
	if err != nil || task.Status.Source == nil {
		return "", err
	}
	return task.Status.Source.TaskUID, nil
}

// Adopted returns the UIDs of the former tasks whose history the Task of an identity says it continues,
// newest first; none if it starts anew.
func (l LiveTasks) Adopted(ctx context.Context, id Identity) ([]string, error) {
	task, err := l.get(ctx, id)
	if err != nil {
		return nil, err
	}
	return task.Status.Adoption.FormerUIDs(), nil
}

// Contract returns the name of the contract that the Task of an identity belongs to; "" for none. It is in the
// Task's status before its first pod is created.
func (l LiveTasks) Contract(ctx context.Context, id Identity) (string, error) {
	task, err := l.get(ctx, id)
	if err != nil || task.Status.Contract == nil {
		return "", err
	}
	return task.Status.Contract.Name, nil
}

// SupervisorTools returns those of a supervisor's tools that the Task of an identity gives its agent, and
// whether it is a supervisor. Without a list in its spec it gives all; none of them publishes unless the
// spec says where to.
func (l LiveTasks) SupervisorTools(ctx context.Context, id Identity) (given []clewv1alpha1.AgentTool, supervisor bool, err error) {
	task, err := l.get(ctx, id)
	if err != nil || task.Spec.Role != clewv1alpha1.RoleSupervisor {
		return nil, false, err
	}
	return slices.DeleteFunc(clewv1alpha1.SupervisorTools(), func(t clewv1alpha1.AgentTool) bool {
		return task.Spec.Tools != nil && !slices.Contains(task.Spec.Tools, t) ||
			t == clewv1alpha1.ToolPublish && task.Spec.Publish == nil
	}), true, nil
}

// get reads the Task that an identity names.
func (l LiveTasks) get(ctx context.Context, id Identity) (*clewv1alpha1.Task, error) {
	tasks := l.client.Resource(clewv1alpha1.GroupVersion.WithResource("tasks")).Namespace(id.Namespace)
	object, err := tasks.Get(ctx, id.TaskName, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err) || err == nil && string(object.GetUID()) != id.TaskUID:
		return nil, fail(ErrForbidden, "the pod %s/%s names a Task %q with UID %s, which does not exist", id.Namespace, id.PodName, id.TaskName, id.TaskUID)
	case err != nil:
		return nil, fail(ErrUnavailable, "the Task %s/%s could not be read: %v; try again", id.Namespace, id.TaskName, err)
	}
	task := &clewv1alpha1.Task{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, task); err != nil {
		return nil, fail(ErrUnavailable, "the Task %s/%s could not be decoded: %v", id.Namespace, id.TaskName, err)
	}
	return task, nil
}

// checkLost refuses the pod of an attempt that was lost with its node: the task has gone on without it.
func checkLost(a clewv1alpha1.Attempt, id Identity) error {
	if a.Outcome == clewv1alpha1.AttemptNodeLost {
		return fail(ErrPodGone, "attempt %d of the task %s/%s was lost with its node, and the task went on without it; the pod %s should exit",
			id.Attempt, id.Namespace, id.TaskName, id.PodName)
	}
	return nil
}

// checkAttempt looks for the pod among the attempts that the manager started,
// oldest first. Each attempt is recorded before its pod is created. The pod's UID is
// recorded with the manager's next write, so until then the name of the newest
// attempt's pod has to suffice: where the chart's admission policy is installed, only
// the manager may create a pod with the labels of a task.
func checkAttempt(attempts []clewv1alpha1.Attempt, id Identity) error {
	for i, a := range attempts {
		if a.Number != id.Attempt {
			continue
		}
		newest := i == len(attempts)-1 && a.Outcome == ""
		if a.PodName == id.PodName && (a.PodUID == id.PodUID || a.PodUID == "" && newest) {
			return checkLost(a, id)
		}
		return fail(ErrForbidden, "the pod %s/%s is not the pod of attempt %d of the task %s: Clew created a different one", id.Namespace, id.PodName, id.Attempt, id.TaskName)
	}
	if len(attempts) > 0 && id.Attempt < attempts[0].Number {
		return fail(ErrPodGone, "attempt %d of the task %s/%s ended long ago; the pod %s should exit", id.Attempt, id.Namespace, id.TaskName, id.PodName)
	}
	return fail(ErrForbidden, "Clew started no attempt %d of the task %s/%s, so it did not create the pod %s", id.Attempt, id.Namespace, id.TaskName, id.PodName)
}
