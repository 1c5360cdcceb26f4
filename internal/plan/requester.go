package plan

import (
	"bytes"
	"cmp"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/resources"
)

// maxRequester is the number of characters kept of a name.
const maxRequester = 256

// Requester returns who requested a part of an object: the user whose name admission
// wrote into the object, or else the field manager that owns the field, marked as
// such, since clients choose that name freely. It is "" when neither is known.
func Requester(object metav1.Object, stamp string, field ...any) string {
	if stamp != "" {
		return named(stamp)
	}
	if manager := FieldManager(object, field...); manager != "" {
		return byManager(manager)
	}
	return ""
}

// byManager returns the name of a field manager, marked as such.
func byManager(name string) string { return named(name) + " (field manager)" }

// taskPrefix begins the name by which the manager passes on what the agent of a supervisor has asked for
// with a tool: in place of a user's, and as a field manager.
const taskPrefix = "task:"

// TaskRequester returns the name by which the manager passes on what a task's agent has asked for.
func TaskRequester(task string) string { return taskPrefix + task }

// IsTaskRequester reports whether the agent of a task has asked, and not a person or a program of theirs.
func IsTaskRequester(name string) bool { return strings.HasPrefix(name, taskPrefix) }

// TaskActor returns the actor of what a task's agent has asked for.
func TaskActor(task string) string { return "task " + task }

// named returns a requester's name as people read it.
func named(name string) string {
	if task, ok := strings.CutPrefix(name, taskPrefix); ok {
		name = TaskActor(task)
	}
	return resources.PlainText(name, maxRequester)
}

// FieldManager returns the field manager that owns the field; "" when none does. Of
// several owners, it is the one that wrote last, to any field: nothing more precise is
// known.
func FieldManager(object metav1.Object, field ...any) string {
	return fieldManager(object, fieldpath.MakePathOrDie(field...))
}

func fieldManager(object metav1.Object, field fieldpath.Path) string {
	var newest metav1.ManagedFieldsEntry
	for _, m := range object.GetManagedFields() {
		if m.Subresource != "" || m.FieldsV1 == nil || m.Time == nil || (newest.Time != nil && m.Time.Before(newest.Time)) {
			continue
		}
		owned := &fieldpath.Set{}
		if err := owned.FromJSON(bytes.NewReader(m.FieldsV1.GetRawBytes())); err == nil && owned.Has(field) {
			newest = m
		}
	}
	return newest.Manager
}

// otherOwner returns a field manager other than one that has set a field of an object's spec, and the field,
// but none of those that are left out of account; "" if there is none. Fields that were removed have no owner.
func otherOwner(object metav1.Object, one string, apart []string) (manager, field string) {
	for _, m := range object.GetManagedFields() {
		if m.Manager == one || m.Subresource != "" || m.FieldsV1 == nil {
			continue
		}
		owned := &fieldpath.Set{}
		if err := owned.FromJSON(bytes.NewReader(m.FieldsV1.GetRawBytes())); err != nil {
			return m.Manager, "template" // nobody knows which
		}
		spec := "spec"
		owned.WithPrefix(fieldpath.PathElement{FieldName: &spec}).Iterate(func(path fieldpath.Path) {
			if name := path[0].FieldName; name != nil && !slices.Contains(apart, *name) {
				manager, field = m.Manager, *name
			}
		})
		if field != "" {
			return manager, field
		}
	}
	return "", ""
}

// stamps returns who requested the parts of the spec, if that can be trusted: without the
// policy that writes the names, anybody could have set them.
func (d *decision) stamps() v1alpha1.TaskRequesters {
	if r := d.task.Spec.RequestedBy; r != nil && d.o.Stamped {
		return *r
	}
	return v1alpha1.TaskRequesters{}
}

// publishRequester returns who asked for the task's work to be published as it is.
func (d *decision) publishRequester() string {
	return cmp.Or(Requester(d.task, d.stamps().Publish, "spec", "publish", "branch"), clew)
}

func (d *decision) resumeRequester() string {
	return Requester(d.task, d.stamps().Resume, "spec", "resume", "id")
}

func (d *decision) contractRequester() string {
	return Requester(d.task, d.stamps().Contract, "spec", "contract", "phase")
}

func (d *decision) modeRequester() string {
	return Requester(d.task, d.stamps().OperatingMode, "spec", "operatingMode")
}

func (d *decision) acknowledgeRequester() string {
	return Requester(d.task, d.stamps().Acknowledge, "spec", "acknowledge", "lostRecords")
}

// forkRequester is startRequester of this task.
func (d *decision) forkRequester() string { return startRequester(d.task, d.o.Stamped) }

// startRequester returns who created a task that starts from another one. The tasks of a
// Fork are created by the manager, whose own field manager says nothing about the user:
// it passes on the field manager of the Fork.
func startRequester(task *v1alpha1.Task, stamped bool) string {
	from, stamp := ForkOf(task), ""
	if r := task.Spec.RequestedBy; r != nil && stamped {
		stamp = r.Created
	}
	switch {
	case stamp != "" || from == nil:
		return Requester(task, stamp, "spec", "startFrom", "taskRef", "name")
	case from.FieldManager != "":
		return byManager(from.FieldManager)
	}
	return ""
}

// adoptRequester returns who created a task that adopts the history of a former one.
func (d *decision) adoptRequester() string {
	return Requester(d.task, d.stamps().Created, "spec", "adopt")
}

// ForkOf returns the Fork that a task was created for; nil for none. A former version
// wrote it into labels and annotations.
func ForkOf(task *v1alpha1.Task) *v1alpha1.ForkOrigin {
	if from := task.Spec.StartFrom; from != nil && from.Fork != nil {
		return from.Fork
	}
	name := task.Labels[v1alpha1.LabelFork]
	if name == "" {
		return nil
	}
	return &v1alpha1.ForkOrigin{
		Name: name, UID: task.Annotations[v1alpha1.AnnotationForkUID], FieldManager: task.Annotations[v1alpha1.AnnotationForkManager],
	}
}

// actorOf returns the actor of a transition that was requested: Unknown if no name was
// left.
func actorOf(requester string) string { return cmp.Or(requester, Unknown) }
