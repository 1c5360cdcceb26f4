package cli

import (
	"testing"

	"github.com/clew-dev/clew/api/v1alpha1"
)

func TestSuspend(t *testing.T) {
	b := newBench(t)
	task := b.task("walker", v1alpha1.ReasonRunning)
	out, _ := b.must("suspend", "walker", "--dry-run")
	wantText(t, "output", "task.clew.dev/walker suspend requested (server dry run)\n", out)
	if b.get(task); task.Spec.OperatingMode == v1alpha1.OperatingModeSuspended {
		t.Error("a dry run has suspended the task")
	}
	playManager(b, &v1alpha1.TaskList{}, func(t *v1alpha1.Task) bool {
		if t.Spec.OperatingMode != v1alpha1.OperatingModeSuspended {
			return false
		}
		setSucceeded(t, v1alpha1.ReasonSuspended)
		return true
	})
	out, _ = b.must("suspend", "walker")
	wantText(t, "output", "task.clew.dev/walker suspended\n", out)
	b.task("done", v1alpha1.ReasonRunning)
	_, _, err := b.clew("", "resume", "done")
	wantError(t, err, "to suspend it first, run `kubectl clew suspend done -n ")
}
