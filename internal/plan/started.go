package plan

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/clew-dev/clew/api/v1alpha1"
)

const (
	// maxStarted is the number of tasks that status.startedTasks may list.
	maxStarted = 100
	// startedAtOnce is how many of them one decision notes at most.
	startedAtOnce = 5
)

// noteStarted adds tasks that start from this one to the status and its history, each once.
func (d *decision) noteStarted() {
	noted := map[string]bool{}
	for _, t := range d.s.StartedTasks {
		noted[t.UID] = true
	}
	added := 0
	for _, t := range byAge(d.o.Started) {
		switch {
		case noted[string(t.UID)] || t.Status.Source == nil:
			continue
		case added == startedAtOnce:
			d.requeue(d.o.Limits.RefreshEvery)
			return
		case !d.roomForStarted():
			return
		}
		added++
		d.s.StartedTasks = append(d.s.StartedTasks, v1alpha1.StartedTask{Name: t.Name, UID: string(t.UID), Checkpoint: t.Status.Source.Checkpoint})
		if a := t.Status.Adoption; a != nil && a.TaskUID != "" {
			continue // it had started as the former task that it continues
		}
		d.addCheckpointEntry(v1alpha1.EventTaskBranched, actorOf(startRequester(t, d.o.Stamped)),
			fmt.Sprintf("task %s starts from checkpoint %d%s", t.Name, t.Status.Source.Checkpoint, madeFor(t)), t.Status.Source.Checkpoint)
	}
}

// roomForStarted makes room in the list for one more task, and reports whether there is any.
func (d *decision) roomForStarted() bool {
	if len(d.s.StartedTasks) < maxStarted {
		return true
	}
	gone := slices.IndexFunc(d.s.StartedTasks, func(noted v1alpha1.StartedTask) bool {
		return !slices.ContainsFunc(d.o.Started, func(t v1alpha1.Task) bool { return string(t.UID) == noted.UID })
	})
	if gone < 0 {
		return false
	}
	d.s.StartedTasks = slices.Delete(d.s.StartedTasks, gone, gone+1)
	return true
}

// byAge returns the tasks, oldest first.
func byAge(tasks []v1alpha1.Task) []*v1alpha1.Task {
	sorted := make([]*v1alpha1.Task, 0, len(tasks))
	for i := range tasks {
		sorted = append(sorted, &tasks[i])
	}
	slices.SortFunc(sorted, func(a, b *v1alpha1.Task) int {
		return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name))
	})
	return sorted
}

// madeFor says for which Fork a task was created.
func madeFor(task *v1alpha1.Task) string {
	if fork := ForkOf(task); fork != nil {
		return ", for Fork " + fork.Name
	}
	return ""
}
