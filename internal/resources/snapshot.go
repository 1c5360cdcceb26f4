package resources

import (
	"fmt"
	"strconv"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/history"
)

// SnapshotName is the name of the object made for an automatic snapshot of a
// task's conversation.
func SnapshotName(task string, ordinal int64) string {
	return fmt.Sprintf("%s-snapshot-%d", task, ordinal)
}

// NewSnapshot is the object for an automatic snapshot. Its status is filled by
// the controller of ConversationSnapshots.
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

// SnapshotOrdinal reads the number of a ConversationSnapshot that the manager
// made for a task; ok is false for one that a person applied.
func SnapshotOrdinal(s *v1alpha1.ConversationSnapshot) (taskUID string, ordinal int64, ok bool) {
	return numbered(s, v1alpha1.LabelSnapshot)
}

// numbered reads the number in a label of an object that a task owns.
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
