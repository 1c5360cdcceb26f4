package resources

import (
	"fmt"
	"strconv"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/history"
)

// maxMessage is the length of a Checkpoint's message that the schema allows, in characters.
const maxMessage = 1024

// CheckpointName returns the name of the object for a recorded checkpoint.
func CheckpointName(task string, number int64) string {
	return fmt.Sprintf("%s-%d", task, number)
}

// CheckpointNameOr returns the name to use when an object that is not the task's has the first
// one.
func CheckpointNameOr(task *v1alpha1.Task, number int64) string {
	uid := string(task.UID)
	return fmt.Sprintf("%s-%d-%s", task.Name, number, uid[:min(5, len(uid))])
}

// NewCheckpoint returns the object for a recorded checkpoint. The checkpoint controller fills
// its status.
func NewCheckpoint(task *v1alpha1.Task, name string, row history.Checkpoint) *v1alpha1.Checkpoint {
	labels := Labels(task)
	labels[v1alpha1.LabelCheckpoint] = strconv.FormatInt(row.Number, 10)
	return &v1alpha1.Checkpoint{
		ObjectMeta: metav1.ObjectMeta{
			Namespace:       task.Namespace,
			Name:            name,
			Labels:          labels,
			OwnerReferences: []metav1.OwnerReference{Owner(task)},
		},
		Spec: v1alpha1.CheckpointSpec{
			TaskRef: v1alpha1.NameReference{Name: task.Name},
			Message: PlainText(row.Message, maxMessage),
		},
	}
}

// NewSetMember returns the object that requests the checkpoint of a child for a set. It has no label of the
// manager's: like those that people apply, it is taken by the task's daemon. It goes with the set.
func NewSetMember(task *v1alpha1.Task, name string, set *v1alpha1.Checkpoint) *v1alpha1.Checkpoint {
	return &v1alpha1.Checkpoint{
		ObjectMeta: metav1.ObjectMeta{Namespace: task.Namespace, Name: name, OwnerReferences: []metav1.OwnerReference{{
			APIVersion: v1alpha1.GroupVersion.String(), Kind: "Checkpoint", Name: set.Name, UID: set.UID, Controller: ptr.To(true),
		}}},
		Spec: v1alpha1.CheckpointSpec{
			TaskRef: v1alpha1.NameReference{Name: task.Name}, Message: set.Spec.Message, RequestedBy: set.Spec.RequestedBy,
			PartOf: &v1alpha1.CheckpointSetRef{Name: set.Name, UID: string(set.UID)},
		},
	}
}

// phaseStart is what the names of the Checkpoints contain with which phases begin.
const phaseStart = "-phase-"

// PhaseStartName returns the name of the Checkpoint with which a phase begins.
func PhaseStartName(task, id string) string { return task + phaseStart + id }

// IsPhaseStart reports whether a Checkpoint has the name of one with which a phase begins.
func IsPhaseStart(c *v1alpha1.Checkpoint) bool {
	return strings.HasPrefix(c.Name, c.Spec.TaskRef.Name+phaseStart)
}

// NewPhaseStart returns the object that requests the checkpoint with which a phase begins. Like those that
// people apply, it has no number, and is taken by the task's daemon; like automatic ones, it stays as
// long as the task's policy says.
func NewPhaseStart(task *v1alpha1.Task, name, phase, requester string) *v1alpha1.Checkpoint {
	return &v1alpha1.Checkpoint{
		ObjectMeta: metav1.ObjectMeta{Namespace: task.Namespace, Name: name, OwnerReferences: []metav1.OwnerReference{Owner(task)}},
		Spec: v1alpha1.CheckpointSpec{
			TaskRef: v1alpha1.NameReference{Name: task.Name}, Message: PlainText("before the phase "+phase, maxMessage),
			RequestedBy: requester, Retention: v1alpha1.CheckpointByPolicy,
		},
	}
}

// CheckpointNumber returns the number of a Checkpoint that the manager created for a task; ok
// is false for one that a person applied.
func CheckpointNumber(c *v1alpha1.Checkpoint) (taskUID string, number int64, ok bool) {
	return numbered(c, v1alpha1.LabelCheckpoint)
}
