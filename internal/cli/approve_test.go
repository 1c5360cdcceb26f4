package cli

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/clew-dev/clew/api/v1alpha1"
)

// asking creates a task with tool calls that wait for an answer.
func (b *bench) asking(name string, ids ...string) *v1alpha1.Task {
	b.Helper()
	task := b.task(name, v1alpha1.ReasonWaitingForApproval)
	for i, id := range ids {
		task.Status.Requests = append(task.Status.Requests, v1alpha1.ToolRequest{
			ID: id, Attempt: 3, Tool: "Bash", Input: fmt.Sprintf(`{"command":"git push %d"}`, i), Waits: v1alpha1.WaitCall,
			Since: metav1.NewTime(noon.Add(-5 * time.Minute)), Deadline: metav1.NewTime(noon.Add(time.Hour)),
		})
	}
	b.try(server.Client.Status().Update(b.ctx, task))
	return task
}

// answerAll has the manager take the first decision of a task.
func answerAll(b *bench) {
	playManager(b, &v1alpha1.TaskList{}, func(t *v1alpha1.Task) bool {
		for _, d := range t.Spec.Decisions {
			for i := range t.Status.Requests {
				if r := &t.Status.Requests[i]; r.ID == d.RequestID {
					r.Answer = &v1alpha1.RequestAnswer{Answer: d.Answer, By: "ann", Reason: d.Reason, Time: metav1.NewTime(noon)}
				}
			}
		}
		return len(t.Spec.Decisions) > 0
	})
}

func TestApproveTheOnlyCallThatWaits(t *testing.T) {
	b := newBench(t)
	task := b.asking("walker", "3-9f86d081")
	out, _ := b.must("approve", "walker", "--dry-run")
	wantText(t, "output", "task.clew.dev/walker request 3-9f86d081: answer requested (server dry run)\n", out)
	if b.get(task); len(task.Spec.Decisions) > 0 {
		t.Error("a dry run has decided")
	}
	answerAll(b)
	out, _ = b.must("approve", "walker", "--reason", "checked the diff")
	wantText(t, "output", "task.clew.dev/walker request 3-9f86d081: approved\n", out)
	b.get(task)
	want := []v1alpha1.Decision{{RequestID: "3-9f86d081", Answer: v1alpha1.AnswerApprove, Reason: "checked the diff", DecidedBy: "admin"}}
	if d := cmp.Diff(want, task.Spec.Decisions); d != "" {
		t.Errorf("spec.decisions (-want +got):\n%s", d)
	}
	_, _, err := b.clew("", "deny", "walker", "3-9f86d081")
	wantError(t, err, "request 3-9f86d081 of task walker has its answer already: Approve, by ann")
	_, _, err = b.clew("", "deny", "walker")
	wantError(t, err, "no tool call of task walker waits for an answer")
}

func TestOneOfSeveralCallsIsNamed(t *testing.T) {
	b := newBench(t)
	task := b.asking("walker", "3-9f86d081", "3-60303ae2")
	_, _, err := b.clew("", "deny", "walker")
	wantError(t, err, "2 tool calls of task walker wait for an answer: name one of these requests\nREQUEST")
	wantParts(t, "the list", err.Error(), "3-9f86d081", "3-60303ae2", "Bash", `{"command":"git push 1"}`, "5m")
	_, _, err = b.clew("", "deny", "walker", "3-77")
	wantError(t, err, `task walker has no request "3-77" that waits for an answer; those that do are:`)

	out, _ := b.must("deny", "walker", "3-60", "--reason", "use a branch", "--wait=false")
	wantText(t, "output", "task.clew.dev/walker request 3-60303ae2: answer requested\n", out)
	b.get(task)
	want := []v1alpha1.Decision{{RequestID: "3-60303ae2", Answer: v1alpha1.AnswerDeny, Reason: "use a branch", DecidedBy: "admin"}}
	if d := cmp.Diff(want, task.Spec.Decisions); d != "" {
		t.Errorf("spec.decisions (-want +got):\n%s", d)
	}
	_, _, err = b.clew("", "approve", "walker", "3-60")
	wantError(t, err, "spec.decisions of task walker names request 3-60303ae2 already")
}

// TestApproveMakesRoom: decisions that were followed leave a full list, and only those.
func TestApproveMakesRoom(t *testing.T) {
	b := newBench(t)
	task := b.asking("walker", "3-new")
	for i := range v1alpha1.MaxDecisions {
		id := fmt.Sprintf("1-%d", i)
		task.Spec.Decisions = append(task.Spec.Decisions, v1alpha1.Decision{RequestID: id, Answer: v1alpha1.AnswerDeny})
		if i > 0 {
			task.Status.HandledDecisions = append(task.Status.HandledDecisions, id)
		}
	}
	handled := task.Status.HandledDecisions
	b.try(server.Client.Update(b.ctx, task))
	task.Status.HandledDecisions = handled
	b.try(server.Client.Status().Update(b.ctx, task))
	b.must("approve", "walker", "--wait=false")
	b.get(task)
	var left []string
	for _, d := range task.Spec.Decisions {
		left = append(left, d.RequestID)
	}
	wantText(t, "decisions", "1-0 3-new", strings.Join(left, " "))
}

// TestApproveIsRefusedInPlainWords: who may not answer is told whom to ask.
func TestApproveIsRefusedInPlainWords(t *testing.T) {
	b := newBench(t)
	b.asking("walker", "3-9f86d081")
	role := &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Namespace: b.namespace, Name: "reader"},
		Rules: []rbacv1.PolicyRule{{APIGroups: []string{"clew.dev"}, Resources: []string{"tasks"}, Verbs: []string{"get", "list"}}}}
	binding := &rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{Namespace: b.namespace, Name: "reader"},
		RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "reader"},
		Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "User", Name: "reader"}}}
	b.try(server.Client.Create(b.ctx, role))
	b.try(server.Client.Create(b.ctx, binding))
	_, _, err := b.clew("", "--as", "reader", "approve", "walker")
	wantError(t, err, "you are not allowed to answer: ")
}

func TestJudgeAnswer(t *testing.T) {
	const id = "3-9f86d081"
	task := func(handled bool, answer v1alpha1.Answer, observed int64) *v1alpha1.Task {
		task := &v1alpha1.Task{}
		task.Name, task.Generation, task.Status.ObservedGeneration = "walker", 2, observed
		if handled {
			task.Status.HandledDecisions = []string{id}
		}
		if answer != "" {
			r := v1alpha1.ToolRequest{ID: id}
			if answer != "none" {
				r.Answer = &v1alpha1.RequestAnswer{Answer: answer, By: "ann"}
			}
			task.Status.Requests = []v1alpha1.ToolRequest{r}
		}
		return task
	}
	for name, c := range map[string]struct {
		task *v1alpha1.Task
		done bool
		err  string
	}{
		"the manager has not seen it":      {task(false, "none", 1), false, ""},
		"taken":                            {task(true, v1alpha1.AnswerApprove, 2), true, ""},
		"taken, and the agent has it":      {task(true, "", 2), true, ""},
		"another answer was first":         {task(true, v1alpha1.AnswerDeny, 2), false, "request 3-9f86d081 had another answer before: Deny, by ann"},
		"withdrawn":                        {task(false, "", 2), false, "waits for an answer no longer"},
		"withdrawn, if the manager saw it": {task(false, "", 1), false, ""},
	} {
		t.Run(name, func(t *testing.T) {
			got := (&approve{answer: v1alpha1.AnswerApprove}).judge(c.task, id)
			if got.done != c.done || (got.err == nil) != (c.err == "") || got.err != nil && !strings.Contains(got.err.Error(), c.err) {
				t.Errorf("judged %+v", got)
			}
		})
	}
}
