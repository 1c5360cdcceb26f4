package fork

import (
	"cmp"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/daemonapi"
	"github.com/clew-dev/clew/internal/plan"
)

// newTask returns the task of a variant: the source's work, from the resolved checkpoint
// on, or that of the task that it continues. The source's operations (resume, rewind), its
// decisions, its acknowledgement, its operating mode and the branch that it publishes to are not inherited,
// nor is a parent that is gone (see withParent). stamped is true when the Fork's requestedBy can be trusted.
func newTask(f *v1alpha1.Fork, source *v1alpha1.Task, variant v1alpha1.ForkVariant, stamped bool) *v1alpha1.Task {
	spec := source.Spec.DeepCopy()
	spec.DependsOn = nil // the source has waited for them
	spec.Resume, spec.Rewind, spec.Publish, spec.Acknowledge, spec.RequestedBy, spec.Decisions = nil, nil, nil, nil, nil, nil
	if by := f.Spec.RequestedBy; stamped && by != "" {
		spec.RequestedBy = &v1alpha1.TaskRequesters{Created: by, OperatingMode: by}
	}
	spec.OperatingMode, spec.Adopt = v1alpha1.OperatingModeRunning, ""
	if spec.OnFinish != nil {
		spec.OnFinish.Action = v1alpha1.FinishRelease // the Fork's status names its tasks, and the Fork may be applied again
	}
	spec.StartFrom = &v1alpha1.StartFrom{
		TaskRef:      v1alpha1.NameReference{Name: source.Name},
		TaskUID:      string(source.UID), // the name may be used again
		At:           &v1alpha1.StartPoint{CheckpointNumber: ptr.To(f.Status.Source.Checkpoint)},
		Conversation: f.Spec.Conversation,
		Branch:       cmp.Or(variant.Branch, daemonapi.ForkBranch(variant.Name)),
		Fork: &v1alpha1.ForkOrigin{
			Name: f.Name, UID: string(f.UID), FieldManager: plan.FieldManager(f, "spec", "sourceRef", "name"),
			From: plan.ForkFrom(&f.Spec),
		},
	}
	plan.Vary(spec, plan.Variation{Prompt: variant.Prompt, Agent: variant.Agent, Container: variant.Template, Workspace: variant.Workspace})
	task := &v1alpha1.Task{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: f.Namespace,
			Name:      variant.Name,
			Labels:    map[string]string{v1alpha1.LabelFork: f.Name},
		},
		Spec: *spec,
	}
	if parent := spec.ParentRef; parent != nil { // by which its siblings are counted, and servers watch them
		task.Labels[v1alpha1.LabelParent] = parent.Name
	}
	adopt(f, task)
	return task
}
