// Package fakehistory is an in-memory history store for tests of controllers.
//
// It keeps the promises of package history that controllers rely on: events are stored
// once per id, checkpoints are ordered by number, changes are notified, and a store that
// is down returns history.ErrUnavailable.
package fakehistory

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/clew-dev/clew/internal/history"
)

// Store is the fake. Its zero value is not usable; see New.
type Store struct {
	mu     sync.Mutex
	down   bool
	events []history.Event
	tasks  map[string]*task
	// adopted are the former UIDs of the tasks that continue another one's history.
	adopted   map[string]string
	specs     map[history.Key]history.KeptSpec
	listeners map[int]func(history.Notification)
	calls     []history.ToolCall
	// callListeners listen for calls.
	callListeners map[int]func(history.ToolCallNotification)
	next          int
	budgets       budgets
}

type task struct {
	// order in which tasks began.
	order       int
	state       history.TaskState
	checkpoints []history.Checkpoint
	snapshots   []history.Snapshot
	boundaries  map[int64]int64
	rewinds     map[string]history.Rewind
	names       map[string]history.NamedCheckpoint
	corrupted   error
	said        []string
	// requested are the checkpoints that were requested to be verified.
	requested []int64
}

// New returns an empty store that is up.
func New() *Store {
	return &Store{
		tasks: map[string]*task{}, adopted: map[string]string{}, specs: map[history.Key]history.KeptSpec{},
		listeners: map[int]func(history.Notification){}, callListeners: map[int]func(history.ToolCallNotification){},
		budgets: newBudgets(),
	}
}

// SetDown takes the store down or brings it back up.
func (s *Store) SetDown(down bool) {
	s.mu.Lock()
	s.down = down
	s.mu.Unlock()
	if !down {
		s.notify(history.Notification{})
	}
}

// Events returns the recorded events of a task, in the order of recording.
func (s *Store) Events(taskUID string) []history.Event {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(s.events), func(e history.Event) bool { return e.Task.UID != taskUID })
}

// Forget restores the store to an older copy that has the task's transitions only up to a
// number.
func (s *Store) Forget(taskUID string, through int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.events = slices.DeleteFunc(s.events, func(e history.Event) bool { return e.Task.UID == taskUID && e.Transition > through })
}

// GoBack restores the store to an older copy that does not know the task. As after a real
// restore, listeners are notified to check everything.
func (s *Store) GoBack(t history.Task) {
	s.mu.Lock()
	delete(s.tasks, t.UID)
	s.mu.Unlock()
	s.notify(history.Notification{})
}

// Begin raises the attempt, as a daemon's first call does.
func (s *Store) Begin(t history.Task, attempt int64) {
	s.change(t, func(k *task) { k.state.Attempt = max(k.state.Attempt, attempt) })
}

// SetStored records that the pod of an attempt has stored everything.
func (s *Store) SetStored(t history.Task, attempt int64) {
	s.change(t, func(k *task) { k.state.Attempt, k.state.StoredAttempt = max(k.state.Attempt, attempt), attempt })
}

// AddCheckpoint records another checkpoint of the task and assigns its number.
func (s *Store) AddCheckpoint(t history.Task, row history.Checkpoint) history.Checkpoint {
	return s.AddCheckpoints(t, row)[0]
}

// AddCheckpoints records several checkpoints at once and assigns their numbers.
func (s *Store) AddCheckpoints(t history.Task, rows ...history.Checkpoint) []history.Checkpoint {
	s.change(t, func(k *task) {
		for i := range rows {
			row := &rows[i]
			row.TaskUID, row.Number = t.UID, int64(len(k.checkpoints)+1)
			if row.Commit == "" {
				row.Commit = fmt.Sprintf("%040d", row.Number)
			}
			k.checkpoints = append(k.checkpoints, *row)
		}
	})
	return rows
}

// SetDurable marks a checkpoint as pushed.
func (s *Store) SetDurable(t history.Task, number int64) {
	s.change(t, func(k *task) {
		c := &k.checkpoints[number-1]
		c.Durable, c.Lost, c.Refused = true, false, ""
	})
}

// SetLost records that a checkpoint is lost.
func (s *Store) SetLost(t history.Task, number int64, why string) {
	s.change(t, func(k *task) {
		c := &k.checkpoints[number-1]
		c.Durable, c.Lost, c.Refused = false, true, why
	})
}

// LostCheckpoints implements the controllers' stores.
func (s *Store) LostCheckpoints(_ context.Context, each func([]history.CheckpointKey) error) error {
	lost, err := s.lost()
	if err != nil || len(lost) == 0 {
		return err
	}
	if err := each(lost); !errors.Is(err, history.ErrSkipTask) {
		return err
	}
	return nil
}

func (s *Store) lost() (keys []history.CheckpointKey, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for uid, k := range s.tasks {
		for _, c := range k.checkpoints {
			if c.Lost {
				keys = append(keys, history.CheckpointKey{Task: history.Key{Namespace: k.state.Namespace, UID: uid}, Number: c.Number})
			}
		}
	}
	return keys, s.unavailable()
}

// SetRefused records why the gitstore does not accept a checkpoint.
func (s *Store) SetRefused(t history.Task, number int64, why string) {
	s.change(t, func(k *task) { k.checkpoints[number-1].Refused = why })
}

// SetTotals sets the sums over the conversation.
func (s *Store) SetTotals(t history.Task, totals history.Totals) {
	s.change(t, func(k *task) { k.state.Totals = totals })
}

// SetAgentEnd sets how the task's agent has ended.
func (s *Store) SetAgentEnd(t history.Task, end history.AgentEnd) {
	s.change(t, func(k *task) { k.state.AgentEnd = &end })
}

// SetProblem sets what stops the task's daemon from working; nil for nothing.
func (s *Store) SetProblem(t history.Task, problem *history.Problem) {
	s.change(t, func(k *task) { k.state.Problem = problem })
}

// SetRequests sets the tool calls of the task that wait for an answer.
func (s *Store) SetRequests(t history.Task, requests ...history.ToolRequest) {
	s.change(t, func(k *task) { k.state.Requests = requests })
}

func (s *Store) change(t history.Task, f func(*task)) {
	s.mu.Lock()
	k := s.tasks[t.UID]
	if k == nil {
		k = &task{order: len(s.tasks) + len(s.adopted), state: history.TaskState{Task: t}, names: map[string]history.NamedCheckpoint{}}
		s.tasks[t.UID] = k
	}
	f(k)
	s.mu.Unlock()
	s.notify(history.Notification{Task: t})
}

func (s *Store) notify(n history.Notification) {
	s.mu.Lock()
	var listeners []func(history.Notification)
	if !s.down {
		for _, l := range s.listeners {
			listeners = append(listeners, l)
		}
	}
	s.mu.Unlock()
	for _, l := range listeners {
		l(n)
	}
}

func (s *Store) unavailable() error {
	if s.down {
		return fmt.Errorf("%w: the test took it down", history.ErrUnavailable)
	}
	return nil
}

// TaskState implements the controllers' stores.
func (s *Store) TaskState(_ context.Context, taskUID string) (history.TaskState, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.unavailable(); err != nil {
		return history.TaskState{}, err
	}
	k := s.tasks[taskUID]
	if k == nil {
		return history.TaskState{}, history.ErrNotFound
	}
	state := k.state
	state.CheckpointCount, state.Spent = int64(len(k.checkpoints)), k.spent()
	if n := len(k.checkpoints); n > 0 {
		latest := k.checkpoints[n-1]
		state.Latest = &latest
	}
	return state, nil
}

// find returns a task of the namespace; nil if there is none. The caller holds mu.
func (s *Store) find(key history.Key) *task {
	if k := s.tasks[key.UID]; k != nil && k.state.Namespace == key.Namespace {
		return k
	}
	return nil
}

// Checkpoint implements the controllers' stores.
func (s *Store) Checkpoint(_ context.Context, task history.Key, number int64) (history.Checkpoint, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.unavailable(); err != nil {
		return history.Checkpoint{}, err
	}
	k := s.find(task)
	if k == nil {
		return history.Checkpoint{}, history.ErrNotFound
	}
	i := slices.IndexFunc(k.checkpoints, func(c history.Checkpoint) bool { return c.Number == number })
	if i < 0 {
		return history.Checkpoint{}, history.ErrNotFound
	}
	return k.checkpoints[i], nil
}

// CheckpointsAfter implements the controllers' stores.
func (s *Store) CheckpointsAfter(_ context.Context, taskUID string, after int64, limit int) ([]history.Checkpoint, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.unavailable(); err != nil {
		return nil, err
	}
	k := s.tasks[taskUID]
	if k == nil || after >= int64(len(k.checkpoints)) {
		return nil, nil
	}
	rows := k.checkpoints[after:]
	return slices.Clone(rows[:min(limit, len(rows))]), nil
}

// CheckpointsBefore implements the controllers' stores.
func (s *Store) CheckpointsBefore(_ context.Context, task history.Key, before int64, limit int) ([]history.Checkpoint, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	k := s.find(task)
	if err := s.unavailable(); err != nil || k == nil {
		return nil, err
	}
	older := slices.DeleteFunc(slices.Clone(k.checkpoints), func(c history.Checkpoint) bool { return before > 0 && c.Number >= before })
	slices.Reverse(older)
	return older[:min(limit, len(older))], nil
}

// Operations implements the controllers' stores.
func (s *Store) Operations(_ context.Context, t history.Key, keys []string) (found []string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if k := s.find(t); k != nil {
		for _, key := range keys {
			if slices.Contains(k.state.CompletedOperations, key) {
				found = append(found, key)
			}
		}
	}
	return found, s.unavailable()
}

// SetOperations sets the keys of the task's completed operations.
func (s *Store) SetOperations(t history.Task, keys ...string) {
	s.change(t, func(k *task) { k.state.CompletedOperations = keys })
}

// TasksNamed implements the controllers' stores. Its order is not that of the tasks'
// creation, and it does not know when they began.
func (s *Store) TasksNamed(_ context.Context, namespace, name string) ([]history.NamedTask, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var tasks []history.NamedTask
	for uid, k := range s.tasks {
		if k.state.Namespace == namespace && k.state.Name == name {
			tasks = append(tasks, history.NamedTask{UID: uid})
		}
	}
	slices.SortFunc(tasks, func(a, b history.NamedTask) int { return strings.Compare(a.UID, b.UID) })
	return tasks, s.unavailable()
}

// GoneTask implements the controllers' stores.
func (s *Store) GoneTask(_ context.Context, namespace, name string) (history.GoneTask, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var newest history.GoneTask
	states := map[string]string{}
	for _, e := range s.events {
		if e.Task.Namespace != namespace || e.Task.Name != name {
			continue
		}
		if _, seen := states[e.Task.UID]; !seen {
			newest.UID, states[e.Task.UID] = e.Task.UID, ""
		}
		if e.State != "" && e.State != "Deleted" {
			states[e.Task.UID] = e.State
		}
	}
	if err := s.unavailable(); err != nil || newest.UID == "" {
		return history.GoneTask{}, cmp.Or(err, history.ErrNotFound)
	}
	newest.State = states[newest.UID]
	return newest, nil
}

// Earlier is the namespace of tasks that belong to an earlier namespace of that name.
func Earlier(namespace string) string { return namespace + "@earlier" }

// EarlierNamespace implements the controllers' stores.
func (s *Store) EarlierNamespace(_ context.Context, namespace, name string) (bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, k := range s.tasks {
		if k.state.Namespace == Earlier(namespace) && k.state.Name == name {
			return true, s.unavailable()
		}
	}
	return false, s.unavailable()
}

// Grant gives the histories of earlier namespaces of a name to the one that has it now.
func (s *Store) Grant(namespace string) {
	s.mu.Lock()
	for _, k := range s.tasks {
		if k.state.Namespace == Earlier(namespace) {
			k.state.Namespace = namespace
		}
	}
	s.mu.Unlock()
	s.notify(history.Notification{})
}

// RecordedTransitions implements the manager's store.
func (s *Store) RecordedTransitions(_ context.Context, _, taskUID string) (int64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.unavailable(); err != nil {
		return 0, err
	}
	through := int64(0)
	for slices.ContainsFunc(s.events, func(e history.Event) bool { return e.Task.UID == taskUID && e.Transition == through+1 }) {
		through++
	}
	return through, nil
}

// RecordEvents implements the controllers' stores.
func (s *Store) RecordEvents(_ context.Context, events []history.Event) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.unavailable(); err != nil {
		return err
	}
	for _, e := range events {
		if !slices.ContainsFunc(s.events, func(known history.Event) bool { return known.ID == e.ID }) {
			s.events = append(s.events, e)
		}
	}
	return nil
}

// Publication implements the controllers' stores.
func (s *Store) Publication(_ context.Context, t history.Key, ref string) (history.Publication, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.unavailable(); err != nil {
		return history.Publication{}, err
	}
	for _, e := range slices.Backward(s.events) {
		mine := e.Task.UID == t.UID || e.Task.UID == s.adopted[t.UID]
		if mine && e.Task.Namespace == t.Namespace && e.Publication != nil && e.Publication.Ref == ref {
			found := *e.Publication
			found.Checkpoint, found.Time = e.Checkpoint, e.Time
			return found, nil
		}
	}
	return history.Publication{}, history.ErrNotFound
}

// SetPosition sets the head of the conversation.
func (s *Store) SetPosition(t history.Task, position history.Position) {
	s.change(t, func(k *task) { k.state.Position = position })
}

// ResolvePosition implements the controllers' stores. Every position is a turn boundary,
// except those moved by SetBoundary, and a time leads to no checkpoint that was taken after it.
func (s *Store) ResolvePosition(_ context.Context, taskUID string, q history.PositionQuery) (history.Resolved, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.unavailable(); err != nil {
		return history.Resolved{}, err
	}
	k := s.tasks[taskUID]
	if k == nil {
		return history.Resolved{}, history.ErrNotFound
	}
	head := k.state.Position.Position
	asked := q.Message
	switch {
	case q.Back > 0:
		asked = head - q.Back
	case !q.Time.IsZero():
		asked = head
	}
	if asked < 0 || asked > head {
		return history.Resolved{}, fmt.Errorf("%w: the conversation has %d messages", history.ErrNotFound, head)
	}
	boundary := asked
	if b, ok := k.boundaries[asked]; ok {
		boundary = b
	}
	found := history.Resolved{
		Position: history.Position{Branch: k.state.Position.Branch, Position: boundary},
		Asked:    asked, Snapped: boundary != asked, Totals: history.Totals{Messages: boundary},
	}
	for _, c := range k.checkpoints {
		if c.Position.Position <= boundary && q.Counts(c.Time) {
			found.Checkpoint = &c
		}
	}
	return found, nil
}

// SetBoundary makes a position snap to another one.
func (s *Store) SetBoundary(t history.Task, position, boundary int64) {
	s.change(t, func(k *task) {
		if k.boundaries == nil {
			k.boundaries = map[int64]int64{}
		}
		k.boundaries[position] = boundary
	})
}

// Listen implements notify.Listener.
func (s *Store) Listen(ctx context.Context, callback func(history.Notification)) error {
	s.mu.Lock()
	id := s.next
	s.next++
	s.listeners[id] = callback
	s.mu.Unlock()
	callback(history.Notification{})
	<-ctx.Done()
	s.mu.Lock()
	delete(s.listeners, id)
	s.mu.Unlock()
	return ctx.Err()
}
