package fork

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/plan"
)

// annotationForkUID tells the task of this very Fork from that of another one
// of the same name.
const annotationForkUID = "clew.dev/fork-uid"

// newTask is the task of a variant: the source's work, from the resolved
// checkpoint on. What was asked of the source once (resume, rewind) and
// whether it sleeps is not taken over. stamped says that the Fork's
// requestedBy can be believed.
func newTask(f *v1alpha1.Fork, source *v1alpha1.Task, variant v1alpha1.ForkVariant, checkpoint string, stamped bool) *v1alpha1.Task {
	spec := source.Spec.DeepCopy()
	spec.Resume, spec.Rewind, spec.RequestedBy = nil, nil, nil
	annotations := map[string]string{annotationForkUID: string(f.UID)}
	if by := f.Spec.RequestedBy; stamped && by != "" {
		spec.RequestedBy = &v1alpha1.TaskRequesters{Created: by, OperatingMode: by}
	}
	if manager := plan.FieldManager(f, "spec", "sourceRef", "name"); manager != "" {
		annotations[v1alpha1.AnnotationForkManager] = manager
	}
	spec.OperatingMode = v1alpha1.OperatingModeRunning
	spec.StartFrom = &v1alpha1.StartFrom{
		TaskRef:       v1alpha1.NameReference{Name: source.Name},
		CheckpointRef: &v1alpha1.NameReference{Name: checkpoint},
		Conversation:  f.Spec.Conversation,
	}
	if variant.Prompt != nil {
		prompt := *variant.Prompt
		spec.Prompt, spec.PromptFrom = &prompt, nil
	}
	return &v1alpha1.Task{
		ObjectMeta: metav1.ObjectMeta{
			Namespace:   f.Namespace,
			Name:        variant.Name,
			Labels:      map[string]string{v1alpha1.LabelFork: f.Name},
			Annotations: annotations,
		},
		Spec: *spec,
	}
}
