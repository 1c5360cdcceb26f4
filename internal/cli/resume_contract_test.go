package cli

import (
	"strings"
	"testing"

	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/testing/builders"
)

// spentContract creates a supervisor and its children after all was spent that its contract may: two of them are
// stopped for that, one also for its own budget, one was suspended by somebody, one has completed, and one has
// yet to start.
func (b *bench) spentContract() *v1alpha1.Task {
	b.Helper()
	lead := b.member("lead", nil, v1alpha1.ReasonBudgetExceeded, func(t *v1alpha1.Task) {
		t.Spec.Contract.Budget = &v1alpha1.Budget{CostMicroUSD: ptr.To[int64](20_000_000), ToolCalls: ptr.To[int64](900)}
	})
	lead.Status.Contract.Spent = &v1alpha1.Spent{CostMicroUSD: 20_100_000}
	b.try(server.Client.Status().Update(b.ctx, lead))
	started := func(t *v1alpha1.Task) *v1alpha1.Task {
		t.Status.Attempts = []v1alpha1.Attempt{{Number: 1, PodName: t.Name + "-1", Trigger: v1alpha1.AttemptStart, Outcome: v1alpha1.AttemptLimitReached}}
		b.try(server.Client.Status().Update(b.ctx, t))
		return t
	}
	started(b.member("lead-a", lead, v1alpha1.ReasonBudgetExceeded))
	started(b.member("lead-b", lead, v1alpha1.ReasonBudgetExceeded))
	own := b.member("lead-own", lead, v1alpha1.ReasonBudgetExceeded, builders.ToolCallBudget(10))
	own.Status.Spent = &v1alpha1.Spent{ToolCalls: 10}
	started(own)
	started(b.member("lead-paused", lead, v1alpha1.ReasonBudgetExceeded, builders.Suspended))
	started(b.member("lead-done", lead, v1alpha1.ReasonCompleted))
	b.member("lead-next", lead, v1alpha1.ReasonBudgetExceeded)
	return lead
}

// resumed returns which tasks are asked to go on.
func (b *bench) resumed() string {
	b.Helper()
	list := &v1alpha1.TaskList{}
	b.try(server.Client.List(b.ctx, list, client.InNamespace(b.namespace)))
	var names []string
	for _, t := range list.Items {
		if t.Spec.Resume != nil {
			names = append(names, t.Name)
		}
	}
	return strings.Join(names, " ")
}

func TestAContractsBudgetIsRaisedWithTheResumeOfItsSupervisor(t *testing.T) {
	b := newBench(t)
	lead := b.spentContract()
	for _, args := range [][]string{nil, {"--contract-budget", "costMicroUSD=20100000"}, {"--with-contract"}} {
		_, _, err := b.clew("", append([]string{"resume", "lead"}, args...)...)
		wantError(t, err, "task lead cannot continue: the tasks of the contract port have spent")
		wantError(t, err, "raise it with --contract-budget costMicroUSD=NUMBER")
	}
	_, errOut := b.must("resume", "lead", "--contract-budget", "costMicroUSD=40000000", "--wait=false")
	wantParts(t, "what is said of the others", errOut,
		"Of the contract port, 4 tasks are still stopped by a budget; --with-contract resumes those that only the contract's budget has stopped:",
		"\n  kubectl clew resume lead-a -n "+b.namespace+"\n", "\n  kubectl clew resume lead-b -n "+b.namespace+"\n",
		"\n  kubectl clew resume lead-own -n "+b.namespace+" --budget toolCalls=NUMBER   # the task has spent 10 of the 10 tool calls",
		"\n  kubectl clew resume lead-paused -n "+b.namespace+"   # somebody has suspended it")
	b.get(lead)
	if c := lead.Spec.Contract.Budget; *c.CostMicroUSD != 40_000_000 || *c.ToolCalls != 900 {
		t.Errorf("the contract's budget is %+v", c)
	}
	wantText(t, "the tasks that go on", "lead", b.resumed())
}

func TestAContractGoesOnWithOneCommand(t *testing.T) {
	b := newBench(t)
	lead := b.spentContract()
	args := []string{"resume", "lead", "--contract-budget", "costMicroUSD=40000000", "--with-contract", "--wait=false"}
	out, errOut := b.must(append(args, "--dry-run")...)
	wantParts(t, "the dry run", out, "Resumes, of the contract port, as well: lead-a, lead-b\n", "task.clew.dev/lead-a resume requested (server dry run)")
	wantParts(t, "what is said of the others", errOut, "Of the contract port, 2 tasks are still stopped by a budget:\n", "lead-own", "lead-paused")
	wantText(t, "the tasks that go on after a dry run", "", b.resumed())

	out, errOut = b.must(args...)
	wantText(t, "output", "task.clew.dev/lead-a resume requested\ntask.clew.dev/lead-b resume requested\ntask.clew.dev/lead resume requested\n", out)
	wantParts(t, "what is said before", errOut, "Resumes, of the contract port, as well: lead-a, lead-b\n")
	wantText(t, "the tasks that go on", "lead lead-a lead-b", b.resumed())

	// It was interrupted after the supervisor's resume, and is run again.
	b.get(lead)
	setSucceeded(lead, v1alpha1.ReasonRunning)
	b.try(server.Client.Status().Update(b.ctx, lead))
	out, errOut = b.must(append(args, "--contract-budget", "costMicroUSD=50000000")...)
	wantParts(t, "what is said", errOut, "Task lead is active already (Running), and goes on.")
	wantText(t, "output", "task.clew.dev/lead-a resume requested\ntask.clew.dev/lead-b resume requested\ntask.clew.dev/lead budget of the contract port set\n", out)
	generation := lead.Spec.Resume.ID
	if b.get(lead); *lead.Spec.Contract.Budget.CostMicroUSD != 50_000_000 || lead.Spec.Resume.ID != generation {
		t.Errorf("the budget is %+v, the resume %+v", lead.Spec.Contract.Budget, lead.Spec.Resume)
	}

	// Its own limits are raised as well; how it is to go on cannot be said any more.
	out, _ = b.must(append(args, "--budget", "toolCalls=9000", "--deadline-seconds", "7200")...)
	wantParts(t, "output", out, "task.clew.dev/lead its own limits are set\n")
	if b.get(lead); *lead.Spec.Budget.ToolCalls != 9000 || *lead.Spec.DeadlineSeconds != 7200 {
		t.Errorf("the budget is %+v, the deadline %v", lead.Spec.Budget, lead.Spec.DeadlineSeconds)
	}
	for _, flag := range [][]string{{"--additional-context", "x"}, {"--on-drift", "preserve"}, {"--context-messages", "5"}} {
		_, _, err := b.clew("", append(args, flag...)...)
		wantError(t, err, "task lead is already active (Running), so there is nothing to resume")
	}
}

func TestWhoseContractIsNotResumed(t *testing.T) {
	b := newBench(t)
	lead := b.spentContract()
	lead.Status.Contract.LeadingSince = ptr.To(lead.CreationTimestamp)
	b.try(server.Client.Status().Update(b.ctx, lead))
	b.member("second", nil, v1alpha1.ReasonWaitingForContract)
	for text, args := range map[string][]string{
		"task lead-a leads no contract; --contract-budget and --with-contract are for the supervisor":                   {"lead-a", "--with-contract"},
		"the contract port is led by task lead, and only the budget of that one counts; run `kubectl clew resume lead ": {"second", "--contract-budget", "toolCalls=5000"},
		"--contract-budget has dollars=5; it must be one or more of inputTokens":                                        {"lead", "--contract-budget", "dollars=5"},
		"--with-contract resumes them; remove one of the two":                                                           {"lead", "--with-contract", "--mode", "RestartPhase"},
		"--contract-budget has toolCalls=0; it must be":                                                                 {"lead", "--contract-budget", "toolCalls=0"},
	} {
		_, _, err := b.clew("", append([]string{"resume"}, args...)...)
		wantError(t, err, text)
	}
}
