package history

import (
	"fmt"
	"time"
)

// Kinds of snapshots.
const (
	// SnapshotAutomatic was noted because enough messages had come.
	SnapshotAutomatic = "Automatic"
	// SnapshotCheckpoint was noted with a checkpoint.
	SnapshotCheckpoint = "Checkpoint"
	// SnapshotManual was resolved when somebody asked, and is not stored.
	SnapshotManual = "Manual"
)

// Snapshot is a turn boundary with its sums and its digest: a pointer, not a
// copy.
type Snapshot struct {
	// Ordinal counts the task's automatic snapshots: 1, 2, 3 …; 0 for others.
	Ordinal int64
	Kind    string
	// Time it was noted; zero for one that was resolved when somebody asked.
	Time     time.Time
	Position Position
	Totals   Totals
	// Digest is a chain over the hashes of the messages up to the position, in
	// hex: d(i) = SHA-256(d(i-1) || hash(i)), and d(0) is 32 zero bytes.
	Digest string
	// Checkpoint is the newest checkpoint at or before the position; 0 if there
	// is none.
	Checkpoint int64
}

// SnapshotQuery names a place of a task's conversation; the newest boundary if
// neither field is set.
type SnapshotQuery struct {
	Checkpoint int64
	// Position on the active branch, snapped down to a turn boundary.
	Position int64
}

// PositionQuery names a place of a task's active branch, in one of three ways.
type PositionQuery struct {
	// Message is a position.
	Message int64
	// Time leads to the last message at or before it.
	Time time.Time
	// Back is how many messages to go back from the head.
	Back int64
}

// Resolved is the turn boundary that a PositionQuery leads to.
type Resolved struct {
	Position Position
	// Asked is the position before it was snapped to the turn boundary.
	Asked int64
	// Snapped: Position is before Asked, which parts a tool call from its result.
	Snapped bool
	// AfterSequence is the task's record that made the message at Position; 0 if
	// that is an inherited one.
	AfterSequence int64
	Totals        Totals
	// Checkpoint is the newest one of the branch, or of those it grew from, that
	// is not after the position; nil if there is none.
	Checkpoint *Checkpoint
}

// Valid is an ErrInvalid unless exactly one field is set, and not below 0.
func (q PositionQuery) Valid() error {
	set := 0
	for _, is := range []bool{q.Message != 0, !q.Time.IsZero(), q.Back != 0} {
		if is {
			set++
		}
	}
	if set != 1 || q.Message < 0 || q.Back < 0 {
		return fmt.Errorf("%w: name a message, a time, or how many messages to go back, and just one of these", ErrInvalid)
	}
	return nil
}
