package plan

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/daemonapi"
	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/testing/builders"
)

// asks makes the daemon of the newest attempt report a call that waits.
func (s *scene) asks(id string, change ...func(*history.ToolRequest)) *scene {
	s.Helper()
	q := history.ToolRequest{ID: id, Attempt: s.lastAttempt().Number, Tool: "Bash", Input: `{"command":"git push"}`, InputDigest: "digest-of-" + id,
		Message: "pushes go to customers", Since: s.now, Deadline: s.now.Add(24 * time.Hour)}
	for _, c := range change {
		c(&q)
	}
	s.o.History.State.Attempt = q.Attempt
	s.o.History.State.Requests = append(s.o.History.State.Requests, q)
	return s.step()
}

func stopsAgent(q *history.ToolRequest) { q.StopsAgent = true }

// waitsNoLonger makes the daemon report a call no longer.
func (s *scene) waitsNoLonger(id string) *scene {
	s.Helper()
	state := &s.o.History.State
	state.Requests = slices.DeleteFunc(state.Requests, func(q history.ToolRequest) bool { return q.ID == id })
	return s.step()
}

// decides adds a decision of alice's.
func (s *scene) decides(id string, answer v1alpha1.Answer, reason string) *scene {
	s.Helper()
	s.o.Stamped = true
	return s.change(func(t *v1alpha1.Task) {
		t.Spec.Decisions = append(t.Spec.Decisions, v1alpha1.Decision{RequestID: id, Answer: answer, Reason: reason, DecidedBy: "alice"})
	}).step()
}

// request returns a request in the status; nil if it is not there.
func (s *scene) request(id string) *v1alpha1.ToolRequest { return findRequest(s.status().Requests, id) }

// agentIsStopped ends the pod of an agent that its daemon has stopped at a call.
func (s *scene) agentIsStopped() *scene {
	s.Helper()
	s.record(v1alpha1.TriggerSuspend)
	s.agentExits(137)
	s.podFinishes()
	return s
}

func TestACallThatWaitsIsListedAndAnsweredByAPerson(t *testing.T) {
	for _, answer := range []v1alpha1.Answer{v1alpha1.AnswerApprove, v1alpha1.AnswerDeny} {
		t.Run(string(answer), func(t *testing.T) {
			s := running(t).asks("1-a")
			s.wantStatus(v1alpha1.TaskSucceeded, metav1.ConditionUnknown, v1alpha1.ReasonWaitingForApproval,
				"the call of Bash waits for an answer (request 1-a)", "kubectl clew approve tidy-up 1-a", "2026-01-03T03:04:05Z")
			s.wantEntries(v1alpha1.EventTaskStarted, v1alpha1.EventApprovalRequested)
			s.wantMessage(s.lastEntry(v1alpha1.EventApprovalRequested).Message, "request 1-a", "git push", "pushes go to customers")
			if len(s.o.Pods) != 1 || s.pod().DeletionTimestamp != nil {
				t.Error("the pod of the agent is not kept")
			}
			s.after(time.Minute).decides("1-a", answer, "I have looked")
			event := map[v1alpha1.Answer]string{v1alpha1.AnswerApprove: v1alpha1.EventToolApproved, v1alpha1.AnswerDeny: v1alpha1.EventToolDenied}[answer]
			if e := s.lastEntry(event); e.Actor != "alice" || !strings.Contains(e.Message, "I have looked") {
				t.Errorf("the entry is %+v", e)
			}
			if a := s.request("1-a").Answer; a == nil || a.Answer != answer || a.By != "alice" || a.Reason != "I have looked" || !a.Time.Time.Equal(s.now) {
				t.Errorf("the answer is %+v", a)
			}
			s.wantState(v1alpha1.ReasonRunning)
			s.waitsNoLonger("1-a")
			if s.status().Requests != nil {
				t.Errorf("the status still lists %+v", s.status().Requests)
			}
			s.wantEntries(v1alpha1.EventTaskStarted, v1alpha1.EventApprovalRequested, event)
		})
	}
}

func TestTheDeadlineDenies(t *testing.T) {
	s := running(t).asks("1-a")
	last := s.plans[len(s.plans)-1]
	if last.RequeueAfter > 24*time.Hour || last.RequeueAfter == 0 {
		t.Errorf("the next decision is after %s", last.RequeueAfter)
	}
	s.after(24*time.Hour - time.Second).step()
	s.wantState(v1alpha1.ReasonWaitingForApproval)
	s.after(time.Second).step()
	if a := s.request("1-a").Answer; a == nil || a.Answer != v1alpha1.AnswerDeny || a.By != Clew {
		t.Errorf("the answer is %+v", a)
	}
	s.wantMessage(s.lastEntry(v1alpha1.EventToolDenied).Message, "nobody answered before 2026-01-03T03:04:05Z")
	s.decides("1-a", v1alpha1.AnswerApprove, "")
	if a := s.request("1-a").Answer; a.Answer != v1alpha1.AnswerDeny {
		t.Error("a decision after the deadline counts")
	}
	s.wantMessage(s.lastEntry(v1alpha1.EventDecisionIgnored).Message, "1-a")
}

// No daemon can make a call wait for ever, or give it a time that cannot be.
func TestADeadlineIsBounded(t *testing.T) {
	s := running(t).asks("1-a", func(q *history.ToolRequest) {
		q.Since, q.Deadline = s0.Add(time.Hour), s0.Add(1000*24*time.Hour)
	})
	if r := s.request("1-a"); r.Deadline.Sub(s.now) > maxApprovalWait || r.Since.After(s.now) {
		t.Errorf("the request is %+v", r)
	}
}

// s0 is when scenes begin.
var s0 = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func TestADecisionCountsOnceAndNeverBeforehand(t *testing.T) {
	s := running(t).decides("1-a", v1alpha1.AnswerApprove, "in advance")
	s.wantMessage(s.lastEntry(v1alpha1.EventDecisionIgnored).Message, "no call waits for the decisions about 1-a")
	writes := s.writes
	s.after(time.Second).step()
	if n := len(s.entries(v1alpha1.EventDecisionIgnored)); n != 1 || s.writes != writes {
		t.Errorf("it is told %d times", n)
	}
	s.asks("1-a")
	if s.request("1-a").Answer != nil {
		t.Error("a decision that was there before the request counts")
	}
	s.change(func(t *v1alpha1.Task) { t.Spec.Decisions = nil }).step()
	if len(s.status().HandledDecisions) != 0 {
		t.Error("a decision that is gone is remembered")
	}
	s.decides("1-a", v1alpha1.AnswerApprove, "now")
	if s.request("1-a").Answer == nil {
		t.Error("the decision does not count")
	}
	s.waitsNoLonger("1-a").asks("1-b")
	s.change(func(t *v1alpha1.Task) { t.Spec.Decisions[0].Answer = v1alpha1.AnswerDeny }).step()
	if s.request("1-b").Answer != nil {
		t.Error("a decision about another request counts")
	}
	s.wantState(v1alpha1.ReasonWaitingForApproval)
}

func TestWhoDecidedIsWhomTheAPIServerNames(t *testing.T) {
	s := running(t).asks("1-a")
	s.o.Stamped = false
	s.change(func(t *v1alpha1.Task) {
		t.Spec.Decisions = []v1alpha1.Decision{{RequestID: "1-a", Answer: v1alpha1.AnswerApprove, DecidedBy: "the-president"}}
		t.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "kubectl-edit", Operation: metav1.ManagedFieldsOperationUpdate, Time: &metav1.Time{Time: s.now},
			FieldsType: "FieldsV1", FieldsV1: metav1.NewFieldsV1(`{"f:spec":{"f:decisions":{"k:{\"requestID\":\"1-a\"}":{"f:answer":{}}}}}`)}}
	}).step()
	if by := s.request("1-a").Answer.By; by != "kubectl-edit (field manager)" {
		t.Errorf("who decided is %q", by)
	}
}

func TestTheTimeOfAWaitDoesNotCount(t *testing.T) {
	s := running(t, builders.Deadline(600)).runs(5 * time.Minute)
	s.asks("1-a").runs(10 * time.Hour)
	s.wantState(v1alpha1.ReasonWaitingForApproval)
	s.asks("1-b").decides("1-a", v1alpha1.AnswerApprove, "").waitsNoLonger("1-a").runs(time.Hour)
	s.wantState(v1alpha1.ReasonWaitingForApproval)
	s.decides("1-b", v1alpha1.AnswerDeny, "").waitsNoLonger("1-b")
	if got := s.lastAttempt(); got.WaitedSeconds != 11*3600 || got.WaitingSince != nil {
		t.Errorf("it has waited for %d seconds, and waits since %v", got.WaitedSeconds, got.WaitingSince)
	}
	if at := s.plans[len(s.plans)-1].RequeueAfter; at != 5*time.Minute {
		t.Errorf("the deadline is looked at again after %s, want 5m", at)
	}
	s.runs(5*time.Minute - time.Second)
	s.wantState(v1alpha1.ReasonRunning)
	s.runs(time.Second)
	s.wantState(v1alpha1.ReasonStopping)
	s.stopped(0)
	s.wantActive(600)
	s.wantState(v1alpha1.ReasonDeadlineExceeded)
}

func TestAWaitThatAnEndCutsOffDoesNotCount(t *testing.T) {
	s := running(t).runs(time.Minute).asks("1-a").runs(time.Hour)
	s.change(builders.Suspended).step()
	s.stopped(0)
	s.wantActive(60)
}

func TestACallWhoseAttemptEndsIsAskedAboutAnew(t *testing.T) {
	s := running(t).asks("1-a")
	s.podGone()
	s.wantEntries(v1alpha1.EventTaskStarted, v1alpha1.EventApprovalRequested, v1alpha1.EventRequestWithdrawn, v1alpha1.EventPodLost, v1alpha1.EventTaskRetried)
	if s.status().Requests != nil {
		t.Errorf("the status still lists %+v", s.status().Requests)
	}
	s.prepared(daemonapi.PrepareResult{Reason: v1alpha1.ReasonWorkspacePrepared})
	s.agentRuns()
	s.step()
	if s.status().Requests != nil {
		t.Errorf("the request of the lost attempt is listed again: %+v", s.status().Requests)
	}
	s.o.History.State.Requests = nil
	s.asks("2-a").decides("1-a", v1alpha1.AnswerApprove, "for the former one")
	if s.request("2-a").Answer != nil {
		t.Error("a decision about the former request counts")
	}
}

func TestACallThatIsGivenUpIsWithdrawn(t *testing.T) {
	s := running(t).asks("1-a").waitsNoLonger("1-a")
	s.wantEntries(v1alpha1.EventTaskStarted, v1alpha1.EventApprovalRequested, v1alpha1.EventRequestWithdrawn)
	s.wantState(v1alpha1.ReasonRunning)
}

// While the store cannot be asked, or lacks what it had, nothing is taken for given up, and answers count.
func TestRequestsOutliveTheHistoryStore(t *testing.T) {
	s := running(t)
	s.o.History.State.LastSequence = 9
	s.asks("1-a")
	s.o.History = History{}
	s.after(time.Minute).step()
	if s.request("1-a") == nil {
		t.Fatal("the request is gone with the store")
	}
	s.o.History = History{Known: true, State: history.TaskState{Attempt: 1, LastSequence: 3}}
	s.after(time.Minute).step()
	if s.request("1-a") == nil {
		t.Fatal("the request is gone with what the store has lost")
	}
	s.decides("1-a", v1alpha1.AnswerDeny, "")
	if s.request("1-a").Answer == nil {
		t.Error("no answer counts")
	}
}

func TestATaskWhoseAgentIsStoppedForACallWaitsWithoutAPod(t *testing.T) {
	s := running(t).asks("1-a", stopsAgent)
	s.wantEntries(v1alpha1.EventTaskStarted)
	s.agentIsStopped()
	s.wantState(v1alpha1.ReasonWaitingForApproval)
	s.wantOutcomes(v1alpha1.AttemptStopped)
	s.wantEntries(v1alpha1.EventTaskStarted, v1alpha1.EventApprovalRequested)
	if state := StateAfter(s.status(), s.lastEntry(v1alpha1.EventApprovalRequested)); state != stateWaiting {
		t.Errorf("the history has the task as %q", state)
	}
	if HoldsPlace(s.o.Task) {
		t.Error("the task holds its place while it waits")
	}
	if s.status().Failures != 0 {
		t.Error("it counts as a failure")
	}
	s.after(time.Hour).step()
	s.wantState(v1alpha1.ReasonWaitingForApproval)
	s.decides("1-a", v1alpha1.AnswerApprove, "go on")
	pod := s.wantStarted(2)
	want := daemonapi.RequestAnswer{ID: "1-a", Tool: "Bash", InputDigest: "digest-of-1-a", Approved: true, Prompt: pod.Prompt}
	if !slices.Equal(pod.Answers, []daemonapi.RequestAnswer{want}) {
		t.Errorf("the pod is told %+v, want %+v", pod.Answers, want)
	}
	s.wantMessage(pod.Prompt, "your call of Bash", "alice has approved it", "go on", "let through once")
	s.wantEntries(v1alpha1.EventTaskStarted, v1alpha1.EventApprovalRequested, v1alpha1.EventToolApproved, v1alpha1.EventTaskResumed)

	// A pod that is lost before its agent has started has told nothing.
	s.podGone()
	if pod := s.wantStarted(3); len(pod.Answers) != 1 {
		t.Errorf("the pod after the lost one is told %+v", pod.Answers)
	}
	s.begins()
	if s.status().Requests != nil {
		t.Errorf("the status still lists %+v", s.status().Requests)
	}
	s.podGone()
	s.after(time.Hour).step()
	if pod := s.wantStarted(4); pod.Answers != nil || pod.Prompt != "" {
		t.Errorf("the answer is told again: %+v", pod)
	}
}

func TestADenialIsToldToTheNextAttempt(t *testing.T) {
	s := running(t).asks("1-a", stopsAgent).agentIsStopped().after(24 * time.Hour).step()
	pod := s.wantStarted(2)
	if len(pod.Answers) != 1 || pod.Answers[0].Approved {
		t.Errorf("the pod is told %+v", pod.Answers)
	}
	s.wantMessage(pod.Prompt, "clew has denied it (nobody answered before 2026-01-03T03:04:05Z)", "Do not make that call again")
}

// An agent without hooks that makes a refused call again and again ends at its backoff limit.
func TestARefusedCallOfAnAgentWithoutHooksIsAFailure(t *testing.T) {
	refuse := func(q *history.ToolRequest) {
		q.StopsAgent, q.Refused = true, "A rule of this task refuses the call: never"
	}
	s := running(t, builders.BackoffLimit(1)).asks("1-a", refuse).agentIsStopped()
	s.wantEntries(v1alpha1.EventTaskStarted, v1alpha1.EventToolDenied)
	s.wantOutcomes(v1alpha1.AttemptAgentFailed)
	s.wantState(v1alpha1.ReasonRetrying)
	s.after(s.plans[len(s.plans)-1].RequeueAfter).step()
	s.wantMessage(s.wantStarted(2).Prompt, "clew has denied it (A rule of this task refuses the call: never)")
	s.begins()
	s.o.History.State.Requests = nil
	s.asks("2-a", refuse).agentIsStopped()
	s.wantStatus(v1alpha1.TaskSucceeded, metav1.ConditionFalse, v1alpha1.ReasonBackoffLimit, "stopped at its call of Bash", "never")
}

func TestASuspendedTaskWaitsOn(t *testing.T) {
	s := running(t).asks("1-a", stopsAgent).agentIsStopped()
	s.change(builders.Suspended).step()
	s.wantState(v1alpha1.ReasonSuspended)
	s.change(builders.Running).step()
	s.wantState(v1alpha1.ReasonWaitingForApproval)
	s.change(builders.Suspended).step().decides("1-a", v1alpha1.AnswerApprove, "")
	s.wantState(v1alpha1.ReasonSuspended)
	s.change(builders.Running).step()
	if pod := s.wantStarted(2); len(pod.Answers) != 1 {
		t.Errorf("the pod is told %+v", pod.Answers)
	}
}

func TestARewindTakesACallBack(t *testing.T) {
	for name, option := range map[string]func(*history.ToolRequest){"whose agent was stopped": stopsAgent, "that waits in its hook": func(*history.ToolRequest) {}} {
		t.Run(name, func(t *testing.T) {
			s := running(t)
			s.record(v1alpha1.TriggerInterval)
			s.step()
			s.asks("1-a", option)
			if s.request("1-a").Waits == v1alpha1.WaitTask {
				s.agentIsStopped()
			}
			s.rewind("back", 1).step()
			if s.request("1-a") != nil && s.request("1-a").Waits == v1alpha1.WaitTask {
				t.Errorf("the request is still there: %+v", s.request("1-a"))
			}
			if len(s.o.Pods) > 0 && s.pod().DeletionTimestamp != nil {
				s.stopped(0)
			}
			if s.request("1-a") != nil {
				t.Errorf("the request is still there: %+v", s.request("1-a"))
			}
			if len(s.entries(v1alpha1.EventRequestWithdrawn)) != 1 {
				t.Errorf("the history is %+v", s.status().History)
			}
			if pod := s.started(); pod == nil || pod.Operation == nil || pod.Answers != nil {
				t.Errorf("the pod of the rewind is %+v", pod)
			}
		})
	}
}

// TestACallOfAnAgentThatIsStoppedForARewindIsWithdrawnOnce: its daemon reports it until it has ended.
func TestACallOfAnAgentThatIsStoppedForARewindIsWithdrawnOnce(t *testing.T) {
	s := running(t)
	s.record(v1alpha1.TriggerInterval)
	s.rewind("back", 1).step()
	s.asks("1-a", stopsAgent).stopped(0)
	if n := len(s.entries(v1alpha1.EventRequestWithdrawn)); n != 1 || s.request("1-a") != nil {
		t.Errorf("it was withdrawn %d times: %+v", n, s.status().Requests)
	}
	if pod := s.started(); pod == nil || pod.Operation == nil {
		t.Errorf("the pod of the rewind is %+v", pod)
	}
}

// However many calls begin to wait or are answered at once, the outbox is not filled by one decision.
func TestManyRequestsAreFollowedInSteps(t *testing.T) {
	s := running(t)
	s.o.History.State.Attempt = 1
	for i := range 16 {
		s.o.History.State.Requests = append(s.o.History.State.Requests, history.ToolRequest{ID: fmt.Sprintf("1-%d", i), Attempt: 1, Tool: "Bash", Since: s.now, Deadline: s.now.Add(time.Hour)})
	}
	for range 8 {
		p := Decide(s.o, s.now)
		if len(p.Entries) > maxRequestSteps {
			t.Fatalf("one decision has %d entries", len(p.Entries))
		}
		s.carryOut(p)
	}
	if n := len(s.status().Requests); n != 16 {
		t.Errorf("%d requests are listed", n)
	}
	s.wantStatus(v1alpha1.TaskSucceeded, metav1.ConditionUnknown, v1alpha1.ReasonWaitingForApproval, "and 15 more wait")
}

// A full list keeps what it has: a request that was taken off it would be listed again without its answer.
func TestAFullListOfRequestsKeepsThem(t *testing.T) {
	s := running(t)
	s.o.History.State.Attempt = 1
	for i := range v1alpha1.MaxRequests + 8 {
		s.o.History.State.Requests = append(s.o.History.State.Requests, history.ToolRequest{ID: fmt.Sprintf("1-%d", i), Attempt: 1, Tool: "Bash", Since: s.now, Deadline: s.now.Add(time.Hour)})
	}
	for range 20 {
		s.step()
	}
	if n := len(s.status().Requests); n != v1alpha1.MaxRequests {
		t.Errorf("%d requests are listed", n)
	}
	s.decides("1-1", v1alpha1.AnswerApprove, "")
	s.step()
	if r := s.request("1-1"); r == nil || r.Answer == nil {
		t.Errorf("the answered request is %+v", r)
	}
	for range 8 {
		s.waitsNoLonger("1-1")
	}
	if s.request("1-32") == nil || s.request("1-33") != nil {
		t.Errorf("the place of an answered request is not taken by the next: %+v", s.status().Requests)
	}
}

// What a daemon reports comes from a pod: ids that nobody could name are not listed, and texts are bounded.
func TestRequestsOfAPodAreNotTrusted(t *testing.T) {
	s := running(t)
	for _, id := range []string{"", "-a", "a b", "../x", strings.Repeat("x", 64)} {
		s.asks(id)
	}
	if s.status().Requests != nil {
		t.Errorf("the status lists %+v", s.status().Requests)
	}
	s.asks("1-a", func(q *history.ToolRequest) {
		q.Tool, q.Input, q.Message, q.InputDigest = strings.Repeat("t", 5000), strings.Repeat("\x1b", 5000), strings.Repeat("m", 5000), strings.Repeat("d", 5000)
	})
	r := s.request("1-a")
	if len([]rune(r.Tool)) > 256 || len([]rune(r.Input)) > 1024 || len([]rune(r.Message)) > 512 || len([]rune(r.InputDigest)) > 64 || strings.Contains(r.Input, "\x1b") {
		t.Errorf("the request is %+v", r)
	}
}
