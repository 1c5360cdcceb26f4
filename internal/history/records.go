package history

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/clew-dev/clew/internal/conversation"
)

// Record is one numbered entry that a task's daemon sends to history. Exactly one of
// Message, Checkpoint, Usage, Event, AgentEnd, Piece, Move, Gap, Stored, Request, RequestEnd and HoldEnd is set; a record
// with none of them (from a newer daemon) is counted and otherwise ignored.
type Record struct {
	// Sequence numbers the task's records: 1, 2, 3 … without gaps, across attempts.
	Sequence int64
	// ID is random and distinguishes two records that were given the same sequence; 0 in
	// records of older daemons.
	ID   uint64
	Time time.Time
	// Attempt in which the record was made; a later attempt may ship it.
	Attempt int64

	Message    *conversation.Message
	Checkpoint *Checkpoint
	Usage      *Usage
	Event      *DaemonEvent
	AgentEnd   *AgentEnd
	// Piece is a part of a text that is too long for one record: at most
	// conversation.MaxPiece bytes of valid UTF-8 without NUL. The message that refers to
	// it by its hash follows later.
	Piece []byte
	// Move moves the conversation at the record's place in the sequence. A move that
	// cannot be carried out is stored as refused and changes nothing.
	Move *MoveOperation
	// Gap stands for lost records: those from this record's sequence through Gap.Through.
	Gap *Gap
	// Stored says that the attempt's agent has ended, or that its pod had none; that a checkpoint has
	// everything its volume held; and that the gitstore has every checkpoint that it accepts. Whoever
	// has this record has all that the attempt has recorded about the work.
	Stored bool
	// Request is a tool call that begins to wait for an answer. One with the same id may follow, and
	// changes nothing.
	Request *ToolRequest
	// RequestEnd is the id of a request that waits no longer.
	RequestEnd string
	// HoldEnd says how the agent came to continue that was stopped for a set of checkpoints. One for the
	// same checkpoint may follow, and changes nothing.
	HoldEnd *HoldEnd
}

// HoldEnd is how an agent came to continue that was stopped for a set of checkpoints.
type HoldEnd struct {
	// Set is the UID of the Checkpoint object that names the set.
	Set string `json:"set"`
	// Checkpoint is the number of the checkpoint that was taken for it.
	Checkpoint int64 `json:"checkpoint"`
	// Released: it was stopped from the checkpoint on until it was told to continue. Otherwise it
	// continued before, or may have.
	Released bool `json:"released,omitempty"`
	// InCall: the checkpoint was taken in the middle of a call of a tool.
	InCall bool `json:"inCall,omitempty"`
}

// Gap describes lost records.
type Gap struct {
	// Through is the sequence of the last lost record.
	Through int64
	// Reason is a condition reason.
	Reason string
}

// Last returns the last sequence that the record covers: its own, or that of a gap's last
// lost record.
func (r Record) Last() int64 {
	if r.Gap == nil {
		return r.Sequence
	}
	return max(r.Sequence, r.Gap.Through)
}

// Usage is what the agent has used since the last report.
type Usage struct {
	// InputTokens were sent to the model, including cached ones.
	InputTokens  int64
	OutputTokens int64
	// CostMicroUSD may be negative, when an agent corrects an estimate; the total never
	// falls below 0.
	CostMicroUSD int64
	// CachedInputTokens is the portion of InputTokens that was read from a cache.
	CachedInputTokens int64
	Model             string
}

// DaemonEvent is something the daemon did or found, for the timeline.
type DaemonEvent struct {
	Reason  string
	Message string
	Details map[string]string
}

// FileChange is a file that a checkpoint changed relative to its parent.
type FileChange struct {
	Path string `json:"path"`
	// Action is Added, Modified or Deleted.
	Action string `json:"action"`
}

// MoveResult is the outcome of a conversation move.
type MoveResult struct {
	// ID of the operation.
	ID string
	// Position of the conversation after the move.
	Position Position
	// Refused says why the conversation could not be moved; empty if it was.
	Refused string
}

// Source is the point of another task that a task is forked from.
type Source struct {
	TaskUID    string
	Checkpoint int64
	// IncludeConversation copies the conversation up to the checkpoint.
	IncludeConversation bool
	// MayBeLost lets the conversation begin without the source's messages if the store
	// does not have the checkpoint and hears nothing from the source's own daemon, which
	// could send it again. A gap stands in for them, of Position messages if that is
	// known.
	MayBeLost bool
	Position  int64
}

// BeginOptions are the settings of a new attempt.
type BeginOptions struct {
	// SnapshotEveryMessages is the interval, in messages, between automatic snapshots of
	// the conversation; 0 for none.
	SnapshotEveryMessages int64
	// Contract is the name of the contract that the task belongs to; empty for none. What the task
	// spends from then on counts to the contract as well.
	Contract string
}

// MoveOperation moves a task's conversation back to a checkpoint.
type MoveOperation struct {
	// ID is the operation's key, see daemonapi.OperationKey; each is carried out once.
	ID string
	// Checkpoint to go back to; 0 for the beginning of the task's own conversation:
	// before its first message, or the point where it was forked.
	Checkpoint int64
	// Position, unless 0, is a turn boundary of the active branch to go back to instead
	// of the checkpoint's; Checkpoint is then only recorded.
	Position int64
	// AfterSequence is the record after which the conversation should continue; 0 if
	// unknown. It finds the place even if records were lost, so that positions have
	// shifted or the checkpoint is unknown.
	AfterSequence int64
	Reason        string
	// KeepPosition leaves the conversation unchanged and only records that the operation
	// is done.
	KeepPosition bool
	// Anew continues the conversation without any message, not even those that a fork
	// inherited. Checkpoint and Position are then 0.
	Anew bool
	// Rewound is set at the end of a rewind; nil for other moves, and for those of older
	// daemons. A store keeps it with the operation.
	Rewound *Rewound
}

// Entry is a message at its position in a conversation.
type Entry struct {
	Position int64
	Time     time.Time
	// Branch is the name of the branch the message was written on. For another task's
	// branch, it is that task's UID, a slash, and the name.
	Branch  string
	Attempt int64
	Message conversation.Message
	// Effects are what the message's calls of a supervisor's tools did, if they were asked for.
	Effects []CallEffect
}

// EntryPage is one page of a conversation, oldest message first.
type EntryPage struct {
	Task    Task
	Entries []Entry
	// Branch is the branch that was read.
	Branch string
	// Remaining counts the messages after the page.
	Remaining int64
}

// ConversationQuery selects part of a task's conversation.
type ConversationQuery struct {
	Namespace string
	// Name of the task; the newest task of that name, unless UID is set.
	Name string
	UID  string
	// Branch name; the active branch if empty.
	Branch string
	// After is the position to start after.
	After int64
	// Last, if positive, selects the last messages instead, up to that number.
	Last int
	// Limit is the maximum number of messages.
	Limit int
	// WithEffects asks for what the messages' calls of a supervisor's tools did.
	WithEffects bool
}

// TimelineQuery selects part of a timeline, newest event first.
type TimelineQuery struct {
	Namespace string
	// Name of the task; the newest task of that name, unless UID is set. With neither,
	// all tasks of the namespace.
	Name string
	UID  string
	// Contract selects the tasks of a contract instead, if it is not empty.
	Contract string
	// Types to include; all if empty.
	Types []string
	// Since excludes older events, unless zero.
	Since time.Time
	// Before continues after the event with that time and id, unless zero.
	Before EventKey
	Limit  int
	// WithoutFileNames makes the entries of changed files say only how many there are.
	WithoutFileNames bool
}

// EventKey is an event's place in a timeline.
type EventKey struct {
	Time time.Time
	ID   string
}

// NewEntry says which entry a timeline has got: the event with that ID, or those of the checkpoint with
// that number; if neither is set, all that is known of the task, since it has become known to which
// contract it belongs. An empty one means that any may have been missed.
type NewEntry struct {
	Task       Key
	Event      string
	Checkpoint int64
}

// EntriesQuery asks for new entries of the timelines of a namespace. Its other fields are as in TimelineQuery.
type EntriesQuery struct {
	// Namespace is the one that had its name when following it began.
	Namespace        Namespace
	Name, Contract   string
	Types            []string
	WithoutFileNames bool
	Entries          []NewEntry
}

// EventPage is one page of a timeline, newest event first.
type EventPage struct {
	Events []Event
	// More reports whether there are older events.
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
	// EventTypeAccess records who exported, imported or deleted a history. Such events
	// are kept after the task's history is deleted, and do not make a task appear in
	// lists.
	EventTypeAccess = "access"
	// EventTypeImported is an access event that came with an imported history: an export,
	// import or deletion elsewhere, which this store does not vouch for.
	EventTypeImported = "imported"
)

// GapError says which records are missing. It matches ErrGap.
type GapError struct {
	// Last is the sequence of the last stored record, First that of the first given.
	Last, First int64
}

// Error names the missing records and the sequence to resend from.
func (e *GapError) Error() string {
	return fmt.Sprintf("records %d to %d are missing: the last stored one is %d and the first given is %d; send them from %d on",
		e.Last+1, e.First-1, e.Last, e.First, e.Last+1)
}

// Unwrap returns ErrGap.
func (e *GapError) Unwrap() error { return ErrGap }

// eventSpace is the namespace of event UUIDs.
const eventSpace = "5ad4ee1a-9eb3-5b0f-a5b9-3d9a1cf0e8b1"

// EventID is the id of the event for a task's transition, numbered as in the task's
// status.history.
func EventID(taskUID string, sequence int64) string {
	return eventID("transition", taskUID, strconv.FormatInt(sequence, 10))
}

// RecordEventID is the id of the event that a daemon's record creates.
func RecordEventID(taskUID string, sequence int64) string {
	return eventID("record", taskUID, strconv.FormatInt(sequence, 10))
}

// LeftOutEventID is the id of the event that counts the entries of a task's timeline that were left out
// since a time.
func LeftOutEventID(taskUID string, since time.Time) string {
	return eventID("left-out", taskUID, strconv.FormatInt(since.UnixMicro(), 10))
}

// BranchEventID is the id of the event that a Checkpoint's branch was pushed to the task's
// repository, or was not. The parts tell it from the branch's other events.
func BranchEventID(taskUID string, parts ...string) string {
	return eventID("branch", taskUID, strings.Join(parts, "/"))
}

// ToolCallEventID is the id of the event that a call of a supervisor's tool was answered.
func ToolCallEventID(taskUID, callID string) string {
	return eventID("tool-call", taskUID, callID)
}

// ImportedEventID is the id of an imported event; id is the one it was exported with.
func ImportedEventID(namespace, taskUID, id string) string {
	return eventID("imported/"+namespace, taskUID, id)
}

// ReusedNumberEventID is the id of the event for a transition whose number was used before by
// another one, because the Task's status was restored from an older copy.
func ReusedNumberEventID(id string, at time.Time, reason string) string {
	return eventID("another", id, strconv.FormatInt(at.UnixMicro(), 10)+"/"+reason)
}

// OperationEventID is the id of the event that a conversation move creates.
func OperationEventID(taskUID, operationID string) string {
	return eventID("operation", taskUID, operationID)
}

func eventID(kind, taskUID, rest string) string {
	return uuid.NewSHA1(uuid.MustParse(eventSpace), []byte(kind+"/"+taskUID+"/"+rest)).String()
}
