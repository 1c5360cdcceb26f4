// Package journal keeps what a task's daemon must know about its volume after any crash:
// how far the layout or a rewind has progressed, which checkpoints were taken and which of
// them the gitstore lacks, which requests were served, and whether the last run ended
// cleanly.
//
// It is one small JSON file. When Update returns without an error the change is on disk,
// and a crash leaves either the old or the new state, never a mixture. A journal that the
// disk has damaged is put aside, and the new one says so.
package journal

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"

	"google.golang.org/protobuf/encoding/protojson"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/daemonapi"
	daemonv1 "github.com/clew-dev/clew/internal/daemonapi/v1"
	"github.com/clew-dev/clew/internal/durable"
)

// maxRemembered bounds the lists of served requests, completed operations and lost
// checkpoints; the oldest entries are dropped.
const maxRemembered = 1000

// Point is a checkpoint of this task.
type Point struct {
	Number int64  `json:"number"`
	Code   string `json:"code"`
	State  string `json:"state,omitempty"`
	Tree   string `json:"tree,omitempty"`
	// Head is the commit that the agent's HEAD was; empty if it had none, or in points that
	// were not taken here.
	Head string `json:"head,omitempty"`
	// Ran is set if the agent ran, or may have run, while the checkpoint was taken.
	Ran bool `json:"ran,omitempty"`
}

// Stages of a Layout.
const (
	// LayoutCloning: the worktree is being cloned from its origin.
	LayoutCloning = "Cloning"
	// LayoutCopying: the worktree is cloned, and files of another task's checkpoint are being
	// copied over it.
	LayoutCopying = "Copying"
	// LayoutForking: the worktree is being restored from another task's checkpoint.
	LayoutForking = "Forking"
	// LayoutRestoring: the worktree is being restored from a checkpoint of this task.
	LayoutRestoring = "Restoring"
	// LayoutReady: the worktree is this task's.
	LayoutReady = "Ready"
)

// Layout is the progress of laying out the volume.
type Layout struct {
	Stage string `json:"stage"`
	// Point is the checkpoint that is being restored.
	Point Point `json:"point,omitzero"`
	// Move is the id of the operation that moves the conversation back to Point; empty if
	// it stays.
	Move string `json:"move,omitempty"`
}

// Cloned is what the task's spec named when the worktree was cloned; empty for a task
// without a repository.
type Cloned struct {
	URL string `json:"url,omitempty"`
	Ref string `json:"ref,omitempty"`
}

// Stages of a Rewind; each is journalled once what it names is done.
const (
	// RewindBegun: the rewind is accepted; nothing was changed.
	RewindBegun = "Begun"
	// RewindSaved: the previous state is in a checkpoint that gitstore and server have.
	RewindSaved = "Saved"
	// RewindRestoring: the target was verified; files may be mixed from here on.
	RewindRestoring = "Restoring"
	// RewindRestored: files are the target's, verified; the previous state is preserved.
	RewindRestored = "Restored"
	// RewindMoved: the conversation is at the target's position.
	RewindMoved = "Moved"
	// RewindMarked: the checkpoint Rewound is taken.
	RewindMarked = "Marked"
	// RewindUndoing: the rewind failed permanently; files may be a mixture until they are
	// those of From again.
	RewindUndoing = "Undoing"
	// RewindUndone: files are From's again, verified; the conversation may still be where
	// the rewind moved it.
	RewindUndone = "Undone"
)

// Rewind is a rewind in progress, with everything needed to finish it whatever operation
// the next pod is given.
type Rewind struct {
	ID    string `json:"id"`
	Stage string `json:"stage"`
	// Target has no number if no checkpoint is as old as Position. It is then the agent's
	// state before the task's first run; its commits are empty if there was none.
	Target   Point                 `json:"target"`
	Scope    v1alpha1.RewindScope  `json:"scope"`
	Preserve v1alpha1.PreserveMode `json:"preserve"`
	Branch   string                `json:"branch,omitempty"`
	OnDrift  v1alpha1.OnDrift      `json:"onDrift,omitempty"`
	// FilesOnly is set if the agent's repository stays as it is, and only files become those
	// of Target: those that Paths select, or all. Target then has no number if it is a commit
	// that was named.
	FilesOnly bool     `json:"filesOnly,omitempty"`
	Paths     []string `json:"paths,omitempty"`
	// Anew is set if the conversation then has no message.
	Anew bool `json:"anew,omitempty"`
	// Position is where the conversation moves, if not to the target's position, which is
	// CheckpointPosition (0 if unknown).
	Position           int64 `json:"position,omitempty"`
	CheckpointPosition int64 `json:"checkpointPosition,omitempty"`
	// AfterSequence is the sequence of the record that made the message at Position.
	// Restored is the sequence of the last record before the checkpoint was taken that was
	// restored last: Target, or From if the rewind is being undone. 0 if unknown.
	AfterSequence int64 `json:"afterSequence,omitempty"`
	Restored      int64 `json:"restored,omitempty"`
	// From is the checkpoint that holds the state before the rewind.
	From Point `json:"from,omitzero"`
	// Preserved is the branch or stash in the agent's repository that keeps that state.
	Preserved string `json:"preserved,omitempty"`
	// MovedTo is the conversation's position after the rewind; 0 if it was left alone.
	MovedTo int64 `json:"movedTo,omitempty"`
	// Failure is the reason why the rewind is being undone.
	Failure *Failure `json:"failure,omitempty"`
}

// Failure is the reason why an operation failed permanently.
type Failure struct {
	// Reason is a reason constant of v1alpha1, Message the explanation for people.
	Reason  string `json:"reason"`
	Message string `json:"message"`
}

// Done is a completed operation and its outcome.
type Done struct {
	// ID is the operation's key; see daemonapi.OperationKey. In old journals it
	// is the bare id of a resume or a rewind.
	ID        string `json:"id"`
	From      int64  `json:"from,omitempty"`
	To        int64  `json:"to,omitempty"`
	Preserved string `json:"preserved,omitempty"`
	// Position is where a rewind left the conversation.
	Position int64 `json:"position,omitempty"`
	// Failure is set if the operation failed and left everything unchanged.
	Failure *Failure `json:"failure,omitempty"`
}

// Resume is a message of Clew's own, such as a resume's prompt, that is being recorded.
type Resume struct {
	// ID is the key of the operation it belongs to; in old journals, the bare id of a
	// resume.
	ID string `json:"id"`
	// Sequence is the sequence that the message's record gets in the spool.
	Sequence int64 `json:"sequence"`
}

// Final is the last checkpoint of an attempt whose agent has ended.
type Final struct {
	Attempt  int64  `json:"attempt"`
	PodUID   string `json:"podUID,omitempty"`
	Number   int64  `json:"number"`
	ExitCode int    `json:"exitCode"`
}

// BelongsTo reports whether the checkpoint is that of a pod. The attempt's number alone is
// not enough: an older manager may have given it to two pods.
func (f *Final) BelongsTo(attempt int64, podUID string) bool {
	return f != nil && f.Attempt == attempt && f.PodUID == podUID
}

// Session identifies the run of the agent that an attempt's output comes from.
type Session struct {
	Attempt int64  `json:"attempt"`
	PodUID  string `json:"podUID,omitempty"`
	ID      string `json:"id"`
}

// BelongsTo reports whether the run is that of a pod.
func (s *Session) BelongsTo(attempt int64, podUID string) bool {
	return s != nil && s.Attempt == attempt && s.PodUID == podUID
}

// State is the contents of the journal.
type State struct {
	// Checksum is the file's checksum; see encode. It comes first.
	Checksum string `json:"checksum,omitempty"`
	// JournalLost is set if the volume had an earlier journal that could not be read.
	JournalLost bool `json:"journalLost,omitempty"`
	// Outdated says why the volume is not the one that the history was last written from.
	// It is cleared when the volume's contents are kept as a checkpoint.
	Outdated string `json:"outdated,omitempty"`
	// OlderCopy is set if the records of an outdated volume are those that the server has
	// or had, as far as they go; they are not discarded.
	OlderCopy bool `json:"olderCopy,omitempty"`
	// TaskUID is the task the volume belongs to.
	TaskUID string `json:"taskUID,omitempty"`
	// Attempt is the newest attempt that used the volume.
	Attempt int64 `json:"attempt,omitempty"`
	// Seen is the newest attempt that the gitstore reported when it fenced one off.
	Seen int64 `json:"seen,omitempty"`
	// PodUID is the UID of that attempt's pod; empty if an older daemon used the volume.
	PodUID string `json:"podUID,omitempty"`
	// Layout is nil on an empty volume.
	Layout *Layout `json:"layout,omitempty"`
	// Cloned is the repository that the worktree was cloned from; nil if it was not cloned, or
	// by an older daemon.
	Cloned *Cloned `json:"cloned,omitempty"`
	// Base is the commit of the origin that the task started from.
	Base string `json:"base,omitempty"`
	// Parent is the code commit that the next checkpoint continues.
	Parent string `json:"parent,omitempty"`
	// LastNumber is the highest checkpoint number in use.
	LastNumber int64 `json:"lastNumber,omitempty"`
	// Latest is the newest checkpoint that was restored to the worktree or taken of it.
	Latest *Point `json:"latest,omitempty"`
	// Unspooled is the record, as protobuf JSON, of a checkpoint that may not be in the
	// spool yet.
	Unspooled json.RawMessage `json:"unspooled,omitempty"`
	// Pending are the checkpoints that the gitstore does not have yet, oldest first.
	Pending []Point `json:"pending,omitempty"`
	// Lost are the numbers of checkpoints that are damaged on the volume and that the
	// gitstore will never have.
	Lost []int64 `json:"lost,omitempty"`
	// Clean is the checkpoint to which the worktree was left equal, if any.
	Clean *Point `json:"clean,omitempty"`
	// Final is set when an attempt's last checkpoint is taken.
	Final *Final `json:"final,omitempty"`
	// Session is the agent's run in the newest attempt.
	Session *Session `json:"session,omitempty"`
	// Start is how prepare has the agent started.
	Start *Start `json:"start,omitempty"`
	// AgentSession is the agent's own session whose files are in its home.
	AgentSession *AgentSession `json:"agentSession,omitempty"`
	// SessionRefused is the id of a session that the agent would not resume.
	SessionRefused string `json:"sessionRefused,omitempty"`
	// Served are the UIDs of requested checkpoints that were taken.
	Served []string `json:"served,omitempty"`
	// Holds are the checkpoints of sets for which the agent is stopped, or was by a daemon that was killed.
	Holds []Hold `json:"holds,omitempty"`
	// Requests are the tool calls of an attempt about which somebody is asked.
	Requests *Requests `json:"requests,omitempty"`
	// Wishes are the calls of a supervisor's tools that its agent may repeat, oldest first.
	Wishes []Wish `json:"wishes,omitempty"`
	// Rewind is the rewind in progress.
	Rewind *Rewind `json:"rewind,omitempty"`
	// Checkout is the checkout of a branch in progress.
	Checkout *Checkout `json:"checkout,omitempty"`
	// RefsReplaced is set when a checkpoint is restored, until the branches of checkpoints that the
	// agent's repository had got are in it again.
	RefsReplaced bool `json:"refsReplaced,omitempty"`
	// BranchTries is what is known of making branches in the agent's repository; nil if none was
	// made.
	BranchTries *BranchTries `json:"branchTries,omitempty"`
	// Resume is the message being recorded.
	Resume *Resume `json:"resume,omitempty"`
	// Done are completed operations, newest last.
	Done []Done `json:"done,omitempty"`
}

// MarkOutdated records why the volume is not the one that the history was last written
// from, and whether its records are an older copy of the history's. An empty why clears
// both.
func (s *State) MarkOutdated(why string, olderCopy bool) { s.Outdated, s.OlderCopy = why, olderCopy }

// LeaveVolume has the workspace laid out from the beginning, because the volume's contents
// are kept elsewhere or cannot be used.
func (s *State) LeaveVolume() {
	s.Layout, s.Clean, s.Rewind, s.Checkout, s.JournalLost = nil, nil, nil, nil, false
	s.MarkOutdated("", false)
}

// Operation returns the completed operation of a kind with the given id.
func (s *State) Operation(kind, id string) (Done, bool) {
	key := daemonapi.OperationKey(kind, id)
	for _, d := range s.Done {
		if d.ID == key || (d.ID == id && kind == d.bareKind()) {
			return d, true
		}
	}
	return Done{}, false
}

// bareKind returns the kind of an operation that an old journal identifies by its id alone:
// a rewind has an outcome, a resume has none.
func (d Done) bareKind() string {
	if d == (Done{ID: d.ID}) {
		return daemonapi.OperationResume
	}
	return daemonapi.OperationRewind
}

// Complete records an operation as completed.
func (s *State) Complete(d Done) {
	s.Done = slices.DeleteFunc(s.Done, func(x Done) bool { return x.ID == d.ID })
	s.Done = lastOf(append(s.Done, d), maxRemembered)
}

// MarkServed records that a requested checkpoint was taken.
func (s *State) MarkServed(uid string) {
	if uid != "" && !slices.Contains(s.Served, uid) {
		s.Served = lastOf(append(s.Served, uid), maxRemembered)
	}
}

// GiveUp gives up a checkpoint that cannot be pushed. If it is the newest one, the next
// checkpoint must not continue it.
func (s *State) GiveUp(number int64) {
	s.Pending = slices.DeleteFunc(s.Pending, func(p Point) bool { return p.Number == number })
	s.Lost = lastOf(append(s.Lost, number), maxRemembered)
	if s.Latest != nil && s.Latest.Number == number {
		s.Parent = ""
	}
}

// IsLost reports whether a checkpoint was given up.
func (s *State) IsLost(number int64) bool { return slices.Contains(s.Lost, number) }

// IsPending reports whether a checkpoint is still to be pushed to the gitstore.
func (s *State) IsPending(number int64) bool {
	return slices.ContainsFunc(s.Pending, func(p Point) bool { return p.Number == number })
}

func lastOf[T any](list []T, n int) []T {
	return list[max(0, len(list)-n):]
}

// SetUnspooled sets the record that must still be spooled; nil clears it.
func (s *State) SetUnspooled(c *daemonv1.CheckpointRecord) error {
	s.Unspooled = nil
	if c == nil {
		return nil
	}
	b, err := protojson.Marshal(c)
	if err != nil {
		return fmt.Errorf("encode a checkpoint for the journal: %w", err)
	}
	s.Unspooled = b
	return nil
}

// UnspooledRecord returns the record that SetUnspooled set, or nil.
func (s *State) UnspooledRecord() (*daemonv1.CheckpointRecord, error) {
	if len(s.Unspooled) == 0 {
		return nil, nil
	}
	c := &daemonv1.CheckpointRecord{}
	if err := (protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(s.Unspooled, c); err != nil {
		return nil, fmt.Errorf("the journal holds a checkpoint that cannot be read: %w", err)
	}
	return c, nil
}

// Journal is an open journal. It is safe for concurrent use; the spool's lock keeps other
// processes out.
type Journal struct {
	path  string
	owned func() error // may be nil; see Open

	mu  sync.Mutex
	raw []byte
}

// Open reads the journal at path; a missing file is an empty journal. A damaged one is put
// aside, and the journal then has JournalLost set.
//
// Update first calls owned, unless it is nil, and fails with its error if the volume is no
// longer this process's: on some kinds of storage the lock alone does not prevent that.
func Open(path string, owned func() error) (*Journal, error) {
	// A rename by a killed daemon may not be on disk yet.
	if err := durable.SyncFolder(filepath.Dir(path)); err != nil {
		return nil, fmt.Errorf("read the journal: %w", err)
	}
	raw, err := os.ReadFile(path)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return create(path, owned)
	case errors.Is(err, syscall.EIO):
		return putAside(path, owned)
	case err != nil:
		return nil, fmt.Errorf("read the journal: %w", err)
	case !intact(raw):
		return putAside(path, owned)
	}
	return &Journal{path: path, owned: owned, raw: raw}, nil
}

// create creates a journal. If a damaged one was put aside and not yet replaced, this one
// replaces it, and has JournalLost set.
func create(path string, owned func() error) (*Journal, error) {
	aside, err := filepath.Glob(path + ".damaged*")
	if err != nil {
		return nil, fmt.Errorf("read the journal: %w", err)
	}
	j := &Journal{path: path, owned: owned, raw: []byte("{}")}
	if len(aside) == 0 {
		return j, nil
	}
	return j, j.Update(func(s *State) error { s.JournalLost = true; return nil })
}

// putAside keeps a damaged journal beside a new one.
func putAside(path string, owned func() error) (*Journal, error) {
	aside := path + ".damaged"
	for n := 2; ; n++ {
		if _, err := os.Lstat(aside); errors.Is(err, os.ErrNotExist) {
			break
		}
		aside = fmt.Sprintf("%s.damaged-%d", path, n)
	}
	err := os.Rename(path, aside)
	if err == nil {
		err = durable.SyncFolder(filepath.Dir(path))
	}
	if err != nil {
		return nil, fmt.Errorf("put the damaged journal aside: %w", err)
	}
	return create(path, owned)
}

// Newest returns the newest attempt that the volume knows of.
func (s *State) Newest() int64 { return max(s.Attempt, s.Seen) }

// KnowsNumbers reports whether the journal is the one with which the volume's checkpoints
// were taken: any ref with a number above LastNumber is then not a checkpoint.
func (s *State) KnowsNumbers() bool {
	return !s.JournalLost && (s.Layout != nil || s.LastNumber > 0)
}

// State returns a copy of the journal's contents.
func (j *Journal) State() State {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.decode()
}

func (j *Journal) decode() State {
	var s State
	if err := json.Unmarshal(j.raw, &s); err != nil {
		return State{} // cannot happen: raw was decoded or encoded before
	}
	s.Checksum = ""
	return s
}

// Update changes the journal on disk. If change returns an error the journal is unchanged.
func (j *Journal) Update(change func(*State) error) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	s := j.decode()
	if err := change(&s); err != nil {
		return err
	}
	raw, err := encode(s)
	if err != nil {
		return fmt.Errorf("encode the journal: %w", err)
	}
	if j.owned != nil {
		if err := j.owned(); err != nil {
			return fmt.Errorf("write the journal: %w", err)
		}
	}
	if err := durable.Write(j.path, raw, 0o600); err != nil {
		return fmt.Errorf("write the journal: %w", err)
	}
	j.raw = raw
	return nil
}
