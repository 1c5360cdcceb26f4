package cli

import (
	"context"
	"errors"
	"fmt"
	"net/url"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	historyv1 "github.com/clew-dev/clew/api/history/v1alpha1"
	"github.com/clew-dev/clew/api/v1alpha1"
)

// deletedTask is the error for a task that was deleted and whose history is kept.
type deletedTask struct{ message string }

// Error implements error.
func (e *deletedTask) Error() string { return e.message }

// task gets a task in the session's namespace.
func (s *session) task(ctx context.Context, name string) (*v1alpha1.Task, error) {
	task, deleted, err := s.taskOrFormer(ctx, name)
	switch {
	case err != nil:
		return task, err
	case deleted && task.UID == "": // without a checkpoint there is nothing to fork
		return task, &deletedTask{fmt.Sprintf("task %s was deleted; its history is kept: apply it again with adopt: Latest", name)}
	case deleted:
		return task, &deletedTask{fmt.Sprintf("task %s was deleted; its history is kept: fork it with `kubectl clew fork %s --name NAME -n %s`, or apply it again with adopt: Latest", name, name, s.namespace)}
	}
	return task, nil
}

// orDeleted returns that the task of that name was deleted, if it was and its history is kept, and
// err otherwise.
func (s *session) orDeleted(ctx context.Context, name string, err error) error {
	_, failure := s.task(ctx, name)
	if deleted := (*deletedTask)(nil); errors.As(failure, &deleted) {
		return deleted
	}
	return err
}

// taskOrFormer gets a task in the session's namespace, or, if there is none, what former finds:
// then it is deleted.
func (s *session) taskOrFormer(ctx context.Context, name string) (task *v1alpha1.Task, deleted bool, err error) {
	task = &v1alpha1.Task{}
	err = s.client.Get(ctx, client.ObjectKey{Namespace: s.namespace, Name: name}, task)
	if !apierrors.IsNotFound(err) || isMissingResource(err) {
		return task, false, s.explain(err, "task", name)
	}
	former, _, failure := s.former(ctx, name, "")
	if failure != nil {
		return task, false, s.explain(err, "task", name)
	}
	return former, true, nil
}

// former finds the task of a name, and of a UID if one is given, whose history is kept although it
// may be gone. It has only name, UID and the number of its latest checkpoint, and newest is that
// checkpoint; without one, newest is nil and the UID empty.
func (s *session) former(ctx context.Context, name, uid string) (task *v1alpha1.Task, newest *historyv1.Checkpoint, err error) {
	page := &historyv1.CheckpointList{}
	params := url.Values{"uid": {uid}, "limit": {"1"}}
	if err := s.historyGet(ctx, []string{"tasks", name, "checkpoints"}, params, page); err != nil {
		return nil, nil, err
	}
	task = &v1alpha1.Task{ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: name}}
	if len(page.Items) > 0 {
		newest = &page.Items[0]
		task.UID = types.UID(newest.TaskUID)
		task.Status.LatestCheckpoint = &v1alpha1.CheckpointSummary{Number: newest.Number}
	}
	return task, newest, nil
}
