package postgres

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/history/postgres/sqlc"
)

const (
	// timelineChannel is the LISTEN/NOTIFY channel for new entries of timelines. The payload is the namespace,
	// the task's UID, and the id of an event, or one of the two below.
	timelineChannel = "clew_timeline"
	// checkpointPrefix is before the number of a checkpoint in place of an id.
	checkpointPrefix = "checkpoint/"
	// contractKnown is in place of an id, if it has become known to which contract the task belongs.
	contractKnown = "contract"
	// maxOfTask bounds what is read of a task whose contract has become known.
	maxOfTask = 500
)

// checkpointAdded is what notifyTimeline says of a new checkpoint.
func checkpointAdded(number int64) string { return checkpointPrefix + strconv.FormatInt(number, 10) }

// notifyTimeline tells who follows timelines of something new in that of a task, when the transaction commits.
// Events are told of as they are inserted.
func notifyTimeline(ctx context.Context, q *sqlc.Queries, task history.Key, what string) error {
	return q.NotifyTimeline(ctx, task.Namespace+" "+task.UID+" "+what)
}

// ListenEntries calls back for each entry that a timeline has got, until ctx ends, and returns ctx's error. It
// does so as Listen does for changes of tasks: after each connect, and when the tables have been replaced,
// it calls back with an empty NewEntry.
func (s *Store) ListenEntries(ctx context.Context, callback func(history.NewEntry)) error {
	return s.keepListening(ctx, "lost the connection that listens for entries of timelines; reconnecting", func(heard func()) error {
		return s.listen(ctx, timelineChannel, func(payload string) {
			heard()
			callback(newEntry(payload))
		})
	})
}

// newEntry parses a payload of timelineChannel. One of another form becomes an empty NewEntry, after which
// everything is read again.
func newEntry(payload string) history.NewEntry {
	fields := fieldsOf(payload, 3, 1)
	if fields == nil || fields[2] == "" {
		return history.NewEntry{}
	}
	entry, what := history.NewEntry{Task: history.Key{Namespace: fields[0], UID: fields[1]}}, fields[2]
	number, ofCheckpoint := strings.CutPrefix(what, checkpointPrefix)
	switch {
	case ofCheckpoint:
		n, err := strconv.ParseInt(number, 10, 64)
		if err != nil || n < 1 {
			return history.NewEntry{}
		}
		entry.Checkpoint = n
	case what != contractKnown:
		entry.Event = what
	}
	return entry
}

// Entries returns those new entries that a query asks for, oldest first. Of a task whose contract has become
// known, the newest 500 are returned, before the others: an entry may come twice.
func (s *Store) Entries(ctx context.Context, query history.EntriesQuery) ([]history.Event, error) {
	doing := "read new entries of the timelines of " + query.Namespace.Key
	params := sqlc.TimelineEntriesParams{
		Namespace: query.Namespace.Key, Name: query.Name, Contract: query.Contract, Types: listOf(query.Types),
		Ids: []string{}, TaskUids: []string{}, Numbers: []int64{},
	}
	var joined []history.Event
	for _, n := range query.Entries {
		switch {
		case n.Event != "":
			params.Ids = append(params.Ids, n.Event)
		case n.Checkpoint > 0:
			params.TaskUids, params.Numbers = append(params.TaskUids, n.Task.UID), append(params.Numbers, n.Checkpoint)
		case query.Contract != "":
			events, err := s.ofContract(ctx, query, n.Task.UID)
			if err != nil {
				return nil, wrap(err, doing)
			}
			joined = append(joined, events...)
		}
	}
	found, err := s.read().TimelineEntries(ctx, params)
	if err != nil {
		return nil, wrap(err, doing)
	}
	rows := make([]sqlc.NamespaceTimelineRow, 0, len(found))
	for _, row := range found {
		rows = append(rows, sqlc.NamespaceTimelineRow(row))
	}
	events, err := eventsOf(rows, !query.WithoutFileNames)
	return append(joined, events...), wrap(err, doing)
}

// ofContract returns the newest entries of a task, oldest first, if it belongs to the contract that the query
// asks for.
func (s *Store) ofContract(ctx context.Context, query history.EntriesQuery, uid string) ([]history.Event, error) {
	contract, err := s.read().ContractOf(ctx, sqlc.ContractOfParams{Uid: uid, Namespace: query.Namespace.Key})
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return nil, nil // it was deleted since
	case err != nil || contract != query.Contract:
		return nil, err
	}
	events, err := s.timeline(ctx, sqlc.TaskTimelineParams{
		Namespace: query.Namespace.Key, TaskUid: uid, BeforeTime: endOfTime(), Types: listOf(query.Types), UpToRows: maxOfTask,
	}, "", !query.WithoutFileNames)
	slices.Reverse(events)
	return events, err
}
