package history

import (
	"fmt"
	"strconv"
	"time"

	"github.com/google/uuid"

	"github.com/clew-dev/clew/internal/conversation"
)

// Record is one thing a task's daemon tells, once. Exactly one of Message,
// Checkpoint, Usage, Event, AgentEnd, Piece, Move and Gap is set; a record with none of them (made by a
// newer daemon) is counted and otherwise ignored.
type Record struct {
	// Sequence counts the task's records: 1, 2, 3 … without gaps, across attempts.
	Sequence int64
	// ID is random and tells two records apart that were given the same
	// sequence; 0 in records of older daemons.
	ID   uint64
	Time time.Time
	// Attempt in which the record was made; the attempt that ships it may be a
	// later one.
	Attempt int64

	Message    *conversation.Message
	Checkpoint *Checkpoint
	Usage      *Usage
	Event      *Note
	AgentEnd   *AgentEnd
	// Piece is a part of a text that is too long for one record, at most
	// conversation.MaxPiece bytes of valid UTF-8 without NUL. The message that
	// names it by its hash comes later.
	Piece []byte
	// Move moves the conversation at its place among the records. One that
	// cannot be carried out is kept as refused, and moves nothing.
	Move *MoveOperation
	// Gap stands for records that are lost: this one's sequence through Gap's.
	Gap *Gap
}

// Gap says that records are lost.
type Gap struct {
	// Through is the sequence of the last record that is lost.
	Through int64
	// Reason is one as conditions have it.
	Reason string
}

// Last is the sequence of the last record that the record stands for: its own,
// but for a gap.
func (r Record) Last() int64 {
	if r.Gap == nil {
		return r.Sequence
	}
	return max(r.Sequence, r.Gap.Through)
}

// Usage is what the agent used since the last report.
type Usage struct {
	// InputTokens were sent to the model, cached ones included.
	InputTokens  int64
	OutputTokens int64
	// CostMicroUSD may be negative, where an agent corrects an estimate; the
	// total never falls below 0.
	CostMicroUSD int64
	// CachedInputTokens is the part of InputTokens that was read from a cache.
	CachedInputTokens int64
	Model             string
}

// Note is something the daemon did or found, for the timeline.
type Note struct {
	Reason  string
	Message string
	Details map[string]string
}

// FileChange is a file that a checkpoint has changed since its parent.
type FileChange struct {
	Path string `json:"path"`
	// Action: Added, Modified or Deleted.
	Action string `json:"action"`
}

// MoveResult is what became of a move of the conversation.
type MoveResult struct {
	// ID is the operation's.
	ID string
	// Position is where the conversation stood after it.
	Position Position
	// Refused says why it could not be moved; empty when it was.
	Refused string
}

// Source is the point of another task that a task starts from.
type Source struct {
	TaskUID    string
	Checkpoint int64
	// IncludeConversation takes the conversation up to the checkpoint along.
	IncludeConversation bool
	// MayBeLost has the conversation begin without what it had there if the store
	// does not have the checkpoint, and hears nothing of the source's own daemon, which
	// could send it again: a gap, of Position messages if that is known.
	MayBeLost bool
	Position  int64
}

// BeginOptions are what a new attempt asks of the store.
type BeginOptions struct {
	// SnapshotEveryMessages notes a snapshot of the conversation every so many
	// messages; 0 for none.
	SnapshotEveryMessages int64
}

// MoveOperation moves a task's conversation back to a checkpoint.
type MoveOperation struct {
	// ID is the operation's key, see daemonapi.OperationKey; the same one is
	// carried out once.
	ID string
	// Checkpoint to go back to; 0 for the beginning of the task's own
	// conversation: before its first message, or where it was forked.
	Checkpoint int64
	// Position, unless 0, is a turn boundary of the active branch to go back
	// to instead of the checkpoint's; Checkpoint is then only noted.
	Position int64
	// AfterSequence is the record behind which the conversation is to stand; 0 if
	// that is not known. It leads to the place also where records were lost, so
	// that positions are others, or the checkpoint is unknown.
	AfterSequence int64
	Reason        string
	// KeepPosition leaves the conversation where it is and only notes that the
	// operation is done.
	KeepPosition bool
}

// Entry is a message at its place in a conversation.
type Entry struct {
	Position int64
	Time     time.Time
	// Branch is the name of the branch the message was written on; of another
	// task's branch, that task's UID, a slash, and the name.
	Branch  string
	Attempt int64
	Message conversation.Message
}

// EntryPage is a part of a conversation, oldest message first.
type EntryPage struct {
	Task    Task
	Entries []Entry
	// Branch is the branch that was read.
	Branch string
	// Remaining counts the messages after the page.
	Remaining int64
}

// ConversationQuery asks for a part of a task's conversation.
type ConversationQuery struct {
	Namespace string
	// Name of the task; the newest task that had the name, unless UID is set.
	Name string
	UID  string
	// Branch by name; the active one if empty.
	Branch string
	// After is the position to begin after.
	After int64
	// Last, if positive, asks for the last so many messages instead.
	Last int
	// Limit is how many messages at most.
	Limit int
}

// TimelineQuery asks for a part of a timeline, newest event first.
type TimelineQuery struct {
	Namespace string
	// Name of the task; the newest task that had the name, unless UID is set.
	// With neither, all tasks of the namespace.
	Name string
	UID  string
	// Types to keep; all if empty.
	Types []string
	// Since leaves out what is older, unless zero.
	Since time.Time
	// Before continues after the event of that time and id, unless zero.
	Before EventKey
	Limit  int
}

// EventKey is an event's place in a timeline.
type EventKey struct {
	Time time.Time
	ID   string
}

// EventPage is a part of a timeline, newest event first.
type EventPage struct {
	Events []Event
	// More tells that there are older events.
	More bool
}

// Types of events.
const (
	EventTypeTask       = "task"
	EventTypeChat       = "chat"
	EventTypeCheckpoint = "checkpoint"
	EventTypeRewind     = "rewind"
	EventTypeFork       = "fork"
	EventTypeFile       = "file"
	// EventTypeAccess tells who took a history out, brought one in, or deleted
	// one. Such events are kept of a task whose history was deleted, and they do
	// not make a task appear in lists.
	EventTypeAccess = "access"
	// EventTypeImported is what an imported history says of who took it out,
	// brought it in or deleted it elsewhere: it is not this store's word.
	EventTypeImported = "imported"
)

// GapError says which records are missing. It is an ErrGap.
type GapError struct {
	// Last is the sequence of the last stored record, First that of the first given.
	Last, First int64
}

func (e *GapError) Error() string {
	return fmt.Sprintf("records %d to %d are missing: the last stored one is %d and the first given is %d; send them from %d on",
		e.Last+1, e.First-1, e.Last, e.First, e.Last+1)
}

func (e *GapError) Unwrap() error { return ErrGap }

// eventSpace is the name space of the ids of events.
const eventSpace = "5ad4ee1a-9eb3-5b0f-a5b9-3d9a1cf0e8b1"

// EventID is the id of the event for a transition of a task, numbered as in
// the task's status.history.
func EventID(taskUID string, sequence int64) string {
	return eventID("transition", taskUID, strconv.FormatInt(sequence, 10))
}

// RecordEventID is the id of the event that a daemon's record makes.
func RecordEventID(taskUID string, sequence int64) string {
	return eventID("record", taskUID, strconv.FormatInt(sequence, 10))
}

// ImportedEventID is the id of an event that came with the import of a history;
// id is the one that it was exported with.
func ImportedEventID(namespace, taskUID, id string) string {
	return eventID("imported/"+namespace, taskUID, id)
}

// AnotherEventID is the id of the event for a transition whose number another
// one was recorded under before: the Task's status was put back to an older copy.
func AnotherEventID(id string, at time.Time, reason string) string {
	return eventID("another", id, strconv.FormatInt(at.UnixMicro(), 10)+"/"+reason)
}

// OperationEventID is the id of the event that a conversation move makes.
func OperationEventID(taskUID, operationID string) string {
	return eventID("operation", taskUID, operationID)
}

func eventID(kind, taskUID, rest string) string {
	return uuid.NewSHA1(uuid.MustParse(eventSpace), []byte(kind+"/"+taskUID+"/"+rest)).String()
}
