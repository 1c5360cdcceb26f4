package v1alpha1_test

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/testing/builders"
)

// scoped returns a Checkpoint with the scope Contract.
func scoped(name string, change ...func(*v1alpha1.CheckpointSpec)) *v1alpha1.Checkpoint {
	c := &v1alpha1.Checkpoint{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
		Spec: v1alpha1.CheckpointSpec{TaskRef: v1alpha1.NameReference{Name: "lead"}, Scope: v1alpha1.CheckpointOfContract}}
	for _, f := range change {
		f(&c.Spec)
	}
	return c
}

func TestABadSetIsRefused(t *testing.T) {
	p := newPeople(t)
	part := &v1alpha1.CheckpointSetRef{Name: "evening", UID: "uid"}
	for sentence, change := range map[string]func(*v1alpha1.CheckpointSpec){
		"takes new checkpoints: leave number out": func(s *v1alpha1.CheckpointSpec) { s.Number = ptr.To[int64](3) },
		"is taken of one task for a set":          func(s *v1alpha1.CheckpointSpec) { s.PartOf = part },
		"partOf is set by Clew alone":             func(s *v1alpha1.CheckpointSpec) { s.PartOf, s.Scope = part, v1alpha1.CheckpointOfTask },
		`supported values: "Task", "Contract"`:    func(s *v1alpha1.CheckpointSpec) { s.Scope = "Everything" },
	} {
		expectRefused(t, p.ann.Create(t.Context(), scoped("bad-set", change), client.DryRunAll), sentence)
	}
	must(t, p.manager.Create(t.Context(), scoped("member", func(s *v1alpha1.CheckpointSpec) { s.PartOf, s.Scope = part, "" })))

	c := scoped("good-set")
	must(t, p.ann.Create(t.Context(), c))
	c.Spec.Scope = v1alpha1.CheckpointOfTask
	expectRefused(t, p.ann.Update(t.Context(), c), "a Checkpoint's spec is immutable")
}

func TestABadRewindOfChildrenIsRefused(t *testing.T) {
	rewind := func(role v1alpha1.Role, change ...func(*v1alpha1.Rewind)) *v1alpha1.Task {
		return builders.Task("bad-set-rewind", builders.Rewind("back", "evening"), spec(func(s *v1alpha1.TaskSpec) {
			s.Role, s.Contract, s.Rewind.Children = role, &v1alpha1.Contract{Name: "port"}, v1alpha1.ChildrenRewind
			for _, f := range change {
				f(s.Rewind)
			}
		}))
	}
	expectRefused(t, create(rewind(v1alpha1.RoleWorker)), "only a supervisor has children to rewind")
	expectRefused(t, create(rewind(v1alpha1.RoleSupervisor, func(r *v1alpha1.Rewind) {
		r.To = v1alpha1.RewindTarget{CheckpointNumber: ptr.To[int64](3)}
	})), "children are rewound to a set of checkpoints")
	expectRefused(t, create(rewind(v1alpha1.RoleSupervisor, func(r *v1alpha1.Rewind) {
		r.Scope, r.Paths = v1alpha1.RewindCode, []string{"src"}
	})), "children are rewound as a whole")
	expectRefused(t, create(rewind(v1alpha1.RoleSupervisor, func(r *v1alpha1.Rewind) { r.ID = strings.Repeat("a", 57) })), "use at most 56 characters")
	expectRefused(t, create(rewind(v1alpha1.RoleSupervisor, func(r *v1alpha1.Rewind) {
		r.To = v1alpha1.RewindTarget{UndoOf: "resume:on"}
	})), "a resume takes no children along: set children to Keep")
	must(t, create(rewind(v1alpha1.RoleSupervisor, func(r *v1alpha1.Rewind) { r.To = v1alpha1.RewindTarget{UndoOf: "earlier"} })))
	must(t, create(rewind(v1alpha1.RoleSupervisor, func(r *v1alpha1.Rewind) { r.ID = strings.Repeat("a", 56) })))
	must(t, create(rewind(v1alpha1.RoleWorker, func(r *v1alpha1.Rewind) { r.Children = v1alpha1.ChildrenKeep })))
}
