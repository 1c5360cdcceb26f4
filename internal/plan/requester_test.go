package plan

import (
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/testing/builders"
)

func TestTheFieldManagerIsMarkedAsSuchWhenNoUserIsKnown(t *testing.T) {
	s := running(t)
	s.o.Task.Spec.RequestedBy = &v1alpha1.TaskRequesters{Rewind: "forged"}
	s.o.Task.ManagedFields = []metav1.ManagedFieldsEntry{
		{Manager: "argocd", Time: &metav1.Time{Time: s.now}, FieldsV1: metav1.NewFieldsV1(`{"f:spec":{"f:rewind":{".":{},"f:id":{}}}}`)},
		{Manager: "kubectl", Time: &metav1.Time{Time: s.now.Add(time.Second)}, FieldsV1: metav1.NewFieldsV1(`{"f:spec":{"f:prompt":{}},"f:metadata":{"f:labels":{"f:rewind":{}}}}`)},
	}
	s.rewind("back", 9)
	s.o.RewindTarget = nil
	s.step()
	if e := s.status().History[1]; e.Actor != "argocd (field manager)" || !strings.Contains(e.Message, "tidy-up-9") {
		t.Errorf("the entry is %+v", e)
	}
}

func TestTheRequesterIsUnknownWithoutAName(t *testing.T) {
	s := running(t)
	s.rewind("back", 9)
	s.o.RewindTarget = nil
	s.step()
	if e := s.status().History[1]; e.Actor != Unknown {
		t.Errorf("the entry of a refused rewind: %+v", e)
	}
	s.change(builders.Suspended).step()
	s.podGone()
	s.change(func(t *v1alpha1.Task) { t.Spec.OperatingMode = v1alpha1.OperatingModeRunning }).step()
	for _, e := range s.status().History[2:] {
		if e.Actor != Unknown {
			t.Errorf("the entry of a suspension or resume: %+v", e)
		}
	}
}

func TestATaskOfAForkHasTheForksRequester(t *testing.T) {
	field := func(manager string) builders.TaskOption {
		return func(t *v1alpha1.Task) {
			t.Spec.StartFrom.Fork = &v1alpha1.ForkOrigin{Name: "three-ways", UID: "uid-of-fork", FieldManager: manager}
		}
	}
	annotations := func(manager string) builders.TaskOption {
		return func(t *v1alpha1.Task) {
			t.Labels = map[string]string{v1alpha1.LabelFork: "three-ways"}
			if manager != "" {
				t.Annotations = map[string]string{v1alpha1.AnnotationForkManager: manager}
			}
		}
	}
	for _, tt := range []struct {
		name    string
		made    builders.TaskOption
		stamped bool
		want    string
	}{
		{"as admission wrote", field("kubectl-create"), true, "ann"},
		{"as the Fork's field manager", field("kubectl-create"), false, "kubectl-create (field manager)"},
		{"by an unknown requester", field(""), false, Unknown},
		{"as admission wrote, for a former version", annotations("kubectl-create"), true, "ann"},
		{"as the Fork's field manager, which a former version noted", annotations("kubectl-create"), false, "kubectl-create (field manager)"},
		{"by a requester unknown to a former version", annotations(""), false, Unknown},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := newScene(t, builders.StartFrom("other", "other-3"), tt.made)
			s.o.Stamped = tt.stamped
			s.o.Task.Status.Source = &v1alpha1.SourceStatus{TaskUID: "uid-of-other", Checkpoint: 3, Commit: "c3"}
			s.o.Task.Spec.RequestedBy = &v1alpha1.TaskRequesters{Created: "ann"}
			s.o.Task.ManagedFields = []metav1.ManagedFieldsEntry{
				{Manager: "clew", Time: &metav1.Time{Time: s.now}, FieldsV1: metav1.NewFieldsV1(`{"f:spec":{"f:startFrom":{"f:taskRef":{"f:name":{}}}}}`)},
			}
			s.step()
			for _, e := range s.status().History {
				if e.Reason == v1alpha1.EventTaskForked && e.Actor == tt.want {
					return
				}
			}
			t.Errorf("status.history is %+v", s.status().History)
		})
	}
}

func TestTheUserThatAdmissionWroteIsRecorded(t *testing.T) {
	s := running(t)
	s.o.Stamped = true
	s.o.Task.ManagedFields = []metav1.ManagedFieldsEntry{
		{Manager: "argocd", Time: &metav1.Time{Time: s.now}, FieldsV1: metav1.NewFieldsV1(`{"f:spec":{"f:rewind":{"f:id":{}}}}`)},
	}
	s.o.Task.Spec.RequestedBy = &v1alpha1.TaskRequesters{Created: "ann", OperatingMode: "ann", Rewind: "ben\u202e\n" + strings.Repeat("x", 300)}
	s.rewind("back", 9)
	s.o.RewindTarget = nil
	s.step()
	e := s.status().History[1]
	if !strings.HasPrefix(e.Actor, "ben") || len([]rune(e.Actor)) > 256 {
		t.Errorf("the entry is %+v", e)
	}
	if s.status().Rewind.RequestedBy != e.Actor {
		t.Errorf("the status names %q", s.status().Rewind.RequestedBy)
	}
}

func TestWhatAnAgentHasAskedForIsItsTasks(t *testing.T) {
	for name, c := range map[string]struct{ stamp, manager, want string }{
		"as the manager has passed it on":        {TaskRequester("lead"), "task:lead", "task lead"},
		"as its field manager, without a policy": {"", "task:lead", "task lead (field manager)"},
		"a person":                               {"ann", "kubectl", "ann"},
	} {
		task := builders.Task("work")
		task.ManagedFields = []metav1.ManagedFieldsEntry{
			{Manager: c.manager, Time: &metav1.Time{Time: time.Unix(1, 0)}, FieldsV1: metav1.NewFieldsV1(`{"f:spec":{"f:resume":{"f:id":{}}}}`)},
		}
		if got := Requester(task, c.stamp, "spec", "resume", "id"); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}
