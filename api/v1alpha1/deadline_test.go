package v1alpha1_test

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/testing/builders"
)

func TestAResumeNeedsTimeThatIsLeft(t *testing.T) {
	const sentence = "the agent has run for as long as deadlineSeconds allows (status.activeSeconds): raise it in the same change to resume this task"
	for name, c := range map[string]struct {
		active  int64
		changes []change
		refused bool
	}{
		"nothing is left":         {60, []change{builders.Resume("on")}, true},
		"more was used":           {67, []change{builders.Resume("on")}, true},
		"some is left":            {59, []change{builders.Resume("on")}, false},
		"raised in the change":    {67, []change{builders.Deadline(68), builders.Resume("on")}, false},
		"raised by too little":    {67, []change{builders.Deadline(67), builders.Resume("on")}, true},
		"removed in the change":   {67, []change{builders.Deadline(0), builders.Resume("on")}, false},
		"lowered in the change":   {40, []change{builders.Deadline(30), builders.Resume("on")}, true},
		"an earlier resume again": {67, []change{builders.Resume("before"), builders.BackoffLimit(9)}, false},
		"a rewind":                {67, []change{builders.Rewind("back", "used-up-1")}, false},
		"no resume":               {67, []change{builders.Deadline(30)}, false},
	} {
		t.Run(name, func(t *testing.T) {
			task := created(t, builders.Task("used-up-"+slug(name), builders.Deadline(60)))
			task.Status.ActiveSeconds, task.Status.HandledOperations = c.active, []string{"Resume/before"}
			setSucceeded(t, task, metav1.ConditionFalse, v1alpha1.ReasonDeadlineExceeded)
			for _, change := range c.changes {
				change(task)
			}
			err := server.Client.Update(t.Context(), task)
			if c.refused {
				expectRefused(t, err, sentence)
			} else if err != nil {
				t.Errorf("refused: %v", err)
			}
		})
	}
}
