package v1alpha1_test

import (
	"slices"
	"testing"

	. "github.com/onsi/gomega"
	rbacv1 "k8s.io/api/rbac/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/testing/builders"
)

var (
	approveIt = v1alpha1.Decision{RequestID: "1-a", Answer: v1alpha1.AnswerApprove}
	denyIt    = v1alpha1.Decision{RequestID: "1-a", Answer: v1alpha1.AnswerDeny}
)

// TestWhoMayAnswer: to change a Task is not enough to let its agent do what a person is to be asked about.
func TestWhoMayAnswer(t *testing.T) {
	const clew = "clew.dev"
	edits := []rbacv1.PolicyRule{right(clew, "create", "tasks"), right(clew, "patch", "tasks"), right(clew, "get", "tasks")}
	open := created(t, builders.Task("answer-open"))
	decided := created(t, builders.Task("answer-decided", decisions(approveIt)))
	changed := func(task *v1alpha1.Task, change func(*v1alpha1.TaskSpec)) func(client.Client) error {
		return func(c client.Client) error {
			changed := task.DeepCopy()
			change(&changed.Spec)
			return c.Patch(t.Context(), changed, client.MergeFrom(task), client.DryRunAll)
		}
	}
	answers := func(list ...v1alpha1.Decision) func(*v1alpha1.TaskSpec) {
		return func(s *v1alpha1.TaskSpec) { s.Decisions = list }
	}
	const refused = "you need the verb approve on this Task"
	for name, test := range map[string]struct {
		rights   []rbacv1.PolicyRule
		act      func(client.Client) error
		sentence string
	}{
		"answer-as-editor":      {edits, changed(open, answers(approveIt)), refused},
		"answer-deny-as-editor": {edits, changed(open, answers(denyIt)), refused},
		"answer-as-approver":    {append(edits, right(clew, "approve", "tasks")), changed(open, answers(approveIt)), ""},
		"answer-for-this-task":  {append(edits, right(clew, "approve", "tasks", "answer-open")), changed(open, answers(approveIt)), ""},
		"answer-for-another":    {append(edits, right(clew, "approve", "tasks", "another")), changed(open, answers(approveIt)), refused},
		"answer-at-creation": {edits, func(c client.Client) error {
			return c.Create(t.Context(), builders.Task("answer-new", decisions(approveIt)), client.DryRunAll)
		}, refused},
		"answer-otherwise":        {edits, changed(decided, answers(denyIt)), refused},
		"answer-another-reason":   {edits, changed(decided, answers(v1alpha1.Decision{RequestID: "1-a", Answer: v1alpha1.AnswerApprove, Reason: "x"})), refused},
		"answer-one-more":         {edits, changed(decided, answers(approveIt, v1alpha1.Decision{RequestID: "1-b", Answer: v1alpha1.AnswerDeny})), refused},
		"answer-removed":          {edits, changed(decided, answers()), ""},
		"answer-kept":             {edits, changed(decided, func(s *v1alpha1.TaskSpec) { s.OperatingMode = v1alpha1.OperatingModeSuspended }), ""},
		"answer-in-anothers-name": {edits, changed(decided, func(s *v1alpha1.TaskSpec) { s.Decisions[0].DecidedBy = "carol" }), ""},
	} {
		t.Run(name, func(t *testing.T) {
			user := userWith(t, name, test.rights...)
			act := NewWithT(t).Eventually(func() error { return test.act(user) })
			if test.sentence == "" {
				act.Should(Succeed())
			} else {
				act.Should(MatchError(ContainSubstring(test.sentence)))
			}
		})
	}
}

// TestWhoDecidedIsWhomTheAPIServerKnows: nobody can name somebody else, and a decision keeps its name when
// others are added.
func TestWhoDecidedIsWhomTheAPIServerKnows(t *testing.T) {
	p := newPeople(t)
	task := builders.Task("answer-names")
	must(t, p.ann.Create(t.Context(), task))
	deciders := func() (names []string) {
		must(t, server.Client.Get(t.Context(), client.ObjectKeyFromObject(task), task))
		for _, d := range task.Spec.Decisions {
			names = append(names, d.DecidedBy)
		}
		return names
	}
	decide := func(c client.Client, list ...v1alpha1.Decision) []string {
		t.Helper()
		old := task.DeepCopy()
		task.Spec.Decisions = list
		must(t, c.Patch(t.Context(), task, client.MergeFrom(old)))
		return deciders()
	}
	another := v1alpha1.Decision{RequestID: "1-b", Answer: v1alpha1.AnswerDeny, DecidedBy: "ann"}
	for _, step := range []struct {
		what string
		c    client.Client
		list []v1alpha1.Decision
		want []string
	}{
		{"ann decides in carol's name", p.ann, []v1alpha1.Decision{{RequestID: "1-a", Answer: v1alpha1.AnswerApprove, DecidedBy: "carol"}}, []string{"ann"}},
		{"carol adds one in ann's name", p.carol, []v1alpha1.Decision{approveIt, another}, []string{"ann", "carol"}},
		{"the robot changes ann's", p.robot, []v1alpha1.Decision{another, denyIt}, []string{"carol", robot}},
		{"ann removes one", p.ann, []v1alpha1.Decision{denyIt}, []string{robot}},
		{"the manager decides nothing in another's name", p.manager, []v1alpha1.Decision{{RequestID: "1-c", Answer: v1alpha1.AnswerApprove, DecidedBy: "ann"}}, []string{manager}},
	} {
		if got := decide(step.c, step.list...); !slices.Equal(got, step.want) {
			t.Errorf("after %s, the names are %q, want %q", step.what, got, step.want)
		}
	}
}
