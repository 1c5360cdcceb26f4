package plan

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/budget"
	"github.com/clew-dev/clew/internal/daemonapi"
	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/testing/builders"
)

// calls lets the history know of so many calls in all.
func (s *scene) calls(n int64) *scene {
	s.Helper()
	s.o.History.State.Spent.ToolCalls = n
	return s.step()
}

// endedForBudget ends the agent as its daemon does when a budget is spent.
func (s *scene) endedForBudget(why string) *scene {
	s.Helper()
	s.o.History.State.AgentEnd = &history.AgentEnd{Attempt: s.lastAttempt().Number, ExitCode: 143, Cause: "BudgetSpent", Message: why}
	s.record(v1alpha1.TriggerSuspend)
	s.agentExits(143)
	s.podFinishes()
	return s
}

const tenSpent = "the task has spent 10 of the 10 tool calls that budget.toolCalls allows"

// spentTask returns a task whose agent was stopped at a budget of ten calls.
func spentTask(t *testing.T, options ...builders.TaskOption) *scene {
	t.Helper()
	s := running(t, append(options, builders.ToolCallBudget(10))...)
	s.calls(10).endedForBudget(tenSpent)
	s.wantState(v1alpha1.ReasonBudgetExceeded)
	return s
}

// shares sets what the tasks of the contract nightly may spend together, and have spent.
func (s *scene) shares(scope budget.Scope, limit, spent int64) *scene {
	name := ""
	if scope == budget.OfContract {
		name = "nightly"
	}
	s.o.Shared = Shared{Known: true, Budgets: []budget.Budget{{Scope: scope, Name: name, Limit: budget.Amounts{ToolCalls: limit}, Spent: budget.Amounts{ToolCalls: spent}}}}
	return s
}

func TestATaskRestsWhenItsDaemonHasEndedTheAgentForItsBudget(t *testing.T) {
	s := spentTask(t, builders.BackoffLimit(0))
	s.wantOutcomes(v1alpha1.AttemptLimitReached)
	s.wantStatus(v1alpha1.TaskSucceeded, metav1.ConditionUnknown, v1alpha1.ReasonBudgetExceeded,
		tenSpent, "raise budget.toolCalls above that and resume the task in one change")
	s.wantEntries(v1alpha1.EventTaskStarted, v1alpha1.EventBudgetNearlySpent, v1alpha1.EventBudgetExceeded)
	entry := s.status().History[2]
	s.wantMessage(entry.Message, tenSpent)
	if state := StateAfter(s.status(), entry); state != stateSpent {
		t.Errorf("the state after it is %q", state)
	}
	if s.status().Failures != 0 {
		t.Error("it counts as a failure")
	}
	if s.o.Task.Spec.OperatingMode != v1alpha1.OperatingModeRunning {
		t.Error("the operating mode was changed")
	}
	if got := s.status().Spent; got == nil || got.ToolCalls != 10 {
		t.Errorf("the status says that %+v was spent", got)
	}
	s.managerRestarts().after(24 * time.Hour).step()
	if s.started() != nil {
		t.Error("it was started again")
	}
	s.wantEntries(v1alpha1.EventTaskStarted, v1alpha1.EventBudgetNearlySpent, v1alpha1.EventBudgetExceeded)
}

func TestARaisedBudgetAndAResumeGoOn(t *testing.T) {
	s := spentTask(t)
	s.change(builders.Resume("too-early")).step()
	if r := s.status().Resume; r.State != v1alpha1.OperationRefused || r.Reason != v1alpha1.ReasonInvalidOperation {
		t.Errorf("the resume is %+v", r)
	}
	s.wantMessage(s.status().Resume.Message, tenSpent, "raise budget.toolCalls", "new id")
	s.change(builders.ToolCallBudget(20)).step()
	s.wantStatus(v1alpha1.TaskSucceeded, metav1.ConditionUnknown, v1alpha1.ReasonBudgetExceeded, "to continue, resume the task")
	s.resumed("on").calls(15).wantRunning()
	if budgets := s.startedBudgets(); len(budgets) != 0 {
		t.Errorf("a pod was started by the last step, with %+v", budgets)
	}
	s.calls(20).endedForBudget("the task has spent 20 of the 20 tool calls")
	s.wantOutcomes(v1alpha1.AttemptLimitReached, v1alpha1.AttemptLimitReached)
}

// startedBudgets returns the budgets of the pod that the last step started.
func (s *scene) startedBudgets() []budget.Budget {
	if p := s.started(); p != nil {
		return p.Budgets
	}
	return nil
}

func TestThePodIsToldWhatIsLeft(t *testing.T) {
	s := newScene(t, builders.ToolCallBudget(10)).shares(budget.OfContract, 100, 60)
	s.step()
	want := []budget.Budget{
		{Scope: budget.OfTask, Limit: budget.Amounts{ToolCalls: 10}},
		{Scope: budget.OfContract, Name: "nightly", Limit: budget.Amounts{ToolCalls: 100}, Spent: budget.Amounts{ToolCalls: 60}},
	}
	if got := s.startedBudgets(); len(got) != 2 || got[0] != want[0] || got[1] != want[1] {
		t.Errorf("it is told %+v, want %+v", got, want)
	}
	s = newScene(t)
	s.step()
	if got := s.startedBudgets(); len(got) != 0 {
		t.Errorf("a task without a budget is told %+v", got)
	}
}

// Its daemon is older, or has lost the server, or the agent does not come to an end.
func TestAnAgentThatGoesOnIsStoppedByTheManagerAfterAWhile(t *testing.T) {
	for name, spend := range map[string]func(*scene){
		"the task's budget":           func(s *scene) { s.change(builders.ToolCallBudget(10)).calls(10) },
		"the contract's":              func(s *scene) { s.shares(budget.OfContract, 100, 100).step() },
		"the namespace's":             func(s *scene) { s.shares(budget.OfNamespace, 100, 2000).step() },
		"a budget below what is used": func(s *scene) { s.calls(10).change(builders.ToolCallBudget(3)).step() },
	} {
		t.Run(name, func(t *testing.T) {
			s := running(t)
			spend(s)
			s.wantRunning()
			s.after(s.o.Limits.BudgetGrace - time.Second).step().wantRunning()
			s.after(time.Second).step()
			s.wantStatus(v1alpha1.TaskSucceeded, metav1.ConditionUnknown, v1alpha1.ReasonStopping, "BudgetExceeded")
			s.stopped(0)
			s.wantOutcomes(v1alpha1.AttemptLimitReached)
			s.wantStatus(v1alpha1.TaskSucceeded, metav1.ConditionUnknown, v1alpha1.ReasonBudgetExceeded, "to continue")
		})
	}
}

func TestABudgetThatIsRaisedInTimeStopsNothing(t *testing.T) {
	s := running(t, builders.ToolCallBudget(10)).calls(10)
	s.change(builders.ToolCallBudget(20)).step()
	s.after(time.Hour).step().wantRunning()
	if s.lastAttempt().BudgetSpentTime != nil {
		t.Error("it is still known to be spent")
	}
}

// 80 % of a limit are told once for each of its values, whatever happens to the task.
func TestSomebodyIsToldWhenABudgetIsNearlySpent(t *testing.T) {
	s := running(t, builders.ToolCallBudget(10)).calls(7)
	s.wantEntries(v1alpha1.EventTaskStarted)
	s.calls(8)
	s.wantEntries(v1alpha1.EventTaskStarted, v1alpha1.EventBudgetNearlySpent)
	s.wantMessage(s.status().History[1].Message, "the task has spent 8 of the 10 tool calls that budget.toolCalls allows")
	s.calls(9).managerRestarts().step()
	s.wantEntries(v1alpha1.EventTaskStarted, v1alpha1.EventBudgetNearlySpent)

	s.change(builders.ToolCallBudget(100)).step()
	s.change(builders.ToolCallBudget(11)).step()
	s.wantEntries(v1alpha1.EventTaskStarted, v1alpha1.EventBudgetNearlySpent, v1alpha1.EventBudgetNearlySpent)
	s.wantMessage(s.status().History[2].Message, "9 of the 11 tool calls")
}

func TestAnOutageOfTheHistoryTellsNothingTwice(t *testing.T) {
	s := running(t, builders.ToolCallBudget(10)).shares(budget.OfContract, 100, 80).calls(8)
	s.wantEntries(v1alpha1.EventTaskStarted, v1alpha1.EventBudgetNearlySpent, v1alpha1.EventBudgetNearlySpent)
	s.record(v1alpha1.TriggerInterval)
	s.after(time.Minute).step() // the status has what is spent
	before, shared := s.o.History, s.o.Shared
	s.o.History, s.o.Shared = History{}, Shared{}
	s.step()
	s.o.History, s.o.Shared = before, shared
	s.step()
	s.wantEntries(v1alpha1.EventTaskStarted, v1alpha1.EventBudgetNearlySpent, v1alpha1.EventBudgetNearlySpent)
}

// The history store was put back to an older copy, which has counted less.
func TestWhatWasSpentStaysSpentWhenTheHistoryGoesBack(t *testing.T) {
	s := spentTask(t)
	s.o.History.State.LastSequence = 5
	s.record(v1alpha1.TriggerInterval)
	s.after(time.Minute).change(builders.BackoffLimit(4)).step()
	s.o.Task.Status.RecordSequence = 50
	s.o.History.State.Spent = budget.Amounts{}
	s.change(builders.Resume("on")).step()
	if r := s.status().Resume; r == nil || r.State != v1alpha1.OperationRefused {
		t.Errorf("the resume is %+v", r)
	}
}

// recall makes the history count what it has lost.
func (s *scene) recall(lost *LostSpending) {
	if lost != nil {
		s.o.History.State.Spent = s.o.History.State.Spent.AtLeast(lost.Spent)
	}
}

// It is so as well once the history has got as far again, with gaps where it has lost records for good.
func TestWhatWasSpentStaysSpentWhenTheHistoryHasLostRecords(t *testing.T) {
	lost := func(t *testing.T, through int64) *scene {
		s := spentTask(t)
		s.o.History.State.Attempt, s.o.History.State.LastSequence = 1, 50
		s.record(v1alpha1.TriggerInterval)
		s.after(time.Minute).change(builders.BackoffLimit(4)).step()
		s.o.History.State.LastSequence, s.o.History.State.Spent = through, budget.Amounts{ToolCalls: 3}
		return s
	}
	for name, through := range map[string]int64{"behind": 20, "as far as the status": 50, "further": 60} {
		t.Run(name, func(t *testing.T) {
			s := lost(t, through)
			want := LostSpending{Spent: budget.Amounts{ToolCalls: 10}, Through: 50}
			if got := Decide(s.o, s.now).LostSpending; got == nil || *got != want {
				t.Errorf("the history is to count %+v again, want %+v", got, want)
			}
			s.change(builders.Resume("on")).step()
			s.wantOperation(s.status().Resume, "on", v1alpha1.OperationRefused, v1alpha1.ReasonInvalidOperation)
			if got := s.status().Spent.ToolCalls; got != 10 {
				t.Errorf("%d calls are spent, want 10", got)
			}
			if again := Decide(s.o, s.now).LostSpending; again != nil {
				t.Errorf("the history is to count %+v once more", again)
			}
		})
	}
	t.Run("which had not begun the task", func(t *testing.T) {
		s := lost(t, 0)
		s.o.History.State.Attempt = 0
		if got := Decide(s.o, s.now).LostSpending; got != nil {
			t.Errorf("the history is to count %+v of a task that it does not know", got)
		}
	})
}

// An agent corrects an estimate of its own.
func TestACostThatIsCorrectedIsNotLost(t *testing.T) {
	s := running(t)
	s.o.History.State.Attempt, s.o.History.State.Spent = 1, budget.Amounts{InputTokens: 5, CostMicroUSD: 70}
	s.record(v1alpha1.TriggerInterval)
	s.after(time.Minute).step()
	s.o.History.State.Spent.CostMicroUSD = 40
	s.record(v1alpha1.TriggerInterval)
	s.after(time.Minute).step()
	if got := s.status().Spent.CostMicroUSD; got != 40 {
		t.Errorf("the cost is %d, want 40", got)
	}
}

func TestATaskThatHasYetToStartWaitsForItsContractsBudget(t *testing.T) {
	s := newScene(t).shares(budget.OfContract, 100, 100)
	s.step()
	s.wantStatus(v1alpha1.TaskSucceeded, metav1.ConditionUnknown, v1alpha1.ReasonBudgetExceeded,
		"contract.budget.toolCalls of the supervisor of the contract nightly", "the task starts once that is raised")
	s.wantEntries(v1alpha1.EventBudgetExceeded)
	if !WaitsForBudget(s.o.Task) {
		t.Error("a raised budget would not wake it")
	}
	writes := s.writes
	s.shares(budget.OfContract, 100, 170).after(time.Hour).step()
	if s.writes != writes || s.plans[0].RequeueAfter != 0 {
		t.Error("it writes, or polls, while it waits")
	}
	s.shares(budget.OfContract, 200, 170).step()
	s.wantStarted(1)
}

func TestATaskThatHasYetToStartWaitsForTheNextMonth(t *testing.T) {
	s := newScene(t).shares(budget.OfNamespace, 100, 100)
	s.step()
	s.wantStatus(v1alpha1.TaskSucceeded, metav1.ConditionUnknown, v1alpha1.ReasonBudgetExceeded, "the task starts in the next one")
	next := time.Date(2026, 2, 1, 0, 0, 0, 0, time.UTC)
	if got := s.now.Add(s.plans[len(s.plans)-1].RequeueAfter); !got.Equal(next) {
		t.Errorf("the next decision is due at %s, want %s", got, next)
	}
	s.now = next
	s.shares(budget.OfNamespace, 100, 0).step()
	s.wantStarted(1)
	for now, want := range map[time.Time]time.Time{
		time.Date(2026, 12, 31, 23, 59, 59, 0, time.UTC):                      time.Date(2027, 1, 1, 0, 0, 0, 0, time.UTC),
		time.Date(2026, 12, 31, 20, 0, 0, 0, time.FixedZone("west", -8*3600)): time.Date(2027, 2, 1, 0, 0, 0, 0, time.UTC),
	} {
		if got := nextMonth(now); !got.Equal(want) {
			t.Errorf("the month after %s begins at %s, want %s", now, got, want)
		}
	}
}

func TestNoOtherAttemptStartsUnderABudgetThatIsSpent(t *testing.T) {
	s := running(t)
	s.shares(budget.OfContract, 100, 100)
	s.agentExits(1)
	s.podFinishes()
	s.after(time.Hour).step()
	s.wantStatus(v1alpha1.TaskSucceeded, metav1.ConditionUnknown, v1alpha1.ReasonBudgetExceeded, "the tasks of the contract nightly have spent 100 of the 100 tool calls")
	s.shares(budget.OfContract, 200, 100).step()
	s.wantState(v1alpha1.ReasonBudgetExceeded) // that takes a resume
	s.resumed("on").wantRunning()
}

func TestATaskIsRewoundWhenItsBudgetIsSpent(t *testing.T) {
	s := spentTask(t)
	s.rewind("back", 1).step()
	if p := s.wantStarted(2); !p.PrepareOnly {
		t.Error("the pod has an agent")
	}
	s.prepared(daemonapi.PrepareResult{Reason: v1alpha1.ReasonWorkspacePrepared, Operation: "back"})
	s.wantState(v1alpha1.ReasonRewound)
	if got := s.status().Spent.ToolCalls; got != 10 {
		t.Errorf("%d calls are spent after the rewind, want 10", got)
	}
}

func TestTheBudgetOfAContractIsThatOfWhoLeadsIt(t *testing.T) {
	supervisor := func(name string, age time.Duration, begun, leads bool) v1alpha1.Task {
		task := *builders.Task(name, func(t *v1alpha1.Task) {
			t.Spec.Role, t.Spec.Contract = v1alpha1.RoleSupervisor, &v1alpha1.Contract{Name: "nightly"}
			t.CreationTimestamp = metav1.NewTime(time.Date(2026, 1, 2, 0, 0, 0, 0, time.UTC).Add(-age))
			t.Status.Contract = &v1alpha1.ContractStatus{Name: "nightly"}
		})
		if begun {
			task.Status.Attempts = []v1alpha1.Attempt{{Number: 1}}
		}
		if leads {
			task.Status.Contract.LeadingSince = ptr.To(metav1.Now())
		}
		return task
	}
	for name, c := range map[string]struct {
		all  []v1alpha1.Task
		want string
	}{
		"nobody":             {nil, ""},
		"who leads":          {[]v1alpha1.Task{supervisor("old", 3*time.Hour, true, false), supervisor("leads", 2*time.Hour, true, true), supervisor("new", time.Hour, true, false)}, "leads"},
		"who has begun last": {[]v1alpha1.Task{supervisor("old", 3*time.Hour, true, false), supervisor("new", 2*time.Hour, true, false), supervisor("waits", time.Hour, false, false)}, "new"},
		"who waits longest":  {[]v1alpha1.Task{supervisor("second", time.Hour, false, false), supervisor("first", 2*time.Hour, false, false)}, "first"},
	} {
		t.Run(name, func(t *testing.T) {
			got := ""
			if holder := BudgetHolder(c.all); holder != nil {
				got = holder.Name
			}
			if got != c.want {
				t.Errorf("it is that of %q, want %q", got, c.want)
			}
		})
	}
}
