package fork

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/plan"
)

// newTask returns the task of a variant: the source's work, from the resolved checkpoint
// on. The source's operations (resume, rewind), its acknowledgement and its operating mode
// are not inherited. stamped is true when the Fork's requestedBy can be trusted.
func newTask(f *v1alpha1.Fork, source *v1alpha1.Task, variant v1alpha1.ForkVariant, stamped bool) *v1alpha1.Task {
	spec := source.Spec.DeepCopy()
	spec.Resume, spec.Rewind, spec.Acknowledge, spec.RequestedBy = nil, nil, nil, nil
	if by := f.Spec.RequestedBy; stamped && by != "" {
		spec.RequestedBy = &v1alpha1.TaskRequesters{Created: by, OperatingMode: by}
	}
	spec.OperatingMode = v1alpha1.OperatingModeRunning
	spec.StartFrom = &v1alpha1.StartFrom{
		TaskRef:      v1alpha1.NameReference{Name: source.Name},
		At:           &v1alpha1.StartPoint{CheckpointNumber: ptr.To(f.Status.Source.Checkpoint)},
		Conversation: f.Spec.Conversation,
		Fork: &v1alpha1.ForkOrigin{
			Name: f.Name, UID: string(f.UID), FieldManager: plan.FieldManager(f, "spec", "sourceRef", "name"),
		},
	}
	if variant.Prompt != nil {
		prompt := *variant.Prompt
		spec.Prompt, spec.PromptFrom = &prompt, nil
	}
	return &v1alpha1.Task{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: f.Namespace,
			Name:      variant.Name,
			Labels:    map[string]string{v1alpha1.LabelFork: f.Name},
		},
		Spec: *spec,
	}
}
