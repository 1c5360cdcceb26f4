package v1alpha1_test

import (
	"fmt"
	"testing"

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
	const one = "set exactly one of checkpointRef, checkpointNumber, message and time in at"
	for name, test := range map[string]struct {
		change   func(*v1alpha1.ForkSpec)
		sentence string
	}{
		"16 variants":  {variants(16), ""},
		"17 variants":  {variants(17), "must have at most 16 items"},
		"one name":     {func(s *v1alpha1.ForkSpec) { s.Variants = append(s.Variants, s.Variants...) }, "Duplicate value"},
		"a number":     {at(v1alpha1.StartPoint{CheckpointNumber: ptr.To[int64](7)}), ""},
		"a message":    {at(v1alpha1.StartPoint{Message: ptr.To[int64](7)}), ""},
		"a time":       {at(v1alpha1.StartPoint{Time: ptr.To(metav1.Now())}), ""},
		"a name":       {at(v1alpha1.StartPoint{CheckpointRef: &v1alpha1.NameReference{Name: "c"}}), ""},
		"no moment":    {at(v1alpha1.StartPoint{}), one},
		"two moments":  {at(v1alpha1.StartPoint{CheckpointNumber: ptr.To[int64](1), Message: ptr.To[int64](1)}), one},
		"message 0":    {at(v1alpha1.StartPoint{Message: ptr.To[int64](0)}), "should be greater than or equal to 1"},
		"checkpoint 0": {at(v1alpha1.StartPoint{CheckpointNumber: ptr.To[int64](0)}), "should be greater than or equal to 1"},
		"two ways": {func(s *v1alpha1.ForkSpec) {
			s.At, s.CheckpointRef = &v1alpha1.StartPoint{Message: ptr.To[int64](1)}, &v1alpha1.NameReference{Name: "c"}
		}, "the Fork has both at and checkpointRef"},
		"the old way":   {func(s *v1alpha1.ForkSpec) { s.CheckpointRef = &v1alpha1.NameReference{Name: "c"} }, ""},
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
