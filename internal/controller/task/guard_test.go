package task_test

import (
	"context"
	"errors"
	"testing"
	"time"

	clocktesting "k8s.io/utils/clock/testing"

	"github.com/clew-dev/clew/internal/budget"
	"github.com/clew-dev/clew/internal/controller/task"
	"github.com/clew-dev/clew/internal/history"
)

// counting is a store that counts calls and returns err.
type counting struct {
	calls int
	err   error
}

func (c *counting) TaskState(context.Context, string) (history.TaskState, error) {
	c.calls++
	return history.TaskState{Attempt: 7}, c.err
}

func (c *counting) CheckpointsAfter(context.Context, string, int64, int) ([]history.Checkpoint, error) {
	c.calls++
	return nil, c.err
}

func (c *counting) Spending(context.Context, history.Task, string) (history.Spending, error) {
	c.calls++
	return history.Spending{}, c.err
}

func (c *counting) SetBudgets(context.Context, history.Task, history.SetBudgets) error {
	c.calls++
	return c.err
}

func (c *counting) RecallSpending(context.Context, history.Task, budget.Amounts, int64) error {
	c.calls++
	return c.err
}

func (c *counting) RecallContractSpending(context.Context, history.Task, string, budget.Amounts, time.Time) error {
	c.calls++
	return c.err
}

func (c *counting) Checkpoint(context.Context, history.Key, int64) (history.Checkpoint, error) {
	c.calls++
	return history.Checkpoint{}, c.err
}

func (c *counting) CheckpointsBefore(context.Context, history.Key, int64, int) ([]history.Checkpoint, error) {
	c.calls++
	return nil, c.err
}

func (c *counting) TaskConversation(context.Context, history.ConversationQuery) (history.EntryPage, error) {
	c.calls++
	return history.EntryPage{}, c.err
}

func (c *counting) TasksNamed(context.Context, string, string) ([]history.NamedTask, error) {
	c.calls++
	return nil, c.err
}

func (c *counting) GoneTask(context.Context, string, string) (history.GoneTask, error) {
	c.calls++
	return history.GoneTask{}, c.err
}

func (c *counting) EarlierNamespace(context.Context, string, string) (bool, error) {
	c.calls++
	return false, c.err
}

func (c *counting) Adoption(context.Context, history.Task) (history.Adoption, error) {
	c.calls++
	return history.Adoption{}, c.err
}

func (c *counting) Adopt(context.Context, history.Task, string) error {
	c.calls++
	return c.err
}

func (c *counting) ContinuedBy(context.Context, history.Key) (string, error) {
	c.calls++
	return "", c.err
}

func (c *counting) ForkedTasks(context.Context, string, string) ([]history.ForkedTask, error) {
	c.calls++
	return nil, c.err
}

func (c *counting) FormerTasks(context.Context, string) ([]history.FormerTask, error) {
	c.calls++
	return nil, c.err
}

func (c *counting) Operations(context.Context, history.Key, []string) ([]string, error) {
	c.calls++
	return nil, c.err
}

func (c *counting) Publication(context.Context, history.Key, string) (history.Publication, error) {
	c.calls++
	return history.Publication{}, c.err
}

func (c *counting) Rewind(context.Context, history.Key, string) (history.Rewind, error) {
	c.calls++
	return history.Rewind{}, c.err
}

func (c *counting) ResolvePosition(context.Context, string, history.PositionQuery) (history.Resolved, error) {
	c.calls++
	return history.Resolved{}, c.err
}

func (c *counting) SnapshotsAfter(context.Context, string, int64, int) ([]history.Snapshot, error) {
	c.calls++
	return nil, c.err
}

func (c *counting) RecordedTransitions(context.Context, string, string) (int64, error) {
	c.calls++
	return 0, c.err
}

func (c *counting) KeepSpec(context.Context, history.Key, history.KeptSpec) error {
	c.calls++
	return c.err
}

func (c *counting) KeptSpec(context.Context, history.Key) (history.KeptSpec, error) {
	c.calls++
	return history.KeptSpec{}, c.err
}

func (c *counting) RequestVerification(context.Context, history.Key, int64, time.Time) error {
	c.calls++
	return c.err
}

func (c *counting) DamagedObjects(context.Context, string) ([]int64, error) {
	c.calls++
	return nil, c.err
}

func (c *counting) UnpushedCheckpoints(context.Context, string) ([]int64, error) {
	c.calls++
	return nil, c.err
}

func (c *counting) RecordEvents(context.Context, []history.Event) error {
	c.calls++
	return c.err
}

func TestAStoreThatIsDownIsNotCalledForAShortTime(t *testing.T) {
	clock := clocktesting.NewFakePassiveClock(time.Unix(0, 0))
	store := &counting{err: history.ErrUnavailable}
	guarded := task.Guard(store, alive, clock)
	for range 3 {
		if _, err := guarded.TaskState(t.Context(), "uid"); !errors.Is(err, history.ErrUnavailable) {
			t.Errorf("the error is %v", err)
		}
	}
	if store.calls != 1 {
		t.Errorf("%d calls reached a store that is down", store.calls)
	}
	store.err = nil
	clock.SetTime(time.Unix(10, 0))
	state, err := guarded.TaskState(t.Context(), "uid")
	if err != nil || state.Attempt != 7 {
		t.Errorf("the state is %+v, and the error %v", state, err)
	}
}

func TestOtherErrorsDoNotPauseTheStore(t *testing.T) {
	store := &counting{err: history.ErrNotFound}
	guarded := task.Guard(store, alive, clocktesting.NewFakePassiveClock(time.Unix(0, 0)))
	for range 3 {
		if err := guarded.RecordEvents(t.Context(), nil); !errors.Is(err, history.ErrNotFound) {
			t.Errorf("the error is %v", err)
		}
	}
	if store.calls != 3 {
		t.Errorf("%d calls reached the store", store.calls)
	}
}

// alive says that a store answers.
func alive(context.Context) error { return nil }

// A pod can keep the locks that calls about its task need. Others must not wait for that.
func TestASlowCallPausesItsTaskAlone(t *testing.T) {
	clock := clocktesting.NewFakePassiveClock(time.Unix(0, 0))
	store := &counting{err: history.ErrSlow}
	guarded := task.Guard(store, alive, clock)
	for range 3 {
		if _, err := guarded.TaskState(t.Context(), "slow"); !errors.Is(err, history.ErrSlow) || !errors.Is(err, history.ErrUnavailable) {
			t.Errorf("the error is %v", err)
		}
	}
	event := history.Event{Task: history.Task{UID: "slow"}}
	if err := guarded.RecordEvents(t.Context(), []history.Event{event}); !errors.Is(err, history.ErrSlow) {
		t.Errorf("the error is %v", err)
	}
	if store.calls != 1 {
		t.Errorf("%d calls about the slow task", store.calls)
	}
	store.err = nil
	if _, err := guarded.TaskState(t.Context(), "other"); err != nil {
		t.Errorf("a call about another task: %v", err)
	}
	clock.SetTime(time.Unix(20, 0))
	if _, err := guarded.TaskState(t.Context(), "slow"); err != nil {
		t.Errorf("later: %v", err)
	}
}

func TestASlowCallToAStoreThatDoesNotAnswerPausesAll(t *testing.T) {
	store := &counting{err: history.ErrSlow}
	dead := func(context.Context) error { return history.ErrUnavailable }
	guarded := task.Guard(store, dead, clocktesting.NewFakePassiveClock(time.Unix(0, 0)))
	for _, uid := range []string{"a", "b", "c"} {
		if _, err := guarded.TaskState(t.Context(), uid); !errors.Is(err, history.ErrUnavailable) {
			t.Errorf("the error is %v", err)
		}
	}
	if store.calls != 1 {
		t.Errorf("%d calls reached a store that does not answer", store.calls)
	}
}
