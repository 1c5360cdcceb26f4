package fork

import (
	"cmp"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/daemonapi"
	"github.com/clew-dev/clew/internal/plan"
)

// newTask returns the task of a variant: the source's work, from the resolved checkpoint
// on, or that of the task that it continues. The source's operations (resume, rewind), its
// acknowledgement, its operating mode and the branch that it publishes to are not inherited. stamped is
// true when the Fork's requestedBy can be trusted.
func newTask(f *v1alpha1.Fork, source *v1alpha1.Task, variant v1alpha1.ForkVariant, stamped bool) *v1alpha1.Task {
	spec := source.Spec.DeepCopy()
	spec.DependsOn = nil // the source has waited for them
	spec.Resume, spec.Rewind, spec.Publish, spec.Acknowledge, spec.RequestedBy = nil, nil, nil, nil, nil
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
	vary(spec, variant)
	task := &v1alpha1.Task{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: f.Namespace,
			Name:      variant.Name,
			Labels:    map[string]string{v1alpha1.LabelFork: f.Name},
		},
		Spec: *spec,
	}
	adopt(f, task)
	return task
}

// vary applies what a variant changes.
func vary(spec *v1alpha1.TaskSpec, variant v1alpha1.ForkVariant) {
	if variant.Prompt != nil {
		prompt := *variant.Prompt
		spec.Prompt, spec.PromptFrom = &prompt, nil
	}
	i := slices.IndexFunc(spec.Template.Spec.Containers, func(c corev1.Container) bool { return c.Name == v1alpha1.AgentContainer })
	container := &corev1.Container{} // of a template without one, the task is refused
	if i >= 0 {
		container = &spec.Template.Spec.Containers[i]
	}
	if a := variant.Agent; a != nil {
		varyAgent(spec, container, a)
	}
	if t := variant.Template; t != nil {
		varyContainer(container, t)
	}
	if w := variant.Workspace; w != nil {
		if w.Size != nil {
			spec.Workspace.Size = *w.Size
		}
		if w.StorageClassName != nil {
			spec.Workspace.StorageClassName = ptr.To(*w.StorageClassName)
		}
	}
}

// varyAgent changes the agent. Command, arguments and model of one type mean nothing to
// another.
func varyAgent(spec *v1alpha1.TaskSpec, container *corev1.Container, a *v1alpha1.VariantAgent) {
	if a.Type != "" && a.Type != spec.Agent.Type {
		spec.Agent.Type, spec.Agent.Model = a.Type, ""
		container.Command, container.Args = nil, nil
	}
	spec.Agent.Model = cmp.Or(a.Model, spec.Agent.Model)
}

// varyContainer changes the agent's container.
func varyContainer(container *corev1.Container, t *v1alpha1.VariantTemplate) {
	container.Image = cmp.Or(t.Image, container.Image)
	for _, e := range t.Env {
		i := slices.IndexFunc(container.Env, func(has corev1.EnvVar) bool { return has.Name == e.Name })
		if i < 0 {
			container.Env = append(container.Env, *e.DeepCopy())
		} else {
			container.Env[i] = *e.DeepCopy()
		}
	}
	if r := t.Resources; r != nil {
		merge(&container.Resources.Limits, r.Limits)
		merge(&container.Resources.Requests, r.Requests)
	}
}

// merge sets the entries of changes in a list.
func merge(list *corev1.ResourceList, changes corev1.ResourceList) {
	if *list == nil && len(changes) > 0 {
		*list = corev1.ResourceList{}
	}
	maps.Copy(*list, changes.DeepCopy())
}
