package cli

import (
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/clew-dev/clew/api/v1alpha1"
)

// completeness says what is missing of a task's history, and how a loss of records is
// acknowledged; empty for what lacks nothing, or nothing that nobody knows of.
func completeness(task *v1alpha1.Task) string {
	c := meta.FindStatusCondition(task.Status.Conditions, v1alpha1.TaskHistoryComplete)
	if c == nil {
		return ""
	}
	text := "The history " + map[bool]string{true: "is complete, but for what is acknowledged: ", false: "is not complete: "}[c.Status == "True"] + oneLine(c.Message) + "."
	lost := task.Status.LostRecords
	if c.Reason != v1alpha1.ReasonHistoryGap || lost == 0 {
		return text
	}
	patch := func(acknowledge string) string {
		return fmt.Sprintf("  kubectl patch tasks.clew.dev %s -n %s --type merge -p '{\"spec\":{\"acknowledge\":%s}}'", task.Name, task.Namespace, acknowledge)
	}
	lines := []string{text, "To acknowledge it:"}
	if task.Status.EndedAcknowledgement == lost { // to set the same number again would change nothing
		lines = append(lines, patch("null"))
	}
	return strings.Join(append(lines, patch(fmt.Sprintf(`{"lostRecords":%d}`, lost))), "\n")
}
