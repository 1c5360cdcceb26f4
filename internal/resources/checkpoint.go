package resources

import (
	"fmt"
	"strconv"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/history"
)

const maxMessage = 1024

// CheckpointName is the name of the object made for a recorded checkpoint.
func CheckpointName(task string, number int64) string {
	return fmt.Sprintf("%s-%d", task, number)
}

// CheckpointNameOr is the name taken when an object that is not the task's has
// the first one.
func CheckpointNameOr(task *v1alpha1.Task, number int64) string {
	uid := string(task.UID)
	return fmt.Sprintf("%s-%d-%s", task.Name, number, uid[:min(5, len(uid))])
}

// NewCheckpoint is the object for a recorded checkpoint. Its status is filled
// by the checkpoint controller.
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

// CheckpointNumber reads the number of a Checkpoint that the manager made for
// a task; ok is false for one that a person applied.
func CheckpointNumber(c *v1alpha1.Checkpoint) (taskUID string, number int64, ok bool) {
	return numbered(c, v1alpha1.LabelCheckpoint)
}
