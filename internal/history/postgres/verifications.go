package postgres

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sort"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/clew-dev/clew/internal/clip"
	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/history/postgres/sqlc"
)

const (
	// verifyEvery is the time from the beginning of a pass over a task's checkpoints to that of
	// the next one: with the time a pass takes, each checkpoint is verified once a day.
	verifyEvery = 22 * time.Hour
	// verifyLease is how long a part of a pass may take before another server repeats it.
	verifyLease = 20 * time.Minute
	// verifiedAtOnce is how many checkpoints a part of a pass contains.
	verifiedAtOnce = 20
	// enrolledAtOnce is how many tasks EnrollVerifications schedules.
	enrolledAtOnce = 1000
	// minRecheck and maxRecheck bound the pause before a damaged checkpoint is verified again,
	// which is otherwise half the time since it was found: it may have been healed. They also
	// bound the pause after a failure.
	minRecheck, maxRecheck = time.Minute, time.Hour
	// changesPage is how many changed verifications are read at a time.
	changesPage = 500
	// maxDamage is the size of a text about damage.
	maxDamage = 512
)

// EnrollVerifications schedules the verification of tasks that have their first durable
// checkpoint, and returns how many there were.
func (s *Store) EnrollVerifications(ctx context.Context) (int64, error) {
	n, err := s.read().EnrollVerifications(ctx, enrolledAtOnce)
	if err == nil {
		err = s.read().NameVerifications(ctx)
	}
	return n, wrap(err, "schedule the verification of checkpoints")
}

// NextVerification returns the part of a verification that is due for the longest time in the
// next namespace after the given one, in order of their names and from the beginning after the
// last, but in none of those that rest; history.ErrNotFound if none is due. All namespaces that have
// had a name are one. Nobody else gets the part for a while. The caller passes
// the outcome to RecordVerification, or the part to PostponeVerification.
func (s *Store) NextVerification(ctx context.Context, after string, resting []string) (history.Verification, error) {
	var v history.Verification
	err := s.write(ctx, "find checkpoints to verify", func(q *sqlc.Queries) error {
		turn := sqlc.ClaimVerificationParams{After: after, Resting: append([]string{}, resting...), Until: time.Now().Add(verifyLease)}
		row, err := q.ClaimVerification(ctx, turn)
		if turn.After = ""; errors.Is(err, pgx.ErrNoRows) && after != "" {
			row, err = q.ClaimVerification(ctx, turn)
		}
		if err != nil {
			return err
		}
		if row.Requested > 0 {
			v = requested(row)
			return nil
		}
		if row.NextNumber == 0 && time.Since(row.Begun) >= verifyEvery {
			row.NextNumber = 1
			if row.Begun, err = q.BeginPass(ctx, row.TaskID); err != nil {
				return err
			}
		}
		v = history.Verification{
			Task: history.Task{Namespace: row.Namespace, Name: row.Name, UID: row.Uid}, Turn: row.Turn,
			Pass: row.NextNumber > 0, Conversation: row.NextNumber <= 1, TaskID: row.TaskID, Next: row.NextNumber, Begun: row.Begun,
		}
		var rows []int32
		if v.Pass {
			rows, err = q.CheckpointsToVerify(ctx, sqlc.CheckpointsToVerifyParams{TaskID: row.TaskID, FromNumber: row.NextNumber, UpToRows: verifiedAtOnce})
		} else {
			rows, err = q.DamagedCheckpoints(ctx, sqlc.DamagedCheckpointsParams{TaskID: row.TaskID, UpToRows: verifiedAtOnce})
		}
		v.Numbers = numbers(rows)
		return err
	})
	return v, err
}

// requested returns the part of a verification that is the checkpoint which somebody waits for.
func requested(row sqlc.ClaimVerificationRow) history.Verification {
	return history.Verification{
		Task: history.Task{Namespace: row.Namespace, Name: row.Name, UID: row.Uid}, Turn: row.Turn, Requested: true, Conversation: true,
		Since: row.RequestedSince.Time, Numbers: []int64{int64(row.Requested)}, TaskID: row.TaskID, Next: row.NextNumber, Begun: row.Begun,
	}
}

// RequestVerification has one checkpoint of a task verified before all others of the task, and soon; and
// the gitstore asked whether it has the others. since, in whole seconds, is when that began to be waited
// for: what was verified before does not count. It may be repeated. What is found is announced as every
// verdict is, and history.Requests says when that is done. Errors: history.ErrNotFound if the task has no
// such checkpoint; history.ErrUnavailable.
func (s *Store) RequestVerification(ctx context.Context, task history.Key, number int64, since time.Time) error {
	doing := fmt.Sprintf("request the verification of checkpoint %d of the task with UID %s", number, task.UID)
	return s.write(ctx, doing, func(q *sqlc.Queries) error {
		found, err := taskIn(ctx, q, task)
		if err != nil {
			return err
		}
		if _, err := q.Checkpoint(ctx, sqlc.CheckpointParams{TaskUid: task.UID, Number: narrow(number)}); err != nil {
			return err
		}
		_, err = q.RequestVerification(ctx, sqlc.RequestVerificationParams{TaskID: found.TaskID, Number: narrow(number), Since: since})
		return err
	})
}

// recordRequested records the outcome of a verification that was requested.
func (s *Store) recordRequested(ctx context.Context, v history.Verification, verdicts []history.Verdict, conversations map[int64]string) ([]history.VerdictChange, error) {
	var changes []history.VerdictChange
	err := s.write(ctx, "record the requested verification of a checkpoint of the task with UID "+v.Task.UID, func(q *sqlc.Queries) error {
		changes = nil
		for _, verdict := range verdicts {
			change, err := judge(ctx, q, judgement{taskID: v.TaskID, number: verdict.Number, objects: &verdict.Damage,
				messages: conversations[verdict.Number], messagesRead: true, kept: true})
			if err != nil {
				return err
			}
			if change != nil {
				changes = append(changes, *change)
			}
		}
		end := sqlc.EndRequestedVerificationParams{TaskID: v.TaskID, Number: narrow(v.Numbers[0]), Due: v.Begun.Add(verifyEvery)}
		if end.Since = (pgtype.Timestamptz{Time: v.Since, Valid: !v.Since.IsZero()}); len(verdicts) > 0 {
			if err := q.EndRequestedVerification(ctx, end); err != nil {
				return err
			}
		}
		damaged := slices.ContainsFunc(changes, func(c history.VerdictChange) bool { return c.Damage != "" })
		return announce(ctx, q, v, damaged)
	})
	if err != nil {
		return nil, err
	}
	return changes, nil
}

// PostponeVerification puts off a part of a verification that failed, for half the time since the
// pass over the task's checkpoints began: longer each time it fails.
func (s *Store) PostponeVerification(ctx context.Context, v history.Verification) error {
	now := time.Now()
	pause := min(max(now.Sub(v.Begun)/2, minRecheck), maxRecheck)
	err := s.read().PostponeVerification(ctx, sqlc.PostponeVerificationParams{TaskID: v.TaskID, Due: now.Add(pause)})
	return wrap(err, "put off the verification of the task with UID "+v.Task.UID)
}

// DamagedConversations returns the checkpoints of a task whose messages are missing or changed,
// and what is wrong. It reads the conversation of each branch once, and more often only if it is
// damaged.
func (s *Store) DamagedConversations(ctx context.Context, task history.Key) (map[int64]string, error) {
	damaged := map[int64]string{}
	doing := fmt.Sprintf("verify the conversation of the task with UID %s in namespace %s", task.UID, task.Namespace)
	err := s.snapshot(ctx, doing, func(q *sqlc.Queries) error {
		clear(damaged)
		found, err := q.Task(ctx, task.UID)
		if err != nil {
			return err
		}
		places, err := q.ConversationPlaces(ctx, found.Task.ID)
		if err != nil {
			return err
		}
		byBranch := map[int64][]int64{}
		for _, p := range places {
			byBranch[p.BranchID] = append(byBranch[p.BranchID], int64(p.Number))
		}
		for _, branch := range slices.Sorted(maps.Keys(byBranch)) {
			if err := damagedOnBranch(ctx, q, task.UID, byBranch[branch], damaged); err != nil {
				return err
			}
		}
		return nil
	})
	return damaged, err
}

// damagedOnBranch adds the checkpoints of a branch whose messages are damaged. They are given by
// position: from the first damaged message on, all are damaged.
func damagedOnBranch(ctx context.Context, q *sqlc.Queries, uid string, numbers []int64, damaged map[int64]string) error {
	var failed error
	wrong := func(i int) string {
		p, err := checkpointPoint(ctx, q, uid, numbers[i])
		if err == nil {
			err = verify(ctx, q, p)
		}
		if errors.Is(err, history.ErrCorrupted) {
			return err.Error()
		}
		failed = errors.Join(failed, err)
		return ""
	}
	last := wrong(len(numbers) - 1)
	if failed != nil || last == "" {
		return failed
	}
	first := sort.Search(len(numbers)-1, func(i int) bool { return wrong(i) != "" })
	for _, n := range numbers[first:] {
		damaged[n] = last
	}
	return failed
}

// RecordVerification records the outcome of a part of a verification: the verdicts on objects,
// and, if the conversation was verified, what is wrong with messages, by checkpoint. It returns
// the checkpoints that were found damaged, or healed.
func (s *Store) RecordVerification(ctx context.Context, v history.Verification, verdicts []history.Verdict, conversations map[int64]string) ([]history.VerdictChange, error) {
	if v.Requested {
		return s.recordRequested(ctx, v, verdicts, conversations)
	}
	var changes []history.VerdictChange
	err := s.write(ctx, "record the verification of checkpoints of the task with UID "+v.Task.UID, func(q *sqlc.Queries) error {
		changes = nil
		about := map[int64]*string{}
		for i := range verdicts {
			about[verdicts[i].Number] = &verdicts[i].Damage
		}
		for n := range conversations {
			if _, ok := about[n]; !ok {
				about[n] = nil
			}
		}
		if v.Conversation { // those whose messages were damaged before
			known, err := q.DamagedCheckpoints(ctx, sqlc.DamagedCheckpointsParams{TaskID: v.TaskID, UpToRows: changesPage})
			if err != nil {
				return err
			}
			for _, n := range known {
				if _, ok := about[int64(n)]; !ok {
					about[int64(n)] = nil
				}
			}
		}
		for _, n := range slices.Sorted(maps.Keys(about)) {
			said, hasSaid := conversations[n]
			change, err := judge(ctx, q, judgement{taskID: v.TaskID, number: n, objects: about[n], messages: said, messagesRead: hasSaid || v.Conversation})
			if err != nil {
				return err
			}
			if change != nil {
				changes = append(changes, *change)
			}
		}
		return s.schedule(ctx, q, v, len(changes) > 0)
	})
	if err != nil {
		return nil, err
	}
	return changes, nil
}

// judgement is what was found out about a checkpoint.
type judgement struct {
	taskID int32
	number int64
	// objects says what is wrong with its objects; nil if they were not verified.
	objects *string
	// messages says what is wrong with its messages, if they were read.
	messages     string
	messagesRead bool
	// kept is set if it is to be recorded also if nothing is wrong, and nothing ever was.
	kept bool
}

// judge stores the verdict on a checkpoint.
func judge(ctx context.Context, q *sqlc.Queries, j judgement) (*history.VerdictChange, error) {
	key := sqlc.VerdictParams{TaskID: j.taskID, Number: narrow(j.number)}
	before, err := q.Verdict(ctx, key)
	unknown := errors.Is(err, pgx.ErrNoRows)
	if err != nil && !unknown {
		return nil, err
	}
	after := sqlc.SetVerdictParams{TaskID: j.taskID, Number: key.Number, Damage: before.Damage, Conversation: before.Conversation}
	if j.objects != nil {
		after.Damage = shortened(*j.objects)
	}
	if j.messagesRead {
		after.Conversation = shortened(j.messages)
	}
	was, is := before.Damage+before.Conversation, after.Damage+after.Conversation
	if was == "" && is == "" && unknown && !j.kept {
		return nil, nil
	}
	if err := q.SetVerdict(ctx, after); err != nil {
		return nil, err
	}
	if was == is {
		return nil, nil
	}
	now, err := q.Verdict(ctx, key)
	return &history.VerdictChange{Number: j.number, Damage: damageText(after.Damage, after.Conversation), Found: now.Found}, err
}

// shortened returns a text about damage as it is stored.
func shortened(text string) string { return clip.Bytes(clean(text), maxDamage) }

// damageText joins what is wrong with a checkpoint's objects and with its messages.
func damageText(objects, messages string) string {
	if objects != "" && messages != "" {
		return objects + "; " + messages
	}
	return objects + messages
}

// schedule determines when the task's checkpoints are verified next.
func (s *Store) schedule(ctx context.Context, q *sqlc.Queries, v history.Verification, changed bool) error {
	now := time.Now()
	next := sqlc.ScheduleVerificationParams{TaskID: v.TaskID, Changed: changed, Due: now}
	if v.Pass && (len(v.Numbers) == verifiedAtOnce || v.More) {
		next.NextNumber = narrow(v.Numbers[len(v.Numbers)-1] + 1)
		return s.notifyScheduled(ctx, q, v, next)
	}
	if v.Pass {
		through, err := q.VerificationThrough(ctx, v.TaskID)
		if err != nil {
			return err
		}
		next.Done, next.Through = true, v.Next-1
		if len(v.Numbers) > 0 {
			next.Through = narrow(v.Numbers[len(v.Numbers)-1])
		}
		next.Changed = changed || next.Through != through
	}
	newest, err := q.NewestDamage(ctx, v.TaskID)
	if err != nil {
		return err
	}
	next.Due = v.Begun.Add(verifyEvery)
	if newest.Unix() > 0 {
		pause := min(max(now.Sub(newest)/2, minRecheck), maxRecheck)
		if again := now.Add(pause); again.Before(next.Due) {
			next.Due = again
		}
	}
	return s.notifyScheduled(ctx, q, v, next)
}

func (s *Store) notifyScheduled(ctx context.Context, q *sqlc.Queries, v history.Verification, next sqlc.ScheduleVerificationParams) error {
	rows, err := q.ScheduleVerification(ctx, next)
	switch {
	case err != nil:
		return err
	case rows == 0:
		return pgx.ErrNoRows // the task was deleted meanwhile
	case !next.Changed:
		return nil
	}
	return notify(ctx, q, v.Task, 0)
}

// integrity returns what is known about whether a checkpoint is as it was stored.
func (s *Store) integrity(ctx context.Context, taskUID string, number int64) (history.Integrity, error) {
	row, err := s.read().Integrity(ctx, sqlc.IntegrityParams{TaskUid: taskUID, Number: narrow(number)})
	if err != nil {
		return history.Integrity{}, err
	}
	i := history.Integrity{Damage: damageText(row.Damage, row.Conversation), MessagesOnly: row.Damage == "" && row.Conversation != "", Found: row.Found.Time}
	if row.Durable && row.Passed {
		i.Verified = row.Verified.Time
	}
	if row.Checked.Valid && row.Checked.Time.After(i.Verified) {
		i.Verified = row.Checked.Time
	}
	if row.PendingSince.Unix() > 0 {
		i.Requests.Pending = row.PendingSince
	}
	if row.AnsweredSince.Unix() > 0 {
		i.Requests.Answered, i.Requests.Age = row.AnsweredSince, time.Duration(row.AnsweredAge*float64(time.Second))
	}
	if i.Damage == "" {
		return i, nil
	}
	before, err := s.read().IntactBefore(ctx, sqlc.IntactBeforeParams{TaskUid: taskUID, Number: narrow(number)})
	if errors.Is(err, pgx.ErrNoRows) {
		err = nil
	}
	i.IntactBefore = int64(before)
	return i, err
}

// verificationMargin is how much earlier changes are read again: they become visible when
// their transaction ends.
const verificationMargin = time.Minute

// VerifiedTasks calls each with the tasks whose verdicts have changed since a time, some at a
// time, until it returns an error; and with all that were ever verified if the time is zero.
// Changes of the last minute before it are included.
func (s *Store) VerifiedTasks(ctx context.Context, since time.Time, each func([]history.VerifiedTask) error) error {
	from := sqlc.VerificationChangesParams{UpToRows: changesPage}
	if !since.IsZero() {
		from.AfterChanged = since.Add(-verificationMargin)
	}
	for {
		rows, err := s.read().VerificationChanges(ctx, from)
		if err != nil {
			return wrap(err, "list what was verified")
		}
		if len(rows) == 0 {
			return nil
		}
		tasks := make([]history.VerifiedTask, 0, len(rows))
		for _, row := range rows {
			t := history.VerifiedTask{Task: history.Task{Namespace: row.Namespace, Name: row.Name, UID: row.Uid}, Through: int64(row.Through), Changed: row.Changed}
			t.Damaged, t.Intact = numbers(row.Damaged), numbers(row.Intact)
			tasks = append(tasks, t)
			from.AfterChanged, from.AfterTask = row.Changed, row.TaskID
		}
		if err := each(tasks); err != nil {
			return err
		}
	}
}

func numbers(rows []int32) (all []int64) {
	for _, n := range rows {
		all = append(all, int64(n))
	}
	return all
}
