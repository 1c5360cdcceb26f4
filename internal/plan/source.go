package plan

import (
	"fmt"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/daemonapi"
)

// UnresolvedSource returns the startFrom that has not been resolved to a checkpoint yet;
// nil for none. Its Task and Checkpoint have to be observed before Decide.
func UnresolvedSource(task *v1alpha1.Task) *v1alpha1.StartFrom {
	if task.Status.Source != nil {
		return nil
	}
	return task.Spec.StartFrom
}

// resolveSource resolves startFrom to a checkpoint, once, or returns what blocks that.
func (d *decision) resolveSource() *Blocker {
	from := UnresolvedSource(d.task)
	if from == nil || d.s.Source != nil {
		return nil
	}
	source, b := ResolveSource(d.task.Spec.Repository, from.TaskRef.Name, d.o.Source, d.o.SourceCheckpoint)
	d.s.Source = source
	return b
}

// ResolveSource returns the point from which a task starts that continues from another
// one, or what blocks that. The checkpoint is the one named, or the source's latest; nil
// stands for a task or a checkpoint that does not exist.
func ResolveSource(repository *v1alpha1.Repository, name string, task *v1alpha1.Task, checkpoint *v1alpha1.Checkpoint) (*v1alpha1.SourceStatus, *Blocker) {
	switch {
	case task == nil:
		return nil, &Blocker{v1alpha1.ReasonSourceNotFound, fmt.Sprintf(
			"there is no Task %q in this namespace to start from", name)}
	case originOf(repository) != originOf(task.Spec.Repository):
		return nil, &Blocker{v1alpha1.ReasonRepositoryMismatch, fmt.Sprintf(
			"Task %q works on another repository: a task can only start from a task with the same repository.url", name)}
	case checkpoint == nil:
		return nil, &Blocker{v1alpha1.ReasonCheckpointNotFound, fmt.Sprintf(
			"Task %q does not have the checkpoint to start from, or does not have it yet: name one of its checkpoints, or wait for this one", name)}
	case checkpoint.Spec.TaskRef.Name != task.Name || (checkpoint.Status.TaskUID != "" && checkpoint.Status.TaskUID != string(task.UID)):
		return nil, &Blocker{v1alpha1.ReasonCheckpointOfOther, fmt.Sprintf(
			"Checkpoint %q does not belong to Task %q: name one of that task's checkpoints", checkpoint.Name, name)}
	case meta.IsStatusConditionFalse(checkpoint.Status.Conditions, v1alpha1.CheckpointIntact):
		return nil, &Blocker{v1alpha1.ReasonCheckpointCorrupted, fmt.Sprintf(
			"Checkpoint %q is damaged: start from another one", checkpoint.Name)}
	case isLost(checkpoint):
		return nil, &Blocker{v1alpha1.ReasonCheckpointLost, fmt.Sprintf(
			"Checkpoint %q is lost, since neither the gitstore nor the task's volume has it: start from another one", checkpoint.Name)}
	case checkpoint.Status.Number == 0 || !meta.IsStatusConditionTrue(checkpoint.Status.Conditions, v1alpha1.CheckpointDurable):
		return nil, &Blocker{v1alpha1.ReasonCheckpointNotReady, fmt.Sprintf(
			"Checkpoint %q is not in the gitstore yet: the task starts when it is", checkpoint.Name)}
	}
	source := &v1alpha1.SourceStatus{
		TaskUID: checkpoint.Status.TaskUID, Checkpoint: checkpoint.Status.Number, Commit: checkpoint.Status.Commit,
	}
	if c := checkpoint.Status.Conversation; c != nil {
		source.Position = c.Position
	}
	return source, nil
}

// isLost reports whether the checkpoint was taken and no longer exists anywhere.
func isLost(c *v1alpha1.Checkpoint) bool {
	durable := meta.FindStatusCondition(c.Status.Conditions, v1alpha1.CheckpointDurable)
	return durable != nil && durable.Status != metav1.ConditionTrue && durable.Reason == v1alpha1.ReasonCheckpointLost
}

// originOf returns the key under which a repository is compared with others.
func originOf(r *v1alpha1.Repository) string {
	if r == nil {
		return daemonapi.RepositoryKey("")
	}
	return daemonapi.RepositoryKey(r.URL)
}
