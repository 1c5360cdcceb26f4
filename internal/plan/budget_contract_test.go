package plan

import (
	"testing"
	"time"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/budget"
)

// spends has the history say how many of 100 calls are spent under the contract "port".
func (s *scene) spends(calls int64) *scene {
	s.shares(budget.OfContract, 100, calls).o.Shared.Budgets[0].Name = "port"
	return s
}

// recallOfContract makes the history count what it has lost of a contract.
func (s *scene) recallOfContract(lost *LostOfContract) {
	for i := range s.o.Shared.Budgets {
		if b := &s.o.Shared.Budgets[i]; lost != nil && b.Scope == budget.OfContract {
			b.Spent = b.Spent.AtLeast(lost.Spent)
		}
	}
}

// spendingLead returns a supervisor that has begun, whose status knows 90 calls to be spent under its contract.
func spendingLead(t *testing.T) *scene {
	s := leadingOn(t)
	s.o.History.State.Attempt = 1
	s.spends(90).after(time.Minute).step()
	if c := s.status().Contract; c == nil || c.Spent == nil || c.Spent.ToolCalls != 90 {
		t.Fatalf("the contract is %+v", c)
	}
	return s
}

// What tasks had spent that are gone, the supervisor alone can tell.
func TestWhatWasSpentUnderAContractStaysSpentWhenTheHistoryGoesBack(t *testing.T) {
	s := spendingLead(t)
	s.spends(30).after(time.Minute)
	want := LostOfContract{Name: "port", Spent: budget.Amounts{ToolCalls: 90}, Since: *s.status().Contract.SpentTime}
	if got := Decide(s.o, s.now).LostOfContract; got == nil || *got != want {
		t.Fatalf("the history is to count %+v again, want %+v", got, want)
	}
	if s.step(); s.status().Contract.Spent.ToolCalls != 90 {
		t.Errorf("the status falls to %+v", s.status().Contract.Spent)
	}
	s.spends(95).record(v1alpha1.TriggerInterval)
	s.after(time.Minute).step()
	if got := Decide(s.o, s.now).LostOfContract; got != nil || s.status().Contract.Spent.ToolCalls != 95 {
		t.Errorf("the history is to count %+v once more; the status has %+v", got, s.status().Contract.Spent)
	}
}

func TestCheckpointsStaySpentUnderAContractWhenTheHistoryGoesBack(t *testing.T) {
	s := spendingLead(t)
	spent := &s.o.Shared.Budgets[0].Spent
	spent.Checkpoints = 9
	s.record(v1alpha1.TriggerInterval)
	s.after(time.Minute).step()
	spent.Checkpoints = 4
	want := LostOfContract{Name: "port", Spent: budget.Amounts{ToolCalls: 90, Checkpoints: 9}, Since: *s.status().Contract.SpentTime}
	if got := Decide(s.o, s.now).LostOfContract; got == nil || *got != want {
		t.Errorf("the history is to count %+v again, want %+v", got, want)
	}
}

// What the history has forgotten by intent is not counted again. What it cannot be told yet stays in the status.
func TestWhoseHistoryLacksWhatWasSpentUnderItsContract(t *testing.T) {
	for name, c := range map[string]struct {
		change           func(*scene)
		recalled, forgot bool
	}{
		"has not begun":                {func(s *scene) { s.o.History.State.Attempt, s.status().Attempts, s.o.Pods = 0, nil, nil }, false, true},
		"is deleted":                   {func(s *scene) { s.o.History.Deleted = true }, false, true},
		"is not known":                 {func(s *scene) { s.o.History.Known = false }, false, false},
		"has lost the task as a whole": {func(s *scene) { s.o.History.State.Attempt = 0 }, true, false},
	} {
		t.Run(name, func(t *testing.T) {
			s := spendingLead(t)
			s.spends(30).after(time.Minute)
			c.change(s)
			if got := Decide(s.o, s.now).LostOfContract; got != nil != c.recalled {
				t.Errorf("the history is to count %+v again", got)
			}
			s.o.Task.Status.Conditions = nil // whatever else is written
			s.step()
			if spent := s.status().Contract.Spent; (spent == nil || spent.ToolCalls != 90) != c.forgot {
				t.Errorf("the status has %+v", spent)
			}
		})
	}
}
