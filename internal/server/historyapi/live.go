package historyapi

import (
	"context"
	"errors"
	"fmt"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	historyv1alpha1 "github.com/clew-dev/clew/api/history/v1alpha1"
	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/history"
)

// Live asks the daemons of running tasks.
type Live interface {
	// Publish makes the task's daemon push its files as they are to the gitstore, and returns
	// the commit. Errors: history.ErrNoAnswer, *history.LiveProblem, and others if the daemon
	// cannot be asked.
	Publish(ctx context.Context, taskUID string) (commit string, err error)
}

// live returns the present of a running task, whose commit is not known yet; of another one, what
// is known of it.
func (a *api) live(c *call, found history.TaskSummary) (moment, error) {
	if found.State != v1alpha1.ReasonRunning {
		return a.atRest(c, found.Task)
	}
	newest, err := a.Archive.CheckpointsBefore(c.Context(), found.Key(), 0, 1)
	if err != nil {
		return moment{}, err
	}
	now := &present{totals: found.Totals}
	if len(newest) > 0 {
		now.branch = newest[0].Position.Branch
	}
	return moment{task: found.Task, live: now}, nil
}

// publish brings the files of moments that are the present to the gitstore. It takes seconds,
// so it holds no slot that other requests need.
func (a *api) publish(c *call, moments ...*moment) error {
	moments = slices.DeleteFunc(moments, func(m *moment) bool { return m.live == nil })
	if len(moments) == 0 {
		return nil
	}
	release, err := a.enter(c, a.waits)
	if err != nil {
		return err
	}
	defer release()
	for _, m := range moments {
		commit, err := a.Live.Publish(c.Context(), m.task.UID)
		if err != nil {
			return a.liveError(c, m.task, err)
		}
		m.commit = commit
	}
	return nil
}

func (a *api) liveError(c *call, task history.Task, err error) error {
	var problem *history.LiveProblem
	switch {
	case errors.As(err, &problem) && problem.RetryAfterSeconds > 0:
		status := unavailable(fmt.Sprintf("the files of task %s cannot be shown yet: %s", task.Name, problem.Problem))
		status.ErrStatus.Details.RetryAfterSeconds = problem.RetryAfterSeconds
		status.ErrStatus.Details.Causes = []metav1.StatusCause{{Type: historyv1alpha1.CauseLiveResting}}
		return status
	case errors.As(err, &problem):
		return unavailable(fmt.Sprintf("the daemon of task %s cannot push its files: %s", task.Name, problem.Problem))
	case errors.Is(err, history.ErrNoAnswer):
		return unavailable(fmt.Sprintf("the daemon of task %s does not answer: its pod may be starting or ending, or be of an older release; try again, or compare with its latest checkpoint", task.Name))
	case c.Context().Err() == nil:
		a.Log.Error(err, "a task's daemon cannot be asked for its files", "namespace", task.Namespace, "task", task.Name)
	}
	return unavailable(fmt.Sprintf("the daemon of task %s cannot be asked for its files; try again", task.Name))
}
