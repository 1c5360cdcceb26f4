package approvals_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/server/approvals"
	"github.com/clew-dev/clew/internal/server/gateway"
)

func task(requests ...v1alpha1.ToolRequest) *v1alpha1.Task {
	return &v1alpha1.Task{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "a", UID: "uid-of-a"}, Status: v1alpha1.TaskStatus{Requests: requests}}
}

func request(id string, waits v1alpha1.RequestWait, answer v1alpha1.Answer) v1alpha1.ToolRequest {
	r := v1alpha1.ToolRequest{ID: id, Waits: waits, Tool: "Bash"}
	if answer != "" {
		r.Answer = &v1alpha1.RequestAnswer{Answer: answer, By: "ann", Reason: "looked at it"}
	}
	return r
}

// A daemon is told what its calls wait for. A task that was stopped is told by its next prompt.
func TestAnswersOfCallsThatWait(t *testing.T) {
	board := approvals.New()
	board.Set(task(
		request("open", v1alpha1.WaitCall, ""),
		request("approved", v1alpha1.WaitCall, v1alpha1.AnswerApprove),
		request("denied", v1alpha1.WaitCall, v1alpha1.AnswerDeny),
		request("of-a-stopped-agent", v1alpha1.WaitTask, v1alpha1.AnswerApprove),
	))
	want := []gateway.Answer{
		{RequestID: "approved", Approved: true, By: "ann", Reason: "looked at it"},
		{RequestID: "denied", By: "ann", Reason: "looked at it"},
	}
	if d := cmp.Diff(want, board.Answers("uid-of-a")); d != "" {
		t.Errorf("answers (-want +got):\n%s", d)
	}
	if other := board.Answers("uid-of-b"); len(other) != 0 {
		t.Errorf("answers of another task: %v", other)
	}
	board.Remove(task())
	if left := board.Answers("uid-of-a"); len(left) != 0 {
		t.Errorf("answers of a task that is gone: %v", left)
	}
}

// TestATaskThatWasReplacedHasNoAnswers: while the watch was away, nobody tells of its deletion.
func TestATaskThatWasReplacedHasNoAnswers(t *testing.T) {
	board := approvals.New()
	was := task(request("approved", v1alpha1.WaitCall, v1alpha1.AnswerApprove))
	board.Handler().OnAdd(was, false)
	if got := board.Answers("uid-of-a"); len(got) != 1 {
		t.Fatalf("answers: %v", got)
	}
	next := task()
	next.UID = "another"
	board.Handler().OnUpdate(was, next)
	if left := board.Answers("uid-of-a"); len(left) != 0 {
		t.Errorf("answers of a task that is gone: %v", left)
	}
}

func TestOnlyAnswersAreAnnounced(t *testing.T) {
	board := approvals.New()
	announced := func(change *v1alpha1.Task) bool {
		changed, leave := board.Changes("uid-of-a")
		defer leave()
		board.Set(change)
		select {
		case <-changed:
			return true
		default:
			return false
		}
	}
	other := task(request("of-another", v1alpha1.WaitCall, v1alpha1.AnswerDeny))
	other.UID = "uid-of-b"
	for _, step := range []struct {
		what string
		now  *v1alpha1.Task
		want bool
	}{
		{"a call that waits", task(request("r", v1alpha1.WaitCall, "")), false},
		{"its answer", task(request("r", v1alpha1.WaitCall, v1alpha1.AnswerApprove)), true},
		{"the same answer again", task(request("r", v1alpha1.WaitCall, v1alpha1.AnswerApprove)), false},
		{"an answer of another task", other, false},
		{"the end of the request", task(), true},
	} {
		if got := announced(step.now); got != step.want {
			t.Errorf("%s: announced %v, want %v", step.what, got, step.want)
		}
	}
}
