package cli

import (
	"cmp"
	"context"
	"fmt"
	"strconv"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	historyv1 "github.com/clew-dev/clew/api/history/v1alpha1"
	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/clip"
	"github.com/clew-dev/clew/internal/resources"
)

// maxMessage is the length of a Checkpoint's message that the schema allows, in characters.
const maxMessage = 1024

// objectAgain returns a new object for a checkpoint whose object was deleted. Somebody wants it,
// so that it is kept whatever the task's policy says.
func objectAgain(task *v1alpha1.Task, recorded *historyv1.Checkpoint, name string) *v1alpha1.Checkpoint {
	return &v1alpha1.Checkpoint{
		ObjectMeta: metav1.ObjectMeta{Namespace: task.Namespace, Name: cmp.Or(name, resources.CheckpointName(task.Name, recorded.Number))},
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
	name, err := s.freeName(ctx, task, recorded.Number)
	if err != nil {
		return nil, err
	}
	c := objectAgain(task, recorded, name)
	c.Status = objectOf(task, recorded).Status
	return c, nil
}

// freeName returns the name for a new object of a checkpoint: the usual one, or, if another checkpoint's
// object has that, the one that the manager would take then.
func (s *session) freeName(ctx context.Context, task *v1alpha1.Task, number int64) (string, error) {
	name := resources.CheckpointName(task.Name, number)
	other := &v1alpha1.Checkpoint{}
	err := s.client.Get(ctx, client.ObjectKey{Namespace: task.Namespace, Name: name}, other)
	switch {
	case apierrors.IsNotFound(err):
		return name, nil
	case err != nil:
		return "", s.explain(err, "checkpoint", name)
	case other.Spec.TaskRef.Name == task.Name && other.Status.Number == 0 &&
		(ptr.Deref(other.Spec.Number, 0) == number || other.Labels[v1alpha1.LabelCheckpoint] == strconv.FormatInt(number, 10)):
		_, err := usable(other, task) // it is this checkpoint's, and has just been made
		return "", err
	}
	return resources.CheckpointNameOr(task, number), nil
}

// change sends the change of an object that objectToChange has found, or creates it with the change.
func (s *session) change(ctx context.Context, dryRun *dryRunFlag, old, c *v1alpha1.Checkpoint) error {
	name, status := c.Name, c.Status
	var err error
	if c.UID != "" {
		err = dryRun.patch(ctx, s.client, c, client.MergeFromWithOptions(old, client.MergeFromWithOptimisticLock{}))
	} else {
		err = dryRun.create(ctx, s.client, c)
		c.Status = status // the manager has not written it yet
	}
	switch {
	case apierrors.IsAlreadyExists(err):
		return fmt.Errorf("the object of checkpoint %d was deleted, and another one has its name, %s: make it again under another name with `kubectl clew checkpoint restore %s %[1]d --name NAME -n %[4]s`, and repeat this",
			status.Number, name, c.Spec.TaskRef.Name, c.Namespace)
	case err != nil:
		return s.explain(err, "checkpoint", name)
	case old.UID == "":
		fmt.Fprintf(s.ErrOut, "The object of checkpoint %d was deleted: it is made again as %s, and kept%s.\n", status.Number, name, dryRun.suffix())
	}
	return nil
}
