package task

import (
	"maps"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/plan"
)

// familyLabels returns the labels by which the tasks of a contract, and those of a parent, are found.
// A value of "" stands for none.
func familyLabels(task *v1alpha1.Task) map[string]string {
	labels := map[string]string{v1alpha1.LabelContract: plan.ContractName(task)}
	if labels[v1alpha1.LabelContract] != "" {
		labels[v1alpha1.LabelRole] = string(task.Spec.Role)
	}
	if c := task.Status.Contract; c != nil {
		labels[v1alpha1.LabelPhase] = c.Phase
	}
	if p := task.Spec.ParentRef; p != nil {
		labels[v1alpha1.LabelParent] = p.Name
	}
	return labels
}

// setFamilyLabels sets the labels in the task, and reports whether it had others. A name that no label
// can have is no task's: an API server of an older version may have accepted it.
func setFamilyLabels(task *v1alpha1.Task) bool {
	labels := maps.Clone(task.Labels)
	if labels == nil {
		labels = map[string]string{}
	}
	for key, value := range familyLabels(task) {
		if value != "" && len(validation.IsValidLabelValue(value)) == 0 {
			labels[key] = value
		}
	}
	if maps.Equal(labels, task.Labels) {
		return false
	}
	task.Labels = labels
	return true
}
