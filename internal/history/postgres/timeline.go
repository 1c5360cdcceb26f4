package postgres

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/clip"
	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/history/postgres/sqlc"
)

// maxEventBytes bounds an event's message; the rest is cut off.
const maxEventBytes = 4096

// RecordEvents adds events to the timeline. An existing event with the same id is kept
// unchanged, unless it is what an agent's daemon has told of a call that the manager tells of now; and so is
// the first event about the creation of a checkpoint. Events count for the limits of
// their task and its namespace; at a limit, those that say little are counted in one (see admitEvents).
// Errors: history.ErrLimitReached if who exported or imported a history cannot be recorded for that;
// history.ErrUnavailable.
func (s *Store) RecordEvents(ctx context.Context, events []history.Event) error {
	if len(events) == 0 {
		return nil
	}
	byTask := map[string][]history.Event{}
	for _, e := range events {
		if e.ID == "" || e.Task.UID == "" {
			return fmt.Errorf("an event %q of the task %s/%s has no id or no task UID", e.Reason, e.Task.Namespace, e.Task.Name)
		}
		byTask[e.Task.UID] = append(byTask[e.Task.UID], e)
	}
	return s.write(ctx, "record events", func(q *sqlc.Queries) error {
		for _, uid := range slices.Sorted(maps.Keys(byTask)) {
			if err := s.recordEvents(ctx, q, byTask[uid]); err != nil {
				return err
			}
		}
		return nil
	})
}

// recordEvents adds the events of one task.
func (s *Store) recordEvents(ctx context.Context, q *sqlc.Queries, events []history.Event) error {
	uid := events[0].Task.UID
	if err := q.LockTimeline(ctx, uid); err != nil {
		return err
	}
	// The history may have been deleted while this waited for the lock.
	gone, err := q.Deleted(ctx, sqlc.DeletedParams{Uid: uid, Namespace: events[0].Task.Namespace})
	if err != nil {
		return err
	}
	if gone {
		if events = retained(events); len(events) == 0 {
			return nil
		}
	}
	allowed, err := allowanceOf(ctx, q, events[0].Task)
	if err != nil {
		return err
	}
	if err := replaceToldCalls(ctx, q, events); err != nil {
		return err
	}
	if events, err = resolveReusedIDs(ctx, q, events); err != nil {
		return err
	}
	admitted, err := s.admitEvents(ctx, q, allowed, once(events))
	if err != nil {
		return err
	}
	if err := allowed.store(ctx, q, admitted); err != nil {
		return err
	}
	if err := setPublications(ctx, q, events); err != nil {
		return err
	}
	if len(admitted) == 0 && !allowed.used.Known {
		return nil // nothing is listed of a task that has no room
	}
	return summarize(ctx, q, events)
}

// replaceToldCalls deletes what a daemon has told of the calls that these events of one task tell of.
func replaceToldCalls(ctx context.Context, q *sqlc.Queries, events []history.Event) error {
	var ids []string
	for _, e := range events {
		if e.Reason == v1alpha1.EventToolCalled {
			ids = append(ids, e.ID)
		}
	}
	if len(ids) == 0 {
		return nil
	}
	return q.DeleteToldCalls(ctx, sqlc.DeleteToldCallsParams{Ids: ids, TaskUid: events[0].Task.UID, Namespace: events[0].Task.Namespace})
}

// once returns the events without those that say the same as an earlier one.
func once(events []history.Event) []history.Event {
	var rest []history.Event
	seen := map[string]bool{}
	for _, e := range events {
		key := e.ID
		if e.Reason == reasonCheckpointCreated && e.Checkpoint > 0 {
			key = fmt.Sprint(reasonCheckpointCreated, e.Checkpoint)
		}
		if !seen[key] && !seen[e.ID] {
			rest = append(rest, e)
		}
		seen[key], seen[e.ID] = true, true
	}
	return rest
}

// summarize updates what lists show of the events' task.
func summarize(ctx context.Context, q *sqlc.Queries, events []history.Event) error {
	for _, e := range events {
		if e.Type == history.EventTypeAccess {
			continue
		}
		if err := joinContract(ctx, q, e.Task.Key(), e.Contract); err != nil {
			return err
		}
		err := q.SummarizeEvent(ctx, sqlc.SummarizeEventParams{
			Uid: e.Task.UID, Namespace: e.Task.Namespace, Name: e.Task.Name, Contract: e.Contract, State: e.State, Time: e.Time,
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// transitions returns the first unbroken run of transition numbers among the events, in
// whatever order they come; 0 for none. The oldest transition available counts as number
// 1.
func transitions(events []history.Event) (first, through int64) {
	var numbers []int64
	oldest := int64(0)
	for _, e := range events {
		if e.Transition > 0 {
			numbers = append(numbers, e.Transition)
		}
		if e.Oldest {
			oldest = e.Transition
		}
	}
	if len(numbers) == 0 {
		return 0, 0
	}
	slices.Sort(numbers)
	first, through = numbers[0], numbers[0]
	for _, n := range numbers[1:] {
		if n > through+1 {
			break
		}
		through = n
	}
	if first == oldest {
		first = 1
	}
	return first, through
}

// resolveReusedIDs gives a separate id to each transition whose number was already used
// by another one: the Task's status was restored from an older copy, and its numbers are
// assigned again. It also records up to which number transitions are recorded.
func resolveReusedIDs(ctx context.Context, q *sqlc.Queries, events []history.Event) ([]history.Event, error) {
	var ids []string
	for _, e := range events {
		if e.Type != history.EventTypeAccess {
			ids = append(ids, e.ID)
		}
	}
	if len(ids) == 0 {
		return events, nil
	}
	if first, through := transitions(events); through > 0 {
		note := sqlc.NoteTransitionsParams{TaskUid: events[0].Task.UID, Namespace: events[0].Task.Namespace, First: first, Through: through}
		for _, e := range events {
			note.ActiveSeconds = max(note.ActiveSeconds, e.ActiveSeconds)
		}
		if err := q.NoteTransitions(ctx, note); err != nil {
			return nil, err
		}
	}
	known, err := q.EventsKnown(ctx, ids)
	if err != nil {
		return nil, err
	}
	events = slices.Clone(events)
	for _, k := range known {
		for i, e := range events {
			if e.ID == k.ID && (e.Reason != k.Reason || e.Transition > 0 && e.Time.Sub(k.Time).Abs() > time.Millisecond) {
				events[i].ID = history.ReusedNumberEventID(e.ID, e.Time, e.Reason)
			}
		}
	}
	return events, nil
}

// retained returns the events that are kept about a task whose history was deleted: who
// deleted it. From then on the task is known by its UID alone.
func retained(events []history.Event) []history.Event {
	kept := slices.DeleteFunc(slices.Clone(events), func(e history.Event) bool { return e.Type != history.EventTypeAccess })
	for i := range kept {
		kept[i].Task.Name = ""
	}
	return kept
}

// appendEvent adds one row; details is JSON.
func appendEvent(rows *sqlc.InsertEventsParams, e history.Event, details []byte) {
	if details == nil {
		details = []byte("{}")
	}
	rows.ID = append(rows.ID, e.ID)
	rows.Namespace = append(rows.Namespace, e.Task.Namespace)
	rows.TaskUid = append(rows.TaskUid, e.Task.UID)
	rows.TaskName = append(rows.TaskName, e.Task.Name)
	rows.Time = append(rows.Time, e.Time)
	rows.Type = append(rows.Type, clean(e.Type))
	rows.Reason = append(rows.Reason, clean(e.Reason))
	rows.Actor = append(rows.Actor, clean(e.Actor))
	rows.Message = append(rows.Message, clip.Marked(clean(e.Message), maxEventBytes))
	rows.Attempt = append(rows.Attempt, e.Attempt)
	rows.Checkpoint = append(rows.Checkpoint, e.Checkpoint)
	rows.Details = append(rows.Details, details)
	rows.ImportedID = append(rows.ImportedID, "")
}

// endOfTime returns a time later than any event.
func endOfTime() time.Time { return time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC) }

// Timeline returns events of a namespace or of one task, newest first;
// history.ErrNotFound if the named task never had one. Consecutive pages neither miss nor
// repeat an event, whatever is added at the top meanwhile.
func (s *Store) Timeline(ctx context.Context, query history.TimelineQuery) (history.EventPage, error) {
	doing := fmt.Sprintf("read the timeline of %s/%s", query.Namespace, query.Name)
	params := sqlc.TaskTimelineParams{
		Namespace: query.Namespace, TaskUid: query.UID,
		BeforeTime: query.Before.Time, BeforeID: query.Before.ID,
		Since: query.Since, Types: query.Types, UpToRows: int32(query.Limit) + 1,
	}
	if params.BeforeTime.IsZero() {
		params.BeforeTime = endOfTime()
	}
	if params.Types == nil {
		params.Types = []string{}
	}
	if query.Name != "" && query.UID == "" {
		uid, err := s.uidOf(ctx, query.Namespace, query.Name)
		if err != nil {
			return history.EventPage{}, wrap(err, doing)
		}
		params.TaskUid = uid
	}
	events, err := s.timeline(ctx, params, query.Contract, !query.WithoutFileNames)
	if err != nil {
		return history.EventPage{}, wrap(err, doing)
	}
	page := history.EventPage{Events: events}
	if len(events) > query.Limit {
		page.Events, page.More = events[:query.Limit], true
	}
	return page, nil
}

// timeline reads the events of a contract, of a task, or of the namespace if neither is given;
// fileNames includes the names of changed files.
func (s *Store) timeline(ctx context.Context, params sqlc.TaskTimelineParams, contract string, fileNames bool) ([]history.Event, error) {
	var rows []sqlc.NamespaceTimelineRow
	var err error
	if contract != "" {
		var ofContract []sqlc.ContractTimelineRow
		ofContract, err = s.read().ContractTimeline(ctx, sqlc.ContractTimelineParams{
			Namespace: params.Namespace, Contract: contract, BeforeTime: params.BeforeTime, BeforeID: params.BeforeID,
			Since: params.Since, Types: params.Types, UpToRows: params.UpToRows,
		})
		for _, row := range ofContract {
			rows = append(rows, sqlc.NamespaceTimelineRow(row))
		}
	} else if params.TaskUid == "" {
		rows, err = s.read().NamespaceTimeline(ctx, sqlc.NamespaceTimelineParams{
			Namespace: params.Namespace, BeforeTime: params.BeforeTime, BeforeID: params.BeforeID,
			Since: params.Since, Types: params.Types, UpToRows: params.UpToRows,
		})
	} else {
		var ofTask []sqlc.TaskTimelineRow
		ofTask, err = s.read().TaskTimeline(ctx, params)
		for _, row := range ofTask {
			rows = append(rows, sqlc.NamespaceTimelineRow(row))
		}
	}
	if err != nil {
		return nil, err
	}
	return eventsOf(rows, fileNames)
}

// eventsOf converts rows of a timeline; fileNames includes the names of changed files.
func eventsOf(rows []sqlc.NamespaceTimelineRow, fileNames bool) ([]history.Event, error) {
	events := make([]history.Event, 0, len(rows))
	for _, row := range rows {
		if !fileNames {
			row.Changes = ""
		}
		event, err := eventOf(row)
		if err != nil {
			return nil, err
		}
		events = append(events, event)
	}
	return events, nil
}

// uidOf returns the UID of the newest task of that name, whether or not it ever ran.
func (s *Store) uidOf(ctx context.Context, namespace, name string) (string, error) {
	uid, err := s.read().NewestEventTaskNamed(ctx, sqlc.NewestEventTaskNamedParams{Namespace: namespace, Name: name})
	if errors.Is(err, pgx.ErrNoRows) {
		return s.read().NewestTaskNamed(ctx, sqlc.NewestTaskNamedParams{Namespace: namespace, Name: name})
	}
	return uid, err
}

// eventOf converts a row of the timeline: an event, a checkpoint, or the files that changed
// up to one.
func eventOf(row sqlc.NamespaceTimelineRow) (history.Event, error) {
	var err error
	switch {
	case row.Trigger != "":
		row.Message = checkpointText(row)
	case row.FilesChanged > 0:
		row.Message, err = filesText(row)
	}
	return history.Event{
		ID:   row.ID,
		Task: history.Task{Namespace: row.Namespace, Name: row.TaskName, UID: row.TaskUid},
		Time: row.Time, Type: row.Type, Reason: row.Reason, Actor: row.Actor, Message: row.Message,
		Attempt: row.Attempt, Checkpoint: row.Checkpoint, ImportedBy: row.ImportedBy,
	}, err
}
