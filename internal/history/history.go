// Package history defines the contract of the history store: the types it keeps and the
// errors it returns. Package postgres, below it, implements the store.
//
// The store is the system of record for conversations, checkpoints and the timeline; it
// outlives the custom resources. Every write is idempotent and may be repeated: records
// carry a per-task sequence assigned by the writer, events a deterministic id, operations
// their own id.
package history

import (
	"errors"
	"strings"
	"time"
	"unicode"

	"github.com/clew-dev/clew/internal/budget"
	"github.com/clew-dev/clew/internal/conversation"
)

// Errors that callers distinguish.
var (
	// ErrNotFound: the task, checkpoint or position is not in the store.
	ErrNotFound = errors.New("not found in the history store")
	// ErrFenced: a newer attempt of the task has begun; the writer must stop.
	ErrFenced = errors.New("a newer attempt of this task has begun")
	// ErrGap: records are missing between the last stored one and the first given.
	ErrGap = errors.New("records are missing before the first one given")
	// ErrUnavailable: the store cannot be reached; try again.
	ErrUnavailable = errors.New("the history store cannot be reached")
	// ErrOldSchema: the store's schema lacks something that this program needs. The
	// schema is older until a server has migrated it, or newer, as an old program sees it
	// during an upgrade. It also matches ErrUnavailable.
	ErrOldSchema error = oldSchemaError{}
	// ErrSlow: the call took too long, or waited for too long for others that are about the same
	// task. The store itself may be well. It also matches ErrUnavailable.
	ErrSlow error = slowError{}
	// ErrUnanswered: too many calls of tools by the task's agent have no answer yet.
	ErrUnanswered = errors.New("too many calls of tools are not answered yet")
	// ErrTooSoon: the same was done a moment ago; try again in some seconds.
	ErrTooSoon = errors.New("this was done a moment ago: try again in a few seconds")
	// ErrCorrupted: the stored data is not what was written.
	ErrCorrupted = errors.New("the history is damaged")
	// ErrInvalid: the request cannot be carried out as it was made.
	ErrInvalid = errors.New("not a valid request")
	// ErrForeign: a different record is stored under the same sequence; another writer
	// wrote it.
	ErrForeign = errors.New("other records of this task are stored under the same sequences")
	// ErrExists: the task is already in the store.
	ErrExists = errors.New("already in the history store")
	// ErrSkipTask is returned by the callback of a list to skip the rest of the current
	// task.
	ErrSkipTask = errors.New("skip to the next task")
	// ErrLimitReached: a task or a namespace has reached its storage limit.
	ErrLimitReached = errors.New("the storage limit is reached")
)

// MaxUIDBytes is the longest UID that an imported task may have. UIDs of Kubernetes have
// 36 bytes.
const MaxUIDBytes = 64

// IsUID reports whether uid may be the UID of an imported task. UIDs are stored and
// compared unchanged, so a text that would have to be cleaned is refused, and so is one
// with spaces or control characters: they part the fields of the store's notifications.
func IsUID(uid string) bool {
	parts := func(r rune) bool { return unicode.IsSpace(r) || unicode.IsControl(r) }
	return uid != "" && len(uid) <= MaxUIDBytes && conversation.CleanText(uid) == uid && !strings.ContainsFunc(uid, parts)
}

type oldSchemaError struct{}

// Error implements error.
func (oldSchemaError) Error() string {
	return "the history database's schema is not the one of this release: after a restore of an older backup, and in an upgrade, the servers bring it up to date"
}

// Is reports whether target is ErrUnavailable.
func (oldSchemaError) Is(target error) bool { return target == ErrUnavailable }

type slowError struct{}

// Error implements error.
func (slowError) Error() string { return "the history store has not answered in time" }

// Is reports whether target is ErrUnavailable.
func (slowError) Is(target error) bool { return target == ErrUnavailable }

// Task identifies a task. UID alone is the key; the names are kept for queries.
type Task struct {
	Namespace string
	Name      string
	UID       string
}

// NamedTask is one of the tasks that had the same name.
type NamedTask struct {
	UID string
	// Began is when its first attempt began.
	Began time.Time
}

// Adoption is the history that a task continues because its Task was applied anew.
type Adoption struct {
	// Former is the UID of the task that it was recorded for; empty for none.
	Former string
	// Done: it belongs to the new task. Otherwise the new task could adopt it.
	Done bool
	// Start is where the former task had started.
	Start Start
	// Phase is the one of its contract that it was in; empty for none.
	Phase string
}

// FormerTask is a task whose history another one continues.
type FormerTask struct {
	UID string
	// NamespaceUID is the UID of the newest namespace whose histories are those of both; "" if none
	// is known.
	NamespaceUID string
}

// TaskAdoption says that a task continues the history of a former one. The task's name is not known.
type TaskAdoption struct {
	Task   Key
	Former FormerTask
}

// Position is a place in a task's conversation.
type Position struct {
	// Branch is the branch's id.
	Branch string
	// Position counts the messages up to this place, including inherited ones.
	Position int64
	// ToolCalls counts the answered tool calls up to this place.
	ToolCalls int64
}

// Totals are sums over the active branch of a conversation.
type Totals struct {
	Messages     int64
	ToolCalls    int64
	InputTokens  int64
	OutputTokens int64
	CostMicroUSD int64
}

// Key returns the key of the task.
func (t Task) Key() Key { return Key{Namespace: t.Namespace, UID: t.UID} }

// Key identifies a task by a UID that may come from an object that anybody in the
// namespace can write. The namespace confines lookups to what was recorded in it.
type Key struct {
	Namespace string
	UID       string
}

// Namespace is a namespace that the history knows; it may be gone.
type Namespace struct {
	Name string
	// UID is "unknown" for one that was gone before UIDs were recorded.
	UID string
	// Key is what its histories are stored under; namespaces may share one.
	Key string
	// Gone is set if it is known not to exist any more.
	Gone bool
}

// TaskState is the state of a task in the store.
type TaskState struct {
	Task
	// Attempt is the newest attempt that has begun.
	Attempt int64
	// LastSequence is the sequence of the last stored record.
	LastSequence int64
	// LastRecordID is that record's id; 0 if it has none.
	LastRecordID uint64
	// LostRecords counts the records that are lost for good and appear as gaps.
	LostRecords int64
	// LeftOutRecords counts the records that were not stored, or only in part, because
	// the task or its namespace had reached a limit.
	LeftOutRecords int64
	Position       Position
	Totals         Totals
	// Spent is what the task has spent, whatever rewinds have taken back.
	Spent budget.Amounts
	// CheckpointCount counts the recorded checkpoints.
	CheckpointCount int64
	// Latest is the newest checkpoint; nil when there is none.
	Latest *Checkpoint
	// CompletedOperations are the keys of finished conversation moves, newest last, at
	// most 100.
	CompletedOperations []string
	// Moves are the outcomes of the newest conversation moves, including refused ones,
	// oldest first, at most 100.
	Moves []MoveResult
	// OpenToolCalls are the ids of tool calls on the active branch that have no result.
	OpenToolCalls []string
	// Problem is what stops the daemon of the newest attempt from working; nil if nothing
	// does.
	Problem *Problem
	// AgentEnd describes how the agent of the newest attempt that ended failed; nil if it
	// succeeded.
	AgentEnd *AgentEnd
	// Requests are the tool calls of the newest attempt that wait for a person's answer, and those for
	// which its agent was stopped.
	Requests []ToolRequest
	// Holds are how the newest holds of the task's agent ended, oldest first; see HoldEnd.
	Holds []HoldEnd
	// ActiveAt is the time of the agent's last recorded activity; zero if there is none.
	ActiveAt time.Time
	// WorkedAt is the time of the last recorded message, call, result or use of the model by the agent, and
	// not of other output, nor of notes of Clew's; zero if there is none.
	WorkedAt time.Time
	// AgentAttempt is the newest attempt of whose agent anything was recorded, 0 for none, and
	// AgentSince when that began.
	AgentAttempt int64
	AgentSince   time.Time
	// ActiveSeconds is how long the agent has run in all, as far as transitions have said so.
	ActiveSeconds int64
	// StoredAttempt is the newest attempt whose pod has reported that everything on its volume is
	// stored elsewhere; 0 for none. See Record.Stored.
	StoredAttempt int64
}

// ToolRequest is a tool call that waits for a person's answer.
type ToolRequest struct {
	ID      string `json:"id"`
	Attempt int64  `json:"attempt"`
	Tool    string `json:"tool"`
	// Input is the beginning of the tool's input, masked, and InputDigest the SHA-256 of all of it.
	Input       string `json:"input,omitempty"`
	InputDigest string `json:"inputDigest,omitempty"`
	// Message is that of the task's rule; it may be empty.
	Message string `json:"message,omitempty"`
	// StopsAgent is set if the agent is stopped for it, so that no call waits.
	StopsAgent bool      `json:"stopsAgent,omitempty"`
	Since      time.Time `json:"since"`
	Deadline   time.Time `json:"deadline"`
	// Refused is why a rule refuses the call, so that nobody is asked; empty otherwise.
	Refused string `json:"refused,omitempty"`
}

// AgentEnd describes how an agent failed.
type AgentEnd struct {
	Attempt int64 `json:"attempt"`
	// ExitCode of the program, 128+n for a signal n; -1 if unknown.
	ExitCode int32 `json:"exitCode"`
	// Cause is a value of agent.Cause; empty if unknown.
	Cause string `json:"cause,omitempty"`
	// Message is the agent's output about the failure, masked.
	Message string `json:"message,omitempty"`
	// RetryAfter is the pause that the model's API asked for; 0 for none.
	RetryAfter time.Duration `json:"retryAfter,omitempty"`
}

// Problem is a condition that stops a daemon from working until somebody acts.
type Problem struct {
	// Reason is a condition reason.
	Reason string
	// Message says what is wrong and what to do.
	Message string
}

// Checkpoint is a recorded checkpoint.
type Checkpoint struct {
	TaskUID string
	Number  int64
	Attempt int64
	// Trigger is a v1alpha1.CheckpointTrigger, and Consistency a
	// v1alpha1.CheckpointConsistency, empty if unknown. Both are stored as the daemon
	// sent them: a daemon of a later release may send a value that this one does not
	// know.
	Trigger        string
	Consistency    string
	Time           time.Time
	Message        string
	Commit         string
	Tree           string
	Parent         string
	Base           string
	StateCommit    string
	FilesChanged   int32
	LinesAdded     int64
	LinesRemoved   int64
	GitHead        string
	GitBranch      string
	DirtyFiles     []string
	DirtyFileCount int32
	Files          int64
	Bytes          int64
	Skipped        []SkippedFile
	SkippedCount   int32
	// Durable: the gitstore has the checkpoint.
	Durable bool
	// Refused says why the gitstore does not accept the checkpoint; empty while it may,
	// or has.
	Refused string
	// Lost: neither the gitstore nor the task's volume has the checkpoint any more;
	// Refused gives details.
	Lost            bool
	RequestedByName string
	RequestedByUID  string
	Position        Position
	// Totals are the sums up to the checkpoint.
	Totals Totals
	// Digest is the digest of the messages up to the turn boundary that the checkpoint
	// restores; see Snapshot.
	Digest string
	// FrozenMilliseconds is how long the agent was stopped to take the checkpoint.
	FrozenMilliseconds int64
	// AfterSequence is set on a checkpoint that is sent again because the history lost
	// it: the record after which it was taken. 0 means its place among the records.
	AfterSequence int64
	// RiskyTool is the call that triggered the checkpoint; nil if none did.
	RiskyTool *RiskyTool
	// Session is the agent's session at the checkpoint; nil if it had none.
	Session *AgentSession
	// Changes are the files changed since the parent, at most 1000. Only
	// Store.Checkpoint fills them in, and Integrity.
	Changes   []FileChange
	Integrity Integrity
}

// NamedCheckpoint is a checkpoint that a Checkpoint object stands for.
type NamedCheckpoint struct {
	// Name of the object.
	Name string
	// UID of the object; empty while one of that name is awaited, after the task began to continue
	// the history of a former one.
	UID string
	// Number of the checkpoint.
	Number int64
}

// RiskyTool is a tool call that triggered a checkpoint.
type RiskyTool struct {
	Name   string `json:"name"`
	CallID string `json:"callID"`
	// Before: the tool waited for the checkpoint. Otherwise the agent was stopped when
	// the call was seen, and the tool may already have begun.
	Before bool `json:"before"`
}

// AgentSession identifies an agent's session (some agents say thread or chat).
type AgentSession struct {
	// Agent is a value of v1alpha1.AgentType.
	Agent   string `json:"agent"`
	ID      string `json:"id"`
	Version string `json:"version"`
	Model   string `json:"model"`
}

// SkippedFile is a file that a checkpoint lists but does not contain.
type SkippedFile struct {
	Path   string `json:"path"`
	Reason string `json:"reason"`
	Bytes  int64  `json:"bytes"`
}

// Event is one entry of the timeline.
type Event struct {
	// ID is deterministic: the same transition has the same id (see EventID).
	ID string
	// Transition is the number of the Task's transition that the event describes; 0 for
	// other events.
	Transition int64
	// Oldest says that earlier transitions are no longer available anywhere: those that
	// the store lacks are lost.
	Oldest bool
	Task   Task
	Time   time.Time
	// Type is the class that users filter by: task, chat, checkpoint, rewind, fork, file.
	Type       string
	Reason     string
	Actor      string
	Message    string
	Attempt    int64
	Checkpoint int64
	// Publication is what was pushed to the task's repository; nil for other events. It is
	// written, but not read back with the event: see Store.Publication.
	Publication *Publication
	// State is the task's state after the event, as lists show it; empty if the event
	// does not change it. It is written, but not read back.
	State string
	// Contract is the one to which the task belongs by then, of which lists and timelines know it from then on;
	// empty if the event does not tell. It is written, but not read back.
	Contract string
	// ActiveSeconds is how long the task's agent has run in all when a transition is recorded. The
	// store keeps the largest: see TaskState.
	ActiveSeconds int64
	// ImportedBy is the user who imported the event with a history; the event is then
	// only as trustworthy as the imported file. Empty for events recorded by this store.
	ImportedBy string
}

// GoneTask is a task that is gone, as its history has left it.
type GoneTask struct {
	UID string
	// State is that of its last transition before it was deleted, as Event.State; empty if none is
	// recorded.
	State string
}

// Publication is what a task has pushed to a ref of its repository last.
type Publication struct {
	// Ref is the ref's full name.
	Ref string
	// Commit is what was pushed; Onto, the newest commit in its history that others have pushed
	// to the ref, empty for none.
	Commit, Onto string
	// Checkpoint is the number of the checkpoint that Commit is from, and Time when that was
	// reported. Events have these themselves.
	Checkpoint int64
	Time       time.Time
	// Number grows with each push to the ref.
	Number int64
}

// CheckpointKey identifies a checkpoint.
type CheckpointKey struct {
	Task   Key
	Number int64
}

// CheckpointSize says how much a checkpoint changed, relative to its parent.
type CheckpointSize struct {
	TaskUID      string
	Number       int64
	FilesChanged int32
	LinesAdded   int64
	LinesRemoved int64
}

// ReasonLimitReached is the reason of the problem that a task or its namespace has
// reached its storage limit.
const ReasonLimitReached = "HistoryLimitReached"

// Notification reports a change to a task in the store.
type Notification struct {
	Task
	// Attempt is the newest attempt that has begun.
	Attempt int64
}
