package postgres

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/history/postgres/sqlc"
)

// RecordVerdicts records what is found out about checkpoints of a task outside of a pass over all
// of them: about the objects of each, and about the messages, by checkpoint. It returns the
// checkpoints that were found damaged, or healed.
func (s *Store) RecordVerdicts(ctx context.Context, task history.Key, verdicts []history.Verdict, conversations map[int64]string) ([]history.VerdictChange, error) {
	var changes []history.VerdictChange
	err := s.write(ctx, "record what was found out about checkpoints of the task with UID "+task.UID, func(q *sqlc.Queries) error {
		changes = nil
		found, err := taskIn(ctx, q, task)
		if err != nil {
			return err
		}
		damaged := false
		for _, v := range verdicts {
			change, err := judge(ctx, q, judgement{taskID: found.TaskID, number: v.Number, objects: &v.Damage, messages: conversations[v.Number], messagesRead: true, kept: true})
			if err != nil {
				return err
			}
			if change != nil {
				changes, damaged = append(changes, *change), damaged || change.Damage != ""
			}
		}
		return announce(ctx, q, found, damaged)
	})
	if err != nil {
		return nil, err
	}
	return changes, nil
}

// ReportDamage records that whoever used a checkpoint found it damaged. It counts as damaged
// until it has been verified, which happens soon.
func (s *Store) ReportDamage(ctx context.Context, task history.Key, number int64, damage string) error {
	doing := fmt.Sprintf("record that checkpoint %d of the task with UID %s is damaged", number, task.UID)
	return s.write(ctx, doing, func(q *sqlc.Queries) error {
		found, err := taskIn(ctx, q, task)
		if err != nil {
			return err
		}
		if _, err := q.Checkpoint(ctx, sqlc.CheckpointParams{TaskUid: task.UID, Number: narrow(number)}); err != nil {
			return err
		}
		before, err := q.Verdict(ctx, sqlc.VerdictParams{TaskID: found.TaskID, Number: narrow(number)})
		if err != nil && !errors.Is(err, pgx.ErrNoRows) {
			return err
		}
		err = q.SetVerdict(ctx, sqlc.SetVerdictParams{TaskID: found.TaskID, Number: narrow(number), Damage: shortened(damage), Conversation: before.Conversation})
		if err != nil {
			return err
		}
		return announce(ctx, q, found, true)
	})
}

// taskIn returns a task of the key's namespace.
func taskIn(ctx context.Context, q *sqlc.Queries, task history.Key) (history.Verification, error) {
	found, err := q.Task(ctx, task.UID)
	if err == nil && found.Task.Namespace != task.Namespace {
		err = pgx.ErrNoRows
	}
	return history.Verification{Task: history.Task{Namespace: task.Namespace, Name: found.Task.Name, UID: task.UID}, TaskID: found.Task.ID}, err
}

// announce tells whoever follows what was verified that there are new verdicts on checkpoints of
// a task. Damaged ones are verified again soon.
func announce(ctx context.Context, q *sqlc.Queries, v history.Verification, damaged bool) error {
	tell := q.AnnounceVerdicts
	if damaged {
		tell = q.HastenVerification
	}
	if _, err := tell(ctx, v.TaskID); err != nil {
		return err
	}
	return notify(ctx, q, v.Task, 0)
}
