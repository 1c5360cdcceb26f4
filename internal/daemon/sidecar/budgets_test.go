package sidecar_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"

	"github.com/clew-dev/clew/internal/budget"
	"github.com/clew-dev/clew/internal/daemon/daemontest"
	"github.com/clew-dev/clew/internal/daemon/wire"
	daemonv1 "github.com/clew-dev/clew/internal/daemonapi/v1"
)

// callBudget is a budget of calls as the server tells of it.
func callBudget(scope string, limit, spent int64) *daemonv1.Budget {
	return &daemonv1.Budget{Scope: scope, Name: map[string]string{"Contract": "nightly"}[scope],
		Limit: &daemonv1.Amounts{ToolCalls: limit}, Spent: &daemonv1.Amounts{ToolCalls: spent}}
}

// wantEndedForBudget fails unless the agent's end was recorded as one for a budget, with a checkpoint as after
// a suspension.
func wantEndedForBudget(t *testing.T, w *daemontest.World, why string) {
	t.Helper()
	want := &daemonv1.AgentEnd{Cause: "BudgetSpent", ExitCode: 143, Message: why}
	if diff := cmp.Diff(want, recordedEnd(w), protocmp.Transform()); diff != "" {
		t.Errorf("the recorded end (-want +got):\n%s", diff)
	}
	expectCheckpoint(t, latest(w), &daemonv1.CheckpointRecord{Trigger: "Suspend"})
}

func TestTheAgentIsEndedAtTheCallWithWhichItsBudgetIsSpent(t *testing.T) {
	t.Parallel()
	for _, code := range []int{143, 0} { // some agents catch the signal and exit with 0
		w := daemontest.NewWorld(t, nil)
		w.Server.SetBudgets(w.UID, callBudget("Task", 3, 0))
		w.Prepare(1, nil)
		d := w.Start(1)
		a := w.Dial("s")
		a.Call("1", "2")
		a.Recorded()
		a.Call("3")
		a.Next(wire.TypeFinish)
		finish(a, d, code)
		wantEndedForBudget(t, w, "the task has spent 3 of the 3 tool calls that budget.toolCalls allows")
	}
}

func TestABudgetHoldsWhileTheServerIsAway(t *testing.T) {
	t.Parallel()
	w := daemontest.NewWorld(t, nil)
	w.Budgets = []budget.Budget{{Scope: budget.OfTask, Limit: budget.Amounts{ToolCalls: 2}}}
	w.Prepare(1, nil)
	w.Server.SetDown(true)
	w.Start(1)
	a := w.Dial("s")
	a.Call("1")
	a.Recorded()
	w = w.CopyVolume() // the daemon is killed
	d := w.Start(1)
	a = w.DialFrom("s", a.Sent+1)
	a.Call("2")
	a.Next(wire.TypeFinish)
	w.Server.SetDown(false)
	finish(a, d, 143)
	wantEndedForBudget(t, w, "the task has spent 2 of the 2 tool calls that budget.toolCalls allows")
}

// Parallel calls that were made before are completed; another one is too much.
func TestCallsThatWereMadeBeforeAreCompleted(t *testing.T) {
	t.Parallel()
	w := daemontest.NewWorld(t, nil)
	w.Server.SetBudgets(w.UID, callBudget("Task", 1, 0))
	w.Prepare(1, nil)
	d := w.Start(1)
	a := w.Dial("s")
	a.Say(`{"type":"tool_call","id":"1","name":"x"}`, `{"type":"tool_call","id":"2","name":"x"}`, `{"type":"tool_result","id":"1","output":"ok"}`)
	a.Recorded()
	a.Quiet(time.Second) // the second one takes its time
	a.Say(`{"type":"tool_result","id":"2","output":"ok"}`)
	a.Next(wire.TypeFinish)
	finish(a, d, 143)
	wantEndedForBudget(t, w, "the task has spent 2 of the 1 tool calls that budget.toolCalls allows")
}

func TestAnAgentWithoutToolsIsEndedBetweenTwoMessages(t *testing.T) {
	t.Parallel()
	w := daemontest.NewWorld(t, nil)
	w.Server.SetBudgets(w.UID, &daemonv1.Budget{Scope: "Task", Limit: &daemonv1.Amounts{OutputTokens: 100}})
	w.Prepare(1, nil)
	d := w.Start(1)
	a := w.Dial("s")
	a.Say(`{"type":"message","text":"I think."}`, `{"type":"usage","inputTokens":5,"outputTokens":100}`)
	a.Next(wire.TypeFinish)
	finish(a, d, 143)
	wantEndedForBudget(t, w, "the task has spent 100 of the 100 output tokens that budget.outputTokens allows")
}

// The tokens of a message are told before the call that belongs to it.
func TestTheCallOfAMessageIsCompleted(t *testing.T) {
	t.Parallel()
	w := daemontest.NewWorld(t, nil)
	w.Server.SetBudgets(w.UID, &daemonv1.Budget{Scope: "Task", Limit: &daemonv1.Amounts{InputTokens: 5}})
	w.Prepare(1, nil)
	d := w.Start(1)
	a := w.Dial("s")
	a.Say(`{"type":"usage","inputTokens":5}`)
	a.Recorded()
	a.Say(`{"type":"tool_call","id":"1","name":"x"}`)
	a.Recorded()
	a.Quiet(time.Second)
	a.Say(`{"type":"tool_result","id":"1","output":"ok"}`)
	a.Next(wire.TypeFinish)
	finish(a, d, 143)
}

func TestABudgetThatOthersSpendEndsTheAgentAfterOneExchange(t *testing.T) {
	t.Parallel()
	w := daemontest.NewWorld(t, nil)
	w.Server.SetBudgets(w.UID, callBudget("Contract", 100, 50))
	w.Prepare(1, nil)
	d := w.Start(1)
	a := w.Dial("s")
	a.Call("1")
	a.Recorded()
	w.Server.SetBudgets(w.UID, callBudget("Contract", 100, 100))
	a.Call("2")
	a.Next(wire.TypeFinish)
	finish(a, d, 143)
	if got := recordedEnd(w).GetMessage(); got[:len("the tasks of the contract nightly have spent 10")] != "the tasks of the contract nightly have spent 10" {
		t.Errorf("it was ended since %s", got)
	}
}

func TestARaisedBudgetCountsAtOnce(t *testing.T) {
	t.Parallel()
	w := daemontest.NewWorld(t, nil)
	w.Server.SetBudgets(w.UID, callBudget("Task", 2, 0))
	w.Prepare(1, nil)
	d := w.Start(1)
	a := w.Dial("s")
	w.Server.SetBudgets(w.UID, callBudget("Task", 100, 0))
	var stored int64
	look := func(k *daemontest.Task) { stored = k.Last() }
	more := func(k *daemontest.Task) bool { return k.Last() > stored }
	w.Server.Inspect(w.UID, look)
	a.Call("1")
	a.Recorded()
	w.Server.Until(t, "the call is stored", w.UID, more)
	// The daemon sends more only once it has the answer.
	w.Server.Inspect(w.UID, look)
	a.Say(`{"type":"usage","inputTokens":5}`)
	a.Recorded()
	w.Server.Until(t, "the usage is stored", w.UID, more)
	a.Call("2", "3")
	a.Recorded()
	finish(a, d, 0)
	if end := recordedEnd(w); end != nil {
		t.Errorf("a failure of the agent is recorded: %v", end)
	}
	expectCheckpoint(t, latest(w), &daemonv1.CheckpointRecord{Trigger: "Completion"})
}

// Whichever end comes before the stop is the end.
func TestAnAgentThatEndsWithItsBudgetHasEnded(t *testing.T) {
	t.Parallel()
	w := daemontest.NewWorld(t, nil)
	w.Server.SetBudgets(w.UID, &daemonv1.Budget{Scope: "Task", Limit: &daemonv1.Amounts{OutputTokens: 100}})
	w.Prepare(1, nil)
	d := w.Start(1)
	a := w.Dial("s")
	a.Say(`{"type":"message","text":"Done."}`, `{"type":"usage","outputTokens":100}`)
	finish(a, d, 0)
	if end := recordedEnd(w); end != nil {
		t.Errorf("a failure of the agent is recorded: %v", end)
	}
	expectCheckpoint(t, latest(w), &daemonv1.CheckpointRecord{Trigger: "Completion"})
}

// A daemon that was killed after it had ended the agent does not know that it has.
func TestADaemonThatWasKilledKnowsWhyTheAgentHasEnded(t *testing.T) {
	t.Parallel()
	w := daemontest.NewWorld(t, nil)
	w.Server.SetBudgets(w.UID, callBudget("Task", 1, 0))
	w.Prepare(1, nil)
	w.Start(1)
	a := w.Dial("s")
	a.Call("1")
	a.Next(wire.TypeFinish)
	w = w.CopyVolume()
	d := w.Start(1)
	a = w.DialFrom("s", a.Sent+1)
	finish(a, d, 143)
	wantEndedForBudget(t, w, "the task has spent 1 of the 1 tool calls that budget.toolCalls allows")
}
