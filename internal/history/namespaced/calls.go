package namespaced

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"time"

	"github.com/clew-dev/clew/internal/conversation"
	"github.com/clew-dev/clew/internal/history"
)

// Begin opens an attempt.
func (s *Store) Begin(ctx context.Context, task history.Task, attempt int64, source *history.Source, options history.BeginOptions) (history.TaskState, error) {
	keyed, err := s.task(ctx, task)
	if err != nil {
		return history.TaskState{}, err
	}
	state, err := s.keyed.Begin(ctx, keyed, attempt, source, options)
	if errors.Is(err, history.ErrNotFound) { // a grant may just have given the namespace another key
		s.keys.RemoveAll(func(any) bool { return true })
		if keyed, err = s.task(ctx, task); err != nil {
			return history.TaskState{}, err
		}
		state, err = s.keyed.Begin(ctx, keyed, attempt, source, options)
	}
	state.Task = named(state.Task)
	return state, err
}

// Append stores records of an attempt.
func (s *Store) Append(ctx context.Context, task history.Task, attempt int64, records []history.Record) (last int64, err error) {
	if task, err = s.task(ctx, task); err != nil {
		return 0, err
	}
	return s.keyed.Append(ctx, task, attempt, records)
}

// MoveConversation carries out a move.
func (s *Store) MoveConversation(ctx context.Context, task history.Task, attempt int64, op history.MoveOperation) (history.Position, error) {
	task, err := s.task(ctx, task)
	if err != nil {
		return history.Position{}, err
	}
	return s.keyed.MoveConversation(ctx, task, attempt, op)
}

// Report stores what stops the daemon of an attempt from working.
func (s *Store) Report(ctx context.Context, task history.Task, attempt int64, problem *history.Problem) error {
	task, err := s.task(ctx, task)
	if err != nil {
		return err
	}
	return s.keyed.Report(ctx, task, attempt, problem)
}

// TaskState returns the state of a task. The namespace of a task that is of an earlier one keeps
// its key, which is no namespace's name.
func (s *Store) TaskState(ctx context.Context, taskUID string) (history.TaskState, error) {
	state, err := s.keyed.TaskState(ctx, taskUID)
	if err != nil {
		return state, err
	}
	name := Name(state.Task.Namespace)
	key, err := s.key(ctx, name)
	if err != nil {
		return history.TaskState{}, err
	}
	if key != state.Task.Namespace {
		name += "@earlier"
	}
	state.Task.Namespace = name
	return state, nil
}

// Adoption returns what a task has adopted, or could adopt.
func (s *Store) Adoption(ctx context.Context, task history.Task) (history.Adoption, error) {
	task, err := s.task(ctx, task)
	if err != nil {
		return history.Adoption{}, err
	}
	return s.keyed.Adoption(ctx, task)
}

// Adopt gives the history of a former task to one that has none.
func (s *Store) Adopt(ctx context.Context, task history.Task, former string) error {
	task, err := s.task(ctx, task)
	if err != nil {
		return err
	}
	return s.keyed.Adopt(ctx, task, former)
}

// ContinuedBy returns the UID of the task that continues the history of a former one.
func (s *Store) ContinuedBy(ctx context.Context, former history.Key) (string, error) {
	former, err := s.keyOf(ctx, former)
	if err != nil {
		return "", err
	}
	return s.keyed.ContinuedBy(ctx, former)
}

// ForkedTasks returns the tasks that were made for a Fork of a name.
func (s *Store) ForkedTasks(ctx context.Context, namespace, fork string) ([]history.ForkedTask, error) {
	key, err := s.key(ctx, namespace)
	if err != nil {
		return nil, err
	}
	return s.keyed.ForkedTasks(ctx, key, fork)
}

// Operations returns those of the keys under which a completed operation is recorded.
func (s *Store) Operations(ctx context.Context, task history.Key, keys []string) ([]string, error) {
	task, err := s.keyOf(ctx, task)
	if err != nil {
		return nil, err
	}
	return s.keyed.Operations(ctx, task, keys)
}

// Checkpoint returns a checkpoint.
func (s *Store) Checkpoint(ctx context.Context, task history.Key, number int64) (history.Checkpoint, error) {
	task, err := s.keyOf(ctx, task)
	if err != nil {
		return history.Checkpoint{}, err
	}
	return s.keyed.Checkpoint(ctx, task, number)
}

// CheckpointBoundary returns the turn boundary to which a rewind to a checkpoint moves the
// conversation.
func (s *Store) CheckpointBoundary(ctx context.Context, task history.Key, number int64) (history.Position, history.Totals, error) {
	task, err := s.keyOf(ctx, task)
	if err != nil {
		return history.Position{}, history.Totals{}, err
	}
	return s.keyed.CheckpointBoundary(ctx, task, number)
}

// NameCheckpoint records for which checkpoint an object stands.
func (s *Store) NameCheckpoint(ctx context.Context, task history.Key, named history.NamedCheckpoint) error {
	task, err := s.keyOf(ctx, task)
	if err != nil {
		return err
	}
	return s.keyed.NameCheckpoint(ctx, task, named)
}

// ForgetCheckpointName forgets for which checkpoint an object stands that was deleted.
func (s *Store) ForgetCheckpointName(ctx context.Context, task history.Key, named history.NamedCheckpoint) error {
	task, err := s.keyOf(ctx, task)
	if err != nil {
		return err
	}
	return s.keyed.ForgetCheckpointName(ctx, task, named)
}

// NamedCheckpoints returns those of the names for which an object is awaited, or that one of these has.
func (s *Store) NamedCheckpoints(ctx context.Context, task history.Key, names, objects []string) ([]history.NamedCheckpoint, error) {
	task, err := s.keyOf(ctx, task)
	if err != nil {
		return nil, err
	}
	return s.keyed.NamedCheckpoints(ctx, task, names, objects)
}

// ClaimCheckpoint returns the number of the checkpoint that an object of that name stood for.
func (s *Store) ClaimCheckpoint(ctx context.Context, task history.Key, name, object string) (int64, error) {
	task, err := s.keyOf(ctx, task)
	if err != nil {
		return 0, err
	}
	return s.keyed.ClaimCheckpoint(ctx, task, name, object)
}

// CheckpointsBefore returns checkpoints with numbers below one, in descending order.
func (s *Store) CheckpointsBefore(ctx context.Context, task history.Key, before int64, limit int) ([]history.Checkpoint, error) {
	task, err := s.keyOf(ctx, task)
	if err != nil {
		return nil, err
	}
	return s.keyed.CheckpointsBefore(ctx, task, before, limit)
}

// LostCheckpoints calls each with the lost checkpoints of all tasks.
func (s *Store) LostCheckpoints(ctx context.Context, each func([]history.CheckpointKey) error) error {
	return s.keyed.LostCheckpoints(ctx, func(keys []history.CheckpointKey) error {
		for i := range keys {
			keys[i].Task.Namespace = Name(keys[i].Task.Namespace)
		}
		return each(keys)
	})
}

// VerifiedTasks calls each with the tasks whose verdicts have changed.
func (s *Store) VerifiedTasks(ctx context.Context, since time.Time, each func([]history.VerifiedTask) error) error {
	return s.keyed.VerifiedTasks(ctx, since, func(tasks []history.VerifiedTask) error {
		for i := range tasks {
			tasks[i].Task = named(tasks[i].Task)
		}
		return each(tasks)
	})
}

// ReportDamage records that whoever used a checkpoint found it damaged.
func (s *Store) ReportDamage(ctx context.Context, task history.Key, number int64, damage string) error {
	task, err := s.keyOf(ctx, task)
	if err != nil {
		return err
	}
	return s.keyed.ReportDamage(ctx, task, number, damage)
}

// RequestVerification has one checkpoint of a task verified soon.
func (s *Store) RequestVerification(ctx context.Context, task history.Key, number int64, since time.Time) error {
	task, err := s.keyOf(ctx, task)
	if err != nil {
		return err
	}
	return s.keyed.RequestVerification(ctx, task, number, since)
}

// DamagedConversations returns the checkpoints of a task whose messages are missing or changed.
func (s *Store) DamagedConversations(ctx context.Context, task history.Key) (map[int64]string, error) {
	task, err := s.keyOf(ctx, task)
	if err != nil {
		return nil, err
	}
	return s.keyed.DamagedConversations(ctx, task)
}

// RecordVerdicts records what was found of checkpoints.
func (s *Store) RecordVerdicts(ctx context.Context, task history.Key, verdicts []history.Verdict, conversations map[int64]string) ([]history.VerdictChange, error) {
	task, err := s.keyOf(ctx, task)
	if err != nil {
		return nil, err
	}
	return s.keyed.RecordVerdicts(ctx, task, verdicts, conversations)
}

// KeepSpec keeps the last spec of a task.
func (s *Store) KeepSpec(ctx context.Context, task history.Key, kept history.KeptSpec) error {
	task, err := s.keyOf(ctx, task)
	if err != nil {
		return err
	}
	return s.keyed.KeepSpec(ctx, task, kept)
}

// KeptSpec returns the last spec of a task.
func (s *Store) KeptSpec(ctx context.Context, task history.Key) (history.KeptSpec, error) {
	task, err := s.keyOf(ctx, task)
	if err != nil {
		return history.KeptSpec{}, err
	}
	return s.keyed.KeptSpec(ctx, task)
}

// Publication returns what a task has pushed to a ref last.
func (s *Store) Publication(ctx context.Context, task history.Key, ref string) (history.Publication, error) {
	task, err := s.keyOf(ctx, task)
	if err != nil {
		return history.Publication{}, err
	}
	return s.keyed.Publication(ctx, task, ref)
}

// Rewind returns what is known about a rewind.
func (s *Store) Rewind(ctx context.Context, task history.Key, id string) (history.Rewind, error) {
	task, err := s.keyOf(ctx, task)
	if err != nil {
		return history.Rewind{}, err
	}
	return s.keyed.Rewind(ctx, task, id)
}

// Snapshot returns a turn boundary with its sums and digest.
func (s *Store) Snapshot(ctx context.Context, task history.Key, query history.SnapshotQuery) (history.Snapshot, error) {
	task, err := s.keyOf(ctx, task)
	if err != nil {
		return history.Snapshot{}, err
	}
	return s.keyed.Snapshot(ctx, task, query)
}

// TaskConversation returns a page of a conversation.
func (s *Store) TaskConversation(ctx context.Context, query history.ConversationQuery) (page history.EntryPage, err error) {
	if query.Namespace, err = s.key(ctx, query.Namespace); err != nil {
		return page, err
	}
	page, err = s.keyed.TaskConversation(ctx, query)
	page.Task = named(page.Task)
	return page, err
}

// Text returns a cut text in full.
func (s *Store) Text(ctx context.Context, namespace string, p *conversation.Pieces) (string, error) {
	key, err := s.key(ctx, namespace)
	if err != nil {
		return "", err
	}
	return s.keyed.Text(ctx, key, p)
}

// Alive reports whether the database answers.
func (s *Store) Alive(ctx context.Context) error { return s.keyed.Alive(ctx) }

// RecordEvents adds events to the timelines of tasks.
func (s *Store) RecordEvents(ctx context.Context, events []history.Event) error {
	events = slices.Clone(events)
	for i := range events {
		var err error
		if events[i].Task, err = s.task(ctx, events[i].Task); err != nil {
			return err
		}
	}
	return s.keyed.RecordEvents(ctx, events)
}

// RecordedTransitions returns the number up to which all transitions are recorded.
func (s *Store) RecordedTransitions(ctx context.Context, namespace, taskUID string) (int64, error) {
	key, err := s.key(ctx, namespace)
	if err != nil {
		return 0, err
	}
	return s.keyed.RecordedTransitions(ctx, key, taskUID)
}

// Timeline returns a page of a timeline.
func (s *Store) Timeline(ctx context.Context, query history.TimelineQuery) (page history.EventPage, err error) {
	if query.Namespace, err = s.key(ctx, query.Namespace); err != nil {
		return page, err
	}
	page, err = s.keyed.Timeline(ctx, query)
	for i := range page.Events {
		page.Events[i].Task = named(page.Events[i].Task)
	}
	return page, err
}

// Entries returns entries of timelines. The error is history.ErrNotFound if another namespace has the name by
// now, or the namespace has another key, under which there may be entries that nobody was told of.
func (s *Store) Entries(ctx context.Context, query history.EntriesQuery) ([]history.Event, error) {
	events, err := s.keyed.Entries(ctx, query)
	if err != nil {
		return nil, err
	}
	// After the read: the key may be given to another namespace at any time.
	now, err := s.Namespace(ctx, query.Namespace.Name)
	if err != nil {
		return nil, err
	}
	if now != query.Namespace {
		return nil, fmt.Errorf("%w: the namespace %s was made anew, or was given other histories, since its timelines are followed", history.ErrNotFound, now.Name)
	}
	for i := range events {
		events[i].Task = named(events[i].Task)
	}
	return events, nil
}

// ListenEntries calls callback for each entry that a timeline has got. One of an earlier namespace of the name
// has its name, too: Entries does not return it.
func (s *Store) ListenEntries(ctx context.Context, callback func(history.NewEntry)) error {
	return s.keyed.ListenEntries(ctx, func(n history.NewEntry) {
		n.Task.Namespace = Name(n.Task.Namespace)
		callback(n)
	})
}

// TasksNamed returns the tasks of a name that have a history.
func (s *Store) TasksNamed(ctx context.Context, namespace, name string) ([]history.NamedTask, error) {
	key, err := s.key(ctx, namespace)
	if err != nil {
		return nil, err
	}
	return s.keyed.TasksNamed(ctx, key, name)
}

// GoneTask returns the newest task of a name, of which the caller has found that it is gone.
func (s *Store) GoneTask(ctx context.Context, namespace, name string) (history.GoneTask, error) {
	key, err := s.key(ctx, namespace)
	if err != nil {
		return history.GoneTask{}, err
	}
	return s.keyed.GoneTask(ctx, key, name)
}

// Tasks returns a page of a namespace's tasks.
func (s *Store) Tasks(ctx context.Context, query history.TaskQuery) (page history.TaskPage, err error) {
	if query.Namespace, err = s.key(ctx, query.Namespace); err != nil {
		return page, err
	}
	page, err = s.keyed.Tasks(ctx, query)
	for i := range page.Tasks {
		page.Tasks[i].Task = named(page.Tasks[i].Task)
	}
	return page, err
}

// Search returns the messages that contain the words.
func (s *Store) Search(ctx context.Context, query history.SearchQuery) (page history.SearchPage, err error) {
	if query.Namespace, err = s.key(ctx, query.Namespace); err != nil {
		return page, err
	}
	page, err = s.keyed.Search(ctx, query)
	for i := range page.Hits {
		page.Hits[i].Task = named(page.Hits[i].Task)
	}
	return page, err
}

// Export writes the whole history of a task. Its first line has the key of the namespace, by which
// an import recognizes its own.
func (s *Store) Export(ctx context.Context, namespace, name, uid string, write func(history.ExportLine) error) error {
	key, err := s.key(ctx, namespace)
	if err != nil {
		return err
	}
	return s.keyed.Export(ctx, key, name, uid, write)
}

// Import stores an exported history.
func (s *Store) Import(ctx context.Context, namespace, by string, lines iter.Seq2[history.ExportLine, error]) (history.Task, error) {
	key, err := s.key(ctx, namespace)
	if err != nil {
		return history.Task{}, err
	}
	task, err := s.keyed.Import(ctx, key, by, lines)
	return named(task), err
}

// ClaimDeletion is to be called before anything of a task is deleted.
func (s *Store) ClaimDeletion(ctx context.Context, uid string) (formers []string, err error) {
	return s.keyed.ClaimDeletion(ctx, uid)
}

// DeleteTask removes everything stored about a task.
func (s *Store) DeleteTask(ctx context.Context, uid string) (history.Deleted, error) {
	deleted, err := s.keyed.DeleteTask(ctx, uid)
	deleted.Task = named(deleted.Task)
	return deleted, err
}

// Listen calls callback for each notification.
func (s *Store) Listen(ctx context.Context, callback func(history.Notification)) error {
	return s.keyed.Listen(ctx, func(n history.Notification) {
		n.Task = named(n.Task)
		callback(n)
	})
}

// LatestCheckpoints returns the sizes of the newest checkpoints of tasks.
func (s *Store) LatestCheckpoints(ctx context.Context, namespace string, taskUIDs []string) ([]history.CheckpointSize, error) {
	key, err := s.key(ctx, namespace)
	if err != nil {
		return nil, err
	}
	return s.keyed.LatestCheckpoints(ctx, key, taskUIDs)
}
