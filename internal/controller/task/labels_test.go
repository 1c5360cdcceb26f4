package task

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/testing/builders"
)

// A label that cannot be set would keep the finalizer from being set, and the task from being decided on.
func TestANameThatNoLabelCanHaveIsLeftOut(t *testing.T) {
	for name, want := range map[string]map[string]string{
		"lead":                  {v1alpha1.LabelContract: "port", v1alpha1.LabelRole: "Worker", v1alpha1.LabelParent: "lead"},
		"Foo Bar":               {v1alpha1.LabelContract: "port", v1alpha1.LabelRole: "Worker"},
		strings.Repeat("x", 64): {v1alpha1.LabelContract: "port", v1alpha1.LabelRole: "Worker"},
	} {
		task := builders.Task("work", func(t *v1alpha1.Task) {
			t.Labels = nil
			t.Spec.Role, t.Spec.Contract, t.Spec.ParentRef = v1alpha1.RoleWorker, &v1alpha1.Contract{Name: "port"}, &v1alpha1.NameReference{Name: name}
		})
		if !setFamilyLabels(task) || setFamilyLabels(task) {
			t.Errorf("the labels of a child of %q are not set once", name)
		}
		if diff := cmp.Diff(want, task.Labels); diff != "" {
			t.Errorf("the labels of a child of %q (-want +got):\n%s", name, diff)
		}
	}
}
