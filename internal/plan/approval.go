package plan

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/daemonapi"
	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/resources"
)

// A rule of the task may have a person asked about a tool call. The daemon reports the call, and the
// status lists it until it has its answer: from spec.decisions, or from its deadline. The call either
// waits in the hook of its agent, or the agent was stopped for it, and the next attempt is told the
// answer. The status alone says what was answered: a daemon, and the next pod, follow that.

const (
	// maxRequestSteps bounds how many requests one decision adds or answers, each with an entry.
	maxRequestSteps = 4
	// maxRequestText and maxToolText bound what is kept of a request, in characters.
	maxRequestText, maxToolText = 1024, 256
	// maxReason is the length of a reason that the schema allows, in characters.
	maxReason = 512
	// maxApprovalWait is the longest deadline that the schema allows.
	maxApprovalWait = 14 * 24 * time.Hour
)

// requestID matches the ids that spec.decisions can name.
var requestID = regexp.MustCompile(`^[A-Za-z0-9]([-A-Za-z0-9._]{0,61}[A-Za-z0-9])?$`)

// followRequests notes the calls that wait for an answer, and answers those that somebody has decided on
// or whose deadline has passed.
func (d *decision) followRequests() {
	steps := maxRequestSteps
	d.noteRequests(&steps)
	d.noteWaiting()
	d.followDecisions(&steps)
	d.passDeadlines(&steps)
	d.noteWaiting()
	if steps == 0 {
		d.requeue(0)
	}
}

// noteRequests makes the status list the requests of the active attempt as its daemon reports them. One
// that the daemon reports no longer was answered, or its call was given up. While the list is full,
// further ones wait unlisted: taking one off that waits would lose its answer.
func (d *decision) noteRequests(steps *int) {
	a, state, behind := d.active(), d.o.History.State, d.behind()
	if a == nil || !d.o.History.Known || state.Attempt != a.Number {
		return
	}
	d.dropRequests(func(r v1alpha1.ToolRequest) bool {
		return !behind && r.Attempt == a.Number && r.Waits == v1alpha1.WaitCall &&
			!slices.ContainsFunc(state.Requests, func(q history.ToolRequest) bool { return q.ID == r.ID })
	})
	for _, q := range state.Requests {
		if *steps == 0 || len(d.s.Requests) >= v1alpha1.MaxRequests {
			return
		}
		if behind && !q.StopsAgent {
			continue // it may have ended since
		}
		if q.Attempt == a.Number && requestID.MatchString(q.ID) && findRequest(d.s.Requests, q.ID) == nil {
			d.addRequest(q)
			*steps--
		}
	}
}

// findRequest returns the request with an id; nil if there is none.
func findRequest(list []v1alpha1.ToolRequest, id string) *v1alpha1.ToolRequest {
	if i := slices.IndexFunc(list, func(r v1alpha1.ToolRequest) bool { return r.ID == id }); i >= 0 {
		return &list[i]
	}
	return nil
}

// addRequest adds a request to the status. One for which the agent is stopped gets its entry when the
// attempt ends.
func (d *decision) addRequest(q history.ToolRequest) {
	deadline := q.Deadline
	if latest := d.now.Add(maxApprovalWait); deadline.After(latest) {
		deadline = latest
	}
	r := v1alpha1.ToolRequest{
		ID: q.ID, Attempt: q.Attempt, Tool: resources.PlainText(q.Tool, maxToolText), Input: resources.PlainText(q.Input, maxRequestText),
		InputDigest: resources.PlainText(q.InputDigest, 64), Message: resources.PlainText(q.Message, maxReason), Waits: v1alpha1.WaitCall,
		Since: metav1.NewTime(q.Since), Deadline: metav1.NewTime(deadline),
	}
	if q.Since.After(d.now) {
		r.Since = metav1.NewTime(d.now)
	}
	if q.StopsAgent {
		r.Waits = v1alpha1.WaitTask
	}
	d.s.Requests = append(d.s.Requests, r)
	switch {
	case q.Refused != "":
		d.answerRequest(&d.s.Requests[len(d.s.Requests)-1], v1alpha1.AnswerDeny, clew, q.Refused)
	case !q.StopsAgent:
		d.addRequestEntry(r)
	}
}

// addRequestEntry adds the entry about a request that waits.
func (d *decision) addRequestEntry(r v1alpha1.ToolRequest) {
	message := fmt.Sprintf("request %s: the call of %s waits for an answer until %s", r.ID, r.Tool, r.Deadline.UTC().Format(time.RFC3339))
	if r.Message != "" {
		message += " (" + r.Message + ")"
	}
	d.addAttemptEntry(r.Attempt, v1alpha1.EventApprovalRequested, clew, message+": "+r.Input)
}

// answerRequest gives a request its answer.
func (d *decision) answerRequest(r *v1alpha1.ToolRequest, answer v1alpha1.Answer, by, why string) {
	why = resources.PlainText(why, maxReason)
	r.Answer = &v1alpha1.RequestAnswer{Answer: answer, By: by, Reason: why, Time: metav1.NewTime(d.now)}
	reason, verb := v1alpha1.EventToolApproved, "approved"
	if answer == v1alpha1.AnswerDeny {
		reason, verb = v1alpha1.EventToolDenied, "denied"
	}
	message := fmt.Sprintf("request %s: the call of %s was %s", r.ID, r.Tool, verb)
	if why != "" {
		message += ": " + why
	}
	d.addAttemptEntry(r.Attempt, reason, by, message)
	d.noteAnswered(r)
}

// followDecisions answers requests as spec.decisions says. A decision counts when it is seen first: one
// for which no request waits then does nothing, now and later.
func (d *decision) followDecisions(steps *int) {
	named := func(id string) bool {
		return slices.ContainsFunc(d.task.Spec.Decisions, func(c v1alpha1.Decision) bool { return c.RequestID == id })
	}
	d.s.HandledDecisions = slices.DeleteFunc(d.s.HandledDecisions, func(id string) bool { return !named(id) })
	var ignored []string
	for _, c := range d.task.Spec.Decisions {
		if slices.Contains(d.s.HandledDecisions, c.RequestID) {
			continue
		}
		if r := findRequest(d.s.Requests, c.RequestID); r != nil && r.Answer == nil {
			if *steps == 0 {
				break
			}
			*steps--
			d.answerRequest(r, c.Answer, d.decider(c), c.Reason)
		} else {
			ignored = append(ignored, c.RequestID)
		}
		d.s.HandledDecisions = append(d.s.HandledDecisions, c.RequestID)
	}
	if len(d.s.HandledDecisions) == 0 {
		d.s.HandledDecisions = nil
	}
	if len(ignored) > 0 {
		d.addEntry(v1alpha1.EventDecisionIgnored, clew, fmt.Sprintf(
			"no call waits for the decisions about %s: they do nothing; status.requests has the ids of those that wait", strings.Join(ignored, ", ")))
	}
}

// decider returns who has decided.
func (d *decision) decider(c v1alpha1.Decision) string {
	stamp := ""
	if d.o.Stamped {
		stamp = c.DecidedBy
	}
	return actorOf(Requester(d.task, stamp, "spec", "decisions", fieldpath.KeyByFields("requestID", c.RequestID), "answer"))
}

// passDeadlines denies the calls for which nobody has decided in time.
func (d *decision) passDeadlines(steps *int) {
	for i := range d.s.Requests {
		r := &d.s.Requests[i]
		switch {
		case r.Answer != nil:
		case d.now.Before(r.Deadline.Time):
			d.requeueAt(r.Deadline.Time)
		case *steps > 0:
			*steps--
			d.answerRequest(r, v1alpha1.AnswerDeny, clew, "nobody answered before "+r.Deadline.UTC().Format(time.RFC3339))
		}
	}
}

// dropRequests removes requests, with an entry for each that has no answer.
func (d *decision) dropRequests(drop func(v1alpha1.ToolRequest) bool) {
	for _, r := range d.s.Requests {
		if drop(r) && r.Answer == nil {
			d.addAttemptEntry(r.Attempt, v1alpha1.EventRequestWithdrawn, clew, fmt.Sprintf("request %s: the call of %s waits for an answer no longer", r.ID, r.Tool))
		}
	}
	if d.s.Requests = slices.DeleteFunc(d.s.Requests, drop); len(d.s.Requests) == 0 {
		d.s.Requests = nil
	}
}

// endRequests does what the end of an attempt means for its requests: calls that waited in a hook are
// gone with it, and those for which the agent was stopped wait on.
func (d *decision) endRequests(a *v1alpha1.Attempt) {
	d.settleWait(a, d.agentSeenOr(a))
	a.WaitingSince = nil
	d.dropRequests(func(r v1alpha1.ToolRequest) bool { return r.Attempt == a.Number && r.Waits == v1alpha1.WaitCall })
	for _, r := range d.s.Requests {
		if r.Attempt == a.Number && r.Answer == nil {
			d.addRequestEntry(r)
		}
	}
}

// stoppedFor returns the request for which the agent of an attempt was stopped; nil if it was not.
func (d *decision) stoppedFor(a *v1alpha1.Attempt) *v1alpha1.ToolRequest {
	if i := slices.IndexFunc(d.s.Requests, func(r v1alpha1.ToolRequest) bool {
		return r.Attempt == a.Number && r.Waits == v1alpha1.WaitTask
	}); i >= 0 {
		return &d.s.Requests[i]
	}
	return nil
}

// stoppedEnding returns the ending of an agent that was stopped for a call. An agent whose call a rule
// refuses has failed, so that one which repeats it for ever ends.
func (d *decision) stoppedEnding(code int32, r *v1alpha1.ToolRequest) *ending {
	refused := slices.ContainsFunc(d.o.History.State.Requests, func(q history.ToolRequest) bool { return q.ID == r.ID && q.Refused != "" })
	if refused {
		return ptr.To(d.failedEnding(code, fmt.Sprintf("the agent was stopped at its call of %s: %s", r.Tool, r.Answer.Reason)))
	}
	return &ending{outcome: v1alpha1.AttemptStopped, reason: v1alpha1.ReasonWaitingForApproval,
		message: fmt.Sprintf("the agent was stopped at its call of %s, about which a person is asked (request %s)", r.Tool, r.ID)}
}

// awaitsAnswer reports whether the task waits for an answer before its agent starts again.
func (d *decision) awaitsAnswer() bool {
	open := d.openRequests()
	if len(open) == 0 {
		return false
	}
	d.wait(v1alpha1.ReasonWaitingForApproval, d.approvalMessage(open))
	return true
}

// openRequests returns those that have no answer.
func (d *decision) openRequests() (open []v1alpha1.ToolRequest) {
	for _, r := range d.s.Requests {
		if r.Answer == nil {
			open = append(open, r)
		}
	}
	return open
}

// approvalMessage says which calls wait, and what to do.
func (d *decision) approvalMessage(open []v1alpha1.ToolRequest) string {
	first, more := open[0], ""
	if n := len(open) - 1; n > 0 {
		more = fmt.Sprintf(", and %d more wait", n)
	}
	return fmt.Sprintf("the call of %s waits for an answer (request %s)%s: run kubectl clew approve %s %s, or deny; it is denied at %s",
		first.Tool, first.ID, more, d.task.Name, first.ID, first.Deadline.UTC().Format(time.RFC3339))
}

// withdrawRewound withdraws the requests for which the agent was stopped when the task is rewound, also by a
// resume for which the agent is still to end.
func (d *decision) withdrawRewound() {
	if d.rewinding() || d.resuming() && d.s.Resume.Phase != "" && d.s.Resume.Attempt == 0 {
		d.withdrawStopped()
	}
}

// withdrawStopped withdraws the requests for which the agent was stopped, also those that have their
// answer: the task goes back, which takes their calls back. As long as the agent has not ended, its daemon
// would report them again.
func (d *decision) withdrawStopped() {
	a := d.active()
	d.dropRequests(func(r v1alpha1.ToolRequest) bool {
		return r.Waits == v1alpha1.WaitTask && (a == nil || r.Attempt != a.Number)
	})
}

// forgetTold forgets the requests for which an agent was stopped before one that has begun since, as status
// or history show: that one was told the answers, which are good for it alone. Nobody may have seen its
// pod, and a status that was restored from an older copy may not even have the answers.
func (d *decision) forgetTold() {
	begun := d.o.History.State.AgentAttempt
	for _, a := range d.s.Attempts {
		if a.AgentStartTime != nil {
			begun = max(begun, a.Number)
		}
	}
	d.dropRequests(func(r v1alpha1.ToolRequest) bool { return r.Waits == v1alpha1.WaitTask && r.Attempt < begun })
}

// answersBlocker returns why no agent can be told the answers that there are; nil if it can. Waiting costs
// nothing: without the history store no pod can be prepared either.
func (d *decision) answersBlocker() *Blocker {
	if d.o.History.Known || len(d.answers()) == 0 {
		return nil
	}
	return &Blocker{v1alpha1.ReasonPending, "waiting for the history store, which knows whether an agent was told the answers to its calls"}
}

// answers returns what the agent of the next pod is told about calls for which it was stopped.
func (d *decision) answers() (told []daemonapi.RequestAnswer) {
	for _, r := range d.s.Requests {
		if r.Waits == v1alpha1.WaitTask && r.Answer != nil {
			told = append(told, daemonapi.RequestAnswer{
				ID: r.ID, Tool: r.Tool, InputDigest: r.InputDigest, Approved: r.Answer.Answer == v1alpha1.AnswerApprove, Prompt: answerPrompt(r),
			})
		}
	}
	return told
}

// nextPrompt returns what replaces the task's prompt for the agent of the next pod: the prompt of the
// last resume, or the answers to calls for which it was stopped; "" for neither.
func (d *decision) nextPrompt() string {
	told := d.answers()
	if len(told) == 0 {
		return d.prompt()
	}
	var prompts []string
	if prompt := d.prompt(); prompt != "" && d.resuming() {
		prompts = append(prompts, prompt)
	}
	for _, a := range told {
		prompts = append(prompts, a.Prompt)
	}
	return strings.Join(prompts, "\n\n")
}

// answerPrompt tells an agent that was stopped at a call what was answered.
func answerPrompt(r v1alpha1.ToolRequest) string {
	because := ""
	if r.Answer.Reason != "" {
		because = " (" + r.Answer.Reason + ")"
	}
	if r.Answer.Answer == v1alpha1.AnswerApprove {
		return fmt.Sprintf("You were stopped at your call of %s, since a person had to be asked. %s has approved it%s. It may not have been carried out: check, and if so make exactly the same call again, which is let through once. Then continue the task.",
			r.Tool, r.Answer.By, because)
	}
	return fmt.Sprintf("You were stopped at your call of %s, and %s has denied it%s. Do not make that call again. Continue the task without it.", r.Tool, r.Answer.By, because)
}
