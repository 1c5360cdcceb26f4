package history

import (
	"strconv"
	"time"
)

// Integrity is what is known about whether a checkpoint is as it was stored: its objects in the
// gitstore, and its messages.
type Integrity struct {
	// Verified is when it was last verified; zero if it never was.
	Verified time.Time
	// Damage says what is wrong with it; empty if nothing is known to be. Found is when that
	// was found, also if the damage is healed by now.
	Damage string
	Found  time.Time
	// MessagesOnly is true if only messages are damaged: the gitstore has all files.
	MessagesOnly bool
	// IntactBefore is the nearest earlier checkpoint that is not known to be damaged; 0 if there
	// is none, or if this one is intact.
	IntactBefore int64
	// Requests is what became of requests to verify it.
	Requests Requests
}

// Requests is what became of requests to verify a checkpoint. A request names the time since which
// it is waited for, and is known by that: nothing is concluded from a comparison of clocks.
type Requests struct {
	// Pending is that of the request that is still to be carried out; zero if none is.
	Pending time.Time
	// Answered is that of the last request that was carried out, zero if none was, and Age how long
	// ago that was, by the clock of the store.
	Answered time.Time
	Age      time.Duration
}

// Verification is a part of the verification of a task's checkpoints, to be done now.
type Verification struct {
	Task Task
	// Turn is the name of the namespace whose turn it is: all that have had the name share one.
	Turn string
	// Pass is true for a part of the daily pass over all of them, and false for a new look at
	// damaged ones.
	Pass bool
	// Requested is true for a checkpoint that somebody waits to have verified, the only one in Numbers,
	// since Since. What was verified before is then verified again, and the gitstore is asked whether
	// it has all other checkpoints of the task.
	Requested bool
	Since     time.Time
	// Conversation is true if the conversation is to be verified as well.
	Conversation bool
	// Numbers of the checkpoints to verify, in order. There are no more if it is empty.
	Numbers []int64
	// More is set by a caller that has verified only the first ones, and left no others in Numbers.
	More bool

	// TaskID and Next belong to the store.
	TaskID, Next int32
	Begun        time.Time
}

// Verdict says whether a checkpoint is as it was stored.
type Verdict struct {
	Number int64
	// Damage says what is wrong with its objects; empty if nothing is.
	Damage string
}

// VerdictChange is a checkpoint that was found damaged, or healed.
type VerdictChange struct {
	Number int64
	// Damage is empty if it was healed.
	Damage string
	Found  time.Time
}

// VerifiedTask says which checkpoints of a task are intact: those up to Through and those in
// Intact, except for the damaged ones.
type VerifiedTask struct {
	Task    Task
	Through int64
	Damaged []int64
	Intact  []int64
	Changed time.Time
}

// DamageEventID is the id of the event that a checkpoint was found damaged, or healed after it
// was found damaged at that time.
func DamageEventID(taskUID string, number int64, found time.Time, healed bool) string {
	return eventID("damage", taskUID, strconv.FormatInt(number, 10)+"/"+strconv.FormatInt(found.UnixMicro(), 10)+"/"+strconv.FormatBool(healed))
}
