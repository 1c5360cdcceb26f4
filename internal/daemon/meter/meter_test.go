package meter

import (
	"path/filepath"
	"testing"

	"github.com/go-logr/logr/testr"

	"github.com/clew-dev/clew/internal/budget"
	"github.com/clew-dev/clew/internal/daemon/spool"
	daemonv1 "github.com/clew-dev/clew/internal/daemonapi/v1"
)

// pod is a task's volume, on which daemons count.
type pod struct {
	*testing.T
	dir   string
	spool *spool.Spool
	told  Told
	*Meter
}

// newPod returns a pod whose manager knew of a budget of so many calls, of which none was spent.
func newPod(t *testing.T, calls int64) *pod {
	t.Helper()
	p := &pod{T: t, dir: t.TempDir(), told: Told{Attempt: 1, Budgets: []budget.Budget{{Scope: budget.OfTask, Limit: budget.Amounts{ToolCalls: calls}}}}}
	p.restart()
	return p
}

// restart ends the daemon, and starts another one.
func (p *pod) restart() {
	p.Helper()
	if p.spool != nil {
		p.spool.Close()
	}
	var err error
	if p.spool, err = spool.Open(filepath.Join(p.dir, "spool")); err != nil {
		p.Fatal(err)
	}
	p.Cleanup(func() { p.spool.Close() })
	p.Meter, err = Open(Config{Path: filepath.Join(p.dir, "budgets.json"), Spool: p.spool, Told: p.told, Log: testr.New(p.T)})
	if err != nil {
		p.Fatal(err)
	}
}

func (p *pod) append(records ...*daemonv1.Record) {
	p.Helper()
	if err := p.spool.Append(nil, records...); err != nil {
		p.Fatal(err)
	}
}

// calls appends the results of so many calls.
func (p *pod) calls(n int) {
	p.Helper()
	for range n {
		p.append(message(&daemonv1.Message{ToolResult: &daemonv1.ToolResult{CallId: "x"}}))
	}
}

// answers is the server's answer about a budget of calls.
func (p *pod) answers(through, limit, spent int64) {
	p.Tell(&daemonv1.Budgets{Through: through, Budgets: []*daemonv1.Budget{{
		Scope: "Task", Limit: &daemonv1.Amounts{ToolCalls: limit}, Spent: &daemonv1.Amounts{ToolCalls: spent},
	}}})
}

func (p *pod) wantSpent(calls int64) {
	p.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	if all := p.budgets(); len(all) != 1 || all[0].Spent.ToolCalls != calls {
		p.Errorf("it counts %+v, want %d calls", all, calls)
	}
}

func message(m *daemonv1.Message) *daemonv1.Record {
	return &daemonv1.Record{Body: &daemonv1.Record_Message{Message: m}}
}

func TestWhatTheServerHasCountedAndWhatItHasNotCountOnce(t *testing.T) {
	p := newPod(t, 10)
	p.calls(4)
	p.wantSpent(4)
	p.answers(3, 10, 3)
	p.wantSpent(4)
	p.answers(3, 10, 3) // the same batch again
	p.wantSpent(4)
	p.answers(4, 10, 104) // others of its budget, or an earlier attempt
	p.wantSpent(104)
	p.calls(2)
	p.wantSpent(106)
	if u := p.Exceeded(); u == nil || u.Field != "toolCalls" || u.Spent != 106 {
		t.Errorf("it is exceeded by %+v", u)
	}
	p.answers(4, 1000, 104)
	if u := p.Exceeded(); u != nil {
		t.Errorf("the raised budget is exceeded by %+v", u)
	}
}

func TestADaemonThatIsStartedAgainCountsOn(t *testing.T) {
	p := newPod(t, 10)
	p.calls(4)
	p.restart()
	p.wantSpent(4)
	p.answers(4, 20, 50)
	p.calls(3)
	p.restart()
	p.wantSpent(53)
	p.answers(7, 20, 53)
	p.restart()
	p.wantSpent(53)
}

// The manager knew more when it made the pod than an earlier pod was told.
func TestAnotherPodBeginsWithWhatItsManagerKnew(t *testing.T) {
	p := newPod(t, 10)
	p.calls(4)
	p.answers(4, 10, 4)
	p.calls(1)
	p.told = Told{Attempt: 2, Through: 4, Budgets: []budget.Budget{{Scope: budget.OfTask, Limit: budget.Amounts{ToolCalls: 99}, Spent: budget.Amounts{ToolCalls: 4}}}}
	p.restart()
	p.wantSpent(5)
	if p.Exceeded() != nil {
		t.Error("the limit is that of the earlier pod")
	}
}

func TestWhatCounts(t *testing.T) {
	p := newPod(t, 1)
	all := budget.Amounts{InputTokens: 1e9, OutputTokens: 1e9, CostMicroUSD: 1e9, ToolCalls: 1e9, Checkpoints: 1e9}
	p.Meter.told.Budgets[0].Limit = all
	p.append(
		message(&daemonv1.Message{ToolCall: &daemonv1.ToolCall{Id: "x"}}),
		message(&daemonv1.Message{ToolResult: &daemonv1.ToolResult{CallId: "x"}}),
		message(&daemonv1.Message{ToolResult: &daemonv1.ToolResult{CallId: "y", Interrupted: true}}),
		&daemonv1.Record{Body: &daemonv1.Record_Usage{Usage: &daemonv1.Usage{InputTokens: 10, OutputTokens: 20, CostMicroUsd: 30}}},
		&daemonv1.Record{Body: &daemonv1.Record_Usage{Usage: &daemonv1.Usage{CostMicroUsd: -5}}},
		&daemonv1.Record{Body: &daemonv1.Record_Checkpoint{Checkpoint: &daemonv1.CheckpointRecord{Number: 1}}},
		&daemonv1.Record{Body: &daemonv1.Record_Checkpoint{Checkpoint: &daemonv1.CheckpointRecord{Number: 1, Durable: true}}},
		&daemonv1.Record{Body: &daemonv1.Record_Checkpoint{Checkpoint: &daemonv1.CheckpointRecord{Number: 2, Trigger: "Manual"}}},
		&daemonv1.Record{Body: &daemonv1.Record_Checkpoint{Checkpoint: &daemonv1.CheckpointRecord{Number: 3, Trigger: "Phase"}}},
		&daemonv1.Record{Body: &daemonv1.Record_Event{Event: &daemonv1.Event{Reason: "X"}}},
	)
	p.mu.Lock()
	defer p.mu.Unlock()
	want := budget.Amounts{InputTokens: 10, OutputTokens: 20, CostMicroUSD: 25, ToolCalls: 1, Checkpoints: 2}
	if got := p.budgets()[0].Spent; got != want {
		t.Errorf("it counts %+v, want %+v", got, want)
	}
}

func TestWhatWasSpentStaysSpentWhenTheServerGoesBack(t *testing.T) {
	p := newPod(t, 10)
	p.calls(8)
	p.answers(8, 10, 8)
	p.answers(2, 10, 2) // restored from an older copy
	p.wantSpent(8)
	p.calls(1)
	p.wantSpent(8) // it cannot be told from what is sent again
	p.answers(5, 10, 5)
	p.wantSpent(8)
	p.answers(9, 10, 9)
	p.wantSpent(9)
}

func TestAServerThatSaysNothingChangesNothing(t *testing.T) {
	p := newPod(t, 10)
	p.calls(10)
	p.Tell(nil)
	if p.Exceeded() == nil {
		t.Error("the budget that the manager knew is forgotten")
	}
	p.Tell(&daemonv1.Budgets{Through: 10}) // a server that says there is none
	if p.Exceeded() != nil {
		t.Error("a budget that was removed counts")
	}
	p.restart()
	p.answers(10, 10, 10)
	p.Tell(&daemonv1.Budgets{Through: 10})
	p.restart()
	if p.Exceeded() != nil {
		t.Error("a daemon that is started again knows nothing of the removal")
	}
}

func TestMemoryIsBoundedWhileTheServerIsAway(t *testing.T) {
	p := newPod(t, 1e6)
	p.Meter.cfg.Spool = p.spool
	for n := range int64(5 * maxUnsent) {
		p.count([]*daemonv1.Record{{Sequence: n + 1, Body: &daemonv1.Record_Usage{Usage: &daemonv1.Usage{InputTokens: 1}}}})
	}
	if n := len(p.unsent); n > maxUnsent {
		t.Errorf("%d entries are kept", n)
	}
	if got := p.budgets()[0].Spent.InputTokens; got != 5*maxUnsent {
		t.Errorf("they add up to %d", got)
	}
	p.answers(5*maxUnsent, 1e6, 0)
	if n := len(p.unsent); n != 0 {
		t.Errorf("%d entries are left", n)
	}
}
