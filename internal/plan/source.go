package plan

import (
	"fmt"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/daemonapi"
	"github.com/clew-dev/clew/internal/history"
)

// UnresolvedSource returns the startFrom that has not been resolved to a checkpoint yet;
// nil for none. Its source has to be observed before Decide.
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
	source, b := ResolveSource(d.task.Spec.Repository, from, d.o.Source)
	d.s.Source = source
	return b
}

// RecordedPoint reports whether only the history store can resolve the moment; query finds
// its position, and is nil for a checkpoint's number.
func RecordedPoint(at *v1alpha1.StartPoint) (query *history.PositionQuery, recorded bool) {
	switch {
	case at == nil, at.CheckpointRef != nil:
		return nil, false
	case at.Message != nil:
		return &history.PositionQuery{Message: *at.Message}, true
	case at.Time != nil:
		return &history.PositionQuery{Time: at.Time.Time}, true
	}
	return nil, true
}

// StartPoint returns the moment of a task from which to start: the one given, or, if none is and
// the task's latest checkpoint has no object, the number of that. It is nil if the object of the
// latest checkpoint says what is needed.
func StartPoint(from *v1alpha1.StartFrom, task *v1alpha1.Task) *v1alpha1.StartPoint {
	at, latest := from.Point(), task.Status.LatestCheckpoint
	if at == nil && latest != nil && latest.Name == "" && latest.Number > 0 {
		return &v1alpha1.StartPoint{CheckpointNumber: &latest.Number}
	}
	return at
}

// ResolveSource returns the point from which a task starts that continues from another
// one, or what blocks that. A message leads to the newest checkpoint at or before the end of its
// turn, and a time to the one that has its state.
func ResolveSource(repository *v1alpha1.Repository, from *v1alpha1.StartFrom, found Source) (*v1alpha1.SourceStatus, *Blocker) {
	task, name := found.Task, from.TaskRef.Name
	switch {
	case task == nil:
		return fromKept(from, found)
	case originOf(repository) != originOf(task.Spec.Repository):
		return nil, &Blocker{v1alpha1.ReasonRepositoryMismatch, fmt.Sprintf(
			"task %s works on another repository: a task can only start from a task with the same repository.url", name)}
	}
	at := StartPoint(from, task)
	if query, recorded := RecordedPoint(at); recorded {
		return fromRecord(name, string(task.UID), at, query, found)
	}
	return fromObject(task, found.Checkpoint)
}

// maxNamed bounds the UIDs that a message lists.
const maxNamed = 10

// fromKept returns the point of a task that is gone, of which the history store alone knows.
func fromKept(from *v1alpha1.StartFrom, found Source) (*v1alpha1.SourceStatus, *Blocker) {
	name, uid := from.TaskRef.Name, from.TaskUID
	blocked := func(reason, format string, args ...any) (*v1alpha1.SourceStatus, *Blocker) {
		return nil, &Blocker{reason, fmt.Sprintf(format, args...)}
	}
	at := from.Point()
	switch c := found.Record; {
	case !found.Known:
		return blocked(v1alpha1.ReasonHistoryUnavailable, "there is no task %s in this namespace, and the history store cannot be reached, which knows whether the history of one is kept: the task starts when it can", name)
	case found.Deleted:
		return blocked(v1alpha1.ReasonSourceNotFound, "the history of task %s with the UID %s was deleted: nothing is left to start from", name, uid)
	case found.Elsewhere:
		return blocked(v1alpha1.ReasonHistoryNotGranted, "there is no task %s in this namespace to start from, and the history that is kept of one belongs to an earlier namespace of this one's name: the task starts when an administrator has granted it (historyGrants in the values of Clew's chart)", name)
	case len(found.Kept) == 0 && uid != "":
		return blocked(v1alpha1.ReasonSourceNotFound, "there is no task %s with the UID %s in this namespace to start from, and no history of one is kept", name, uid)
	case len(found.Kept) == 0:
		return blocked(v1alpha1.ReasonSourceNotFound, "there is no task %s in this namespace to start from, and no history of one is kept", name)
	case len(found.Kept) > 1:
		return blocked(v1alpha1.ReasonSourceAmbiguous, "there is no task %s in this namespace any more, and several had this name: start from one of them by its UID, newest first: %s", name, strings.Join(found.Kept[:min(len(found.Kept), maxNamed)], ", "))
	case c == nil && at == nil && found.Damaged == "":
		return blocked(v1alpha1.ReasonCheckpointNotFound, "task %s is gone, and the gitstore has no checkpoint of it: nothing is left to start from", name)
	case c == nil && at != nil && at.CheckpointRef != nil:
		return blocked(v1alpha1.ReasonCheckpointNotFound, "task %s is gone, and with it the Checkpoint %q: name the checkpoint by its number, with at.checkpointNumber", name, at.CheckpointRef.Name)
	case c != nil && !c.Lost && !c.Durable:
		return blocked(v1alpha1.ReasonCheckpointLost, "task %s is gone, and its checkpoint %d never reached the gitstore: start from another one", name, c.Number)
	}
	query, _ := RecordedPoint(at)
	return fromRecord(name, found.Kept[0], at, query, found)
}

// fromObject returns the point of a Checkpoint of the task.
func fromObject(task *v1alpha1.Task, checkpoint *v1alpha1.Checkpoint) (*v1alpha1.SourceStatus, *Blocker) {
	name := task.Name
	switch {
	case checkpoint == nil:
		return nil, &Blocker{v1alpha1.ReasonCheckpointNotFound, fmt.Sprintf(
			"task %s does not have the checkpoint to start from, or does not have it yet: name one of its checkpoints, or wait for this one", name)}
	case checkpoint.Spec.TaskRef.Name != task.Name || (checkpoint.Status.TaskUID != "" && checkpoint.Status.TaskUID != string(task.UID)):
		return nil, &Blocker{v1alpha1.ReasonCheckpointOfOther, fmt.Sprintf(
			"Checkpoint %q does not belong to task %s: name one of that task's checkpoints", checkpoint.Name, name)}
	case meta.IsStatusConditionFalse(checkpoint.Status.Conditions, v1alpha1.CheckpointIntact):
		return nil, &Blocker{v1alpha1.ReasonCheckpointCorrupted, fmt.Sprintf(
			"Checkpoint %q is damaged%s: start from another one", checkpoint.Name, damageClause(checkpoint))}
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

// fromRecord returns the point of a checkpoint that the history store has.
func fromRecord(name, uid string, at *v1alpha1.StartPoint, query *history.PositionQuery, found Source) (*v1alpha1.SourceStatus, *Blocker) {
	c := found.Record
	switch {
	case !found.Known:
		return nil, &Blocker{v1alpha1.ReasonHistoryUnavailable, fmt.Sprintf(
			"the history store cannot be reached, which knows the moments of task %s: the task starts when it can", name)}
	case found.Damaged != "":
		return nil, &Blocker{v1alpha1.ReasonCorrupted, fmt.Sprintf(
			"the conversation of task %s is damaged (%s): start from a checkpoint by its number", name, found.Damaged)}
	case found.Behind && (query != nil || c == nil):
		return nil, &Blocker{v1alpha1.ReasonHistoryStoreWentBack, fmt.Sprintf(
			"the history store was restored from an older copy, and lacks newer records of task %s: the task starts when that task's pod has sent them again; if it has no pod, resume it, or start from a checkpoint by its name", name)}
	case query != nil && (found.Found == nil || found.Found.Asked < 1):
		return nil, &Blocker{v1alpha1.ReasonPositionNotFound, fmt.Sprintf(
			"the conversation of task %s has no message %s: name another moment", name, describePoint(at))}
	case c == nil && query != nil:
		return nil, &Blocker{v1alpha1.ReasonCheckpointNotFound, fmt.Sprintf(
			"task %s has no checkpoint %s: name a later moment", name, noneBefore(at, found.Found.Position.Position)+onAnotherBranch(*found.Found))}
	case c == nil:
		return nil, &Blocker{v1alpha1.ReasonCheckpointNotFound, fmt.Sprintf(
			"task %s does not have checkpoint %d, or does not have it yet: name one of its checkpoints, or wait for this one", name, *at.CheckpointNumber)}
	case c.Lost:
		return nil, &Blocker{v1alpha1.ReasonCheckpointLost, fmt.Sprintf(
			"checkpoint %d of task %s is lost, since neither the gitstore nor the task's volume has it: start from another one", c.Number, name)}
	case c.Integrity.Damage != "":
		return nil, &Blocker{v1alpha1.ReasonCheckpointCorrupted, fmt.Sprintf(
			"checkpoint %d of task %s is damaged (%s): start from another one", c.Number, name, Damage(c.Integrity))}
	case !c.Durable:
		return nil, &Blocker{v1alpha1.ReasonCheckpointNotReady, fmt.Sprintf(
			"checkpoint %d of task %s is not in the gitstore yet: the task starts when it is", c.Number, name)}
	}
	return &v1alpha1.SourceStatus{TaskUID: uid, Checkpoint: c.Number, Commit: c.Commit, Position: c.Position.Position}, nil
}

// noneBefore describes the place before which there is no checkpoint.
func noneBefore(at *v1alpha1.StartPoint, position int64) string {
	if at.Time != nil {
		return describePoint(at)
	}
	return fmt.Sprintf("at or before message %d", position)
}

// describePoint describes a message or a time that the conversation does not have.
func describePoint(at *v1alpha1.StartPoint) string {
	if at.Message != nil {
		return fmt.Sprint(*at.Message)
	}
	return "at or before " + at.Time.UTC().Format(time.RFC3339Nano)
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
