package v1alpha1_test

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/testing/builders"
)

// startAt makes the task start from a moment and, if it is not empty, from a checkpoint too.
func startAt(at v1alpha1.StartPoint, checkpoint string) builders.TaskOption {
	return func(t *v1alpha1.Task) {
		builders.StartFrom("other", checkpoint)(t)
		t.Spec.StartFrom.At = &at
	}
}

// forkOf returns a Fork into one variant, after a change.
func forkOf(change func(*v1alpha1.ForkSpec)) *v1alpha1.Fork {
	f := &v1alpha1.Fork{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "f"}, Spec: v1alpha1.ForkSpec{
		SourceRef: v1alpha1.NameReference{Name: "source"}, Variants: []v1alpha1.ForkVariant{{Name: "v"}},
	}}
	change(&f.Spec)
	return f
}

func TestForksAreValidated(t *testing.T) {
	at := func(p v1alpha1.StartPoint) func(*v1alpha1.ForkSpec) {
		return func(s *v1alpha1.ForkSpec) { s.At = &p }
	}
	variants := func(n int) func(*v1alpha1.ForkSpec) {
		return func(s *v1alpha1.ForkSpec) {
			for i := 1; i < n; i++ {
				s.Variants = append(s.Variants, v1alpha1.ForkVariant{Name: fmt.Sprintf("v%d", i)})
			}
		}
	}
	variant := func(change func(*v1alpha1.ForkVariant)) func(*v1alpha1.ForkSpec) {
		return func(s *v1alpha1.ForkSpec) { change(&s.Variants[0]) }
	}
	const one = "set exactly one of checkpointRef, checkpointNumber, message and time in at"
	for name, test := range map[string]struct {
		change   func(*v1alpha1.ForkSpec)
		sentence string
	}{
		"16 variants":   {variants(16), ""},
		"17 variants":   {variants(17), "must have at most 16 items"},
		"one name":      {func(s *v1alpha1.ForkSpec) { s.Variants = append(s.Variants, s.Variants...) }, "Duplicate value"},
		"a number":      {at(v1alpha1.StartPoint{CheckpointNumber: ptr.To[int64](7)}), ""},
		"a message":     {at(v1alpha1.StartPoint{Message: ptr.To[int64](7)}), ""},
		"a time":        {at(v1alpha1.StartPoint{Time: ptr.To(metav1.Now())}), ""},
		"a name":        {at(v1alpha1.StartPoint{CheckpointRef: &v1alpha1.NameReference{Name: "c"}}), ""},
		"no moment":     {at(v1alpha1.StartPoint{}), one},
		"two moments":   {at(v1alpha1.StartPoint{CheckpointNumber: ptr.To[int64](1), Message: ptr.To[int64](1)}), one},
		"message 0":     {at(v1alpha1.StartPoint{Message: ptr.To[int64](0)}), "should be greater than or equal to 1"},
		"checkpoint 0":  {at(v1alpha1.StartPoint{CheckpointNumber: ptr.To[int64](0)}), "should be greater than or equal to 1"},
		"a former task": {func(s *v1alpha1.ForkSpec) { s.TaskUID = "0d9a64a5-9bd3-4b0b-9d3c-3f6e3a0e6b11" }, ""},
		"no UID":        {func(s *v1alpha1.ForkSpec) { s.TaskUID = "a b" }, "taskUID must be the UID of a task"},
		"two ways": {func(s *v1alpha1.ForkSpec) {
			s.At, s.CheckpointRef = &v1alpha1.StartPoint{Message: ptr.To[int64](1)}, &v1alpha1.NameReference{Name: "c"}
		}, "the Fork has both at and checkpointRef"},
		"the old way": {func(s *v1alpha1.ForkSpec) { s.CheckpointRef = &v1alpha1.NameReference{Name: "c"} }, ""},
		"another agent": {variant(func(v *v1alpha1.ForkVariant) {
			v.Agent, v.Branch = &v1alpha1.VariantAgent{Type: v1alpha1.AgentCodex, Model: "gpt-5"}, "try/codex"
			v.Template = &v1alpha1.VariantTemplate{Image: "codex:1", Env: []corev1.EnvVar{{Name: "A", ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.name"}}}}}
			v.Workspace = &v1alpha1.VariantWorkspace{Size: ptr.To(resource.MustParse("9Gi"))}
		}), ""},
		"no agent at all":  {variant(func(v *v1alpha1.ForkVariant) { v.Agent = &v1alpha1.VariantAgent{} }), "set type, model or both in agent"},
		"nobody's agent":   {variant(func(v *v1alpha1.ForkVariant) { v.Agent = &v1alpha1.VariantAgent{Type: "Nobody"} }), "Unsupported value"},
		"a model for Exec": {variant(func(v *v1alpha1.ForkVariant) { v.Agent = &v1alpha1.VariantAgent{Type: v1alpha1.AgentExec, Model: "m"} }), "takes no model"},
		"an odd model":     {variant(func(v *v1alpha1.ForkVariant) { v.Agent = &v1alpha1.VariantAgent{Model: "-x"} }), "model must be the name of a model"},
		"an odd branch":    {variant(func(v *v1alpha1.ForkVariant) { v.Branch = "a..b" }), "branch must be a plain git branch name"},
		"HEAD as a branch": {variant(func(v *v1alpha1.ForkVariant) { v.Branch = "HEAD" }), "branch must be a plain git branch name"},
		"HOME": {variant(func(v *v1alpha1.ForkVariant) {
			v.Template = &v1alpha1.VariantTemplate{Env: []corev1.EnvVar{{Name: "HOME", Value: "/"}}}
		}), "cannot be named HOME"},
		"an odd image":  {variant(func(v *v1alpha1.ForkVariant) { v.Template = &v1alpha1.VariantTemplate{Image: "a b"} }), "image must not contain spaces"},
		"no class":      {variant(func(v *v1alpha1.ForkVariant) { v.Workspace = &v1alpha1.VariantWorkspace{StorageClassName: ptr.To("")} }), "leave storageClassName out"},
		"of its source": {func(s *v1alpha1.ForkSpec) { s.Variants = append(s.Variants, v1alpha1.ForkVariant{Name: "source"}) }, "a fork cannot have its source's name"},
	} {
		t.Run(name, func(t *testing.T) {
			err := server.Client.Create(t.Context(), forkOf(test.change), client.DryRunAll)
			if test.sentence == "" {
				must(t, err)
				return
			}
			expectRefused(t, err, test.sentence)
		})
	}
}
