package fork

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/testing/builders"
)

// child returns a child of lead, of the contract port.
func child() *v1alpha1.Task {
	return builders.Task("child", func(t *v1alpha1.Task) {
		t.Spec.ParentRef = &v1alpha1.NameReference{Name: "lead"}
		t.Status.Parent = &v1alpha1.ParentStatus{Name: "lead", UID: "uid-of-lead", Depth: 1}
		t.Status.Contract = &v1alpha1.ContractStatus{Name: "port", Phase: "Plan"}
	})
}

func TestWhetherATaskIsTheParentThatTheSourceHas(t *testing.T) {
	for name, c := range map[string]struct {
		parent *v1alpha1.Task
		source func(*v1alpha1.Task)
		want   bool
	}{
		"it is":                   {builders.Task("lead", builders.WithUID("uid-of-lead")), nil, true},
		"another one of its name": {builders.Task("lead", builders.WithUID("another")), nil, false},
		"one that continues it": {builders.Task("lead", builders.WithUID("another"), func(t *v1alpha1.Task) {
			t.Status.Adoption = &v1alpha1.AdoptionStatus{TaskUID: "uid-of-lead"}
		}), nil, true},
		"it is being deleted": {builders.Task("lead", builders.WithUID("uid-of-lead"), func(t *v1alpha1.Task) {
			t.DeletionTimestamp = &metav1.Time{}
		}), nil, false},
		"nobody knows whose child it was": {builders.Task("lead", builders.WithUID("uid-of-lead")), func(t *v1alpha1.Task) { t.Status.Parent = nil }, false},
	} {
		source := child()
		if c.source != nil {
			c.source(source)
		}
		if got := isParent(c.parent, source); got != c.want {
			t.Errorf("%s: %t, want %t", name, got, c.want)
		}
	}
}

func TestATaskWithoutItsParentNamesTheContractItself(t *testing.T) {
	source := child()
	before := source.DeepCopy()
	orphan := withoutParent(source)
	if orphan.Spec.ParentRef != nil || orphan.Spec.Contract == nil || orphan.Spec.Contract.Name != "port" || orphan.Spec.Contract.Phase != "" {
		t.Errorf("it has the parent %v and the contract %+v", orphan.Spec.ParentRef, orphan.Spec.Contract)
	}
	if diff := cmp.Diff(before, source); diff != "" {
		t.Errorf("the source was changed:\n%s", diff)
	}
	source.Spec.Contract = &v1alpha1.Contract{Name: "port", Phase: "Plan"}
	if got := withoutParent(source).Spec.Contract; got.Phase != "Plan" {
		t.Errorf("its own contract became %+v", got)
	}
}

func TestATaskIsMadeInThePhaseInWhichItsParentIs(t *testing.T) {
	parent := builders.Task("lead", func(t *v1alpha1.Task) { t.Status.Contract = &v1alpha1.ContractStatus{Name: "port", Phase: "Execute"} })
	source := child()
	if got := inPhaseOf(parent, source); got != source {
		t.Errorf("one that names no phase became %+v", got.Spec)
	}
	source.Spec.Contract = &v1alpha1.Contract{Name: "port", Phase: "Plan"}
	before := source.DeepCopy()
	if got := inPhaseOf(parent, source).Spec.Contract; got.Name != "port" || got.Phase != "Execute" {
		t.Errorf("the contract is %+v, want port in Execute", got)
	}
	if diff := cmp.Diff(before, source); diff != "" {
		t.Errorf("the source was changed:\n%s", diff)
	}
}
