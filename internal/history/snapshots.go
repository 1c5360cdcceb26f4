package history

import (
	"fmt"
	"time"
)

// Kinds of snapshots.
const (
	// SnapshotAutomatic was taken because enough messages had been recorded.
	SnapshotAutomatic = "Automatic"
	// SnapshotCheckpoint was taken with a checkpoint.
	SnapshotCheckpoint = "Checkpoint"
	// SnapshotManual was resolved on request and is not stored.
	SnapshotManual = "Manual"
)

// SnapshotOf is the snapshot of a recorded checkpoint.
func SnapshotOf(c Checkpoint) Snapshot {
	return Snapshot{
		Kind: SnapshotCheckpoint, Time: c.Time, Position: c.Position, Totals: c.Totals, Digest: c.Digest, Checkpoint: c.Number,
	}
}

// Snapshot is a turn boundary with its sums and its digest: a pointer, not a copy.
type Snapshot struct {
	// Ordinal counts the task's automatic snapshots: 1, 2, 3 …; 0 for others.
	Ordinal int64
	Kind    string
	// Time when it was taken; zero if it was resolved on request.
	Time     time.Time
	Position Position
	Totals   Totals
	// Digest is a chain over the hashes of the messages up to the position, in
	// hex: d(i) = SHA-256(d(i-1) || hash(i)), and d(0) is 32 zero bytes.
	Digest string
	// Checkpoint is the newest checkpoint at or before the position; 0 if there is none.
	Checkpoint int64
}

// SnapshotQuery selects a place in a task's conversation: the newest turn boundary if
// neither field is set.
type SnapshotQuery struct {
	Checkpoint int64
	// Position on the active branch, snapped down to a turn boundary.
	Position int64
}

// PositionQuery selects a place on a task's active branch in one of three ways.
type PositionQuery struct {
	// Message is a position.
	Message int64
	// Time selects the last message at or before it, and the newest checkpoint taken by then; see
	// Through. If that message had none by then, and is no tool call that waits for its result, the
	// task's next one counts, if it was taken before anything else happened: another message, a rewind
	// or another run of the agent. It is taken a moment after the message, and has its state.
	Time time.Time
	// Back is the number of messages to go back from the head.
	Back int64
}

// Resolved is the turn boundary that a PositionQuery resolves to.
type Resolved struct {
	Position Position
	// Asked is the requested position, before it was snapped to the turn boundary.
	Asked int64
	// Snapped reports that Position is before Asked, which separates a tool call from its
	// result.
	Snapped bool
	// AfterSequence is the task's record that created the message at Position; 0 if that
	// message is inherited.
	AfterSequence int64
	Totals        Totals
	// Checkpoint is the newest checkpoint at or before the position, on the branch or those it was
	// forked from, or, for a time, the one that has its state; nil if there is none.
	Checkpoint *Checkpoint
	// Elsewhere is the number of a newer checkpoint that was also taken by the query's time, and is on a
	// branch that the conversation has left; 0 for none.
	Elsewhere int64
}

// CheckpointPosition returns where a rewind to Checkpoint moves the conversation. A time may lead
// to one that was taken behind Position, while a tool call waited for its result.
func (r Resolved) CheckpointPosition() int64 {
	return min(r.Checkpoint.Position.Position, r.Position.Position)
}

// Through returns the last instant of the query's time. Times are shown in whole seconds, so
// a time without a fraction stands for its whole second. It is rounded down to microseconds,
// which is what PostgreSQL keeps.
func (q PositionQuery) Through() time.Time {
	if q.Time.IsZero() || q.Time.Nanosecond() != 0 {
		return q.Time
	}
	return q.Time.Add(time.Second - time.Microsecond)
}

// Counts reports whether a checkpoint was taken by the query's time, if it has one.
func (q PositionQuery) Counts(taken time.Time) bool {
	return q.Time.IsZero() || !taken.After(q.Through())
}

// Validate returns an ErrInvalid unless exactly one field is set and it is not negative.
func (q PositionQuery) Validate() error {
	set := 0
	for _, isSet := range []bool{q.Message != 0, !q.Time.IsZero(), q.Back != 0} {
		if isSet {
			set++
		}
	}
	if set != 1 || q.Message < 0 || q.Back < 0 {
		return fmt.Errorf("%w: name exactly one of a message, a time, or the number of messages to go back", ErrInvalid)
	}
	return nil
}
