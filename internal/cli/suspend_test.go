package cli

import (
	"testing"

	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

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

// A task that does not run is answered at once, and stays as it is.
func TestSuspendStopped(t *testing.T) {
	b := newBench(t)
	for name, reason := range map[string]string{
		"rewound": v1alpha1.ReasonRewound, "failed": v1alpha1.ReasonAgentFailed, "drifted": v1alpha1.ReasonDriftDetected, "completed": v1alpha1.ReasonCompleted,
	} {
		task := b.task(name, reason)
		_, _, err := b.clew("", "suspend", name)
		want := "task " + name + " is not running (" + reason + "), so there is nothing to suspend; it stays stopped until `kubectl clew resume " + name + " -n "
		if name == "completed" {
			want = "task completed is completed, so there is nothing to suspend"
		}
		wantError(t, err, want)
		if b.get(task); task.Spec.OperatingMode == v1alpha1.OperatingModeSuspended {
			t.Errorf("task %s was set to Suspended", name)
		}
	}
	b.task("resting", v1alpha1.ReasonSuspended)
	out, _ := b.must("suspend", "resting")
	wantText(t, "output", "task.clew.dev/resting is suspended already\n", out)
	out, _ = b.must("suspend", "resting", "-o", "name")
	wantText(t, "output", "task.clew.dev/resting\n", out)
}

// A resume that was requested just before is not begun, although the state is still from before it.
func TestSuspendAfterResume(t *testing.T) {
	b := newBench(t)
	for _, reason := range []string{v1alpha1.ReasonRewound, v1alpha1.ReasonSuspended} {
		name := "of-" + map[string]string{v1alpha1.ReasonRewound: "rewound", v1alpha1.ReasonSuspended: "suspended"}[reason]
		task := b.task(name, reason)
		b.must("resume", name, "--wait=false")
		out, _ := b.must("suspend", name, "--wait=false")
		wantText(t, "output", "task.clew.dev/"+name+" suspend requested\n", out)
		if b.get(task); task.Spec.OperatingMode != v1alpha1.OperatingModeSuspended {
			t.Errorf("task %s is not set to Suspended", name)
		}
	}
}

func TestJudgeSuspend(t *testing.T) {
	task := func(reason string, observed int64, status metav1.ConditionStatus) *v1alpha1.Task {
		task := &v1alpha1.Task{}
		task.Name, task.Generation, task.Spec.OperatingMode = "walker", 2, v1alpha1.OperatingModeSuspended
		apimeta.SetStatusCondition(&task.Status.Conditions, metav1.Condition{Type: v1alpha1.TaskSucceeded, Status: status, Reason: reason, ObservedGeneration: observed})
		return task
	}
	for _, c := range []struct {
		task *v1alpha1.Task
		done bool
		err  string
	}{
		{task(v1alpha1.ReasonSuspending, 2, metav1.ConditionUnknown), false, ""},
		{task(v1alpha1.ReasonSuspended, 1, metav1.ConditionUnknown), false, ""},
		{task(v1alpha1.ReasonSuspended, 2, metav1.ConditionUnknown), true, ""},
		{task(v1alpha1.ReasonRewound, 1, metav1.ConditionUnknown), false, ""},
		{task(v1alpha1.ReasonRewound, 2, metav1.ConditionUnknown), false, "task walker stopped before it was suspended: Rewound"},
		{task(v1alpha1.ReasonCompleted, 2, metav1.ConditionTrue), false, "task walker stopped before it was suspended: Completed"},
	} {
		got := judgeSuspend(c.task)
		if got.done != c.done {
			t.Errorf("%v: done is %v", c.task.Status.Conditions, got.done)
		}
		if c.err == "" && got.err != nil {
			t.Error(got.err)
		}
		if c.err != "" {
			wantError(t, got.err, c.err)
		}
	}
}
