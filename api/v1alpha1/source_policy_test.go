package v1alpha1_test

import (
	"testing"

	. "github.com/onsi/gomega"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/testing/builders"
)

// right is a right in the namespace default.
func right(group, verb, resource string, names ...string) rbacv1.PolicyRule {
	return rbacv1.PolicyRule{APIGroups: []string{group}, Verbs: []string{verb}, Resources: []string{resource}, ResourceNames: names}
}

// userWith returns a client of a user who has only these rights, in the namespace default.
func userWith(t *testing.T, name string, rights ...rbacv1.PolicyRule) client.Client {
	t.Helper()
	role := &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}, Rules: rights}
	must(t, server.Client.Create(t.Context(), role))
	must(t, server.Client.Create(t.Context(), &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: name},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: name}},
	}))
	return clientOf(t, impersonating(name))
}

// TestWhoMayContinueAnotherTask: whoever could neither make the Tasks nor read what they
// continue must not have Clew do so.
func TestWhoMayContinueAnotherTask(t *testing.T) {
	const clew, history = "clew.dev", "history.clew.dev"
	forks, tasks, checkpoints := right(clew, "create", "forks"), right(clew, "create", "tasks"), right(clew, "get", "checkpoints")
	joins := right(clew, "patch", "tasks")
	fork := func(conversation v1alpha1.ConversationMode) func(string) client.Object {
		return func(name string) client.Object {
			f := forkOf(func(s *v1alpha1.ForkSpec) { s.Conversation = conversation })
			f.Name = name
			return f
		}
	}
	start := func(conversation v1alpha1.ConversationMode) func(string) client.Object {
		return func(name string) client.Object {
			task := builders.Task(name, builders.StartFrom("source", ""))
			task.Namespace, task.Spec.StartFrom.Conversation = "default", conversation
			return task
		}
	}
	adopt := func(name string) client.Object {
		task := builders.Task(name)
		task.Namespace, task.Spec.Adopt = "default", v1alpha1.AdoptLatest
		return task
	}
	adoptingFork := func(name string) client.Object {
		f := forkOf(func(s *v1alpha1.ForkSpec) { s.Conversation, s.Adopt = "Exclude", v1alpha1.AdoptLatest })
		f.Name = name
		return f
	}
	plain := func(name string) client.Object {
		task := builders.Task(name)
		task.Namespace = "default"
		return task
	}
	for name, test := range map[string]struct {
		object   func(string) client.Object
		rights   []rbacv1.PolicyRule
		sentence string
	}{
		"fork-all":         {fork("Include"), []rbacv1.PolicyRule{forks, tasks, joins, checkpoints, right(history, "get", "tasks/conversation", "source")}, ""},
		"fork-code":        {fork("Exclude"), []rbacv1.PolicyRule{forks, tasks, joins, checkpoints}, ""},
		"fork-no-tasks":    {fork("Exclude"), []rbacv1.PolicyRule{forks, joins, checkpoints}, "you need the right to create tasks"},
		"fork-no-family":   {fork("Exclude"), []rbacv1.PolicyRule{forks, tasks, checkpoints, right(clew, "patch", "tasks", "other")}, "you need the right to patch tasks in this namespace"},
		"fork-of-one":      {fork("Exclude"), []rbacv1.PolicyRule{forks, tasks, checkpoints, right(clew, "patch", "tasks", "source")}, "or create a Task with startFrom"},
		"fork-no-code":     {fork("Exclude"), []rbacv1.PolicyRule{forks, tasks, joins}, "you need the right to get checkpoints"},
		"fork-other-words": {fork("Include"), []rbacv1.PolicyRule{forks, tasks, joins, checkpoints, right(history, "get", "tasks/conversation", "other")}, "you need the right to get tasks/conversation"},
		"fork-adopts":      {adoptingFork, []rbacv1.PolicyRule{forks, tasks, joins, checkpoints, right(history, "get", "tasks/conversation")}, ""},
		"fork-adopts-some": {adoptingFork, []rbacv1.PolicyRule{forks, tasks, joins, checkpoints, right(history, "get", "tasks/conversation", "source")}, "you need the right to get tasks/conversation of all tasks"},
		"start-all":        {start("Include"), []rbacv1.PolicyRule{tasks, checkpoints, right(history, "get", "tasks/conversation")}, ""},
		"start-code":       {start("Exclude"), []rbacv1.PolicyRule{tasks, checkpoints}, ""},
		"start-no-code":    {start("Exclude"), []rbacv1.PolicyRule{tasks}, "you need the right to get checkpoints"},
		"start-no-words":   {start("Include"), []rbacv1.PolicyRule{tasks, checkpoints}, "you need the right to get tasks/conversation"},
		"adopt-all":        {adopt, []rbacv1.PolicyRule{tasks, checkpoints, right(history, "get", "tasks/conversation", "adopt-all")}, ""},
		"adopt-no-code":    {adopt, []rbacv1.PolicyRule{tasks}, "you need the right to get checkpoints"},
		"adopt-no-words":   {adopt, []rbacv1.PolicyRule{tasks, checkpoints, right(history, "get", "tasks/conversation", "other")}, "you need the right to get tasks/conversation"},
		"plain":            {plain, []rbacv1.PolicyRule{tasks}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			// The API server learns of the rights a moment after they are granted.
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
