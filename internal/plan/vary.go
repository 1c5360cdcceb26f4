package plan

import (
	"cmp"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"github.com/clew-dev/clew/api/v1alpha1"
)

// Variation is what a task that is made of another one's spec has otherwise. What is nil stays as it is.
type Variation struct {
	Prompt *string
	Agent  *v1alpha1.VariantAgent
	// Command takes the place of the container's command and arguments, and Args of its arguments.
	Command, Args []string
	Container     *v1alpha1.VariantTemplate
	Workspace     *v1alpha1.VariantWorkspace
}

// Vary applies a variation to a spec.
func Vary(spec *v1alpha1.TaskSpec, v Variation) {
	if v.Prompt != nil {
		spec.Prompt, spec.PromptFrom = ptr.To(*v.Prompt), nil
	}
	i := slices.IndexFunc(spec.Template.Spec.Containers, func(c corev1.Container) bool { return c.Name == v1alpha1.AgentContainer })
	container := &corev1.Container{} // of a template without one, the task is refused
	if i >= 0 {
		container = &spec.Template.Spec.Containers[i]
	}
	if v.Agent != nil {
		varyAgent(spec, container, v.Agent)
	}
	if v.Command != nil {
		container.Command, container.Args = slices.Clone(v.Command), nil
	}
	if v.Args != nil {
		container.Args = slices.Clone(v.Args)
	}
	if v.Container != nil {
		varyContainer(container, v.Container)
	}
	if w := v.Workspace; w != nil {
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
		mergeResources(&container.Resources.Limits, r.Limits)
		mergeResources(&container.Resources.Requests, r.Requests)
	}
}

// mergeResources sets the entries of changes in a list.
func mergeResources(list *corev1.ResourceList, changes corev1.ResourceList) {
	if *list == nil && len(changes) > 0 {
		*list = corev1.ResourceList{}
	}
	maps.Copy(*list, changes.DeepCopy())
}
