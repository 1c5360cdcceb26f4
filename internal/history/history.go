// Package history says what the history store promises: the types it keeps and
// the errors it answers with. Package postgres, below it, keeps them.
//
// The store is the system of record for conversations, checkpoints and the
// timeline; it outlives the custom resources. Everything written to it is
// written once: records carry a per-task sequence given by the writer, events
// a deterministic id, operations their own id, so that any write may be
// repeated.
package history

import (
	"errors"
	"time"

	"github.com/clew-dev/clew/internal/conversation"
)

// Errors that callers tell apart.
var (
	// ErrNotFound: the task, checkpoint or position is not in the store.
	ErrNotFound = errors.New("not found in the history store")
	// ErrFenced: a newer attempt of the task has begun; the writer must stop.
	ErrFenced = errors.New("a newer attempt of this task has begun")
	// ErrGap: records are missing between the last stored one and the first given.
	ErrGap = errors.New("records are missing before the first one given")
	// ErrUnavailable: the store cannot be reached; try again.
	ErrUnavailable = errors.New("the history store cannot be reached")
	// ErrOldSchema: the store lacks a part that this program needs: it is older, until a
	// server has brought it up to date, or newer, as this program sees it in an upgrade.
	// It is an ErrUnavailable, too.
	ErrOldSchema error = oldSchemaError{}
	// ErrCorrupted: what is stored is not what was written.
	ErrCorrupted = errors.New("the history is damaged")
	// ErrInvalid: what was asked for cannot be done as it was asked for.
	ErrInvalid = errors.New("not a valid request")
	// ErrForeign: another record is stored by the same sequence; somebody else
	// has written it.
	ErrForeign = errors.New("other records of this task are stored by the same sequences")
	// ErrExists: it is in the store already.
	ErrExists = errors.New("already in the history store")
	// ErrNextTask is what a reader of a list answers to have the rest of a task left out.
	ErrNextTask = errors.New("go on with the next task")
	// ErrLimitReached: a task or a namespace has as much stored as it may.
	ErrLimitReached = errors.New("the limit of what may be stored is reached")
)

// MaxUIDBytes is how long the UID of a task may be that is imported. Those of
// Kubernetes have 36.
const MaxUIDBytes = 64

// IsUID tells whether a text may be the UID of a task that is imported: it is kept and
// compared as it is.
func IsUID(uid string) bool {
	return uid != "" && len(uid) <= MaxUIDBytes && conversation.CleanText(uid) == uid
}

type oldSchemaError struct{}

// Error implements error.
func (oldSchemaError) Error() string {
	return "the history database's schema is not the one of this release: after a restore of an older backup, and in an upgrade, the servers bring it up to date"
}

// Is says that it is an ErrUnavailable.
func (oldSchemaError) Is(target error) bool { return target == ErrUnavailable }

// Task identifies a task. UID alone is the key; names are kept for queries.
type Task struct {
	Namespace string
	Name      string
	UID       string
}

// Position is a place in a task's conversation.
type Position struct {
	// Branch is the id of the branch.
	Branch string
	// Position counts the messages up to here, inherited ones included.
	Position int64
	// ToolCalls counts the answered tool calls up to here.
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

// Key of the task.
func (t Task) Key() Key { return Key{Namespace: t.Namespace, UID: t.UID} }

// Key names a task where the UID may come from an object that anybody in a
// namespace can write: only what was recorded in that namespace is found.
type Key struct {
	Namespace string
	UID       string
}

// TaskState is where a task stands.
type TaskState struct {
	Task
	// Attempt is the newest attempt that has begun.
	Attempt int64
	// LastSequence is the sequence of the last stored record.
	LastSequence int64
	// LastRecordID is that record's id; 0 if it has none.
	LastRecordID uint64
	// LostRecords counts the records that are lost for good, and show as gaps.
	LostRecords int64
	// LeftOutRecords counts those that are not stored, or not in full, since the
	// task or its namespace had reached a limit.
	LeftOutRecords int64
	Position       Position
	Totals         Totals
	// CheckpointCount counts the checkpoints recorded.
	CheckpointCount int64
	// Latest is the newest checkpoint; nil when there is none.
	Latest *Checkpoint
	// CompletedOperations are the keys of finished conversation moves, newest last, at most 100.
	CompletedOperations []string
	// Moves are the outcomes of the newest conversation moves, the refused ones
	// included, oldest first, at most 100.
	Moves []MoveResult
	// OpenToolCalls are ids of tool calls on the active branch without a result.
	OpenToolCalls []string
	// Problem is what keeps the daemon of the newest attempt from its work; nil
	// when nothing does.
	Problem *Problem
	// AgentEnd is how the agent of an attempt ended, if the newest one that ended
	// did not end well; else nil.
	AgentEnd *AgentEnd
	// ActiveAt is when the agent was last heard of; zero if it never was.
	ActiveAt time.Time
}

// AgentEnd is how an agent ended that did not end well.
type AgentEnd struct {
	Attempt int64 `json:"attempt"`
	// ExitCode of the program, 128+n for a signal n; -1 if nobody knows.
	ExitCode int32 `json:"exitCode"`
	// Cause is a value of agent.Cause; empty if it is not known.
	Cause string `json:"cause,omitempty"`
	// Message is what the agent said, masked.
	Message string `json:"message,omitempty"`
	// RetryAfter is the pause that the model's API asked for; 0 for none.
	RetryAfter time.Duration `json:"retryAfter,omitempty"`
}

// Problem is what keeps a daemon from its work until somebody acts.
type Problem struct {
	// Reason is one as conditions have it.
	Reason string
	// Message says what is wrong, and what to do.
	Message string
}

// Checkpoint is a recorded checkpoint.
type Checkpoint struct {
	TaskUID string
	Number  int64
	Attempt int64
	// Trigger is a v1alpha1.CheckpointTrigger, and Consistency a v1alpha1.CheckpointConsistency,
	// empty if nobody said. Both are kept as the daemon said them: it may be of a later
	// release, and have a word that this one does not know.
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
	// Durable: the gitstore has it.
	Durable bool
	// Refused says why the gitstore will not take it; empty while it may, or has.
	Refused string
	// Lost: neither the gitstore nor the task's volume has it any more; Refused
	// says more.
	Lost            bool
	RequestedByName string
	RequestedByUID  string
	Position        Position
	// Totals are the sums up to the checkpoint.
	Totals Totals
	// Digest is that of the messages up to the turn boundary that the
	// checkpoint goes back to; see Snapshot.
	Digest string
	// FrozenMilliseconds is how long the agent was stopped for it.
	FrozenMilliseconds int64
	// AfterSequence is, on one that is told again since the history has lost it, the
	// record after which it was taken; 0 for where it stands among the records.
	AfterSequence int64
	// RiskyTool is the call that the checkpoint was taken for, if it was.
	RiskyTool *RiskyTool
	// Session is the agent's own, as of the checkpoint; nil if it has none.
	Session *AgentSession
	// Changes are the files changed since the parent, at most 1000. Only
	// Store.Checkpoint fills them in.
	Changes []FileChange
}

// RiskyTool is a tool call that a checkpoint was taken for.
type RiskyTool struct {
	Name   string `json:"name"`
	CallID string `json:"callID"`
	// Before: the tool waited for the checkpoint. Otherwise the agent was
	// stopped when the call was seen, and the tool may have begun.
	Before bool `json:"before"`
}

// AgentSession is what an agent calls its session, thread or chat.
type AgentSession struct {
	// Agent is a value of v1alpha1.AgentType.
	Agent   string `json:"agent"`
	ID      string `json:"id"`
	Version string `json:"version"`
	Model   string `json:"model"`
}

// SkippedFile is a file a checkpoint lists but does not hold.
type SkippedFile struct {
	Path   string `json:"path"`
	Reason string `json:"reason"`
	Bytes  int64  `json:"bytes"`
}

// Event is one entry of the timeline.
type Event struct {
	// ID is deterministic: the same transition gives the same id (see EventID).
	ID string
	// Transition is the number of the Task's transition that this tells of; 0 for
	// other events.
	Transition int64
	// Oldest says that nobody has the transitions before this one any more: those
	// that the store lacks are lost.
	Oldest bool
	Task   Task
	Time   time.Time
	// Type is the class people filter by: task, chat, checkpoint, rewind, fork, file.
	Type       string
	Reason     string
	Actor      string
	Message    string
	Attempt    int64
	Checkpoint int64
	// State that the task is in after the event, as lists show it; empty if the
	// event does not change it. It is written, and not read back.
	State string
	// ImportedBy is who imported the event with a history; it is then as true as
	// the file that it came from. Empty for what this store saw itself.
	ImportedBy string
}

// CheckpointKey names a checkpoint.
type CheckpointKey struct {
	Task   Key
	Number int64
}

// ReasonLimitReached is the reason of the problem that a task, or its namespace,
// has as much stored as it may.
const ReasonLimitReached = "HistoryLimitReached"

// Notification says that something of a task changed in the store.
type Notification struct {
	Task
	// Attempt is the newest attempt that has begun.
	Attempt int64
}
