package plan

import (
	"fmt"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/toolcall"
)

// madeBySame reports whether the supervisor's agent has made a Task by a call that asked for the same.
func (d *calling) madeBySame(task *v1alpha1.Task, in *toolcall.CreateInput) bool {
	return IsChild(d.lead, task) && FieldManager(task, parentName()...) == d.owner() &&
		ptr.Deref(task.Spec.Prompt, "") == in.Prompt && d.startsFrom(task.Spec.StartFrom, in.StartFrom) && d.waitsFor(task.Spec.DependsOn, in.DependsOn)
}

// startsFrom reports whether a Task starts from what the agent has said, at whatever checkpoint.
func (d *calling) startsFrom(from *v1alpha1.StartFrom, said string) bool {
	switch {
	case from == nil || said == "":
		return from == nil && said == ""
	case from.Fork != nil:
		return false
	case said == toolcall.Self:
		return from.TaskRef.Name == d.lead.Name
	}
	return d.means(said, from.TaskRef.Name)
}

// waitsFor reports whether a Task waits for those that the agent has said, and for no others.
func (d *calling) waitsFor(all []v1alpha1.Dependency, said []string) bool {
	for _, dep := range all {
		if !slices.ContainsFunc(said, func(name string) bool { return d.means(name, dep.TaskRef.Name) }) {
			return false
		}
	}
	for _, name := range said {
		if !slices.ContainsFunc(all, func(dep v1alpha1.Dependency) bool { return d.means(name, dep.TaskRef.Name) }) {
			return false
		}
	}
	return true
}

// means reports whether the agent may mean an object by a name. The object may be gone.
func (d *calling) means(name, object string) bool {
	return slices.Contains(toolcall.ObjectNames(d.lead.Name, name), object)
}

// forkedBySame reports whether the supervisor's agent has made a Fork by a call that asked for the same. One
// of a former supervisor with the same name is none of its.
func (d *calling) forkedBySame(f *v1alpha1.Fork, in *toolcall.ForkInput) bool {
	at, source := f.Spec.At, d.o.Named[in.Task]
	if FieldManager(f, "spec", "sourceRef", "name") != d.owner() || !d.means(in.Task, f.Spec.SourceRef.Name) || at == nil || at.CheckpointNumber == nil {
		return false
	}
	if source != nil && string(source.UID) != f.Spec.TaskUID || source == nil && f.CreationTimestamp.Before(&d.lead.CreationTimestamp) {
		return false
	}
	return (in.Checkpoint == 0 || in.Checkpoint == *at.CheckpointNumber) && slices.EqualFunc(f.Spec.Variants, in.Variants, func(v v1alpha1.ForkVariant, said toolcall.ForkVariant) bool {
		return v.Name == toolcall.ObjectName(d.lead.Name, said.Name) && ptr.Deref(v.Prompt, "") == said.Prompt
	})
}

// noted returns what is noted of a call that is about to change an object as it is: a change that anybody may
// undo cannot be recognised by the object.
func noted(object metav1.Object) string {
	return fmt.Sprintf("%s at generation %d", object.GetUID(), object.GetGeneration())
}

// changedSince reports whether somebody has changed an object since it was noted that the call is about to
// change it, and has perhaps undone that.
func (d *calling) changedSince(object metav1.Object) bool {
	return d.o.Call.Noted != "" && d.o.Call.Noted != noted(object)
}

// once returns the plan of a change of an object that has not been changed since it was noted, or the one to
// note it.
func (d *calling) once(object metav1.Object, change CallPlan) CallPlan {
	if d.o.Call.Noted == "" {
		return CallPlan{Note: noted(object)}
	}
	return change
}
