package historyapi

import (
	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/history"
)

// drift returns the files of a task's volume that were changed while the task was not
// running. Its pod brought them to the gitstore when it found them, as the Task says.
func (a *api) drift(c *call, task history.Task) (moment, error) {
	object, err := a.Objects.Task(c.Context(), task.Namespace, task.Name)
	if err != nil {
		return moment{}, err
	}
	if object == nil || string(object.UID) != task.UID || object.Status.Drift == nil || object.Status.Drift.FileCount == 0 {
		return moment{}, noMoment(c.access, "no files of task %s have drifted: when its newest pod started, they were as Clew had left them", task.Name)
	}
	found := object.Status.Drift
	if found.Commit == "" || found.Checkpoint == 0 {
		return moment{}, noMoment(c.access, "the drifted files of task %s are not in the gitstore: the task has continued, or they could not be pushed; `kubectl clew drift` and status.drift of the Task name them", task.Name)
	}
	return moment{task: task, drifted: found.Checkpoint, commit: found.Commit}, nil
}

// undecidedDrift returns the files of a stopped task that a pod found changed and brought to the
// gitstore, and about which nobody has decided; nil if there are none.
func undecidedDrift(object *v1alpha1.Task) *v1alpha1.DriftStatus {
	found := object.Status.UndecidedDrift()
	if found == nil || found.Commit == "" || found.Checkpoint == 0 {
		return nil
	}
	return found
}

// atRest returns what is known of the files of a task that does not run: those that a pod found
// changed, or else its latest checkpoint. Nothing looks at its volume before a pod starts.
func (a *api) atRest(c *call, task history.Task) (moment, error) {
	object, err := a.Objects.Task(c.Context(), task.Namespace, task.Name)
	if err != nil {
		return moment{}, err
	}
	m, err := a.latest(c, task)
	if err != nil || object == nil || string(object.UID) != task.UID {
		return m, err
	}
	if found := undecidedDrift(object); found != nil {
		m.drifted, m.commit = found.Checkpoint, found.Commit // the conversation is where it was
	}
	return m, nil
}
