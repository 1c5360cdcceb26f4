package task

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/util/cache"
	"k8s.io/utils/clock"

	"github.com/clew-dev/clew/internal/budget"
	"github.com/clew-dev/clew/internal/history"
)

const (
	// storeTimeout bounds a call: a worker must not hang on a store that is down.
	storeTimeout = 5 * time.Second
	// storePause is how long no call is made after the store could not be reached.
	storePause = 2 * time.Second
	// slowPause is how long no call about a task is made after one has taken too long. It is several
	// times as long as a call may take, so that slow tasks take little of the workers' time.
	slowPause = 15 * time.Second
	// probeTimeout bounds the question whether the store answers at all.
	probeTimeout = time.Second
	// slowKept bounds the tasks that are remembered to be slow.
	slowKept = 4096
)

// Guard wraps a Store so that a store that is down delays the work on tasks as little as
// possible: calls have a timeout, and for a short time after one has failed, all others
// fail at once. A call that takes too long for a reason of its own task, such as a lock that a
// pod of it keeps, has no effect on other tasks. Alive reports whether the store answers.
func Guard(store Store, alive func(context.Context) error, c clock.PassiveClock) Store {
	return &guard{store: store, alive: alive, clock: c, slow: cache.NewLRUExpireCacheWithClock(slowKept, c)}
}

type guard struct {
	store Store
	alive func(context.Context) error
	clock clock.PassiveClock
	// slow are the tasks about which no calls are made for now, as they are named in calls.
	slow *cache.LRUExpireCache

	mu    sync.Mutex
	until time.Time
}

// call runs f with a timeout, unless a call has just found the store unavailable, or one about the same
// task has just taken too long.
func (g *guard) call(ctx context.Context, about string, f func(context.Context) error) error {
	if g.paused() {
		return fmt.Errorf("%w: it could not be a moment ago", history.ErrUnavailable)
	}
	if _, slow := g.slow.Get(about); slow {
		return fmt.Errorf("%w: not a moment ago either, about this task", history.ErrSlow)
	}
	bounded, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	err := f(bounded)
	if err != nil && bounded.Err() != nil && ctx.Err() == nil && !errors.Is(err, history.ErrSlow) {
		err = fmt.Errorf("%w: %w", history.ErrSlow, err)
	}
	switch {
	case errors.Is(err, history.ErrSlow) && g.answers(ctx):
		g.slow.Add(about, nil, slowPause)
	case errors.Is(err, history.ErrUnavailable):
		g.pause()
	}
	return err
}

func (g *guard) paused() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.clock.Now().Before(g.until)
}

func (g *guard) pause() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.until = g.clock.Now().Add(storePause)
}

// answers reports whether the store answers at all.
func (g *guard) answers(ctx context.Context) bool {
	probing, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	return g.alive(probing) == nil
}

func (g *guard) TaskState(ctx context.Context, taskUID string) (state history.TaskState, err error) {
	err = g.call(ctx, taskUID, func(ctx context.Context) error {
		state, err = g.store.TaskState(ctx, taskUID)
		return err
	})
	return state, err
}

func (g *guard) Spending(ctx context.Context, task history.Task, contract string) (spending history.Spending, err error) {
	err = g.call(ctx, task.UID, func(ctx context.Context) error {
		spending, err = g.store.Spending(ctx, task, contract)
		return err
	})
	return spending, err
}

func (g *guard) SetBudgets(ctx context.Context, task history.Task, set history.SetBudgets) error {
	return g.call(ctx, task.UID, func(ctx context.Context) error { return g.store.SetBudgets(ctx, task, set) })
}

func (g *guard) RecallSpending(ctx context.Context, task history.Task, spent budget.Amounts, through int64) error {
	return g.call(ctx, task.UID, func(ctx context.Context) error { return g.store.RecallSpending(ctx, task, spent, through) })
}

func (g *guard) RecallContractSpending(ctx context.Context, task history.Task, contract string, spent budget.Amounts, since time.Time) error {
	return g.call(ctx, task.UID, func(ctx context.Context) error {
		return g.store.RecallContractSpending(ctx, task, contract, spent, since)
	})
}

func (g *guard) CheckpointsAfter(ctx context.Context, taskUID string, after int64, limit int) (rows []history.Checkpoint, err error) {
	err = g.call(ctx, taskUID, func(ctx context.Context) error {
		rows, err = g.store.CheckpointsAfter(ctx, taskUID, after, limit)
		return err
	})
	return rows, err
}

func (g *guard) Checkpoint(ctx context.Context, task history.Key, number int64) (row history.Checkpoint, err error) {
	err = g.call(ctx, task.UID, func(ctx context.Context) error {
		row, err = g.store.Checkpoint(ctx, task, number)
		return err
	})
	return row, err
}

func (g *guard) CheckpointsBefore(ctx context.Context, task history.Key, before int64, limit int) (rows []history.Checkpoint, err error) {
	err = g.call(ctx, task.UID, func(ctx context.Context) error {
		rows, err = g.store.CheckpointsBefore(ctx, task, before, limit)
		return err
	})
	return rows, err
}

func (g *guard) TaskConversation(ctx context.Context, query history.ConversationQuery) (page history.EntryPage, err error) {
	err = g.call(ctx, query.UID, func(ctx context.Context) error {
		page, err = g.store.TaskConversation(ctx, query)
		return err
	})
	return page, err
}

func (g *guard) TasksNamed(ctx context.Context, namespace, name string) (tasks []history.NamedTask, err error) {
	err = g.call(ctx, namespace+"/"+name, func(ctx context.Context) error {
		tasks, err = g.store.TasksNamed(ctx, namespace, name)
		return err
	})
	return tasks, err
}

func (g *guard) GoneTask(ctx context.Context, namespace, name string) (gone history.GoneTask, err error) {
	err = g.call(ctx, namespace+"/"+name, func(ctx context.Context) error {
		gone, err = g.store.GoneTask(ctx, namespace, name)
		return err
	})
	return gone, err
}

func (g *guard) EarlierNamespace(ctx context.Context, namespace, name string) (left bool, err error) {
	err = g.call(ctx, namespace+"/"+name, func(ctx context.Context) error {
		left, err = g.store.EarlierNamespace(ctx, namespace, name)
		return err
	})
	return left, err
}

func (g *guard) Adoption(ctx context.Context, task history.Task) (found history.Adoption, err error) {
	err = g.call(ctx, task.UID, func(ctx context.Context) error {
		found, err = g.store.Adoption(ctx, task)
		return err
	})
	return found, err
}

func (g *guard) Adopt(ctx context.Context, task history.Task, former string) error {
	return g.call(ctx, task.UID, func(ctx context.Context) error { return g.store.Adopt(ctx, task, former) })
}

func (g *guard) ContinuedBy(ctx context.Context, former history.Key) (uid string, err error) {
	err = g.call(ctx, former.UID, func(ctx context.Context) error {
		uid, err = g.store.ContinuedBy(ctx, former)
		return err
	})
	return uid, err
}

func (g *guard) FormerTasks(ctx context.Context, taskUID string) (formers []history.FormerTask, err error) {
	err = g.call(ctx, taskUID, func(ctx context.Context) error {
		formers, err = g.store.FormerTasks(ctx, taskUID)
		return err
	})
	return formers, err
}

func (g *guard) Operations(ctx context.Context, task history.Key, keys []string) (found []string, err error) {
	err = g.call(ctx, task.UID, func(ctx context.Context) error {
		found, err = g.store.Operations(ctx, task, keys)
		return err
	})
	return found, err
}

func (g *guard) Publication(ctx context.Context, task history.Key, ref string) (found history.Publication, err error) {
	err = g.call(ctx, task.UID, func(ctx context.Context) error {
		found, err = g.store.Publication(ctx, task, ref)
		return err
	})
	return found, err
}

func (g *guard) RequestVerification(ctx context.Context, task history.Key, number int64, since time.Time) error {
	return g.call(ctx, task.UID, func(ctx context.Context) error {
		return g.store.RequestVerification(ctx, task, number, since)
	})
}

func (g *guard) DamagedObjects(ctx context.Context, taskUID string) (numbers []int64, err error) {
	err = g.call(ctx, taskUID, func(ctx context.Context) error {
		numbers, err = g.store.DamagedObjects(ctx, taskUID)
		return err
	})
	return numbers, err
}

func (g *guard) UnpushedCheckpoints(ctx context.Context, taskUID string) (numbers []int64, err error) {
	err = g.call(ctx, taskUID, func(ctx context.Context) error {
		numbers, err = g.store.UnpushedCheckpoints(ctx, taskUID)
		return err
	})
	return numbers, err
}

func (g *guard) Rewind(ctx context.Context, task history.Key, id string) (found history.Rewind, err error) {
	err = g.call(ctx, task.UID, func(ctx context.Context) error {
		found, err = g.store.Rewind(ctx, task, id)
		return err
	})
	return found, err
}

func (g *guard) RecordEvents(ctx context.Context, events []history.Event) error {
	return g.call(ctx, subject(events), func(ctx context.Context) error { return g.store.RecordEvents(ctx, events) })
}

func (g *guard) KeepSpec(ctx context.Context, task history.Key, kept history.KeptSpec) error {
	return g.call(ctx, task.UID, func(ctx context.Context) error { return g.store.KeepSpec(ctx, task, kept) })
}

func (g *guard) KeptSpec(ctx context.Context, task history.Key) (kept history.KeptSpec, err error) {
	err = g.call(ctx, task.UID, func(ctx context.Context) error {
		kept, err = g.store.KeptSpec(ctx, task)
		return err
	})
	return kept, err
}

func (g *guard) ForkedTasks(ctx context.Context, namespace, fork string) (tasks []history.ForkedTask, err error) {
	err = g.call(ctx, namespace+"/"+fork, func(ctx context.Context) error {
		tasks, err = g.store.ForkedTasks(ctx, namespace, fork)
		return err
	})
	return tasks, err
}

func (g *guard) RecordedTransitions(ctx context.Context, namespace, taskUID string) (n int64, err error) {
	err = g.call(ctx, taskUID, func(ctx context.Context) error {
		n, err = g.store.RecordedTransitions(ctx, namespace, taskUID)
		return err
	})
	return n, err
}

func (g *guard) ResolvePosition(ctx context.Context, taskUID string, query history.PositionQuery) (found history.Resolved, err error) {
	err = g.call(ctx, taskUID, func(ctx context.Context) error {
		found, err = g.store.ResolvePosition(ctx, taskUID, query)
		return err
	})
	return found, err
}

func (g *guard) SnapshotsAfter(ctx context.Context, taskUID string, after int64, limit int) (rows []history.Snapshot, err error) {
	err = g.call(ctx, taskUID, func(ctx context.Context) error {
		rows, err = g.store.SnapshotsAfter(ctx, taskUID, after, limit)
		return err
	})
	return rows, err
}

// subject returns the task that events are about: those of one call are about one.
func subject(events []history.Event) string {
	if len(events) == 0 {
		return ""
	}
	return events[0].Task.UID
}
