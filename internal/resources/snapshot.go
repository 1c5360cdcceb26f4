package resources

import (
	"fmt"
	"strconv"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/history"
)

// SnapshotName returns the name of the object for an automatic snapshot of a task's
// conversation.
func SnapshotName(task string, ordinal int64) string {
	return fmt.Sprintf("%s-snapshot-%d", task, ordinal)
}

// NewSnapshot returns the object for an automatic snapshot. The controller of
// ConversationSnapshots fills its status.
func NewSnapshot(task *v1alpha1.Task, row history.Snapshot) *v1alpha1.ConversationSnapshot {
	labels := Labels(task)
	labels[v1alpha1.LabelSnapshot] = strconv.FormatInt(row.Ordinal, 10)
	s := &v1alpha1.ConversationSnapshot{
		ObjectMeta: metav1.ObjectMeta{
			Namespace:       task.Namespace,
			Name:            SnapshotName(task.Name, row.Ordinal),
			Labels:          labels,
			OwnerReferences: []metav1.OwnerReference{Owner(task)},
		},
		Spec: v1alpha1.ConversationSnapshotSpec{TaskRef: v1alpha1.NameReference{Name: task.Name}},
	}
	if position := row.Position.Position; position > 0 {
		s.Spec.Position = &position
	}
	return s
}

// SnapshotOrdinal returns the number of a ConversationSnapshot that the manager created for a
// task; ok is false for one that a person applied.
func SnapshotOrdinal(s *v1alpha1.ConversationSnapshot) (taskUID string, ordinal int64, ok bool) {
	return numbered(s, v1alpha1.LabelSnapshot)
}

// numbered returns the number in a label of an object that a task owns.
func numbered(object metav1.Object, label string) (taskUID string, number int64, ok bool) {
	owner := metav1.GetControllerOf(object)
	if owner == nil || owner.Kind != "Task" || string(owner.UID) != object.GetLabels()[v1alpha1.LabelTaskUID] {
		return "", 0, false
	}
	number, err := strconv.ParseInt(object.GetLabels()[label], 10, 64)
	if err != nil || number < 1 {
		return "", 0, false
	}
	return string(owner.UID), number, true
}
