// Package verification verifies that checkpoints are as they were stored: their objects in the
// gitstore, and their messages in the history. OnDemand does so when somebody asks, Verifier in
// the background.
//
// Every durable checkpoint is verified once a day, and a damaged one again soon after, since it
// may have been healed. Any number of servers may do so: the history hands each part of the work
// to one of them, and to another one if that is lost. A server does one part after the other,
// and rests several times as long as it worked, up to a limit. A part that takes longer than its
// turn is put aside half done, and a namespace whose turn took long waits for those of others. A
// part that fails is put off on its own; only when the history or the gitstore cannot be reached
// does the server pause. What is found is recorded in the history, from where the manager learns
// of it. When somebody waits for a checkpoint before the only other copy of the task's work is
// deleted, all of the task's checkpoints are compared with what the gitstore has.
package verification

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/go-logr/logr"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/backoff"
	"github.com/clew-dev/clew/internal/gitstoreapi"
	"github.com/clew-dev/clew/internal/history"
)

// Store is the part of the history store that verifications need. Its errors wrap those of
// package history.
type Store interface {
	EnrollVerifications(ctx context.Context) (int64, error)
	NextVerification(ctx context.Context, after string, resting []string) (history.Verification, error)
	PostponeVerification(ctx context.Context, v history.Verification) error
	DamagedConversations(ctx context.Context, task history.Key) (map[int64]string, error)
	PushedCheckpoints(ctx context.Context, taskUID string) (durable, lost []int64, err error)
	RecordVerification(ctx context.Context, v history.Verification, verdicts []history.Verdict, conversations map[int64]string) ([]history.VerdictChange, error)
	eventStore
}

// Code verifies the objects of a checkpoint. Its refusals are *gitstoreapi.Refusal.
type Code interface {
	Verify(ctx context.Context, namespace, uid string, checkpoint int64, since time.Time) (gitstoreapi.Verification, error)
}

// Inventory also lists the numbers of the checkpoints that the gitstore has of a task.
type Inventory interface {
	Code
	Checkpoints(ctx context.Context, namespace, uid string) ([]int64, error)
}

const (
	// idle is how long a verifier waits when nothing is due, and enroll the time between two
	// looks for new tasks.
	idle, enroll = 10 * time.Second, 5 * time.Minute
	// rest is the pause after some work, as a multiple of the time it took; minRest is the
	// shortest one, and maxRest the longest.
	rest, minRest, maxRest = 4, 100 * time.Millisecond, 10 * time.Second
	// demandTime is how long a verification on demand may take. What the gitstore has verified
	// meanwhile it does not read again.
	demandTime = 18 * time.Minute
)

// Verifier verifies checkpoints. All fields but Idle are required.
type Verifier struct {
	Store Store
	Code  Inventory
	Log   logr.Logger
	// Idle is how long to wait when nothing is due; 10 s if 0.
	Idle time.Duration

	enrolled time.Time
	turns    turns
	// last is the namespace whose turn it was.
	last string
}

// Run verifies what is due until ctx ends, and returns ctx's error.
func (v *Verifier) Run(ctx context.Context) error {
	wait := backoff.Backoff{Min: minWait, Max: maxWait}
	for ctx.Err() == nil {
		began := time.Now()
		worked, err := v.Step(ctx)
		pause := min(max(minRest, rest*time.Since(began)), maxRest)
		switch {
		case err != nil && ctx.Err() == nil:
			v.Log.Info("checkpoints could not be verified; trying again", "error", err.Error())
			pause = wait.Next()
		case !worked:
			wait.Reset()
			pause = idle
			if v.Idle > 0 {
				pause = v.Idle
			}
		default:
			wait.Reset()
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
	}
	return ctx.Err()
}

// minWait and maxWait are the shortest and the longest pause after a failure.
const minWait, maxWait = 5 * time.Second, 5 * time.Minute

// Step does one part of what is due; worked is false if there was none.
func (v *Verifier) Step(ctx context.Context) (worked bool, err error) {
	if time.Since(v.enrolled) >= enroll {
		if _, err := v.Store.EnrollVerifications(ctx); err != nil {
			return false, err
		}
		v.enrolled = time.Now()
	}
	part, err := v.next(ctx)
	if errors.Is(err, history.ErrNotFound) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	v.last = part.Turn
	began := time.Now()
	changes, done, err := v.verify(ctx, part)
	v.turns.took(part, time.Since(began), done, time.Now())
	if err != nil && (ctx.Err() != nil || unreachable(err)) {
		return false, err
	}
	log := v.Log.WithValues("namespace", part.Task.Namespace, "task", part.Task.Name)
	if err != nil {
		log.Info("checkpoints of a task could not be verified; trying again later", "error", err.Error())
		err = v.Store.PostponeVerification(ctx, part)
		return err == nil, err
	}
	tell(ctx, v.Store, log, part.Task, changes)
	return true, nil
}

// next returns the next part. While others have something to verify, a namespace rests.
func (v *Verifier) next(ctx context.Context) (history.Verification, error) {
	resting := v.turns.resting(time.Now())
	part, err := v.Store.NextVerification(ctx, v.last, resting)
	if errors.Is(err, history.ErrNotFound) && len(resting) > 0 {
		part, err = v.Store.NextVerification(ctx, v.last, nil)
	}
	return part, err
}

// unreachable reports whether an error says that this server does not reach the gitstore, or is
// not let in, and nothing about one task. Whether the history can be reached shows when the part
// is put off.
func unreachable(err error) bool {
	var refused *gitstoreapi.Refusal
	return errors.Is(err, gitstoreapi.ErrUnreachable) ||
		errors.As(err, &refused) && (refused.Reason == gitstoreapi.Unauthenticated || refused.Reason == gitstoreapi.Forbidden)
}

// verify verifies a part, and records what it finds; done is false if its turn ended before. What
// was verified until then is recorded.
func (v *Verifier) verify(ctx context.Context, part history.Verification) (changes []history.VerdictChange, done bool, err error) {
	turn, cancel := context.WithTimeout(ctx, v.turns.of(part.Task))
	defer cancel()
	var conversations map[int64]string
	if part.Conversation {
		if conversations, err = v.Store.DamagedConversations(turn, part.Task.Key()); err != nil {
			return nil, turn.Err() == nil, err
		}
	}
	verdicts, err := v.objects(turn, part)
	done = err == nil
	if turn.Err() != nil && len(verdicts) > 0 {
		part.More, err = len(verdicts) < len(part.Numbers), nil
		part.Numbers = part.Numbers[:len(verdicts)]
	}
	if err != nil && turn.Err() != nil && ctx.Err() == nil {
		return nil, false, fmt.Errorf("the turn of the task ended before one checkpoint was verified: %w", turn.Err())
	}
	if err != nil {
		return nil, true, err
	}
	if part.Requested {
		missing, err := v.missing(turn, part.Task.Key())
		if err != nil {
			return nil, turn.Err() == nil, err
		}
		verdicts = together(verdicts, missing)
	}
	changes, err = v.Store.RecordVerification(ctx, part, verdicts, conversations)
	return changes, done, err
}

// together returns verdicts with further ones on other checkpoints.
func together(verdicts, further []history.Verdict) []history.Verdict {
	for _, f := range further {
		if !slices.ContainsFunc(verdicts, func(v history.Verdict) bool { return v.Number == f.Number }) {
			verdicts = append(verdicts, f)
		}
	}
	return verdicts
}

// objects verifies the objects of checkpoints, and returns the verdicts until the first error.
func (v *Verifier) objects(ctx context.Context, part history.Verification) ([]history.Verdict, error) {
	var verdicts []history.Verdict
	for _, number := range part.Numbers {
		damage, err := Objects(ctx, v.Code, part.Task.Key(), number, part.Since)
		if err != nil {
			return verdicts, err
		}
		verdicts = append(verdicts, history.Verdict{Number: number, Damage: damage})
	}
	return verdicts, nil
}

// Objects verifies the objects of one checkpoint, and says what is wrong with them; nothing if
// they are intact. What was verified before since is verified again.
func Objects(ctx context.Context, code Code, task history.Key, number int64, since time.Time) (damage string, err error) {
	found, err := code.Verify(ctx, task.Namespace, task.UID, number, since)
	var refused *gitstoreapi.Refusal
	if errors.As(err, &refused) && refused.Reason == gitstoreapi.NotFound {
		return "the gitstore has no checkpoint of the task", nil
	}
	if err != nil {
		return "", fmt.Errorf("verify checkpoint %d of the task with UID %s: %w", number, task.UID, err)
	}
	switch len(found.Damage) {
	case 0:
		return "", nil
	case 1:
		return "in the gitstore, " + found.Damage[0].String(), nil
	}
	return fmt.Sprintf("in the gitstore, %s, and %d more objects are damaged", found.Damage[0], len(found.Damage)-1), nil
}

// eventStore records events.
type eventStore interface {
	RecordEvents(ctx context.Context, events []history.Event) error
}

// tell logs and records which checkpoints were found damaged, or healed.
func tell(ctx context.Context, store eventStore, log logr.Logger, task history.Task, changes []history.VerdictChange) {
	events := Events(task, changes, time.Now())
	if len(events) == 0 {
		return
	}
	for _, e := range events {
		log.Info(e.Message, "checkpoint", e.Checkpoint, "reason", e.Reason)
	}
	if err := store.RecordEvents(ctx, events); err != nil {
		log.Info("the event about what was verified could not be recorded", "error", err.Error())
	}
}

// Events returns the events of the timeline about checkpoints that were found damaged, or healed.
func Events(task history.Task, changes []history.VerdictChange, now time.Time) []history.Event {
	var events []history.Event
	for _, c := range changes {
		e := history.Event{
			ID: history.DamageEventID(task.UID, c.Number, c.Found, c.Damage == ""), Task: task, Time: now,
			Type: history.EventTypeCheckpoint, Actor: "clew", Checkpoint: c.Number,
			Reason: v1alpha1.EventCheckpointCorrupted, Message: fmt.Sprintf("checkpoint %d is damaged: %s", c.Number, c.Damage),
		}
		if c.Damage == "" {
			e.Reason, e.Message = v1alpha1.EventCheckpointHealed, fmt.Sprintf("checkpoint %d is intact again", c.Number)
		}
		events = append(events, e)
	}
	return events
}
