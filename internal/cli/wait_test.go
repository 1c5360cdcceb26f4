package cli

import (
	"testing"

	"github.com/clew-dev/clew/api/v1alpha1"
)

func TestWaitGivesUp(t *testing.T) {
	b := newBench(t)
	task := b.task("slow", v1alpha1.ReasonRunning)
	b.checkpoint(task, 1)
	_, _, err := b.clew("", "rewind", "slow", "--to", "1", "--yes", "--timeout", "300ms")
	wantError(t, err, "the operation continues in the cluster")
}

func TestATimeoutOfZeroIsRefusedBeforeTheRequest(t *testing.T) {
	b := newBench(t)
	task := b.task("slow", v1alpha1.ReasonRunning)
	b.checkpoint(task, 1)
	for _, timeout := range []string{"-3s", "0s"} {
		_, _, err := b.clew("", "rewind", "slow", "--to", "1", "--yes", "--timeout", timeout)
		wantError(t, err, "it must be above zero")
	}
	b.get(task)
	if got := task.Spec.Rewind; got != nil {
		t.Errorf("the task has the rewind %v; want none", got)
	}
}
