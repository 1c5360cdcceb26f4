package plan

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/clew-dev/clew/api/v1alpha1"
)

// endedAs returns how a task has ended, completed or failed for good; nil if it has not, or goes on
// since. Its attempts say so: a reason of its condition Succeeded may be that of a task that only
// waits.
func endedAs(task *v1alpha1.Task) *settlement {
	d := &decision{task: task, old: &task.Status, s: &task.Status}
	if d.active() != nil || d.want() != wantNothing {
		return nil
	}
	if s := d.settled(); s != nil && isEnd(s) {
		return s
	}
	return nil
}

// isEnd reports whether a settlement is the end of a task, completed or failed for good.
func isEnd(s *settlement) bool { return statusOf(s.reason) != metav1.ConditionUnknown }
