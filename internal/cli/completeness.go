package cli

import (
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/clew-dev/clew/api/v1alpha1"
)

// completeness describes what is missing from a task's history, and how to acknowledge
// a loss of records. It returns "" if nothing is known to be missing.
func completeness(task *v1alpha1.Task) string {
	c := meta.FindStatusCondition(task.Status.Conditions, v1alpha1.TaskHistoryComplete)
	if c == nil {
		return ""
	}
	text := "The history is incomplete: "
	if c.Status == metav1.ConditionTrue {
		text = "The history is complete except for acknowledged losses: "
	}
	text += oneLine(c.Message) + "."
	lost := task.Status.LostRecords
	if c.Reason != v1alpha1.ReasonHistoryGap || lost == 0 {
		return text
	}
	patch := func(acknowledge string) string {
		return fmt.Sprintf("  kubectl patch tasks.clew.dev %s -n %s --type merge -p '{\"spec\":{\"acknowledge\":%s}}'", task.Name, task.Namespace, acknowledge)
	}
	lines := []string{text, "To acknowledge the loss:"}
	if task.Status.EndedAcknowledgement == lost { // setting the same number again would change nothing
		lines = append(lines, patch("null"))
	}
	return strings.Join(append(lines, patch(fmt.Sprintf(`{"lostRecords":%d}`, lost))), "\n")
}
