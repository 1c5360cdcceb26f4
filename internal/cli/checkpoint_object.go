package cli

import (
	"cmp"
	"context"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	historyv1 "github.com/clew-dev/clew/api/history/v1alpha1"
	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/clip"
)

// maxMessage is the length of a Checkpoint's message that the schema allows, in characters.
const maxMessage = 1024

// objectAgain returns a new object for a checkpoint whose object was deleted. Somebody wants it,
// so that it is kept whatever the task's policy says.
func objectAgain(task *v1alpha1.Task, recorded *historyv1.Checkpoint, name string) *v1alpha1.Checkpoint {
	return &v1alpha1.Checkpoint{
		ObjectMeta: metav1.ObjectMeta{Namespace: task.Namespace, Name: cmp.Or(name, fmt.Sprintf("%s-%d", task.Name, recorded.Number))},
		Spec: v1alpha1.CheckpointSpec{
			TaskRef: v1alpha1.NameReference{Name: task.Name}, Number: ptr.To(recorded.Number),
			Message: clip.Runes(oneLine(recorded.Message), maxMessage), Retention: v1alpha1.CheckpointKept,
		},
	}
}

// objectToChange finds the object of a task's checkpoint by its name or number, for a command that
// sends what it changes with change. If the object was deleted, it is a new one.
func (s *session) objectToChange(ctx context.Context, list *v1alpha1.CheckpointList, task *v1alpha1.Task, wanted string) (*v1alpha1.Checkpoint, error) {
	found, recorded, err := s.lookUp(ctx, list, task, wanted)
	if found != nil || err != nil {
		return found, err
	}
	c := objectAgain(task, recorded, "")
	c.Status = objectOf(task, recorded).Status
	return c, nil
}

// change sends the change of an object that objectToChange has found, or creates it with the change.
func (s *session) change(ctx context.Context, dryRun *dryRunFlag, old, c *v1alpha1.Checkpoint) error {
	name, status := c.Name, c.Status
	var err error
	if c.UID != "" {
		err = dryRun.patch(ctx, s.client, c, client.MergeFromWithOptions(old, client.MergeFromWithOptimisticLock{}))
	} else {
		fmt.Fprintf(s.ErrOut, "The object of checkpoint %d was deleted: it is made again as %s, and kept%s.\n", status.Number, name, dryRun.suffix())
		err = dryRun.create(ctx, s.client, c)
		c.Status = status // the manager has not written it yet
	}
	if err != nil {
		return s.explain(err, "checkpoint", name)
	}
	return nil
}
