package v1alpha1_test

import (
	"fmt"
	"testing"

	. "github.com/onsi/gomega"
	rbacv1 "k8s.io/api/rbac/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/testing/builders"
)

// TestWhoMayNameOtherTasks: whoever could do nothing to a task must not have Clew do it, by a Task of
// their own that names it.
func TestWhoMayNameOtherTasks(t *testing.T) {
	const clew = "clew.dev"
	create := right(clew, "create", "tasks")
	made := func(change func(*v1alpha1.TaskSpec)) func(string) client.Object {
		return func(name string) client.Object {
			task := builders.Task(name, func(task *v1alpha1.Task) { change(&task.Spec) })
			task.Namespace = "default"
			return task
		}
	}
	worker := func(parent *v1alpha1.NameReference) func(string) client.Object {
		return made(func(s *v1alpha1.TaskSpec) {
			s.Contract, s.ParentRef = &v1alpha1.Contract{Name: "rewrite"}, parent
		})
	}
	child := made(func(s *v1alpha1.TaskSpec) { s.ParentRef = &v1alpha1.NameReference{Name: "lead"} })
	lead := func(onDelete v1alpha1.ChildrenOnDelete, finish v1alpha1.FinishAction) func(string) client.Object {
		return made(func(s *v1alpha1.TaskSpec) {
			s.Role, s.Contract = v1alpha1.RoleSupervisor, &v1alpha1.Contract{Name: "rewrite"}
			s.Children = &v1alpha1.Children{OnDelete: onDelete}
			s.OnFinish = &v1alpha1.OnFinish{Action: finish}
		})
	}
	waiting := func(tasks int) func(string) client.Object {
		return made(func(s *v1alpha1.TaskSpec) {
			for n := range tasks {
				s.DependsOn = append(s.DependsOn, v1alpha1.Dependency{TaskRef: v1alpha1.NameReference{Name: fmt.Sprintf("t-%d", n)}})
			}
		})
	}
	deleted := made(func(s *v1alpha1.TaskSpec) { s.OnFinish = &v1alpha1.OnFinish{Action: v1alpha1.FinishDelete} })
	patch, remove := right(clew, "patch", "tasks"), right(clew, "delete", "tasks")
	for name, test := range map[string]struct {
		object   func(string) client.Object
		rights   []rbacv1.PolicyRule
		sentence string
	}{
		"child-of-a-lead":        {child, []rbacv1.PolicyRule{create, right(clew, "patch", "tasks", "lead")}, ""},
		"child-of-a-stranger":    {child, []rbacv1.PolicyRule{create, right(clew, "patch", "tasks", "other")}, "you need the right to patch that Task"},
		"lead-all":               {lead("Orphan", "Release"), []rbacv1.PolicyRule{create, patch}, ""},
		"lead-no-patch":          {lead("Orphan", "Release"), []rbacv1.PolicyRule{create}, "a supervisor leads all tasks of its contract"},
		"worker-all":             {worker(nil), []rbacv1.PolicyRule{create, patch}, ""},
		"worker-no-patch":        {worker(nil), []rbacv1.PolicyRule{create, right(clew, "patch", "tasks", "worker-no-patch")}, "contract.name takes one of the places of that contract"},
		"worker-of-a-lead":       {worker(&v1alpha1.NameReference{Name: "lead"}), []rbacv1.PolicyRule{create, right(clew, "patch", "tasks", "lead")}, ""},
		"worker-of-a-stranger":   {worker(&v1alpha1.NameReference{Name: "lead"}), []rbacv1.PolicyRule{create}, "you need the right to patch that Task"},
		"waits-for-one":          {waiting(1), []rbacv1.PolicyRule{create, right(clew, "get", "tasks", "t-0")}, ""},
		"waits-for-many":         {waiting(32), []rbacv1.PolicyRule{create, right(clew, "get", "tasks")}, ""},
		"waits-for-a-stranger":   {waiting(1), []rbacv1.PolicyRule{create, right(clew, "get", "tasks", "other")}, "you need the right to get tasks in this namespace, or that Task"},
		"waits-for-strangers":    {waiting(2), []rbacv1.PolicyRule{create, right(clew, "get", "tasks", "t-0")}, "you need the right to get tasks in this namespace"},
		"deletes-itself":         {deleted, []rbacv1.PolicyRule{create, right(clew, "delete", "tasks", "deletes-itself")}, ""},
		"deletes-without-right":  {deleted, []rbacv1.PolicyRule{create, right(clew, "delete", "tasks", "other")}, "you need the right to delete it"},
		"deletes-children":       {lead("Delete", "Delete"), []rbacv1.PolicyRule{create, patch, remove}, ""},
		"leaves-children":        {lead("Orphan", "Delete"), []rbacv1.PolicyRule{create, patch, right(clew, "delete", "tasks", "leaves-children")}, ""},
		"deletes-only-the-lead":  {lead("Delete", "Delete"), []rbacv1.PolicyRule{create, patch, right(clew, "delete", "tasks", "deletes-only-the-lead")}, "you need the right to delete tasks in this namespace"},
		"finishes-with-releases": {made(func(s *v1alpha1.TaskSpec) { s.OnFinish = &v1alpha1.OnFinish{} }), []rbacv1.PolicyRule{create}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			user := userWith(t, name, test.rights...)
			create := NewWithT(t).Eventually(func() error { return user.Create(t.Context(), test.object(name), client.DryRunAll) })
			if test.sentence == "" {
				create.Should(Succeed())
			} else {
				create.Should(MatchError(ContainSubstring(test.sentence)))
			}
		})
	}
}

// TestWhoMayHaveATaskDeleted: the right to patch a Task is not that to delete it.
func TestWhoMayHaveATaskDeleted(t *testing.T) {
	g := NewWithT(t)
	task := builders.Task("patched-to-be-deleted", func(task *v1alpha1.Task) {
		task.Spec.OnFinish = &v1alpha1.OnFinish{AfterSeconds: 3600}
	})
	task.Namespace = "default"
	must(t, server.Client.Create(t.Context(), task))
	patched := func(user client.Client) error {
		changed := task.DeepCopy()
		changed.Spec.OnFinish = &v1alpha1.OnFinish{Action: v1alpha1.FinishDelete}
		return user.Patch(t.Context(), changed, client.MergeFrom(task), client.DryRunAll)
	}
	mayPatch := right("clew.dev", "patch", "tasks")
	patcher := userWith(t, "may-patch", mayPatch)
	g.Eventually(func() error { return patched(patcher) }).Should(MatchError(ContainSubstring("you need the right to delete it")))
	deleter := userWith(t, "may-delete", mayPatch, right("clew.dev", "delete", "tasks", task.Name))
	g.Eventually(func() error { return patched(deleter) }).Should(Succeed())
}
