package plan

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/history"
)

func TestAForkOfATaskThatIsGone(t *testing.T) {
	with := func(name string, variables ...string) v1alpha1.ForkVariant {
		v := v1alpha1.ForkVariant{Name: name}
		if len(variables) > 0 {
			v.Template = &v1alpha1.VariantTemplate{}
		}
		for _, variable := range variables {
			v.Template.Env = append(v.Template.Env, corev1.EnvVar{Name: variable})
		}
		return v
	}
	var many []string
	for i := range 12 {
		many = append(many, fmt.Sprintf("spec.f%d", i))
	}
	for name, test := range map[string]struct {
		kept     history.KeptSpec
		variants []v1alpha1.ForkVariant
		reason   string
		message  string
	}{
		"whole":              {history.KeptSpec{Spec: "{}"}, []v1alpha1.ForkVariant{with("a")}, "", ""},
		"values given again": {history.KeptSpec{Spec: "{}", Variables: []string{"KEY", "TOKEN"}}, []v1alpha1.ForkVariant{with("a", "TOKEN", "KEY", "MODE")}, "", ""},
		"values missing": {history.KeptSpec{Spec: "{}", Variables: []string{"KEY", "TOKEN"}}, []v1alpha1.ForkVariant{with("a", "KEY"), with("b"), with("c", "TOKEN", "KEY")},
			v1alpha1.ReasonValuesNotKept, "not kept: KEY, TOKEN: apply a new Fork that sets them in template.env of a, b, best with valueFrom"},
		"no spec":       {history.KeptSpec{}, []v1alpha1.ForkVariant{with("a")}, v1alpha1.ReasonSpecNotKept, "apply a Task with startFrom"},
		"other secrets": {history.KeptSpec{Spec: "{}", Fields: many}, []v1alpha1.ForkVariant{with("a")}, v1alpha1.ReasonSpecNotKept, "spec.f9 and 2 more: apply a Task with startFrom"},
	} {
		t.Run(name, func(t *testing.T) {
			blocker := ForkGone(&v1alpha1.ForkSpec{SourceRef: v1alpha1.NameReference{Name: "source"}, Variants: test.variants}, test.kept)
			switch {
			case blocker == nil && test.reason == "":
			case blocker == nil || blocker.Reason != test.reason:
				t.Errorf("blocker %+v, want %q", blocker, test.reason)
			case !strings.Contains(blocker.Message, test.message):
				t.Errorf("message %q lacks %q", blocker.Message, test.message)
			}
		})
	}
}
