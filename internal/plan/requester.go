package plan

import (
	"bytes"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/resources"
)

// maxRequester is how many characters of a name are kept.
const maxRequester = 256

// Requester is who asked for a part of an object: the user whose name admission
// wrote into the object, or else the field manager that owns the field, marked as
// such, since clients choose that name freely. It is "" when neither is known.
func Requester(object metav1.Object, stamp string, field ...any) string {
	if stamp != "" {
		return resources.PlainText(stamp, maxRequester)
	}
	if manager := fieldManager(object, fieldpath.MakePathOrDie(field...)); manager != "" {
		return resources.PlainText(manager, maxRequester) + " (field manager)"
	}
	return ""
}

// fieldManager is the one that set the field last; "" when none owns it.
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

// stamps are who asked for the parts of the spec, as far as that can be believed:
// without the policy that writes them, anybody could have.
func (d *decision) stamps() v1alpha1.TaskRequesters {
	if r := d.task.Spec.RequestedBy; r != nil && d.o.Stamped {
		return *r
	}
	return v1alpha1.TaskRequesters{}
}

func (d *decision) rewindRequester() string {
	return Requester(d.task, d.stamps().Rewind, "spec", "rewind", "id")
}

func (d *decision) resumeRequester() string {
	return Requester(d.task, d.stamps().Resume, "spec", "resume", "id")
}

func (d *decision) modeRequester() string {
	return Requester(d.task, d.stamps().OperatingMode, "spec", "operatingMode")
}

// forkRequester is who made a task that starts from another one. Those of a Fork
// are made by the manager, whose own field manager tells nothing.
func (d *decision) forkRequester() string {
	if stamp := d.stamps().Created; stamp != "" || d.task.Labels[v1alpha1.LabelFork] != "" {
		return resources.PlainText(stamp, maxRequester)
	}
	return Requester(d.task, "", "spec", "startFrom", "taskRef", "name")
}

// orClew is the actor of a transition that somebody may have asked for.
func orClew(requester string) string {
	if requester == "" {
		return clew
	}
	return requester
}
