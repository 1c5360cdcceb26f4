package postgres

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/history/postgres/sqlc"
)

// maxPageBytes is the size of the messages after which a page ends. A reader holds a
// whole page in memory while sending it.
const maxPageBytes = 4 << 20

// Conversation returns up to limit messages of the task's active branch after a position,
// oldest first, including inherited ones. It returns fewer if they are large, and none
// only at the end. history.ErrNotFound if the task has never begun.
func (s *Store) Conversation(ctx context.Context, taskUID string, after int64, limit int) ([]history.Entry, error) {
	doing := "read the conversation of the task with UID " + taskUID
	found, err := s.read().Task(ctx, taskUID)
	if err != nil {
		return nil, wrap(err, doing)
	}
	entries, err := s.entries(ctx, found.Task, found.Branch, after, limit)
	return entries, wrap(err, doing)
}

// entries reads (after, after+limit] of a branch, or the first part of it: positions are
// dense, so the limit is a range.
func (s *Store) entries(ctx context.Context, t sqlc.Task, b sqlc.Branch, after int64, limit int) ([]history.Entry, error) {
	upTo := min(b.HeadPosition, after+int64(limit))
	if upTo <= after {
		return nil, nil
	}
	rows, err := s.read().Conversation(ctx, sqlc.ConversationParams{
		Upto: upTo, BranchID: b.ID, After: after, UpToRows: upTo - after, UpToBytes: maxPageBytes,
	})
	if err != nil {
		return nil, err
	}
	entries := make([]history.Entry, 0, len(rows))
	for _, row := range rows {
		e, err := entryOf(row, t.Uid)
		if err != nil {
			return nil, err
		}
		entries = append(entries, e)
	}
	return entries, nil
}

// TaskConversation returns one page of the conversation of a task given by name;
// history.ErrNotFound if there is no such task or branch.
func (s *Store) TaskConversation(ctx context.Context, query history.ConversationQuery) (history.EntryPage, error) {
	doing := fmt.Sprintf("read the conversation of the task %s/%s", query.Namespace, query.Name)
	task, branch, err := s.findBranch(ctx, query)
	if err != nil {
		return history.EntryPage{}, wrap(err, doing)
	}
	after := max(query.After, 0)
	if query.Last > 0 {
		after = max(branch.HeadPosition-int64(query.Last), 0)
	}
	entries, err := s.entries(ctx, task, branch, after, query.Limit)
	if err != nil {
		return history.EntryPage{}, wrap(err, doing)
	}
	if query.WithEffects {
		if err := s.addCallEffects(ctx, task.Namespace, branch.ID, task.ActiveBranch, entries); err != nil {
			return history.EntryPage{}, wrap(err, doing)
		}
	}
	return history.EntryPage{
		Task:      history.Task{Namespace: task.Namespace, Name: task.Name, UID: task.Uid},
		Entries:   entries,
		Branch:    branchName(branch.Number),
		Remaining: max(branch.HeadPosition-after-int64(len(entries)), 0),
	}, nil
}

func (s *Store) findBranch(ctx context.Context, query history.ConversationQuery) (sqlc.Task, sqlc.Branch, error) {
	var none sqlc.Task
	uid := query.UID
	if uid == "" {
		var err error
		uid, err = s.read().NewestTaskNamed(ctx, sqlc.NewestTaskNamedParams{Namespace: query.Namespace, Name: query.Name})
		if err != nil {
			return none, sqlc.Branch{}, err
		}
	}
	found, err := s.read().Task(ctx, uid)
	if err != nil {
		return none, sqlc.Branch{}, err
	}
	if found.Task.Namespace != query.Namespace || query.Name != "" && found.Task.Name != query.Name {
		return none, sqlc.Branch{}, pgx.ErrNoRows
	}
	if query.Branch == "" {
		return found.Task, found.Branch, nil
	}
	number, ok := branchNumber(query.Branch)
	if !ok {
		return none, sqlc.Branch{}, pgx.ErrNoRows
	}
	branch, err := s.read().BranchByNumber(ctx, sqlc.BranchByNumberParams{TaskUid: uid, Number: number})
	return found.Task, branch, err
}
